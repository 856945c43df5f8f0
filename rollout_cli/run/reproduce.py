"""Reproducing: an episode is run again from its seeds, and compared bit by bit with its first run or its stored rows.

At the end of a run this is done with a few early episodes, each after another predecessor than before: state that is
carried from one episode to the next shows up so. `rollout replay` does it with any episode of a dataset.
"""

from __future__ import annotations

import copy
import glob
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.chunk import AnyChunk, Chunk, concatenate
from rollout_cli.errors import InterruptedRunError, NotReproducibleError, RolloutError, UserCodeError
from rollout_cli.samplers.plan import Episodes
from rollout_cli.samplers.sampler import Sampler

Array = npt.NDArray[Any]

MOST_SECONDS, SHARE = 1.0, 0.01
"""The check may take so many seconds, or this part of the run, whichever is longer."""
KEPT_BYTES, KEPT_EPISODES = 128 << 20, 8
"""How much of the first run is kept in memory to be compared."""
MOST_EPISODES = 4
"""So many are run again: what BipedalWalker's physics keep shows after some predecessors, and not after others."""
_LONGEST_TEXT = 80

_HINT = (
    "it keeps state from one episode to the next, or draws from a generator that nobody seeds (an info that holds the "
    "time can be left out: --drop-info KEY)"
)


