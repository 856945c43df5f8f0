"""Refusal of nested runs: a worker that imports an unguarded script must not start that script's workers."""

from __future__ import annotations

import traceback
from pathlib import Path

from rollout_cli.errors import UserCodeError

_PACKAGE = Path(__file__).parents[1]
_WORKERS = {str(_PACKAGE / "samplers" / name) for name in ("worker_loop.py", "queue_worker.py")}
"""The modules that call user code in a worker."""


def refuse_in_worker(what: str) -> None:
    """Raise UserCodeError if this is called from a worker, most likely while it imports the user's script."""
    stack = traceback.extract_stack()
    if not _WORKERS.isdisjoint(frame.filename for frame in stack):
        caller = [frame for frame in stack if _PACKAGE not in Path(frame.filename).parents][-1]
        raise UserCodeError(
            f"{what} was used in a worker, which would start further workers",
            code="nested-workers",
            hint="put the main part of the script under `if __name__ == '__main__':`; "
            "workers import the module that a SPEC such as `module:attr` names",
            place=f"{caller.filename}, line {caller.lineno}",
        )
