"""Stacks of wrappers that run, and give data that nobody wants: what a worker says of its environment."""

from __future__ import annotations

from typing import Any

from rollout_cli.envs.describe import layers

_SKIPS = {"MaxAndSkipEnv": "_skip", "MaxAndSkipObservation": "_skip", "AtariPreprocessing": "frame_skip"}
"""Wrappers that repeat an action, and where they keep how often."""
_LIVES = {"EpisodicLifeEnv", "EpisodicLife"}
_CLIPS = {"ClipRewardEnv", "ClipReward"}


def stack_warnings(env: Any) -> list[str]:
    """Return one line for each thing that is fit for training and wrong for data, or done twice, in a stack.

    Wrappers are known by the names of their classes: those of gymnasium, of Stable-Baselines3, and others of
    these names.
    """
    stack = [(type(layer).__name__, vars(layer)) for layer in layers(env)]
    skips = [(name, held.get(_SKIPS[name], 1)) for name, held in stack if name in _SKIPS]
    skips.append((stack[-1][0], stack[-1][1].get("_frameskip", 1)))  # It is ALE's.
    skips = [(name, count) for name, count in skips if count != 1]
    lines = []
    if len(skips) > 1:
        each = " and ".join(f"{count} by {name}" for name, count in skips)
        lines.append(f"frames are skipped twice, {each}: build the environment with frameskip=1")
    for name, held in stack:
        if name in _LIVES or held.get("terminal_on_life_loss") is True:
            lines.append(
                f"{name} ends episodes with each life: that is fit for training, "
                "but the episodes of the data are no whole games"
            )
        if name in _CLIPS:
            lines.append(
                f"{name} changes rewards: that is fit for training, but the data has no rewards of the game"
            )
    return lines
