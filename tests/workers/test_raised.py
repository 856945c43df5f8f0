"""Whatever class user code raises, wherever it does: the error names the call and the episode, and the worker lives."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import cloudpickle
import pytest
from gymnasium.vector import SyncVectorEnv

from rollout_cli.envs.source import as_env_source
from rollout_cli.envs.updates import NewEnvUpdate
from rollout_cli.errors import UserCodeError
from rollout_cli.policies.source import policy_source
from rollout_cli.samplers.messages import Batch, Exit, Failed, Start, Update
from rollout_cli.samplers.worker_loop import WorkerLoop, take_turn
from rollout_cli.sources.loading import is_interrupt
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.kinds import DefaultWorker, VecWorker
from tests.workers import raising
from tests.workers.raising import ERRORS, RAISED, Raising
from tests.workers.worlds import NATIVE

PLACES = {
    "the set-up": ("worker-setup", ""),
    "worker_init": ("user-code-raised", "Hooked"),
    "env built": ("env-build", "'Raising'"),
    "env.reset": ("env-raised", "env.reset"),
    "env.step": ("env-raised", "env.step"),
    "policy built": ("policy-factory", "Acting"),
    "policy.reset": ("policy-raised", "policy.reset"),
    "policy.get_action": ("policy-raised", "policy.get_action"),
}
"""By place, the error's code and what its message names."""
CALLS = ("env.reset", "env.step", "policy.reset", "policy.get_action")
"""The places that an engine calls."""
KINDS = ("default", "sync", "native disabled", "native next")


class Hooked(DefaultWorker):
    """Raises as it is built."""

    def worker_init(self) -> None:
        raising.pass_by("worker_init")


@pytest.fixture(autouse=True)
def no_interrupts() -> Iterator[None]:
    """A KeyboardInterrupt is the user code's own, as in a worker process, where Ctrl-C raises none."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)
    RAISED.clear()


def loop_of(kind: str, place: str) -> WorkerLoop:
    """Return the loop of a worker of a kind."""
    options: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
    if kind in NATIVE:
        options["worker_args"]["vectorization"] = "native"
    if kind == "default":
        options = {"worker_class": Hooked}
    owns_process = place == "the set-up"
    if owns_process:
        options["worker_setup"] = raising.set_up
    factory = WorkerFactory(n_workers=1, seed=3, **options)
    return WorkerLoop(lambda: factory, 0, owns_process=owns_process)


def start(kind: str) -> Start:
    """Return the command that builds the policy and the environment, and runs 4 episodes."""
    env: Any = as_env_source(Raising)
    if kind in NATIVE:
        mode = NATIVE[kind]
        vector: Any = partial(SyncVectorEnv, [Raising] * 3, autoreset_mode=mode)
        env = NewEnvUpdate(vector)
    policy = policy_source("tests.workers.raising:Acting")
    return Start(1, (Update(cloudpickle.dumps(policy), cloudpickle.dumps(env)),), (range(4),), rebuild=True)


def events(loop: WorkerLoop, *commands: Any) -> list[Any]:
    """Return all that a loop sends until it waits."""
    sent = take_turn(loop, 0, commands)
    while not loop.idle:
        sent += take_turn(loop, 0, ())
    return sent


@pytest.mark.parametrize(
    ("place", "kind"),
    [(place, kind) for place in PLACES for kind in (KINDS if place in CALLS else KINDS[:1])],
)
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_any_class(name: str, place: str, kind: str) -> None:
    """It is reported as the user's, in words that can be sent, and the same worker runs once it is built again."""
    loop = loop_of(kind, place)
    RAISED[place] = ERRORS[name]
    failed = events(loop, start(kind))[-1]
    assert isinstance(failed, Failed), failed
    error = pickle.loads(pickle.dumps(failed.error))
    assert isinstance(error, UserCodeError)
    code, what = PLACES[place]
    assert code == error.code, error.message  # Which conftest reads under gymnasium 1.0.
    assert what in error.message
    assert name in error.message
    assert (place in CALLS) == bool(failed.numbers)
    RAISED.clear()
    chunks = [event.chunk.load() for event in events(loop, start(kind)) if isinstance(event, Batch)]
    assert {0, 1, 2, 3} == {number for chunk in chunks for number in chunk.numbers.tolist()}
    loop.close()


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_any_class_in_close(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The episodes are safe: it is logged."""
    loop = loop_of("default", "env.close")
    events(loop, start("default"))
    RAISED["env.close"] = ERRORS[name]
    assert not is_interrupt(RAISED["env.close"])
    take_turn(loop, 0, [Exit()])
    loop.close()
    assert "env.close" in caplog.text
    assert name in caplog.text
