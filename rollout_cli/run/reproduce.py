"""Reproducing: an episode is run again from its seeds, and compared bit by bit with its first run or its stored rows.

At the end of a run this is done with a few early episodes, each after another predecessor than before: state that is
carried from one episode to the next shows up so. `rollout replay` does it with any episode of a dataset.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal

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
        values: The first run's value and the second one's, as JSON holds them: numbers, or short texts of other
            values; None where there is none.
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

    def document(self, *names: str) -> dict[str, Any]:
        """Return it as JSON has it, with names for the two values."""
        place = {"field": self.field, "step": self.step, "index": list(self.index)}
        return {**place, **dict(zip(names, self.values, strict=True))}


_Column = tuple[int, Array]
"""The step that the first row belongs to, and the values of one field, rows (n, …)."""


def differences(first: EpisodeBatch, again: EpisodeBatch) -> list[Difference]:
    """Return the first difference of each field of two runs of one episode, the earliest step first.

    Whatever is recorded is compared, except which worker ran it and how long that took.
    """
    columns, others = dict(_columns(first)), dict(_columns(again))
    found = []
    for name in dict.fromkeys([*columns, *others]):
        start, values = columns.get(name) or others[name]
        lacking = start, np.full(len(values), None, object)
        found.append(_first_difference(name, columns.get(name, lacking), others.get(name, lacking)))
    return sorted(filter(None, found), key=lambda difference: difference.step)


def _columns(batch: EpisodeBatch) -> Iterator[tuple[str, _Column]]:
    """Yield the fields of one episode in the order of cause and effect within a step."""
    length, spec = len(batch.rewards), batch.env_spec
    yield "seed", (0, batch.seeds)
    yield from _leaves("observation", spec.observation_space, batch.observations, 0)
    yield from _leaves("last_observation", spec.observation_space, batch.last_observations, length)
    yield from ((f"episode_info.{key}", (0, values)) for key, values in batch.episode_infos.items())
    yield from _leaves("action", spec.action_space, batch.actions, 0)
    yield from ((f"agent_info.{key}", (0, values)) for key, values in batch.agent_infos.items())
    yield "reward", (0, batch.rewards)
    yield "terminated", (length - 1, batch.terminated)
    yield "truncated", (length - 1, batch.truncated)
    yield from ((f"env_info.{key}", (0, values)) for key, values in batch.env_infos.items())
    yield "length", (length - 1, batch.lengths)


def _leaves(name: str, space: Any, tree: Any, start: int) -> Iterator[tuple[str, _Column]]:
    for leaf, values in zip(space_leaves(space), flatten(space, tree), strict=True):
        yield ".".join(filter(None, (name, leaf.name))), (start, values)


def _first_difference(name: str, one: _Column, other: _Column) -> Difference | None:
    """Return where two columns first differ in the rows that both have; a missing row shows in the lengths."""
    (start, left), (other_start, right) = one, other
    if start != other_start and name != "length":
        return None  # The ends of runs of different lengths are no pair.
    n_rows = min(len(left), len(right))
    row = _first_row(left[:n_rows], right[:n_rows])
    if row is None:
        return None
    before, now = _value(left, row), _value(right, row)
    index: tuple[int, ...] = ()
    if np.size(before) > _SHOWN_ELEMENTS and np.shape(before) == np.shape(now):
        element = _first_row(np.reshape(before, (-1, 1)), np.reshape(now, (-1, 1)))
        index = tuple(map(int, np.unravel_index(element or 0, np.shape(before))))
        before, now = before[index], now[index]
    return Difference(name, min(start, other_start) + row, index, (_shown(before), _shown(now)))


def _first_row(left: Array, right: Array) -> int | None:
    """Return the first row that differs in a bit; None where none does."""
    is_plain = left.dtype == right.dtype != object and left.shape == right.shape and left.size > 0
    if is_plain and not isinstance(left, np.ma.MaskedArray) and not isinstance(right, np.ma.MaskedArray):
        bits = [np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1) for values in (left, right)]
        found = np.flatnonzero((bits[0] != bits[1]).any(axis=1))
        return int(found[0]) if len(found) else None
    return next((row for row in range(len(left)) if not _is_same(_value(left, row), _value(right, row))), None)


def _value(values: Array, row: int) -> Any:
    """Return the value of a row; None where it is masked."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values)[row].any():
        return None
    return np.ma.getdata(values)[row]


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values have the same type and bits."""
    if type(one) is not type(other):
        return False
    if not isinstance(one, np.ndarray | np.generic):
        return bool(one == other)
    if one.dtype == other.dtype == object:
        return one.shape == other.shape and bool(one.tolist() == other.tolist())
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def _shown(value: Any) -> Any:
    """Return a value as JSON holds it: numbers as they are, others as short texts."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
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
            found["difference"] = {"episode": self.episodes[-1], **self.difference.document("first", "again")}
        return found


def described(document: Mapping[str, Any]) -> str:
    """Return a verdict's document in one line, for people: `yes`, `no (…)` or `unknown (…)`."""
    status, reason = str(document.get("status", "not recorded")), document.get("reason")
    return f"{status} ({reason})" if reason else status


def known_beforehand(info: Mapping[str, Any]) -> Verdict | None:
    """Return the verdict on a run that needs no check, from what its workers know; None where nothing is known."""
    reason = info.get("not_reproducible")
    return None if reason is None else Verdict("no", str(reason), info.get("scope", "any"))


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
        """Return a few, in falling order: so none follows the episode that it followed before."""
        found: list[Chunk] = []
        for episode in sorted(self.kept, key=lambda kept: kept.n_steps)[:MOST_EPISODES]:
            if sum(one.n_steps for one in [*found, episode]) * seconds_a_step <= seconds:
                found.append(episode)
        return sorted(found, key=lambda one: int(one.numbers[0]), reverse=True)


def check(sampler: Sampler, early: EarlyEpisodes, *, steps: int, seconds: float, required: bool) -> Verdict:
    """Run a few early episodes again, and return the verdict on the run; its totals and data are not touched.

    Args:
        sampler: The sampler, which has ended.
        early: Its first episodes.
        steps: The steps that it ran.
        seconds: The time that it took.
        required: Whether the check may take as long as it needs.
    """
    if (known := known_beforehand(sampler.worker_info)) is not None:
        return known
    scope = str(sampler.worker_info.get("scope", "any"))
    if not early.kept:
        reason = f"no early episode is smaller than {KEPT_BYTES >> 20} MB" if steps else "no episode was run"
        return Verdict("unknown", reason, scope)
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
            before, now = found[0].values
            text = f"episode {number}: {found[0].place} is {before}, then {now}"
            return Verdict("no", text, scope, numbers, found[0])
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
    """Raise `NotReproducibleError` unless a verdict is `yes`, or none is known yet."""
    if verdict is not None and verdict.status != "yes":
        raise NotReproducibleError(
            f"--require-reproducible: {described(verdict.document())}", hint=HINT if verdict.difference else ""
        )
