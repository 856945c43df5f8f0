"""check(), the use case: whether a run will go well. Policy and environment run in worker processes alone.

These are the workers of a Trial, which `tune` has too.
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
from rollout_cli.run.checks.trial import Trial
from rollout_cli.samplers.plan import NO_END, MinTimesteps
from rollout_cli.samplers.sampler import Sampler

if TYPE_CHECKING:
    from rollout_cli.dataset.metadata import DatasetSummary

MOST_STEPS = 20_000
_EPISODES = 3
"""So many steps are run first, as so many episodes at least."""
_SHARE = 0.2  # Of a process's time, for these.
# Of observations and actions; where no step was timed.
_MOST_BYTES = 128 << 20
_UNTIMED_STEPS = 2_000


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was found.

    Attributes:
        findings: By the name of the check; none where all is well.
        costs: What a step and the run take, see `_costs`; empty where no episode ended.
        seconds: What the check took.
        strict: Whether a warning is a failure.
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
        """Return the report as JSON holds it: an entry for each finding, and for a check without any."""
        checks = [
            {"check": name, **asdict(finding), "change": as_flags(finding.change)}
            for name, entries in self.findings.items()
            for finding in entries or [Finding("ok", "")]
        ]
        return {"passed": not self.has_failed, "checks": checks, "costs": self.costs, "seconds": self.seconds}

    def rows(self) -> dict[str, str]:
        """Return the `costs`, where there are any, as people read them."""
        costs = self.costs
        return {
            "speed": f"{costs['steps_per_second']:,.0f} steps/s with one worker",
            "a step": f"{costs['step_bytes']:,.0f} bytes in memory, {costs['step_disk_bytes']:,.0f} on disk",
            "the run": f"{costs['steps']:,.0f} steps: {costs['minutes']:,.1f} minutes, "
            f"{costs['megabytes']:,.1f} MB",
        }


def check(
    config: CollectConfig, *, seconds: float, strict: bool = False, progress: Progress | None = None
) -> CheckReport:
    """Look at what a run would do, in a few processes that get so many seconds each.

    Raises:
        RolloutError: If policy or environment cannot be found. All else that is wrong with them is reported.
    """
    began = time.monotonic()
    trial = Trial.of(config, progress or Progress(), seconds)
    findings = dict[str, Sequence[Finding]]()
    costs = dict[str, float]()
    n_steps = _UNTIMED_STEPS
    try:
        if config.vectorization == "sync":  # There may be no single environment else.
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
            # So it was an action outside of its space, which hides nothing else.
            findings["actions"] = [Finding("fail", error.message, error.marked_hint, error.details)]
        costs = _costs(config, recorded)
        for name, look in ON_EPISODES.items():
            findings[name] = [*look(recorded)]
    except InterruptedRunError:
        findings["running"] = [
            Finding(
                "fail",
                f"policy and environment were not ready, or ended no episode, within {seconds:g} s",
                "find what blocks, or give more time: {seconds=…}",
            )
        ]
    except RolloutError as error:
        findings["running"] = [Finding("fail", error.message, error.marked_hint, error.details)]
    return CheckReport(findings, costs, time.monotonic() - began, strict)


def _recorded(trial: Trial, n_steps: int) -> Recorded:
    """Run the first episodes, of about so many steps, with one worker."""
    # Native rows cannot be cut.
    limit = None if trial.config.vectorization == "native" else n_steps // _EPISODES
    with trial.running(limit=limit) as sampler:
        began = time.monotonic()
        source = trial.policy.source if isinstance(trial.policy, ExploringSource) else trial.policy
        stop = len(source.steps) if isinstance(source, RecordedSource) else NO_END
        chunks = [*sampler.stream(MinTimesteps(n_steps, stop=stop))]
        seconds = time.monotonic() - began
        if not chunks:
            raise InterruptedRunError("no episode ended", code="no-episode-ended")
        chunk = concatenate(chunks)
        if chunk.n_episodes == stop:  # There are no more.
            n_steps = chunk.n_steps
        summary = _written(sampler, chunk)
        return Recorded(trial, sampler.env_spec, sampler.report, limit, n_steps, chunk, summary, seconds)


def _written(sampler: Sampler, chunk: Chunk) -> DatasetSummary:
    """Write episodes to a dataset in a temporary folder, and return what it held."""
    from rollout_cli.dataset.folder import OutputFolder  # noqa: PLC0415 - these load pyarrow
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
    """Return what a step and the run take, if each core is as fast as this one."""
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
