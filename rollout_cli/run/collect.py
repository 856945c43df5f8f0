"""collect(): the use case. Its steps are prepare -> start -> resume_or_begin -> fill -> check -> close -> report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_cli import pins
from rollout_cli.config import CollectConfig
from rollout_cli.cores import usable_cores
from rollout_cli.dataset.folder import FolderLock, OutputFolder, check_folder, check_free_space
from rollout_cli.dataset.store import file_store
from rollout_cli.envs.source import EnvSource, env_source
from rollout_cli.episodes.chunk import AnyChunk, unmatched_patterns
from rollout_cli.errors import InterruptedRunError, RolloutError, UserCodeError
from rollout_cli.policies.source import PolicySource, policy_source
from rollout_cli.remote import RemotePath
from rollout_cli.run import provenance, reproduce
from rollout_cli.run.build import check_pins, sampler_of
from rollout_cli.run.compare import advice
from rollout_cli.run.progress import Progress
from rollout_cli.run.resume import ResumeState, resume_state
from rollout_cli.run.signals import StopSignals, stop_on_signals
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Plan
from rollout_cli.samplers.sampler import Sampler

if TYPE_CHECKING:
    from rollout_cli.dataset.metadata import DatasetSummary
    from rollout_cli.dataset.writer import DatasetWriter

_MANY_WORKERS = 4
"""More workers a core are worth a warning."""
_UNRECORDED = "the run that skipped it was killed before it could record why"
_SKIPPED_NOTE = (
    "these episodes are missing in the data: where the course of an episode decides whether it fails, the remaining "
    "ones are a biased sample"
)


@dataclass(frozen=True, slots=True)
class CollectResult:
    """What a run made."""

    path: Path  # The dataset's folder.
    status: str  # `complete`.
    episodes: int  # Those in the dataset.
    steps: int  # Theirs.
    mean_return: float  # Of their sums of rewards.
    mean_length: float
    seed: int  # The root seed.
    n_workers: int  # How many ran.
    wall_time_s: float  # Seconds from the first check to the last commit.
    sampling_time_s: float  # From when its workers were ready to its last episode; 0 where nothing was left to run.
    steps_per_second: float  # The steps of this run over that time.
    reproducible: Mapping[str, Any]  # Whether episodes were the same when they were run again, as info.json has it.


@dataclass(slots=True)
class _Job:
    """A run whose sources are found and whose folder is locked, and what it has done."""

    config: CollectConfig
    progress: Progress
    signals: StopSignals
    plan: Plan  # The whole plan; what is left of it is in `state`.
    policy: PolicySource
    env: EnvSource
    sources: Mapping[str, Any]  # The part of its record that is known before any worker runs.
    state: ResumeState
    lock: FolderLock | None  # None where there is no folder yet.
    started_at: float
    skipped: dict[int, str]  # By number, why an episode was skipped.
    steps: int = 0
    return_sum: float = 0.0
    seconds: float = 0.0  # From when its workers were ready.
    early: reproduce.EarlyEpisodes = field(default_factory=reproduce.EarlyEpisodes)
    failure: RolloutError | None = None  # The error that ended the sampling early.
    verdict: reproduce.Verdict | None = None  # On the whole dataset, where it is known before the check.
    sampler: Sampler | None = None  # The one that samples now: a signal ends it.
    closing: ExitStack = field(default_factory=ExitStack)  # Its samplers are closed when the dataset is complete.

    def rebuild(self, limit: int | None) -> Sampler:
        """Return a sampler of one new worker; see `reproduce.Rebuild`."""
        seed = self.config.seed if self.sampler is None else self.sampler.seed
        config = replace(self.config, seed=seed, on_env_error="fail", on_worker_death="fail")
        self.sampler = sampler_of(config, self.policy, self.env, n_workers=1, limit=limit)
        return self.sampler

    def rebuild_at_end(self, limit: int | None) -> AbstractContextManager[Sampler]:
        """Return the same in place of the run's own workers: two of each policy might not fit into memory."""
        own, anew = self.sampler, self.rebuild(limit)
        if self.config.sampler == "local":  # Closing an environment in this process may take for ever.
            return nullcontext(self.closing.enter_context(anew))
        if own is not None:
            own.shutdown_worker()
        return anew

    def stop(self, name: str) -> None:
        """Let the sampling end with what is finished; called in the handler of a signal."""
        if self.sampler is not None:
            self.sampler.request_stop(grace=self.config.grace)
        self.progress.notice(f"{name}: the run is ending, and commits its finished episodes; again ends it at once")

    def until_failure(self, chunks: Iterator[AnyChunk]) -> Iterator[AnyChunk]:
        """Keep the sampler's error; one of the writer's is raised in the loop that this serves, and not here."""
        try:
            yield from chunks
        except RolloutError as error:
            self.failure = error


