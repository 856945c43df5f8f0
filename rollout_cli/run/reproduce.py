"""Reproducibility checks: run a few episodes again from their seeds, and compare every bit.

At the end of a run, a fresh worker runs a few early episodes in falling order. Each episode then has another
predecessor than before, which reveals state that is kept across episodes.

Before a run extends a dataset, a fresh worker runs a stored episode again. This detects changes that pins
miss: a changed file that C code reads, or another machine.
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
from rollout_cli.dataset.run_changes import Change, ChangeKind, Effect, compare_runs, of_effect
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.chunk import AnyChunk, Chunk, concatenate
from rollout_cli.errors import InterruptedRunError, NotReproducibleError, RolloutError, UserCodeError
from rollout_cli.keywords import Record
from rollout_cli.progress import Progress
from rollout_cli.run.compare import Difference, advice, first_difference
from rollout_cli.run.provenance import run_record
from rollout_cli.run.resume import ResumeState
from rollout_cli.samplers.plan import Episodes
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.sources import versions
from rollout_cli.workers.values import WorkerReport

MOST_SECONDS = 1.0
SHARE = 0.01
"""Time limit of the check: `MOST_SECONDS`, or `SHARE` of the run's time if that is longer."""
_COMPARED = ("observation", "last_observation", "action", "reward", "terminated", "truncated", "length")
"""Fields compared with stored episodes: no infos, because an info with the time differs in every run."""
KEPT_BYTES = 128 << 20
KEPT_EPISODES = 8
"""Maximum bytes and number of early episodes that are kept in memory."""
MOST_EPISODES = 4
"""Maximum number of episodes to run again; BipedalWalker keeps state that shows only after some predecessors."""

Rebuild = Callable[[int | None], AbstractContextManager[Sampler]]
"""A function from a limit of steps per episode (None: the run's limit) to a sampler with one fresh worker."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the episodes of a run can be reproduced."""

    # `no` may be known without a check; `unknown` means that no episode was run again.
    status: Literal["yes", "no", "unknown"]
    reason: str = ""  # Why the status is not `yes`.
    scope: str = "any"  # `n_envs` if the episodes depend on the number of environments per worker.
    episodes: list[int] = field(default_factory=list)  # The numbers of the episodes that were run again.
    difference: Difference | None = None  # Of the last of these episodes.


def known_beforehand(report: WorkerReport) -> Verdict | None:
    """Return the verdict that the workers' report implies; None if a check is needed."""
    if report.not_reproducible is None:
        return None
    return Verdict("no", report.not_reproducible, report.scope)


def verdict_of_changes(changes: Sequence[Record]) -> Verdict | None:
    """Return the verdict on a dataset with these accepted changes, as in info.json; None without changes."""
    return Verdict("no", "; ".join(change["what"] for change in changes)) if changes else None


def for_policy(verdict: Verdict, policy: Record) -> Verdict:
    """Return the verdict, or `unknown` for `yes` if nothing identifies the model behind the policy's record."""
    records = [policy, *policy.get("components", ())]
    if verdict.status == "yes" and any(record["scheme"] == "openpi" for record in records):
        reason = (
            "the policy server does not say which weights it has; equal seeds gave equal actions in this run"
        )
        return replace(verdict, status="unknown", reason=reason)
    return verdict


def recorded(source: RunFacts) -> Verdict:
    """Return the verdict in the record of a dataset's run; `unknown` for a new dataset."""
    facts: Record = source.get("reproducible", {"status": "unknown"})
    difference = facts.get("difference")
    return Verdict(**{**facts, "difference": difference and Difference(**difference)})


