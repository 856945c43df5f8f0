"""WorkerFactory: it crosses the process border, builds workers, and sets up their process."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rollout_cli.errors import ArgumentError, UsageError, UserCodeError
from rollout_cli.workers.factory import WorkerFactory, load_worker_class
from rollout_cli.workers.kinds import DefaultWorker, VecWorker
from rollout_cli.workers.values import EpisodeRules, NullCrashBox
from tests.helpers.errors import raises
from tests.helpers.projects import project, write_module
from tests.workers import worlds
from tests.workers.worlds import ChainEnv

__all__ = ["project"]


def test_it_builds_workers_where_they_run() -> None:
    """With its seed, limit, rules and arguments, after it was pickled."""
    rules = EpisodeRules(invalid_action="clip")
    factory = WorkerFactory(
        max_episode_length=4,
        n_workers=3,
        seed=5,
        worker_class=VecWorker,
        worker_args={"n_envs": 2},
        rules=rules,
    )
    worker = pickle.loads(pickle.dumps(factory))(2)
    assert (2, rules) == (worker.worker_number, worker.rules)
    first, second = WorkerFactory(), WorkerFactory()
    assert (2, 1) == (factory.numbers_at_once, first.numbers_at_once)
    assert first.seed != second.seed
    assert 1 <= first.n_workers
    worker.update_env(ChainEnv("never"))
    worker.update_agent(worlds.BatchPolicy(worker.env_spec))
    chunk = worlds.run(worker, range(3))
    assert [4, 4, 4] == chunk.lengths.tolist()
    assert {2} == set(chunk.workers.tolist())


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ({"n_workers": 0}, ["n_workers", 0]),
        ({"seed": -1}, ["seed", -1]),
        ({"max_episode_length": 0}, ["max_episode_length", 0]),
        ({"max_episode_length": float("nan")}, ["max_episode_length", "nan"]),
        ({"worker_class": dict}, ["worker_class", "dict"]),
        ({"is_tf_worker": True, "worker_setup": lambda: None}, ["is_tf_worker", "worker_setup"]),
    ],
)
def test_arguments_that_are_refused(arguments: Any, values: list[object]) -> None:
    """At once, with the value."""
    with raises(ValueError, "factory-argument", *values):
        WorkerFactory(**arguments)


@pytest.mark.parametrize("number", [-1, 3, 4])
def test_numbers_of_workers_that_there_are_not(number: int) -> None:
    """Two workers of one number would run the same episodes."""
    with raises(ArgumentError, "factory-argument", number):
        WorkerFactory(n_workers=3)(number)


def test_messages_for_workers() -> None:
    """One object for all, or a list with one for each."""
    factory = WorkerFactory(n_workers=2)
    assert ["a", "a"] == factory.prepare_worker_messages("a")
    assert [2, 3] == factory.prepare_worker_messages([1, 2], lambda number: number + 1)
    with raises(ValueError, "list-length"):
        factory.prepare_worker_messages([1])


def test_a_class_that_cannot_be_built() -> None:
    """Its arguments are named."""
    factory = WorkerFactory(n_workers=1, worker_args={"wheels": 4})
    with raises(UserCodeError, "user-code-raised", "DefaultWorker", "TypeError") as caught:
        factory(0)
    assert "wheels" in caught.value.hint
    assert 3 == caught.value.exit_code
    with raises(UserCodeError, "user-code-raised", "numbers_at_once", "ValueError"):
        _ = WorkerFactory(worker_class=VecWorker, worker_args={"n_envs": "many"}).numbers_at_once


def test_a_constructor_of_the_users_own_need_not_know_the_context() -> None:
    """A class may name the arguments it takes; it has the context all the same, from its constructor on."""

    class Named(DefaultWorker):
        def __init__(self, *, seed: int, max_episode_length: float | None, worker_number: int) -> None:
            self.rules_at_first = self.rules
            super().__init__(seed=seed, max_episode_length=max_episode_length, worker_number=worker_number)

    rules = EpisodeRules(step_guard=7)
    box = NullCrashBox()
    worker = WorkerFactory(n_workers=1, worker_class=Named, rules=rules)(0, box)
    assert isinstance(worker, Named)
    assert rules is worker.rules_at_first is worker.rules
    assert box is worker.crash_box
    for name in ("rules", "crash_box", "number_stride"):
        with pytest.raises(AttributeError):
            setattr(worker, name, None)


# -- worker classes by name --------------------------------------------------------------------------------------------

MODULE = """
    from rollout_cli.workers.kinds import DefaultWorker

    class Mine(DefaultWorker):
        pass

    number = 3
