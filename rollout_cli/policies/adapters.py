"""Making a Policy of what the user has: recognised by what it offers, and refused where that could mean two things."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyLoadError, RolloutError
from rollout_cli.policies.base import Policy
from rollout_cli.policies.completed import complete_callable, complete_policy, own_method
from rollout_cli.policies.predict import PredictPolicy
from rollout_cli.policies.signatures import accepts_positional, parameters, required
from rollout_cli.policies.torch_module import TorchPolicy, is_torch_module
from rollout_cli.user_code import failure

ACCEPTED = (
    "a policy offers get_action or get_actions, offers predict, is a torch.nn.Module, or is called as f(observation)"
)


def adapt_policy(candidate: Any, env_spec: EnvSpec, *, deterministic: bool = False) -> Policy:
    """Make a Policy of a policy object.

    The first of these that fits: `get_action` or `get_actions` (used as it is where the protocol is complete, so that a
    step costs no further call), `predict`, a `torch.nn.Module`, a plain callable.

    Args:
        candidate: The object. It is not copied: a module is put into eval mode, and a boolean attribute `deterministic`
            is set where that is asked for.
        env_spec: The spaces that it is for.
        deterministic: Whether it must not explore. A kind without such a mode is refused, since a run that explores
            would pass for one that does not.

    Raises:
        PolicyLoadError: If it is none of these, or has no deterministic mode where one is asked for.
    """
    if not inspect.isclass(candidate):
        if own_method(candidate, "get_action") or own_method(candidate, "get_actions"):
            return complete_policy(candidate, env_spec, deterministic=deterministic)
        if own_method(candidate, "predict"):
            return PredictPolicy(candidate, env_spec, deterministic=deterministic)
        if is_torch_module(candidate):
            return TorchPolicy(candidate, env_spec, deterministic=deterministic)
        if callable(candidate):
            return complete_callable(candidate, env_spec, deterministic=deterministic)
    raise PolicyLoadError(f"{_describe(candidate)} is no policy", hint=ACCEPTED)


def _describe(candidate: Any) -> str:
    if inspect.isclass(candidate):
        return f"the class {candidate.__name__}"
    methods = [name for name in dir(candidate) if not name.startswith("_") and own_method(candidate, name)]
    offers = f", which offers {', '.join(methods[:8])}," if methods else ""
    return f"an object of type {type(candidate).__name__}{offers}"


def instantiate(found: Any, env_spec: EnvSpec) -> Any:
    """Return the policy object that a pickle or `module:attr` stands for: itself, or what the class or factory makes.

    - A class is called: with nothing, or with the `EnvSpec` where it needs one argument or has one named `env_spec`.
    - A function is a factory where it needs no argument, or has one named `env_spec`, which gets the `EnvSpec`. One
      that needs one argument of another name is itself a policy, called as f(observation).

    Raises:
        PolicyLoadError: If a class or factory needs more arguments, or raises.
    """
    if inspect.isclass(found):
        return _build(found, env_spec)
    is_policy = is_torch_module(found) or any(own_method(found, verb) for verb in _POLICY_VERBS)
    if callable(found) and not is_policy and (_takes_env_spec(found) or accepts_positional(found, 0)):
        return _build(found, env_spec)
    return found


_POLICY_VERBS = ("get_action", "get_actions", "predict")


def _takes_env_spec(factory: Callable[..., Any]) -> bool:
    return any(parameter.name == "env_spec" for parameter in parameters(factory))


def _build(factory: Callable[..., Any], env_spec: EnvSpec) -> Any:
    name = getattr(factory, "__qualname__", repr(factory))
    needed = required(factory)
    if len(needed) > 1:
        raise PolicyLoadError(
            f"{name} needs the arguments {', '.join(needed)}; a policy class or factory gets the EnvSpec or nothing",
            hint="name a function without further arguments that builds the policy",
        )
    try:
        if _takes_env_spec(factory):
            return factory(env_spec=env_spec)
        return factory(env_spec) if needed else factory()
    except RolloutError:
        raise
    except Exception as error:
        given = "with the EnvSpec" if needed else "without arguments"
        hint = "the traceback below shows where"
        raise failure(PolicyLoadError, f"{name}, called {given}, raised an error", error, hint=hint) from error


def policy_class(policy: Policy) -> str:
    """Return the dotted name of the user's own class or function behind `policy`, for the record."""
    own = getattr(policy, "wrapped", policy)
    named = own if inspect.isroutine(own) else type(own)
    return f"{named.__module__}.{named.__qualname__}"
