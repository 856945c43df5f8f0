"""Calls of one sampler: each goes on where the one before ended, however that ended."""

from __future__ import annotations

import pickle

import pytest

from rollout_cli.errors import UsageError
from rollout_cli.samplers import Episodes, MinTimesteps
from tests.contract.conftest import MakeSampler, running_workers, sampler_of
from tests.contract.making import assert_same_batches, noisy, numbers_of, serial, slow_env
from tests.support.envs import ChainEnv
from tests.support.policies import LinearPolicy


def test_two_calls_share_no_seed(make_sampler: MakeSampler) -> None:
    """A call goes on where the one before ended: its numbers follow, and no seed is used twice."""
    sampler = make_sampler(noisy(ChainEnv()), ChainEnv())
    first = sampler.obtain_samples(0, 100, None)
    exact = sampler.obtain_exact_episodes(3, None)
    last = sampler.obtain_samples(1, 100, None)
    numbers = [*first.numbers.tolist(), *exact.numbers.tolist(), *last.numbers.tolist()]
    assert list(range(len(numbers))) == numbers
    assert len(numbers) == len({*first.seeds.tolist(), *exact.seeds.tolist(), *last.seeds.tolist()})
    assert len(numbers) == sampler.next_number
    assert sum(int(batch.lengths.sum()) for batch in (first, exact, last)) == sampler.total_env_steps


def test_known_numbers_can_be_run_again(make_sampler: MakeSampler) -> None:
    """With `base`, a stream repeats episodes bit for bit, and the numbering goes on from the highest."""
    sampler = make_sampler(noisy(ChainEnv()), ChainEnv())
    first = sampler.obtain_samples(0, 100, None)
    again = list(sampler.stream(Episodes(2, 5), base=0))
    assert [2, 3, 4] == numbers_of(again)
    rewards = [reward for batch in first.split()[2:5] for reward in batch.rewards.tolist()]
    assert rewards == [reward for chunk in again for reward in chunk.rewards.tolist()]
    assert len(first) == sampler.next_number


def test_a_stream_that_is_closed_early_is_over(make_sampler: MakeSampler) -> None:
    """Closing a stream ends its run; the next call begins after the highest number that was handed on."""
    sampler = make_sampler(noisy(slow_env()), slow_env())
    stream = sampler.stream(MinTimesteps(100_000))
    taken = numbers_of([next(stream)])
    stream.close()
    batch = sampler.obtain_samples(0, 50, None)
    assert list(range(len(taken))) == taken
    assert list(range(len(taken), len(taken) + len(batch))) == batch.numbers.tolist()
    whole = serial(Episodes(0, len(taken) + len(batch)), slow_env())
    assert whole.episodes(len(taken), whole.n_episodes).rewards.tolist() == batch.rewards.tolist()


def test_a_stream_that_was_overtaken_says_so(make_sampler: MakeSampler) -> None:
    """A sampler runs one call at a time: going on with an older stream is an error, and the newer call is whole."""
    sampler = make_sampler(noisy(slow_env()), slow_env())
    older = sampler.stream(MinTimesteps(100_000))
    first = next(older)
    batch = sampler.obtain_samples(0, 50, None)
    with pytest.raises(UsageError, match="overtaken by a later call"):
        next(older)
    assert first.n_episodes == batch.numbers[0]
    again = sampler.obtain_samples(0, 50, None)
    assert batch.numbers[-1] + 1 == again.numbers[0]


def test_asked_to_stop_a_stream_ends_with_a_prefix(make_sampler: MakeSampler) -> None:
    """`request_stop` ends the stream that runs with what is finished in order; the next call is not affected."""
    sampler = make_sampler(noisy(slow_env()), slow_env())
    chunks = []
    for chunk in sampler.stream(MinTimesteps(100_000)):
        chunks.append(chunk)
        sampler.request_stop()
    assert list(range(len(numbers_of(chunks)))) == numbers_of(chunks)
    assert len(numbers_of(chunks)) > 0
    assert 50 <= sampler.obtain_samples(0, 50, None).lengths.sum() < 60


def test_a_pickled_sampler_goes_on_where_the_first_one_stood(make_sampler: MakeSampler) -> None:
    """A copy keeps numbering, seed and every update; its workers are its own."""
    policy = noisy(ChainEnv(), LinearPolicy)
    sampler = make_sampler(policy, ChainEnv())
    sampler.obtain_samples(0, 60, {"gain": 0.3})
    with pickle.loads(pickle.dumps(sampler)) as copy:
        assert (sampler.next_number, sampler.total_env_steps) == (copy.next_number, copy.total_env_steps)
        theirs = copy.obtain_samples(1, 60, None)
    ours = sampler.obtain_samples(1, 60, None)
    assert_same_batches(ours, theirs)
    without_update = serial(Episodes(int(ours.numbers[0]), int(ours.numbers[-1]) + 1), ChainEnv(), policy)
    assert without_update.lengths.tolist() == ours.lengths.tolist()
    assert without_update.agent_infos.to_arrays()["place"].tolist() != ours.agent_infos["place"].tolist()


def test_leaving_the_block_ends_the_workers(backend: str) -> None:
    """A `with` block ends with no worker left; a call after it starts new ones."""
    with sampler_of(backend, noisy(ChainEnv()), ChainEnv()) as sampler:
        first = sampler.obtain_samples(0, 50, None)
        assert (0 if backend == "local" else 2) == len(running_workers())
    assert [] == running_workers()
    second = sampler.obtain_samples(0, 50, None)
    sampler.shutdown_worker()
    assert [] == running_workers()
    assert first.numbers[-1] + 1 == second.numbers[0]


def test_shutting_down_in_the_middle_of_a_stream(make_sampler: MakeSampler) -> None:
    """A stream whose workers were shut down can be closed; the sampler works again."""
    sampler = make_sampler(noisy(slow_env()), slow_env())
    stream = sampler.stream(MinTimesteps(100_000))
    next(stream)
    sampler.shutdown_worker()
    stream.close()
    assert 50 <= sampler.obtain_samples(0, 50, None).lengths.sum() < 60
