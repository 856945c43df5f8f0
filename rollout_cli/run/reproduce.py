"""Reproducing: an episode is run again from its seeds, and compared bit by bit with its first run or its stored rows.

At the end of a run this is done with an early episode or two, each after another predecessor than before: state that is
carried from one episode to the next shows up so. `rollout replay` does it with any episode of a dataset.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.episodes.spaces import flatten, space_leaves
from rollout_cli.errors import NotReproducibleError, RolloutError, UserCodeError
from rollout_cli.samplers.plan import Episodes
from rollout_cli.samplers.sampler import Sampler

Array = npt.NDArray[Any]

MOST_SECONDS, SHARE = 1.0, 0.01
"""The check may take so many seconds, or this part of the run, whichever is longer."""
KEPT_BYTES, KEPT_EPISODES = 128 << 20, 8
"""How much of the first run is kept in memory to be compared."""
MOST_EPISODES = 4
"""So many are run again: what BipedalWalker's physics keep shows after some predecessors, and not after others."""
_SHOWN_ELEMENTS, _LONGEST_TEXT = 8, 80

HINT = (
    "it keeps state from one episode to the next, or draws from a generator that nobody seeds (an info that holds the "
    "time can be left out: --drop-info KEY)"
)
"""The advice for every episode that differs."""


# Comparing two runs of one episode.


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where one field of two runs of an episode differs.

    Attributes:
        field: Such as `observation.camera` or `env_info.episode.t`.
        step: The step of its row; one past the last step for the last observation.
        index: Where in the row, for rows of more than a few elements; else empty.
        values: The first run's value and the second one's, shortened, as JSON holds them; None where there is none.
    """

    field: str
    step: int
    index: tuple[int, ...]
    values: tuple[Any, Any]

    @property
    def place(self) -> str:
        """Return the field and the step, for a sentence."""
        index = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return f"{self.field}{index} at step {self.step}"


class _Column(NamedTuple):
    """The values of one field, rows (n, …), and the step that the first row belongs to."""

    name: str
    values: Array
    first_step: int


def differences(first: EpisodeBatch, again: EpisodeBatch) -> list[Difference]:
    """Return the first difference of each field of two runs of one episode, the earliest step first.

    Whatever is recorded is compared, except which worker ran it and how long that took.

    Args:
        first: One episode.
        again: The same one, run again.
    """
    columns, others = _columns(first), _columns(again)
    found = []
    for order, name in enumerate(dict.fromkeys([*columns, *others])):
        one, other = columns.get(name), others.get(name)
        lacking = next(column for column in (one, other) if column is not None)
        none = _Column(name, np.full(len(lacking.values), None, object), lacking.first_step)
        if (difference := _difference(one or none, other or none)) is not None:
            found.append((difference.step, order, difference))
    return [difference for *_, difference in sorted(found, key=lambda entry: entry[:2])]


def _columns(batch: EpisodeBatch) -> dict[str, _Column]:
    """Return the fields of one episode in the order of cause and effect within a step."""
    return {column.name: column for column in _each_column(batch)}


def _each_column(batch: EpisodeBatch) -> Iterator[_Column]:
    length = len(batch.rewards)
    spec = batch.env_spec
    yield _Column("seed", batch.seeds, 0)
    yield from _leaves("observation", spec.observation_space, batch.observations, 0)
    yield from _leaves("last_observation", spec.observation_space, batch.last_observations, length)
    yield from (_Column(f"episode_info.{key}", values, 0) for key, values in batch.episode_infos.items())
    yield from _leaves("action", spec.action_space, batch.actions, 0)
    yield from (_Column(f"agent_info.{key}", values, 0) for key, values in batch.agent_infos.items())
    yield _Column("reward", batch.rewards, 0)
    yield _Column("terminated", batch.terminated, length - 1)
    yield _Column("truncated", batch.truncated, length - 1)
    yield from (_Column(f"env_info.{key}", values, 0) for key, values in batch.env_infos.items())
    yield _Column("length", batch.lengths, length - 1)


def _leaves(name: str, space: Any, tree: Any, first_step: int) -> Iterator[_Column]:
    for leaf, values in zip(space_leaves(space), flatten(space, tree), strict=True):
        yield _Column(".".join(filter(None, (name, leaf.name))), values, first_step)


def _difference(one: _Column, other: _Column) -> Difference | None:
    """Return where two columns first differ in the rows that both have; a missing row shows in the lengths."""
    if one.first_step != other.first_step and one.name != "length":
        return None  # The ends of runs of different lengths are no pair.
    n_rows = min(len(one.values), len(other.values))
    row = _first_row(one.values[:n_rows], other.values[:n_rows])
    if row is None:
        return None
    index, values = _shown_pair(_value(one.values, row), _value(other.values, row))
    return Difference(one.name, min(one.first_step, other.first_step) + row, index, values)


def _first_row(left: Array, right: Array) -> int | None:
    """Return the first row that differs in a bit; None where none does."""
    is_plain = left.dtype == right.dtype != object and left.shape == right.shape
    if is_plain and not isinstance(left, np.ma.MaskedArray) and not isinstance(right, np.ma.MaskedArray):
        found = np.flatnonzero((_bits(left) != _bits(right)).any(axis=1))
        return int(found[0]) if len(found) else None
    return next((row for row in range(len(left)) if not _is_same(_value(left, row), _value(right, row))), None)


def _bits(values: Array) -> Array:
    """Return the bytes of each row, uint8 (n, bytes)."""
    data = np.ascontiguousarray(values)
    return data.view(np.uint8).reshape(len(data), -1) if data.size else np.zeros((len(data), 0), np.uint8)


def _value(values: Array, row: int) -> Any:
    """Return the value of a row; None where it is masked."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values)[row].any():
        return None
    return np.ma.getdata(values)[row]


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values have the same type and bits."""
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        left, right = np.asarray(one), np.asarray(other)
        if left.dtype == object:
            return left.shape == right.shape and left.tolist() == right.tolist()
        return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())
    return type(one) is type(other) and bool(one == other)


def _shown_pair(one: Any, other: Any) -> tuple[tuple[int, ...], tuple[Any, Any]]:
    """Return two values as they are shown, and where in them; of big arrays only the first element that differs."""
    if _are_big(one, other):
        at = _first_row(one.reshape(-1, 1), other.reshape(-1, 1))
        assert at is not None, "equal arrays are not shown"
        index = tuple(map(int, np.unravel_index(at, one.shape)))
        return index, (_shown(one[index]), _shown(other[index]))
    return (), (_shown(one), _shown(other))


def _are_big(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray) or one.size <= _SHOWN_ELEMENTS:
        return False
    return bool(one.shape == other.shape and one.dtype == other.dtype != object)


def _shown(value: Any) -> Any:
    """Return a value as JSON holds it, shortened: numbers, short lists of them, or a text."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist() if np.size(value) <= _SHOWN_ELEMENTS else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, list) and len(value) <= _SHOWN_ELEMENTS:
        return [_shown(item) for item in value]
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


