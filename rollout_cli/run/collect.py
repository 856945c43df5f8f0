"""collect(): run episodes and write a dataset. Its steps: request, start, open, fill, check, close, warn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_cli.cores import usable_cores
from rollout_cli.dataset.card import skipped_text
from rollout_cli.dataset.folder import FolderLock, OutputFolder, check_folder, check_free_space
from rollout_cli.dataset.layout import acceptance_text, collected_source
from rollout_cli.dataset.store import file_store
from rollout_cli.episodes.chunk import unmatched_patterns
from rollout_cli.errors import InterruptedRunError, RolloutError, UsageError, UserCodeError, as_flags
from rollout_cli.options.config import CollectConfig
from rollout_cli.progress import Progress, showing
from rollout_cli.run import provenance, reproduce
from rollout_cli.run.compare import advice
from rollout_cli.run.request import Request, RunSamplers, check_pins, completed, requested
from rollout_cli.run.serve import policy_process
from rollout_cli.run.signals import StopSignals, stop_on_signals
from rollout_cli.run.tally import CollectResult, Tally, stopped_by
from rollout_cli.samplers.nesting import refuse_in_worker
from rollout_cli.samplers.plan import MinTimesteps
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.sources import pins, versions
from rollout_cli.sources.remote import RemotePath

if TYPE_CHECKING:
    from rollout_cli.dataset.metadata import DatasetSummary
    from rollout_cli.dataset.writer import DatasetWriter

_MANY_WORKERS = 4  # Per core; more cause a warning.


@dataclass(frozen=True, slots=True)
class _Run:
    """A run in progress."""

    started_at: float  # time.monotonic()
    request: Request
    tally: Tally
    samplers: RunSamplers
    progress: Progress
    signals: StopSignals
    stored_verdict: reproduce.Verdict | None  # Of the check of a stored episode.

    @property
    def observes_first(self) -> bool:
        """Whether the schema depends on episodes that precede this plan and were not collected yet."""
        request = self.request
        return request.state.committed is None and (
            request.plan.first > 0 or request.config.shard is not None
        )

    @property
    def is_ending(self) -> bool:
        """Whether an error or a signal ends the run early."""
        return self.tally.failure is not None or self.signals.received is not None


def collect(config: CollectConfig, *, progress: Progress | bool | None = None) -> CollectResult:
    """Collect the episodes that `config` requests, write them to a dataset, and return its totals.

    With `config.resume` the run continues the dataset in the output folder; `data/` is then the same as after
    one uninterrupted run.

    Args:
        config: What to run, and where to write it.
        progress: True shows a progress bar on stderr; a `Progress` of your own is called as the run goes on.

    Raises:
        RolloutError: If the run cannot start, fails or is interrupted. The dataset then has the status
            `interrupted` and the finished episodes, in order; without a finished episode there is no dataset.

    Example:
        >>> config = rollout_cli.CollectConfig(timesteps=50, seed=0, sampler="local", output="random")
        >>> result = rollout_cli.collect(config)
        >>> result.steps >= 50, len(rollout_cli.load("random")) == result.episodes
        (True, True)
    """
    with showing(progress) as shown:
        return _collect(config, shown)


def _collect(config: CollectConfig, progress: Progress) -> CollectResult:
    refuse_in_worker("collect")
    started_at = time.monotonic()
    config = completed(config, progress)
    with stop_on_signals() as signals, _locked(config, progress) as lock:
        request = requested(config, progress)
        state = request.state
        tally = Tally(request.state.skipped)
        if state.info is not None and state.is_complete:
            progress.notice(f"{config.output} is complete: nothing to do")
            if config.require_reproducible:
                reproduce.require(reproduce.recorded(state.source))
            return _result(
                tally,
                started_at,
                **state.totals,
                stopped_by=stopped_by(config, state.totals),
                acceptance=state.source.get("acceptance"),
                path=config.output.resolve(),
                seed=collected_source(state.info)["root_seed"],
                n_workers=config.workers,
                reproducible=state.source["reproducible"],
            )
        with policy_process(config, request.policy, request.env) as policy:
            request = replace(request, policy=policy)
            samplers = RunSamplers(request, progress)
            stored = reproduce.check_stored(state, samplers.rebuild, request.sources, progress)
            run = _Run(started_at, request, tally, samplers, progress, signals, stored)
            with _start(run) as sampler, _open_writer(run, sampler, lock) as writer:
                _fill(run, sampler, writer)
                verdict = _check(run, sampler)
                summary = _close(run, sampler, writer, verdict)
            _warn(run, verdict, summary)
        return _result(
            tally,
            started_at,
            episodes=summary.episodes,
            steps=summary.steps,
            stopped_by=tally.stopped_by,
            acceptance=tally.acceptance,
            return_sum=state.totals["return_sum"] + tally.return_sum,
            path=summary.path,
            seed=sampler.seed,
            n_workers=sampler.n_started,
            reproducible=asdict(verdict),
        )


@contextmanager
def _locked(config: CollectConfig, progress: Progress) -> Iterator[FolderLock | None]:
    """Check the output folder and pinned files, and yield the folder's lock; None if it does not exist yet."""
    cores = usable_cores()
    if config.workers > _MANY_WORKERS * cores and config.command == "collect" and config.sampler != "ray":
        progress.warn(f"{config.workers:,} workers share {cores:,} usable cores: use fewer workers")
    if warning := check_free_space(config.output):
        progress.warn(warning)
    if not config.resume:
        check_folder(config.output, overwrite=config.overwrite)
        check_pins(config.pin)
    lock = FolderLock(file_store(config.output), config.output) if config.output.is_dir() else None
    try:
        yield lock
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def _start(run: _Run) -> Iterator[Sampler]:
    """Start the workers and yield their sampler; from now on, the first signal lets running episodes finish."""
    config = run.request.config
    progress = run.progress
    signals = run.signals
    total_episodes = None
    if config.episodes is not None or config.episodes_per_worker is not None:
        total_episodes = len(config.shard_numbers) * (config.episodes_per_worker or 1)
    progress.start(
        label=run.request.env.label,
        total_steps=config.timesteps,
        total_episodes=total_episodes,
        total_seconds=config.max_time,
    )

    def end_closing(name: str) -> None:
        raise signals.error(f"closing the environment was ended by {name}; the dataset is complete")

    with run.samplers.closing:
        sampler = run.samplers.closing.enter_context(run.samplers.own)
        sampler.start_worker(None if run.observes_first else run.request.state.plan)
        signals.stop = run.samplers.stop
        yield sampler
        # Closing an environment in this process may block forever, and only a signal can end it.
        signals.stop = end_closing
        signals.is_over = config.sampler != "local"
    signals.is_over = True


