"""The crash box: what a worker leaves for its sampler to find after its death, and how a death is put into words.

The box is a file without a name that both processes have open. Its first part is mapped into the worker's memory: there
a worker notes which episodes run, by one word written an episode. Behind it follows the traceback of a fatal signal or
of the exception that ended the process. The sampler reads it while the worker lives, too, to see one that is stuck.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import mmap
import os
import signal
import struct
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rollout_cli.workers.worker import NO_NUMBER

MOST_ROWS = (1 << 16) - 3
"""Episodes of further rows are not noted; the box then does not say which episodes run."""

_BEATS, _BUSY, _N_ROWS, _ROWS = range(4)
_NOTES_BYTES = 8 * (_ROWS + MOST_ROWS)
_MOST_STORY = 1 << 16
_STORY_LINES = 24
_LINE_LENGTH = 400


def new_box() -> io.FileIO:
    """Return the file of a new box, empty; it vanishes with the last process that has it open.

    Raises:
        OSError: If there can be no more files.
    """
    if hasattr(os, "memfd_create"):
        file = io.FileIO(os.memfd_create("rollout-crash-box"), "r+")
    else:
        with tempfile.TemporaryFile() as named:
            file = io.FileIO(os.dup(named.fileno()), "r+")
    file.truncate(_NOTES_BYTES)
    return file


class CrashBox:
    """The worker's side.

    Args:
        descriptor: Of a file of `new_box`.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._words = np.frombuffer(mmap.mmap(descriptor, _NOTES_BYTES), np.int64)
        self._row_words = memoryview(self._words.data)[_ROWS:]  # A memoryview stores one word faster than an array.
        self._n_rows = 0

    def catch_signals(self) -> None:
        """Let the traceback of a fatal signal go into the box."""
        os.lseek(self._descriptor, _NOTES_BYTES, os.SEEK_SET)
        faulthandler.enable(file=self._descriptor, all_threads=False)

    def note(self, numbers: npt.NDArray[np.int64]) -> None:
        """Note the episodes of all rows at once, int64 (n_rows,), NO_NUMBER for a row that runs none."""
        self._n_rows = self._words[_N_ROWS] = len(numbers)
        if len(numbers) <= MOST_ROWS:
            self._words[_ROWS : _ROWS + len(numbers)] = numbers

    def begin(self, row: int, number: int) -> None:
        """Note that a row runs this episode."""
        if row >= self._n_rows:
            self.note(np.append(self._words[_ROWS : _ROWS + self._n_rows], [NO_NUMBER] * (row + 1 - self._n_rows)))
        self._row_words[row] = number

    def step(self) -> None:
        """Note that the worker is alive: the beats of one that is stuck in a step stand still."""
        self._words[_BEATS] += 1

    def begin_turn(self) -> None:
        """Note that the worker's episodes run from now on."""
        self._words[_BEATS] += 1
        self._words[_BUSY] = 1

    def end_turn(self) -> None:
        """Note that the worker builds, waits or sends: whatever ends it now, no episode did."""
        self._words[_BUSY] = 0

    def write_story(self, text: str) -> None:
        """Add the traceback of an exception that ends the process."""
        os.pwrite(self._descriptor, text.encode(errors="backslashreplace")[-_MOST_STORY:], _NOTES_BYTES)


@dataclass(frozen=True, slots=True)
class Notes:
    """What a box said at one moment.

    Attributes:
        beats: Turns and steps that were begun.
        busy: Whether the worker was in a turn, rather than waiting or sending.
        numbers: The episodes that had begun and not ended; None where the box cannot say.
    """

    beats: int
    busy: bool
    numbers: tuple[int, ...] | None


def read_notes(box: io.FileIO) -> Notes:
    """Return what the worker noted."""
    beats, busy, n_rows = struct.unpack("<3q", os.pread(box.fileno(), 8 * _ROWS, 0))
    if not 0 <= n_rows <= MOST_ROWS:
        return Notes(beats, bool(busy), None)
    rows = struct.unpack(f"<{n_rows}q", os.pread(box.fileno(), 8 * n_rows, 8 * _ROWS))
    return Notes(beats, bool(busy), tuple(number for number in rows if number != NO_NUMBER))


