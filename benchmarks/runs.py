"""Measures cases one after the other, tells how far it is, and goes on after one that fails."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from itertools import groupby

from benchmarks.cases.comparison import Comparison, measure_together, unique_sides
from benchmarks.results import Case, Result
from benchmarks.sides import Settings
from benchmarks.usage import CommandError

Batch = tuple[Case, ...]
"""Cases that are measured in the same rounds; most are alone."""


def batches(cases: Sequence[Case]) -> list[Batch]:
    """Return the cases, those together that name the same batch and follow on each other."""
    groups = groupby(enumerate(cases), key=lambda numbered: _batch(numbered[1]) or numbered[0])
    return [tuple(case for _, case in group) for _, group in groups]


def _batch(case: Case) -> str:
    return case.batch if isinstance(case, Comparison) else ""


def expected(batch: Batch, settings: Settings) -> float:
    """Return about how many seconds a batch takes; what is shared counts once."""
    comparisons = [case for case in batch if isinstance(case, Comparison)]
    if len(comparisons) == len(batch):
        return sum(side.expected(settings) for side in unique_sides(comparisons))
    return sum(case.expected(settings) for case in batch)


def measure_all(cases: Sequence[Case], settings: Settings) -> Iterator[list[Result]]:
    """Measure the cases; yield the results of each batch as soon as they are there.

    First come those that cannot be run here. What fails says so in its result, and the rest goes on.
    """
    reasons = {case.name: case.missing() for case in cases}
    absent = [Result(case.name, reason=reason) for case in cases if (reason := reasons[case.name])]
    work = batches([case for case in cases if not reasons[case.name]])
    seconds = [expected(batch, settings) for batch in work]
    n_cases = len(cases) - len(absent)
    settings.say(f"{n_cases} cases, about {_minutes(sum(seconds))}; {len(absent)} cannot be run here")
    for result in absent:
        settings.say(f"{result.case}: {result.reason}")
    if absent:
        yield absent
    began = time.monotonic()
    for at, batch in enumerate(work):
        names = ", ".join(case.name for case in batch)
        settings.say(f"[{at + 1}/{len(work)}] {names}: about {_minutes(seconds[at])}")
        started = time.monotonic()
        results = measure_batch(batch, settings)
        now = time.monotonic()
        # What is left, by how the guesses fared so far.
        left = sum(seconds[at + 1 :]) * (now - began) / sum(seconds[: at + 1])
        settings.say(f"  took {now - started:.0f} s; about {_minutes(left)} to go")
        yield results


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes"


def measure_batch(batch: Batch, settings: Settings) -> list[Result]:
    """Measure the cases of a batch; where it fails, return results that say why."""
    comparisons = [case for case in batch if isinstance(case, Comparison)]
    try:
        if len(batch) > 1 and len(comparisons) == len(batch):
            return measure_together(comparisons, settings)
        return [case.measure(settings) for case in batch]
    except CommandError as error:
        reason = f"failed: {error}"
    except Exception as error:  # noqa: BLE001  An hour of other cases must not be lost to a defect in one.
        settings.say(traceback.format_exc())
        reason = f"failed: {error!r}"
    settings.say(f"  {reason}")
    return [Result(case.name, reason=reason, failed=True) for case in batch]
