"""Policies that are JAX functions: they act inside the compiled program of a JAX environment."""

from __future__ import annotations

from typing import Any

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Tree
from rollout_cli.errors import PolicyLoadError, UsageError
from rollout_cli.policies.policy import ActionAndInfo, ActionsAndInfos, AdaptedPolicy
from rollout_cli.sources.loading import name_of

METHOD = "jax_act"
"""The method that marks a JAX policy: `jax_act(key, observation, params)` for one row, without a batch dimension."""


class FunctionalPolicy(AdaptedPolicy):
    """A policy with `jax_act(key, observation, params)`, a pure JAX function that returns an action.

    It may also return a pair (action, infos). `key` is a typed JAX key of the step, and `params` the result of
    `get_param_values`, or {} if the policy lacks this method or `set_param_values`. New parameters of the same
    shapes and dtypes do not compile the program again.
    """

    row_wise = True
    methods = (METHOD, METHOD)

    def __init__(self, wrapped: Any, env_spec: EnvSpec, *, deterministic: bool) -> None:  # noqa: ARG002
        super().__init__(wrapped)
        self.function = getattr(wrapped, METHOD)
        if deterministic:
            if not isinstance(getattr(wrapped, "deterministic", None), bool):
                raise PolicyLoadError(
                    f"{name_of(wrapped)} has no deterministic mode",
                    code="policy-not-deterministic",
                    hint="add a bool attribute `deterministic`, which jax_act reads",
                )
            wrapped.deterministic = True

    def get_action(self, observation: Any) -> ActionAndInfo:
        return self.get_actions(observation)

    def get_actions(self, observations: Tree) -> ActionsAndInfos:  # noqa: ARG002
        raise UsageError(
            f"{name_of(self.wrapped)} has jax_act, which acts only inside the program of a JAX environment",
            code="policy-jax",
            hint="use a JAX environment such as gymnax:CartPole-v1, "
            "and omit {epsilon}, {action_noise}, {policy_process}, policy servers and mixtures",
        )
