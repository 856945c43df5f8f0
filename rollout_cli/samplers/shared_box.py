"""SharedBox: a worker's black box and its last words, in memory that its sampler can read after its death."""

from __future__ import annotations

import faulthandler
import mmap
import os
import tempfile
from multiprocessing.reduction import DupFd
from typing import Any

from rollout_cli import black_box
from rollout_cli.black_box import BOX_BYTES, Noted

_LAST_WORDS_BYTES = 1 << 16


class SharedBox:
    """Memory without a name that two processes share: it may be an argument of a process that is started.

    It holds the black box, and behind it whatever a dying worker could still say: the traceback of a fatal signal or
    of an exception that ended it.

    Args:
        descriptor: An anonymous file of at least BOX_BYTES, to be owned by this object.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def create(cls) -> SharedBox:
        """Return new memory, all zero."""
        return cls(_anonymous_file())

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self._the_descriptor()),)

    # -- the worker's side -----------------------------------------------------------------------------------------

    def install(self) -> None:
        """Let this process write its notes here, and its traceback should a signal end it."""
        descriptor = self._the_descriptor()
        black_box.install(mmap.mmap(descriptor, BOX_BYTES))
        os.lseek(descriptor, BOX_BYTES, os.SEEK_SET)
        faulthandler.enable(file=descriptor, all_threads=False)

    def leave_word(self, text: str) -> None:
        """Add to the worker's last words."""
        os.write(self._the_descriptor(), text.encode(errors="backslashreplace")[:_LAST_WORDS_BYTES])

    # -- the sampler's side ----------------------------------------------------------------------------------------

    def noted(self) -> Noted:
        """Return what the worker noted."""
        return Noted.of(os.pread(self._the_descriptor(), BOX_BYTES, 0))

    def last_words(self) -> str:
        """Return the traceback that the worker left as it died; empty where it left none."""
        words = os.pread(self._the_descriptor(), _LAST_WORDS_BYTES, BOX_BYTES)
        return words.decode(errors="backslashreplace").rstrip()

    def close(self) -> None:
        """Let go of the memory."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _the_descriptor(self) -> int:
        assert self._descriptor is not None, "the box was closed"
        return self._descriptor


def _anonymous_file() -> int:
    """Return the descriptor of a file of BOX_BYTES zeros, which goes with the last process that has it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("rollout-box")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, BOX_BYTES)
    return descriptor


def _received(descriptor: Any) -> SharedBox:
    return SharedBox(descriptor.detach())
