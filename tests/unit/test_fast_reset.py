"""Prepared seeds give the generators that numpy and gymnasium give, bit for bit."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils import seeding
from hypothesis import example, given
from hypothesis import strategies as st

from rollout_cli import fast_reset
from rollout_cli.fast_reset import prepare_seeds, seed_sequence_words

plain_np_random = seeding.np_random


@pytest.fixture
def installed() -> Iterator[None]:
    """Let gymnasium use prepared seeds."""
    assert fast_reset.install()
    yield
    fast_reset.uninstall()


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=8))
@example([0])
@example([2**32 - 1, 2**32, 2**63 - 1, 2**64 - 1])
def test_words_are_those_of_seed_sequence(seeds: list[int]) -> None:
    """For every seed of up to 64 bits, the four words are what numpy's SeedSequence generates."""
    expected = [np.random.SeedSequence(seed).generate_state(4, np.uint64).tolist() for seed in seeds]
    assert expected == seed_sequence_words(seeds).tolist()


def test_prepared_generators_are_the_plain_ones(installed: None) -> None:
    """A generator from a prepared seed has the plain one's state and seed, and draws alike; so does any other seed."""
    seeds = [5, 2**40 + 3, 0, 2**63 - 1]
    prepare_seeds(seeds)
    for seed in [*seeds, 77]:
        (expected, plain_seed), (generator, given_seed) = plain_np_random(seed), seeding.np_random(seed)
        assert (plain_seed, expected.bit_generator.state) == (given_seed, generator.bit_generator.state)
        assert expected.normal(size=5).tolist() == generator.normal(size=5).tolist()


def test_prepared_words_are_used_once(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was prepared is not hashed again, and the second use of a seed goes the plain way."""
    asked: list[int | None] = []

    def watched(seed: int | None = None) -> Any:
        asked.append(seed)
        return plain_np_random(seed)

    monkeypatch.setattr(fast_reset, "_plain_np_random", watched)
    prepare_seeds([1, 2])
    states = [seeding.np_random(seed)[0].bit_generator.state for seed in (1, 1, 2)]
    assert ([1], states[0]) == (asked, states[1])


def test_without_a_seed_generators_differ(installed: None) -> None:
    """None still means entropy of the system."""
    assert seeding.np_random(None)[0].random() != seeding.np_random(None)[0].random()


def test_children_are_those_of_the_plain_generator(installed: None) -> None:
    """Generators that are spawned, in several calls, are the plain ones', and so is what a copy spawns next."""
    prepare_seeds([3, 4])
    expected, generator = plain_np_random(3)[0], seeding.np_random(3)[0]
    for _ in range(2):
        pairs = zip(expected.spawn(2), generator.spawn(2), strict=True)
        assert all(one.random() == other.random() for one, other in pairs)
    for again in (copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        assert copy.deepcopy(expected).spawn(1)[0].random() == again.spawn(1)[0].random()


def test_its_seed_sequence_answers_like_the_real_one(installed: None) -> None:
    """Entropy, pool and states of other sizes are numpy's."""
    prepare_seeds([3, 4])
    sequence: Any = seeding.np_random(3)[0].bit_generator.seed_seq
    real = np.random.SeedSequence(3)
    assert (3, real.pool.tolist()) == (sequence.entropy, sequence.pool.tolist())
    assert real.generate_state(7).tolist() == sequence.generate_state(7).tolist()
    assert real.generate_state(4, np.uint64).tolist() == sequence.generate_state(4, np.uint64).tolist()


def test_a_pickled_generator_needs_nothing_of_ours(installed: None) -> None:
    """Where this package is not imported, a pickled generator loads and draws on."""
    prepare_seeds([3, 4])
    generator = seeding.np_random(3)[0]
    generator.random()
    program = (
        "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1])).random(), 'rollout_cli' in sys.modules)"
    )
    words = [sys.executable, "-c", program, pickle.dumps(generator).hex()]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert [str(generator.random()), "False"] == printed


def test_environments_reset_alike(installed: None) -> None:
    """An environment's episodes are those that it has without prepared seeds."""
    env = gymnasium.make("CartPole-v1")
    seeds = [2**62 + number for number in range(4)]
    prepare_seeds(seeds)
    prepared = [env.reset(seed=seed)[0].tolist() for seed in seeds]
    fast_reset.uninstall()
    assert prepared == [env.reset(seed=seed)[0].tolist() for seed in seeds]
    env.close()


def test_installing_twice_and_taking_away() -> None:
    """Twice is once; afterwards gymnasium has its own function back, and nothing is prepared for it."""
    assert fast_reset.install()
    assert fast_reset.install()
    assert plain_np_random is not seeding.np_random
    fast_reset.uninstall()
    assert plain_np_random is seeding.np_random
    fast_reset._prepared.clear()
    prepare_seeds([1, 2, 3])
    assert {} == fast_reset._prepared


@pytest.mark.parametrize("fault", ["other words", "no such argument"])
def test_where_numpy_differs_it_is_left_alone(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the trial shows other generators, or numpy takes no words, gymnasium keeps its own function."""

    def faulty(seed: int, words: Any) -> Any:
        if fault == "other words":
            return np.random.PCG64(seed + 1)
        raise TypeError("SeedSequence expected")

    monkeypatch.setattr(fast_reset, "_pcg64", faulty)
    assert not fast_reset.install()
    assert plain_np_random is seeding.np_random
