"""Seeds follow from (root, number, stream); the global generators get them and go back to the caller."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.seeding.seeds import (
    SETUP,
    BorrowedGenerators,
    SharedGenerators,
    derive_seed,
    env_seed,
    env_seeds,
    seed_globals,
)

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None

ROOTS = st.integers(0, 2**70)
NUMBERS = st.integers(0, 2**62)


def draws() -> tuple[float, ...]:
    """Return one number of each global generator; torch is one of them where it is installed."""
    return random.random(), float(np.random.random()), *([float(torch.rand(()))] if torch else [])


class User:
    """Has states of the global generators."""


def test_users_of_shared_generators_have_their_own_states() -> None:
    """Each continues where it stopped, and a forgotten one is not kept."""
    shared = SharedGenerators()
    users = [User(), User()]
    for user in users:
        shared.use(user)
        seed_globals(3, 4)
    expected = [draws() for _ in range(4)]
    seed_globals(3, 4)
    for turn in expected:
        for user in users:
            shared.use(user)
            assert turn == draws()
    references = [*map(weakref.ref, users)]
    for user in users:
        shared.forget(user)
    del user, users
    shared.use(User())
    assert [None, None] == [reference() for reference in references]


def test_seeds_are_fixed_for_ever() -> None:
    """Another version of the code must not change recorded episodes: these are the values of format 1."""
    assert [1326375400, 3226043263, 112706139] == [env_seed(0, number) for number in range(3)]
    assert 16313789544435170627 == derive_seed(0, 0, "policy")
    assert 11435261255560034837 == derive_seed(7, SETUP, "random")


@given(ROOTS, NUMBERS, st.sampled_from(["env", "policy", "policy.0"]))
def test_derived_seeds_differ_by_each_part(root: int, number: int, stream: str) -> None:
    """Root, number and stream all count, and a seed has 64 bits."""
    seed = derive_seed(root, number, stream)
    assert 0 <= seed < 2**64
    assert seed not in [derive_seed(root + 1, number, stream), derive_seed(root, number + 1, stream)]
    assert seed not in [derive_seed(root, number, "x"), derive_seed(root, SETUP, stream)]


@given(ROOTS, st.lists(NUMBERS, max_size=20))
def test_seeds_of_an_array_are_those_of_its_numbers(root: int, numbers: list[int]) -> None:
    """Numbers of any epochs of 2**32, in any order."""
    assert [env_seed(root, number) for number in numbers] == env_seeds(
        root, np.array(numbers, np.int64)
    ).tolist()


@pytest.mark.thorough
def test_no_two_episodes_share_an_env_seed() -> None:
    """They are a permutation of 32 bits: 200,000 of them, from anywhere, are 200,000."""
    for first in (0, 2**31, 2**32 - 200_000):
        seeds = env_seeds(5, np.arange(first, first + 200_000))
        assert 200_000 == len(np.unique(seeds))
        assert 0 <= seeds.min() <= seeds.max() < 2**32


def test_env_seeds_look_random() -> None:
    """Neighbouring numbers and roots share about half of their bits."""
    seeds = env_seeds(0, np.arange(10_000))
    for others in (np.roll(seeds, 1), env_seeds(1, np.arange(10_000))):
        assert 0.49 < np.unpackbits((seeds ^ others).astype(np.uint32).view(np.uint8)).mean() < 0.51


def test_global_generators_follow_from_root_and_number() -> None:
    """Equal ones give equal draws of random, numpy and torch; other ones others."""
    seen = {}
    for root, number in ((1, 2), (1, 3), (2, 2), (1, SETUP)):
        seed_globals(root, number)
        seen[root, number] = draws()
        seed_globals(root, number)
        assert seen[root, number] == draws()
    assert 4 * len(draws()) == len({value for values in seen.values() for value in values})


def test_torch_is_neither_needed_nor_imported() -> None:
    """Where it is not loaded, or a module of that name is the user's, only the others are seeded."""
    code = (
        "import sys, types; from rollout_cli.seeding.seeds import *; seed_globals(1, 2);"
        "assert 'torch' not in sys.modules;"
        "sys.modules['torch'] = types.ModuleType('torch'); seed_globals(1, 2); import random; print(random.random())"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    seed_globals(1, 2)
    assert repr(random.random()) == ran.stdout.strip()


def _draw_and_fail(seen: list[Any]) -> None:
    seen.append(draws())
    raise ZeroDivisionError


def test_a_borrower_changes_nothing_for_the_caller() -> None:
    """The caller's draws are those without the borrower; the borrower's follow one another over its visits."""
    seed_globals(0, 0)
    expected = [draws() for _ in range(3)]
    seed_globals(9, 9)
    borrowers = [draws() for _ in range(3)]
    borrowed = BorrowedGenerators()
    seed_globals(0, 0)
    seen, theirs = [draws()], []
    with borrowed:
        seed_globals(9, 9)
        theirs.append(draws())
    seen.append(draws())
    with pytest.raises(ZeroDivisionError), borrowed:
        _draw_and_fail(theirs)
    seen.append(draws())
    with borrowed:
        theirs.append(draws())
    assert expected == seen
    assert borrowers == theirs
