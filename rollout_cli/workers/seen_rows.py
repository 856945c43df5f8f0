"""What each row of a VecWorker saw last, as its policy gets it: one at a time, or as a batch."""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium
import numpy as np

from rollout_cli.policies.rows import SpaceRows
from rollout_cli.spaces import empty_column, space_leaves


class Seen(Protocol):
    """What n rows saw last. A row that does not run keeps it.

    Attributes:
        copies: Whether `put` copies what it gets.
    """

    copies: bool

    def put(self, row: int, observation: Any) -> None:
        """Take what a row sees, of its space's type; a private copy, unless `copies`."""


class SeenSamples:
    """Samples of any space, for policies that get one at a time.

    Attributes:
        latest: One a row; None where it has seen nothing.

    Args:
        n_rows: How many rows.
    """

    copies = False

    def __init__(self, n_rows: int) -> None:
        self.latest: list[Any] = [None] * n_rows

    def put(self, row: int, observation: Any) -> None:
        """Take what a row sees."""
        self.latest[row] = observation


class SeenBatch(Protocol):
    """Rows of which batches are made."""

    copies: bool

    def put(self, row: int, observation: Any) -> None:
        """Copy what a row sees."""

    def batch(self) -> Any:
        """Return all rows as a tree of arrays (n, *shape) that nobody else holds; zeros where one has seen nothing."""


class SeenColumns:
    """Samples of any space, in one array a leaf.

    Args:
        space: Of one row.
        n_rows: How many rows.
    """

    copies = True

    def __init__(self, space: gymnasium.Space[Any], n_rows: int) -> None:
        self._rows = SpaceRows(space)
        self._columns = [empty_column(leaf, n_rows) for leaf in self._rows.leaves]

    def put(self, row: int, observation: Any) -> None:
        """Copy what a row sees."""
        for column, value in zip(self._columns, self._rows.columns(observation), strict=True):
            column[row] = value

    def batch(self) -> Any:
        """Return all rows."""
        # A copy, for a policy may edit what it is given, and rows that do not run must see the same again.
        return self._rows.tree([column.copy() for column in self._columns])


class SeenBytes:
    """Arrays of one space, as the bytes that are recorded of each: a batch is joined from them.

    That takes a third of writing each row into an array.

    Attributes:
        latest: The bytes of each row's last observation. Whoever has recorded them may put them in.

    Args:
        space: Of one row; see `EpisodeRecorder.plain_dtype`.
        n_rows: How many rows.
    """

    copies = True

    def __init__(self, space: gymnasium.Space[Any], n_rows: int) -> None:
        (leaf,) = space_leaves(space)
        self._dtype, self._shape = np.dtype(leaf.dtype.type), (n_rows, *leaf.shape)
        self.latest = [bytes(leaf.row_bytes)] * n_rows

    def put(self, row: int, observation: Any) -> None:
        """Copy what a row sees."""
        self.latest[row] = observation.tobytes()

    def batch(self) -> Any:
        """Return all rows."""
        # A bytearray rather than bytes, so that the policy may write to it.
        return np.frombuffer(bytearray().join(self.latest), self._dtype).reshape(self._shape)
