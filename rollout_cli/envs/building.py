"""Building an environment from what a source holds, with an error that says what to do where that fails."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.vector import VectorEnv

from rollout_cli.errors import EnvLoadError, RolloutError, UserCodeError
from rollout_cli.user_code import PickleFile, failure

Env = gymnasium.Env[Any, Any]

_PIP_LINE = re.compile(r"`(pip install [^`]+)`")
_INSTANCE_HINT = "name a class, a factory or a gymnasium EnvSpec instead of an environment, or leave the arguments away"


def build_env(found: Any, kwargs: Mapping[str, Any], name: str) -> Env:
    """Build an environment from a gymnasium EnvSpec, an environment class, a factory, or an environment.

    Args:
        found: One of these. An environment is returned as it is.
        kwargs: Arguments of the constructor or factory, or what `gymnasium.make` takes beside the EnvSpec.
        name: What to call it in messages.

    Raises:
        EnvLoadError: If it is none of these, raises, gives no environment, or is an environment and there are `kwargs`.
    """
    if isinstance(found, GymSpec):
        return make_env(found, kwargs, name)
    if isinstance(found, gymnasium.Env):
        if kwargs:
            raise EnvLoadError(
                f"{name} is an environment already, so it takes no arguments ({', '.join(kwargs)})", hint=_INSTANCE_HINT
            )
        return found
    if not callable(found) or _foreign_kind(found):
        raise _no_env(found, name)
    return checked_env(called_builder(found, kwargs, name), name)


def copy_env(env: Env, name: str) -> Env:
    """Return a copy of an environment that a module holds, so that no two workers step the same one.

    Raises:
        EnvLoadError: If it cannot be pickled.
    """
    hint = f"let {name} be a class or a factory, which builds an environment for each worker"
    return checked_env(PickleFile.of(env, EnvLoadError, hint=hint).load(EnvLoadError), name)


def each_its_own(updates: Sequence[Any]) -> list[Any]:
    """Return updates for several rows, with a copy of an environment wherever it was given for another row already.

    Raises:
        EnvLoadError: If it cannot be pickled.
    """
    given: set[int] = set()
    apart = []
    for update in updates:
        is_again = isinstance(update, gymnasium.Env) and id(update) in given
        given.add(id(update))
        apart.append(copy_env(update, "the environment") if is_again else update)
    return apart


def make_env(spec: str | GymSpec, kwargs: Mapping[str, Any], name: str) -> Env:
    """Call `gymnasium.make`.

    Raises:
        EnvLoadError: If the id is unknown (similar ones are named), a package is missing, or it raises.
    """
    return checked_env(called_builder(lambda **options: gymnasium.make(spec, **options), kwargs, name), name)


def registered_spec(env_id: str) -> GymSpec:
    """Return the EnvSpec of a gymnasium id; a module that registers it was imported before.

    Raises:
        EnvLoadError: If there is none (similar ids are named).
    """
    try:
        return gymnasium.spec(env_id.rpartition(":")[2])
    except gymnasium.error.Error as error:
        raise EnvLoadError(f"there is no environment {env_id!r}", hint=similar_ids(env_id)) from error


def called_builder(factory: Callable[..., Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """Return what a constructor or factory gives.

    Raises:
        EnvLoadError: If it raises; the hint tells what to install or check.
    """
    try:
        return factory(**kwargs)
    except RolloutError:
        raise
    except gymnasium.error.UnregisteredEnv as error:
        raise EnvLoadError(f"there is no environment {name!r}", hint=similar_ids(name)) from error
    except gymnasium.error.DependencyNotInstalled as error:
        lines = _PIP_LINE.findall(str(error))
        hint = f"run {' && '.join(lines)}" if lines else "install the package that it names"
        raise EnvLoadError(f"{name!r} needs a package that is missing: {error}", hint=hint) from error
    except (Exception, SystemExit) as error:
        raise _build_failure(error, kwargs, name) from error


def _build_failure(error: BaseException, kwargs: Mapping[str, Any], name: str) -> UserCodeError:
    hint = "the traceback below shows where"
    if isinstance(error, ModuleNotFoundError) and error.name:
        hint = f"install what provides {error.name!r}"
    elif isinstance(error, TypeError) and kwargs:
        hint = f"check that it takes these arguments: {', '.join(kwargs)}"
    return failure(EnvLoadError, f"{name!r} cannot be built", error, hint=hint)


def similar_ids(name: str) -> str:
    """Return a hint that names the registered ids most like `name`."""
    by_lower = {env_id.lower(): env_id for env_id in gymnasium.registry}
    similar = difflib.get_close_matches(name.partition(":")[2].lower() or name.lower(), by_lower, n=3, cutoff=0.7)
    if similar:
        return f"did you mean {' or '.join(by_lower[env_id] for env_id in similar)}?"
    return "another package's environment is named with the module that registers it, as in ale_py:ALE/Pong-v5"


def checked_env(built: Any, name: str) -> Env:
    """Return `built` if it is an environment.

    Raises:
        EnvLoadError: If it is not; the hint tells what to do for kinds that are often met.
    """
    if not isinstance(built, gymnasium.Env):
        raise _no_env(built, name)
    return built


def _no_env(found: Any, name: str) -> EnvLoadError:
    hint = _foreign_kind(found) or "name a gymnasium.Env, its class, a factory, or a gymnasium EnvSpec"
    return EnvLoadError(f"{name!r} is no gymnasium.Env, but an object of type {type(found).__name__}", hint=hint)


def _foreign_kind(found: Any) -> str:
    """Return what to do about a kind of environment that is not gymnasium's; empty for anything else."""
    if isinstance(found, VectorEnv):
        return "name the single environment: rollout runs as many of them as are asked for"
    if any(base.__module__.split(".")[0] == "gym" for base in type(found).__mro__):
        return "it is of the old gym package: wrap it with shimmy (GymV21CompatibilityV0 or GymV26CompatibilityV0)"
    return ""