def collect(config: CollectConfig, *, progress: Progress | None = None) -> CollectResult:
    """Run what `config` asks for and write it to a dataset.

    With `config.resume` the dataset in the output folder is continued, and `data/` is in the end as one run makes it.

    Raises:
        RolloutError: What went wrong. Episodes that were finished before it, in order, are in the dataset, whose status
            is `interrupted`; where there was none, no dataset is left.
    """
    with stop_on_signals() as signals, _prepare(config, progress or Progress(), signals) as job:
        if job.state.is_complete:
            job.progress.notice(f"{config.output} is complete: there is nothing to do")
            source, path = job.state.source, config.output.resolve()
            facts = {"path": path, "seed": source["root_seed"], "reproducible": source["reproducible"]}
            return _result(job, **job.state.totals, **facts, n_workers=config.workers)
        _check_stored(job)
        with _start(job) as sampler, _resume_or_begin(job, sampler) as writer:
            _fill(job, sampler, writer)
            verdict = _check(job, sampler)
            summary = _close(job, sampler, writer, verdict)
        return _report(job, sampler, verdict, summary)


@contextmanager
def _prepare(config: CollectConfig, progress: Progress, signals: StopSignals) -> Iterator[_Job]:
    """Lock the folder, find policy and environment, and read what an earlier run committed."""
    started_at, cores = time.monotonic(), usable_cores()
    if config.workers > _MANY_WORKERS * cores and config.command == "collect" and config.sampler != "ray":
        progress.warn(f"{config.workers:,} workers share {cores:,} usable cores: fewer would be faster")
    if warning := check_free_space(config.output):
        progress.warn(warning)
    if not config.resume:
        check_folder(config.output, overwrite=config.overwrite)
        check_pins(config.pin)
    lock = FolderLock(file_store(config.output), config.output) if config.output.is_dir() else None
    try:
        policy = policy_source(config.policy, sha256=config.policy_sha256)
        env = env_source(config.env, config.env_kwargs)
        plan: Plan = MinTimesteps(config.timesteps or 1)
        if config.episodes is not None:
            plan = Episodes(config.part.start, config.part.stop)
        elif config.episodes_per_worker is not None:
            plan = EpisodesPerWorker(config.episodes_per_worker, config.part.start * config.episodes_per_worker)
        sources = provenance.sources_record(config, policy, env)
        state = resume_state(config, plan, sources, progress)
        known = {one["episode_number"]: one["reason"] for one in state.source.get("skipped", {}).get("episodes", [])}
        skipped = dict.fromkeys(state.committed.skipped if state.committed else (), _UNRECORDED) | known
        yield _Job(
            state.config, progress, signals, plan, policy, env, sources, state, lock, started_at, skipped=skipped
        )
    finally:
        if lock is not None:
            lock.release()


def _check_stored(job: _Job) -> None:
    """Before a dataset is extended, check that its first episode comes out as it did."""
    if job.state.committed is None or job.state.plan is None:
        return
    from rollout_cli.run.stored import check_stored  # noqa: PLC0415 - it loads pyarrow

    job.verdict = check_stored(job.state, job.rebuild, job.sources, provenance.surroundings(), job.progress)


