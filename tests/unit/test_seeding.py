"""Seeds are pure functions, and the global generators are lent, not taken."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.seeding import (
    SETUP,
    BorrowedGenerators,
    GlobalGenerators,
    derive_seed,
    draw_root_seed,
    seed_digest,
    seed_global_generators,
)

FROM_THE_SYSTEM = -1


class TorchGenerator:
    """Stands for torch's default generator: a seed, and how often it has drawn."""

    def __init__(self) -> None:
        self.state = (0, 0)

    def manual_seed(self, seed: int) -> None:
        self.state = (seed, 0)

    def seed(self) -> None:
        self.state = (FROM_THE_SYSTEM, 0)

    def get_state(self) -> tuple[int, int]:
        return self.state

    def set_state(self, state: tuple[int, int]) -> None:
        self.state = state

    def draw(self) -> None:
        self.state = (self.state[0], self.state[1] + 1)


def load_torch(monkeypatch: pytest.MonkeyPatch) -> TorchGenerator:
    generator = TorchGenerator()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(default_generator=generator, Generator=TorchGenerator))
    return generator


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test says itself whether torch is loaded, and leaves the global generators as they were."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    before = GlobalGenerators()
    yield
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    before.restore()


def states() -> Any:
    return random.getstate(), repr(np.random.get_state())


def draw() -> tuple[float, float]:
    return random.random(), float(np.random.random())


# -- seeds ----------------------------------------------------------------------------------------------------------


def test_a_seed_is_the_first_63_bits_of_the_hash() -> None:
    """Anyone can compute it again: BLAKE2b of root/number/stream, its first 8 bytes, without the last bit."""
    by_hand = int.from_bytes(blake2b(b"7/3/env", digest_size=8).digest(), "big") // 2
    assert by_hand == derive_seed(7, 3, "env")
    assert 4048900367708210259 == derive_seed(0, 0, "env")


@given(st.integers(0), st.integers(0), st.text("abc.", max_size=5))
def test_seeds_fit_63_bits(root: int, number: int, stream: str) -> None:
    """They are not negative, fit an int64, and are the same each time."""
    seed = derive_seed(root, number, stream)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(root, number, stream)


def test_neighbouring_roots_share_no_seed() -> None:
    """Roots 0, 1 and 2 share no seed over many episodes, and no episode has the seed of another or of a build."""
    numbers: list[int | str] = [SETUP, *range(20_000)]
    seeds = {derive_seed(root, number, "env") for root in (0, 1, 2) for number in numbers}
    assert 3 * len(numbers) == len(seeds)


def test_streams_differ() -> None:
    """Each stream of an episode has its own seed, and no two triples that could read alike are taken for one."""
    triples: list[tuple[int, int | str, str]] = [
        (1, 23, "env"),
        (12, 3, "env"),
        (1, 2, "3/env"),
        (1, 23, "policy"),
        (1, 23, "policy.rng"),
        (1, SETUP, "env"),
    ]
    assert len(triples) == len({derive_seed(*triple) for triple in triples})


def test_a_longer_digest() -> None:
    """Its size is the one asked for; sizes give digests of their own."""
    assert [8, 32, 64] == [len(seed_digest(0, 0, "x", size=size)) for size in (8, 32, 64)]


def test_root_seeds_are_drawn_anew() -> None:
    """They are short enough to type, and no two of a few are alike, whatever the global generators' states."""
    drawn = []
    for _ in range(8):
        random.seed(0)
        drawn.append(draw_root_seed())
    assert all(0 <= seed < 2**32 for seed in drawn)
    assert len(set(drawn)) > 1


# -- global generators ----------------------------------------------------------------------------------------------


def test_global_generators_follow_the_episode() -> None:
    """The same root and number give the same draws; another root, number or generator gives others."""
    seen = []
    for root, number in ((0, 5), (0, 5), (0, 6), (1, 5)):
        seed_global_generators(root, number)
        seen.append(draw())
    assert seen[0] == seen[1]
    assert 3 == len({python for python, _ in seen}) == len({numpy for _, numpy in seen})


def test_global_generators_get_the_seeds_of_their_streams() -> None:
    """Python's takes 63 bits, and numpy's the upper 32 of its own."""
    seed_global_generators(7, 3)
    python = random.Random(derive_seed(7, 3, "random")).random()
    numpy = np.random.RandomState(derive_seed(7, 3, "numpy.random") // 2**31).random_sample()
    assert (python, numpy) == draw()


def test_torch_is_seeded_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its default generator gets the stream `torch`."""
    generator = load_torch(monkeypatch)
    seed_global_generators(3, 4)
    assert (derive_seed(3, 4, "torch"), 0) == generator.state


def test_borrowed_generators_come_back() -> None:
    """What draws inside a block changes nothing outside, and goes on in the next block where it was."""
    expected = _draws_in_one_go()
    random.seed(1)
    np.random.seed(1)
    before, borrowed, inside = states(), BorrowedGenerators(), []
    with borrowed:
        seed_global_generators(0, 0)
        inside.append(draw())
    assert before == states()
    outside = draw()
    random.seed(1)
    np.random.seed(1)
    assert outside == draw()
    after = states()
    with borrowed:
        inside.append(draw())
    assert after == states()
    assert expected == inside


def _draws_in_one_go() -> list[tuple[float, float]]:
    seed_global_generators(0, 0)
    return [draw(), draw()]


def test_borrowed_generators_come_back_from_a_raise() -> None:
    """An error in the block leaves the caller's states unchanged, and the borrower can go on."""
    before, borrowed = states(), BorrowedGenerators()
    with pytest.raises(ZeroDivisionError), borrowed:
        _draw_and_fail()
    assert before == states()
    with borrowed:
        assert _draws_in_one_go()[1] != draw()
    assert before == states()


def _draw_and_fail() -> None:
    seed_global_generators(0, 0)
    draw()
    raise ZeroDivisionError


def test_a_generator_that_draws_gaussians_comes_back() -> None:
    """The half-used pair of gaussians belongs to the state."""
    np.random.seed(0)
    np.random.standard_normal()
    before, borrowed = states(), BorrowedGenerators()
    with borrowed:
        np.random.standard_normal()
    assert before == states()


def test_two_borrowers_do_not_mix() -> None:
    """Each has states of its own."""
    one, two = BorrowedGenerators(), BorrowedGenerators()
    drawn: list[list[tuple[float, float]]] = [[], []]
    for number, borrowed in enumerate((one, two)):
        with borrowed:
            seed_global_generators(0, number)
    for _ in range(2):
        for number, borrowed in enumerate((one, two)):
            with borrowed:
                drawn[number].append(draw())
    for number in range(2):
        seed_global_generators(0, number)
        assert [draw(), draw()] == drawn[number]


def test_torch_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch was loaded before the block, its state is put back, and the borrower's own is kept."""
    generator = load_torch(monkeypatch)
    generator.state = (11, 2)
    borrowed = BorrowedGenerators()
    with borrowed:
        seed_global_generators(0, 0)
        generator.draw()
    assert (11, 2) == generator.state
    with borrowed:
        assert (derive_seed(0, 0, "torch"), 1) == generator.state
    assert (11, 2) == generator.state


def test_torch_loaded_inside_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller finds torch as a fresh import leaves it: with a seed from the system, not the episode's."""
    borrowed = BorrowedGenerators()
    with borrowed:
        generator = load_torch(monkeypatch)
        generator.manual_seed(5)
        generator.draw()
    assert (FROM_THE_SYSTEM, 0) == generator.state
    with borrowed:
        assert (5, 1) == generator.state
