"""`rollout` that kills itself: `python -m tests.helpers.victim NOTE CHANGE KIND ARGUMENTS…`.

Every change that it makes on disk goes through `FileStore`, which asks here before each one. Before change
number CHANGE, or with the KIND `commit` before the first change of a commit from there on, this process
writes down in NOTE what it was about to do, and kills itself as `kill -9` would. With 0 it lives, and NOTE
says how many changes there were. (Workers import this module too, so it imports next to nothing.)
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

KINDS = {"any": {"folder", "open", "write", "fsync", "rename", "remove"}, "commit": {"fsync", "rename"}}
"""The operations of `FileStore` that are meant."""


def run(note: Path, last: int, kind: str, arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    from rollout_cli.dataset.store import FileStore
    from rollout_cli.entry import main

    changes = 0

    def before(store: FileStore, operation: str, path: Path) -> None:
        nonlocal changes
        changes += 1
        if last and changes >= last and operation in KINDS[kind]:
            note.write_text(f"{operation} {path}")
            os.kill(os.getpid(), signal.SIGKILL)

    FileStore.before = before  # type: ignore[method-assign,assignment]
    sys.argv = ["rollout", *arguments]
    code = main()
    note.write_text(str(changes))
    return code


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
