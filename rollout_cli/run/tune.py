"""tune(): find the number of workers and environments per worker that samples fastest on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from rollout_cli.errors import RolloutError, WorkerError
from rollout_cli.options.config import CollectConfig, Values
from rollout_cli.progress import Progress
from rollout_cli.run.checks.trial import Trial, rate_of
from rollout_cli.samplers.plan import EpisodesPerWorker

_READY_SECONDS = 120.0  # Time limit until every worker of a choice has ended an episode.
# Environments per worker to try.
_SYNC = (1, 4, 16, 64)
_NATIVE = (16, 64, 256, 1_024)
_JAX = (64, 256, 1_024, 4_096)
_PIECES = 10  # Episodes are truncated so that about this many of each environment end while measuring.
_HELPS = 1.1  # Doubling the workers continues while it is faster by this factor.
# The number of fastest choices that are measured several times, and how often.
_FINALISTS = 3
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Row:
    """A choice of options and its rate in steps per second; if it was not measured, 0 and the problem.

    If it was `measured` several times, the rate is the median.
    """

    options: Values
    rate: float = 0.0
    problem: str = ""
    measured: int = 1


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The measured rows, and the rate of a bare loop in steps per second; None without a single environment."""

    rows: Sequence[Row]
    bare_rate: float | None

    @property
    def fastest(self) -> Row:
        """The row with the highest rate among the rows that were measured most often."""
        return max(self.rows, key=lambda row: (row.measured, row.rate))

    def document(self) -> Values:
        """Return the result for JSON; `ratio` is a rate divided by the rate of the bare loop."""
        ratios = [row.rate / self.bare_rate if self.bare_rate else None for row in self.rows]
        rows = [{**asdict(row), "ratio": ratio} for row, ratio in zip(self.rows, ratios, strict=True)]
        return {"bare_rate": self.bare_rate, "rows": rows, "fastest": self.fastest.options}


def tune(config: CollectConfig, *, seconds: float, progress: Progress | None = None) -> TuneResult:
    """Measure choices of workers, environments per worker and vectorization, for `seconds` each.

    First choose the environments per worker, with the `workers` of `config` (by default one per core). Then
    choose the number of workers, which is doubled while that helps: workers whose environments wait can share
    a core. In a JAX environment, whose program uses all cores, the first choices have one worker. The fastest
    choices are measured three times, round-robin, and their median counts, because the rate of a machine varies
    over time by more than good choices differ.

    Raises:
        RolloutError: If the policy or the environment cannot be loaded, or no choice could be measured.
    """
    trial = Trial.of(config, progress or Progress(), _READY_SECONDS + seconds)
    bare_rate, forms = _forms(trial, seconds)

    def measure(options: Values) -> Row:
        notice = "measuring workers: {}, environments per worker: {}, vectorization: {}"
        trial.progress.notice(notice.format(*options.values()))
        return _measured(trial, options, seconds, bare_rate)

    rows = _settled([measure(form) for form in forms], measure)
    result = TuneResult(rows, bare_rate)
    n_workers = forms[0]["workers"]
    most = 1 if config.sampler == "local" else n_workers
    counts = sorted({max(1, most // 2), max(1, most - 1), most + most // 2} - {n_workers})
    more = [measure({**result.fastest.options, "workers": count}) for count in counts]
    last = result.fastest
    count = 2 * n_workers
    while last.rate and config.sampler != "local":
        more.append(measure({**last.options, "workers": count}))
        if more[-1].rate < _HELPS * last.rate:
            break
        last = more[-1]
        count = 2 * count
    result = replace(result, rows=[*rows, *_settled(more, measure)])
    if not result.fastest.rate:
        raise WorkerError(
            f"no setting could be measured; the first one failed: {result.rows[0].problem}",
            code="nothing-measured",
            hint="run `rollout check`, or measure for longer with {seconds=…}",
        )
    return result


def _settled(rows: Sequence[Row], measure: Callable[[Values], Row]) -> list[Row]:
    """Return the rows; measure the fastest again, round-robin, and give them their median rate."""
    finalists = [row for row in sorted(rows, key=lambda row: row.rate)[-_FINALISTS:] if row.rate]
    again = [[measure(row.options).rate for row in finalists] for _ in range(_ROUNDS - 1)]
    rates = zip((row.rate for row in finalists), *again, strict=True)
    medians = {
        id(row): replace(row, rate=statistics.median(measured), measured=_ROUNDS)
        for row, measured in zip(finalists, rates, strict=True)
    }
    return [medians.get(id(row), row) for row in rows]


def _forms(trial: Trial, seconds: float) -> tuple[float | None, list[Values]]:
    """Return the rate of the bare loop, and the choices of environments per worker to try."""
    config = trial.config
    bare_rate = None
    n_workers = config.workers
    counts = {"sync": _SYNC[:0], "native": _NATIVE}
    if config.vectorization == "sync":
        seen = trial.inspected(looks=False, bare_seconds=seconds)
        bare_rate = seen["rate"] or None
        is_plain = config.worker_class is None and seen["is_batched"]
        has_native = (
            is_plain
            and seen["has_native"]
            and not (config.fresh_env or config.wrapper)
            and not config.require_reproducible  # Episodes after an autoreset have no seed.
        )
        is_jax = seen["is_jax"]
        n_workers = 1 if is_jax else n_workers
        counts = {
            "sync": (_JAX if is_jax else _SYNC) if is_plain else _SYNC[:0],
            "native": _NATIVE if has_native else _NATIVE[:0],
        }
    counts[config.vectorization] = (*sorted({*counts[config.vectorization], config.envs_per_worker}),)
    return bare_rate, [
        {"workers": n_workers, "envs_per_worker": count, "vectorization": name}
        for name in ("sync", "native")
        for count in counts[name]
    ]


def _measured(trial: Trial, options: Values, seconds: float, bare_rate: float | None) -> Row:
    """Measure a choice, and return it with its rate or its problem."""
    limit = None
    n_envs = options["envs_per_worker"]
    if bare_rate and options["vectorization"] == "sync":  # A native environment resets its rows by itself.
        limit = max(1, int(bare_rate * seconds / _PIECES / n_envs))
    try:
        where = {name: getattr(trial.config, name) for name in ("sampler", "ray_address")}
        with trial.running(limit=limit, **where, **options) as sampler:
            for _ in sampler.stream(EpisodesPerWorker(n_envs)):
                pass  # Warm-up: every worker ends an episode.
            rate = rate_of(sampler, seconds)
    except RolloutError as error:
        return Row(options, problem=error.message)
    return Row(options, rate or 0.0, problem="" if rate else "too few episodes ended")