"""


@pytest.mark.parametrize(
    ("spec", "code", "values"),
    [
        ("mine:number", "worker-class", ["'mine:number'"]),
        ("mine:Absent", "attribute-missing", ["'Absent'"]),
        ("absent:Mine", "module-missing", ["'absent'"]),
        ("broken:Mine", "import-failed", ["'broken'", "ZeroDivisionError"]),
        ("Mine", "worker-class", ["'Mine'"]),
    ],
)
def test_worker_classes_by_name(project: Path, spec: str, code: str, values: list[str]) -> None:
    """One is found in the working folder; others exit with 3, with the module's own traceback where it has one."""
    write_module(project, "mine", MODULE)
    assert issubclass(load_worker_class("mine:Mine"), DefaultWorker)
    write_module(project, "broken", "1 / 0")
    with raises(UserCodeError, code, *values) as caught:
        load_worker_class(spec)
    assert 3 == caught.value.exit_code
    assert ("ZeroDivisionError" in caught.value.details) == spec.startswith("broken")


# -- set-up ------------------------------------------------------------------------------------------------------------


def test_a_set_up_surrounds_the_worker() -> None:
    """It is entered and left, also after an error inside, which it does not swallow."""
    diary: list[str] = []

    @contextmanager
    def keeping_a_diary() -> Iterator[None]:
        diary.append("enter")
        yield
        diary.append("leave")

    with WorkerFactory(worker_setup=keeping_a_diary).setup():
        diary.append("inside")
    with pytest.raises(ValueError, match="broken"), WorkerFactory(worker_setup=keeping_a_diary).setup():
        raise ValueError("broken")
    assert ["enter", "inside", "leave", "enter", "leave"] == diary
    with WorkerFactory().setup():
        pass


@contextmanager
def _failing(where: str) -> Iterator[None]:
    if where == "entered":
        raise OSError("there is no device")
    yield
    raise OSError("the device is stuck")


@pytest.mark.parametrize(
    ("where", "cause"), [("entered", "there is no device"), ("left", "the device is stuck")]
)
def test_a_set_up_that_fails(where: str, cause: str) -> None:
    """It is the user's code."""
    setup = WorkerFactory(worker_setup=lambda: _failing(where)).setup()
    with raises(UserCodeError, "worker-setup", f"OSError: {cause}"), setup:
        pass


def test_one_thread_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or as many as OMP_NUM_THREADS says; a set-up of the user's decides for itself."""
    threads: list[int] = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(set_num_threads=threads.append))
    for wanted in ("3", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)
        WorkerFactory().after_updates()
    monkeypatch.delenv("OMP_NUM_THREADS")
    WorkerFactory().after_updates()
    WorkerFactory(worker_setup=lambda: _failing("left")).after_updates()
    assert [3, 1, 1] == threads


def test_a_tensorflow_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph and a session of TensorFlow 1's style are the defaults while the worker lives."""
    entered: list[str] = []

    class Thing:
        def __init__(self, name: str) -> None:
            self.name = name

        @contextmanager
        def as_default(self) -> Iterator[None]:
            entered.append(self.name)
            yield
            entered.remove(self.name)

    tensorflow = ModuleType("tensorflow")
    versions = SimpleNamespace(Graph=lambda: Thing("graph"), Session=lambda: Thing("session"))
    tensorflow.compat = SimpleNamespace(v1=versions)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    with WorkerFactory(is_tf_worker=True).setup():
        assert ["graph", "session"] == entered
    assert [] == entered


def test_tensorflow_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is the command that installs it."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with raises(UsageError, "package-missing") as caught, WorkerFactory(is_tf_worker=True).setup():
        pass
    assert "pip install tensorflow" == caught.value.hint
