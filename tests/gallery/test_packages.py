"""Environments of packages that take long to install, as `test_environments` has those of the gallery.

`.ci/matrix/environments` installs them and runs this module.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rollout_cli.run.check
from tests.gallery.test_environments import SHORT, World, check_world
from tests.helpers.processes import called

FEW_STEPS = ("--episodes", "5"), ("--max-episode-length", "25")
# The action in the infos of their reset is drawn from a space that the reset makes anew, without a seed.
WITHOUT_ACTION = (*FEW_STEPS[1], "--drop-info", "action")
WORLDS = {
    "highway": World("highway_env:highway-v0", FEW_STEPS[0], WITHOUT_ACTION, 5),
    "highway, parking": World("highway_env:parking-v0", FEW_STEPS[0], WITHOUT_ACTION, 5),
    "highway, intersection": World("highway_env:intersection-v1", FEW_STEPS[0], WITHOUT_ACTION, 5),
    "FlappyBird": World("flappy_bird_gymnasium:FlappyBird-v0", options=SHORT),
    "PushT": World("gym_pusht:gym_pusht/PushT-v0", options=SHORT),
    "FetchReach": World("gymnasium_robotics:FetchReach-v4", options=SHORT),
    "PointMaze": World("gymnasium_robotics:PointMaze_UMaze-v3", options=SHORT),
    "AntMaze": World("gymnasium_robotics:AntMaze_UMaze-v5", *FEW_STEPS, 5),
    "AdroitHandDoor": World("gymnasium_robotics:AdroitHandDoor-v1", *FEW_STEPS, 5),
    "HandReach": World("gymnasium_robotics:HandReach-v3", *FEW_STEPS, 5),
    "FrankaKitchen": World("gymnasium_robotics:FrankaKitchen-v1", *FEW_STEPS, 5),
    "PandaReach": World("panda_gym:PandaReach-v3", *FEW_STEPS, 5),
    "Meta-World": World(
        "metaworld:Meta-World/MT1", FEW_STEPS[0], (*FEW_STEPS[1], "--env-kwargs", "env_name=reach-v3"), 5
    ),
    "OGBench, PointMaze": World("ogbench:pointmaze-medium-v0", *FEW_STEPS, 5),
    "OGBench, AntMaze": World("ogbench:antmaze-medium-v0", *FEW_STEPS, 5),
}


@pytest.mark.parametrize("name", WORLDS)
def test_worlds(tmp_path: Path, name: str) -> None:
    """Three workers, killed and resumed, give the bytes of one; the dataset verifies, and its episodes repeat."""
    check_world(WORLDS[name], tmp_path)


FAULTS = {
    "FlappyBird": [
        "values"
    ],  # Its first observations are outside of their space, as those of Meta-World are.
    "FrankaKitchen": ["gymnasium's checker"],  # Its reset and its step give the same arrays.
    "Meta-World": ["values"],
}
"""By name, the checks that rightly warn."""


@pytest.mark.parametrize("name", WORLDS)
def test_check_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` fails none of them, and says nothing of what is sound."""
    monkeypatch.setattr(rollout_cli.run.check, "MOST_STEPS", 30)
    words = (
        "check",
        "--env",
        WORLDS[name].env,
        *WORLDS[name].options,
        "--seed",
        "3",
        "--seconds",
        "90",
        "--json",
    )
    found = [entry for entry in json.loads(called(*words).stdout)["checks"] if entry["status"] != "ok"]
    assert FAULTS.get(name, []) == [entry["check"] for entry in found], found
