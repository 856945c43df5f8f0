"""Reproducing: at its end a run repeats a few early episodes from their seeds, and compares every bit.

This is done in a worker built anew, from the last episode to the first: each then has another predecessor
than before, so state that is carried from one episode to the next shows up.

Before a run extends a dataset, it does the same with a stored episode. This finds what no pin names: a policy
or environment that reads a changed file by code in C, or a changed machine.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from rollout_cli.dataset.layout import described
from rollout_cli.dataset.record import RunFacts
from rollout_cli.dataset.run_changes import Change, Effect, Rule, compare_runs, of_effect
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.chunk import AnyChunk, Chunk, concatenate
from rollout_cli.errors import InterruptedRunError, NotReproducibleError, RolloutError, UserCodeError
from rollout_cli.keywords import Record
from rollout_cli.progress import Progress
from rollout_cli.run.compare import Difference, advice, first_difference
from rollout_cli.run.provenance import run_record, surroundings
from rollout_cli.run.resume import ResumeState
from rollout_cli.samplers.plan import Episodes
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.workers.values import WorkerReport

MOST_SECONDS = 1.0
SHARE = 0.01
"""The check may run episodes for so many seconds, or this part of the run, whichever is longer."""
_COMPARED = ("observation", "last_observation", "action", "reward", "terminated", "truncated", "length")
"""Not the infos: one that holds the time differs in each run."""
KEPT_BYTES = 128 << 20
KEPT_EPISODES = 8
"""How much of the first run is kept in memory to be compared."""
MOST_EPISODES = 4
"""So many run again: what BipedalWalker's physics keep shows after some predecessors, not after others."""

Rebuild = Callable[[int | None], AbstractContextManager[Sampler]]
"""Makes a sampler of one new worker, whose episodes end after so many steps (None: where the run's do)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the episodes of a run can be reproduced."""

    # `no` may be known without a check; `unknown`: none was run again.
    status: Literal["yes", "no", "unknown"]
    reason: str = ""  # Why it is not `yes`.
    scope: str = "any"  # `n_envs` where the episodes depend on how many environments a worker has.
    episodes: list[int] = field(default_factory=list)  # The numbers of those that were run again.
    difference: Difference | None = None  # Where the last of these differs.


def known_beforehand(report: WorkerReport) -> Verdict | None:
    """Return the verdict on a run that needs no check, from what its workers know; None if they do not."""
    if report.not_reproducible is None:
        return None
    return Verdict("no", report.not_reproducible, report.scope)


def verdict_of_changes(changes: Sequence[Record]) -> Verdict | None:
    """Return the verdict on a dataset with accepted changes, as in info.json; None if there are none."""
    return Verdict("no", "; ".join(change["what"] for change in changes)) if changes else None


def recorded(source: RunFacts) -> Verdict:
    """Return the verdict that the record of a dataset's run has; a new dataset has none yet."""
    facts: Record = source.get("reproducible", {"status": "unknown"})
    difference = facts.get("difference")
    return Verdict(**{**facts, "difference": difference and Difference(**difference)})


