"""`tune` tries what may be fastest, in two rounds, measures the best again, and takes the fastest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import rollout_cli.run.tune as module
from rollout_cli.errors import WorkerError
from rollout_cli.options.config import CollectConfig
from rollout_cli.progress import Progress
from rollout_cli.run.checks.trial import Trial
from rollout_cli.run.tune import Row, TuneResult, tune
from tests.helpers.errors import raises

SEEN = {"rate": 1_000.0, "has_native": True, "is_batched": True, "is_jax": False}


class Machine:
    """A stand-in for the measurements: one that is fastest with so many workers and environments."""

    def __init__(self, workers: int, n_envs: int, vectorization: str = "sync") -> None:
        self._best, self.tried = (workers, n_envs, vectorization), list[tuple[Any, ...]]()

    def measured(self, trial: Trial, options: dict[str, Any], seconds: float, bare_rate: float | None) -> Row:
        workers, n_envs, vectorization = self._best
        self.tried.append((*options.values(),))
        distance = (
            abs(options["workers"] - workers) / workers + abs(options["envs_per_worker"] - n_envs) / n_envs
        )
        return Row(options, 2_000.0 / (1 + distance + (options["vectorization"] != vectorization)))


def tuned(monkeypatch: pytest.MonkeyPatch, machine: Machine, seen: Any = None, **options: Any) -> TuneResult:
    monkeypatch.setattr(module, "_measured", machine.measured)
    monkeypatch.setattr(Trial, "inspected", lambda self, **_: {**SEEN, **(seen or {})})
    return tune(CollectConfig(timesteps=1, **options), seconds=1.0)


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
@pytest.mark.parametrize("best", [(1, 1, "sync"), (1, 16, "sync"), (1, 256, "native")])
def test_the_fastest_is_found(
    monkeypatch: pytest.MonkeyPatch, cores: int, best: tuple[int, int, str]
) -> None:
    """With half of the cores, too; there are some dozen choices, and the best are measured three times."""
    machine = Machine(max(1, cores // 2), *best[1:])
    result = tuned(monkeypatch, machine, workers=cores)
    assert (max(1, cores // 2), *best[1:]) == (*result.fastest.options.values(),)
    assert max(row.rate for row in result.rows) == result.fastest.rate
    assert len(result.rows) == len(set(machine.tried)) <= 13
    counts = Counter(machine.tried)
    assert {(*row.options.values(),): row.measured for row in result.rows} == counts
    assert [3, 3, 3] == sorted(counts.values())[-3:]
    assert 3 == result.fastest.measured


class Waiting(Machine):
    """An environment that waits: workers are fast in proportion to their number, up to the best one."""

    def measured(self, trial: Trial, options: dict[str, Any], seconds: float, bare_rate: float | None) -> Row:
        self.tried.append((*options.values(),))
        return Row(options, 100.0 * min(options["workers"], self._best[0]))


def test_workers_are_doubled_as_long_as_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one a core to the number that is best, one doubling further, and a word for each choice."""
    notices = list[str]()
    monkeypatch.setattr(Progress, "notice", lambda self, text: notices.append(text))
    machine, seen = Waiting(16, 1), {"is_batched": False}
    assert 16 <= tuned(monkeypatch, machine, seen, workers=2).fastest.options["workers"]
    tried = dict.fromkeys(workers for workers, *_ in machine.tried)
    assert [2, 1, 3, 4, 8, 16, 32] == [*tried]
    assert "measuring workers: 16, environments per worker: 1, vectorization: sync" in notices
    local = Waiting(16, 1)
    tuned(monkeypatch, local, seen, workers=1, sampler="local")
    assert {1} == {workers for workers, *_ in local.tried}


def test_one_lucky_measurement_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice that looked fastest once, and is the slowest of the three when they are measured again, is not taken."""
    machine = Machine(2, 16)

    def measured(trial: Trial, options: dict[str, Any], seconds: float, bare_rate: float | None) -> Row:
        lucky = options["envs_per_worker"] == 4 and len(machine.tried) < 4
        row = machine.measured(trial, options, seconds, bare_rate)
        return replace(row, rate=9_000.0) if lucky else row

    monkeypatch.setattr(module, "_measured", measured)
    monkeypatch.setattr(Trial, "inspected", lambda self, **_: {**SEEN, "has_native": False})
    assert 16 == tune(CollectConfig(timesteps=1, workers=2), seconds=1.0).fastest.options["envs_per_worker"]


CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any], set[tuple[int, str]]]] = {
    "a policy for one observation": ({"is_batched": False}, {}, {(1, "sync")}),
    "no vector form": ({"has_native": False}, {}, {(1, "sync"), (4, "sync"), (16, "sync"), (64, "sync")}),
    "wrapped": ({}, {"wrapper": ("ClipAction",)}, {(1, "sync"), (4, "sync"), (16, "sync"), (64, "sync")}),
    "native alone": (
        {},
        {"vectorization": "native"},
        {(1, "native"), (16, "native"), (64, "native"), (256, "native"), (1_024, "native")},
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_only_what_can_run_is_tried(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Native where there is a vector form, batches where the policy takes them."""
    seen, options, expected = CHOICES[name]
    machine = Machine(1, 1)
    tuned(monkeypatch, machine, seen, workers=1, **options)
    assert expected == {tuple(choice[1:]) for choice in machine.tried}


def test_choices_that_fail_are_told() -> None:
    """Where none can be measured, the first reason is the error."""
    config = CollectConfig(
        timesteps=1,
        workers=1,
        env="tests.run.planted:World",
        env_kwargs={"fault": "raises"},
        vectorization="native",
    )
    with raises(WorkerError, "nothing-measured", "tests.run.planted:World"):
        tune(config, seconds=0.05)
