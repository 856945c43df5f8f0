"""Memory for messages is used again once nobody holds what lies in it, and never before."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.buffer_pool import BufferPool, lent_array
from rollout_cli.packing import pack, unpack

SIZE = 1 << 20


def address(view: memoryview) -> int:
    """Return where memory lies."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_memory_comes_back() -> None:
    """What nobody holds any more is lent again, for a message of a like size, too."""
    pool = BufferPool()
    first = pool.take(SIZE)
    place = address(first)
    del first
    assert SIZE == pool.free_bytes
    again = pool.take(SIZE - 1000)
    assert (place, SIZE - 1000, 0) == (address(again), len(again), pool.free_bytes)


@pytest.mark.parametrize(
    "hold",
    [
        lambda view: view[-10:],
        lambda view: np.frombuffer(view, np.uint8)[5:6],
        lambda view: np.asarray(view).reshape(-1, 2)[::3].T,
        lambda view: unpack(view)[1],
    ],
    ids=["slice", "array", "view of an array", "unpacked"],
)
def test_lent_memory_is_not_lent_again(hold: Callable[[memoryview], Any]) -> None:
    """As long as anybody holds a part of it, in whatever way."""
    pool = BufferPool()
    data = b"".join(map(bytes, pack((np.arange(500), np.ones(500)))))
    data += bytes(len(data) % 2)
    view = pool.take(len(data))
    view[:] = data
    held = hold(view)
    before = bytes(held)
    del view
    assert 0 == pool.free_bytes
    pool.take(len(data))[:] = b"\1" * len(data)
    assert before == bytes(held)
    kept = pool.free_bytes
    del held
    assert 2 * kept == pool.free_bytes


def test_much_larger_memory_is_not_lent() -> None:
    """A message gets memory of twice its size at most: the rest would lie idle while it is held."""
    pool = BufferPool()
    pool.take(SIZE)
    half = pool.take(SIZE // 2)
    assert (SIZE // 2, 0) == (len(half), pool.free_bytes)
    pool.take(SIZE)
    small = pool.take(SIZE // 4)
    assert SIZE // 4 == len(small)
    assert address(small) != address(half)


def test_no_more_is_kept_than_allowed() -> None:
    """What comes back beyond the limit goes back to the system."""
    pool = BufferPool(keeps=3 * SIZE)
    views = [pool.take(SIZE) for _ in range(5)]
    assert 0 == pool.free_bytes
    views.clear()
    assert 3 * SIZE == pool.free_bytes


def test_what_does_not_fit_gives_way() -> None:
    """Memory of other sizes does not add up: it goes, as much as is asked for."""
    pool = BufferPool(keeps=100 * SIZE)
    views = [pool.take(SIZE) for _ in range(8)]
    views.clear()
    large = pool.take(4 * SIZE)
    assert (4 * SIZE, 4 * SIZE) == (len(large), pool.free_bytes)


def test_it_may_come_back_in_any_thread() -> None:
    """The encoder's thread is often the last to hold a row group's columns."""
    pool = BufferPool()
    held = [pool.take(SIZE)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert SIZE == pool.free_bytes


def test_memory_goes_with_its_pool() -> None:
    """What is held when the pool is given up stays valid, and is let go when it is not held any more."""
    pool = BufferPool()
    kept, view = pool.take(SIZE), pool.take(SIZE)
    view[:] = b"\1" * SIZE
    lent: Any = view.obj
    block = weakref.ref(lent.base)
    del lent
    del kept
    del pool
    assert b"\1" * SIZE == bytes(view)
    assert block() is not None
    del view
    assert block() is None


@given(st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 5)), max_size=60))
def test_whatever_is_held_keeps_its_bytes(steps: list[tuple[int, int]]) -> None:
    """Views that are held never overlap, whatever is taken and let go between them."""
    pool, held = BufferPool(keeps=4000), dict[int, tuple[memoryview, int]]()
    for at, (size, slot) in enumerate(steps):
        value = at % 256
        held[slot] = pool.take(size), value
        held[slot][0][:] = bytes([value]) * size
        assert all(bytes([other]) * len(view) == bytes(view) for view, other in held.values())
        assert pool.free_bytes <= 4000


@pytest.mark.parametrize(
    ("shape", "kind"), [((3, 2), "f4"), ((5,), "?"), ((4, 1, 3), "i8"), ((0, 2), "f8"), ((3,), "O")]
)
def test_an_array_of_lent_memory_is_an_array_like_any_other(shape: tuple[int, ...], kind: str) -> None:
    """Of any shape and type; what has no bytes that could be lent has memory of its own."""
    pool = BufferPool()
    array = lent_array(shape, np.dtype(kind), lambda _: None, pool.take)
    array[:] = 1
    assert (shape, np.dtype(kind), np.ones(shape).tolist()) == (array.shape, array.dtype, array.astype(float).tolist())
    lends = array.dtype != object and array.size > 0
    assert lends == (array.base is not None)
    del array
    assert lends == (pool.free_bytes > 0)
