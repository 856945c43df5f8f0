"""VecWorker tells which generator keeps its episodes from being reproduced, and seeds by row what it can."""

from __future__ import annotations

import copy
import sys
import types
from typing import Any

import numpy as np
import pytest

from rollout_cli.envs import as_env_source
from rollout_cli.workers import VecWorker
from tests.support import envs, rows
from tests.unit.workers.making import SEED, assert_same_episodes, make_worker, run_numbers
from tests.unit.workers.making_vec import Row, make_vec


class BatchPolicy(rows.TablePolicy):
    """Draws its places from somewhere, in `get_actions` too."""


class OwnBatch(BatchPolicy):
    def __init__(self, env_spec: Any) -> None:
        super().__init__(env_spec)
        self.rng = np.random.default_rng(0)

    def place(self, observation: Any) -> float:
        return float(self.rng.random())


class GlobalBatch(BatchPolicy):
    def place(self, observation: Any) -> float:
        return float(np.random.random())


class LateBatch(OwnBatch):
    """Makes its generator when it first acts."""

    def __init__(self, env_spec: Any) -> None:
        super().__init__(env_spec)
        self.rng: Any = None

    def place(self, observation: Any) -> float:
        self.rng = self.rng or np.random.default_rng()
        return super().place(observation)


class SpaceBatch(rows.TablePolicy):
    """Draws from the action space of the first environment."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self.spec.action_space.sample(), {"place": 0}


class OwnSpaceBatch(SpaceBatch):
    """Draws from a space of its own."""

    def __init__(self, env_spec: Any) -> None:
        super().__init__(env_spec)
        self.spec = copy.deepcopy(env_spec)


class SeededBatch(OwnBatch):
    """Has a generator for each row."""

    def seed_rows(self, mask: Any, seeds: Any) -> None:
        pass


class StandInTensor:
    """A tensor as far as the state of a generator goes."""

    def __init__(self, number: int) -> None:
        self._number = number

    def numpy(self) -> Any:
        return np.array([self._number])


class StandInGenerator:
    """What torch's default generator offers, on a counter."""

    def __init__(self) -> None:
        self._number = 0

    def manual_seed(self, seed: int) -> None:
        self._number = seed

    def get_state(self) -> StandInTensor:
        return StandInTensor(self._number)

    def set_state(self, state: StandInTensor) -> None:
        self._number = int(state.numpy()[0])

    def draw(self) -> float:
        self._number = (self._number * 48271 + 11) % (2**31 - 1)
        return self._number / (2**31 - 1)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a stand-in be the torch that was imported."""
    module: Any = types.SimpleNamespace(default_generator=StandInGenerator(), Generator=StandInGenerator)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


class TorchBatch(BatchPolicy):
    def place(self, observation: Any) -> float:
        return float(sys.modules["torch"].default_generator.draw())


REASONS = [
    (OwnBatch, "policy.rng"),
    (GlobalBatch, "numpy.random"),
    (LateBatch, "policy.rng"),
    (TorchBatch, "torch"),
    (SpaceBatch, "policy.spec.action_space"),
    (OwnSpaceBatch, "policy.spec.action_space"),
]


@pytest.mark.parametrize(("policy", "generator"), REASONS)
def test_a_batch_that_draws_from_one_generator_is_told(policy: type[Any], generator: str, torch: Any) -> None:
    """Rows that share a generator cannot be reproduced; the reason names it and the two ways out."""
    worker = make_vec([Row(tag) for tag in range(3)], policy)
    run_numbers(worker, range(6))
    facts = worker.facts()
    assert facts["not_reproducible"] == worker.not_reproducible
    assert f"({generator})" in facts["not_reproducible"]
    assert "seed_rows" in facts["not_reproducible"]
    assert "one environment a worker" in facts["not_reproducible"]


@pytest.mark.parametrize(
    ("policy", "scope"),
    [(rows.TablePolicy, "n_envs"), (SeededBatch, "n_envs"), (rows.GlobalDrawPolicy, None), (rows.OwnDrawPolicy, None)],
)
def test_what_can_be_reproduced(policy: type[Any], scope: str | None) -> None:
    """A batched policy is a function of the width; a row-wise one of nothing but the number."""
    worker = make_vec([rows.GlobalDrawEnv() for _ in range(3)], policy)
    run_numbers(worker, range(6))
    assert (None, scope) == (worker.not_reproducible, worker.facts().get("scope"))


def test_an_environment_that_draws_from_its_spaces_is_no_draw_of_the_policy() -> None:
    """A policy that holds the first environment's spaces does not draw from them where the environment does."""
    worker = VecWorker(seed=SEED, max_episode_length=None, worker_number=2, n_envs=3)
    worker.update_env(as_env_source(envs.DictEnv))
    worker.update_agent(rows.TablePolicy(worker.env_spec))
    run_numbers(worker, range(9))
    assert worker.not_reproducible is None


def test_a_batch_that_draws_wakes_nobody() -> None:
    """Episodes are not run again for what their policy draws for all rows, which no seeding could make repeat."""
    made = [Row(tag) for tag in range(3)]
    run_numbers(make_vec(made, GlobalBatch), range(6))
    assert 6 == sum(env.resets for env in made)


class TorchAlone(rows.AlonePolicy):
    def place(self, observation: Any) -> float:
        return float(sys.modules["torch"].default_generator.draw())


def test_rows_that_draw_from_torch_share_nothing(torch: Any) -> None:
    """A row-wise policy that draws from torch's default generator does in each row as if it were alone."""
    expected = run_numbers(make_worker(Row(), TorchAlone), range(12))
    assert_same_episodes(expected, run_numbers(make_vec([Row() for _ in range(3)], TorchAlone), range(12)))
