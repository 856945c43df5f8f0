"""Building an environment: import of the package that registers its id, the constructor call, and errors."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from rollout_cli.envs.functional.protocol import missing_attributes
from rollout_cli.errors import EnvLoadError, RolloutError, misspelt
from rollout_cli.keywords import Keywords
from rollout_cli.sources.loading import failure, is_interrupt, needing, reporting

Env = gymnasium.Env[Any, Any]

_TUPLE = re.compile(r"\btuple\b", re.IGNORECASE)
_SEQUENCE = re.compile(r"\b(list|\w*sequence|iterable|collection)\b", re.IGNORECASE)
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
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
"""A pattern for the ids that a package registers when it is imported, its module, and its pip name."""


def home_of(env_id: str) -> tuple[str, str]:
    """Return the module and pip name of the known package that registers an id, or ("", "")."""
    for ids, module, package in _HOMES:
        if re.match(ids, env_id):
            return module, package
    return "", ""


def register_home(env_id: str) -> None:
    """Import the package that registers an id, if gymnasium does not have the id and the package is known.

    An id `name/Env-v0` that is not in the table belongs to the installed package `name`.

    Raises:
        UsageError: A package of the table is not installed.
        EnvLoadError: The import fails.
    """
    # gymnasium registers the two ids of shimmy itself; building them raises an error that names shimmy.
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
    """Return the result of a constructor or factory.

    `creator` is the class, function or entry point that `factory` passes the arguments to, if it is not
    `factory` itself.

    Raises:
        EnvLoadError: The call fails; the hint names what to install or check.
    """
    try:
        return factory(**_with_tuples(creator or factory, kwargs))
    except RolloutError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        commands = " && ".join(_PIP_LINE.findall(str(error)))
        raise EnvLoadError(
            f"{name!r} needs a missing package: {error}",
            code="env-package-missing",
            hint=f"run {commands}" if commands else "install the missing package",
        ) from error
    except BaseException as error:
        if is_interrupt(error):
            raise
        hint = "see the traceback below"
        if isinstance(error, ModuleNotFoundError) and error.name:
            hint = f"install the package that provides {error.name!r}"
        elif isinstance(error, TypeError) and kwargs:
            _check_arguments(creator or factory, kwargs, name, error)
        raise failure(EnvLoadError, f"cannot build {name!r}", error, code="env-build", hint=hint) from error


def _with_tuples(creator: Any, kwargs: Keywords) -> Keywords:
    """Return the arguments, with a list as a tuple if the annotation is a tuple: TOML and JSON have no tuples."""
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
    """Raise EnvLoadError if `creator`, or what it passes any arguments to, does not have one of the arguments."""
    parameters = parameters_of(creator)
    takes_any = "**" in parameters.values()
    refused = _UNEXPECTED.findall(str(error)) if takes_any else kwargs.keys() - parameters.keys()
    for key in kwargs:
        if key in refused:
            hint = misspelt(key, parameters) or f"use one of: {', '.join(parameters) or 'none'}"
            if takes_any:
                hint = "see the environment's documentation for its arguments"
            raise EnvLoadError(f"{name!r} has no argument {key!r}", code="env-argument", hint=hint) from error


def parameters_of(creator: Any) -> Mapping[str, str]:
    """Return the annotations of the parameters of a class, function or entry point; `**` for any keyword."""
    if isinstance(creator, str):
        creator = load_env_creator(creator)
    try:
        parameters = inspect.signature(creator).parameters
    except (TypeError, ValueError):  # Implemented in C, without a signature.
        return {"kwargs": "**"}
    annotations = {}
    for name, parameter in parameters.items():
        is_any = parameter.kind is parameter.VAR_KEYWORD
        annotations[name] = "**" if is_any else str(parameter.annotation)
    return annotations


def checked_env(built: Any, name: str) -> Env:
    """Return `built` if it is a single-agent environment, else raise EnvLoadError."""
    if isinstance(built, gymnasium.Env):
        return built
    refuse_agents(built, name)
    hint = "pass a single environment, its class, a factory or an EnvSpec"
    is_similar = hasattr(built, "reset") and hasattr(built, "step")
    if is_similar and not isinstance(built, gymnasium.vector.VectorEnv):
        hint = f"inherit from gymnasium.Env; a FunctionalEnv of JAX also has {', '.join(missing_attributes(built))}"
    if any(kind.__module__.partition(".")[0] == "gym" for kind in type(built).__mro__):
        hint = (
            "use a factory that returns shimmy.GymV21CompatibilityV0(env=…), "
            "or GymV26CompatibilityV0 for gym 0.26: pip install shimmy"
        )
    raise EnvLoadError(
        f"{name!r} is an object of type {type(built).__name__}, expected a gymnasium.Env",
        code="env-not-gymnasium",
        hint=hint,
    )


def refuse_agents(built: Any, name: str) -> None:
    """Raise EnvLoadError for a multi-agent environment, such as a PettingZoo environment."""
    # A PettingZoo parallel environment may have no agents before a reset, but its spaces are methods.
    is_method = callable(getattr(built, "observation_space", None))
    if not isinstance(built, gymnasium.Env | type) and (
        is_method or hasattr(built, "possible_agents") or hasattr(built, "agents")
    ):
        raise EnvLoadError(
            f"{name!r} is a multi-agent environment, expected a single-agent environment",
            code="env-multi-agent",
            hint="use a factory that returns a gymnasium.Env for one agent, which controls the other agents, "
            "or a vector environment with one row per agent, such as SuperSuit's",
        )
