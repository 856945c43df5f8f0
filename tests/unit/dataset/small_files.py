"""Limits under which a few episodes of nine steps make several files."""

from __future__ import annotations

from rollout_cli.dataset import CutLimits

TINY = CutLimits(shard_bytes=3000, min_shard_bytes=500, group_bytes=1000, group_rows=20)
