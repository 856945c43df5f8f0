"""An environment that writes down every reset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.envs import ChainEnv


class CountingEnv(ChainEnv):
    """Appends the seed of every reset to a file.

    Args:
        log: The file's path.
    """

    def __init__(self, log: str) -> None:
        super().__init__()
        self._log = Path(log)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        with self._log.open("a") as file:
            file.write(f"{seed}\n")
        return super().reset(seed=seed, options=options)