@contextmanager
def _start(job: _Job) -> Iterator[Sampler]:
    """Start the workers; the first signal ends the sampling politely from here on."""
    config, progress = job.config, job.progress
    total_episodes = len(config.part) * (config.episodes_per_worker or 1) if config.timesteps is None else None
    progress.start(label=job.env.label, total_steps=config.timesteps, total_episodes=total_episodes)

    def end_closing(name: str) -> None:
        raise job.signals.error(f"closing the environment was ended by {name}; the dataset is complete")

    def warn(text: str) -> None:
        progress.warn(text)
        progress.update(failures=1)

    with job.closing:
        sampler = job.closing.enter_context(sampler_of(config, job.policy, job.env))
        job.sampler, sampler.warn = sampler, warn
        # A run that goes on, or a shard, does not begin where the other one did.
        sampler.next_number = job.plan.first + job.state.totals["episodes"]
        sampler.start_worker()
        job.signals.stop = job.stop
        yield sampler
        # Closing an environment in this process may take for ever: only a signal ends that.
        job.signals.stop, job.signals.is_over = end_closing, config.sampler != "local"
    job.signals.is_over = True


def _resume_or_begin(job: _Job, sampler: Sampler) -> DatasetWriter:
    """Wait for the workers, check that they fit the dataset, and open it."""
    # These load pyarrow and ask git, while the workers build.
    from rollout_cli.dataset.metadata import DatasetSettings  # noqa: PLC0415
    from rollout_cli.dataset.segments import SizeLimits, write_segment  # noqa: PLC0415
    from rollout_cli.dataset.writer import DatasetWriter  # noqa: PLC0415

    config, surrounding = job.config, provenance.surroundings()
    try:
        spec = sampler.wait_until_started()
    except InterruptedRunError as error:
        raise job.signals.error(f"the run was ended by {job.signals.name} before a worker had started") from error
    assert sampler.report is not None
    record = provenance.run_record(job.sources, sampler.report, surrounding)
    job.state.check(record, spec, job.progress, is_whole=False)
    if config.require_reproducible:
        reproduce.require(reproduce.known_beforehand(sampler.report))
    first_numbers = [job.plan.first]
    if isinstance(job.plan, EpisodesPerWorker):
        first_numbers = [worker * job.plan.episodes for worker in config.part]
    unknown = reproduce.Verdict("unknown", "the run has not ended yet")
    folder = OutputFolder(config.output, overwrite=config.overwrite, keep_until=job.state.keep_until, lock=job.lock)
    source = {"root_seed": sampler.seed, **record, **job.state.history(record), "reproducible": asdict(unknown)}
    settings = DatasetSettings(
        spec,
        [source],
        first_numbers,
        next_observation=config.next_observation,
        limits=SizeLimits(segment_bytes=config.segment_bytes),
    )
    return DatasetWriter(
        folder,
        settings,
        committed=job.state.committed,
        flush_seconds=config.flush_every,
        write_segment=partial(sampler.execute, write_segment, anywhere=isinstance(config.output, RemotePath)),
    )


def _fill(job: _Job, sampler: Sampler, writer: DatasetWriter) -> None:
    """Write all episodes that are left; an error that ends the sampling is kept beside what was written before it."""
    from rollout_cli.dataset.inference import INFERENCE_STEPS  # noqa: PLC0415 - as above

    began_at, config, report = time.monotonic(), job.config, sampler.report
    job.progress.begin(**job.state.totals)
    if job.state.committed is None and (job.plan.first > 0 or config.shard is not None):
        # The first episodes of all decide the columns, wherever the dataset begins.
        for chunk in job.until_failure(sampler.stream(MinTimesteps(INFERENCE_STEPS))):
            # A shard looks at none that the whole run does not have.
            stop = np.searchsorted(chunk.numbers, _stop(config)) if config.shard else chunk.n_episodes
            if stop:
                writer.observe(chunk.load().episodes(0, int(stop)))
        sampler.skipped.clear()
    if job.state.plan is not None and job.failure is None and job.signals.received is None:
        for chunk in job.until_failure(sampler.stream_refs(job.state.plan)):
            job.early.keep(chunk)
            worker = int(chunk.numbers[0]) // (config.episodes_per_worker or 1)
            writer.write(chunk, partition=worker - config.part.start if config.episodes_per_worker else 0)
            episodes = chunk.n_episodes if chunk.completes else 0
            return_sum = chunk.return_sum
            job.steps += chunk.n_steps
            job.return_sum += return_sum
            job.progress.update(episodes=episodes, steps=chunk.n_steps, return_sum=return_sum)
            if sampler.report is not report:
                report = sampler.report
                writer.record(**job.state.history({"files": pins.record(report.files if report else ())}))
    job.seconds = time.monotonic() - began_at
    job.progress.finish()
    if job.failure is None:
        job.skipped |= sampler.skipped
        if job.skipped and not writer.has_episodes:
            number, count = min(job.skipped), len(job.skipped)
            job.failure = UserCodeError(
                f"all episodes were skipped, {count:,} of them; episode {number}: {job.skipped[number]}",
                hint="without an option that skips them, the first error ends the run and is shown in full",
            )


