"""collect(): the use case. Its steps are prepare -> start -> resume_or_begin -> fill -> check -> close -> report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout_cli.config import CollectConfig
from rollout_cli.cores import usable_cores
from rollout_cli.dataset.files import FileStore, FolderLock, check_folder, check_free_space
from rollout_cli.envs.source import EnvSource, env_source
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import unmatched_patterns
from rollout_cli.errors import InterruptedRunError, RolloutError, UserCodeError
from rollout_cli.policies.source import PolicySource, policy_source
from rollout_cli.run import provenance, reproduce
from rollout_cli.run.progress import Progress
from rollout_cli.run.resume import ResumeState, resume_state
from rollout_cli.run.signals import StopSignals, stop_on_signals
from rollout_cli.samplers.local_sampler import LocalSampler
from rollout_cli.samplers.multiprocessing_sampler import MultiprocessingSampler
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Plan
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.samplers.supervision import Supervision
from rollout_cli.workers.default_worker import DefaultWorker
from rollout_cli.workers.factory import WorkerFactory, load_worker_class
from rollout_cli.workers.vec_worker import VecWorker
from rollout_cli.workers.worker import EpisodeRules, Worker

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


@dataclass(frozen=True, slots=True)
class _Job:
    """A run whose sources are found and whose folder is locked."""

    config: CollectConfig
    plan: Plan  # The whole plan; what is left of it is in `state`.
    policy: PolicySource
    env: EnvSource
    sources: Mapping[str, Any]  # The part of its record that is known before any worker runs.
    state: ResumeState
    lock: FolderLock | None  # None where there is no folder yet.
    progress: Progress
    started_at: float


@dataclass(slots=True)
class _Filled:
    """The run's own part of the dataset, as it grows."""

    skipped: dict[int, str]  # By number, why an episode was skipped.
    steps: int = 0
    return_sum: float = 0.0
    seconds: float = 0.0
    early: reproduce.EarlyEpisodes = field(default_factory=reproduce.EarlyEpisodes)
    failure: RolloutError | None = None  # The error that ended the sampling early.

    def until_failure(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
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
    with stop_on_signals() as signals, _prepare(config, progress or Progress()) as job:
        if job.state.is_complete:
            job.progress.notice(f"{config.output} is complete: there is nothing to do")
            info, path = job.state.info, config.output.resolve()
            facts = {"path": path, "seed": info["root_seed"], "reproducible": info["reproducible"]}
            return _result(job, **job.state.totals, **facts, n_workers=config.workers, steps_per_second=0.0)
        with _start(job, signals) as sampler, _resume_or_begin(job, sampler, signals) as writer:
            filled = _fill(job, sampler, writer)
            verdict = reproduce.known_beforehand(sampler.worker_info)
            if verdict is None and (filled.failure is not None or signals.received is not None):
                verdict = reproduce.Verdict("unknown", "the run was ended early")
            elif verdict is None:
                required, seconds = config.require_reproducible, filled.seconds
                verdict = reproduce.check(sampler, filled.early, steps=filled.steps, seconds=seconds, required=required)
            summary = _close(sampler, writer, filled, verdict, signals)
        return _report(job, sampler, filled, verdict, summary)


@contextmanager
def _prepare(config: CollectConfig, progress: Progress) -> Iterator[_Job]:
    """Lock the folder, find policy and environment, and read what an earlier run committed."""
    started_at, cores = time.monotonic(), usable_cores()
    if config.workers > _MANY_WORKERS * cores and config.command == "collect":
        progress.warn(f"{config.workers:,} workers share {cores:,} usable cores: fewer would be faster")
    if warning := check_free_space(config.output):
        progress.warn(warning)
    if not config.resume:
        check_folder(config.output, overwrite=config.overwrite)
    lock = FolderLock(FileStore(), config.output) if config.output.is_dir() else None
    try:
        policy = policy_source(config.policy, sha256=config.policy_sha256)
        env = env_source(config.env, config.env_kwargs)
        plan: Plan = MinTimesteps(config.timesteps or 1)
        if config.episodes is not None:
            plan = Episodes(*config.episodes)
        elif config.episodes_per_worker is not None:
            plan = EpisodesPerWorker(config.episodes_per_worker)
        sources = provenance.sources_record(config, policy, env)
        state = resume_state(config, plan, sources, progress)
        yield _Job(state.config, plan, policy, env, sources, state, lock, progress, started_at)
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def _start(job: _Job, signals: StopSignals) -> Iterator[Sampler]:
    """Start the workers; the first signal ends the sampling politely from here on."""
    config, progress = job.config, job.progress
    numbers = config.episodes
    total_episodes = numbers.stop - numbers.first if numbers else (config.episodes_per_worker or 0) * config.workers
    progress.start(label=job.env.label, total_steps=config.timesteps, total_episodes=total_episodes or None)

    def stop(name: str) -> None:
        sampler.request_stop(grace=config.grace)
        progress.notice(f"{name}: the run is ending, and commits its finished episodes; again ends it at once")

    def warn(text: str) -> None:
        progress.warn(text)
        progress.update(failures=1)

    with sampler_of(config, job.policy, job.env) as sampler:
        sampler.warn = warn
        sampler.start_worker()
        signals.stop = stop
        yield sampler
        signals.is_over = True


def _resume_or_begin(job: _Job, sampler: Sampler, signals: StopSignals) -> DatasetWriter:
    """Wait for the workers, check that they fit the dataset, and open it."""
    # These load pyarrow and ask git, while the workers build.
    from rollout_cli.dataset.segments import SizeLimits  # noqa: PLC0415
    from rollout_cli.dataset.writer import DatasetWriter  # noqa: PLC0415

    config, surrounding = job.config, provenance.surroundings()
    try:
        spec = sampler.wait_until_started()
    except InterruptedRunError as error:
        raise signals.error(f"the run was ended by {signals.name} before a worker had started") from error
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
        first_numbers = [worker * job.plan.episodes for worker in range(config.workers)]
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
        limits=SizeLimits(segment_bytes=config.segment_bytes),
        flush_seconds=config.flush_every,
        lock=job.lock,
    )
    sampler.spill_folder = writer.path
    return writer


