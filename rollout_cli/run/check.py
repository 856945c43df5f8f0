"""check(): try a run for a few seconds and report problems.

The policy and the environment run only in the worker processes of a `Trial`, as in `tune`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rollout_cli.cores import usable_cores
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.errors import InterruptedRunError, PolicyError, RolloutError, as_flags
from rollout_cli.keywords import Record
from rollout_cli.options.config import CollectConfig
from rollout_cli.policies.explore import ExploringSource
from rollout_cli.policies.recorded import RecordedSource
from rollout_cli.progress import Progress
from rollout_cli.run.checks.episodes import ON_EPISODES, Recorded
from rollout_cli.run.checks.objects import Finding
from rollout_cli.run.checks.trial import Trial, rate_of
from rollout_cli.samplers.plan import NO_END, MinTimesteps
from rollout_cli.samplers.sampler import Sampler

if TYPE_CHECKING:
    from rollout_cli.dataset.metadata import DatasetSummary

MOST_STEPS = 20_000
_EPISODES = 3
"""Maximum steps and minimum episodes of the first trial run."""
_SHARE = 0.2  # Of a process's time limit, for the first trial run.
_MOST_BYTES = 128 << 20  # Of observations and actions.
_UNTIMED_STEPS = 2_000  # Steps to run if no step was timed.


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The findings of `check` and the expected costs of the run.

    Attributes:
        findings: Findings by the name of the check; an empty sequence if the check passed.
        costs: Time and bytes of a step and of the run, see `_costs`; empty if no episode ended.
        seconds: Wall time of the check.
        strict: Whether warnings count as failures.
    """

    findings: Mapping[str, Sequence[Finding]]
    costs: Mapping[str, float]
    seconds: float
    strict: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether any check failed."""
        failures = ("fail", "warn") if self.strict else ("fail",)
        return any(finding.status in failures for entries in self.findings.values() for finding in entries)

    def document(self) -> Record:
        """Return the report for JSON, with an entry for each finding and for each check that passed."""
        checks = [
            {"check": name, **asdict(finding), "change": as_flags(finding.change)}
            for name, entries in self.findings.items()
            for finding in entries or [Finding("ok", "")]
        ]
        return {"passed": not self.has_failed, "checks": checks, "costs": self.costs, "seconds": self.seconds}

    def rows(self) -> dict[str, str]:
        """Return the `costs` as strings with units; they must not be empty."""
        costs = self.costs
        return {
            "speed": f"{costs['steps_per_second']:,.0f} steps/s with one worker",
            "a step": f"{costs['step_bytes']:,.0f} bytes in memory, {costs['step_disk_bytes']:,.0f} on disk",
            "the run": f"{costs['steps']:,.0f} steps: {costs['minutes']:,.1f} minutes, "
            f"{costs['megabytes']:,.1f} MB",
        }


def check(
    config: CollectConfig, *, seconds: float = 60.0, strict: bool = False, progress: Progress | None = None
) -> CheckReport:
    """Try a run in a few processes, and return the report.

    Args:
        config: The run, as for `collect`. No dataset is written.
        seconds: Time limit of each process, in seconds.
        strict: True to count warnings as failures.
        progress: Receives the trial runs' progress; None for none.

    Returns:
        A report with `has_failed`, `findings` by the name of the check, and the expected `costs`.

    Raises:
        RolloutError: If the policy or the environment cannot be found. Other problems are in the report.

    Example:
        >>> report = rollout_cli.check(rollout_cli.CollectConfig(timesteps=1000, seed=0))
        >>> report.has_failed
        False
    """
    began = time.monotonic()
    trial = Trial.of(config, progress or Progress(), seconds)
    findings = dict[str, Sequence[Finding]]()
    costs = dict[str, float]()
    n_steps = _UNTIMED_STEPS
    try:
        if config.vectorization == "sync":  # A native vector environment may not have a single form.
            seen = trial.inspected(looks=True)
            findings |= seen["findings"]
            if seen["rate"]:
                n_steps = min(
                    MOST_STEPS, _MOST_BYTES // seen["step_bytes"], int(_SHARE * seconds * seen["rate"])
                )
        try:
            recorded = _recorded(trial, max(_EPISODES, n_steps))
        except PolicyError as error:
            clipped = replace(trial, config=replace(trial.config, invalid_action="clip"))
            recorded = _recorded(clipped, max(_EPISODES, n_steps))
            # Clipping helped: an action was outside its space. The other checks continue.
            findings["actions"] = [Finding("fail", error.message, error.marked_hint, error.details)]
        costs = _costs(config, recorded)
        for name, look in ON_EPISODES.items():
            findings[name] = [*look(recorded)]
    except InterruptedRunError:
        findings["running"] = [
            Finding(
                "fail",
                f"policy and environment did not start and end an episode within {seconds:g} s",
                "find what blocks, or allow more time: {seconds=…}",
            )
        ]
    except RolloutError as error:
        findings["running"] = [Finding("fail", error.message, error.marked_hint, error.details)]
    return CheckReport(findings, costs, time.monotonic() - began, strict)


def _recorded(trial: Trial, n_steps: int) -> Recorded:
    """Run the first episodes, of about `n_steps` steps in all, with one worker, and return them."""
    # A native vector environment resets its rows by itself, so episodes cannot be truncated.
    limit = None if trial.config.vectorization == "native" else n_steps // _EPISODES
    with trial.running(limit=limit) as sampler:
        began = time.monotonic()
        source = trial.policy.source if isinstance(trial.policy, ExploringSource) else trial.policy
        stop = len(source.steps) if isinstance(source, RecordedSource) else NO_END
        chunks = [*sampler.stream(MinTimesteps(n_steps, stop=stop))]
        seconds = time.monotonic() - began
        report = sampler.report
        if not chunks:
            raise InterruptedRunError(
                "the check was stopped before any episode ended", code="no-episode-ended"
            )
        chunk = concatenate(chunks)
        if chunk.n_episodes == stop:  # The recording has no more episodes.
            n_steps = chunk.n_steps
        summary = _written(sampler, chunk)
        if report.compiles and (rate := rate_of(sampler, _SHARE * trial.seconds / 4)):
            seconds = chunk.n_steps / rate  # The first steps waited for the compiler.
        return Recorded(trial, sampler.env_spec, report, limit, n_steps, chunk, summary, seconds)


def _written(sampler: Sampler, chunk: Chunk) -> DatasetSummary:
    """Write episodes to a dataset in a temporary folder, and return its summary."""
    from rollout_cli.dataset.folder import OutputFolder  # noqa: PLC0415 - these import pyarrow
    from rollout_cli.dataset.metadata import DatasetSettings  # noqa: PLC0415
    from rollout_cli.dataset.writer import DatasetWriter  # noqa: PLC0415

    settings = DatasetSettings(sampler.env_spec, [{"root_seed": sampler.seed}])
    with (
        tempfile.TemporaryDirectory(prefix="rollout-check-") as folder,
        DatasetWriter(OutputFolder(Path(folder, "dataset")), settings) as writer,
    ):
        writer.write(chunk)
        return writer.close(status="complete")


def _costs(config: CollectConfig, recorded: Recorded) -> dict[str, float]:
    """Return the expected time and bytes of a step and of the run, if all cores are equally fast."""
    chunk = recorded.chunk
    rate = recorded.chunk.n_steps / recorded.seconds
    pace = rate * min(config.workers, usable_cores())
    ends = (
        config.timesteps,
        config.episodes and len(config.shard_numbers) * chunk.lengths.mean(),
        config.max_time and config.max_time * pace,
    )
    steps = float(min(filter(None, ends)))
    disk_bytes = recorded.summary.bytes / chunk.n_steps
    return {
        "steps_per_second": rate,
        "step_bytes": chunk.n_bytes / chunk.n_steps,
        "step_disk_bytes": disk_bytes,
        "steps": steps,
        "minutes": steps / pace / 60,
        "megabytes": steps * disk_bytes / 1e6,
    }