def _open_writer(run: _Run, sampler: Sampler, lock: FolderLock | None) -> DatasetWriter:
    """Wait for the workers, compare them with the dataset to resume, and return a writer for it."""
    # These imports (pyarrow) and `surroundings` (git) run while the workers build.
    from rollout_cli.dataset.metadata import DatasetSettings  # noqa: PLC0415
    from rollout_cli.dataset.segments import SizeLimits, write_segment  # noqa: PLC0415
    from rollout_cli.dataset.writer import DatasetWriter  # noqa: PLC0415

    request = run.request
    surrounding = versions.surroundings()
    config = request.config
    state = request.state
    try:
        spec = sampler.wait_until_started()
    except InterruptedRunError as error:
        raise run.signals.error(
            f"the run was ended by {run.signals.name} before any worker started"
        ) from error
    record = provenance.run_record(request.sources, sampler.report, surrounding)
    state.check(record, spec, run.progress, has_read_files=False)
    for line in sampler.report.warnings:
        run.progress.warn(line)
    beforehand = run.stored_verdict or reproduce.known_beforehand(sampler.report)
    if config.require_reproducible:
        reproduce.require(beforehand)
    verdict = beforehand or reproduce.Verdict("unknown", "the run had not ended when this was written")
    folder = OutputFolder(
        config.output, overwrite=config.overwrite, replace_from=state.replace_from, lock=lock
    )
    source = {"root_seed": sampler.seed, **record, **state.history(record), "reproducible": asdict(verdict)}
    source |= provenance.skipped_facts(state.skipped)  # So that a kill keeps the record of earlier runs.
    settings = DatasetSettings(
        spec,
        [source],
        request.first_numbers,
        next_observation=config.next_observation,
        limits=SizeLimits(segment_bytes=config.segment_bytes),
        before=state.before,
    )
    return DatasetWriter(
        folder,
        settings,
        committed=state.committed,
        flush_seconds=config.flush_every,
        write_segment=partial(
            sampler.segment_runner().run,
            write_segment,
            needs_folder=not isinstance(config.output, RemotePath),
        ),
        # A step may block forever: without this, an error of the disk would not end the run.
        on_failure=sampler.request_stop,
        facts=lambda: provenance.skipped_facts(run.tally.skipped | sampler.skipped),
    )