def _fill(job: _Job, sampler: Sampler, writer: DatasetWriter) -> _Filled:
    """Write all episodes that are left; an error that ends the sampling is kept beside what was written before it."""
    from rollout_cli.dataset.inference import INFERENCE_STEPS  # noqa: PLC0415 - as above

    began_at, filled, config = time.monotonic(), _Filled(_skipped_before(job.state)), job.config
    job.progress.begin(**job.state.totals)
    if job.state.committed is None and isinstance(job.plan, Episodes) and job.plan.first > 0:
        # The first episodes of all decide the columns, wherever the dataset begins.
        for chunk in filled.until_failure(sampler.stream(MinTimesteps(INFERENCE_STEPS))):
            writer.observe(chunk)
        sampler.skipped.clear()
    if job.state.plan is not None and filled.failure is None:
        for chunk in filled.until_failure(sampler.stream(job.state.plan)):
            filled.early.keep(chunk)
            number = int(chunk.numbers[0])
            writer.write(chunk, partition=number // config.episodes_per_worker if config.episodes_per_worker else 0)
            episodes = chunk.n_episodes if chunk.part is None or chunk.part.is_last else 0
            return_sum = float(chunk.rewards.sum())
            filled.steps += chunk.n_steps
            filled.return_sum += return_sum
            job.progress.update(episodes=episodes, steps=chunk.n_steps, return_sum=return_sum)
            if config.require_reproducible:
                reproduce.require(reproduce.known_beforehand(sampler.worker_info))
    filled.seconds = time.monotonic() - began_at
    job.progress.finish()
    if filled.failure is None:
        filled.skipped |= sampler.skipped
        if filled.skipped and not writer.has_episodes:
            number, count = min(filled.skipped), len(filled.skipped)
            filled.failure = UserCodeError(
                f"all episodes were skipped, {count:,} of them; episode {number}: {filled.skipped[number]}",
                hint="without an option that skips them, the first error ends the run and is shown in full",
            )
    return filled


def _close(
    sampler: Sampler, writer: DatasetWriter, filled: _Filled, verdict: reproduce.Verdict, signals: StopSignals
) -> DatasetSummary:
    """Commit all episodes.

    Raises:
        RolloutError: The error that ended the sampling, or that of the signal; it says what is kept.
    """
    facts: dict[str, Any] = {"reproducible": asdict(verdict)}
    if filled.skipped:
        episodes = [{"episode_number": number, "reason": reason} for number, reason in sorted(filled.skipped.items())]
        facts["skipped"] = {"count": len(episodes), "note": _SKIPPED_NOTE, "episodes": episodes}
    if filled.failure is None and signals.received is None:
        return writer.close(status="complete", **facts)
    kept = "no episode was finished, so no dataset was left"
    if writer.has_episodes:
        found = writer.close(status="interrupted", **facts)
        kept = f"{found.episodes:,} finished episodes ({found.steps:,} steps) are in {found.path}"
        kept += ", and --resume continues there"
    else:
        writer.abort()
    if filled.failure is not None:
        filled.failure.hint = "; ".join(filter(None, [filled.failure.hint, kept]))
        raise filled.failure
    count = sampler.dropped_episodes
    dropped = f"; {count:,} more had ended before a lower-numbered one and were dropped" if count else ""
    raise signals.error(f"the run was ended by {signals.name}: {kept}{dropped}")


def _report(
    job: _Job, sampler: Sampler, filled: _Filled, verdict: reproduce.Verdict, summary: DatasetSummary
) -> CollectResult:
    """Warn of what may spoil the data, and return the result."""
    config, progress = job.config, job.progress
    for key in unmatched_patterns(config.drop_info, summary.dropped_infos):
        progress.notice(f"--drop-info {key}: there was no info of that name")
    for anomaly in summary.anomalies:
        progress.warn(str(anomaly))
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
        return_sum=job.state.totals["return_sum"] + filled.return_sum,
        seed=sampler.seed,
        n_workers=sampler.n_started,
        reproducible=asdict(verdict),
        steps_per_second=filled.steps / filled.seconds if filled.seconds else 0.0,
    )


