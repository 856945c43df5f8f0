"""Adapters from the user's objects to Policy: recognized by their methods, completed, and checked at each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, SpaceRows, Tree, count_rows, map_tree
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.keywords import Keywords
from rollout_cli.policies.functional import METHOD, FunctionalPolicy
from rollout_cli.policies.networks import TorchPolicy, is_torch_module
from rollout_cli.policies.policy import (
    ACCEPTED,
    ActionAndInfo,
    ActionsAndInfos,
    AdaptedPolicy,
    Infos,
    is_action_and_info,
    named,
    own_method,
)
from rollout_cli.sources.loading import name_of, reporting


def adapt_policy(candidate: Any, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
    """Adapt a policy object to a Policy.

    The first match decides: an object with `jax_act`; with `get_action` or `get_actions`; an object with `predict`; a
    `torch.nn.Module`; a callable that returns an action. Calls check the structure of results (pairs,
    dictionaries, one row per observation), but not the actions.

    Args:
        candidate: The object. It is not copied: a module is set to eval mode, and `deterministic` may set a
            boolean attribute of that name.
        env_spec: The spaces of the environment.
        deterministic: Use the deterministic mode.

    Raises:
        PolicyLoadError: The object is not a policy, or does not have the deterministic mode.
    """
    if isinstance(candidate, AdaptedPolicy):
        return candidate
    if inspect.isclass(candidate):
        raise PolicyLoadError(
            f"the class {candidate.__name__} is not a policy", code="policy-type", hint=ACCEPTED
        )
    verbs = [own_method(candidate, verb) for verb in ("get_action", "get_actions", "predict", "__call__")]
    if any(map(inspect.iscoroutinefunction, [candidate, *verbs])):
        raise PolicyLoadError(
            f"{name_of(candidate)} is asynchronous; expected a synchronous policy",
            code="policy-async",
            hint="use `def` instead of `async def`, and return the action",
        )
    for recognise, adapt in _KINDS:
        if recognise(candidate):
            return adapt(candidate, env_spec, deterministic=deterministic)
    raise PolicyLoadError(
        f"an object of type {type(candidate).__name__} is not a policy", code="policy-type", hint=ACCEPTED
    )


def policy_class(policy: Any) -> str:
    """Return the dotted name of the user's class or function behind `policy`, for the record."""
    if isinstance(policy, AdaptedPolicy):
        if policy.remote_class:
            return policy.remote_class
        policy = policy.users_own
    if not inspect.isroutine(policy) and not inspect.isclass(policy):
        policy = type(policy)
    return f"{policy.__module__}.{policy.__qualname__}"


def instantiate(candidate: Any, env_spec: EnvSpec, options: Keywords) -> Any:
    """Return the policy of a pickle or `module:attr`: the object itself, or the result of a class or factory.

    A class or factory is called with `options`, and with the `EnvSpec` if it has an argument `env_spec`. A
    function that needs other arguments is itself a policy.

    Raises:
        PolicyLoadError: The class or factory raised, or `options` are given for a policy object.
    """
    takes_spec = _takes_keyword(candidate, "env_spec", by_name=True)
    if not inspect.isclass(candidate):
        is_factory = callable(candidate) and (takes_spec or _takes_positional(candidate, 0, **options))
        acts = _offers(METHOD, "get_action", "get_actions", "predict")
        if acts(candidate) or not is_factory or is_torch_module(candidate):
            if options:
                raise PolicyLoadError(
                    f"{name_of(candidate)} is not a class or factory with the arguments {', '.join(options)}",
                    code="policy-argument",
                    hint="omit the arguments, or pass a class or factory that takes them",
                )
            return candidate
    names = [*options]
    if takes_spec:
        names.append("the EnvSpec")
    arguments = ", ".join(names) or "no arguments"
    name = getattr(candidate, "__qualname__", repr(candidate))
    with reporting(PolicyLoadError, f"{name} failed when called with {arguments}", code="policy-factory"):
        if takes_spec:
            return candidate(**options, env_spec=env_spec)
        return candidate(**options)


def _takes_positional(function: Callable[..., Any], count: int, **keywords: Any) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count, **keywords)
    except ValueError:  # A builtin without a signature.
        return True
    except TypeError:
        return False
    return True


