"""Encoders: in order, bounded, and their errors reach the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from rollout_cli.dataset.encoding import Encoder, EncodingThread, InlineEncoder, Work

MakeEncoder = Callable[[], Encoder]
both = pytest.mark.parametrize("make", [InlineEncoder, EncodingThread])


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Of these tests; others in this process act out deaths, which leave theirs behind."""
    before = encoding_threads()
    yield
    assert before == encoding_threads()


def encoding_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "rollout-encoding"}


def fail() -> None:
    raise ZeroDivisionError


def submit_all(encoder: Encoder, pieces: Sequence[Work]) -> None:
    for work in pieces:
        encoder.submit(work)
    encoder.finish()


@both
def test_work_is_done_in_the_order_in_which_it_was_given(make: MakeEncoder) -> None:
    """All of it, when `finish` returns."""
    done: list[int] = []
    encoder = make()
    for number in range(50):
        encoder.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    encoder.finish()
    assert list(range(50)) == done


@both
def test_nothing_is_begun_after_an_error_which_every_verb_raises(make: MakeEncoder) -> None:
    """But `stop`, once it was told."""
    done: list[int] = []
    encoder = make()
    with pytest.raises(ZeroDivisionError):
        submit_all(encoder, [fail, lambda: done.append(1)])
    for verb in (encoder.check, encoder.finish, lambda: encoder.submit(lambda: done.append(2))):
        with pytest.raises(ZeroDivisionError):
            verb()
    assert encoder.stop() is None
    assert [] == done


@both
def test_an_encoder_without_work_can_be_ended(make: MakeEncoder) -> None:
    """By either verb, in any order, more than once."""
    before = encoding_threads()
    encoder = make()
    encoder.finish()
    assert encoder.stop() is None
    encoder.finish()
    assert before == encoding_threads()


def test_a_thread_does_the_work_while_the_caller_goes_on() -> None:
    """The caller lets it end."""
    encoder, go_on, names = EncodingThread(), threading.Event(), []

    def work() -> None:
        assert go_on.wait(10)
        names.append(threading.current_thread().name)

    encoder.submit(work)
    assert [] == names
    go_on.set()
    encoder.finish()
    assert ["rollout-encoding"] == names


def test_a_caller_that_is_ahead_blocks() -> None:
    """One runs, two wait, and the fourth is taken only when the first has ended."""
    encoder, go_on, taken = EncodingThread(max_waiting=2), threading.Event(), []
    began = threading.Event()

    def work() -> None:
        began.set()
        assert go_on.wait(10)

    def submit() -> None:
        for number in range(4):
            encoder.submit(work)
            taken.append(number)

    caller = threading.Thread(target=submit)
    caller.start()
    assert began.wait(10)
    caller.join(0.2)
    assert caller.is_alive()
    assert len(taken) <= 3
    go_on.set()
    caller.join(10)
    encoder.finish()
    assert [0, 1, 2, 3] == taken


def test_a_caller_that_blocks_is_let_go_by_an_error() -> None:
    """It hears of it at the next call."""
    encoder, go_on = EncodingThread(max_waiting=1), threading.Event()

    def fail_late() -> None:
        assert go_on.wait(10)
        raise ZeroDivisionError

    encoder.submit(fail_late)
    threading.Timer(0.05, go_on.set).start()
    with pytest.raises(ZeroDivisionError):
        submit_all(encoder, [lambda: None] * 9)
    assert encoder.stop() is None


def test_stop_drops_what_waits_and_lets_end_what_runs() -> None:
    """So nothing changes any more when it returns."""
    encoder, began, go_on, done = EncodingThread(), threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        assert go_on.wait(10)
        done.append("runs")

    encoder.submit(work)
    assert began.wait(10)
    encoder.submit(lambda: done.append("waits"))
    threading.Timer(0.05, go_on.set).start()
    assert encoder.stop() is None
    assert ["runs"] == done


def test_stop_returns_an_error_that_nobody_was_told() -> None:
    """So that it is not swallowed."""
    encoder, failed = EncodingThread(), threading.Event()

    def work() -> None:
        failed.set()
        raise ZeroDivisionError

    encoder.submit(work)
    assert failed.wait(10)
    assert isinstance(encoder.stop(), ZeroDivisionError)
