"""RayPool over a store and actors that the test answers for: what it makes of replies, and of time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.samplers.messages import Start, Started, Stop
from rollout_cli.samplers.pool import Died, Event
from rollout_cli.samplers.ray import pool
from rollout_cli.samplers.ray.actor import Reply, _packed
from rollout_cli.samplers.supervision import Supervision
from rollout_cli.samplers.updates import UpdateLog
from rollout_cli.workers.factory import WorkerFactory


class FakeRay:
    """One actor, which answers when the test says so; a `Reference` gets its value then."""

    def __init__(self) -> None:
        self.exceptions = SimpleNamespace(RayError=OSError, ActorDiedError=OSError)
        self.asked: list[Reference] = []

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> Any:
        job = SimpleNamespace(env_vars=lambda: {"MKL_NUM_THREADS": "3"})
        return SimpleNamespace(get_job_id=lambda: "job", get_node_id=lambda: "node", runtime_env=job)

    def remote(self, **options: Any) -> Any:
        self.options = options
        turn = SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=self._ask))
        return lambda _: SimpleNamespace(remote=lambda *_: SimpleNamespace(turn=turn))

    def _ask(self, *_: Any) -> Any:
        self.asked.append(Reference())
        return self.asked[-1], Reference()

    def put(self, value: Any) -> Any:
        return value

    def wait(self, references: Any, **_: Any) -> Any:
        return [reference for reference in references if reference.value is not None], []

    def get(self, reference: Any) -> Any:
        if isinstance(reference.value, Exception):
            raise reference.value
        return reference.value

    def kill(self, _: Any) -> None:
        for reference in self.asked:
            reference.value = reference.value or OSError("the actor died")

    def answer(self, *events: Event, running: tuple[int, ...] = ()) -> None:
        """Let the first turn that has no reply get this one."""
        reference = next(reference for reference in self.asked if reference.value is None)
        reference.value = _packed(Reply(list(events), idle=False, running_numbers=running))


class Reference:
    """What a reply comes into."""

    value: Any = None


class Time:
    """A pool of one worker, and the clock that it reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rules: Supervision) -> None:
        self.now, self.ray = 0.0, FakeRay()
        monkeypatch.setattr(pool, "_clock", lambda: self.now)
        monkeypatch.setattr(pool, "load_ray", lambda: self.ray)
        factory = WorkerFactory(seed=5, n_workers=1)
        self.pool = pool.RayPool(factory, UpdateLog(factory, "random", "CartPole-v1"), {}, rules)
        self.pool.start(0)

    def begin(self, start: Start, running: int | None = None) -> None:
        """Send this, and answer it, with all that was asked before: there this one ran."""
        self.pool.send(0, start)
        space = gymnasium.spaces.Discrete(2)
        for _ in range(len(self.pool._handles[0].turns) - 1):
            self.ray.answer(running=() if running is None else (running,))
            self.passes(0.25)
        self.ray.answer(Started(0, start.generation, EnvSpec(space, space, None)))
        assert [Started] == [type(event) for event in self.passes(0.25)]

    def passes(self, seconds: float) -> list[Event]:
        """Let time pass, in which the pool is waited for."""
        events: list[Event] = []
        for _ in range(round(seconds / 0.25)):
            self.now += 0.25
            events += self.pool.wait()
        return events


def test_actors_hash_texts_as_worker_processes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """And have as many threads; what the user sets, here or for the connection, counts."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    variables = Time(monkeypatch, Supervision()).ray.options["runtime_env"]["env_vars"]
    names = ("PYTHONHASHSEED", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    assert ["0", "1", "2", "3"] == [variables[name] for name in names]


def test_an_episode_that_runs_again_begins_a_new_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call has left unfinished, the next one runs under the same number, and it has its whole time.

    So it is with one that is run anew in a worker that was rebuilt.
    """
    time = Time(monkeypatch, Supervision(episode_timeout=1.0))
    for generation, rebuild in ((1, True), (2, False), (2, True)):
        time.begin(Start(generation, (), (range(4, 5),), rebuild=rebuild), running=4)
        time.ray.answer(running=(4,))
        assert [] == time.passes(0.75)
    assert [(4,)] == [event.late for event in time.passes(1.0) if isinstance(event, Died)]


def test_a_step_of_an_older_call_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the worker from taking the next call's `Start`, for which all would wait in vain."""
    time = Time(monkeypatch, Supervision(step_timeout=1.0))
    time.pool.send(0, Start(1, (), (range(4, 6),), rebuild=True))
    assert [] == time.passes(9.0)  # A worker that is built is in no step.
    time.begin(Start(2, (), (range(4, 6),), rebuild=True))
    time.ray.answer(running=(4,))
    assert [] == time.passes(0.5)
    for command in (Stop(), Start(3, (), (range(6, 7),))):
        time.pool.send(0, command)
    (died,) = time.passes(2.0)
    assert isinstance(died, Died)
    assert ("was killed, because a step took longer than 1 s,", "") == (died.reason, died.hint)


def test_the_first_episode_of_a_call_is_the_late_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its reset never returns; not the one that ran last in the call before."""
    time = Time(monkeypatch, Supervision(episode_timeout=1.0))
    time.begin(Start(1, (), (range(4, 6),), rebuild=True))
    time.begin(Start(2, (), (range(3, 6),)), running=5)
    assert [(3,)] == [event.late for event in time.passes(2.0) if isinstance(event, Died)]


def test_a_turn_of_many_steps_is_no_step_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver hears of a turn, which takes 0.1 s or, with many workers, a second, and not of its steps."""
    time = Time(monkeypatch, Supervision(step_timeout=0.2))
    time.begin(Start(1, (), (range(4, 6),), rebuild=True))
    time.ray.answer(running=(4,))
    assert ([], "") == (time.passes(0.5), time.pool._handles[0].killed)
    assert "longer than 0.2 s" in next(event.reason for event in time.passes(0.5) if isinstance(event, Died))