@dataclass(slots=True)
class EarlyEpisodes:
    """Copies of a few of the first episodes of a run, some of which are run again at its end.

    Of an episode with too many bytes the beginning is kept.
    """

    kept: list[Chunk] = field(default_factory=list)
    limit: int | None = None  # The steps of an episode of which the beginning is kept.
    _free_bytes: int = KEPT_BYTES

    def keep(self, any_chunk: AnyChunk) -> None:
        """Copy the first episodes of a chunk."""
        if len(self.kept) == KEPT_EPISODES or not self._free_bytes:
            return
        chunk = any_chunk.load()
        for at in range(min(chunk.n_episodes, KEPT_EPISODES - len(self.kept))):
            episode = chunk.episodes(at, at + 1)
            if episode.n_bytes > self._free_bytes:
                self._keep_beginning(episode)
                return
            self.kept.append(copy.deepcopy(episode))  # A view would keep the whole message that it came in.
            self._free_bytes -= episode.n_bytes

    def _keep_beginning(self, episode: Chunk) -> None:
        """Keep what there is room for of an episode, and no later episode."""
        n_steps = episode.n_steps * self._free_bytes // episode.n_bytes
        self._free_bytes = 0
        if n_steps > 1:  # The row behind the last step that is kept has the observation after it.
            self.limit = n_steps - 1
            self.kept.append(copy.deepcopy(episode.rows(0, n_steps)).truncated_at(self.limit))

    def chosen(self, seconds_a_step: float, seconds: float) -> tuple[list[Chunk], int | None]:
        """Return a few episodes, in falling order, and the limit in steps that cuts them; None for no limit.

        In falling order none follows the episode that it followed before. Where not even the shortest one can
        be run within so many seconds, its beginning is.
        """
        taken: list[Chunk] = []
        limit = self.limit
        by_length = sorted(self.kept, key=lambda episode: episode.n_steps)
        for episode in by_length[:MOST_EPISODES]:
            if sum(other.n_steps for other in [*taken, episode]) * seconds_a_step <= seconds:
                taken.append(episode)
        if by_length and not taken:
            taken = by_length[:1]
            limit = max(1, int(seconds / seconds_a_step))
        if limit is not None:
            taken = [episode.truncated_at(limit) for episode in taken]
        return sorted(taken, key=lambda episode: int(episode.numbers[0]), reverse=True), limit


def check(
    sampler: Sampler, early: EarlyEpisodes, rebuild: Rebuild, *, steps: int, seconds: float, required: bool
) -> Verdict:
    """Run a few early episodes again in a new worker, and return the verdict; the run's data stay untouched.

    The run had so many `steps` and took so many `seconds`; where the check is `required`, it takes as long as
    it needs.
    """
    report = sampler.report
    verdict = known_beforehand(report)
    if verdict is not None or not steps:
        return verdict or Verdict("unknown", "no episode was run")
    allowed = math.inf if required else max(MOST_SECONDS, SHARE * seconds)
    chosen, limit = early.chosen(seconds * sampler.n_started / steps, allowed)
    if not chosen:
        return Verdict(
            "unknown", f"not one step fits into the {KEPT_BYTES >> 20} MB of memory for it", report.scope
        )
    numbers: list[int] = []
    if int(early.kept[0].numbers[0]) or steps > early.kept[0].n_steps:  # It was not the run's only one.
        # Each may have been the first one of its worker or row, and be so again: one follows itself.
        chosen.append(min(chosen, key=lambda first: first.n_steps))
    with rebuild(limit) as anew:
        for first in chosen:
            number = int(first.numbers[0])
            try:
                again = run_again(anew, number)
            except RolloutError as error:
                return Verdict(
                    "no" if isinstance(error, UserCodeError) else "unknown",
                    f"episode {number} could not be run again: {error.message}",
                    report.scope,
                )
            numbers.append(number)
            spec = replace(anew.env_spec, max_episode_length=sampler.env_spec.max_episode_length)
            if spec != sampler.env_spec:  # Its limit may be a lower one.
                reason = "the environment has other spaces when it is built again"
                return Verdict("no", reason, report.scope, numbers)
            difference = _difference(sampler.env_spec, first, again)
            if difference is not None:
                return Verdict("no", f"episode {number}: {difference}", report.scope, numbers, difference)
    return Verdict("yes", scope=report.scope, episodes=numbers)


def run_again(sampler: Sampler, number: int, *, n_beside: int = 0) -> Chunk:
    """Run one episode with a sampler that is not busy, and so many that follow it in rows beside its own.

    Raises:
        RolloutError: What went wrong in the worker, or that the episode was stopped or skipped.
    """
    chunks = list(sampler.stream(Episodes(number, number + 1 + n_beside)))
    parts = [chunk.episodes(0, 1) for chunk in chunks if chunk.numbers[0] == number]
    if not parts:
        raise InterruptedRunError("it was stopped, or skipped, before its end", code="no-episode-ended")
    return concatenate(parts)


def require(verdict: Verdict | None) -> None:
    """Raise `NotReproducibleError` unless a verdict is `yes`, or none is known yet."""
    if verdict is not None and verdict.status != "yes":
        raise NotReproducibleError(
            f"--require-reproducible: {described(asdict(verdict))}",
            hint=advice(verdict.difference) if verdict.difference else "",
        )


