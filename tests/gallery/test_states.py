"""States of MuJoCo: they restore the observations bit for bit, and pictures of them are those of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

import rollout_cli
from rollout_cli.envs.state import state_setter
from tests.helpers.datasets import assert_same_data
from tests.helpers.processes import called, rollout

STEPS = 120


class Positions(HalfCheetahEnv):
    """Draws the bytes of all bodies' positions, which needs no graphics driver.

    Like MuJoCo's viewer it first computes them: after a step of the simulator they are those of the step before.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        mujoco.mj_forward(self.model, self.data)
        return np.resize(self.data.geom_xpos.view(np.uint8), (16, 16, 3))


def collect(output: Path, env: str, *words: str) -> Path:
    options = ("--env", env, "--store-state", "--max-episode-length", str(STEPS), "--seed", "5", "--quiet")
    called("collect", *options, *words, "--output", output)
    return output


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Ant-v5", "Hopper-v5"])
def test_states_restore_observations(tmp_path: Path, env_id: str) -> None:
    """From the state of any step the recorded actions lead to the recorded observations, bit for bit."""
    dataset = rollout_cli.load(
        collect(tmp_path / "data", env_id, "--episodes", "6", "--workers", "1", "--sampler", "local")
    )
    env: Any = gymnasium.make(env_id)
    restore = state_setter(env)
    rng = np.random.default_rng(0)
    for episode in dataset:
        states = np.concatenate([episode.episode_infos["state"], episode.env_infos["state"]])
        for start in {0, len(episode) - 1, *rng.integers(len(episode), size=4).tolist()}:
            env.reset(seed=9)
            env.step(env.action_space.sample())
            restore(states[start])
            for action, expected in zip(
                episode.actions[start:], episode.next_observations[start:], strict=True
            ):
                seen = env.step(action)[0]
                np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("env", ["HalfCheetah-v5", "dm_control/acrobot-swingup-v0"])
def test_the_same_bytes(tmp_path: Path, env: str) -> None:
    """For one and three workers, and after a resume; dm_control has another way to its physics."""
    one = collect(tmp_path / "one", env, "--episodes", "6", "--workers", "1")
    assert_same_data(one, collect(tmp_path / "three", env, "--episodes", "6", "--workers", "3"))
    resumed = collect(tmp_path / "resumed", env, "--episodes", "2", "--workers", "1")
    called("collect", "--resume", "--episodes", "6", "--quiet", "--output", resumed)
    assert_same_data(one, resumed)
    states = rollout_cli.load(one)[3].env_infos["state"]
    assert (STEPS, np.float64) == (len(states), states.dtype.type)
    assert np.diff(states[:, 0]).min() > 0  # The first number is the time.
    called("replay", "--trust", one, "--episode", "3", "--quiet")


def test_render(tmp_path: Path) -> None:
    """The frames of the states are those of the actions."""
    data = collect(tmp_path / "data", "tests.gallery.test_states:Positions", "--episodes", "2")
    films: list[list[bytes]] = []
    for words, origin in (((), "stored states"), (("--again",), "recorded actions, run again")):
        film = tmp_path / f"film{len(films)}"
        ran = rollout("render", "--trust", data, "--episode", "1", "--json", "--output", film, *words)
        document = json.loads(ran.stdout)
        assert (origin, STEPS + 1, None) == tuple(document[key] for key in ("origin", "frames", "difference"))
        films.append([path.read_bytes() for path in sorted(film.iterdir())])
    assert films[0] == films[1]
    assert STEPS + 1 == len(set(films[0]))
