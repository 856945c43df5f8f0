"""What a step cannot afford to check, checked a chunk at a time: are actions of their space, and rewards numbers?

A comparison of one action with its bounds takes as long as many an environment's step; of ten thousand rows, next to
nothing. So an episode with such a fault is found when it is about to be handed on, and is not handed on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import EnvError, PolicyError, RolloutError, UserCodeError
from rollout_cli.spaces import Leaf, space_leaves

Array = npt.NDArray[Any]

_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Fault:
    """The first fault of a chunk.

    Attributes:
        at: The place of its episode in the chunk.
        error: What to tell: a PolicyError or an EnvError.
    """

    at: int
    error: RolloutError


class SampleChecks:
    """Checks the chunks of one worker.

    Args:
        env_spec: The spaces.
        actions: Whether actions must be of their space.
    """

    def __init__(self, env_spec: EnvSpec, *, actions: bool) -> None:
        leaves = space_leaves(env_spec.action_space) if actions else ()
        self._leaves = [(at, leaf, _bounds(leaf)) for at, leaf in enumerate(leaves)]

    def first_fault(self, chunk: Chunk) -> Fault | None:
        """Return the first episode's fault, if there is any: what is wrong with an action, or else a reward."""
        faults = [fault for fault in self._faults(chunk) if fault is not None]
        return min(faults, key=lambda fault: fault.at, default=None)

    def sound(self, chunk: Chunk) -> tuple[Chunk | None, RolloutError | None]:
        """Return the episodes without a fault, None for none, and the error of the first one that has one."""
        fault = self.first_fault(chunk)
        if fault is None:
            return chunk, None
        sound = [chunk.episodes(0, fault.at)] if fault.at else []
        rest = chunk.episodes(fault.at + 1, chunk.n_episodes) if fault.at + 1 < chunk.n_episodes else None
        if rest is not None and (others := self.sound(rest)[0]) is not None:
            sound.append(others)
        return concatenate(sound) if sound else None, fault.error

    def _faults(self, chunk: Chunk) -> Iterator[Fault | None]:
        for at, leaf, bounds in self._leaves:
            column = chunk.actions[at]
            rows = _rows_outside(column, leaf, bounds)
            if len(rows):
                yield _fault(chunk, int(rows[0]), _bad_action(column[rows[0]], leaf))
        # The least of some numbers is none where one of them is; it is found in half of the time of their sum.
        if chunk.rewards.size and np.isnan(chunk.rewards.min()):
            rows = np.flatnonzero(np.isnan(chunk.rewards))
            yield _fault(chunk, int(rows[0]), EnvError("the reward is not a number (nan)", hint=_REWARD_HINT))


_REWARD_HINT = "a return cannot be told from it: let the environment say what the step was worth"
_ACTION_HINT = "--invalid-action clip moves it to the nearest bound, --invalid-action warn lets the environment have it"


def _bad_action(value: Any, leaf: Leaf) -> PolicyError:
    where = f" at {leaf.name!r}" if leaf.path else ""
    shown = str(value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value))[:_LONGEST_SHOWN]
    return PolicyError(
        f"the policy gave an action{where} that is not of its space: {shown} of {leaf.space}", hint=_ACTION_HINT
    )


def _fault(chunk: Chunk, row: int, error: UserCodeError) -> Fault:
    ends = np.cumsum(chunk.lengths)
    at = int(np.searchsorted(ends, row, side="right"))
    step = row - int(ends[at] - chunk.lengths[at]) + (chunk.part.first_step if chunk.part else 0)
    place = f"worker {chunk.workers[at]}, episode {chunk.numbers[at]}, seed {chunk.seeds[at]}, step {step}"
    told = type(error)(f"{error.message} ({place})", hint=error.hint)
    told.episode = int(chunk.numbers[at])
    return Fault(at, told)


Bounds = tuple[Any, Any]


def _bounds(leaf: Leaf) -> Bounds | None:
    """Return the least and the greatest value of each number of a row; None where a value can be no other."""
    bounds = leaf.bounds
    if bounds is None or (isinstance(leaf.space, spaces.Box) and _is_all_there_is(leaf.space)):
        return None
    return _one_if_equal(bounds[0]), _one_if_equal(bounds[1])


def _is_all_there_is(space: spaces.Box) -> bool:
    kind: np.dtype[Any] = np.dtype(space.dtype)
    if not np.issubdtype(kind, np.integer):
        return False  # A float may be nan.
    limits = np.iinfo(kind)
    return bool((space.low <= limits.min).all() and (space.high >= limits.max).all())


def _one_if_equal(limits: Any) -> Any:
    """Return the limit of all numbers of a row as one, where it is: one extreme of all is found much faster."""
    limits = np.asarray(limits)
    return limits.flat[0] if limits.size and (limits == limits.flat[0]).all() else limits


def _rows_outside(column: Array, leaf: Leaf, bounds: Bounds | None) -> Array:
    """Return the rows of a column whose value is not of the leaf's space."""
    if isinstance(leaf.space, spaces.Text):
        return np.flatnonzero([not leaf.space.contains(text) for text in column])
    if bounds is None or not column.size:
        return np.zeros(0, np.int64)
    low, high = bounds
    # Extremes are nan where any value is, and then compare as false.
    axis = None if np.ndim(low) == np.ndim(high) == 0 else 0
    if _is_inside(column, low, high, axis):
        return np.zeros(0, np.int64)
    inside = (column >= low) & (column <= high)
    return np.flatnonzero(~inside.reshape(len(column), -1).all(axis=1))


def _is_inside(column: Array, low: Any, high: Any, axis: int | None) -> bool:
    """Return whether all values of a column are within bounds; False where one is nan."""
    if axis is None and low == 0 and column.dtype.kind in "iu":
        # A number below zero is a large one without its sign, so one look at all of them is enough.
        return bool(column.view(f"u{column.itemsize}").max() <= high)
    return bool(np.all(column.min(axis=axis) >= low) and np.all(column.max(axis=axis) <= high))
