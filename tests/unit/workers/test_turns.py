"""GeneratorTurn: each row finds shared generators where it left them, of whatever kind they are."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rollout_cli.seeding import seed_global_generators
from rollout_cli.sleepers import GlobalSeeder
from rollout_cli.workers.turns import GeneratorTurn, share_out

KINDS: list[tuple[Callable[[], Any], Callable[[Any], float]]] = [
    (lambda: np.random.default_rng(1), lambda rng: float(rng.random())),
    (lambda: np.random.Generator(np.random.Philox(1)), lambda rng: float(rng.random())),
    (lambda: np.random.RandomState(1), lambda rng: float(rng.normal())),
    (lambda: np.random.RandomState(np.random.PCG64(1)), lambda rng: float(rng.normal())),
    (lambda: random.Random(1), lambda rng: float(rng.gauss(0, 1))),
]


@pytest.mark.parametrize(("make", "draw"), KINDS)
def test_rows_take_turns(make: Callable[[], Any], draw: Callable[[Any], float]) -> None:
    """Two rows that draw by turns draw what each would draw alone, from the state it began its episode with."""
    shared, own = make(), make()
    turns = [GeneratorTurn(GlobalSeeder(0)) for _ in range(2)]
    share_out(turns, [[shared, own], [shared]])
    assert ([[shared], [shared]], True) == ([turn.shared for turn in turns], turns[0].is_needed)
    start = [make(), make()]
    for turn, alone in zip(turns, start, strict=True):
        with turn:
            draw(shared)
        draw(alone)
    # The second row's first turn began where the first one's ended.
    draw(start[1])
    drawn = []
    for at in (0, 1, 1, 0, 1, 0, 0):
        with turns[at]:
            drawn.append((draw(start[at]), draw(shared)))
    assert [alone for alone, _ in drawn] == [together for _, together in drawn]


def test_global_generators_take_turns_once_somebody_draws() -> None:
    """Asleep they are left alone; awake, each row has its own states of both."""
    seeder = GlobalSeeder(0)
    turns = [GeneratorTurn(seeder) for _ in range(2)]
    share_out(turns, [[], []])
    needed = [turns[0].is_needed]
    seeder.watch()
    random.random()
    assert seeder.woken()
    assert [False, True] == [*needed, turns[0].is_needed]
    for number, turn in enumerate(turns):
        with turn:
            seeder.begin(number)
    drawn: list[list[float]] = [[], []]
    for at in (0, 1, 1, 0, 0, 1):
        with turns[at]:
            drawn[at].append(random.random() + float(np.random.normal()))
    for number, expected in enumerate(drawn):
        seed_global_generators(0, number)
        assert expected == [random.random() + float(np.random.normal()) for _ in range(3)]


def test_a_turn_ends_where_the_row_fails() -> None:
    """What was raised passes through, and the next turn goes on behind the draws that were made."""
    shared, alone = random.Random(1), random.Random(1)
    turns = [GeneratorTurn(GlobalSeeder(0)) for _ in range(2)]
    share_out(turns, [[shared], [shared]])
    with pytest.raises(KeyError, match="after a draw"):
        _draw_and_fail(turns[0], shared)
    with turns[1]:
        shared.random()
    alone.random()
    with turns[0]:
        assert alone.random() == shared.random()


def _draw_and_fail(turn: GeneratorTurn, shared: random.Random) -> None:
    with turn:
        shared.random()
        raise KeyError("after a draw")


def test_other_generators_begin_anew() -> None:
    """What a row left of the generators it shared before is no state for those it shares now."""
    old, new = random.Random(1), np.random.default_rng(1)
    turns = [GeneratorTurn(GlobalSeeder(0)) for _ in range(2)]
    share_out(turns, [[old], [old]])
    with turns[0]:
        old.random()
    share_out(turns, [[new], [new]])
    with turns[0]:
        assert np.random.default_rng(1).random() == new.random()
