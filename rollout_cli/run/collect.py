"""collect(), the use case. Its steps: request, start, resume_or_begin, fill, check, close, warn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rollout_cli.cores import usable_cores
from rollout_cli.dataset.card import skipped_text
from rollout_cli.dataset.folder import FolderLock, OutputFolder, check_folder, check_free_space
from rollout_cli.dataset.layout import acceptance_text, collected_source
from rollout_cli.dataset.store import file_store
from rollout_cli.episodes.chunk import unmatched_patterns
from rollout_cli.episodes.notebook import html_table
from rollout_cli.errors import InterruptedRunError, RolloutError, UsageError, UserCodeError, as_flags
from rollout_cli.keywords import Record
from rollout_cli.options.config import CollectConfig
from rollout_cli.progress import Progress, showing
from rollout_cli.run import provenance, reproduce
from rollout_cli.run.compare import advice
from rollout_cli.run.request import Request, RunSamplers, check_pins, completed, requested
from rollout_cli.run.signals import StopSignals, stop_on_signals
from rollout_cli.run.tally import StoppedBy, Tally
from rollout_cli.samplers.nesting import refuse_in_worker
from rollout_cli.samplers.plan import MinTimesteps
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.sources import pins
from rollout_cli.sources.remote import RemotePath

if TYPE_CHECKING:
    from rollout_cli.dataset.metadata import DatasetSummary
    from rollout_cli.dataset.writer import DatasetWriter

_MANY_WORKERS = 4  # More a core are worth a warning.


@dataclass(frozen=True, slots=True)
class CollectResult:
    """What a run made."""

    path: Path  # The dataset's folder.
    status: Literal["complete"]
    stopped_by: StoppedBy  # The option that ended it.
    episodes: int  # Those in the dataset.
    steps: int  # Theirs.
    mean_return: float  # Of their sums of rewards.
    mean_length: float
    seed: int  # The root seed.
    n_workers: int  # How many ran.
    wall_time_s: float  # Seconds from the first check to the last commit.
    # From when its workers were ready to its last episode; 0 where nothing was left to run.
    sampling_time_s: float
    steps_per_second: float  # The steps of this run over that time.
    # Whether episodes were the same when they were run again, as info.json has it.
    reproducible: Record
    acceptance: Record | None = None  # How many `keep` has kept, as info.json has it.
    skipped: int = 0  # Episodes that `on_env_error` or `on_worker_death` left out.

    def _repr_html_(self) -> str:
        return html_table("CollectResult", asdict(self))


@dataclass(frozen=True, slots=True)
class _Run:
    """A request that is carried out."""

    started_at: float  # By time.monotonic.
    request: Request
    tally: Tally
    samplers: RunSamplers
    progress: Progress
    signals: StopSignals
    stored_verdict: reproduce.Verdict | None  # What was found before it began.

    @property
    def observes_first(self) -> bool:
        """Whether the columns depend on episodes before those of the plan, which nobody else has run."""
        request = self.request
        return request.state.committed is None and (
            request.plan.first > 0 or request.config.shard is not None
        )

    @property
    def is_ending(self) -> bool:
        """Whether an error or a signal ends it early."""
        return self.tally.failure is not None or self.signals.received is not None


def collect(config: CollectConfig, *, progress: Progress | bool | None = None) -> CollectResult:
    """Run what `config` asks for and write it to a dataset.

    With `config.resume` the dataset in the output folder is continued, and `data/` is in the end as one run
    makes it.

    Args:
        config: What to run, and where to write it.
        progress: True shows a progress bar on stderr; a `Progress` of your own is called as the run goes on.

    Raises:
        RolloutError: What went wrong. Episodes that were finished before it, in order, are in the dataset,
            whose status is `interrupted`; where there was none, no dataset is left.
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
            progress.notice(f"{config.output} is complete: there is nothing to do")
            if config.require_reproducible:
                reproduce.require(reproduce.recorded(state.source))
            return _result(
                tally,
                started_at,
                **state.totals,
                stopped_by=_reached(config, state.totals),
                acceptance=state.source.get("acceptance"),
                path=config.output.resolve(),
                seed=collected_source(state.info)["root_seed"],
                n_workers=config.workers,
                reproducible=state.source["reproducible"],
            )
        samplers = RunSamplers(request, progress)
        stored = reproduce.check_stored(state, samplers.rebuild, request.sources, progress)
        run = _Run(started_at, request, tally, samplers, progress, signals, stored)
        with _start(run) as sampler, _resume_or_begin(run, sampler, lock) as writer:
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
    """Check what can be checked before sources are read, and lock the folder; None if there is none yet."""
    cores = usable_cores()
    if config.workers > _MANY_WORKERS * cores and config.command == "collect" and config.sampler != "ray":
        progress.warn(f"{config.workers:,} workers share {cores:,} usable cores: fewer would be faster")
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
    """Start the workers; the first signal ends the sampling politely from here on."""
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
        # Closing an environment in this process may take for ever: only a signal ends that.
        signals.stop = end_closing
        signals.is_over = config.sampler != "local"
    signals.is_over = True


