"""What a new worker must be sent, and errors on their way back."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest

from rollout_cli.envs.updates import EnvUpdate, NewEnvUpdate, SetTaskUpdate
from rollout_cli.errors import (
    EnvError,
    EnvLoadError,
    InternalError,
    PolicyError,
    RolloutError,
    UserCodeError,
    WorkerError,
)
from rollout_cli.samplers.local_sampler import LocalSampler
from rollout_cli.samplers.messages import Update, as_reported
from rollout_cli.samplers.updates import UpdateLog
from tests.helpers.envs import FaultyEnv
from tests.helpers.fake_worker import Script
from tests.helpers.sampled import still

Env: Any = gymnasium.Env


class Turn(EnvUpdate):
    """Changes the environment that there is."""

    def __init__(self, name: str) -> None:
        self.name = name


def history(updates: list[tuple[Any, Any]]) -> tuple[Update, ...]:
    """Return what a new worker is sent after these updates of policy and environment."""
    log = UpdateLog(Script().factory(1), 0.0, "CartPole-v1")
    for agent, env in updates:
        log.note(agent, env)
    return log.history(0)


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        ([len], [len]),
        ([{"w": 1}, (2,), 3.0], [3.0]),
        ([len, {"w": 1}, np.float64(3)], [len, np.float64(3)]),
        ([{"w": 1}, (2,)], [0.0, (2,)]),
        ([{"w": 1}, len, {"w": 2}], [len, {"w": 2}]),
    ],
)
def test_a_new_worker_gets_the_last_policy_and_parameters(agents: list[Any], expected: list[Any]) -> None:
    """Parameters replace parameters; a whole policy replaces everything before it."""
    updates = history([(agent, None) for agent in agents])
    assert expected == [pickle.loads(update.agent) for update in updates if update.agent is not None]


@pytest.mark.parametrize(
    ("envs", "expected"),
    [
        ([Turn("a"), Turn("b")], ["EnvSource", "a", "b"]),
        ([Turn("a"), NewEnvUpdate(Env), Turn("b")], ["NewEnvUpdate", "b"]),
        ([[[NewEnvUpdate(Env), Turn("a")]]], ["EnvSource", "list"]),
    ],
)
def test_a_new_worker_gets_every_update_since_the_last_environment(
    envs: list[Any], expected: list[str]
) -> None:
    """An update builds on what was there, unless its class says that it replaces the environment."""
    loaded = [
        pickle.loads(update.env)
        for update in history([(None, env) for env in envs])
        if update.env is not None
    ]
    assert expected == [getattr(env, "name", type(env).__name__) for env in loaded]


class Task(FaultyEnv):
    """Takes numbers as tasks."""

    task = 0

    def set_task(self, task: Any) -> None:
        self.task = int(task)

    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        return observation, {**info, "set": self.task}


def test_the_next_update_takes_the_place_of_one_that_failed() -> None:
    """A call without any still fails: its workers would not be where the sampler's updates have brought them."""
    with LocalSampler(still, Task(), n_workers=1, seed=1) as sampler:
        tasks: list[int] = []
        for task in ("3", "three", None, "4", None):
            update = None if task is None else SetTaskUpdate(Task, task)
            try:
                tasks += sampler.obtain_samples(0, 1, None, update).episode_infos["set"].tolist()
            except EnvLoadError:
                tasks.append(-1)
    assert [3, -1, -1, 4, 4] == tasks


def test_what_workers_share_is_pickled_once() -> None:
    """A policy for all is one object; a list makes the workers differ from then on."""
    log = UpdateLog(Script().factory(3), 0.0, "CartPole-v1")
    first, second, third = log.note(list, None)
    assert first.agent is second.agent is third.agent
    by_worker = [log.by_worker]
    log.note([1.0, 2.0, 3.0], None)
    assert [False, True] == [*by_worker, log.by_worker]
    assert ["CartPole-v1"] * 3 == log.labels


class StrangeError(UserCodeError):
    """A class of the user's own that wants other arguments than its base."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}", hint="add them")


def reported(error: Exception) -> RolloutError:
    """Return an error as it arrives from a worker's process."""
    arrived = pickle.loads(pickle.dumps(as_reported(error, 0)))
    assert isinstance(arrived, RolloutError)
    return arrived


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause  # noqa: TRY301
    except Exception as caught:  # noqa: BLE001  It is given back.
        return caught


@pytest.mark.parametrize(
    ("error", "kind", "code", "value"),
    [
        (IndexError("no such row"), InternalError, "internal", "IndexError: no such row"),
        (MemoryError("4 GB"), WorkerError, "worker-out-of-memory", "MemoryError: 4 GB"),
    ],
)
def test_what_is_not_of_the_tree(error: Exception, kind: type, code: str, value: str) -> None:
    """A fault of ours is an internal error; where memory ends is the machine's business. Both have the traceback."""
    arrived = reported(raised(error))
    assert (kind, code) == (type(arrived), arrived.code)
    assert value in arrived.message
    assert "in raised" in arrived.details


def test_the_users_traceback_becomes_the_details() -> None:
    """Of an error that wraps another one, from the first frame on that is not ours."""
    arrived = reported(raised(EnvError("env.step raised ValueError"), raised(ValueError("broken"))))
    assert arrived.details.startswith("Traceback")
    assert arrived.details.endswith("ValueError: broken\n")
    mine = PolicyError("the action is nan", details="action 3")
    assert "action 3" == reported(raised(mine, raised(ValueError("broken")))).details


def test_an_error_class_of_the_users_own_arrives_as_its_base() -> None:
    """It may not be importable where it arrives, and its constructor may want other arguments."""
    arrived = reported(StrangeError(1, 2))
    assert (UserCodeError, "1 and 2", "add them") == (type(arrived), arrived.message, arrived.hint)


def test_an_error_may_be_its_own_cause() -> None:
    """Nothing keeps the user's code from raising errors from each other in a circle."""
    one, other = EnvError("one"), EnvError("other")
    one.__cause__, other.__cause__ = other, one
    assert "one" == reported(one).message
