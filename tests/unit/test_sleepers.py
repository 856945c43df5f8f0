"""Generators that sleep: whoever draws from one is noticed, and seeded from then on."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_cli import sleepers
from rollout_cli.config import EpisodeRange
from rollout_cli.seeding import seed_global_generators
from rollout_cli.sleepers import GlobalSeeder, TwisterProbe, numpy_probe, python_probe
from tests.support.runs import data_hashes, episodes_by_worker, run
from tests.support.slow import LATE_EPISODES, ROOT_SEED
from tests.unit.workers.making import assert_same_episodes, make_worker, run_numbers
from tests.unit.workers.test_vec_equality import LateEnv

BLOCK = 624
Draw = Callable[[], object]


def draw_python_words(count: int) -> None:
    for _ in range(count):
        random.getrandbits(32)


def draw_numpy_words(count: int) -> None:
    np.random.randint(0, 2**32, size=count, dtype=np.uint32)


PROBES: list[tuple[Callable[[], TwisterProbe], Callable[[int], None]]] = [
    (python_probe, draw_python_words),
    (numpy_probe, draw_numpy_words),
]


@pytest.mark.parametrize("count", [1, 2, 623, 624, 625, 2 * 624, 3 * 624 + 5])
@pytest.mark.parametrize(("probe_of", "draw"), PROBES)
def test_every_draw_is_noticed(probe_of: Callable[[], TwisterProbe], draw: Callable[[int], None], count: int) -> None:
    """However many numbers are drawn, also exactly a block of 624, from a seeded state or from the middle of one."""
    probe = probe_of()
    for start in (0, 1, 100):
        seed_global_generators(7, start)
        draw(start)
        probe.rest()
        assert not probe.moved()
        draw(count)
        assert probe.works
        assert probe.moved()


DRAWS: list[Draw] = [random.random, lambda: random.gauss(0, 1), lambda: random.shuffle([1, 2, 3]), np.random.normal]


@pytest.mark.parametrize("draw", DRAWS)
def test_the_first_draw_wakes(draw: Draw) -> None:
    """It is told once; from then on every episode is seeded."""
    seeder = GlobalSeeder(3)
    seeder.watch()
    seeder.begin(0)
    assert (False, False) == (seeder.woken(), seeder.awake)
    draw()
    assert (True, False, True) == (seeder.woken(), seeder.woken(), seeder.awake)
    drawn = []
    for _ in range(2):
        seeder.begin(1)
        drawn.append((random.random(), float(np.random.random())))
        draw()
    assert drawn[0] == drawn[1]


def test_after_a_build_they_sleep_again() -> None:
    """`watch` lets them sleep; what the build drew wakes nobody."""
    seeder = GlobalSeeder(3)
    random.random()
    np.random.random()
    seeder.watch()
    assert (False, False) == (seeder.woken(), seeder.awake)


def test_a_look_can_be_excused() -> None:
    """What was drawn since a look wakes nobody, but what was drawn before it does."""
    seeder = GlobalSeeder(3)
    seeder.watch()
    before = seeder.look()
    np.random.random()
    assert before != seeder.look()
    seeder.excuse(before)
    assert not seeder.woken()
    random.random()
    before = seeder.look()
    random.random()
    seeder.excuse(before)
    assert seeder.woken()


@pytest.mark.parametrize("broken", ["place", "word", "both"])
def test_a_probe_that_looks_elsewhere_does_not_work(broken: str) -> None:
    """Where the memory is laid out in another way, the trial shows it, and every look says that it was drawn from."""
    block = (np.ones(1, np.int32), np.ones(1, np.uint32))
    right = np.random.mtrand._rand._bit_generator.ctypes.state_address
    place = block[0].ctypes.data if broken in ("place", "both") else right + 4 * BLOCK
    word = block[1].ctypes.data if broken in ("word", "both") else right + 4
    probe = TwisterProbe(place, word, np.random.seed, np.random.random)
    probe.rest()
    assert (False, True) == (probe.works, probe.moved())


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no probe work."""
    monkeypatch.setattr(TwisterProbe, "_try", lambda *_: False)


def test_without_probes_every_episode_is_seeded(blind: None) -> None:
    """Nobody can tell whether something was drawn, so nothing sleeps, and no episode is run again for it."""
    seeder = GlobalSeeder(3)
    seeder.watch()
    drawn = []
    for _ in range(2):
        seeder.begin(5)
        drawn.append((random.random(), float(np.random.random())))
        assert (False, True) == (seeder.woken(), seeder.awake)
    assert drawn[0] == drawn[1]


def test_without_probes_episodes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeding always gives what seeding from the first draw on gives."""
    expected = run_numbers(make_worker(LateEnv()), range(22))
    monkeypatch.setattr(sleepers.TwisterProbe, "_try", lambda *_: False)
    assert_same_episodes(expected, run_numbers(make_worker(LateEnv()), range(22)))


LATE = [
    ({"env": "tests.support.slow:late_draws"}, "env_infos"),
    ({"env": "tests.support.slow:chain", "policy": "tests.support.slow:LateDrawPolicy"}, "agent_infos"),
]


@pytest.mark.parametrize(("options", "infos"), LATE)
def test_a_first_draw_in_episode_37(tmp_path: Path, options: dict[str, Any], infos: str) -> None:
    """What draws in episodes 37 and 52 alone gives the same bytes with 1 worker and with 3."""
    hashes = []
    for workers in (1, 3):
        dataset = run(tmp_path / str(workers), episodes=EpisodeRange(0, 60), seed=ROOT_SEED, workers=workers, **options)
        counts = episodes_by_worker(dataset)
        assert (workers, True) == (len(counts), min(counts.values()) >= 2)
        drawn = [getattr(episode.batch, infos)["drawn"] for episode in dataset]
        assert list(LATE_EPISODES) == [number for number, values in enumerate(drawn) if np.all(values > 0)]
        hashes.append(data_hashes(tmp_path / str(workers)))
    assert hashes[0] == hashes[1]
