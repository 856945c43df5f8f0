"""How worker processes are started, and the fork server that makes them.

A fork server imports what every worker needs, once, and forks workers that are ready. Its imports take as long as a
parent's own, so who knows early that workers will come starts it before importing anything: nothing here, nor in this
package's `__init__`, loads numpy or gymnasium.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Literal

StartMethod = Literal["forkserver", "spawn", "fork"]

_PRELOADED = ["__main__", "rollout_cli.samplers.preloaded"]
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def start_fork_server() -> None:
    """Let the fork server start and import; does not wait for it. One that runs already stays as it is."""
    with one_thread_each():
        forkserver.set_forkserver_preload(_PRELOADED)
        forkserver.ensure_running()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let processes that are started now use one thread for linear algebra: the workers share the cores already."""
    missing = [name for name in _THREAD_VARIABLES if name not in os.environ]
    os.environ.update(dict.fromkeys(missing, "1"))
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]
