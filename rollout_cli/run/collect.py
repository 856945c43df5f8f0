"""collect(): the use case. Its steps are prepare -> start -> resume_or_begin -> fill -> check -> close -> report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_cli.config import CollectConfig
from rollout_cli.cores import usable_cores
from rollout_cli.dataset.files import FolderLock, check_folder, check_free_space, file_store
from rollout_cli.envs.source import EnvSource, env_source
from rollout_cli.episodes.chunk import AnyChunk
from rollout_cli.episodes.infos import unmatched_patterns
from rollout_cli.errors import InterruptedRunError, RolloutError, UserCodeError
from rollout_cli.policies.source import PolicySource, policy_source
from rollout_cli.remote import RemotePath
from rollout_cli.run import provenance, reproduce
from rollout_cli.run.progress import Progress
from rollout_cli.run.resume import ResumeState, resume_state
from rollout_cli.run.signals import StopSignals, stop_on_signals
from rollout_cli.samplers.local_sampler import LocalSampler
from rollout_cli.samplers.multiprocessing_sampler import MultiprocessingSampler
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Plan
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.samplers.supervision import Supervision
from rollout_cli.workers.default_worker import DefaultWorker, Worker
from rollout_cli.workers.factory import WorkerFactory, load_worker_class
from rollout_cli.workers.vec_worker import VecWorker
from rollout_cli.workers.worker import EpisodeRules

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
    steps_per_second: float  # The steps of this run over the time from when its workers were ready.
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
            info, path = job.state.info, config.output.resolve()
            facts = {"path": path, "seed": info["root_seed"], "reproducible": info["reproducible"]}
            return _result(job, **job.state.totals, **facts, n_workers=config.workers)
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
        known = {one["episode_number"]: one["reason"] for one in state.info.get("skipped", {}).get("episodes", [])}
        skipped = dict.fromkeys(state.committed.skipped if state.committed else (), _UNRECORDED) | known
        yield _Job(
            state.config, progress, signals, plan, policy, env, sources, state, lock, started_at, skipped=skipped
        )
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def _start(job: _Job) -> Iterator[Sampler]:
    """Start the workers; the first signal ends the sampling politely from here on."""
    config, progress = job.config, job.progress
    total_episodes = len(config.part) * (config.episodes_per_worker or 1) if config.timesteps is None else None
    progress.start(label=job.env.label, total_steps=config.timesteps, total_episodes=total_episodes)

    def stop(name: str) -> None:
        sampler.request_stop(grace=config.grace)
        progress.notice(f"{name}: the run is ending, and commits its finished episodes; again ends it at once")

    def warn(text: str) -> None:
        progress.warn(text)
        progress.update(failures=1)

    with sampler_of(config, job.policy, job.env) as sampler:
        sampler.warn = warn
        sampler.start_worker()
        job.signals.stop = stop
        yield sampler
        job.signals.is_over = True


def _resume_or_begin(job: _Job, sampler: Sampler) -> DatasetWriter:
    """Wait for the workers, check that they fit the dataset, and open it."""
    # These load pyarrow and ask git, while the workers build.
    from rollout_cli.dataset.segments import SizeLimits, write_segment  # noqa: PLC0415
    from rollout_cli.dataset.writer import DatasetWriter  # noqa: PLC0415

    config, surrounding = job.config, provenance.surroundings()
    try:
        spec = sampler.wait_until_started()
    except InterruptedRunError as error:
        raise job.signals.error(f"the run was ended by {job.signals.name} before a worker had started") from error
    if spec.max_episode_length is None:
        job.progress.notice(
            "this environment has no known time limit: an episode that does not end would run for ever "
            "(--max-episode-length N truncates it)"
        )
    record = provenance.run_record(job.sources, sampler.worker_info, surrounding)
    job.state.check(record, spec, job.progress)
    if config.require_reproducible:
        reproduce.require(reproduce.known_beforehand(sampler.worker_info))
    first_numbers = [job.plan.first]
    if isinstance(job.plan, EpisodesPerWorker):
        first_numbers = [worker * job.plan.episodes for worker in config.part]
    unknown = reproduce.Verdict("unknown", "the run has not ended yet")
    writer = DatasetWriter(
        config.output,
        env_spec=spec,
        root_seed=sampler.seed,
        first_numbers=first_numbers,
        header={**record, "reproducible": asdict(unknown)},
        next_observation=config.next_observation,
        overwrite=config.overwrite,
        committed=job.state.committed,
        keep_until=job.state.keep_until,
        limits=SizeLimits(segment_bytes=config.segment_bytes),
        flush_seconds=config.flush_every,
        lock=job.lock,
        write_segment=partial(sampler.execute, write_segment, anywhere=isinstance(config.output, RemotePath)),
    )
    sampler.spill_folder = None if isinstance(writer.path, RemotePath) else writer.path
    return writer


def _fill(job: _Job, sampler: Sampler, writer: DatasetWriter) -> None:
    """Write all episodes that are left; an error that ends the sampling is kept beside what was written before it."""
    from rollout_cli.dataset.inference import INFERENCE_STEPS  # noqa: PLC0415 - as above

    began_at, config = time.monotonic(), job.config
    job.progress.begin(**job.state.totals)
    if job.state.committed is None and (job.plan.first > 0 or config.shard is not None):
        # The first episodes of all decide the columns, wherever the dataset begins.
        for chunk in job.until_failure(sampler.stream(MinTimesteps(INFERENCE_STEPS))):
            # A shard looks at none that the whole run does not have.
            stop = np.searchsorted(chunk.numbers, _stop(config)) if config.shard else chunk.n_episodes
            if stop:
                writer.observe(chunk.load().episodes(0, int(stop)))
        sampler.skipped.clear()
    if job.state.plan is not None and job.failure is None:
        for chunk in job.until_failure(sampler.stream_refs(job.state.plan)):
            job.early.keep(chunk)
            worker = int(chunk.numbers[0]) // (config.episodes_per_worker or 1)
            writer.write(chunk, partition=worker - config.part.start if config.episodes_per_worker else 0)
            episodes = chunk.n_episodes if chunk.completes else 0
            return_sum = chunk.return_sum
            job.steps += chunk.n_steps
            job.return_sum += return_sum
            job.progress.update(episodes=episodes, steps=chunk.n_steps, return_sum=return_sum)
            if config.require_reproducible:
                reproduce.require(reproduce.known_beforehand(sampler.worker_info))
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
    """Run early episodes again, unless the run was ended early."""
    if job.failure is not None or job.signals.received is not None:
        known = reproduce.known_beforehand(sampler.worker_info)
        return known or reproduce.Verdict("unknown", "the run was ended early")
    required = job.config.require_reproducible
    return reproduce.check(sampler, job.early, steps=job.steps, seconds=job.seconds, required=required)


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
    if sampler.restarts:  # They loaded the code as it was by then.
        again = policy_source(config.policy), env_source(config.env, config.env_kwargs)
        for source in provenance.changed_sources(job.sources, provenance.sources_record(config, *again)):
            progress.warn(f"{source} was changed during the run, so its episodes may not be reproducible")
    if config.require_reproducible:
        reproduce.require(verdict)
    if verdict.status == "no":
        hint = f"; {reproduce.HINT}" if verdict.difference is not None else ""
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
        steps_per_second=job.steps / job.seconds if job.seconds else 0.0,
        **facts,
    )


def sampler_of(config: CollectConfig, policy: PolicySource, env: EnvSource) -> Sampler:
    """Return the sampler that a configuration asks for; no worker is started.

    Raises:
        UserCodeError: If the worker class cannot be found, or does not say how it wants its work.
    """
    arguments = dict(config.worker_args)
    if config.deterministic:
        arguments["deterministic"] = True
    worker_class: type[Worker] = DefaultWorker
    if config.envs_per_worker > 1 or config.vectorization == "native":
        worker_class, arguments["n_envs"] = VecWorker, config.envs_per_worker
    if config.vectorization == "native":
        arguments["vectorization"] = "native"
    if config.worker_class is not None:
        worker_class = load_worker_class(config.worker_class)
    factory = WorkerFactory(
        max_episode_length=config.max_episode_length,
        n_workers=len(config.part) if config.command == "exact" else config.workers,
        seed=config.seed,
        worker_class=worker_class,
        worker_args=arguments,
        drop_infos=config.drop_info,
        rules=EpisodeRules(invalid_action=config.invalid_action, step_guard=config.episode_step_guard),
    )
    supervision = Supervision(**{one.name: getattr(config, one.name) for one in fields(Supervision)})
    if config.sampler == "local":
        return LocalSampler(policy, env, worker_factory=factory, supervision=supervision)
    if config.sampler == "ray":
        from rollout_cli.samplers.ray_sampler import RaySampler  # noqa: PLC0415 - it loads Ray

        return RaySampler(
            policy,
            env,
            worker_factory=factory,
            supervision=supervision,
            address=config.ray_address,
            cpus_per_worker=config.cpus_per_worker,
            gpus_per_worker=config.gpus_per_worker,
        )
    method = config.start_method
    return MultiprocessingSampler(policy, env, worker_factory=factory, supervision=supervision, start_method=method)
