"""Messages: what crosses the pipe arrives as it was sent."""

from __future__ import annotations

import pickle

import pytest

from rollout_cli.chunk import Part, pack, unpack
from rollout_cli.errors import EnvError, InternalError, PolicyError
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
    drop_above,
    lease_numbers,
)
from rollout_cli.samplers.reports import as_reported, pack_error, unpack_error
from tests.unit.samplers.simulation import SPEC

MESSAGES = [
    Start(3, Pickled(b"agent"), None, (range(2, 5), range(9, 20, 3)), 15),
    Continue((range(4),), None),
    Stop(),
    Exit(),
    Started(1, 3, SPEC, {"policy_class": "a.B"}),
    Batch(1, 3, (4, 7), (10, 2), b"payload"),
    Batch(1, 3, (4,), (10,), b"payload", Part(0, 2, 0, 10, 5)),
    Returned(1, 3, (5, 6)),
    Failed(1, 3, b"error"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_the_pipe(message: object) -> None:
    """Packed and unpacked, a message equals itself."""
    assert message == unpack(b"".join(pack(message)))


@pytest.mark.parametrize("protocol", [4, 5])
def test_batches_survive_a_queue(protocol: int) -> None:
    """A queue pickles with a protocol of its own choice; the payload comes through with each."""
    batch = Batch(1, 3, (4, 7), (10, 2), memoryview(bytearray(b"payload")))
    assert b"payload" == bytes(pickle.loads(pickle.dumps(batch, protocol)).payload)


def test_large_payloads_are_not_copied_into_the_message() -> None:
    """The payload is a piece of its own, written from where it is."""
    payload = bytearray(1000)
    pieces = pack(Batch(0, 1, (0,), (1,), payload))
    payload[0] = 7
    assert 7 == pieces[-1][0]


def test_leases_are_numbers() -> None:
    """A lease of ranges stands for the numbers in them; a ceiling leaves those up to it."""
    numbers = lease_numbers((range(2, 5), range(9, 20, 3)))
    assert [2, 3, 4, 9, 12, 15, 18] == numbers
    assert {2, 3, 4, 9} == drop_above(numbers, 9)
    assert set(numbers) == drop_above(numbers, None)


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
