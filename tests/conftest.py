"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# The same examples every time, and none that fails because the machine was busy.
settings.register_profile("rollout", deadline=None, derandomize=True)
settings.load_profile("rollout")
