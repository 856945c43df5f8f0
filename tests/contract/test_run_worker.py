"""`run_worker` over real multiprocessing queues, message by message."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rollout_cli.errors import PolicyError
from rollout_cli.packing import unpack
from rollout_cli.samplers import Episodes
from rollout_cli.samplers.messages import (
    Batch,
    Continue,
    Exit,
    Failed,
    Pickled,
    Returned,
    Start,
    Started,
    Stop,
    lease_numbers,
)
from rollout_cli.samplers.reports import unpack_error
from rollout_cli.samplers.worker_process import run_worker
from rollout_cli.workers import WorkerFactory
from tests.contract.making import noisy, serial
from tests.support.envs import ChainEnv, SleepyEnv
from tests.support.policies import FailingPolicy, LinearPolicy

SECONDS = 30
"""No message takes so long; a worker that hangs fails the test."""


class Conversation:
    """The sampler's side of one worker process.

    Args:
        env: Its environment.
        policy: Its policy.
        room: How many messages the way back holds.
    """

    def __init__(self, env: Any, policy: Any, room: int) -> None:
        context = multiprocessing.get_context("forkserver")
        self._to_worker: Any = context.Queue()
        self._to_sampler: Any = context.Queue(room)
        factory = WorkerFactory(n_workers=1, seed=5)
        self.process = context.Process(
            target=run_worker, args=(factory, self._to_worker, self._to_sampler, 0, policy, env)
        )
        self.process.start()

    def send(self, *messages: Any) -> None:
        for message in messages:
            self._to_worker.put(message)

    def receive(self) -> Any:
        return self._to_sampler.get(timeout=SECONDS)

    def receive_numbers(self, count: int, version: int) -> list[int]:
        """Return the numbers of the next batches, together `count`, all of one version."""
        numbers: list[int] = []
        while len(numbers) < count:
            batch = self.receive()
            assert isinstance(batch, Batch), batch
            assert (0, version) == (batch.worker, batch.version)
            own = lease_numbers(batch.numbers)
            assert own == unpack(batch.payload).numbers.tolist()
            numbers += own
        return numbers

    def silent(self) -> bool:
        """Return whether nothing comes while the worker has the time to send something."""
        try:
            self._to_sampler.get(timeout=0.2)
        except queue.Empty:
            return True
        return False

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        for one in (self._to_worker, self._to_sampler):
            one.cancel_join_thread()
            one.close()


Talk = Callable[..., Conversation]


@pytest.fixture
def talk() -> Iterator[Talk]:
    """Give a function that begins a conversation with a worker."""
    begun: list[Conversation] = []

    def begin(env: Any = None, policy: Any = None, room: int = 100) -> Conversation:
        env = ChainEnv() if env is None else env
        begun.append(Conversation(env, noisy(ChainEnv()) if policy is None else policy, room))
        return begun[-1]

    yield begin
    for conversation in begun:
        conversation.end()


def test_start_runs_its_lease(talk: Talk) -> None:
    """`Start` is answered by `Started` with what was learnt, then by the lease's episodes, lowest first."""
    worker = talk()
    worker.send(Start(1, lease=(range(6, 9), range(2, 4))))
    started = worker.receive()
    assert isinstance(started, Started)
    assert (0, 1, "tests.support.envs.ChainEnv") == (started.worker, started.version, started.facts["env"]["class"])
    assert [2, 3, 6, 7, 8] == worker.receive_numbers(5, 1)


def test_the_episodes_are_those_of_their_numbers(talk: Talk) -> None:
    """What comes over the queue is, bit for bit, what a serial run has under these numbers."""
    worker = talk()
    worker.send(Start(1, lease=(range(3, 6),)))
    worker.receive()
    chunk = unpack(worker.receive().payload)
    expected = serial(Episodes(3, 6), ChainEnv())
    assert expected.numbers.tolist() == chunk.numbers.tolist()
    assert expected.rewards.tolist() == chunk.rewards.tolist()
    assert expected.observations[0].tolist() == chunk.observations[0].tolist()


def test_continue_adds_numbers_and_sets_the_ceiling(talk: Talk) -> None:
    """An idle worker goes on with what `Continue` brings; numbers above the ceiling are never run."""
    worker = talk()
    worker.send(Start(1, lease=(range(2),)))
    worker.receive()
    assert [0, 1] == worker.receive_numbers(2, 1)
    worker.send(Continue((range(2, 9),), 4))
    assert [2, 3, 4] == worker.receive_numbers(3, 1)
    assert worker.silent()


def test_a_ceiling_drops_the_running_episode(talk: Talk) -> None:
    """A ceiling below the episode that runs ends it; the worker is idle and takes the next lease."""
    worker = talk(SleepyEnv(0.01, length=100_000))
    worker.send(Start(1, lease=(range(5, 9),)))
    worker.receive()
    worker.send(Continue((), 4))
    worker.send(Stop())
    assert Returned(0, 1, ()) == worker.receive()


def test_stop_sends_what_is_finished_and_returns_the_rest(talk: Talk) -> None:
    """Every number of the lease comes back: as an episode or as a returned one."""
    worker = talk(SleepyEnv(0.001))
    worker.send(Start(1, lease=(range(100_000, 110_000),)))
    worker.receive()
    done = worker.receive_numbers(1, 1)
    worker.send(Stop())
    message = worker.receive()
    while isinstance(message, Batch):
        done += lease_numbers(message.numbers)
        message = worker.receive()
    assert isinstance(message, Returned)
    assert list(range(100_000, 110_000)) == [*done, *message.numbers]
    assert len(done) < 10_000


