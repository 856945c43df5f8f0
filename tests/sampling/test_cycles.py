"""What the soak's cycles count."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import cycles


def test_names_of_other_programs_are_not_held_by_samplers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray, a browser or a user may put files into shared memory while samplers start and stop."""
    monkeypatch.setattr(cycles, "SHARED", tmp_path)
    for name, named in (("plasmaX1", 0), ("folder", 0), ("sem.mp-1", 1), ("psm_1", 2), ("pym-7-1", 3)):
        (tmp_path / name).touch()
        assert named == cycles.Holdings.now().named
