"""Rows of Python environments: taking turns or stepping together, long and large episodes, and whose error it is."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from rollout_cli.envs.updates import NewEnvUpdate
from rollout_cli.errors import EnvError, EnvLoadError
from rollout_cli.memory import Frames
from rollout_cli.samplers.processes.crash_box import MOST_ROWS, CrashBox, new_box, read_notes
from rollout_cli.workers.kinds import VecWorker
from tests.helpers.contents import row_dicts
from tests.helpers.errors import raises
from tests.workers import worlds
from tests.workers.worlds import SINGLE, ChainEnv, make, run

each_single = pytest.mark.parametrize("kind", SINGLE)


class GlobalDraws(ChainEnv):
    """Draws its noise from numpy's global generator."""

    def observe(self) -> Any:
        return np.array([self._position, self.length, np.random.random()], np.float32)


class GlobalPolicy(worlds.TablePolicy):
    """Draws from numpy's global generator, too."""

    def place(self, observation: Any) -> float:
        return float(np.random.random())


def test_rows_that_take_turns_may_draw_globally() -> None:
    """One episode runs at a time, so each has the global generators for itself."""
    expected = run(make("default", GlobalDraws, GlobalPolicy), range(14))
    worlds.assert_same_episodes(expected, run(make("sync", GlobalDraws, GlobalPolicy), range(14)))
    assert "any" == make("sync", GlobalDraws, GlobalPolicy).report().scope
    assert "n_envs" == make("sync").report().scope


def test_a_step_of_rows_that_take_turns() -> None:
    """It is one step of one row; the next number begins with the step after an episode's end."""
    worker = make("sync", lambda: ChainEnv(length=2), worlds.TablePolicy)
    worker.assign([range(3)])
    worker.start_episode()
    seen = []
    while worker.has_work:
        seen.append((worker.running_numbers, worker.step_episode()))
    assert [((0,), False), ((0,), True), ((), False), ((1,), True), ((), False), ((2,), True)] == seen


@each_single
def test_long_episodes_are_kept_in_little_memory(kind: str) -> None:
    """A running episode has no object a step: 12 bytes of observations take few more."""

    class WithoutInfos(ChainEnv):
        def step(self, action: Any) -> Any:
            return (*super().step(action)[:4], {})

    worker = make(kind, lambda: WithoutInfos(length=9000), lambda spec: lambda seen: 0)
    worker.assign([range(1)])
    while not worker.running_numbers:
        worker.advance(-1.0)
    tracemalloc.start()
    for _ in range(8000):
        worker.advance(-1.0)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 8000 * 40


@each_single
def test_a_large_episode_is_a_chunk_of_its_own(kind: str) -> None:
    """Its frames are not copied into one array with others."""
    worker = make(kind, worlds.space_env("image"))
    worker.assign([range(7)])
    worlds.advance(worker)
    chunks = worker.take(everything=True)
    assert [[number] for number in range(7)] == [chunk.numbers.tolist() for chunk in chunks]
    small = make(kind)
    small.assign([range(7)])
    worlds.advance(small)
    assert [7] == [chunk.n_episodes for chunk in small.take(everything=True)]


def test_frames_keep_what_was_taken() -> None:
    """Whoever has a view keeps it, and the next episode has room for as many."""
    frames = Frames(np.dtype(np.uint8), (64, 64))
    for number in range(600):
        frames.append(np.full((64, 64), number % 256, np.uint8))
    first, last = frames[0:-1], frames[-1:]
    frames.clear()
    frames.clear()
    for _ in range(600):
        frames.append(np.zeros((64, 64), np.uint8))
    assert (599, 1, 600) == (len(first), len(last), len(frames[:]))
    assert [number % 256 for number in range(600)] == [*first[:, 5, 5].tolist(), int(last[0, 0, 0])]


def test_infos_of_a_batch_may_be_written_over() -> None:
    """A policy that fills the same arrays in each step changes no record."""

    class Reusing(worlds.BatchPolicy):
        values = np.zeros(worlds.N_ENVS)

        def get_actions(self, observations: Any) -> Any:
            self.values += 1
            return np.zeros(len(observations), np.int64), {"value": self.values, "deep": {"er": self.values}}

    chunk = run(make("sync", lambda: ChainEnv(length=4), Reusing), range(3))
    first, second = chunk.agent_infos.columns
    assert [1.0, 2.0, 3.0, 4.0] * 3 == first.values.tolist() == second.values.tolist()


