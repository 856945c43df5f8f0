"""The fingerprint of a run: what decides its data is in it, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from rollout_cli.config import CollectConfig, EpisodeRange
from rollout_cli.envs import env_source
from rollout_cli.fingerprint import Fingerprint, asked, differences
from rollout_cli.policies import policy_source
from tests.support.policies import LinearPolicy
from tests.support.projects import project, write_module

__all__ = ["project"]

BASE = CollectConfig(timesteps=5, seed=1, env="tests.support.slow:chain", workers=2)


def of(config: CollectConfig) -> Fingerprint:
    return asked(config, policy_source(config.policy), env_source(config.env, config.env_kwargs))


@pytest.mark.parametrize(
    "change",
    [
        {"timesteps": 6},
        {"timesteps": None, "episodes": EpisodeRange(0, 3)},
        {"workers": 5},
        {"sampler": "local"},
        {"start_method": "spawn"},
        {"output": Path("elsewhere")},
        {"flush_every": 1.0},
        {"grace": 1.0},
        {"require_reproducible": True},
    ],
)
def test_how_the_data_are_made_is_not_in_it(change: dict[str, Any]) -> None:
    """Nor how much of them."""
    assert of(BASE) == of(replace(BASE, **change))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 2}, "seed"),
        ({"timesteps": None, "episodes": EpisodeRange(2, 3)}, "first"),
        ({"env": "tests.support.slow:box"}, "env"),
        ({"env_kwargs": {"x": 1}}, "env_kwargs"),
        ({"policy": "tests.support.policies:LinearPolicy"}, "policy"),
        ({"deterministic": True}, "deterministic"),
        ({"order": "arrival"}, "order"),
        ({"worker_class": "tests.support.workers:Trials"}, "worker_class"),
        ({"worker_args": {"x": 1}}, "worker_args"),
        ({"vectorization": "native"}, "vectorization"),
        ({"envs_per_worker": 2}, "envs_per_worker"),
        ({"max_episode_length": 2}, "max_episode_length"),
        ({"next_observation": True}, "next_observation"),
        ({"drop_info": ("x",)}, "drop_info"),
        ({"shard_bytes": 5}, "shard_bytes"),
        ({"invalid_action": "clip"}, "invalid_action"),
    ],
)
def test_what_decides_the_data_is_in_it(change: dict[str, Any], name: str) -> None:
    """And is told with both values."""
    found = differences(of(BASE), of(replace(BASE, **change)))
    assert any(text.startswith(f"{name} was ") for text in found), found


def test_what_a_run_failed_at_may_be_left_out_by_the_next() -> None:
    """But what the first one left out is not failed at by the next."""
    fails, skips = of(BASE), of(replace(BASE, on_env_error="skip", on_worker_death="skip"))
    assert [] == differences(fails, skips)
    found = ['on_env_error was "skip", is "fail"', 'on_worker_death was "skip", is "fail"']
    assert found == differences(skips, fails)


def test_exact_has_its_workers_and_episodes_in_it() -> None:
    """The lanes follow from them."""
    exact = CollectConfig(command="exact", episodes_per_worker=3, workers=2, seed=1)
    found = differences(of(exact), of(replace(exact, episodes_per_worker=4, workers=3)))
    assert ["episodes_per_worker was 3, is 4", "workers was 2, is 3"] == found


def test_a_file_is_known_by_its_bytes(project: Path) -> None:
    """It may lie elsewhere; other bytes under the same name are another policy."""
    for name in ("a.pkl", "b.pkl"):
        (project / name).write_bytes(cloudpickle.dumps(LinearPolicy))
    first = of(replace(BASE, policy="a.pkl"))
    assert first == of(replace(BASE, policy="b.pkl"))
    (project / "a.pkl").write_bytes(cloudpickle.dumps([LinearPolicy]))
    assert 1 == len(differences(first, of(replace(BASE, policy="a.pkl"))))


def test_a_module_is_known_by_its_source(project: Path) -> None:
    """An edited environment or worker class is another one."""
    write_module(project, "mine", "class Env: pass\nclass Worker: pass\n")
    config = replace(BASE, env="mine:Env", worker_class="mine:Worker")
    first = of(config)
    write_module(project, "mine", "class Env: pass\nclass Worker: x = 1\n")
    assert ["env", "worker_source"] == [text.split()[0] for text in differences(first, of(config))]


def test_secrets_are_not_in_it() -> None:
    """They are cut, here as in all that is recorded."""
    assert "hunter2" not in str(of(replace(BASE, env_kwargs={"password": "hunter2"})))
