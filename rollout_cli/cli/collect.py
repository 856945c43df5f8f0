"""`rollout collect`."""

from __future__ import annotations

from rollout_cli.cli.collecting import run_collection
from rollout_cli.cli.options import Arguments, with_declared_options


@with_declared_options("collect")
def collect(arguments: Arguments) -> None:
    """Run a policy in an environment for N steps or N episodes, and write a dataset.

    Episodes are whole, and those kept do not depend on how many workers there are or which of them is fastest.
    """
    run_collection("collect", arguments)
