"""The black box of a process: a few words of memory in which a worker notes what it does.

In a worker's process the memory is shared with its sampler, which reads it after the worker's death: it then knows
which episodes were running. Elsewhere it is memory like any other, and nobody reads it. A note is one word written,
once an episode or turn, never once a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import setitem
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BOX_BYTES = 1 << 16
NONE = -1
"""What stands in the place of a row that runs no episode."""

_BEATS, _BUSY, _N_ROWS, _ROWS = range(4)
"""Where the words are: how many turns were begun, whether episodes run now, how many rows there are, and theirs."""


@dataclass(frozen=True, slots=True)
class Noted:
    """What a black box tells.

    Attributes:
        beats: How many turns were begun; it stands still while a worker is stuck in one step.
        busy: Whether a worker was running episodes just then, rather than waiting or sending.
        begun: The episodes that run; None where that is not told.
    """

    beats: int
    busy: bool
    begun: tuple[int, ...] | None

    @classmethod
    def of(cls, memory: bytes) -> Noted:
        """Return what stands in a black box's memory."""
        words = np.frombuffer(memory, np.int64)
        n_rows = int(words[_N_ROWS])
        begun = words[_ROWS : _ROWS + n_rows]
        told = tuple(begun[begun != NONE].tolist()) if 0 < n_rows <= len(words) - _ROWS else None
        return cls(int(words[_BEATS]), bool(words[_BUSY]), told)


class BlackBox:
    """Writes the notes.

    Args:
        memory: BOX_BYTES writable bytes, all zero.
    """

    def __init__(self, memory: Any) -> None:
        self._words = memoryview(memory).cast("q")

    def begin_turn(self) -> None:
        """Note that episodes run from now on, and that the worker is alive."""
        self._words[_BEATS] += 1
        self._words[_BUSY] = 1

    def end_turn(self) -> None:
        """Note that no episode runs just now."""
        self._words[_BUSY] = 0

    def forget_rows(self) -> None:
        """Forget all rows: a new worker is built in the process."""
        self._words[_N_ROWS] = 0

    def new_row(self) -> Callable[[int], None]:
        """Return what notes, of one more environment, the number of the episode that it begins, and NONE at its end."""
        row = self._words[_N_ROWS]
        self._words[_N_ROWS] = row + 1
        # More rows than there is room for share the last place; the box then tells nothing of any of them.
        note: Callable[[int], None] = partial(setitem, self._words, min(_ROWS + row, len(self._words) - 1))
        note(NONE)
        return note

    def table(self, height: int, n_rows: int) -> Array:
        """Return an int64 array (height, n_rows), whose first row is for what `n_rows` environments run; all NONE.

        It lies in the box, so that nothing need be noted beside it, unless there is no room for it there. All earlier
        rows are forgotten.
        """
        size = height * n_rows
        if size > len(self._words) - _ROWS:
            self._words[_N_ROWS] = 0
            return np.full((height, n_rows), NONE)
        table = np.frombuffer(self._words, np.int64, size, _ROWS * self._words.itemsize).reshape(height, n_rows)
        table[:] = NONE
        self._words[_N_ROWS] = n_rows
        return table


_of_process = BlackBox(bytearray(BOX_BYTES))


def black_box() -> BlackBox:
    """Return the black box of this process."""
    return _of_process


def install(memory: Any) -> None:
    """Let the black box of this process be in `memory`, BOX_BYTES writable bytes, from now on."""
    global _of_process  # noqa: PLW0603  One process has one.
    _of_process = BlackBox(memory)