def _stop(config: CollectConfig) -> int:
    """Return one past the last episode number of a run of which this one may be a shard."""
    return config.whole.stop * (config.episodes_per_worker or 1)


def _check(job: _Job, sampler: Sampler) -> reproduce.Verdict:
    """Run early episodes again, unless the verdict is known or the run was ended early."""
    if (known := reproduce.verdict_of_changes(job.state.changes) or job.verdict) is not None:
        return known
    if job.failure is not None or job.signals.received is not None:
        known = reproduce.known_beforehand(sampler.report)
        return known or reproduce.Verdict("unknown", "the run was ended early")
    required = job.config.require_reproducible
    return reproduce.check(
        sampler, job.early, job.rebuild_at_end, steps=job.steps, seconds=job.seconds, required=required
    )


def _close(job: _Job, sampler: Sampler, writer: DatasetWriter, verdict: reproduce.Verdict) -> DatasetSummary:
    """Commit all episodes.

    Raises:
        RolloutError: The error that ended the sampling, or that of the signal; it says what is kept.
    """
    facts: dict[str, Any] = {"reproducible": asdict(verdict)}
    if job.skipped:
        episodes = [{"episode_number": number, "reason": reason} for number, reason in sorted(job.skipped.items())]
        facts["skipped"] = {"count": len(episodes), "note": _SKIPPED_NOTE, "episodes": episodes}
    if job.failure is None and job.signals.received is None:
        return writer.close(status="complete", **facts)
    kept = "no episode was finished, so no dataset was left"
    if writer.has_episodes:
        found = writer.close(status="interrupted", **facts)
        kept = f"{found.episodes:,} finished episodes ({found.steps:,} steps) are in {found.path}"
        kept += ", and --resume continues there"
    else:
        writer.abort()
    if job.failure is not None:
        job.failure.hint = "; ".join(filter(None, [job.failure.hint, kept]))
        raise job.failure
    count = sampler.dropped_episodes
    dropped = f"; {count:,} more had ended before a lower-numbered one and were dropped" if count else ""
    raise job.signals.error(f"the run was ended by {job.signals.name}: {kept}{dropped}")


def _report(job: _Job, sampler: Sampler, verdict: reproduce.Verdict, summary: DatasetSummary) -> CollectResult:
    """Warn of what may spoil the data, and return the result."""
    config, progress = job.config, job.progress
    for key in unmatched_patterns(config.drop_info, summary.dropped_infos):
        progress.notice(f"--drop-info {key}: there was no info of that name")
    for anomaly in summary.anomalies:
        progress.warn(str(anomaly))
    if config.require_reproducible:
        reproduce.require(verdict)
    if verdict.status == "no":
        hint = f"; {advice(verdict.difference)}" if verdict.difference is not None else ""
        progress.warn(f"these episodes are not reproducible: {verdict.reason}{hint}")
    return _result(
        job,
        path=summary.path,
        episodes=summary.episodes,
        steps=summary.steps,
        return_sum=job.state.totals["return_sum"] + job.return_sum,
        seed=sampler.seed,
        n_workers=sampler.n_started,
        reproducible=asdict(verdict),
    )


def _result(job: _Job, *, episodes: int, steps: int, return_sum: float, **facts: Any) -> CollectResult:
    return CollectResult(
        status="complete",
        episodes=episodes,
        steps=steps,
        mean_return=return_sum / episodes,
        mean_length=steps / episodes,
        wall_time_s=time.monotonic() - job.started_at,
        sampling_time_s=job.seconds,
        steps_per_second=job.steps / job.seconds if job.seconds else 0.0,
        **facts,
    )
