"""Intervals hold the true value as often as they say, and equal what is known of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from rollout_cli.episodes import intervals
from rollout_cli.episodes.intervals import Interval, improvement, interquartile_mean, mean, wilson
from tests.helpers.thorough import usually

Draw = Callable[[np.random.Generator, int], np.ndarray]
RETURNS: dict[str, tuple[Draw, float]] = {
    "Student's t, three degrees of freedom": (lambda rng, n: rng.standard_t(3, n), 0.0),
    "Laplace": (lambda rng, n: rng.laplace(3.0, 100.0, n), 3.0),
    "two values": (lambda rng, n: rng.choice([0.0, 500.0], n), 250.0),
    "exponential": (lambda rng, n: rng.exponential(1.0, n), 1.0),
}
"""How returns are drawn, and their mean; the first two have heavy tails."""


def share_that_holds(truth: float, intervals_of: Callable[[np.random.Generator, int], Interval]) -> float:
    """Return how many of 2,000 intervals, of 20 to 200 episodes each, hold the truth."""
    rng = np.random.default_rng(0)
    found = [intervals_of(rng, int(rng.integers(20, 201))) for _ in range(2_000)]
    return float(np.mean([interval.low <= truth <= interval.high for interval in found]))


@pytest.mark.parametrize("name", usually(RETURNS, "Student's t, three degrees of freedom".__eq__))
def test_means_are_held(name: str) -> None:
    draw, truth = RETURNS[name]
    assert 0.93 <= share_that_holds(truth, lambda rng, n: mean(draw(rng, n))) <= 0.97


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Student's t, three degrees of freedom", "Laplace"])
def test_interquartile_means_are_held(name: str) -> None:
    """Of symmetric distributions, whose interquartile mean is the mean."""
    draw, truth = RETURNS[name]
    assert 0.93 <= share_that_holds(truth, lambda rng, n: interquartile_mean(draw(rng, n))) <= 0.97


@pytest.mark.parametrize("rate", [0.02, 0.5, 0.98])
def test_rates_are_held(rate: float) -> None:
    assert 0.93 <= share_that_holds(rate, lambda rng, n: wilson(rng.binomial(n, rate), n)) <= 0.97


def test_a_paired_difference_is_known_better() -> None:
    """Most of the variation is that of the episodes, which both policies share."""
    rng = np.random.default_rng(0)
    episodes = 100 * rng.standard_normal(100)
    first = episodes + rng.standard_normal(100)
    second = episodes + 2 + rng.standard_normal(100)
    paired = mean(second - first)
    alone = [mean(first), mean(second)]
    assert paired.low <= 2 <= paired.high
    unpaired = math.hypot(*(interval.high - interval.low for interval in alone))
    assert paired.high - paired.low < unpaired / 20
    assert paired.value == pytest.approx(alone[1].value - alone[0].value, rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 101, 10_000, 10_001])
def test_an_interquartile_mean_is_that_of_the_middle(n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n)
    middle = sorted(values)[n // 4 : n - n // 4]
    interval = interquartile_mean(values)
    assert interval.value == pytest.approx(math.fsum(middle) / len(middle), abs=1e-12)
    assert n == 1 or interval.low < interval.value < interval.high


@pytest.mark.parametrize("estimate", [mean, interquartile_mean])
def test_many_values_have_the_interval_of_the_bootstrap(
    estimate: Callable[[np.ndarray], Interval], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(1).exponential(1.0, 10_001)
    fast = estimate(values)
    monkeypatch.setattr(intervals, "_MOST_RESAMPLED", 20_000)
    monkeypatch.setattr(intervals, "_RESAMPLES", 400)
    resampled = estimate(values)
    assert fast.value == resampled.value
    assert fast.high - fast.low == pytest.approx(resampled.high - resampled.low, rel=0.15)


def test_few_values_are_expanded() -> None:
    """Ten values have an interval about as wide as Student's t, not as the percentiles of resampled means."""
    values = np.arange(10.0)
    half = 2.262 * values.std(ddof=1) / math.sqrt(10)
    interval = mean(values)
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.06)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # By the formula of the article, to four digits, as other programs print them.
    [(0, 10, 0.0, 0.2775), (8, 10, 0.4902, 0.9433), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962)],
)
def test_wilson_gives_what_is_published(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson(successes, n)
    assert (successes / n, low, high) == pytest.approx(
        (interval.value, interval.low, interval.high), abs=5e-5
    )


def test_an_improvement_counts_ties_half() -> None:
    interval = improvement(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 2.0, 3.0, 1.0]))
    assert (0.5, True) == (interval.value, interval.low < 0.5 < interval.high)


@pytest.mark.parametrize(
    ("values", "value"),
    [([], math.nan), ([5.0], 5.0), ([1.0, math.nan], math.nan), ([1.0, math.inf], math.inf)],
)
def test_without_enough_finite_values_there_is_no_interval(values: list[float], value: float) -> None:
    for estimate in (mean, interquartile_mean):
        interval = estimate(np.array(values))
        assert (interval.value, interval.low, interval.high) == pytest.approx(
            (value, math.nan, math.nan), nan_ok=True
        )


def test_equal_values_have_an_interval_of_equal_ends() -> None:
    assert Interval(7.0, 7.0, 7.0) == mean(np.full(50, 7.0))


def test_the_same_values_have_the_same_interval() -> None:
    values = np.random.default_rng(2).standard_normal(50)
    assert mean(values) == mean(values.copy())


def test_a_scale_keeps_the_shape() -> None:
    assert Interval(0.5, 0.25, 1.0) == Interval(20.0, 15.0, 30.0).scaled(10, 30)