def _fill(run: _Run, sampler: Sampler, writer: DatasetWriter) -> None:
    """Collect and write the remaining episodes; store an error that ends the sampling in the tally."""
    began_at = time.monotonic()
    tally = run.tally
    report = sampler.report
    # Workers run episodes as soon as they are built; the clock of another machine may be wrong.
    ahead = min(max(0.0, time.time() - sampler.built_at), began_at - run.started_at)
    config = run.request.config
    state = run.request.state
    run.progress.begin(**state.totals, seconds=ahead)
    if report.compiles:
        run.progress.notice(f"compiling {run.request.env.label} in each worker")
    if run.observes_first:
        _limit(config, sampler, began_at)
        _observe_first(run, sampler, writer)
    if state.plan is not None and not run.is_ending:
        _limit(config, sampler, began_at)
        with closing(tally.until_failure(sampler.stream_refs(state.plan))) as chunks:
            for chunk in chunks:
                if sampler.report is not report:
                    for line in sampler.report.warnings[len(report.warnings) :]:
                        run.progress.warn(line)
                    report = sampler.report
                    writer.record(**state.history({"files": pins.record(report.files)}))
                tally.early.keep(chunk)
                worker = int(chunk.numbers[0]) // (config.episodes_per_worker or 1)
                writer.write(
                    chunk, partition=worker - config.shard_numbers.start if config.episodes_per_worker else 0
                )
                tally.episodes += chunk.n_episodes
                tally.steps += chunk.n_steps
                tally.return_sum += chunk.return_sum
                if config.keep is not None:
                    run.progress.ran(int(chunk.numbers[-1]) + 1)
                run.progress.add(chunk)
        tally.skipped |= sampler.skipped
    writer.check()
    tally.seconds = time.monotonic() - began_at + ahead
    totals = {name: state.totals[name] + getattr(tally, name) for name in state.totals}
    if config.keep is not None:
        next_number = max(sampler.next_number, state.next_number)
        tally.acceptance = provenance.acceptance_of(next_number, totals["episodes"], tally.skipped)
        run.progress.ran(next_number)
    run.progress.finish()
    if not run.is_ending:
        is_done = state.plan is None or sampler.is_done
        tally.stopped_by = stopped_by(config, totals) if is_done else "max_time"
        tally.failure = _without_data(run, sampler, writer)


def _observe_first(run: _Run, sampler: Sampler, writer: DatasetWriter) -> None:
    """Run the first episodes of the complete run, from which the writer infers the schema."""
    from rollout_cli.dataset.inference import INFERENCE_STEPS  # noqa: PLC0415 - imports pyarrow

    for chunk in run.tally.until_failure(sampler.stream(MinTimesteps(INFERENCE_STEPS))):
        # A shard must not use episodes past the end of the complete run.
        is_shard = run.request.config.shard is not None
        stop = np.searchsorted(chunk.numbers, run.request.whole_stop) if is_shard else chunk.n_episodes
        if stop:
            writer.observe(chunk.load().episodes(0, int(stop)))


def _limit(config: CollectConfig, sampler: Sampler, began_at: float) -> None:
    """Stop the sampler's next stream when the time limit is reached; each stream needs its own request."""
    if config.max_time is not None:
        left = began_at + config.max_time - time.monotonic()
        sampler.request_stop(grace=config.grace, after=max(0.0, left))


def _without_data(run: _Run, sampler: Sampler, writer: DatasetWriter) -> RolloutError | None:
    """Return the error of a run that ended as requested, but has no episodes for a dataset; else None."""
    config = run.request.config
    tally = run.tally
    stored = run.request.state.replace_from
    is_cut = tally.stopped_by == "max_time"
    if is_cut and (count := sampler.dropped_episodes):
        run.progress.notice(
            f"--max-time: dropped {count:,} finished episodes, because a lower-numbered one was unfinished"
        )
    if is_cut and stored and sampler.next_number < stored[0]:
        return UsageError(
            "--max-time ended the run before the episodes of the dataset were collected again",
            code="time-limit",
            hint="allow more time with {max_time=…}",
        )
    if writer.has_episodes:
        return None
    if config.keep is not None and tally.acceptance and (n_run := tally.acceptance["run"]):
        option = "--max-time" if is_cut else "--keep-cap"
        return UsageError(
            f"--keep {config.keep!r} rejected all {n_run:,} episodes that {option} allows",
            code="no-episode-kept",
            hint="collect some episodes without {keep}, and look at their values with `rollout stats`",
        )
    if not tally.skipped:
        return UsageError(
            "--max-time ended the run before the first episode ended",
            code="time-limit",
            hint="allow more time with {max_time=…}",
        )
    number = min(tally.skipped)
    count = len(tally.skipped)
    return UserCodeError(
        f"all {count:,} episodes were skipped; episode {number}: {tally.skipped[number]}",
        code="all-episodes-skipped",
        hint='pass {on_env_error="fail"} and {on_worker_death="fail"} to see the first error in full',
    )


