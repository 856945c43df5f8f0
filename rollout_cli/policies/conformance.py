"""A check of a policy against its contract, for the tests of whoever writes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError
from rollout_cli.policies.base import POLICY_METHODS, Policy, Tree
from rollout_cli.policies.rows import is_action_and_info, stack_samples
from rollout_cli.spaces import flatten, space_leaves


def check_policy(policy: Policy, env_spec: EnvSpec, observations: Sequence[Any]) -> None:
    """Drive `policy` through the legal sequences, as a test of a policy of one's own.

    Args:
        policy: The policy; its parameters and state are changed.
        env_spec: The spaces that it is for.
        observations: Samples of the observation space, at least one.

    Raises:
        PolicyError: At the first thing that its contract does not allow.
    """
    missing = [name for name in POLICY_METHODS if not callable(getattr(policy, name, None))]
    if missing:
        raise PolicyError(f"the policy has no {', '.join(missing)}", hint="give it these methods, or use adapt_policy")
    policy.reset()
    for observation in observations:
        _check_one(policy, env_spec, observation)
    policy.set_param_values(policy.get_param_values())
    n_rows = len(observations)
    policy.reset(np.ones(n_rows, bool))
    _check_rows(policy, env_spec, stack_samples(env_spec.observation_space, observations), n_rows)
    policy.reset(np.arange(n_rows) % 2 == 0)
    _check_rows(policy, env_spec, stack_samples(env_spec.observation_space, observations), n_rows)


def _check_one(policy: Policy, env_spec: EnvSpec, observation: Any) -> None:
    result: Any = policy.get_action(observation)
    if not is_action_and_info(result):
        raise PolicyError(
            f"get_action gave {type(result).__name__}, not (action, info)", hint="return the pair: `return action, {}`"
        )
    if not env_spec.action_space.contains(result[0]):
        raise PolicyError(
            f"get_action gave {result[0]!r}, which is not in {env_spec.action_space}",
            hint="check the action's dtype, shape and bounds",
        )


def _check_rows(policy: Policy, env_spec: EnvSpec, observations: Tree, n_rows: int) -> None:
    actions, infos = policy.get_actions(observations)
    columns = flatten(env_spec.action_space, actions)
    for leaf, column in zip(space_leaves(env_spec.action_space), columns, strict=True):
        expected = (n_rows, *leaf.shape)
        if np.shape(column) != expected:
            raise PolicyError(
                f"get_actions gave {leaf.name or 'actions'} of shape {np.shape(column)}, expected {expected}",
                hint="return one row an observation",
            )
    for key, values in infos.items():
        if len(values) != n_rows:
            raise PolicyError(
                f"get_actions gave {len(values)} values of info {key!r}, expected {n_rows}", hint="give one a row"
            )
