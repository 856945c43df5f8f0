"""How long an episode may get that no limit ends.

The command line's help tells it, so this imports nothing.
"""

STEP_GUARD = 1_000_000
"""Steps after which it is taken to have no end."""

GUARD_BYTES = 8 << 30
"""Bytes of observations after which it is, too: an episode is kept in memory until it ends."""
