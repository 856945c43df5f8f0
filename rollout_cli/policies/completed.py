"""CompletedPolicy: what a policy or a plain callable lacks of the protocol, supplied around it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies.base import POLICY_METHODS, Policy, Shortcut, Tree
from rollout_cli.policies.rows import SpaceRows, is_action_and_info, stack_infos
from rollout_cli.policies.signatures import accepts_keyword, accepts_positional
from rollout_cli.spaces import map_tree

Array = npt.NDArray[Any]
GetAction = Callable[[Any], tuple[Any, dict[str, Any]]]


class CompletedPolicy:
    """A policy whose own methods are used where it has them.

    A missing `get_actions` calls `get_action` row by row; that is refused for more than one row where the policy has a
    `reset`, since all rows would then share the state that it resets. A missing `get_action` calls `get_actions` with
    one row. A missing `reset` does nothing (`resets` is False then), and without `set_param_values` only an empty set
    of parameters is accepted.

    Args:
        wrapped: The policy.
        env_spec: The spaces that it is for.
        get_action: Its `get_action`, or None.
        get_actions: Its `get_actions`, or None where `get_action` is given.
        shortcut: A faster way to do what `get_action` does, if there is one.
    """

    get_action: GetAction
    get_actions: Callable[[Tree], tuple[Tree, dict[str, Any]]]

    def __init__(
        self,
        wrapped: Any,
        env_spec: EnvSpec,
        *,
        get_action: GetAction | None,
        get_actions: Callable[[Tree], tuple[Tree, dict[str, Any]]] | None,
        shortcut: Shortcut | None = None,
    ) -> None:
        self.wrapped = wrapped
        self.shortcut = shortcut
        self._observations, self._actions = SpaceRows(env_spec.observation_space), SpaceRows(env_spec.action_space)
        # As attributes of the instance, the wrapped methods cost a step no further call.
        self.get_action = get_action or self._one_row
        self.get_actions = get_actions or self._row_by_row
        self._reset = own_method(wrapped, "reset")
        self.resets = self._reset is not None
        self._resets_rows = self._reset is not None and accepts_positional(self._reset, 1)
        self.row_by_row = get_actions is None
        self.row_wise = bool(getattr(wrapped, "row_wise", get_actions is None and self._reset is None))
        for name in ("seed", "seed_rows"):
            if (method := own_method(wrapped, name)) is not None:
                setattr(self, name, method)

    def reset(self, do_resets: Array | None = None) -> None:
        """Begin new episodes, in some rows or in all.

        Raises:
            PolicyError: If some rows are to be reset and not others, but the policy's own `reset` takes no mask.
        """
        if self._reset is None:
            return
        if self._resets_rows:
            self._reset(do_resets)
        elif do_resets is None or np.all(do_resets):
            self._reset()
        elif np.any(do_resets):
            raise PolicyError(
                f"{_name(self.wrapped)}.reset() resets all rows at once, but episodes end one by one",
                hint="let reset take do_resets, a mask of rows, or run one environment a worker",
            )

    def get_param_values(self) -> Any:
        """Return the policy's parameters; an empty dictionary where it offers none."""
        method = own_method(self.wrapped, "get_param_values")
        return method() if method else {}

    def set_param_values(self, params: Any) -> None:
        """Give the policy parameters.

        Raises:
            PolicyError: If there are some, and it has no `set_param_values`.
        """
        method = own_method(self.wrapped, "set_param_values")
        if method:
            method(params)
        elif len(params):
            raise PolicyError(
                f"{_name(self.wrapped)} has no set_param_values", hint="give it the method, or send a whole policy"
            )

    def _one_row(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        actions, infos = self.get_actions(self._observations.stack([observation]))
        action = self._actions.take(actions)[0]
        return action, {key: map_tree(lambda values: values[0], value) for key, value in infos.items()}

    def _row_by_row(self, observations: Tree) -> tuple[Tree, dict[str, Any]]:
        rows = self._observations.take(observations)
        if self._reset is not None and len(rows) > 1:
            raise PolicyError(
                f"{_name(self.wrapped)} has reset, but no get_actions: its state is that of one episode at a time",
                hint="give it get_actions, which keeps a state a row, or run one environment a worker",
            )
        actions, infos = zip(*(self.get_action(row) for row in rows), strict=True)
        return self._actions.stack(actions), stack_infos(infos)


def complete_policy(policy: Any, env_spec: EnvSpec, *, deterministic: bool) -> Policy:
    """Adapt an object with `get_action` or `get_actions`; it is returned itself where nothing is missing.

    A deterministic mode is a keyword `deterministic` of these methods, or a boolean attribute `deterministic`.

    Raises:
        PolicyLoadError: If it must be deterministic and has no such mode.
    """
    methods = [own_method(policy, name) for name in ("get_action", "get_actions")]
    if deterministic:
        methods = _deterministic_methods(policy, methods)
    elif all(own_method(policy, name) for name in POLICY_METHODS) and accepts_positional(policy.reset, 1):
        whole: Policy = policy
        return whole
    return CompletedPolicy(policy, env_spec, get_action=methods[0], get_actions=methods[1])


def _deterministic_methods(policy: Any, methods: list[Callable[..., Any] | None]) -> list[Callable[..., Any] | None]:
    offered = [method for method in methods if method is not None]
    if all(accepts_keyword(method, "deterministic") for method in offered):
        return [method and partial(method, deterministic=True) for method in methods]
    if isinstance(getattr(policy, "deterministic", None), bool):
        policy.deterministic = True
        return methods
    raise PolicyLoadError(
        f"{_name(policy)} has no deterministic mode",
        hint="give get_action and get_actions a keyword `deterministic`, or the policy such a boolean attribute",
    )


def complete_callable(function: Callable[..., Any], env_spec: EnvSpec, *, deterministic: bool) -> Policy:
    """Adapt a plain callable: `function(observation)` gives the action, or (action, info dictionary).

    Raises:
        PolicyLoadError: If it does not take one argument, or must be deterministic and has no keyword of that name.
    """
    if not accepts_positional(function, 1):
        raise PolicyLoadError(
            f"{_name(function)}{inspect.signature(function)} cannot be called with an observation alone",
            hint="a plain callable is called as function(observation)",
        )
    if deterministic and not accepts_keyword(function, "deterministic"):
        raise PolicyLoadError(
            f"{_name(function)} has no deterministic mode", hint="give the callable a keyword `deterministic`"
        )
    act = partial(function, deterministic=True) if deterministic else function
    pair = _pairing(env_spec.action_space)
    return CompletedPolicy(
        function,
        env_spec,
        get_action=lambda observation: pair(act(observation)),
        get_actions=None,
        shortcut=Shortcut(act, pair),
    )


def _pairing(space: spaces.Space[Any]) -> Callable[[Any], tuple[Any, dict[str, Any]]]:
    # An action of such a space looks like (action, info) itself, so there the result is always the action.
    if isinstance(space, spaces.Tuple) and [type(child) for child in space.spaces][1:] == [spaces.Dict]:
        return lambda result: (result, {})
    return lambda result: result if is_action_and_info(result) else (result, {})


def own_method(item: Any, name: str) -> Callable[..., Any] | None:
    """Return a method of `item`; None where it has no such attribute, or one that cannot be called."""
    method = getattr(item, name, None)
    return method if callable(method) else None


def _name(item: Any) -> str:
    return getattr(item, "__name__", None) or type(item).__name__
