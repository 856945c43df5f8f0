"""What a soak test says when it fails."""

from __future__ import annotations


class SoakError(AssertionError):
    """What was promised did not hold."""
