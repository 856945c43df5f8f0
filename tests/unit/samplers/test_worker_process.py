"""The worker's shell over a link in memory: what it keeps, what it drops, and how it reports what fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rollout_cli.chunk import Part
from rollout_cli.errors import EnvLoadError, InternalError, PolicyLoadError, RolloutError
from rollout_cli.samplers.messages import (
    Batch,
    Continue,
    Failed,
    Pickled,
    Returned,
    Start,
    Started,
    Stop,
    lease_numbers,
)
from rollout_cli.samplers.reports import unpack_error
from rollout_cli.samplers.worker_machine import WorkerState
from rollout_cli.samplers.worker_process import _Shell, load_pickled
from tests.unit.samplers.counting_worker import CountingWorker, ReadyFactory, chunk_of
from tests.unit.samplers.simulation import SimulatedLink


def shell_of(worker: CountingWorker, capacity: int, agent: Any = 0.0) -> tuple[_Shell, SimulatedLink]:
    """Return the shell of a worker, and the link that it talks over."""
    link = SimulatedLink(capacity)
    return _Shell(ReadyFactory([worker]), link, worker.worker_number, agent, None), link


def counting_worker(length: int = 1) -> CountingWorker:
    return CountingWorker(0, lambda number: length, speed=1, at_once=1)


def turns(shell: _Shell, link: SimulatedLink, *commands: Any, until: Callable[[], bool] | None = None) -> list[Any]:
    """Send commands, let the shell act until it waits (or `until`), and return what came back."""
    link.inbox.extend(commands)
    while shell._machine.state is WorkerState.STREAMING or link.inbox or (shell._backlog and link.has_room):
        if until is not None and until():
            break
        shell._turn()
    came = list(link.outbox)
    link.outbox.clear()
    return came


def test_a_new_version_drops_the_messages_that_were_kept() -> None:
    """What had not been sent when the next version began is not sent any more."""
    shell, link = shell_of(counting_worker(), capacity=1)
    assert [Started] == [type(message) for message in turns(shell, link, Start(1, lease=(range(3),)))]
    assert [Batch] == [type(message) for message in shell._backlog]
    assert [(Started, 2)] == [(type(message), message.version) for message in turns(shell, link, Start(2))]


def test_a_new_version_drops_the_episodes_that_waited() -> None:
    """Episodes that ended under one version are not sent under the next one."""
    shell, link = shell_of(counting_worker(), capacity=9)
    turns(shell, link, Start(1, lease=(range(9),)), until=lambda: shell._counted > 0)
    came = turns(shell, link, Start(2, lease=(range(50, 52),)))
    assert [(range(50, 52),)] == [message.numbers for message in came if isinstance(message, Batch)]


def test_a_lease_of_what_was_kept_back_is_complete() -> None:
    """With no room at all until the end, everything comes, in order, and the stop's answer last."""
    shell, link = shell_of(counting_worker(), capacity=1)
    came = turns(shell, link, Start(1, lease=(range(4),)))
    link.outbox.append("in the way")
    turns(shell, link, Continue((range(4, 7),)), until=lambda: bool(shell._backlog))
    link.outbox.append("in the way")
    turns(shell, link, Stop(), until=lambda: not link.inbox)
    while shell._backlog:
        came += turns(shell, link)
    numbers = [n for message in came if isinstance(message, Batch) for n in lease_numbers(message.numbers)]
    assert list(range(4)) == numbers[:4]
    returned = [message for message in came if isinstance(message, Returned)]
    assert sorted([*numbers, *returned[-1].numbers]) == list(range(7))
    assert returned[-1] is came[-1]


def test_a_failed_update_is_tried_again_with_every_start() -> None:
    """No version runs on without an update that failed: each one reports it."""
    shell, link = shell_of(counting_worker(), capacity=9)
    bad = Pickled(b"no pickle")
    came = turns(shell, link, Start(1), Start(2, agent_update=bad, lease=(range(3),)), Start(3, lease=(range(3),)))
    assert [Started, Failed, Failed] == [type(message) for message in came]
    errors = [unpack_error(message.error) for message in came if isinstance(message, Failed)]
    assert [PolicyLoadError] * 2 == [type(error) for error in errors]
    assert [1, 2, 3] == [message.version for message in came]


def test_work_before_the_first_update_is_a_fault() -> None:
    """A lease without a `Start` is reported, and the worker waits."""
    shell, link = shell_of(counting_worker(), capacity=9)
    (failed,) = turns(shell, link, Continue((range(3),)))
    assert isinstance(failed, Failed)
    error = unpack_error(failed.error)
    assert isinstance(error, InternalError)
    assert "before its first update" in error.message
    assert shell._machine.state is WorkerState.FAILED


@pytest.mark.parametrize(("kind", "what"), [(EnvLoadError, "environment"), (PolicyLoadError, "policy")])
def test_what_cannot_be_unpickled_says_what_it_was(kind: type[RolloutError], what: str) -> None:
    """The error's class and its one line tell which of the two it was; other values pass through."""
    with pytest.raises(kind, match=f"^the {what} cannot be unpickled in the worker: ") as caught:
        load_pickled(Pickled(b"no pickle"), kind)
    assert caught.value.hint
    assert (None, 5) == (load_pickled(None, kind), load_pickled(5, kind))


def test_a_part_tells_the_length_of_the_whole_episode() -> None:
    """Where a run ends is decided by whole episodes, also when one travels in parts."""
    whole = chunk_of([7], lambda number: 6)
    part = replace(whole.rows(0, 2), part=Part(0, 3, 0, 6, 0))
    batches = [Batch.of(chunk, 0, 1, None) for chunk in (whole, part)]
    assert [((range(7, 8),), [6])] * 2 == [(batch.numbers, batch.lengths.tolist()) for batch in batches]