def _check(run: _Run, sampler: Sampler) -> reproduce.Verdict:
    """Return the verdict on reproducibility: run early episodes again, unless it is known or the run ended early."""
    tally = run.tally
    state = run.request.state
    verdict = reproduce.verdict_of_changes(state.changes) or run.stored_verdict
    stored = reproduce.recorded(state.source)
    if verdict is None and not tally.steps and stored.status != "unknown":
        verdict = stored  # No episode was added since.
    if verdict is None and run.is_ending:
        ended = reproduce.Verdict("unknown", "the run was ended early")
        verdict = reproduce.known_beforehand(sampler.report) or ended
    verdict = verdict or reproduce.check(
        sampler,
        tally.early,
        run.samplers.rebuild_at_end,
        # Include the steps of rejected episodes, which took time too.
        steps=int(tally.steps / ((tally.acceptance or {}).get("rate") or 1.0)),
        seconds=tally.seconds,
        required=run.request.config.require_reproducible,
    )
    return reproduce.for_policy(verdict, run.request.sources["policy"])


def _close(run: _Run, sampler: Sampler, writer: DatasetWriter, verdict: reproduce.Verdict) -> DatasetSummary:
    """Commit all episodes and return the summary of the dataset.

    Raises:
        RolloutError: If an error or a signal ended the run; the hint or message says which episodes are kept.
    """
    facts: dict[str, Any] = {"reproducible": asdict(verdict)}
    if run.tally.acceptance is not None:
        facts["acceptance"] = run.tally.acceptance
    if not run.is_ending:
        return writer.close(status="complete", stopped_by=run.tally.stopped_by, **facts)
    kept = f"no dataset was written: no episode was {'finished' if run.tally.acceptance is None else 'kept'}"
    if writer.has_episodes:
        summary = writer.close(status="interrupted", **facts)
        kept = (
            f"continue with {{resume=True}}: {summary.path} has "
            f"{summary.episodes:,} finished episodes ({summary.steps:,} steps)"
        )
    else:
        writer.abort()
    if (failure := run.tally.failure) is not None:
        raise failure.with_hint("; ".join(filter(None, [failure.marked_hint, kept])))
    count = sampler.dropped_episodes
    dropped = f"; dropped {count:,} more, because a lower-numbered one was unfinished" if count else ""
    raise run.signals.error(f"the run was ended by {run.signals.name}: {as_flags(kept)}{dropped}")


def _warn(run: _Run, verdict: reproduce.Verdict, summary: DatasetSummary) -> None:
    """Warn about problems of the data: skipped episodes, bad values, unused patterns, no reproducibility."""
    config = run.request.config
    progress = run.progress
    tally = run.tally
    if tally.stopped_by == "keep_cap" and tally.acceptance is not None:
        progress.warn(f"--keep-cap ended the run: kept {acceptance_text(tally.acceptance)}")
    for key in unmatched_patterns(config.drop_info, summary.dropped_infos):
        progress.notice(f"--drop-info {key} matches no info")
    for anomaly in summary.anomalies:
        progress.warn(str(anomaly))
    if skipped := skipped_text(len(tally.skipped), summary.episodes):
        progress.warn(f"{skipped} were skipped: {provenance.SKIPPED_NOTE}")
    if config.require_reproducible:
        reproduce.require(verdict)
    if verdict.status == "no":
        hint = f"; {as_flags(advice(verdict.difference))}" if verdict.difference is not None else ""
        progress.warn(f"not reproducible: {verdict.reason}{hint}")


def _result(
    tally: Tally, started_at: float, *, episodes: int, steps: int, return_sum: float, **facts: Any
) -> CollectResult:
    return CollectResult(
        status="complete",
        episodes=episodes,
        skipped=len(tally.skipped),
        steps=steps,
        mean_return=return_sum / episodes,
        mean_length=steps / episodes,
        wall_time_s=time.monotonic() - started_at,
        sampling_time_s=tally.seconds,
        steps_per_second=tally.steps / tally.seconds if tally.seconds else 0.0,
        **facts,
    )
