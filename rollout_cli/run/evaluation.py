"""Evaluation: the returns of several policies in the same episodes, and what they say about the policies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from rollout_cli.episodes import intervals
from rollout_cli.episodes.intervals import Interval
from rollout_cli.episodes.notebook import html_table
from rollout_cli.episodes.spaces import Array
from rollout_cli.keywords import Record
from rollout_cli.reports.charts import Ranges


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """What the episodes say about one policy; intervals are 95 % intervals.

    Attributes:
        policy: The SPEC of the policy, or its name.
        checkpoint: The number in the file's name, such as the steps of training; None without a pattern.
        episodes: Number of episodes; skipped episodes do not count.
        mean: The mean return.
        median: The median return.
        interquartile_mean: The mean return of the middle half of the episodes.
        length: The mean length in steps.
        success: The rate of successful episodes; None if the environment does not say.
        score: The normalized score, 100 times (mean - low) / (high - low) of `normalize`; None without it.
        difference: The mean difference to the first policy's returns in the same episodes; None for the first.
        improvement: The probability that an episode's return is higher than with the first policy; None for the
            first.
        path: The dataset with the episodes; None if it was not requested.

    Example:
        >>> evaluation = rollout_cli.evaluate(["constant:0", "random"], episodes=20, seed=0, sampler="local")
        >>> print(evaluation.results[1].improvement)
        1 (0.838875 to 1)
    """

    policy: str
    checkpoint: int | None
    episodes: int
    mean: Interval
    median: float
    interquartile_mean: Interval
    length: float
    success: Interval | None
    score: Interval | None
    difference: Interval | None
    improvement: Interval | None
    path: Path | None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of `evaluate`: P policies in the same N episodes.

    Attributes:
        env: The environment.
        seed: The root seed, which decides the episodes.
        policies: The SPECs of the policies, or their names.
        checkpoints: The number in each file's name; None for a policy without one.
        numbers: The numbers of the episodes, int64 (N,).
        returns: float64 (P, N); nan for skipped episodes.
        lengths: Steps, int64 (P, N); 0 for skipped episodes.
        success: The expression that decides about success; empty if the environment does not say.
        successes: bool (P, N).
        references: The mean returns with the normalized scores 0 and 100; None without `normalize`.
        paths: The datasets; empty if none was requested.

    Example:
        >>> evaluation = rollout_cli.evaluate(["constant:0", "random"], episodes=20, seed=0, sampler="local")
        >>> evaluation.policies, evaluation.returns.shape
        (('constant:0', 'random'), (2, 20))
    """

    env: str
    seed: int
    policies: tuple[str, ...]
    checkpoints: tuple[int | None, ...]
    numbers: Array
    returns: Array
    lengths: Array
    success: str
    successes: Array
    references: tuple[float, float] | None
    paths: tuple[Path, ...]

    @cached_property
    def results(self) -> tuple[PolicyResult, ...]:
        """The results of the policies, in order."""
        return tuple(map(self._result, range(len(self.policies))))

    def _result(self, place: int) -> PolicyResult:
        has_run = self.lengths[place] > 0
        returns = self.returns[place, has_run]
        mean = intervals.mean(returns)
        difference = improvement = None
        if place:
            in_both = has_run & (self.lengths[0] > 0)
            first = self.returns[0, in_both]
            second = self.returns[place, in_both]
            with np.errstate(invalid="ignore"):  # Both may be infinite.
                difference = intervals.mean(second - first)
            improvement = intervals.improvement(first, second)
        success = None
        if self.success:
            success = intervals.wilson(int(self.successes[place, has_run].sum()), len(returns))
        score = None
        if self.references is not None:
            low, high = self.references
            score = mean.scaled(low, low + (high - low) / 100)
        return PolicyResult(
            policy=self.policies[place],
            checkpoint=self.checkpoints[place],
            episodes=len(returns),
            mean=mean,
            median=float(np.median(returns)) if len(returns) else math.nan,
            interquartile_mean=intervals.interquartile_mean(returns),
            length=float(self.lengths[place, has_run].mean()) if len(returns) else math.nan,
            success=success,
            score=score,
            difference=difference,
            improvement=improvement,
            path=self.paths[place] if self.paths else None,
        )

    def to_rows(self) -> list[Record]:
        """Return a flat dictionary a policy, for `pandas.DataFrame`: an interval is three columns.

        Example:
            >>> evaluation = rollout_cli.evaluate("random", episodes=5, seed=0, sampler="local")
            >>> evaluation.to_rows()[0]["mean"]
            21.6
        """
        return [dict(_flat(result)) for result in self.results]

    def document(self) -> Record:
        """Return the evaluation for JSON, with the return and length of every episode."""
        results = [asdict(result) for result in self.results]
        for result in results:
            result["path"] = None if result["path"] is None else str(result["path"])
        arrays = {"numbers": self.numbers, "returns": self.returns, "lengths": self.lengths}
        if self.success:
            arrays["successes"] = self.successes
        return {
            "env": self.env,
            "seed": self.seed,
            "success": self.success,
            "references": self.references,
            "policies": results,
            "episodes": {name: array.tolist() for name, array in arrays.items()},
        }

    def curve(self) -> Ranges:
        """Return the chart of the mean returns with their intervals: a learning curve, if there are checkpoints."""
        is_curve = None not in self.checkpoints
        x = "checkpoint" if is_curve else "policy"
        places = []
        labels = []
        ends = []
        for place, result in enumerate(self.results):
            mean = result.mean
            if not math.isfinite(mean.value):
                continue
            has_interval = math.isfinite(mean.low)
            ends.append((mean.low, mean.value, mean.high) if has_interval else [mean.value] * 3)
            places.append(place if result.checkpoint is None or not is_curve else result.checkpoint)
            labels.append(f"{places[-1]:,}" if is_curve else result.policy)
        title = f"{self.env}: mean return in {len(self.numbers):,} episodes"
        note = f"by {x}: mean and its 95 % interval"
        rows = np.array(ends).reshape(-1, 3)
        return Ranges(title, note, labels, rows, is_curve, places, x=x, y="mean return")

    def _repr_html_(self) -> str:
        rows: Mapping[str, object] = {result.policy: str(result.mean) for result in self.results}
        return html_table("Evaluation", rows)


def _flat(result: PolicyResult) -> Iterator[tuple[str, object]]:
    for field in fields(result):
        value = getattr(result, field.name)
        if isinstance(value, Interval):
            yield field.name, value.value
            yield f"{field.name}_low", value.low
            yield f"{field.name}_high", value.high
        else:
            yield field.name, value