class ForeignArray:
    """As a tensor with a gradient, or of bfloat16: numpy cannot have it."""

    ndim = 1

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> Any:
        if at >= self.count:
            raise IndexError(at)
        return ForeignArray(0)

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("use detach()")


@pytest.mark.parametrize("kind", worlds.RESET_FROM_OUTSIDE)
def test_infos_of_a_batch_that_cannot_be_stored(kind: str) -> None:
    """They are dropped and counted, however many rows there are; what lies under a mask is no value."""

    class Odd:
        def __init__(self, spec: Any) -> None: ...

        def get_actions(self, observations: Any) -> Any:
            n = len(observations)
            some = np.ma.MaskedArray(np.ones((n, 2)), [[False, True]] * n)
            return np.zeros(n, np.int64), {"some": some, "deep": {"tensor": ForeignArray(n)}}

    infos = run(make(kind, lambda: ChainEnv(length=2), Odd), range(3)).agent_infos
    assert {"deep.tensor": 6} == infos.dropped
    assert [{"some": [1.0, None]}] * 6 == row_dicts(infos)


@pytest.mark.parametrize("kind", worlds.RESET_FROM_OUTSIDE)
def test_an_empty_dictionary_among_infos(kind: str) -> None:
    """It is a value, of the environment and of the policy, however many rows there are."""

    class Empty(ChainEnv):
        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            return *rest, {"nothing": {}}

    class Policy:
        def __init__(self, spec: Any) -> None: ...

        def get_actions(self, observations: Any) -> Any:
            return np.zeros(len(observations), np.int64), {"nothing": {}}

    chunk = run(make(kind, lambda: Empty(length=2), Policy), range(3))
    assert [{"nothing": {}}] * 6 == row_dicts(chunk.env_infos) == row_dicts(chunk.agent_infos)


@each_single
def test_a_step_that_ends_an_iteration(kind: str) -> None:
    """The error is the environment's own, also where it is one that Python's generators use."""

    class Exhausted(ChainEnv):
        def step(self, action: Any) -> Any:
            return super().step(next(iter(())))

    with raises(EnvError, "env-raised", "StopIteration") as caught:
        run(make(kind, Exhausted), range(4))
    assert 1 == len(caught.value.episodes)


@each_single
def test_a_result_that_fails_while_it_is_looked_at(kind: str) -> None:
    """A flag that is an array of two is neither true nor false: the message shows it."""

    class Arrays(ChainEnv):
        def step(self, action: Any) -> Any:
            observation, reward, _, truncated, info = super().step(action)
            return observation, reward, np.zeros(2, bool), truncated, info

    with raises(EnvError, "step-value"):
        run(make(kind, Arrays), range(4))


def test_no_episode_is_at_fault_where_an_environment_cannot_be_built_anew() -> None:
    """Those that run in other rows do well: they must not be left out for it."""
    builds: list[int] = []

    def built() -> ChainEnv:
        builds.append(len(builds))
        if len(builds) > worlds.N_ENVS:
            raise OSError("no licence is left")
        return ChainEnv(length=5 * len(builds))

    worker = VecWorker(n_envs=worlds.N_ENVS, fresh_env=True, seed=0, max_episode_length=None, worker_number=0)
    worker.update_env(NewEnvUpdate(built))
    worker.update_agent(worlds.BatchPolicy(worker.env_spec))
    with raises(EnvLoadError, "env-build") as caught:
        run(worker, range(6))
    assert () == caught.value.episodes


def test_what_an_environment_draws_as_it_is_built_is_the_same_in_each_row() -> None:
    """A number would depend on its row else, and with `fresh_env` on whether it is the first one in it."""
    drawn: list[float] = []

    def built() -> ChainEnv:
        drawn.append(float(np.random.random()))
        return ChainEnv(length=5)

    worker = VecWorker(n_envs=worlds.N_ENVS, fresh_env=True, seed=0, max_episode_length=None, worker_number=0)
    worker.update_env(NewEnvUpdate(built))
    worker.update_agent(worlds.BatchPolicy(worker.env_spec))
    run(worker, range(2 * worlds.N_ENVS))
    assert (2 * worlds.N_ENVS, 1) == (len(drawn), len(set(drawn)))


def test_rows_beyond_the_crash_box() -> None:
    """They are not noted, and the box then says that it does not know."""
    with new_box() as file:
        box = CrashBox(file.fileno())
        box.begin(0, 7)
        assert (7,) == read_notes(file).numbers
        box.begin(MOST_ROWS + 5, 8)
        assert read_notes(file).numbers is None