def _takes_keyword(function: Any, name: str, *, by_name: bool = False) -> bool:
    """Return True if `function` accepts the keyword `name`; with `by_name`, `**kwargs` do not count."""
    try:
        signature = inspect.signature(function)
        signature.bind_partial(**{name: None})
    except (TypeError, ValueError):
        return False
    return name in signature.parameters or not by_name


def _not_deterministic(name: str) -> PolicyLoadError:
    return PolicyLoadError(
        f"{name} has no deterministic mode",
        code="policy-not-deterministic",
        hint="add a keyword `deterministic` to its methods, or a bool attribute to a policy with get_action",
    )


_OPTIONAL = {"seed": 1, "seed_rows": 2, "observe_reward": 1, "observe_rewards": 2, "observe_task": 2}
"""The methods that a policy may have, and how many arguments each takes."""


class _OwnPolicy(AdaptedPolicy):
    """A policy around the user's object, which calls its `reset` and the methods in `_OPTIONAL` if they exist.

    A `reset` without a mask argument resets all rows, but episodes end at different steps: such a policy acts
    on one row at a time. So does a policy that takes rewards only as `observe_reward`.
    """

    def __init__(self, wrapped: Any) -> None:
        super().__init__(wrapped)
        self._reset = own_method(wrapped, "reset")
        self.resets = self._reset is not None
        self._resets_rows = self._reset is not None and _takes_positional(self._reset, 1)
        self.row_by_row = self.resets and not self._resets_rows
        for name, count in _OPTIONAL.items():
            method = own_method(wrapped, name)
            if method is not None and _takes_positional(method, count):
                setattr(self, name, method)
        if self.observe_reward is not None and self.observe_rewards is None:
            self.row_by_row = True
        elif self.observe_rewards is not None and self.observe_reward is None:
            self.observe_reward = partial(_observe_one_row, self.observe_rewards)

    def reset(self, do_resets: Array | None = None) -> None:
        if self._reset is not None and self._resets_rows:
            self._reset(do_resets)
        elif self._reset is not None:
            self._reset()


def _observe_one_row(observe_rewards: Callable[[Array, Array], Any], reward: float) -> None:
    observe_rewards(np.ones(1, bool), np.array([reward]))


class _CallablePolicy(_OwnPolicy):
    """A callable: `function(observation)` returns the action without infos."""

    def __init__(
        self,
        wrapped: Callable[..., Any],
        env_spec: EnvSpec,  # noqa: ARG002
        *,
        deterministic: bool,
    ) -> None:
        super().__init__(wrapped)
        if not _takes_positional(wrapped, 1):
            name = name_of(wrapped)
            signature = inspect.signature(wrapped)
            raise PolicyLoadError(
                f"the policy {name}{signature} does not accept an observation as its only argument",
                code="policy-signature",
                hint="pass a function that can be called as function(observation)",
            )
        self._act = wrapped
        if deterministic:
            if not _takes_keyword(wrapped, "deterministic"):
                raise _not_deterministic(name_of(wrapped))
            self._act = partial(wrapped, deterministic=True)
        self.row_by_row = True

    def get_action(self, observation: Any) -> ActionAndInfo:
        return self._act(observation), {}


class _CompletedPolicy(_OwnPolicy):
    """A policy with `get_action` or `get_actions`.

    If `get_action` is missing, `get_actions` is called with one row. Without `get_actions` the policy does
    not act on batches.
    """

    def __init__(self, wrapped: Any, env_spec: EnvSpec, *, deterministic: bool) -> None:
        super().__init__(wrapped)
        self._observations = SpaceRows(env_spec.observation_space)
        self._actions = SpaceRows(env_spec.action_space)
        self._name = name_of(wrapped)
        methods: dict[str, Callable[..., Any]] = {}
        for name in ("get_action", "get_actions"):
            if (method := own_method(wrapped, name)) is not None:
                methods[name] = method
        names = [*methods]
        self.methods = (names[0], names[-1])
        if deterministic:
            if all(_takes_keyword(method, "deterministic") for method in methods.values()):
                methods = {name: partial(method, deterministic=True) for name, method in methods.items()}
            elif isinstance(getattr(wrapped, "deterministic", None), bool):
                wrapped.deterministic = True
            else:
                raise _not_deterministic(self._name)
        self._get_action: Callable[..., Any] = methods.get("get_action", self._act_on_one_row)
        self._get_actions = methods.get("get_actions")
        self.row_by_row = self.row_by_row or self._get_actions is None

    def get_action(self, observation: Any) -> ActionAndInfo:
        result: ActionAndInfo = self._get_action(observation)
        if not is_action_and_info(result):
            raise _not_a_pair(f"{self._name}.get_action", "action", result)
        return result

    def get_actions(self, observations: Tree) -> ActionsAndInfos:
        if self._get_actions is None:
            return super().get_actions(observations)
        result: ActionsAndInfos = self._get_actions(observations)
        method = f"{self._name}.get_actions"
        if not is_action_and_info(result):
            raise _not_a_pair(method, "actions", result)
        _check_rows(method, self._actions, result[0], result[1], count_rows(observations))
        return result

    def _act_on_one_row(self, observation: Any) -> ActionAndInfo:
        actions, infos = self.get_actions(self._observations.stack([observation]))
        return self._actions.split(actions)[0], _first_row(infos)


