"""StopRequests: the times at which a stream should start to stop early, and at which it must be over."""

from __future__ import annotations

import math
import time

_clock = time.monotonic


class StopRequests:
    """The stop requests for one stream; the earliest one counts. Signal handlers may add requests."""

    def __init__(self) -> None:
        # Start and end of each request; the first entry means no request. A list, because a signal handler
        # cannot interrupt an append.
        self._moments = [(math.inf, math.inf)]

    def add(self, *, grace: float, after: float) -> None:
        """Stop the stream after `after` seconds, and give running episodes `grace` more seconds to end."""
        starts_at = _clock() + after
        self._moments.append((starts_at, starts_at + grace))

    @property
    def has_started(self) -> bool:
        """Whether the stream should be stopping."""
        return _clock() >= min(self._moments)[0]

    @property
    def is_over(self) -> bool:
        """Whether the stream must end now."""
        return _clock() >= min(self._moments)[1]
