"""Ids of environments that gymnasium does not know yet: which package registers them, and its import."""

from __future__ import annotations

import importlib
import importlib.util
from typing import NamedTuple

import gymnasium

from rollout_cli.errors import EnvLoadError
from rollout_cli.loading import needing, reporting


class _Home(NamedTuple):
    """A package that registers ids when it is imported."""

    module: str
    package: str  # The name that pip installs it by.
    prefixes: tuple[str, ...]
    middle: str | None = None  # A text in the middle of older ids.

    def has(self, env_id: str) -> bool:
        """Return whether an id looks like one of this package."""
        return env_id.startswith(self.prefixes) or (self.middle is not None and self.middle in env_id)


_ROBOTICS = ("Fetch", "Hand", "PointMaze", "AntMaze", "Adroit", "FrankaKitchen")
_HIGHWAY = ("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-", "exit-")
_OGBENCH = ("pointmaze-", "antmaze-", "humanoidmaze-", "antsoccer-", "cube-", "scene-", "puzzle-")
_HOMES = (
    _Home("ale_py", "ale-py", ("ALE/",), "NoFrameskip-v"),
    _Home("minigrid", "minigrid", ("MiniGrid-", "BabyAI-")),
    _Home("shimmy", "shimmy[dm-control]", ("dm_control/",)),
    _Home("shimmy", "shimmy[gym-v21]", ("GymV21Environment-",)),
    _Home("shimmy", "shimmy[gym-v26]", ("GymV26Environment-",)),
    _Home("highway_env", "highway-env", _HIGHWAY),
    _Home("gymnasium_robotics", "gymnasium-robotics", _ROBOTICS),
    _Home("metaworld", "metaworld", ("Meta-World/",)),
    _Home("ogbench", "ogbench", (*_OGBENCH, "powderworld-", *(f"visual-{name}" for name in _OGBENCH))),
)


def register_home(env_id: str) -> None:
    """Import the package that registers an id, where gymnasium lacks the id and its package is known.

    Beside a table of prefixes, an id `name/Env-v0` belongs to the installed package `name`.

    Raises:
        UsageError: If a package of the table is not installed.
        EnvLoadError: If importing it fails.
    """
    # gymnasium itself registers the two of shimmy, as errors that name it.
    if env_id in gymnasium.registry and not env_id.startswith("GymV2"):
        return
    home = next((home for home in _HOMES if home.has(env_id)), None)
    if home is None:
        module = env_id.partition("/")[0].replace("-", "_")
        if "/" not in env_id or not module.isidentifier() or importlib.util.find_spec(module) is None:
            return
        home = _Home(module, module, ())
    what = f"importing {home.module!r}, which registers {env_id!r}, failed"
    with reporting(EnvLoadError, what), needing(home.package, home.module):
        importlib.import_module(home.module)