# Comparing two runs of one episode.


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where one field of two runs of an episode differs."""

    field: str  # Such as `observation.camera` or `env_info.episode.t`.
    step: int  # One past the last step for the last observation.
    values: list[Any]  # The first run's and the second one's, as JSON holds them; None where there is none.
    infos: tuple[str, ...] = ()  # The infos that differ, where nothing else does.

    @property
    def place(self) -> str:
        return f"{self.field} at step {self.step}"


def advice(difference: Difference) -> str:
    """Return the hint for an episode that differs so."""
    options = " ".join(f"--drop-info {shlex.quote(glob.escape(name))}" for name in difference.infos)
    return f"only infos differ, which can be left out: {options}" if options else _HINT


_Column = tuple[int, Array]
"""The step that the first row belongs to, and the values of one field, rows (n, …)."""


def first_difference(first: EpisodeBatch, again: EpisodeBatch) -> Difference | None:
    """Return where two runs of one episode first differ, in the step and in the order of cause and effect.

    Whatever is recorded is compared, except which worker ran it and how long that took.
    """
    columns, others = dict(_columns(first)), dict(_columns(again))
    found = []
    for name in dict.fromkeys([*columns, *others]):
        start, values = columns.get(name) or others[name]
        lacking = start, np.full(len(values), None, object)
        found.append(_difference(name, columns.get(name, lacking), others.get(name, lacking)))
    differences = [difference for difference in found if difference is not None]
    names = tuple(difference.field for difference in differences)
    infos = names if all(name.startswith(("episode_info.", "agent_info.", "env_info.")) for name in names) else ()
    earliest = min(differences, key=lambda difference: difference.step, default=None)
    return earliest and replace(earliest, infos=infos)


def _columns(batch: EpisodeBatch) -> Iterator[tuple[str, _Column]]:
    """Yield the fields of one episode in the order of cause and effect within a step."""
    length = len(batch.rewards)
    yield "seed", (0, batch.seeds)
    yield from _leaves("observation", batch.observations)
    yield from _leaves("last_observation", batch.last_observations, length)
    yield from _leaves("episode_info", batch.episode_infos)
    yield from _leaves("action", batch.actions)
    yield from _leaves("agent_info", batch.agent_infos)
    yield "reward", (0, batch.rewards)
    yield "terminated", (length - 1, batch.terminated)
    yield "truncated", (length - 1, batch.truncated)
    yield from _leaves("env_info", batch.env_infos)
    yield "length", (length - 1, batch.lengths)


def _leaves(name: str, tree: Any, start: int = 0) -> Iterator[tuple[str, _Column]]:
    if isinstance(tree, Mapping | tuple):
        for key, branch in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from _leaves(f"{name}.{key}", branch, start)
    else:
        yield name, (start, tree)


def _difference(name: str, one: _Column, other: _Column) -> Difference | None:
    """Return where two columns first differ in the rows that both have; a missing row shows in the lengths."""
    (start, left), (other_start, right) = one, other
    if start != other_start and name != "length":
        return None  # The ends of runs of different lengths are no pair.
    row = _first_row(left, right)
    if row is None:
        return None
    before, now = _value(left, row), _value(right, row)
    if np.shape(before) == np.shape(now) != ():
        element = _first_row(np.ravel(before), np.ravel(now)) or 0
        before, now = np.ravel(before)[element], np.ravel(now)[element]
    return Difference(name, min(start, other_start) + row, [_shown(before), _shown(now)])


def _first_row(left: Array, right: Array) -> int | None:
    """Return the first row of both that differs in type or bits; None where none does."""
    n_rows = min(len(left), len(right))
    if not any(np.ma.isMaskedArray(values) or values.dtype == object for values in (left, right)):
        alike = (left.dtype, left.shape[1:]) == (right.dtype, right.shape[1:])
        if alike and left[:n_rows].tobytes() == right[:n_rows].tobytes():
            return None
    return next((row for row in range(n_rows) if _bits(_value(left, row)) != _bits(_value(right, row))), None)


def _value(values: Array, row: int) -> Any:
    """Return the value of a row; None where it is masked."""
    return None if np.ma.getmaskarray(values[row : row + 1]).any() else np.ma.getdata(values)[row]


def _bits(value: Any) -> tuple[Any, ...]:
    """Return what two values have in common if they are the same."""
    if not isinstance(value, np.ndarray | np.generic):
        return type(value), value
    return value.dtype, value.shape, value.tolist() if value.dtype == object else value.tobytes()


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
    """Whether the episodes of a run can be reproduced."""

    status: Literal["yes", "no", "unknown"]  # `no` may be known without a check; `unknown`: none was run again.
    reason: str = ""  # Why it is not `yes`.
    scope: str = "any"  # `n_envs` where the episodes depend on how many environments a worker has.
    episodes: list[int] = field(default_factory=list)  # The numbers of those that were run again.
    difference: Difference | None = None  # Where the last of these differs.


def described(document: Mapping[str, Any]) -> str:
    """Return a verdict, as info.json has it, in one line: `yes`, `no (…)` or `unknown (…)`."""
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

    def keep(self, any_chunk: AnyChunk) -> None:
        """Copy the first episodes of a chunk; a part of one is kept until the episode is complete."""
        if len(self.kept) == KEPT_EPISODES or not self._free_bytes:
            return
        chunk = any_chunk.load()
        for at in range(min(chunk.n_episodes, KEPT_EPISODES - len(self.kept))):
            episode = chunk.episodes(at, at + 1)
            if episode.n_bytes > self._free_bytes:
                self._free_bytes = 0  # Later ones would be no early ones; a part without the others is of no use.
                self._parts.clear()
                return
            self._free_bytes -= episode.n_bytes
            self._parts.append(copy.deepcopy(episode))  # A view would keep the whole message that it came in.
            if chunk.completes:
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
    """Run a few early episodes of a run again, and return the verdict on it; its data are not touched.

    The run had so many `steps` and took so many `seconds`; where the check is `required`, it takes as long as it needs.
    """
    scope = str(sampler.worker_info.get("scope", "any"))
    allowed = math.inf if required else max(MOST_SECONDS, SHARE * seconds)
    chosen = early.chosen(seconds * sampler.n_started / steps, allowed) if steps else []
    if not chosen:
        reason = f"no early episode of less than {KEPT_BYTES >> 20} MB can be run again within {allowed:.1f} s"
        return Verdict("unknown", reason, scope)
    numbers: list[int] = []
    for first in chosen:
        number = int(first.numbers[0])
        try:
            again = run_again(sampler, number)
        except RolloutError as error:
            status: Literal["no", "unknown"] = "no" if isinstance(error, UserCodeError) else "unknown"
            return Verdict(status, f"episode {number} could not be run again: {error.message}", scope)
        if (known := known_beforehand(sampler.worker_info)) is not None:
            return known
        numbers.append(number)
        found = first_difference(*(EpisodeBatch.from_chunks(sampler.env_spec, [chunk]) for chunk in (first, again)))
        if found is not None:
            text = f"episode {number}: {found.place} is {found.values[0]}, then {found.values[1]}"
            return Verdict("no", text, scope, numbers, found)
    return Verdict("yes", scope=scope, episodes=numbers)


def run_again(sampler: Sampler, number: int) -> Chunk:
    """Run one episode with a sampler that is not busy.

    Raises:
        RolloutError: What went wrong in the worker, or that the episode was stopped or skipped.
    """
    parts = list(sampler.stream(Episodes(number, number + 1)))
    if not parts:
        raise InterruptedRunError("it was stopped, or skipped, before its end")
    return concatenate(parts)


def require(verdict: Verdict | None) -> None:
    """Raise `NotReproducibleError` unless a verdict is `yes`, or none is known yet."""
    if verdict is not None and verdict.status != "yes":
        hint = advice(verdict.difference) if verdict.difference else ""
        raise NotReproducibleError(f"--require-reproducible: {described(asdict(verdict))}", hint=hint)
