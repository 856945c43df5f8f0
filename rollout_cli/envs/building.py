"""Building an environment: the package that registers its id, the call that makes it, and what may fail."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from rollout_cli.errors import EnvLoadError, RolloutError, misspelt
from rollout_cli.keywords import Keywords
from rollout_cli.sources.loading import failure, is_interrupt, needing, reporting

Env = gymnasium.Env[Any, Any]

_TUPLE = re.compile(r"\btuple\b", re.IGNORECASE)
_SEQUENCE = re.compile(r"\b(list|\w*sequence|iterable|collection)\b", re.IGNORECASE)
_PIP_LINE = re.compile(r"`(pip install [^`]+)`")


_HOMES = (
    (r"ALE/|.*NoFrameskip-v", "ale_py", "ale-py"),
    (r"(MiniGrid|BabyAI)-", "minigrid", "minigrid"),
    (r"dm_control/", "shimmy", "shimmy[dm-control]"),
    (r"GymV21Environment-", "shimmy", "shimmy[gym-v21]"),
    (r"GymV26Environment-", "shimmy", "shimmy[gym-v26]"),
    (r"(highway|merge|roundabout|parking|intersection|racetrack|exit)-", "highway_env", "highway-env"),
    (r"Fetch|Hand|PointMaze|AntMaze|Adroit|FrankaKitchen", "gymnasium_robotics", "gymnasium-robotics"),
    (r"Meta-World/", "metaworld", "metaworld"),
    (
        r"(visual-)?(pointmaze|antmaze|humanoidmaze|antsoccer|cube|scene|puzzle)-|powderworld-",
        "ogbench",
        "ogbench",
    ),
)
"""How the ids begin that a package registers when it is imported; its module, and its name for pip."""


def home_of(env_id: str) -> tuple[str, str]:
    """Return the package of the table that registers an id: its module and its name for pip, or ("", "")."""
    for ids, module, package in _HOMES:
        if re.match(ids, env_id):
            return module, package
    return "", ""


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
    module, package = home_of(env_id)
    if not module:
        module = package = env_id.partition("/")[0].replace("-", "_")
        if "/" not in env_id or not module.isidentifier() or importlib.util.find_spec(module) is None:
            return
    problem = f"importing {module!r}, which registers {env_id!r}, failed"
    with reporting(EnvLoadError, problem, code="import-failed"), needing(package, module):
        importlib.import_module(module)


def call_builder(factory: Callable[..., Any], kwargs: Keywords, name: str, creator: Any = None) -> Any:
    """Return the result of a constructor or factory; its EnvLoadError says what to install or check.

    `creator` is the class, function or entry point that `factory` calls with the arguments, where that is
    another one.
    """
    try:
        return factory(**_with_tuples(creator or factory, kwargs))
    except RolloutError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        lines = _PIP_LINE.findall(str(error))
        raise EnvLoadError(
            f"{name!r} needs a package that is missing: {error}",
            code="env-package-missing",
            hint=f"run {' && '.join(lines)}" if lines else "install the package that it names",
        ) from error
    except BaseException as error:
        if is_interrupt(error):
            raise
        hint = "the traceback below shows where"
        if isinstance(error, ModuleNotFoundError) and error.name:
            hint = f"install the package that provides {error.name!r}"
        elif isinstance(error, TypeError) and kwargs:
            _check_arguments(creator or factory, kwargs, name, error)
        raise failure(
            EnvLoadError, f"{name!r} cannot be built", error, code="env-build", hint=hint
        ) from error


def _with_tuples(creator: Any, kwargs: Keywords) -> Keywords:
    """Return the arguments, a list as a tuple where its annotation asks for one: TOML and JSON have none."""
    lists = {name: value for name, value in kwargs.items() if isinstance(value, list)}
    if not lists:
        return kwargs
    converted = dict(kwargs)
    parameters = parameters_of(creator)
    for name, value in lists.items():
        annotation = parameters.get(name, "")
        if _TUPLE.search(annotation) and not _SEQUENCE.search(annotation):
            converted[name] = tuple(value)
    return converted


def _check_arguments(creator: Any, kwargs: Keywords, name: str, error: TypeError) -> None:
    """Raise an EnvLoadError that names an argument that `creator` does not take, and those that it takes."""
    parameters = parameters_of(creator)
    for key in kwargs:
        if key not in parameters and "**" not in parameters.values():
            raise EnvLoadError(
                f"{name!r} takes no argument {key!r}",
                code="env-argument",
                hint=f"{misspelt(key, parameters)} it takes {', '.join(parameters) or 'none'}".lstrip(),
            ) from error


def parameters_of(creator: Any) -> Mapping[str, str]:
    """Return by name what a class, function or entry point takes: its annotation, or `**` for any name."""
    if isinstance(creator, str):
        creator = load_env_creator(creator)
    try:
        parameters = inspect.signature(creator).parameters
    except (TypeError, ValueError):  # Built in a language that has no signatures.
        return {"kwargs": "**"}
    annotations = {}
    for name, parameter in parameters.items():
        is_any = parameter.kind is parameter.VAR_KEYWORD
        annotations[name] = "**" if is_any else str(parameter.annotation)
    return annotations


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
        f"{name!r} is no gymnasium.Env, but an object of type {type(built).__name__}",
        code="env-not-gymnasium",
        hint=hint,
    )


def refuse_agents(built: Any, name: str) -> None:
    """Raise EnvLoadError for an environment of several agents, as PettingZoo's are."""
    # PettingZoo's parallel environments may have no agents before a reset; their spaces are methods.
    is_method = callable(getattr(built, "observation_space", None))
    if not isinstance(built, gymnasium.Env | type) and (
        is_method or hasattr(built, "possible_agents") or hasattr(built, "agents")
    ):
        raise EnvLoadError(
            f"{name!r} is a multi-agent environment, as those of PettingZoo are, "
            "and `rollout` runs one agent",
            code="env-multi-agent",
            hint="let a factory return a gymnasium.Env for one agent, which plays the others itself, "
            "or a vector environment with a row for each agent, "
            "as SuperSuit makes one of a parallel environment",
        )
