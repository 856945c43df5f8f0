"""Intervals: how closely N episodes determine a mean, an interquartile mean, or a rate of success.

Each function returns an estimate and its 95 % interval. docs/evaluate.md says what they mean, and when they fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rollout_cli.episodes.spaces import Array

_TAIL = 0.025  # The probability below the interval, and above it.
_Z = NormalDist().inv_cdf(1 - _TAIL)
_RESAMPLES = 2_000
_BLOCK = 1 << 20  # Values that are drawn at a time.
_MOST_RESAMPLED = 10_000  # From here on, the bootstrap and the normal distribution give the same interval.


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % interval, in the unit of the values; the ends are nan for fewer than two values.

    Example:
        >>> evaluation = rollout_cli.evaluate("random", episodes=20, seed=0, sampler="local")
        >>> print(evaluation.results[0].mean)
        24.05 (19.7 to 28.3)
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.6g} ({self.low:.6g} to {self.high:.6g})"

    def scaled(self, zero: float, one: float) -> Interval:
        """Return the interval on a scale on which `zero` is 0 and `one`, which is greater, is 1."""
        return Interval(*((number - zero) / (one - zero) for number in (self.value, self.low, self.high)))


def mean(values: Array) -> Interval:
    """Return the mean of values (N,), with the interval of the bootstrap.

    Source of the method: T. Hesterberg, "What Teachers Should Know About the Bootstrap", The American
    Statistician 69 (2015): percentiles of resampled means, expanded for few values.
    """
    return _estimate(values, 0)


def interquartile_mean(values: Array) -> Interval:
    """Return the mean of values (N,) without the lowest and the highest N // 4, with the interval of the bootstrap.

    Source: R. Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
    NeurIPS 2021. With the `values` of one policy, it is the mean of the typical half of the episodes.
    """
    return _estimate(values, len(values) // 4)


def wilson(successes: float, n: int) -> Interval:
    """Return the rate of successes among n trials, with Wilson's score interval.

    Source: E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", Journal of
    the American Statistical Association 22 (1927). It has a width also if all trials, or none, succeed.
    """
    if not n:
        return Interval(math.nan, math.nan, math.nan)
    center = (successes + _Z**2 / 2) / (n + _Z**2)
    half = _Z / (n + _Z**2) * math.sqrt(successes * (n - successes) / n + _Z**2 / 4)
    return Interval(successes / n, max(0.0, center - half), min(1.0, center + half))


def improvement(first: Array, second: Array) -> Interval:
    """Return the probability that an episode of the second policy has a higher return than the same of the first.

    `first` and `second` are the returns of the same episodes, (N,). A tie counts half. The interval is
    Wilson's, which is wider than necessary if there are ties.
    """
    return wilson(float((second > first).sum() + (second == first).sum() / 2), len(first))


def _estimate(values: Array, cut: int) -> Interval:
    """Return the mean without the `cut` lowest and highest values, and its interval."""
    n = len(values)
    if not n:
        return Interval(math.nan, math.nan, math.nan)

    def statistic(rows: Array) -> Array:
        kept = np.sort(rows, axis=-1)[..., cut : n - cut] if cut else rows
        return np.asarray(kept.mean(axis=-1))

    with np.errstate(all="ignore"):  # Returns may be nan or infinite; then so is the estimate.
        value = float(statistic(values))
        if n == 1 or not math.isfinite(value):
            return Interval(value, math.nan, math.nan)
        if n > _MOST_RESAMPLED:
            half = _Z * _standard_error(values, cut)
            return Interval(value, value - half, value + half)
        tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * _t_quantile(n - 1))
        low, high = np.quantile(_resampled(values, statistic), [tail, 1 - tail]).tolist()
    return Interval(value, low, high)


def _resampled(values: Array, statistic: Callable[[Array], Array]) -> Array:
    """Return the statistic of samples drawn with replacement, always the same ones for the same values."""
    generator = np.random.Generator(np.random.PCG64(0))
    n = len(values)
    most = max(1, _BLOCK // n)
    results = []
    for start in range(0, _RESAMPLES, most):
        shape = (min(most, _RESAMPLES - start), n)
        results.append(statistic(values[generator.integers(0, n, shape)]))
    return np.concatenate(results)


def _standard_error(values: Array, cut: int) -> float:
    """Return the standard error of a mean without the `cut` lowest and highest values.

    Source: J. W. Tukey and D. H. McLaughlin, Sankhya A 25 (1963): the deviation of the values, in which those
    that are cut are replaced by the nearest that is not.
    """
    n = len(values)
    ordered = np.sort(values)
    deviation = np.clip(values, ordered[cut], ordered[n - 1 - cut]).std(ddof=1)
    return float(deviation / ((1 - 2 * cut / n) * math.sqrt(n)))


def _t_quantile(freedom: int) -> float:
    """Return the upper quantile of Student's t distribution with this number of degrees of freedom.

    Source of the series: M. Abramowitz and I. Stegun, Handbook of Mathematical Functions, 26.7.5; it is exact
    to 1 % from two degrees of freedom on.
    """
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, 1)))
