"""Making a Policy of what the user has: recognised by what it offers, completed, and checked at each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import SpaceRows, count_rows, map_tree
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.loading import reporting
from rollout_cli.policies.policy import AdaptedPolicy, Tree, is_action_and_info, name_of, named, own_method, stack_infos
from rollout_cli.policies.torch import TorchPolicy, is_torch_module

Array = npt.NDArray[Any]

ACCEPTED = (
    "a policy offers get_action or get_actions, offers predict, is a torch.nn.Module, or is called as f(observation)"
)


def adapt_policy(candidate: Any, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
    """Make a Policy of a policy object.

    The first of these that fits: `get_action` or `get_actions`, `predict`, a `torch.nn.Module`, a plain callable. What
    it lacks of the protocol is supplied, and what it returns is checked for its form: pairs, dictionaries, one row an
    observation. Whether an action lies in its space is the worker's business.

    Args:
        candidate: The object. It is not copied: a module is put into eval mode, and a boolean attribute `deterministic`
            is set where that is asked for.
        env_spec: The spaces that it is for.
        deterministic: Whether it must not explore. A kind without such a mode is refused, since a run that explores
            would pass for one that does not.

    Raises:
        PolicyLoadError: If it is none of these, or has no deterministic mode where one is asked for.
    """
    if isinstance(candidate, AdaptedPolicy):
        return candidate
    if not inspect.isclass(candidate):
        if own_method(candidate, "get_action") or own_method(candidate, "get_actions"):
            return _complete(candidate, env_spec, deterministic=deterministic)
        if own_method(candidate, "predict"):
            return _PredictPolicy(candidate, env_spec, deterministic=deterministic)
        if is_torch_module(candidate):
            return TorchPolicy(candidate, env_spec, deterministic=deterministic)
        if callable(candidate):
            return _adapt_callable(candidate, env_spec, deterministic=deterministic)
    raise PolicyLoadError(f"{_describe(candidate)} is not a policy", hint=ACCEPTED)


def _describe(candidate: Any) -> str:
    if inspect.isclass(candidate):
        return f"the class {candidate.__name__}"
    methods = [name for name in dir(candidate) if not name.startswith("_") and own_method(candidate, name)]
    offers = f", which offers {', '.join(methods[:8])}," if methods else ""
    return f"an object of type {type(candidate).__name__}{offers}"


def policy_class(policy: Any) -> str:
    """Return the dotted name of the user's own class or function behind `policy`, for the record."""
    own = policy.wrapped if isinstance(policy, AdaptedPolicy) else policy
    own = policy if own is None else own
    named = own if inspect.isroutine(own) else type(own)
    return f"{named.__module__}.{named.__qualname__}"


# Classes and factories.


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
    return any(parameter.name == "env_spec" for parameter in _parameters(factory))


def _build(factory: Callable[..., Any], env_spec: EnvSpec) -> Any:
    name = getattr(factory, "__qualname__", repr(factory))
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in _parameters(factory) if p.default is p.empty and p.kind not in variadic]
    if len(needed) > 1:
        raise PolicyLoadError(
            f"{name} needs the arguments {', '.join(needed)}; a policy class or factory gets the EnvSpec or nothing",
            hint="name a function without further arguments that builds the policy",
        )
    given = "with the EnvSpec" if needed else "without arguments"
    with reporting(PolicyLoadError, f"{name}, called {given}, failed"):
        if _takes_env_spec(factory):
            return factory(env_spec=env_spec)
        return factory(env_spec) if needed else factory()