@dataclass(slots=True)
class EarlyEpisodes:
    """Copies of the first episodes of a run; some of them are run again when the run ends.

    An episode that is too large is truncated.
    """

    kept: list[Chunk] = field(default_factory=list)
    limit: int | None = None  # The steps of a truncated episode.
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
            self.kept.append(copy.deepcopy(episode))  # A view would keep the memory of the complete message.
            self._free_bytes -= episode.n_bytes

    def _keep_beginning(self, episode: Chunk) -> None:
        """Keep as many steps of an episode as fit into memory; keep no later episode."""
        n_steps = episode.n_steps * self._free_bytes // episode.n_bytes
        self._free_bytes = 0
        if n_steps > 1:  # The row after the last kept step has the last observation.
            self.limit = n_steps - 1
            self.kept.append(copy.deepcopy(episode.rows(0, n_steps)).truncated_at(self.limit))

    def chosen(self, seconds_a_step: float, seconds: float) -> tuple[list[Chunk], int | None]:
        """Return a few episodes that run within `seconds`, and the limit of steps at which they are truncated.

        The episodes are in falling order, so that each has another predecessor than in the run. If even the
        shortest episode takes too long, it is truncated. The limit is None if no episode is truncated.
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
    """Run a few early episodes again in a fresh worker, and return the verdict.

    Args:
        sampler: The sampler of the run.
        early: Copies of the run's first episodes.
        rebuild: Makes the sampler with a fresh worker.
        steps: Number of steps of the run.
        seconds: Sampling time of the run.
        required: Whether the check has no time limit.
    """
    report = sampler.report
    verdict = known_beforehand(report)
    if verdict is not None or not steps:
        return verdict or Verdict("unknown", "no episode was run")
    allowed = math.inf if required else max(MOST_SECONDS, SHARE * seconds)
    chosen, limit = early.chosen(seconds * sampler.n_started / steps, allowed)
    if not chosen:
        return Verdict(
            "unknown", f"one step needs more than the {KEPT_BYTES >> 20} MB of memory for it", report.scope
        )
    numbers: list[int] = []
    if int(early.kept[0].numbers[0]) or steps > early.kept[0].n_steps:  # The run had other episodes too.
        # An episode may be the first of its worker or row in both runs, so one runs again after itself.
        chosen.append(min(chosen, key=lambda first: first.n_steps))
    with rebuild(limit) as fresh:
        for first in chosen:
            number = int(first.numbers[0])
            try:
                again = run_again(fresh, number)
            except RolloutError as error:
                return Verdict(
                    "no" if isinstance(error, UserCodeError) else "unknown",
                    f"episode {number} could not be run again: {error.message}",
                    report.scope,
                )
            numbers.append(number)
            # The fresh worker may have a lower limit of steps.
            spec = replace(fresh.env_spec, max_episode_length=sampler.env_spec.max_episode_length)
            if spec != sampler.env_spec:
                reason = "the environment has other spaces when it is rebuilt"
                return Verdict("no", reason, report.scope, numbers)
            difference = _difference(sampler.env_spec, first, again)
            if difference is not None:
                return Verdict("no", f"episode {number}: {difference}", report.scope, numbers, difference)
    return Verdict("yes", scope=report.scope, episodes=numbers)


def run_again(sampler: Sampler, number: int, *, n_beside: int = 0) -> Chunk:
    """Run one episode with an idle sampler and return it; run the next `n_beside` episodes alongside it.

    Raises:
        RolloutError: If the worker failed, or the episode was stopped or skipped.
    """
    chunks = list(sampler.stream(Episodes(number, number + 1 + n_beside)))
    parts = [chunk.episodes(0, 1) for chunk in chunks if chunk.numbers[0] == number]
    if not parts:
        raise InterruptedRunError(
            f"episode {number} was stopped or skipped while it was run again", code="no-episode-ended"
        )
    return concatenate(parts)


def require(verdict: Verdict | None) -> None:
    """Raise `NotReproducibleError` if a verdict is known and is not `yes`."""
    if verdict is not None and verdict.status != "yes":
        raise NotReproducibleError(
            f"--require-reproducible: {described(asdict(verdict))}",
            hint=advice(verdict.difference) if verdict.difference else "",
        )


def check_stored(
    state: ResumeState, rebuild: Rebuild, sources: RunFacts, progress: Progress
) -> Verdict | None:
    """Run a partition's first stored episode again in a fresh worker, before the dataset is extended.

    Files and spaces are compared too. The episode is truncated to `MOST_SECONDS`.

    If the episode differs, it runs twice more. If the new runs differ from each other, the episode is not
    reproducible. If they are equal, the policy or the environment has changed, which is an error unless the
    user accepts changes. If all pins are equal, but the machine or package versions differ, it is a warning.

    Returns:
        The verdict on the complete dataset; None if no problem was found.

    Raises:
        UsageError: If the policy or the environment has changed, and the user does not accept changes.
    """
    stored = _stored_beginning(state)
    if stored is None:
        return None
    first, limit = stored
    number = int(first.numbers[0])
    surrounding = versions.surroundings()
    with rebuild(limit) as fresh:
        spec = fresh.wait_until_started()
        state.check(run_record(sources, fresh.report, surrounding), spec, progress, has_read_files=False)
        if (verdict := known_beforehand(fresh.report)) is not None:
            return verdict
        again = run_again(fresh, number)
        record = run_record(sources, fresh.report, surrounding)
        state.check(record, spec, progress, has_read_files=True)
    difference = _difference(spec, first, again, _COMPARED)
    if difference is None or state.accepted:
        verdict = recorded(state.source)  # A recorded `no` stays.
        return verdict if verdict.status == "no" else None
    text = f"episode {number}: {difference}"
    # Alone and in a batch, because rows that share a generator influence each other.
    for n_beside in sorted({0, state.config.envs_per_worker - 1}):
        with rebuild(limit) as fresh:
            # Twice in one worker: the stored episode may have had a predecessor that was not stored.
            repeated = [run_again(fresh, number, n_beside=n_beside) for _ in range(2)]
        if any(_difference(spec, again, once_more, _COMPARED) for once_more in repeated):
            return Verdict("no", f"{text}, and differs again in another run", difference=difference)
    if of_effect(compare_runs(state.source, record, ()), Effect.WARNING):
        progress.warn(f"with other versions, or on another machine, the stored {text}")
        state.accepted.append(
            Change(ChangeKind.EPISODE, f"with other versions, or on another machine, {text}")
        )
    else:
        what = f"the policy or the environment has changed: the stored {text}"
        state.accept([Change(ChangeKind.EPISODE, what)])
    return None


def _stored_beginning(state: ResumeState) -> tuple[Chunk, int | None] | None:
    """Return a partition's first stored episode after all accepted changes, truncated to `MOST_SECONDS`.

    The second value is its limit of steps; None if the episode is complete. Return None if there is no such
    episode, or nothing is left to run.
    """
    if state.committed is None or state.plan is None:
        return None
    from rollout_cli.dataset.reader import Dataset  # noqa: PLC0415 - it loads pyarrow
    from rollout_cli.dataset.rows import rows_of  # noqa: PLC0415

    changes = state.source.get("changes", [])
    firsts = changes[-1]["from_numbers"] if changes else state.committed.info["first_numbers"]
    root = state.config.output
    # Leave out a damaged last segment, which is removed when the dataset is extended.
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
