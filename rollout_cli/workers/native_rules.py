"""What EpisodeRules ask of the rows of a vector environment: actions within bounds, and episodes that end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from rollout_cli.errors import EnvError
from rollout_cli.spaces import space_leaves
from rollout_cli.workers.row_episodes import RowEpisodes
from rollout_cli.workers.rules import ENDLESS_HINT, EpisodeRules, endless

_OWN_LIMIT_HINT = (
    "the environment resets its rows itself, so a limit must be its own, as in --env-kwargs max_episode_steps=N; "
    "--episode-step-guard says how long an episode without a limit may get"
)


class RowClipping:
    """Moves the numbers of all rows' actions to the nearest bounds of their Boxes.

    Other spaces have no nearest value: what lies outside of them, and nan, stays as it is for others to refuse.

    Args:
        space: Of one row's action.
        n_rows: n.
    """

    def __init__(self, space: spaces.Space[Any], n_rows: int) -> None:
        leaves = space_leaves(space)
        self._boxes = [leaf.space if isinstance(leaf.space, spaces.Box) else None for leaf in leaves]
        self._n_rows = n_rows

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """Return one value a leaf, (n, *shape); the policy's own arrays are left as they are."""
        return [self._clipped(leaf, box) for leaf, box in zip(leaves, self._boxes, strict=True)]

    def _clipped(self, leaf: Any, box: spaces.Box | None) -> Any:
        # Before it takes on the Box's type: a number that this has no room for would become another one.
        if box is None or np.shape(leaf) != (self._n_rows, *box.shape):
            return leaf  # What is wrong with it is told when it is recorded.
        values = np.asarray(leaf)
        return np.clip(values, box.low, box.high) if values.dtype.kind in "biuf" else leaf


class EndlessGuard:
    """Finds an episode that goes on and on, and looks at the rows only when one of them can have come so far.

    Attributes:
        look_at: The step after which to look.

    Args:
        rules: How long an episode may get.
        row_bytes: The bytes of one row's observation.
        step: The number of the step that comes next.
        resets_itself: Whether the environment resets its rows, so that the run cannot limit their episodes.
        worker_number: Which worker this is, for messages.
    """

    def __init__(
        self, rules: EpisodeRules, *, row_bytes: int, step: int, resets_itself: bool, worker_number: int
    ) -> None:
        self._most = rules.most_steps(row_bytes)
        self._hint = _OWN_LIMIT_HINT if resets_itself else ENDLESS_HINT
        self._worker_number = worker_number
        self.look_at = step + self._most

    def look(self, episodes: RowEpisodes, step: int) -> None:
        """Look at the episodes that run after so many steps.

        Raises:
            EnvError: If one of them has no end; it has the episode's number.
        """
        row = int(episodes.starts.argmin())
        # Rows that run nothing have not begun, and those that begin from now on have as far to go as the next step.
        first = min(int(episodes.starts[row]), step)
        if step - first >= self._most:
            number = int(episodes.numbers[row])
            place = f"worker {self._worker_number}, episode {number}, row {row}"
            error = EnvError(f"{endless(step - first)} ({place})", hint=self._hint)
            error.episode = number
            raise error
        self.look_at = first + self._most
