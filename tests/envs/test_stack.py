"""Stacks of wrappers that are wrong for data are named; others are not."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv, VectorWrapper

from rollout_cli.envs.describe import stack_warnings
from tests.workers.worlds import ChainEnv


def stacked(*wrappers: tuple[str, dict[str, Any]], frameskip: Any = 1) -> Any:
    """Return an environment in wrappers of these class names and attributes, the innermost first."""
    env: Any = ChainEnv()
    env._frameskip = frameskip
    for name, attributes in wrappers:
        env = type(name, (gymnasium.Wrapper,), {})(env)
        vars(env).update(attributes)
    return env


def ales(**kwargs: Any) -> Any:
    """Return what looks as ALE's vector environment does that was built with these arguments."""
    env = type("AtariVectorEnv", (VectorEnv,), {})()
    env.spec = EnvSpec("ALE/Pong-v5", kwargs=kwargs)
    return VectorWrapper(env)


SKIP = ("MaxAndSkipEnv", {"_skip": 4})


@pytest.mark.parametrize(
    ("env", "beginnings"),
    [
        (stacked(SKIP, frameskip=4), ["frames are skipped twice, 4 by MaxAndSkipEnv and 4 by ChainEnv"]),
        (stacked(SKIP, frameskip=(2, 5)), ["frames are skipped twice, 4 by MaxAndSkipEnv and (2, 5) by"]),
        (stacked(SKIP, ("AtariPreprocessing", {"frame_skip": 2})), ["frames are skipped twice, 2 by Atari"]),
        (stacked(SKIP, ("AtariPreprocessing", {"frame_skip": 1})), []),
        (stacked(SKIP), []),
        (stacked(frameskip=4), []),
        (
            stacked(("AtariPreprocessing", {"terminal_on_life_loss": True})),
            ["AtariPreprocessing ends episodes"],
        ),
        (
            stacked(("EpisodicLifeEnv", {}), ("ClipRewardEnv", {})),
            ["ClipRewardEnv changes rewards", "EpisodicLifeEnv ends episodes"],
        ),
        (ales(frameskip=4), ["AtariVectorEnv changes rewards"]),
        (ales(reward_clipping=False), []),
        (ales(reward_clipping=False, episodic_life=True), ["AtariVectorEnv ends episodes"]),
    ],
)
def test_stacks(env: Any, beginnings: list[str]) -> None:
    """One line for each fault, of the outermost wrapper first."""
    lines = stack_warnings(env)
    assert len(beginnings) == len(lines)
    assert all(line.startswith(beginning) for line, beginning in zip(lines, beginnings, strict=True)), lines
