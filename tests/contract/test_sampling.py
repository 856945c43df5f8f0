"""What a sampler gives: the plan's episodes, in order, the same from every backend and any number of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.chunk import PART_BYTES
from rollout_cli.envs import describe_env
from rollout_cli.episode_batch import EpisodeBatch
from rollout_cli.errors import InternalError
from rollout_cli.samplers import (
    Episodes,
    EpisodesPerWorker,
    LocalSampler,
    MinTimesteps,
    MultiprocessingSampler,
    Sampler,
)
from rollout_cli.workers import WorkerFactory
from tests.contract.conftest import BACKENDS, MakeSampler, sampler_of
from tests.contract.making import assert_same_batches, noisy, numbers_of, serial, serial_batch, shares, slow_env
from tests.support.envs import ChainEnv, DictEnv, EndlessEnv, LateInfoEnv, SpaceEnv, TextEnv
from tests.support.policies import OwnGeneratorPolicy, RecurrentPolicy


def test_obtain_samples_is_the_shortest_prefix(make_sampler: MakeSampler) -> None:
    """The batch reaches the steps asked for with its last episode and not without it, and equals the serial run."""
    batch = make_sampler(noisy(ChainEnv()), ChainEnv()).obtain_samples(0, 200, None)
    assert list(range(len(batch))) == batch.numbers.tolist()
    assert batch.lengths[:-1].sum() < 200 <= batch.lengths.sum()
    assert_same_batches(serial_batch(200, ChainEnv()), batch)


@pytest.mark.parametrize("n_workers", [1, 2, 5])
@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
def test_any_number_of_workers_gives_the_same_episodes(make_sampler: MakeSampler, backend: str, n_workers: int) -> None:
    """With 1, 2 and 5 workers, each of which ran at least two of them, the episodes are those of the serial run."""
    sampler = make_sampler(noisy(slow_env()), slow_env(), n_workers=n_workers, seed=5)
    sampler.wait_until_started()
    chunks = list(sampler.stream(MinTimesteps(400)))
    expected = EpisodeBatch.from_chunks(sampler.env_spec, [serial(MinTimesteps(400), slow_env())])
    assert_same_batches(expected, EpisodeBatch.from_chunks(sampler.env_spec, chunks))
    if backend != "local":
        assert set(range(n_workers)) == {worker for worker, episodes in shares(chunks).items() if episodes >= 2}


KINDS: list[tuple[Callable[[], Any], Any]] = [
    (DictEnv, OwnGeneratorPolicy),
    (LateInfoEnv, RecurrentPolicy),
    (TextEnv, lambda spec: lambda observation: "abc"),
]


@pytest.mark.parametrize(("env", "policy"), KINDS)
def test_every_kind_of_data_comes_through(make_sampler: MakeSampler, env: Callable[[], Any], policy: Any) -> None:
    """Trees, texts, infos that only some steps have, and policies with a state of their own are the same everywhere."""
    made = policy(describe_env(env()))
    batch = make_sampler(made, env()).obtain_samples(0, 150, None)
    assert_same_batches(serial_batch(150, env(), made), batch)


def test_exact_episodes_come_in_the_order_of_the_workers(make_sampler: MakeSampler) -> None:
    """Each worker gives its own range, no episode more, and the batch has them in the order of the workers."""
    sampler = make_sampler(noisy(ChainEnv()), ChainEnv(), n_workers=3, seed=5)
    batch = sampler.obtain_exact_episodes(4, None)
    assert list(range(12)) == batch.numbers.tolist()
    expected = serial(Episodes(0, 12), ChainEnv())
    assert expected.rewards.tolist() == batch.rewards.tolist()


def test_exact_episodes_are_run_by_their_own_worker(make_sampler: MakeSampler) -> None:
    """Numbers w * k to (w + 1) * k - 1 come from worker w, and each worker's chunks are in order."""
    sampler = make_sampler(noisy(ChainEnv()), ChainEnv(), n_workers=3, seed=5)
    chunks = list(sampler.stream(EpisodesPerWorker(5)))
    owners = {int(n): int(w) for chunk in chunks for n, w in zip(chunk.numbers, chunk.workers, strict=True)}
    assert {number: number // 5 for number in range(15)} == owners
    for worker in range(3):
        own = [number for number in numbers_of(chunks) if owners[number] == worker]
        assert list(range(5 * worker, 5 * worker + 5)) == own


def test_a_range_of_episodes_is_cut_from_the_same_run(make_sampler: MakeSampler) -> None:
    """`Episodes(a, b)` gives episodes a to b - 1 as a run from the beginning has them."""
    chunks = list(make_sampler(noisy(ChainEnv()), ChainEnv()).stream(Episodes(4, 9)))
    assert list(range(4, 9)) == numbers_of(chunks)
    whole = serial(Episodes(0, 9), ChainEnv())
    assert whole.episodes(4, 9).rewards.tolist() == [reward for chunk in chunks for reward in chunk.rewards.tolist()]


def test_starting_is_enough_to_know_the_environment(make_sampler: MakeSampler) -> None:
    """Before the first call nothing is known; once a worker has started, its spaces and classes are."""
    sampler = make_sampler(noisy(ChainEnv()), ChainEnv())
    with pytest.raises(InternalError, match="no worker has built the environment yet"):
        _ = sampler.env_spec
    sampler.start_worker()
    spec = sampler.wait_until_started()
    assert spec == describe_env(ChainEnv()) == sampler.env_spec
    assert "tests.support.policies.GlobalNoisePolicy" == sampler.facts["policy_class"]


def test_episodes_are_truncated_at_the_limit(make_sampler: MakeSampler) -> None:
    """`max_episode_length` reaches the workers."""
    sampler = make_sampler(noisy(EndlessEnv()), EndlessEnv(), max_episode_length=7)
    batch = sampler.obtain_samples(0, 20, None)
    assert ([7, 7, 7], [True] * 3) == (batch.lengths.tolist(), batch.truncated.tolist())


class LargeEnv(SpaceEnv):
    """Observations of a megabyte: an episode of 20 steps is over the size that travels in one piece."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(0, 255, (1 << 20,), np.uint8))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._left = 20 if (seed or 0) % 2 else 2
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return self._observe(), 0.0, self._left == 0, False, {"left": self._left}

    def _observe(self) -> Any:
        return np.full(1 << 20, self._left, np.uint8)


def test_large_episodes_travel_in_parts(make_sampler: MakeSampler) -> None:
    """An episode over the limit comes in parts, in order, and is whole in a batch."""
    sampler = make_sampler(lambda observation: 1, LargeEnv())
    chunks = list(sampler.stream(Episodes(0, 6)))
    assert any(chunk.part is not None for chunk in chunks)
    assert all(chunk.n_bytes <= 1.2 * PART_BYTES for chunk in chunks)
    assert list(range(6)) == list(dict.fromkeys(numbers_of(chunks)))
    batch = EpisodeBatch.from_chunks(sampler.env_spec, chunks)
    lefts = [left for length in batch.lengths.tolist() for left in range(length, 0, -1)]
    assert {2, 20} == set(batch.lengths.tolist())
    assert lefts == batch.observations[:, 0].tolist() == batch.observations[:, -1].tolist()
    assert [left - 1 for left in lefts] == batch.env_infos["left"].tolist()
    assert 6 == sampler.next_number
    assert int(batch.lengths.sum()) == sampler.total_env_steps


def test_in_order_of_arrival_nothing_waits(make_sampler: MakeSampler) -> None:
    """`arrival` gives at least the steps asked for; no number comes twice."""
    chunks = list(make_sampler(noisy(ChainEnv()), ChainEnv()).stream(MinTimesteps(150), order="arrival"))
    numbers = numbers_of(chunks)
    assert sum(chunk.n_steps for chunk in chunks) >= 150
    assert len(numbers) == len(set(numbers))


# -- one a worker ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("plan", "first"), [(MinTimesteps(60), 0), (Episodes(3, 12), 3), (Episodes(5, 6), 5)])
def test_lists_give_every_number_its_worker(make_sampler: MakeSampler, plan: Any, first: int) -> None:
    """With one policy a worker, episode i is worker i % n_workers', wherever the plan begins, and in order."""
    agents = [_constant(0), _constant(1)]
    chunks = list(make_sampler(agents, ChainEnv()).stream(plan))
    numbers = numbers_of(chunks)
    assert list(range(first, first + len(numbers))) == numbers
    for chunk in chunks:
        assert (chunk.numbers % 2).tolist() == chunk.workers.tolist()
        actions = np.repeat(chunk.numbers % 2, chunk.lengths)
        assert actions.tolist() == chunk.actions[0].tolist()


def _constant(action: int) -> Callable[[Any], int]:
    return lambda observation: action


def test_one_environment_a_worker(make_sampler: MakeSampler) -> None:
    """With one environment a worker, each worker's episodes are those of its own."""
    sampler = make_sampler(_constant(1), [ChainEnv("terminated"), ChainEnv("truncated")])
    batch = sampler.obtain_exact_episodes(3, None)
    assert [True] * 3 + [False] * 3 == batch.terminated.tolist()


@pytest.mark.parametrize("entries", [0, 1, 3])
def test_lists_of_another_length_are_refused(backend: str, entries: int) -> None:
    """Policies, environments and updates come one a worker, or the call is refused."""
    with pytest.raises(ValueError, match=f"2 entries, not {entries}"):
        sampler_of(backend, [_constant(1)] * entries, ChainEnv())
    with pytest.raises(ValueError, match=f"2 entries, not {entries}"):
        sampler_of(backend, _constant(1), [ChainEnv()] * entries)
    sampler = sampler_of(backend, _constant(1), ChainEnv())
    with pytest.raises(ValueError, match=f"2 entries, not {entries}"):
        sampler.obtain_samples(0, 10, [_constant(1)] * entries)
    with pytest.raises(ValueError, match=f"2 entries, not {entries}"):
        sampler.obtain_exact_episodes(1, None, [ChainEnv()] * entries)


# -- ways to make one --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LocalSampler, MultiprocessingSampler])
def test_three_ways_to_give_the_factory(kind: type[Sampler]) -> None:
    """By keyword, first (the older order), or through `from_worker_factory`: the sampler is the same."""
    factory = WorkerFactory(n_workers=3, seed=8, max_episode_length=9)
    agent, env = _constant(1), ChainEnv()
    made = [
        kind(agent, env, worker_factory=factory),
        kind(factory, agent, env),
        kind.from_worker_factory(factory, agent, env),
    ]
    assert [(3, 8)] * 3 == [(sampler.n_workers, sampler.seed) for sampler in made]


def test_steps_must_be_asked_for(make_sampler: MakeSampler) -> None:
    """Nothing is no number of steps or episodes."""
    sampler = make_sampler(_constant(1), ChainEnv())
    with pytest.raises(ValueError, match="timesteps is 0, must be at least 1"):
        sampler.obtain_samples(0, 0, None)
    with pytest.raises(ValueError, match="episodes is 0, must be at least 1"):
        sampler.obtain_exact_episodes(0, None)
