"""Messages: what crosses the pipe arrives as it was sent."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from rollout_cli.chunk import Part
from rollout_cli.errors import EnvError, InternalError, PolicyError
from rollout_cli.packing import pack, unpack
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
    from_wire,
    lease_numbers,
    to_wire,
)
from rollout_cli.samplers.reports import as_reported, pack_error, unpack_error
from tests.unit.samplers.counting_worker import SPEC

MESSAGES = [
    Start(3, Pickled(b"agent"), None, (range(2, 5), range(9, 20, 3)), 15),
    Continue((range(4),), None),
    Stop(),
    Exit(),
    Started(1, 3, SPEC, {"policy_class": "a.B"}),
    Returned(1, 3, (5, 6)),
    Failed(1, 3, b"error"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_the_pipe(message: object) -> None:
    """Packed and unpacked, a message equals itself."""
    assert message == unpack(b"".join(pack(message)))


PAYLOAD = tuple(pack(np.arange(10)))

BATCHES = [
    Batch(
        1,
        3,
        (range(4, 6), range(7, 8)),
        np.array([10, 2, 5]),
        PAYLOAD,
        None,
        "a reason",
    ),
    Batch(1, 3, (range(4, 5),), np.array([10]), PAYLOAD, Part(0, 2, 0, 10, 5)),
]


def fields_of(batch: Batch) -> tuple[Any, ...]:
    lengths = (batch.lengths.dtype, batch.lengths.tolist())
    whose = (batch.worker, batch.version, batch.numbers)
    return *whose, *lengths, b"".join(batch.payload), batch.part, batch.not_reproducible


@pytest.mark.parametrize("batch", BATCHES, ids=["episodes", "part"])
def test_batches_survive_the_pipe(batch: Batch) -> None:
    """Packed and unpacked, a batch has what it had."""
    assert fields_of(batch) == fields_of(unpack(b"".join(pack(batch))))


@pytest.mark.parametrize("batch", BATCHES, ids=["episodes", "part"])
@pytest.mark.parametrize("protocol", [4, 5])
def test_batches_survive_a_queue(batch: Batch, protocol: int) -> None:
    """A queue pickles with a protocol of its own choice; a batch comes through with each."""
    assert fields_of(batch) == fields_of(pickle.loads(pickle.dumps(batch, protocol)))


def test_lengths_do_not_hold_on_to_the_message() -> None:
    """Lengths are kept until a run's end is known; the memory that was read from the pipe must go before."""
    message = bytearray(b"".join(pack(BATCHES[0])))
    lengths = unpack(message).lengths
    message.extend(b"more")  # It could not be made longer while anything refers to it.
    assert [10, 2, 5] == lengths.tolist()


def test_every_number_of_a_batch_has_a_length() -> None:
    """Numbers and lengths that do not match are an error where the batch is made, also from what was sent."""
    with pytest.raises(ValueError, match=r"lengths of 2 episodes, and numbers \(range\(4, 7\),\)"):
        Batch(1, 3, (range(4, 7),), np.array([10, 2]), ())


def test_a_story_does_not_tell_payloads() -> None:
    """What is noted of each event for an error is short, however much the event brings."""
    assert len(repr(Batch(1, 3, (range(900),), np.ones(900, np.int64), (b"payload" * 1000,)))) < 120


@pytest.mark.parametrize("message", [*MESSAGES, *BATCHES], ids=lambda message: type(message).__name__)
def test_what_goes_over_the_wire_comes_as_it_was(message: object) -> None:
    """Batches and other messages come out of one piece of memory; a payload is one view of it, in its order."""
    data = bytearray(b"".join(to_wire(message)))
    arrived = from_wire(memoryview(data))
    if not isinstance(message, Batch):
        assert message == arrived
        return
    assert fields_of(message) == fields_of(arrived)
    assert np.shares_memory(np.frombuffer(arrived.payload[0], np.uint8), np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("cut", [1, 40, 79])
def test_a_payload_that_is_not_whole_is_refused(cut: int) -> None:
    """What says that it is longer than it is would be found out only when its turn to be handed on has come."""
    data = b"".join(to_wire(BATCHES[0]))[:-cut]
    with pytest.raises(ValueError, match="a payload of"):
        from_wire(memoryview(data))


def test_payloads_are_not_copied_into_the_message() -> None:
    """The payload's pieces are pieces of the message, written from where they are."""
    payload = bytearray(10), bytearray(1000)
    pieces = to_wire(Batch(0, 1, (range(1),), np.array([1]), payload))
    assert pieces[-2] is payload[0]
    assert pieces[-1] is payload[1]


def test_leases_are_numbers() -> None:
    """A lease of ranges stands for the numbers in them."""
    assert [2, 3, 4, 9, 12, 15, 18] == lease_numbers((range(2, 5), range(9, 20, 3)))


def test_pickled_takes_what_the_main_script_defines() -> None:
    """A lambda crosses by value; None stays None, which means that there is nothing."""
    message = Pickled.of(lambda: 5)
    assert message is not None
    assert 5 == message.load()()
    assert Pickled.of(None) is None


def failing_user_code() -> None:
    raise ValueError("broken\nwith a second line")


def test_an_error_of_user_code_keeps_its_own_traceback() -> None:
    """What a policy or environment raised becomes the details, from the user's first frame on."""
    error = EnvError("env.step raised", hint="see below")
    try:
        failing_user_code()
    except ValueError as cause:
        error.__cause__ = cause
    reported = unpack_error(pack_error(error))
    assert (EnvError, "env.step raised", "see below") == (type(reported), reported.message, reported.hint)
    assert "in failing_user_code" in reported.details
    assert "ValueError: broken" in reported.details


def test_the_users_error_is_looked_for_below_ours() -> None:
    """What was told its place on the way keeps the user's traceback; where all is ours, there is none to show."""
    adapters, placed = PolicyError("no pair"), PolicyError("no pair (worker 0)")
    placed.__cause__ = adapters
    assert "" == as_reported(placed).details
    try:
        failing_user_code()
    except ValueError as cause:
        adapters.__cause__ = cause
    details = as_reported(placed).details
    assert "in failing_user_code" in details
    assert "PolicyError" not in details


def test_errors_that_cause_one_another_end_somewhere() -> None:
    """An error raised from itself, or two from each other, have no cause of the user's, and the search ends."""
    itself, first, second = EnvError("itself"), EnvError("first"), EnvError("second")
    itself.__cause__ = itself
    first.__cause__, second.__cause__ = second, first
    assert ["", "", ""] == [as_reported(error).details for error in (itself, first, second)]


def test_any_other_error_is_ours() -> None:
    """What is no error of ours is reported as a fault of this package, in one line, with all of its traceback."""
    try:
        failing_user_code()
    except ValueError as error:
        reported = as_reported(error)
    assert (InternalError, "a worker failed: ValueError: broken") == (type(reported), reported.message)
    assert "in failing_user_code" in reported.details


def test_details_that_are_there_stay() -> None:
    """An error that already tells its story is not given another one."""
    error = PolicyError("policy.get_action raised", details="the story")
    error.__cause__ = ValueError("a cause")
    assert "the story" == as_reported(error).details