# Signatures, as far as Python knows them.

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of `function`; none for the few builtins that have no signature."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def accepts_positional(function: Callable[..., Any], count: int) -> bool:
    """Return whether `function` can be called with `count` positional arguments; True if it has no signature."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def _accepts_keyword(function: Callable[..., Any], name: str) -> bool:
    return any(p.kind in _NAMED and (p.name == name or p.kind is p.VAR_KEYWORD) for p in _parameters(function))


# Objects with get_action or get_actions, and plain callables.


class _CompletedPolicy(AdaptedPolicy):
    """A policy whose own methods are used where it has them.

    A missing `get_actions` calls `get_action` row by row; that is refused for more than one row where the policy has a
    `reset`, since all rows would then share the state that it resets. A missing `get_action` calls `get_actions` with
    one row.

    Args:
        wrapped: The policy.
        env_spec: The spaces that it is for.
        get_action: Its `get_action`, or None.
        get_actions: Its `get_actions`, or None where `get_action` is given.
    """

    def __init__(
        self,
        wrapped: Any,
        env_spec: EnvSpec,
        *,
        get_action: Callable[[Any], Any] | None,
        get_actions: Callable[[Tree], Any] | None,
    ) -> None:
        super().__init__(wrapped)
        self._observations, self._actions = SpaceRows(env_spec.observation_space), SpaceRows(env_spec.action_space)
        self._get_action = get_action or self._one_row
        self._get_actions = get_actions or self._row_by_row
        self._reset = own_method(wrapped, "reset")
        self._resets_rows = self._reset is not None and accepts_positional(self._reset, 1)
        self.row_by_row = get_actions is None
        self.row_wise = get_actions is None and self._reset is None
        for name, count in (("seed", 1), ("seed_rows", 2)):
            method = own_method(wrapped, name)
            if method is not None and accepts_positional(method, count):
                setattr(self, name, method)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        result: tuple[Any, dict[str, Any]] = self._get_action(observation)
        if not is_action_and_info(result):
            raise not_a_pair(f"{name_of(self.wrapped)}.get_action", "action", result)
        return result

    def get_actions(self, observations: Tree) -> tuple[Tree, dict[str, Any]]:
        result: tuple[Tree, dict[str, Any]] = self._get_actions(observations)
        what = f"{name_of(self.wrapped)}.get_actions"
        if not is_action_and_info(result):
            raise not_a_pair(what, "actions", result)
        check_rows(what, self._actions, result[0], result[1], count_rows(observations))
        return result

    @property
    def resets(self) -> bool:
        return self._reset is not None

    def reset(self, do_resets: Array | None = None) -> None:
        if self._reset is None:
            return
        if self._resets_rows:
            self._reset(do_resets)
        elif do_resets is None or np.all(do_resets):
            self._reset()
        elif np.any(do_resets):
            raise PolicyError(
                f"{name_of(self.wrapped)}.reset() resets all rows at once, but episodes end one by one",
                hint="let reset take do_resets, a mask of rows, or run one environment a worker",
            )

    def _one_row(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        actions, infos = self.get_actions(self._observations.stack([observation]))
        action = self._actions.split(actions)[0]
        return action, {key: map_tree(lambda values: values[0], value) for key, value in infos.items()}

    def _row_by_row(self, observations: Tree) -> tuple[Tree, dict[str, Any]]:
        rows = self._observations.split(observations)
        if self._reset is not None and len(rows) > 1:
            raise PolicyError(
                f"{name_of(self.wrapped)} has reset, but no get_actions: its state is that of one episode at a time",
                hint="give it get_actions, which keeps a state a row, or run one environment a worker",
            )
        actions, infos = zip(*(self.get_action(row) for row in rows), strict=True)
        return self._actions.stack(actions), stack_infos(list(infos))


def not_a_pair(what: str, noun: str, result: Any) -> PolicyError:
    """Return the error of a method `what` that did not give the pair (`noun`, info)."""
    if isinstance(result, tuple) and len(result) == 2:  # noqa: PLR2004
        given = f"{named(result[1])} as its info"
        return PolicyError(f"{what} gave {given}, expected a dictionary", hint=f"return ({noun}, {{}}) for no info")
    return PolicyError(
        f"{what} gave {named(result)}, expected the pair ({noun}, info)",
        hint=f"return ({noun}, info), where info is a dictionary and may be empty",
    )


def check_rows(what: str, space_rows: SpaceRows, actions: Tree, infos: Mapping[str, Any], n_rows: int) -> None:
    """Check that actions and infos of n observations have n rows.

    Raises:
        PolicyError: If they have not; `what` names the method that gave them.
    """
    try:
        counts = {_length(column) for column in space_rows.columns(actions)}
    except (TypeError, LookupError) as error:
        raise PolicyError(
            f"{what} gave {named(actions)}, which has not the structure of the action space",
            hint="return a tree of arrays (n, *shape): dicts for Dict spaces, tuples for Tuple spaces",
        ) from error
    if counts != {n_rows}:
        given = " and ".join(map(str, sorted(counts, key=str)))
        raise PolicyError(
            f"{what} gave {given} actions for {n_rows} observations", hint="return one row an observation"
        )
    for key, values in infos.items():
        _check_info(what, str(key), values, n_rows)


def _check_info(what: str, key: str, values: Any, n_rows: int) -> None:
    if isinstance(values, Mapping):
        for inner, value in values.items():
            _check_info(what, f"{key}.{inner}", value, n_rows)
    elif _length(values) != n_rows:
        raise PolicyError(
            f"{what} gave {_length(values)} values of the info {key!r} for {n_rows} observations",
            hint="return arrays with one row an observation, masked where a row has no value",
        )


def _length(column: Any) -> int | str:
    try:
        return len(column)
    except TypeError:
        return f"{named(column)} as the"


def _complete(policy: Any, env_spec: EnvSpec, *, deterministic: bool) -> _CompletedPolicy:
    """Adapt an object with `get_action` or `get_actions`.

    A deterministic mode is a keyword `deterministic` of these methods, or a boolean attribute `deterministic`.

    Raises:
        PolicyLoadError: If it must be deterministic and has no such mode.
    """
    methods = [own_method(policy, name) for name in ("get_action", "get_actions")]
    if deterministic:
        methods = _deterministic_methods(policy, methods)
    return _CompletedPolicy(policy, env_spec, get_action=methods[0], get_actions=methods[1])


def _deterministic_methods(policy: Any, methods: list[Callable[..., Any] | None]) -> list[Callable[..., Any] | None]:
    offered = [method for method in methods if method is not None]
    if all(_accepts_keyword(method, "deterministic") for method in offered):
        return [method and partial(method, deterministic=True) for method in methods]
    if isinstance(getattr(policy, "deterministic", None), bool):
        policy.deterministic = True
        return methods
    raise PolicyLoadError(
        f"{name_of(policy)} has no deterministic mode",
        hint="give get_action and get_actions a keyword `deterministic`, or the policy such a boolean attribute",
    )


def _adapt_callable(function: Callable[..., Any], env_spec: EnvSpec, *, deterministic: bool) -> _CompletedPolicy:
    """Adapt a plain callable: `function(observation)` gives the action, or (action, info dictionary).

    Raises:
        PolicyLoadError: If it does not take one argument, or must be deterministic and has no keyword of that name.
    """
    if not accepts_positional(function, 1):
        raise PolicyLoadError(
            f"{name_of(function)}{inspect.signature(function)} cannot be called with an observation alone",
            hint="a plain callable is called as function(observation)",
        )
    if deterministic and not _accepts_keyword(function, "deterministic"):
        raise PolicyLoadError(
            f"{name_of(function)} has no deterministic mode", hint="give the callable a keyword `deterministic`"
        )
    act = partial(function, deterministic=True) if deterministic else function
    pair = _pairs_looking_like_actions(env_spec.action_space)

    def get_action(observation: Any) -> tuple[Any, dict[str, Any]]:
        result = act(observation)
        if type(result) is tuple and not pair and is_action_and_info(result):
            return result
        return result, {}

    return _CompletedPolicy(function, env_spec, get_action=get_action, get_actions=None)


def _pairs_looking_like_actions(space: spaces.Space[Any]) -> bool:
    """Return whether an action of `space` looks like (action, info) itself; a callable then returns actions alone."""
    return isinstance(space, spaces.Tuple) and [type(child) for child in space.spaces][1:] == [spaces.Dict]


# Objects with predict.


class _PredictPolicy(AdaptedPolicy):
    """Calls `predict(observation, state, episode_start, deterministic)`, which gives (action, state).

    That is the form of Stable-Baselines3's algorithms and policies. The state is kept between the steps of an episode
    and given back, with `episode_start`, bool (n,), true for the rows whose episode begins; a recurrent policy clears
    those rows itself. Of the three keywords, those that the method takes are given.
    """

    def __init__(self, wrapped: Any, env_spec: EnvSpec, *, deterministic: bool) -> None:
        super().__init__(wrapped)
        self._predict = wrapped.predict
        self._takes_state = _accepts_keyword(self._predict, "state")
        self._takes_start = _accepts_keyword(self._predict, "episode_start")
        self._options: dict[str, Any] = {}
        if _accepts_keyword(self._predict, "deterministic"):
            self._options["deterministic"] = deterministic
        elif deterministic:
            raise PolicyLoadError(
                f"{name_of(wrapped)}.predict has no deterministic mode", hint="give it a keyword `deterministic`"
            )
        self._is_discrete = isinstance(env_spec.action_space, spaces.Discrete)
        self._actions = SpaceRows(env_spec.action_space)
        self._state: Any = None
        self._starts = np.ones(1, bool)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        action = self._act(observation, 1)
        # `predict` gives a 0-d array where a Discrete space has numbers.
        return (np.asarray(action)[()] if self._is_discrete else action), {}

    def get_actions(self, observations: Tree) -> tuple[Tree, dict[str, Any]]:
        n_rows = count_rows(observations)
        actions = self._act(observations, n_rows)
        check_rows(f"{name_of(self.wrapped)}.predict", self._actions, actions, {}, n_rows)
        return actions, {}

    def reset(self, do_resets: Array | None = None) -> None:
        if do_resets is None or np.all(do_resets) or len(do_resets) != len(self._starts):
            self._state = None
            self._starts = np.ones(len(self._starts) if do_resets is None else len(do_resets), bool)
        else:
            self._starts = self._starts | do_resets

    def _act(self, observation: Any, n_rows: int) -> Any:
        if len(self._starts) != n_rows:
            self._state, self._starts = None, np.ones(n_rows, bool)
        options = dict(self._options)
        if self._takes_state:
            options["state"] = self._state
        if self._takes_start:
            options["episode_start"] = self._starts
        result = self._predict(observation, **options)
        if not isinstance(result, tuple) or len(result) != 2:  # noqa: PLR2004
            raise PolicyError(
                f"{name_of(self.wrapped)}.predict gave {named(result)}, expected the pair (action, state)",
                hint="return (action, None) for a policy without a state",
            )
        self._state = result[1]
        # Made anew, since the object may have kept the one it was given.
        self._starts = np.zeros(n_rows, bool)
        return result[0]