def _resume_or_begin(run: _Run, sampler: Sampler, lock: FolderLock | None) -> DatasetWriter:
    """Wait for the workers, check that they fit the dataset, and open it."""
    # These load pyarrow and ask git, while the workers build.
    from rollout_cli.dataset.metadata import DatasetSettings  # noqa: PLC0415
    from rollout_cli.dataset.segments import SizeLimits, write_segment  # noqa: PLC0415
    from rollout_cli.dataset.writer import DatasetWriter  # noqa: PLC0415

    request = run.request
    surrounding = provenance.surroundings()
    config = request.config
    state = request.state
    try:
        spec = sampler.wait_until_started()
    except InterruptedRunError as error:
        raise run.signals.error(
            f"the run was ended by {run.signals.name} before a worker had started"
        ) from error
    record = provenance.run_record(request.sources, sampler.report, surrounding)
    state.check(record, spec, run.progress, is_whole=False)
    for line in sampler.report.warnings:
        run.progress.warn(line)
    beforehand = run.stored_verdict or reproduce.known_beforehand(sampler.report)
    if config.require_reproducible:
        reproduce.require(beforehand)
    verdict = beforehand or reproduce.Verdict("unknown", "the run had not ended when this was written")
    folder = OutputFolder(config.output, overwrite=config.overwrite, keep_until=state.keep_until, lock=lock)
    source = {"root_seed": sampler.seed, **record, **state.history(record), "reproducible": asdict(verdict)}
    source |= provenance.skipped_facts(state.skipped)  # A kill must not lose what earlier runs recorded.
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
        # A step may never return: without this, a full disk would not end the run.
        on_failure=sampler.request_stop,
        facts=lambda: provenance.skipped_facts(run.tally.skipped | sampler.skipped),
    )


def _fill(run: _Run, sampler: Sampler, writer: DatasetWriter) -> None:
    """Write all episodes that are left; keep an error that ends the sampling beside what was written."""
    began_at = time.monotonic()
    tally = run.tally
    report = sampler.report
    # The workers have run episodes since they were built; the clock of another machine may be wrong.
    ahead = min(max(0.0, time.time() - sampler.built_at), began_at - run.started_at)
    config = run.request.config
    state = run.request.state
    run.progress.begin(**state.totals, seconds=ahead)
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
        tally.stopped_by = _reached(config, totals) if is_done else "max_time"
        tally.failure = _without_data(run, sampler, writer)


def _observe_first(run: _Run, sampler: Sampler, writer: DatasetWriter) -> None:
    """Let the first episodes of all decide the columns, wherever the dataset begins."""
    from rollout_cli.dataset.inference import INFERENCE_STEPS  # noqa: PLC0415 - it loads pyarrow

    for chunk in run.tally.until_failure(sampler.stream(MinTimesteps(INFERENCE_STEPS))):
        # A shard looks at none that the whole run does not have.
        is_shard = run.request.config.shard is not None
        stop = np.searchsorted(chunk.numbers, run.request.whole_stop) if is_shard else chunk.n_episodes
        if stop:
            writer.observe(chunk.load().episodes(0, int(stop)))


def _limit(config: CollectConfig, sampler: Sampler, began_at: float) -> None:
    """Let the sampler's next stream end when the time is over; each stream takes a request of its own."""
    if config.max_time is not None:
        left = began_at + config.max_time - time.monotonic()
        sampler.request_stop(grace=config.grace, after=max(0.0, left))


def _reached(config: CollectConfig, totals: Record) -> StoppedBy:
    """Return which amount has ended a run of so many episodes and steps, those of earlier runs too."""
    if config.timesteps is not None and totals["steps"] >= config.timesteps:
        return "timesteps"
    if config.keep is not None and (config.episodes is None or totals["episodes"] < config.episodes.stop):
        return "keep_cap"
    return "episodes" if config.episodes_per_worker is None else "episodes_per_worker"


