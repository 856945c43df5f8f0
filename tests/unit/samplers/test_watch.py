"""Watch: what workers note tells who is stuck, and nobody else is taken for it."""

from __future__ import annotations

import pytest

from rollout_cli.black_box import BOX_BYTES, NONE, BlackBox, Noted
from rollout_cli.samplers.watch import Watch

LIMIT = 0.85
"""With looks every tenth of a second, the tenth one finds what takes longer."""


def looks(watch: Watch, *noted: Noted, every: float = 0.1) -> list[tuple[int, ...] | None]:
    """Return, of looks at one worker after another, the episodes that were overdue; None where nothing was."""
    found = [watch.look(0, one, at * every) for at, one in enumerate(noted)]
    return [None if overdue is None else overdue.episodes for overdue in found]


def at_work(beats: int, *begun: int) -> Noted:
    return Noted(beats, busy=True, begun=begun)


def test_a_step_that_takes_too_long_is_seen() -> None:
    """A worker that notes the same thing for longer than the limit is stuck in a step."""
    watch = Watch(step_timeout=LIMIT, episode_timeout=None)
    assert [*[None] * 9, ()] == looks(watch, *[at_work(7, 3)] * 10)


def test_a_worker_that_goes_on_is_not_stuck() -> None:
    """Each turn, and each episode, is a sign of life."""
    watch = Watch(step_timeout=LIMIT, episode_timeout=None)
    alive = [at_work(look // 8, 3 + look // 12) for look in range(40)]
    assert [None] * 40 == looks(watch, *alive)


def test_a_worker_that_waits_is_not_stuck() -> None:
    """One that has nothing to do, or that nobody takes the episodes of, notes nothing for as long as it likes."""
    watch = Watch(step_timeout=LIMIT, episode_timeout=LIMIT)
    assert [None] * 40 == looks(watch, *[Noted(7, busy=False, begun=(3,))] * 40)


def test_an_episode_that_takes_too_long_is_seen() -> None:
    """However much its worker is alive; only those that ran for so long are."""
    watch = Watch(step_timeout=None, episode_timeout=LIMIT)
    noted = [at_work(look, 3, 4 + look // 5) for look in range(10)]
    assert [*[None] * 9, (3,)] == looks(watch, *noted)


def test_what_stopped_together_is_overdue_together() -> None:
    """Where a step of all rows never returns, nobody can tell whose it was."""
    watch = Watch(step_timeout=None, episode_timeout=LIMIT)
    assert (3, 4) == looks(watch, *[at_work(0, 3, 4)] * 10)[-1]


def test_who_was_not_looked_at_for_long_is_not_judged_by_that() -> None:
    """The sampler may have been busy elsewhere; a step may have begun and ended meanwhile any number of times."""
    watch = Watch(step_timeout=1.0, episode_timeout=1.0)
    assert [None, None, None] == looks(watch, *[at_work(0, 3)] * 3, every=100.0)


def test_a_worker_that_was_started_again_is_a_new_one() -> None:
    """What its predecessor noted says nothing of it."""
    watch = Watch(step_timeout=LIMIT, episode_timeout=None)
    looks(watch, *[at_work(0, 3)] * 8)
    watch.forget(0)
    assert [None] * 8 == looks(watch, *[at_work(0, 3)] * 8)


@pytest.mark.parametrize(
    ("limits", "tick"), [((None, None), None), ((8.0, 0.8), 0.1), ((0.01, None), 0.02), ((60, 90), 1)]
)
def test_the_shorter_limit_says_how_often_to_look(
    limits: tuple[float | None, float | None], tick: float | None
) -> None:
    """Without a limit nobody looks."""
    watch = Watch(*limits)
    assert tick == watch.tick
    assert (tick is not None) == watch.is_due(0, 0.0)


def test_a_box_tells_what_runs() -> None:
    """Rows that run nothing are left out; of a box without rows, or with too many, nothing is told."""
    memory = bytearray(BOX_BYTES)
    box = BlackBox(memory)
    assert Noted(0, busy=False, begun=None) == Noted.of(bytes(memory))
    notes = [box.new_row() for _ in range(3)]
    box.begin_turn()
    notes[0](17)
    notes[2](5)
    assert Noted(1, busy=True, begun=(17, 5)) == Noted.of(bytes(memory))
    notes[0](NONE)
    box.end_turn()
    assert Noted(1, busy=False, begun=(5,)) == Noted.of(bytes(memory))
    for _ in range(BOX_BYTES // 8):
        box.new_row()(1)
    assert None is Noted.of(bytes(memory)).begun
    box.forget_rows()
    box.new_row()(9)
    assert (9,) == Noted.of(bytes(memory)).begun


def test_a_table_lies_in_the_box() -> None:
    """Its first row is what runs; one that is too large lies elsewhere, and nothing is told."""
    memory = bytearray(BOX_BYTES)
    box = BlackBox(memory)
    table = box.table(4, 100)
    table[:] = [[NONE], [8], [9], [10]]
    table[0, [3, 70]] = 11, 12
    assert (11, 12) == Noted.of(bytes(memory)).begun
    large = box.table(4, BOX_BYTES)
    large[0, 0] = 5
    assert None is Noted.of(bytes(memory)).begun