def read_story(box: io.FileIO) -> str:
    """Return the traceback that a dead worker left, cut to a length that people read; empty where it left none."""
    text = os.pread(box.fileno(), _MOST_STORY, _NOTES_BYTES).decode(errors="backslashreplace")
    lines = [line[:_LINE_LENGTH] for line in text.strip().splitlines()]
    if len(lines) > _STORY_LINES:
        # A signal's traceback begins with where it struck, an exception's ends with it.
        half = _STORY_LINES // 2
        lines[half:-half] = [f"  ... ({len(lines) - 2 * half} lines) ..."]
    return "\n".join(lines)


# -- stuck workers -----------------------------------------------------------------------------------------------------

_LOOKS = 8
_SHORTEST, _LONGEST = 0.02, 1.0


@dataclass(slots=True)
class Watch:
    """Keeps account of how long a worker's step and episodes take. Only time within its turns counts.

    Args:
        step_timeout: Seconds that one step may take, with the reset before it; None for any time.
        episode_timeout: Seconds that one episode may take; None for any time.
    """

    step_timeout: float | None
    episode_timeout: float | None
    _looked_at: float | None = None
    _notes: Notes = Notes(0, busy=False, numbers=())
    _stuck: float = 0.0
    _running: dict[int, float] = field(default_factory=dict)

    @property
    def tick(self) -> float | None:
        """Return how many seconds may pass between two looks; None where nothing is watched."""
        limits = [limit for limit in (self.step_timeout, self.episode_timeout) if limit is not None]
        return min(max(min(limits) / _LOOKS, _SHORTEST), _LONGEST) if limits else None

    def look(self, notes: Notes, now: float) -> tuple[str, tuple[int, ...]] | None:
        """Take what a worker noted at the time `now` (seconds).

        Returns:
            None, or why it is to be killed, and the episodes that took too long (none where it was a step).
        """
        tick, before, at = self.tick, self._notes, self._looked_at
        if tick is None or (at is not None and now - at < tick):
            return None
        self._notes, self._looked_at = notes, now
        numbers = notes.numbers or ()
        if not (notes.busy and before.busy and numbers and at is not None):
            self._stuck = 0.0
            return None
        # The sampler may have been away for long; nobody knows what the worker did meanwhile.
        elapsed = min(now - at, 2 * tick)
        self._stuck = self._stuck + elapsed if before == notes else 0.0
        self._running = {
            number: self._running.get(number, 0.0) + elapsed if number in (before.numbers or ()) else 0.0
            for number in numbers
        }
        return self._overdue()

    def _overdue(self) -> tuple[str, tuple[int, ...]] | None:
        if self.step_timeout is not None and self._stuck > self.step_timeout:
            return f"was killed, since a step took longer than {self.step_timeout:g} s,", ()
        limit = self.episode_timeout
        late = tuple(number for number, seconds in self._running.items() if limit is not None and seconds > limit)
        if not late:
            return None
        which = f"episode {late[0]}" if len(late) == 1 else f"each of {len(late)} episodes"
        return f"was killed, since {which} took longer than {limit:g} s,", late


# -- deaths in words ---------------------------------------------------------------------------------------------------

_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


def how_it_ended(status: int, story: str, oom_kills: int) -> tuple[str, str]:
    """Return in words how a worker ended, and a hint.

    Args:
        status: As `os.waitstatus_to_exitcode` gives it.
        story: What `read_story` gave.
        oom_kills: How many processes the system has killed meanwhile because it had no memory.
    """
    if status >= 0:
        raised = story.rsplit("\n", 1)[-1][:200]
        return f"ended with exit code {status}" + (f" ({raised})" if raised else ""), ""
    name = _SIGNAL_NAMES.get(-status, f"signal {-status}")
    if -status != signal.SIGKILL:
        return f"was killed by {name}", ""
    if oom_kills:
        return f"was killed by the out-of-memory killer ({name})", "use fewer workers, or a smaller environment"
    return f"was killed by {name} (maybe by the out-of-memory killer)", (
        "fewer workers need less memory; `dmesg` shows what the system killed for want of it"
    )


def count_oom_kills() -> int:
    """Return how many processes Linux has killed for want of memory since it started; 0 where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
