"""A check of an adapted policy against its contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.policies.policy import AdaptedPolicy, Policy


def check_policy(policy: AdaptedPolicy, env_spec: EnvSpec, observations: Sequence[Any]) -> None:
    """Drive `policy` through the legal sequences, with samples of the observation space."""
    assert isinstance(policy, Policy)
    policy.reset()
    for observation in observations:
        action, info = policy.get_action(observation)
        assert env_spec.action_space.contains(action)
        assert isinstance(info, dict)
    policy.set_param_values(policy.get_param_values())
    if policy.row_by_row:
        return
    n_rows, rows = len(observations), SpaceRows(env_spec.action_space)
    batch = SpaceRows(env_spec.observation_space).stack(observations)
    for mask in (np.ones(n_rows, bool), np.arange(n_rows) % 2 == 0):
        policy.reset(mask)
        actions, infos = policy.get_actions(batch)
        shapes = [np.shape(column) for column in rows.columns(actions)]
        assert [(n_rows, *leaf.shape) for leaf in rows.leaves] == shapes
        assert isinstance(infos, dict)
