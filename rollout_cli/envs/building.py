"""Building an environment: the package that registers its id, the call that makes it, and what may fail."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import load_env_creator

from rollout_cli.errors import EnvLoadError, RolloutError
from rollout_cli.loading import failure, needing, reporting

Env = gymnasium.Env[Any, Any]

_PIP_LINE = re.compile(r"`(pip install [^`]+)`")


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


def call_builder(
    factory: Callable[..., Any], kwargs: Mapping[str, Any], name: str, creator: Any = None
) -> Any:
    """Return the result of a constructor or factory; its EnvLoadError says what to install or check.

    `creator` is the class, function or entry point that `factory` calls with the arguments, where that is
    another one.
    """
    try:
        return factory(**kwargs)
    except RolloutError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        lines = _PIP_LINE.findall(str(error))
        raise EnvLoadError(
            f"{name!r} needs a package that is missing: {error}",
            hint=f"run {' && '.join(lines)}" if lines else "install the package that it names",
        ) from error
    except (Exception, SystemExit) as error:
        hint = "the traceback below shows where"
        if isinstance(error, ModuleNotFoundError) and error.name:
            hint = f"install the package that provides {error.name!r}"
        elif isinstance(error, TypeError) and kwargs:
            _check_arguments(creator or factory, kwargs, name, error)
        raise failure(EnvLoadError, f"{name!r} cannot be built", error, hint=hint) from error


def _check_arguments(creator: Any, kwargs: Mapping[str, Any], name: str, error: TypeError) -> None:
    """Raise an EnvLoadError that names an argument that `creator` does not take, and those that it takes."""
    taken = parameters_of(creator)
    unknown = [key for key in kwargs if key not in taken and "**" not in taken.values()]
    if unknown:
        similar = "".join(
            f"did you mean {key!r}? " for key in difflib.get_close_matches(unknown[0], taken, n=1)
        )
        raise EnvLoadError(
            f"{name!r} takes no argument {unknown[0]!r}",
            hint=f"{similar}it takes {', '.join(taken) or 'none'}",
        ) from error


def parameters_of(creator: Any) -> Mapping[str, str]:
    """Return the names that a class, function or entry point takes; the value of one for any name is `**`."""
    function = load_env_creator(creator) if isinstance(creator, str) else creator
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # Built in a language that has no signatures.
        return {"kwargs": "**"}
    return {
        parameter.name: "**" if parameter.kind is parameter.VAR_KEYWORD else "" for parameter in parameters
    }


def checked_env(built: Any, name: str) -> Env:
    """Return what was built, or raise EnvLoadError where it is no environment for one agent."""
    if isinstance(built, gymnasium.Env):
        return built
    refuse_agents(built, name)
    hint = "name a single environment, its class, a factory or an EnvSpec"
    if any(kind.__module__.partition(".")[0] == "gym" for kind in type(built).__mro__):
        hint = (
            "let a factory return shimmy.GymV21CompatibilityV0(env=…), "
            "or GymV26CompatibilityV0 from gym 0.26 on: pip install shimmy"
        )
    raise EnvLoadError(
        f"{name!r} is no gymnasium.Env, but an object of type {type(built).__name__}", hint=hint
    )


def refuse_agents(built: Any, name: str) -> None:
    """Raise EnvLoadError for an environment of several agents, as PettingZoo's are."""
    if not isinstance(built, gymnasium.Env | type) and (
        hasattr(built, "possible_agents") or hasattr(built, "agents")
    ):
        raise EnvLoadError(
            f"{name!r} is a multi-agent environment, as those of PettingZoo are, "
            "and `rollout` runs one agent",
            hint="let a factory return a gymnasium.Env for one agent, which plays the others itself, "
            "or a vector environment with a row for each agent, "
            "as SuperSuit makes one of a parallel environment",
        )