def check_stored(
    state: ResumeState, rebuild: Rebuild, sources: RunFacts, progress: Progress
) -> Verdict | None:
    """Before a dataset is extended, run a partition's first stored episode again in a new worker.

    Files and spaces are checked on the way.

    It runs as many steps as the check at the end of a run may take. Where it differs, it runs twice more: new
    runs that differ from each other say that the episode cannot be reproduced. Equal ones say that something
    has changed: this refuses, but where all pins are equal and the machine or the versions are others, it
    warns.

    Returns:
        The verdict on the whole dataset where it is known by this; None where nothing was found.

    Raises:
        UsageError: If what the dataset was begun with has changed, and the user does not accept that.
    """
    stored = _stored_beginning(state)
    if stored is None:
        return None
    first, limit = stored
    number = int(first.numbers[0])
    surrounding = surroundings()
    with rebuild(limit) as anew:
        spec = anew.wait_until_started()
        state.check(run_record(sources, anew.report, surrounding), spec, progress, is_whole=False)
        if (verdict := known_beforehand(anew.report)) is not None:
            return verdict
        again = run_again(anew, number)
        record = run_record(sources, anew.report, surrounding)
        state.check(record, spec, progress, is_whole=True)
    difference = _difference(spec, first, again, _COMPARED)
    if difference is None or state.accepted:
        verdict = recorded(state.source)  # A difference that was found stays one, whatever follows it.
        return verdict if verdict.status == "no" else None
    text = f"episode {number}: {difference}"
    # Alone, and in a batch: what its rows draw from one generator depends on the rows beside.
    for n_beside in sorted({0, state.config.envs_per_worker - 1}):
        with rebuild(limit) as anew:
            # The second follows the first: the stored one had a predecessor, where others were not stored.
            repeated = [run_again(anew, number, n_beside=n_beside) for _ in range(2)]
        if any(_difference(spec, again, once_more, _COMPARED) for once_more in repeated):
            return Verdict("no", f"{text}, and otherwise once more", difference=difference)
    if of_effect(compare_runs(state.source, record, ()), Effect.WARNING):
        progress.warn(f"with other versions, or on another machine, the stored {text}")
        state.accepted.append(Change(Rule.EPISODE, f"with other versions, or on another machine, {text}"))
    else:
        what = f"the policy or the environment has changed: the stored {text}"
        state.accept([Change(Rule.EPISODE, what)])
    return None


def _stored_beginning(state: ResumeState) -> tuple[Chunk, int | None] | None:
    """Return a partition's first stored episode behind all accepted changes, as far as it is run again.

    None where there is no such episode, or nothing is left to run.
    """
    if state.committed is None or state.plan is None:
        return None
    from rollout_cli.dataset.reader import Dataset  # noqa: PLC0415 - it loads pyarrow
    from rollout_cli.dataset.rows import rows_of  # noqa: PLC0415

    changes = state.source.get("changes", [])
    firsts = changes[-1]["from_numbers"] if changes else state.committed.info["first_numbers"]
    root = state.config.output
    # Without a damaged segment at the end, which is moved aside when the dataset is extended.
    files = {written.segment.file: written.segment.paths(root)[1] for written in state.committed.segments}
    dataset = Dataset(rows_of(root, state.committed.info, files))
    numbers, lengths, times = (
        dataset.episodes[name].to_numpy() for name in ("episode_number", "length", "wall_time_s")
    )
    for first, partition in zip(firsts, state.committed.partitions, strict=True):
        places = ((numbers >= first) & (numbers < partition.next_number)).nonzero()[0]
        if len(places):
            place = int(places[0])
            most = MOST_SECONDS * lengths[place] / max(times[place], 1e-9)
            if most > lengths[place]:
                return dataset[place].rows.chunk(int(lengths[place])), None
            limit = max(1, int(most))
            return dataset[place].rows.chunk(limit + 1).truncated_at(limit), limit
    return None


def _difference(spec: EnvSpec, first: Chunk, again: Chunk, only: Collection[str] = ()) -> Difference | None:
    batches = (EpisodeBatch.from_chunks(spec, [chunk]) for chunk in (first, again))
    return first_difference(*batches, only=only)