def _first_row(infos: Mapping[str, Any]) -> Infos:
    """Return the infos of a batch's first row, without masked values."""
    row: Infos = {}
    for key, values in infos.items():
        if isinstance(values, Mapping):
            row[key] = _first_row(values)
        elif not (isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values)[0].all()):
            row[key] = values[0]
    return row


def _not_a_pair(method: str, noun: str, result: Any) -> PolicyError:
    form = named(result)
    if isinstance(result, tuple):
        form = f"({', '.join(map(named, result))})"
    return PolicyError(
        f"{method} returned {form}, expected the pair ({noun}, info) with a dictionary info",
        code="policy-result",
        hint=f"return ({noun}, {{}}) if there are no infos",
    )


def _check_rows(method: str, space_rows: SpaceRows, actions: Tree, infos: Infos, n_rows: int) -> None:
    """Raise PolicyError unless the actions and infos that a method returned have `n_rows` rows."""
    try:
        columns = space_rows.columns(actions)
    except (TypeError, LookupError) as error:
        raise PolicyError(
            f"{method} returned {named(actions)}, which does not have the structure of the action space",
            code="policy-action-structure",
            hint="return a tree of arrays (n, *shape): dicts for Dict spaces, tuples for Tuple spaces",
        ) from error
    for column in columns:
        _check_length(method, "actions", column, n_rows)
    _check_infos(method, infos, n_rows)


def _check_infos(method: str, infos: Mapping[str, Any], n_rows: int, prefix: str = "") -> None:
    for key, values in infos.items():
        if isinstance(values, Mapping):
            _check_infos(method, values, n_rows, f"{prefix}{key}.")
        else:
            path = f"{prefix}{key}"
            _check_length(method, f"values of the info {path!r}", values, n_rows)


def _check_length(method: str, noun: str, column: Any, n_rows: int) -> None:
    try:
        # A string has a length but is one value, and a set has no order.
        count = None if isinstance(column, str | bytes | set) else len(column)
    except TypeError:
        count = None
    if count != n_rows:
        amount = f"{named(column)} as the" if count is None else count
        raise PolicyError(
            f"{method} returned {amount} {noun} for {n_rows} observations",
            code="policy-row-count",
            hint="return arrays with one row per observation, masked if a row has no value",
        )


