"""collect(): the use case. It joins a sampler and a dataset writer, and tells a `Progress` how it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rollout_cli.assembling import limited, plan_of, sampler_of
from rollout_cli.chunk import Chunk
from rollout_cli.config import CollectConfig
from rollout_cli.dataset.cuts import CutLimits
from rollout_cli.dataset.flushing import FlushTimer
from rollout_cli.dataset.lock import FolderLock
from rollout_cli.dataset.record import DatasetSummary
from rollout_cli.dataset.room import check_room
from rollout_cli.dataset.window import WINDOW_STEPS
from rollout_cli.dataset.writer import DatasetWriter
from rollout_cli.envs import env_source
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import RolloutError
from rollout_cli.fingerprint import asked, built
from rollout_cli.header import dataset_header, surroundings
from rollout_cli.info_filter import InfoFilter
from rollout_cli.interrupts import StopSignals, stop_on_signals
from rollout_cli.policies import file_warnings, policy_source
from rollout_cli.progress import NullProgress, Progress
from rollout_cli.reproducing import ReproductionCheck, Verdict, describe, unchecked
from rollout_cli.resuming import Earlier, earlier_run, first_numbers, held_folder
from rollout_cli.samplers import Episodes, EpisodesPerWorker, MinTimesteps, Plan, Sampler
from rollout_cli.skipping import nothing_but_skipped, skipped_before, tell_fault, told_of_skipped
from rollout_cli.user_code import put_working_folder_first


@dataclass(frozen=True, slots=True)
class CollectResult:
    """What a run made.

    Attributes:
        path: The dataset's folder.
        status: `complete`.
        episodes: Episodes in the dataset.
        steps: Their steps.
        mean_return: Mean sum of rewards of an episode.
        mean_length: Mean steps of an episode.
        seed: The root seed.
        n_workers: How many workers there were.
        wall_time_s: Seconds from the first check to the last commit.
        steps_per_second: The steps of this run over that time, without those that an earlier one did.
        reproducible: Whether episodes came out the same when they were run again, as info.json has it.
    """

    path: Path
    status: str
    episodes: int
    steps: int
    mean_return: float
    mean_length: float
    seed: int
    n_workers: int
    wall_time_s: float
    steps_per_second: float
    reproducible: Verdict

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return {**asdict(self), "path": str(self.path)}


def collect(
    config: CollectConfig, *, progress: Progress | None = None, argv: Sequence[str] | None = None
) -> CollectResult:
    """Run what `config` asks for and write it to a dataset.

    Args:
        config: What is asked for.
        progress: Who is told how it goes.
        argv: The words of the command line that asks for it, if one does; they are recorded, with secrets cut.

    Raises:
        RolloutError: What went wrong. Episodes that were finished before it, in order, are in the dataset, whose status
            is `interrupted`; where there was none, no dataset is left.

    With `config.resume`, what the output folder holds is gone on with, and `data/` is in the end what one run had made.
    """
    return _Run(config, progress or NullProgress(), argv).run()


class _Run:
    """One run, as named steps."""

    def __init__(self, config: CollectConfig, progress: Progress, argv: Sequence[str] | None) -> None:
        self._config, self._progress, self._argv = config, progress, argv
        self._plan = plan_of(config)
        self._started_at = time.monotonic()
        self._return_sum = 0.0
        self._skipped: dict[int, str] = {}

    def run(self) -> CollectResult:
        if warning := check_room(self._config.output):
            self._progress.warn(warning)
        with held_folder(self._config) as lock:
            return self._run(lock)

    def _run(self, lock: FolderLock | None) -> CollectResult:
        put_working_folder_first()
        policy = policy_source(self._config.policy, sha256=self._config.policy_sha256)
        for warning in file_warnings(self._config.policy):
            self._progress.notice(warning)
        env = env_source(self._config.env, self._config.env_kwargs)
        earlier = earlier_run(self._config, self._plan, policy, env, self._progress)
        if earlier.is_all:
            return self._nothing_to_do(earlier)
        self._config, self._return_sum = earlier.config, earlier.return_sum
        with sampler_of(self._config, policy, env) as sampler, stop_on_signals(self._stop(sampler)) as signals:
            sampler.tell = partial(tell_fault, self._progress)
            sampler.start_worker()
            # Both take a while, in which the workers build.
            self._progress.start(label=env.label, **_totals(self._config))
            surrounding = surroundings()
            spec = limited(sampler.wait_until_started(), self._config.max_episode_length)
            self._tell_limit(spec)
            fingerprint = asked(replace(self._config, seed=sampler.seed), policy, env) | built(sampler.facts, spec)
            earlier.go_on(fingerprint, surrounding["versions"], self._progress)
            check = ReproductionCheck(self._config, sampler)
            check.refuse()
            header = dataset_header(self._config, sampler.facts, policy, env, surrounding, argv=self._argv)
            header["fingerprint"] = fingerprint
            with self._writer(sampler, spec, header, earlier, lock) as writer:
                failure = self._fill(writer, sampler, check, earlier)
                if failure is None and signals.received is None:
                    verdict = check.verdict(header["env"])
                    summary = writer.close(status="complete", reproducible=verdict, **told_of_skipped(self._skipped))
                else:
                    self._end_early(writer, sampler, failure, signals)
        self._tell_infos(summary)
        self._tell_verdict(verdict)
        check.require(verdict)
        return self._result(summary, sampler, verdict, earlier)

    def _stop(self, sampler: Sampler) -> Callable[[], None]:
        return partial(sampler.request_stop, grace=self._config.grace)

    def _tell_limit(self, spec: EnvSpec) -> None:
        if spec.max_episode_length is None:
            self._progress.notice(
                "this environment has no known time limit: an episode that does not end would run for ever "
                "(--max-episode-length N truncates it)"
            )

    def _nothing_to_do(self, earlier: Earlier) -> CollectResult:
        self._progress.notice(f"{self._config.output} is complete: there is nothing to do")
        return CollectResult(
            path=self._config.output.resolve(),
            status="complete",
            episodes=earlier.episodes,
            steps=earlier.steps,
            mean_return=earlier.return_sum / earlier.episodes,
            mean_length=earlier.steps / earlier.episodes,
            seed=earlier.info["root_seed"],
            n_workers=self._config.workers,
            wall_time_s=time.monotonic() - self._started_at,
            steps_per_second=0.0,
            reproducible=earlier.info["reproducible"],
        )

    def _writer(
        self, sampler: Sampler, spec: EnvSpec, header: dict[str, Any], earlier: Earlier, lock: FolderLock | None
    ) -> DatasetWriter:
        return DatasetWriter(
            self._config.output,
            env_spec=spec,
            root_seed=sampler.seed,
            n_lanes=sampler.n_workers if self._config.command == "exact" else 1,
            first_numbers=first_numbers(self._config, self._plan),
            header=header,
            next_observation=self._config.next_observation,
            overwrite=self._config.overwrite,
            committed=earlier.committed,
            limits=CutLimits(shard_bytes=self._config.shard_bytes),
            timer=FlushTimer(self._config.flush_every),
            lock=lock,
        )

    def _fill(
        self, writer: DatasetWriter, sampler: Sampler, check: ReproductionCheck, earlier: Earlier
    ) -> RolloutError | None:
        """Write all episodes; return the error that ended the sampling early, if one did."""
        self._skipped = skipped_before(earlier.info, earlier.committed.skipped if earlier.committed else ())
        if earlier.left is None:
            return None
        before = _Episodes(_window(sampler, self._plan) if earlier.committed is None else iter(()))
        for chunk in before:
            writer.observe(chunk)
        if before.failure is not None:
            return before.failure
        sampler.skipped.clear()
        episodes = _Episodes(check.watched(sampler.stream(earlier.left, order=self._config.order, base=0)))
        for chunk in episodes:
            writer.write(chunk, lane=_lane(self._plan, int(chunk.numbers[0])))
            self._tell(chunk)
        # Not of the window's episodes, nor of those that are run again for the check.
        self._skipped |= sampler.skipped
        return episodes.failure or nothing_but_skipped(self._skipped, has_episodes=writer.has_episodes)

    def _tell(self, chunk: Chunk) -> None:
        episodes = chunk.n_episodes if chunk.part is None or chunk.part.is_last else 0
        return_sum = float(chunk.rewards.sum())
        self._return_sum += return_sum
        self._progress.update(episodes=episodes, steps=chunk.n_steps, return_sum=return_sum)

    def _end_early(
        self, writer: DatasetWriter, sampler: Sampler, failure: RolloutError | None, signals: StopSignals
    ) -> NoReturn:
        """Commit what is there, and end as the run did."""
        # Told once more, for a policy's draws may be seen only when it acts.
        told = unchecked(self._config, sampler.facts, "the run ended early")
        if writer.has_episodes:
            summary = writer.close(status="interrupted", reproducible=told, **told_of_skipped(self._skipped))
            kept = f"{summary.episodes:,} finished episodes ({summary.steps:,} steps) are in {summary.path}"
            kept += ", and --resume goes on there"
        else:
            writer.remove()
            kept = "no episode was finished, so no dataset was left"
        if failure is None:
            raise signals.error(f"the run was ended by {signals.name}: {kept}{_dropped(sampler)}")
        failure.hint = f"{failure.hint}; {kept}" if failure.hint else kept
        raise failure

    def _tell_infos(self, summary: DatasetSummary) -> None:
        for key in InfoFilter(self._config.drop_info).never_met(summary.dropped_infos):
            self._progress.notice(f"--drop-info {key}: there was no info of that name")
        for strange in summary.strange_values:
            self._progress.warn(str(strange))

    def _tell_verdict(self, verdict: Verdict) -> None:
        # Who asked for the order of arrival knows what it means.
        if verdict["status"] == "failed" and self._config.order == "index" and not self._config.require_reproducible:
            hint = f" ({verdict['hint']})" if "hint" in verdict else ""
            self._progress.warn(f"{describe(verdict)}{hint}")

    def _result(self, summary: DatasetSummary, sampler: Sampler, verdict: Verdict, earlier: Earlier) -> CollectResult:
        wall_time = time.monotonic() - self._started_at
        return CollectResult(
            path=summary.path,
            status=summary.status,
            episodes=summary.episodes,
            steps=summary.steps,
            mean_return=self._return_sum / summary.episodes,
            mean_length=summary.steps / summary.episodes,
            seed=sampler.seed,
            n_workers=sampler.n_workers,
            wall_time_s=wall_time,
            steps_per_second=(summary.steps - earlier.steps) / wall_time,
            reproducible=verdict,
        )


class _Episodes:
    """A stream's chunks, and the error that ended it; errors of whoever takes the chunks are not its own."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self.failure: RolloutError | None = None

    def __iter__(self) -> Iterator[Chunk]:
        try:
            yield from self._chunks
        except RolloutError as error:
            self.failure = error


def _totals(config: CollectConfig) -> dict[str, int | None]:
    episodes: int | None = None
    if config.episodes is not None:
        episodes = config.episodes.stop - config.episodes.first
    elif config.episodes_per_worker is not None:
        episodes = config.episodes_per_worker * config.workers
    return {"total_steps": config.timesteps, "total_episodes": episodes}


def _window(sampler: Sampler, plan: Plan) -> Iterator[Chunk]:
    """Run the episodes that decide the schema, where the plan begins after them."""
    if isinstance(plan, Episodes) and plan.first > 0:
        yield from sampler.stream(MinTimesteps(WINDOW_STEPS), base=0)


def _lane(plan: Plan, number: int) -> int:
    return number // plan.episodes if isinstance(plan, EpisodesPerWorker) else 0


def _dropped(sampler: Sampler) -> str:
    count = sampler.dropped_episodes
    return f"; {count:,} more had ended before a lower-numbered one and were dropped" if count else ""
