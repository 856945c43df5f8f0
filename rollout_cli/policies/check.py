"""A check of a policy against its contract, for the tests of whoever writes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.errors import PolicyError
from rollout_cli.policies.adapt import check_rows, not_a_pair
from rollout_cli.policies.policy import POLICY_METHODS, Policy, Tree, is_action_and_info


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
    batch = SpaceRows(env_spec.observation_space).stack(observations)
    for mask in (np.ones(n_rows, bool), np.arange(n_rows) % 2 == 0):
        policy.reset(mask)
        _check_batch(policy, env_spec, batch, n_rows)


def _check_one(policy: Policy, env_spec: EnvSpec, observation: Any) -> None:
    result: Any = policy.get_action(observation)
    if not is_action_and_info(result):
        raise not_a_pair("get_action", "action", result)
    if not env_spec.action_space.contains(result[0]):
        raise PolicyError(
            f"get_action gave {result[0]!r}, which is not in {env_spec.action_space}",
            hint="check the action's dtype, shape and bounds",
        )


def _check_batch(policy: Policy, env_spec: EnvSpec, observations: Tree, n_rows: int) -> None:
    result: Any = policy.get_actions(observations)
    if not is_action_and_info(result):
        raise not_a_pair("get_actions", "actions", result)
    rows = SpaceRows(env_spec.action_space)
    check_rows("get_actions", rows, result[0], result[1], n_rows)
    for leaf, column in zip(rows.leaves, rows.columns(result[0]), strict=True):
        expected = (n_rows, *leaf.shape)
        if np.shape(column) != expected:
            raise PolicyError(
                f"get_actions gave {leaf.name or 'actions'} of shape {np.shape(column)}, expected {expected}",
                hint="return one row an observation",
            )
