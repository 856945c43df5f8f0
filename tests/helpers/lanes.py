"""Lanes: run code as on another operating system, without what only Linux or POSIX has.

`python -m tests.helpers.lanes LANE COMMAND ... --then COMMAND ...` runs `rollout COMMAND ...` in a lane.
`hide(LANE)` changes this process. A lane shows that the package needs nothing that the other system lacks.
It does not show that the rest behaves there as it does here.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, cast

_NOT_ON_MACOS: dict[str, Any] = {
    "os": ("memfd_create", "sched_getaffinity", "sched_setaffinity", "posix_fadvise"),
    "signal": (),
    "modules": (),
}
_NOT_ON_WINDOWS: dict[str, Any] = {
    "os": (
        *_NOT_ON_MACOS["os"],
        *(
            "fork",
            "forkpty",
            "register_at_fork",
            "killpg",
            "setsid",
            "setpgid",
            "getpgid",
            "getuid",
            "geteuid",
        ),
        *("pread", "pwrite", "O_NOFOLLOW", "getloadavg"),
    ),
    "signal": ("SIGHUP", "SIGKILL", "SIGCHLD", "SIGPIPE", "SIGUSR1", "pthread_sigmask", "sigwait"),
    "modules": ("fcntl", "termios", "resource", "pwd", "grp", "tty", "pty", "syslog"),
}
LANES = {"macos": _NOT_ON_MACOS, "windows": _NOT_ON_WINDOWS}


def hide(lane: str) -> None:
    """Remove what the lane's system lacks from this process; packages that need it themselves are imported first."""
    import asyncio  # noqa: F401 - of the standard library: on POSIX it needs parts that Windows lacks
    import subprocess  # noqa: F401

    hidden = LANES[lane]
    for module, names in ((os, hidden["os"]), (signal, hidden["signal"])):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in hidden["modules"]:
        sys.modules[name] = cast("Any", None)  # Its import raises ImportError.


def _run_all(words: list[str]) -> int:
    """Run commands one after the other, up to the first that fails."""
    from rollout_cli.cli.app import run

    while words:
        at = words.index("--then") if "--then" in words else len(words)
        if code := run(words[:at]):
            sys.stderr.write(f"failed: {words[:at]}\n")
            return code
        words = words[at + 1 :]
    return 0


if __name__ == "__main__":
    hide(sys.argv[1])
    sys.exit(_run_all(sys.argv[2:]))
