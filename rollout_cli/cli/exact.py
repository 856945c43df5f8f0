"""`rollout exact`."""

from __future__ import annotations

from rollout_cli.cli.collecting import run_collection
from rollout_cli.cli.options import Arguments, with_declared_options


@with_declared_options("exact")
def exact(arguments: Arguments) -> None:
    """Collect exactly N episodes from each worker, in worker order, and write a dataset."""
    run_collection("exact", arguments)