# The check at the end of a run.


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the episodes of a run can be reproduced.

    Attributes:
        status: `yes`: episodes were run again and are the same. `no`: one differs, or it is known beforehand that they
            cannot be reproduced. `unknown`: none was run again.
        reason: Why it is not `yes`.
        scope: `any` where the episodes do not depend on how many environments a worker has, else `n_envs`.
        episodes: The numbers of the episodes that were run again.
        difference: Where the last of these differs, if it does.
    """

    status: Literal["yes", "no", "unknown"]
    reason: str = ""
    scope: str = "any"
    episodes: tuple[int, ...] = ()
    difference: Difference | None = None

    def document(self) -> dict[str, Any]:
        """Return it as info.json has it."""
        found: dict[str, Any] = {"status": self.status, "scope": self.scope, "episodes": list(self.episodes)}
        if self.reason:
            found["reason"] = self.reason
        if self.difference is not None:
            first, again = self.difference.values
            where = {"field": self.difference.field, "step": self.difference.step, "index": list(self.difference.index)}
            found["difference"] = {"episode": self.episodes[-1], **where, "first": first, "again": again}
        return found


def described(document: Mapping[str, Any]) -> str:
    """Return a verdict's document in one line, for people: `yes`, `no (…)` or `unknown (…)`."""
    status, reason = str(document.get("status", "not recorded")), document.get("reason")
    return f"{status} ({reason})" if reason else status


def known_beforehand(info: Mapping[str, Any]) -> Verdict | None:
    """Return the verdict on a run that needs no check, from what its workers know; None where nothing is known."""
    reason = info.get("not_reproducible")
    return None if reason is None else Verdict("no", str(reason), _scope(info))


def _scope(info: Mapping[str, Any]) -> str:
    return str(info.get("scope", "any"))