def _without_data(run: _Run, sampler: Sampler, writer: DatasetWriter) -> RolloutError | None:
    """Return an error where a run that nothing has interrupted has no dataset to end with."""
    config = run.request.config
    tally = run.tally
    stored = run.request.state.keep_until
    is_cut = tally.stopped_by == "max_time"
    if is_cut and (count := sampler.dropped_episodes):
        run.progress.notice(
            f"--max-time: {count:,} episodes had ended before a lower-numbered one and were dropped"
        )
    if is_cut and stored and sampler.next_number < stored[0]:
        return UsageError(
            "--max-time was over before the episodes that the dataset has were collected again",
            code="time-limit",
            hint="allow more time with {max_time=…}",
        )
    if writer.has_episodes:
        return None
    if config.keep is not None and tally.acceptance and (n_run := tally.acceptance["run"]):
        option = "--max-time" if is_cut else "--keep-cap"
        return UsageError(
            f"none of {n_run:,} episodes was kept by --keep {config.keep!r}, and {option} allows no more",
            code="no-episode-kept",
            hint="collect some episodes without {keep}, and look at them: rollout info",
        )
    if not tally.skipped:
        return UsageError(
            "--max-time was over before the first episode had ended",
            code="time-limit",
            hint="allow more time with {max_time=…}",
        )
    number = min(tally.skipped)
    count = len(tally.skipped)
    return UserCodeError(
        f"all episodes were skipped, {count:,} of them; episode {number}: {tally.skipped[number]}",
        code="all-episodes-skipped",
        hint="without an option that skips them, the first error ends the run and is shown in full",
    )


def _check(run: _Run, sampler: Sampler) -> reproduce.Verdict:
    """Run early episodes again, unless the verdict is known or the run was ended early."""
    tally = run.tally
    state = run.request.state
    verdict = reproduce.verdict_of_changes(state.changes) or run.stored_verdict
    stored = reproduce.recorded(state.source)
    if verdict is None and not tally.steps and stored.status != "unknown":
        verdict = stored  # It is about the same episodes.
    if verdict is None and run.is_ending:
        ended = reproduce.Verdict("unknown", "the run was ended early")
        verdict = reproduce.known_beforehand(sampler.report) or ended
    return verdict or reproduce.check(
        sampler,
        tally.early,
        run.samplers.rebuild_at_end,
        # Those rejected took their time, too.
        steps=int(tally.steps / ((tally.acceptance or {}).get("rate") or 1.0)),
        seconds=tally.seconds,
        required=run.request.config.require_reproducible,
    )


def _close(run: _Run, sampler: Sampler, writer: DatasetWriter, verdict: reproduce.Verdict) -> DatasetSummary:
    """Commit all episodes.

    Raises:
        RolloutError: The error that ended the sampling, or that of the signal; it says what is kept.
    """
    facts: dict[str, Any] = {"reproducible": asdict(verdict)}
    if run.tally.acceptance is not None:
        facts["acceptance"] = run.tally.acceptance
    if not run.is_ending:
        return writer.close(status="complete", stopped_by=run.tally.stopped_by, **facts)
    kept = f"no episode was {'finished' if run.tally.acceptance is None else 'kept'}, so no dataset was left"
    if writer.has_episodes:
        summary = writer.close(status="interrupted", **facts)
        kept = (
            f"{summary.episodes:,} finished episodes ({summary.steps:,} steps) are in {summary.path}, "
            "and {resume=True} continues there"
        )
    else:
        writer.abort()
    if (failure := run.tally.failure) is not None:
        raise failure.with_hint("; ".join(filter(None, [failure.marked_hint, kept])))
    count = sampler.dropped_episodes
    dropped = f"; {count:,} more had ended before a lower-numbered one and were dropped" if count else ""
    raise run.signals.error(f"the run was ended by {run.signals.name}: {as_flags(kept)}{dropped}")


def _warn(run: _Run, verdict: reproduce.Verdict, summary: DatasetSummary) -> None:
    """Warn of what may spoil the data."""
    config = run.request.config
    progress = run.progress
    tally = run.tally
    if tally.stopped_by == "keep_cap" and tally.acceptance is not None:
        progress.warn(f"--keep-cap has ended the run: kept {acceptance_text(tally.acceptance)}")
    for key in unmatched_patterns(config.drop_info, summary.dropped_infos):
        progress.notice(f"--drop-info {key}: there was no info of that name")
    for anomaly in summary.anomalies:
        progress.warn(str(anomaly))
    if skipped := skipped_text(len(tally.skipped), summary.episodes):
        progress.warn(f"{skipped} were skipped: {provenance.SKIPPED_NOTE}")
    if config.require_reproducible:
        reproduce.require(verdict)
    if verdict.status == "no":
        hint = f"; {as_flags(advice(verdict.difference))}" if verdict.difference is not None else ""
        progress.warn(f"these episodes are not reproducible: {verdict.reason}{hint}")


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
