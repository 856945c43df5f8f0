"""The EnvUpdate family."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import gymnasium
import pytest

from rollout_cli.envs.updates import EnvUpdate, ExistingEnvUpdate, NewEnvUpdate, SetTaskUpdate, updated_env
from rollout_cli.errors import EnvLoadError, EnvTypeError
from tests.helpers.errors import raises
from tests.workers.worlds import ChainEnv


class ClosableEnv(ChainEnv):
    """Remembers that it was closed."""

    closed: Any = False

    def close(self) -> None:
        self.closed = True

    def __init__(self) -> None:
        super().__init__()
        self.closed = False


class TaskEnv(ClosableEnv):
    """Has a task."""

    task: Any = None

    def set_task(self, task: Any) -> None:
        self.task = task


class OtherTaskEnv(TaskEnv):
    """A subclass, whose tasks may mean something else."""


class RefusingEnv(TaskEnv):
    """Has no task of any name."""

    def set_task(self, task: Any) -> None:
        raise KeyError(task)


class TaskWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Knows the task that it was built with."""

    def __init__(self, env: Any, task: Any) -> None:
        super().__init__(env)
        self.built_with = task


def crossed(update: EnvUpdate) -> Any:
    return pickle.loads(cloudpickle.dumps(update))


def test_the_base_keeps_the_environment() -> None:
    """EnvUpdate changes nothing, and needs an environment to keep."""
    env = ChainEnv()
    assert crossed(EnvUpdate())(env) is env
    with raises(EnvLoadError, "update-without-env"):
        EnvUpdate()()


def test_new_env_update_builds_and_closes() -> None:
    """The old environment is closed, a new one is built; a lambda crosses the process border."""
    old = ClosableEnv()
    update = crossed(NewEnvUpdate(lambda: ChainEnv(ends="both")))
    env = update(old)
    assert "both" == env._ends
    assert old.closed
    assert update() is not update()


def test_new_env_update_says_what_failed() -> None:
    """A constructor that raises, or gives the worker no environment, is a clear error."""

    def broken() -> Any:
        raise RuntimeError("no simulator")

    with raises(EnvLoadError, "env-build", "broken", "RuntimeError") as caught:
        NewEnvUpdate(broken)()
    assert "Traceback" in caught.value.details
    with raises(EnvTypeError, "env-type") as caught:
        updated_env(None, NewEnvUpdate(lambda: 3), gymnasium.Env)  # type: ignore[arg-type, return-value]
    assert "NewEnvUpdate" in caught.value.hint


@pytest.mark.parametrize(
    ("update", "raised"),
    [
        (NewEnvUpdate(ChainEnv()), "TypeError"),  # type: ignore[arg-type]
        (SetTaskUpdate(RefusingEnv, 4), "KeyError: 4"),
    ],
)
def test_what_an_update_raises_is_the_users_error(update: EnvUpdate, raised: str) -> None:
    """And no internal one: it is the user's constructor, or set_task, that failed."""
    with raises(EnvLoadError, "env-update", type(update).__name__, raised) as caught:
        updated_env(None, update, gymnasium.Env)
    assert "Traceback" in caught.value.details


def test_set_task_keeps_an_environment_of_its_type() -> None:
    """The task is set on the environment that is there, below its wrappers."""
    env = gymnasium.wrappers.TimeLimit(TaskEnv(), 5)
    assert crossed(SetTaskUpdate(TaskEnv, {"goal": 3}))(env) is env
    assert {"goal": 3} == env.get_wrapper_attr("task")


def test_set_task_builds_where_there_is_none() -> None:
    """Without an environment one is built, given the task, and wrapped."""
    env = crossed(SetTaskUpdate(TaskEnv, 4, wrapper_constructor=TaskWrapper))()
    assert 4 == env.built_with
    assert 4 == env.unwrapped.task


@pytest.mark.filterwarnings("default")
def test_set_task_replaces_another_type() -> None:
    """An environment of another type, a subclass too, is closed with a warning, and a new one is built."""
    old = OtherTaskEnv()
    with pytest.warns(UserWarning, match="replaces the OtherTaskEnv by a new TaskEnv"):
        env = SetTaskUpdate(TaskEnv, 1)(old)
    assert type(env) is TaskEnv
    assert old.closed


def test_set_task_needs_set_task() -> None:
    """An environment without set_task is named."""
    with raises(EnvLoadError, "env-without-tasks", "ChainEnv", "set_task"):
        SetTaskUpdate(ChainEnv, 1)(ChainEnv())


def test_existing_env_update_copies() -> None:
    """Each call gives a copy in the state of that moment; the caller's environment is neither used nor closed."""
    env, old = ClosableEnv(), ClosableEnv()
    env.reset(seed=3)
    length = env.length
    update = crossed(ExistingEnvUpdate(env))
    env.length = 99
    first: Any = update(old)
    assert length == first.length
    assert first is not update()
    assert (True, False) == (old.closed, env.closed)


def test_existing_env_update_refuses_what_cannot_be_pickled() -> None:
    """It says so where it is made, and what to use instead."""
    env = ClosableEnv()
    env.lock = (number for number in range(3))  # type: ignore[attr-defined]
    with raises(EnvLoadError, "pickle-failed") as caught:
        ExistingEnvUpdate(env)
    assert "NewEnvUpdate" in caught.value.hint


def test_which_updates_replace() -> None:
    """New and existing environments owe nothing to the one before; a task does, and so may a user's own update."""
    kinds: list[type[EnvUpdate]] = [EnvUpdate, NewEnvUpdate, SetTaskUpdate, ExistingEnvUpdate]
    assert [False, True, False, True] == [kind.replaces_env for kind in kinds]