@dataclass(slots=True)
class EarlyEpisodes:
    """Copies of a few of the first episodes of a run, the shortest of which are run again at its end."""

    kept: list[Chunk] = field(default_factory=list)
    _parts: list[Chunk] = field(default_factory=list)
    _free_bytes: int = KEPT_BYTES

    def keep(self, chunk: Chunk) -> None:
        """Copy the first episodes of a chunk; a part of one is kept until the episode is complete."""
        for at in range(min(chunk.n_episodes, KEPT_EPISODES - len(self.kept))):
            episode = chunk.episodes(at, at + 1)
            if episode.n_bytes > self._free_bytes:
                self._free_bytes = 0  # Later ones would be no early ones; a part without the others is of no use.
                self._parts.clear()
                return
            self._free_bytes -= episode.n_bytes
            self._parts.append(copy.deepcopy(episode))  # A view would keep the whole message that it came in.
            if chunk.part is None or chunk.part.is_last:
                self.kept.append(concatenate(self._parts))
                self._parts = []

    def chosen(self, seconds_a_step: float, seconds: float) -> list[Chunk]:
        """Return a few episodes that can be run again in so many seconds, in falling order of their numbers.

        So none of them follows the episode that it followed before.
        """
        found: list[Chunk] = []
        for episode in sorted(self.kept, key=lambda kept: kept.n_steps)[:MOST_EPISODES]:
            if sum(one.n_steps for one in [*found, episode]) * seconds_a_step <= seconds:
                found.append(episode)
        return sorted(found, key=lambda one: int(one.numbers[0]), reverse=True)


def check(sampler: Sampler, early: EarlyEpisodes, *, steps: int, seconds: float, required: bool) -> Verdict:
    """Run a few early episodes again, and return the verdict on the run.

    The run's numbers, totals and data are not touched.

    Args:
        sampler: Who ran it, and has ended.
        early: Its first episodes.
        steps: The steps that it ran.
        seconds: The time that it took.
        required: Whether the check may take as long as it needs.
    """
    if (known := known_beforehand(sampler.worker_info)) is not None:
        return known
    scope = _scope(sampler.worker_info)
    if not steps:
        return Verdict("unknown", "no episode was run", scope)
    if not early.kept:
        return Verdict("unknown", f"no early episode is smaller than {KEPT_BYTES >> 20} MB", scope)
    allowed = math.inf if required else max(MOST_SECONDS, SHARE * seconds)
    chosen = early.chosen(seconds * sampler.n_workers / steps, allowed)
    if not chosen:
        return Verdict("unknown", f"an early episode takes over {allowed:.1f} s to run again", scope)
    return _rerun(sampler, chosen, scope)


def _rerun(sampler: Sampler, chosen: list[Chunk], scope: str) -> Verdict:
    numbers: tuple[int, ...] = ()
    for first in chosen:
        number = int(first.numbers[0])
        numbers = (*numbers, number)
        try:
            again = run_again(sampler, number)
        except UserCodeError as error:
            return Verdict("no", f"episode {number} raised an error when it was run again: {error.message}", scope)
        except RolloutError as error:
            return Verdict("unknown", f"episode {number} could not be run again: {error.message}", scope)
        if again is None:
            return Verdict("unknown", f"the run was ended before episode {number} had been run again", scope)
        if (known := known_beforehand(sampler.worker_info)) is not None:
            return known
        found = differences(*(EpisodeBatch.from_chunks(sampler.env_spec, [chunk]) for chunk in (first, again)))
        if found:
            values = "{!r}, then {!r}".format(*found[0].values)
            return Verdict("no", f"episode {number}: {found[0].place} is {values}", scope, numbers, found[0])
    return Verdict("yes", scope=scope, episodes=numbers)


def run_again(sampler: Sampler, number: int) -> Chunk | None:
    """Run one episode with a sampler that is not busy; return None where it was stopped, or skipped the episode.

    Its steps do not count.

    Raises:
        RolloutError: What went wrong in the worker.
    """
    steps_before = sampler.total_env_steps
    try:
        with closing(sampler.stream(Episodes(number, number + 1))) as chunks:
            parts = list(chunks)
    finally:
        sampler.total_env_steps = steps_before
    return concatenate(parts) if parts else None


def require(verdict: Verdict | None) -> None:
    """Raise unless a verdict is `yes`, or none is known yet.

    Raises:
        NotReproducibleError: If it is not.
    """
    if verdict is not None and verdict.status != "yes":
        raise NotReproducibleError(
            f"--require-reproducible: {described(verdict.document())}", hint=HINT if verdict.difference else ""
        )