def _result(job: _Job, *, episodes: int, steps: int, return_sum: float, **facts: Any) -> CollectResult:
    return CollectResult(
        status="complete",
        episodes=episodes,
        steps=steps,
        mean_return=return_sum / episodes,
        mean_length=steps / episodes,
        wall_time_s=time.monotonic() - job.started_at,
        **facts,
    )


def _skipped_before(state: ResumeState) -> dict[int, str]:
    """Return, by number, why an earlier run skipped episodes."""
    known = state.info.get("skipped", {}).get("episodes", [])
    reasons = {int(episode["episode_number"]): str(episode["reason"]) for episode in known}
    return dict.fromkeys(state.committed.skipped if state.committed else (), _UNRECORDED) | reasons


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
        n_workers=config.workers,
        seed=config.seed,
        worker_class=worker_class,
        worker_args=arguments,
        drop_infos=config.drop_info,
        rules=EpisodeRules(invalid_action=config.invalid_action, step_guard=config.episode_step_guard),
    )
    supervision = Supervision(**{one.name: getattr(config, one.name) for one in fields(Supervision)})
    if config.sampler == "local":
        return LocalSampler(policy, env, worker_factory=factory, supervision=supervision)
    method = config.start_method
    return MultiprocessingSampler(policy, env, worker_factory=factory, supervision=supervision, start_method=method)
