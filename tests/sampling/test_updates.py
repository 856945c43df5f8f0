"""What a new worker must be sent, and errors on their way back."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest

from rollout_cli.envs.updates import EnvUpdate, NewEnvUpdate
from rollout_cli.errors import EnvError, InternalError, PolicyError, RolloutError, UserCodeError, WorkerError
from rollout_cli.samplers.messages import Pickled, Update
from rollout_cli.samplers.transit_errors import as_reported, failed_in
from rollout_cli.samplers.updates import UpdateHistory, UpdateLog
from tests.helpers.fake_worker import Script

SEVERAL = 100_000
Env: Any = gymnasium.Env


def pickled(name: str) -> Pickled:
    return Pickled(name.encode())


class Turn(EnvUpdate):
    """Changes the environment that there is."""


@pytest.mark.parametrize(
    ("agents", "expected"),
    [
        ([("net", object())], ["net"]),
        ([("w1", {"w": 1}), ("w2", (2,)), ("w3", np.zeros(3))], ["first", "w3"]),
        ([("w1", {"w": 1}), ("net", object()), ("w2", {"w": 2})], ["net", "w2"]),
    ],
)
def test_a_new_worker_gets_the_last_policy_and_parameters(agents: list[Any], expected: list[str]) -> None:
    """Parameters replace parameters; a whole policy replaces everything before it."""
    history = UpdateHistory(Update(pickled("first"), pickled("env")))
    for name, given in agents:
        history.add(Update(agent=pickled(name)), given, None)
    assert expected == [update.agent.data.decode() for update in history.updates if update.agent is not None]


@pytest.mark.parametrize(
    ("envs", "expected"),
    [
        ([("t1", Turn()), ("t2", Turn())], ["env", "t1", "t2"]),
        ([("t1", Turn()), ("new", NewEnvUpdate(Env)), ("t2", Turn())], ["new", "t2"]),
        ([("t1", [NewEnvUpdate(Env), Turn()])], ["env", "t1"]),
    ],
)
def test_a_new_worker_gets_every_update_since_the_last_environment(envs: list[Any], expected: list[str]) -> None:
    """An update builds on what was there, unless its class says that it replaces the environment."""
    history = UpdateHistory(Update(pickled("first"), pickled("env")))
    for name, given in envs:
        history.add(Update(env=pickled(name)), None, given)
    assert expected == [update.env.data.decode() for update in history.updates if update.env is not None]


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
    arrived = pickle.loads(pickle.dumps(as_reported(error)))
    assert isinstance(arrived, RolloutError)
    return arrived


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise_from(error, cause)
    except Exception as caught:  # noqa: BLE001  It is given back.
        return caught
    raise AssertionError


def raise_from(error: Exception, cause: Exception | None) -> None:
    raise error from cause


def test_a_fault_of_ours_is_an_internal_error() -> None:
    """It has the whole traceback."""
    arrived = reported(raised(IndexError("no such row")))
    assert (InternalError, "a worker failed: IndexError: no such row") == (type(arrived), arrived.message)
    assert "in raise_from" in arrived.details


def test_no_memory_is_no_fault_of_ours() -> None:
    """Where memory ends is the machine's business; the hint says what helps."""
    arrived = reported(raised(MemoryError()))
    assert (WorkerError, 4) == (type(arrived), arrived.exit_code)
    assert "fewer workers" in arrived.hint


def test_the_users_traceback_becomes_the_details() -> None:
    """Of an error that wraps another one, from the first frame on that is not ours."""
    arrived = reported(raised(EnvError("env.step raised ValueError"), raised(ValueError("broken"))))
    assert arrived.details.startswith("Traceback")
    assert arrived.details.endswith("ValueError: broken\n")
    mine = PolicyError("the action is nan", details="action 3")
    assert "action 3" == reported(raised(mine, raised(ValueError("broken")))).details


def test_a_very_long_traceback_is_cut() -> None:
    """Nobody reads megabytes."""
    arrived = reported(raised(EnvError("env.step raised"), raised(ValueError("!" * 10 * SEVERAL))))
    assert len(arrived.details) < SEVERAL


def test_an_error_class_of_the_users_own_arrives_as_its_base() -> None:
    """It may not be importable where it arrives, and its constructor may want other arguments."""
    arrived = reported(StrangeError(1, 2))
    assert (UserCodeError, "1 and 2", "add them") == (type(arrived), arrived.message, arrived.hint)


def test_an_error_may_be_its_own_cause() -> None:
    """Nothing keeps the user's code from raising errors from each other in a circle."""
    one, other = EnvError("one"), EnvError("other")
    one.__cause__, other.__cause__ = other, one
    assert "one" == reported(one).message


def test_a_failure_has_its_episodes() -> None:
    """Only user code fails in episodes."""
    error = EnvError("broken")
    error.episodes = (7, 3)
    assert ((3, 7), ()) == (failed_in(error), failed_in(ValueError()))
