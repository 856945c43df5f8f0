"""SpillStore: payloads come back as they were put, from memory or from disk, and the disk gets its space back."""

from __future__ import annotations

import contextlib
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.samplers import spill
from rollout_cli.samplers.spill import Handle, Payload, SpillStore


def joined(payload: Payload | bytes) -> bytes:
    return payload if isinstance(payload, bytes) else b"".join(payload)


@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=40),
    memory=st.sampled_from([0, 100, 1000]),
    data=st.data(),
)
def test_every_payload_comes_back_as_it_was(sizes: list[int], memory: int, data: st.DataObject) -> None:
    """In any order of putting and taking, over several segments, a payload is what it was."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(spill, "SEGMENT_BYTES", 500)
        store = stack.enter_context(closing(SpillStore(memory_limit=memory, disk_limit=1 << 20)))
        kept: list[tuple[Handle, Payload]] = []
        for at, size in enumerate(sizes):
            payload = (bytes([at]) * (size // 2), bytearray([at]) * (size - size // 2))
            kept.append((store.put(payload), payload))
            while data.draw(st.booleans()) and kept:
                handle, expected = kept.pop(data.draw(st.integers(0, len(kept) - 1)))
                assert joined(expected) == joined(store.take(handle))
        for handle, expected in kept:
            assert joined(expected) == joined(store.take(handle))
        assert 0 == store.on_disk


def test_memory_is_used_first_and_again() -> None:
    """Only what has no place in memory goes to disk; a payload that was taken makes room."""
    store = SpillStore(memory_limit=10, disk_limit=100)
    first = store.put([b"12345", b"678"])
    second = store.put([b"abcd"])
    assert 4 == store.on_disk
    store.take(first)
    store.put([b"87654321"])
    assert 4 == store.on_disk
    assert b"abcd" == store.take(second)
    assert 0 == store.on_disk


def test_full_when_the_disk_limit_is_reached() -> None:
    """Payloads that leave a rest of memory unused do not keep the store from being full."""
    store = SpillStore(memory_limit=10, disk_limit=8)
    handles = [store.put([b"1234567"]) for _ in range(2)]
    before = store.is_full
    handles.append(store.put([b"1234567"]))
    assert (False, True) == (before, store.is_full)
    while handles:
        store.take(handles.pop())
    assert 0 == store.on_disk
    assert before == store.is_full


def open_files() -> set[str]:
    """Return what this process has open under the name of a spill file."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # The listing's own descriptor.
            links.append(str(entry.readlink()))
    return {link for link in links if "rollout-spill-" in link or link.startswith(f"{tempfile.gettempdir()}/#")}


def test_files_have_no_name_and_are_closed() -> None:
    """A spill file is unlinked from the start, and closing the store gives its space back at once."""
    store = SpillStore(memory_limit=0, disk_limit=100)
    before = open_files()
    store.put([b"payload"])
    (link,) = open_files() - before
    assert link.endswith(" (deleted)")
    store.close()
    assert before == open_files()
