"""StopRequests: when a stream is to end early, and when it has ended at the latest."""

from __future__ import annotations

import math
import time

_clock = time.monotonic


class StopRequests:
    """The requests for one stream, of which the earliest counts. The handler of a signal may add one."""

    def __init__(self) -> None:
        # Of each when it begins, and when it is over: an append cannot be interrupted by a handler. The first
        # stands for no request.
        self._moments = [(math.inf, math.inf)]

    def add(self, *, grace: float, after: float) -> None:
        """Let the stream end `after` so many seconds; `grace` more are left to running episodes."""
        begins_at = _clock() + after
        self._moments.append((begins_at, begins_at + grace))

    @property
    def has_begun(self) -> bool:
        """Whether the stream should be ending by now."""
        return _clock() >= min(self._moments)[0]

    @property
    def is_over(self) -> bool:
        """Whether it should have ended by now."""
        return _clock() >= min(self._moments)[1]
