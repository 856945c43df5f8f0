"""NativeVecWorker: rows that can be seeded run the episodes of one environment alone, and others are told."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_cli.chunk import concatenate
from rollout_cli.policies.random import RandomPolicy
from rollout_cli.seeding import derive_seed
from tests.support import envs, vector_envs
from tests.support.policies import LinearPolicy, RecurrentPolicy
from tests.unit.workers.making import SEED, assert_same_episodes
from tests.unit.workers.making_native import DISABLED, Make, check_chain, default, native, run

pytestmark = pytest.mark.usefixtures("small_blocks")

TWINS: dict[str, tuple[Any, Any]] = {
    "chain": (vector_envs.chain, envs.ChainEnv),
    "both flags": (vector_envs.both_flags, envs.BothFlagsEnv),
    "dictionary": (vector_envs.dictionary, envs.DictEnv),
}


@pytest.mark.parametrize("policy", [LinearPolicy, lambda spec: RandomPolicy(spec.action_space), RecurrentPolicy])
@pytest.mark.parametrize("twin", ["chain", "both flags"])
@pytest.mark.parametrize("n_envs", [1, 3, 8])
def test_rows_that_can_be_seeded_run_the_episodes_of_one_environment(twin: str, policy: Make, n_envs: int) -> None:
    """Observations, actions, infos, flags and seeds are bit for bit those of DefaultWorker in one environment."""
    vector, single = TWINS[twin]
    expected = run(default(single(), policy), range(20))
    actual = run(native(vector(n_envs, DISABLED), policy, n_envs=n_envs), range(20))
    assert_same_episodes(expected, actual)


def test_dict_observations() -> None:
    """Dict observations and actions are columns like any other."""
    policy: Make = lambda spec: RandomPolicy(spec.action_space)  # noqa: E731
    expected = run(default(envs.DictEnv(), policy), range(10))
    actual = run(native(vector_envs.dictionary(3, DISABLED), policy), range(10))
    assert_same_episodes(expected, actual)


def test_text_observations() -> None:
    """Texts are recorded too, though no array of numbers holds them."""
    policy: Make = lambda spec: RandomPolicy(spec.action_space)  # noqa: E731
    expected = run(default(envs.TextEnv(), policy), range(6))
    actual = run(native(vector_envs.text(3, DISABLED), policy), range(6))
    assert_same_episodes(expected, actual)


def test_episodes_depend_on_number_and_width_alone() -> None:
    """Whatever ran before, and in which order numbers came, episode i is the same."""
    whole = run(native(vector_envs.chain(4, DISABLED), n_envs=4), range(24))
    worker = native(vector_envs.chain(4, DISABLED), n_envs=4, worker=1)
    worker.assign(range(12, 24))
    worker.advance(-1.0)
    worker.retract(above=15)
    late = run(worker, [8, 9, 10, 11, 16])
    numbers = [*range(8, 17)]
    assert numbers == late.numbers.tolist()
    expected = concatenate([whole.episodes(number, number + 1) for number in numbers])
    assert_same_episodes(expected, late)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_number_has_its_row(stride: int) -> None:
    """Number i runs in row i % n_envs of the worker's own numbers, whatever order numbers come in."""
    worker = native(vector_envs.chain(4, DISABLED), n_envs=4)
    worker.number_stride = stride
    worker.assign([9 * stride, 5 * stride])
    worker.assign([stride, 2 * stride])
    worker.advance(-1.0)
    running = worker._the_stepper().episodes.numbers
    finished = set(worker.finished_numbers)
    assert running[1] == stride or stride in finished
    assert running[2] == 2 * stride or 2 * stride in finished
    assert [-1, -1] == running[[0, 3]].tolist()


def test_a_limit_truncates_single_rows() -> None:
    """The worker's own limit truncates a row, as it does for DefaultWorker; a last step that also ends keeps both."""
    expected = run(default(envs.ChainEnv(), limit=5), range(20))
    actual = run(native(vector_envs.chain(3, DISABLED), limit=5), range(20))
    assert_same_episodes(expected, actual)
    assert expected.truncated.any()
    assert (expected.terminated & expected.truncated).any()


def test_seeds_of_selected_rows() -> None:
    """One that takes a seed of 31 bits for each row that is reset is reproducible, and those seeds are told."""
    one = run(native(vector_envs.SeedsOfSelectedRows(4), n_envs=4), range(16))
    worker = native(vector_envs.SeedsOfSelectedRows(4), n_envs=4)
    assert worker.not_reproducible is None
    assert_same_episodes(one, run(worker, range(16), steps=3))
    assert [derive_seed(SEED, number, "env") >> 32 for number in range(16)] == one.seeds.tolist()


def test_rows_that_cannot_be_seeded_are_told() -> None:
    """An environment that resets rows but takes no seeds for them runs, and its episodes are not reproducible."""
    worker = native(vector_envs.UnseededRows(3))
    chunk = run(worker, range(9))
    assert "cannot be seeded" in worker.facts()["not_reproducible"]
    assert list(range(9)) == chunk.numbers.tolist()
    assert [-1] * 9 == chunk.seeds.tolist()
    check_chain(chunk)