class PredictPolicy(_OwnPolicy):
    """A policy with the method `predict(observation, state, episode_start, deterministic)`, as in SB3.

    `predict` returns (action, state). The next call passes the state back, with `episode_start`, bool (n,),
    true for rows that start an episode: a recurrent policy clears their state itself. Only the keywords that
    `predict` accepts are passed. If it names `action_masks`, like sb3_contrib's MaskablePPO, it gets the
    environment's masks.

    A model with gSDE exploration keeps its noise across steps. The noise is resampled for each episode, and
    the policy acts on one row at a time: noise of a batch could not be seeded per episode.
    """

    def __init__(self, wrapped: Any, env_spec: EnvSpec, *, deterministic: bool) -> None:
        super().__init__(wrapped)
        self._predict = wrapped.predict
        self._method = f"{name_of(wrapped)}.predict"
        self.resets = True
        keywords = ("state", "episode_start", "deterministic")
        self._keywords = [name for name in keywords if _takes_keyword(self._predict, name)]
        if deterministic and "deterministic" not in self._keywords:
            raise _not_deterministic(self._method)
        self.takes_masks = _takes_keyword(self._predict, "action_masks", by_name=True)
        if self.takes_masks:
            self._keywords.append("action_masks")
        resample_noise = _gsde_noise(wrapped)
        if not deterministic and resample_noise is not None:
            # It samples from torch's global generator, which the worker seeds immediately before this call.
            self.seed = lambda _: resample_noise()
            self.row_by_row = True
        self._deterministic = deterministic
        self._is_discrete = isinstance(env_spec.action_space, spaces.Discrete)
        self._is_binary = isinstance(env_spec.action_space, spaces.MultiBinary)
        self._actions = SpaceRows(env_spec.action_space)
        self._state: Any = None
        self._starts = np.ones(1, bool)

    def get_action(self, observation: Any, masks: Any = None) -> ActionAndInfo:
        action, infos = self._typed(*self._act(observation, 1, masks))
        if self._is_discrete:  # `predict` returns a 0-d array; the space contains numpy scalars.
            action = np.asarray(action)[()]
        return action, map_tree(itemgetter(0), infos)

    def get_actions(self, observations: Tree, masks: Any = None) -> ActionsAndInfos:
        n_rows = count_rows(observations)
        actions, infos = self._typed(*self._act(observations, n_rows, masks))
        _check_rows(self._method, self._actions, actions, infos, n_rows)
        return actions, infos

    act = get_action
    act_batch = get_actions

    def _typed(self, actions: Any, infos: Infos) -> ActionAndInfo:
        # Stable-Baselines3 returns MultiBinary samples as floats.
        if self._is_binary and np.isin(actions, (0, 1)).all():
            actions = np.asarray(actions).astype(np.int8)
        return actions, infos

    def reset(self, do_resets: Array | None = None) -> None:
        super().reset(do_resets)
        if do_resets is None:
            do_resets = np.ones(len(self._starts), bool)
        if len(do_resets) != len(self._starts) or np.all(do_resets):
            self._state = None
            self._starts = np.ones(len(do_resets), bool)
        else:
            self._starts = np.logical_or(self._starts, do_resets)

    def _act(self, observation: Any, n_rows: int, masks: Any) -> ActionAndInfo:
        """Return the actions, without a row dimension for one observation, and the infos of n rows."""
        if len(self._starts) != n_rows:
            self._state = None
            self._starts = np.ones(n_rows, bool)
        options = {
            "state": self._state,
            "episode_start": self._starts,
            "deterministic": self._deterministic,
            "action_masks": masks,
        }
        result = self._predict(observation, **{name: options[name] for name in self._keywords})
        if not isinstance(result, tuple) or len(result) != 2:  # noqa: PLR2004
            raise PolicyError(
                f"{self._method} returned {named(result)}, expected the pair (action, state)",
                code="policy-result",
                hint="return (action, None) if the policy has no state",
            )
        self._state = result[1]
        # A new array: the user's object may have kept the previous one.
        self._starts = np.zeros(n_rows, bool)
        return result[0], {}


def _gsde_noise(model: Any) -> Callable[[], Any] | None:
    """Return the function that resamples gSDE noise, or None if the model or policy does not use gSDE."""
    policy = getattr(model, "policy", model)
    # An actor-critic policy has `use_sde`; for SAC and TQC only the actor has it.
    is_gsde = any(getattr(part, "use_sde", False) for part in (policy, getattr(policy, "actor", None)))
    return own_method(policy, "reset_noise") if is_gsde else None


def _offers(*verbs: str) -> Callable[[Any], bool]:
    """Return a predicate for objects with at least one of these methods."""
    return lambda candidate: any(own_method(candidate, verb) for verb in verbs)


_KINDS: Sequence[tuple[Callable[[Any], bool], Callable[..., AdaptedPolicy]]] = (
    (_offers(METHOD), FunctionalPolicy),
    (_offers("get_action", "get_actions"), _CompletedPolicy),
    (_offers("predict"), PredictPolicy),
    (is_torch_module, TorchPolicy),
    (callable, _CallablePolicy),
)
"""A predicate and an adapter for each kind of policy; the first predicate that is true decides."""
