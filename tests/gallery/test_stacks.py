"""Real ids without their module, real stacks that a run warns of, and EnvPool, which aborts at a wrong shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_cli.envs.describe import stack_warnings
from rollout_cli.envs.source import env_source, wrapper_source
from tests.helpers.datasets import source_of
from tests.helpers.processes import called, rollout

ATARI = "stable_baselines3.common.atari_wrappers:AtariWrapper"
POOL = ("--env", "tests.gallery.worlds:cartpole_pool", "--vectorization", "native", "--envs-per-worker", "8")


@pytest.mark.parametrize("env", ["ALE/Pong-v5", "BabyAI-GoToObj-v0"])
def test_ids(tmp_path: Path, env: str) -> None:
    """Workers import what registers the id; a resume and a replay find it again from the record."""
    words = (
        "collect",
        "--env",
        env,
        "--max-episode-length",
        "10",
        "--seed",
        "3",
        "--quiet",
        "--output",
        tmp_path / "out",
    )
    rollout(*words, "--workers", "2", "--episodes", "4")
    rollout(*words, "--workers", "1", "--episodes", "6", "--resume")
    rollout("replay", tmp_path / "out", "--all", "--quiet")
    assert env == source_of(tmp_path / "out")["env"]["id"]


def test_atari_stacks(tmp_path: Path) -> None:
    """A run warns of Stable-Baselines3's AtariWrapper on ALE, once a fault; with the right arguments of nothing."""
    words = (
        "collect",
        "--env",
        "ALE/Pong-v5",
        "--max-episode-length",
        "5",
        "--episodes",
        "1",
        "--workers",
        "1",
    )
    said = rollout(*words, "--wrapper", ATARI, "--output", tmp_path / "out").stderr
    for fault in (
        "frames are skipped twice, 4 by MaxAndSkipEnv and 4 by",
        "EpisodicLifeEnv",
        "ClipRewardEnv",
    ):
        assert 1 == said.count(fault), said
    wrapper = wrapper_source(ATARI, {"terminal_on_life_loss": False, "clip_reward": False})
    env = env_source("ALE/Pong-v5", {"frameskip": 1}, wrappers=(wrapper,)).build()
    assert [] == stack_warnings(env)


@pytest.mark.parametrize("actions", ["[1] * 7", "[[1]] * 8", "[1.5] * 8"])
def test_envpool_gets_no_actions_that_abort_it(tmp_path: Path, actions: str) -> None:
    """A policy's actions of a wrong number, shape or type are an error of the policy, whatever is asked for."""
    (tmp_path / "faulty.py").write_text(
        f"import numpy as np\n\n\nclass Faulty:\n    def reset(self, dones=None):\n        pass\n\n"
        f"    def get_action(self, observation):\n        return 1, {{}}\n\n"
        f"    def get_actions(self, observations):\n        return np.array({actions}), {{}}\n"
    )
    words = (
        "collect",
        *POOL,
        "--policy",
        "faulty:Faulty",
        "--episodes",
        "2",
        "--workers",
        "1",
        "--invalid-action",
        "warn",
    )
    ran = called(*words, "--output", tmp_path / "out", cwd=tmp_path, code=3)
    assert "actions" in ran.stderr, ran.said