def test_stop_of_an_idle_worker_returns_nothing(talk: Talk) -> None:
    """It is answered all the same."""
    worker = talk()
    worker.send(Start(1), Stop())
    assert isinstance(worker.receive(), Started)
    assert Returned(0, 1, ()) == worker.receive()


def test_a_new_version_drops_what_belongs_to_the_old_one(talk: Talk) -> None:
    """After a second `Start` nothing of the first one comes under the second one's version, finished or not."""
    worker = talk(SleepyEnv(0.001))
    worker.send(Start(1, lease=(range(10_000),)))
    worker.receive()
    worker.receive_numbers(1, 1)
    worker.send(Start(2, lease=(range(50_000, 50_003),)))
    message = worker.receive()
    while message.version == 1:
        assert isinstance(message, Batch)
        message = worker.receive()
    assert isinstance(message, Started)
    assert [50_000, 50_001, 50_002] == worker.receive_numbers(3, 2)
    assert worker.silent()


def test_exit_ends_the_process(talk: Talk) -> None:
    """A worker exits with code 0, idle or in the middle of an episode."""
    for start in (Start(1), Start(1, lease=(range(5),))):
        worker = talk(SleepyEnv(0.01, length=100_000))
        worker.send(start)
        worker.receive()
        worker.send(Exit())
        worker.process.join(SECONDS)
        assert 0 == worker.process.exitcode


def test_a_full_way_back_keeps_every_episode(talk: Talk) -> None:
    """With room for one message, a worker that nobody listens to keeps what it has: nothing is lost or comes twice."""
    worker = talk(SleepyEnv(0.001), room=1)
    worker.send(Start(1, lease=(range(60),)))
    worker.send(Continue((range(60, 120),)))
    worker.process.join(1.0)
    assert isinstance(worker.receive(), Started)
    assert list(range(120)) == worker.receive_numbers(120, 1)
    assert worker.silent()


def test_a_full_way_back_does_not_keep_the_worker_from_listening(talk: Talk) -> None:
    """A worker that cannot send still obeys: `Exit` ends it."""
    worker = talk(SleepyEnv(0.001), room=1)
    worker.send(Start(1, lease=(range(100_000),)))
    worker.process.join(1.0)
    assert worker.process.is_alive()
    worker.send(Exit())
    assert isinstance(worker.receive(), Started)
    worker.process.join(SECONDS)
    assert 0 == worker.process.exitcode


def test_a_full_way_back_and_a_new_version(talk: Talk) -> None:
    """What was kept for the old version is dropped; the new one's episodes all come."""
    worker = talk(SleepyEnv(0.001), room=1)
    worker.send(Start(1, lease=(range(100_000),)))
    worker.process.join(1.0)
    worker.send(Start(2, lease=(range(7, 10),)))
    message = worker.receive()
    while message.version == 1:
        message = worker.receive()
    assert isinstance(message, Started)
    assert [7, 8, 9] == worker.receive_numbers(3, 2)


def test_a_failure_comes_after_what_was_finished(talk: Talk) -> None:
    """Episodes that ended well are sent, then the error; the worker waits for a `Start` that builds everything anew."""
    policy = noisy(ChainEnv(), lambda spec: FailingPolicy(spec, at_step=9))
    worker = talk(policy=policy)
    worker.send(Start(1, lease=(range(1000),)))
    worker.receive()
    lengths = serial(Episodes(0, 200), ChainEnv()).lengths.tolist()
    first_failing = next(number for number, length in enumerate(lengths) if length >= 9)
    assert list(range(first_failing)) == worker.receive_numbers(first_failing, 1)
    failed = worker.receive()
    assert isinstance(failed, Failed)
    error = unpack_error(failed.error)
    assert isinstance(error, PolicyError)
    assert f"episode {first_failing}," in error.message
    assert worker.silent()
    short = [number for number, length in enumerate(lengths) if length < 9][:3]
    lease = tuple(range(number, number + 1) for number in short)
    worker.send(Start(2, lease=lease))
    assert worker.silent()
    worker.send(Start(3, Pickled.of(policy), Pickled.of(ChainEnv()), lease=lease, anew=True))
    assert isinstance(worker.receive(), Started)
    assert short == worker.receive_numbers(3, 3)


def test_finished_episodes_leave_during_a_long_one(talk: Talk) -> None:
    """An episode that ended does not wait for the one that runs."""
    # A policy that draws nothing: an episode that is the first to draw would be run again, and reset again.
    worker = talk(LongAfterShortEnv(), noisy(ChainEnv(), LinearPolicy))
    worker.send(Start(1, lease=(range(2),)))
    worker.receive()
    assert [0] == worker.receive_numbers(1, 1)


class LongAfterShortEnv(SleepyEnv):
    """The first episode is short, the second one does not end within the test."""

    def __init__(self) -> None:
        super().__init__(0.001, length=3)
        self._episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._episodes += 1
        self._fixed_length = 3 if self._episodes == 1 else 10**9
        return super().reset(seed=seed, options=options)
