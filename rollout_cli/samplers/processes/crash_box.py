"""CrashBox: a worker's notes and traceback, which its sampler can read after the worker's death.

The box is an unnamed file that both processes have open. The worker maps its first part into memory and notes
the running episodes there, by writing one word per episode. The traceback of a fatal signal or of the
exception that ended the process follows. The sampler also reads the notes of live workers, to detect stuck
ones.
"""

from __future__ import annotations

import faulthandler
import io
import mmap
import os
import signal
import tempfile

import numpy as np
import numpy.typing as npt

from rollout_cli.samplers.supervision import Notes
from rollout_cli.workers.values import NullCrashBox

MOST_ROWS = (1 << 16) - 3
"""Maximum number of rows in the notes; with more rows the running episodes are unknown, and have no time-out."""

_BEATS, _BUSY, _N_ROWS, _ROWS = range(4)  # Offsets into the notes, in 8-byte words.
_NOTES_BYTES = 8 * (_ROWS + MOST_ROWS)
_MOST_STORY = 1 << 16
_STORY_LINES = 24
_LINE_LENGTH = 400


def new_box() -> io.FileIO:
    """Return the file of a new, empty box; it disappears when the last process closes it."""
    if hasattr(os, "memfd_create"):
        file = io.FileIO(os.memfd_create("rollout-crash-box"), "r+")
    else:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  The caller closes it.
    file.truncate(_NOTES_BYTES)
    return file


class CrashBox(NullCrashBox):
    """The worker's side of a `new_box` file. Numbers are stored plus one, since a new box is all zeros."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # A memoryview stores one word faster than an array.
        self._words = memoryview(mmap.mmap(descriptor, _NOTES_BYTES)).cast("q")
        self._rows = np.frombuffer(self._words, np.int64)[_ROWS:]

    def catch_signals(self) -> None:
        """Enable faulthandler, so that the traceback of a fatal signal is written to the box."""
        os.lseek(self._descriptor, _NOTES_BYTES, os.SEEK_SET)
        faulthandler.enable(file=self._descriptor, all_threads=False)

    def note(self, numbers: npt.NDArray[np.int64]) -> None:
        self._words[_N_ROWS] = len(numbers)
        if len(numbers) <= MOST_ROWS:
            self._rows[: len(numbers)] = numbers + 1

    def begin(self, row: int, number: int) -> None:
        if row < MOST_ROWS:
            self._words[_ROWS + row] = number + 1
        self._words[_N_ROWS] = max(self._words[_N_ROWS], row + 1)

    def step(self) -> None:
        self._words[_BEATS] += 1

    def begin_turn(self) -> None:
        self._words[_BEATS] += 1
        self._words[_BUSY] = 1

    def end_turn(self) -> None:
        self._words[_BUSY] = 0

    def write_story(self, text: str) -> None:
        """Write the traceback of an exception that ends the process."""
        os.pwrite(self._descriptor, text.encode(errors="backslashreplace")[-_MOST_STORY:], _NOTES_BYTES)


def read_notes(box: io.FileIO) -> Notes:
    """Return a snapshot of the worker's notes."""
    beats, busy, n_rows = np.frombuffer(os.pread(box.fileno(), 8 * _ROWS, 0), np.int64).tolist()
    if not 0 <= n_rows <= MOST_ROWS:
        return Notes(beats, bool(busy), None)
    rows = np.frombuffer(os.pread(box.fileno(), 8 * n_rows, 8 * _ROWS), np.int64)
    return Notes(beats, bool(busy), tuple((rows[rows > 0] - 1).tolist()))


def read_story(box: io.FileIO) -> str:
    """Return the traceback in a dead worker's box, cut to a readable length; empty for none."""
    text = os.pread(box.fileno(), _MOST_STORY, _NOTES_BYTES).decode(errors="backslashreplace")
    lines = [line[:_LINE_LENGTH] for line in text.strip().splitlines()]
    if len(lines) > _STORY_LINES:
        # The failing line is first in a signal's traceback, and last in an exception's.
        half = _STORY_LINES // 2
        lines[half:-half] = [f"  ... ({len(lines) - 2 * half} lines) ..."]
    return "\n".join(lines)


def how_it_ended(status: int, story: str) -> tuple[str, str]:
    """Return a description and a hint for an exit code as returned by `os.waitstatus_to_exitcode`."""
    if status >= 0:
        raised = story.rsplit("\n", 1)[-1][:200]
        reason = f"ended with exit code {status}"
        if raised:
            reason += f" ({raised})"
        return reason, ""
    if -status == signal.SIGKILL:
        return (
            "was killed by SIGKILL (maybe by the out-of-memory killer)",
            "use fewer workers to reduce memory; `dmesg` lists processes that the out-of-memory killer ended",
        )
    names = {number.value: number.name for number in signal.Signals}
    return f"was killed by {names.get(-status, f'signal {-status}')}", ""
