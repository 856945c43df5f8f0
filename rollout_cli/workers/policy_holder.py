"""PolicyHolder: the policy of a worker, in the user's form and adapted to the worker's spaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import InternalError, PolicyError, PolicyLoadError
from rollout_cli.loading import Source, reporting
from rollout_cli.policies import AdaptedPolicy, Policy, PolicySource, adapt_policy
from rollout_cli.policies.source import UserPolicySource
from rollout_cli.seeding.seeds import SETUP, seed_globals
from rollout_cli.workers.worker import EpisodeRules, OnInvalidAction


class PolicyHolder:
    """Takes policies and parameters, and adapts a policy once the spaces are known.

    Attributes:
        policies: The adapted policy alone, or one for each row where it acts on one observation at a time; none as long
            as there is no policy or no space.

    Args:
        root: The run's root seed; builds and updates are seeded from it.
        deterministic: Whether a policy that has a deterministic mode uses it.
    """

    def __init__(self, root: int, *, deterministic: bool) -> None:
        self.policies: list[Policy] = []
        self._root, self._deterministic = root, deterministic
        self._given: Any = None

    @property
    def policy(self) -> Policy:
        """Return the first adapted policy."""
        if not self.policies:
            raise InternalError("the worker needs both a policy and an environment: update_agent and update_env")
        return self.policies[0]

    def action_rule(self, rules: EpisodeRules) -> OnInvalidAction:
        """Return what becomes of invalid actions; those that are in their space by construction need no check."""
        is_trusted = isinstance(self.policy, AdaptedPolicy) and self.policy.trusted
        return "warn" if is_trusted else rules.invalid_action

    def update(self, agent_update: Any) -> None:
        """Take a new policy, or parameters (a dict, tuple or array) for the present one and all its copies.

        Raises:
            PolicyError: If the policy refuses the parameters.
        """
        if not isinstance(agent_update, dict | tuple | np.ndarray):
            self._given, self.policies = agent_update, []
            return
        if not self.policies:
            raise InternalError("parameters were sent to a worker that has no policy yet")
        hint = "parameters go from one policy's get_param_values to another of its kind"
        for policy in self.policies:
            seed_globals(self._root, SETUP)
            with reporting(PolicyError, "policy.set_param_values raised", hint=hint):
                policy.set_param_values(agent_update)

    def adapt(self, env_specs: Iterable[EnvSpec]) -> None:
        """Make the policy ready, where there is one and it is not.

        A policy that acts on one observation at a time is copied for each of several rows, for its state and its draws
        belong to one episode; each copy has its row's own spaces, for it may draw from them.

        Args:
            env_specs: Spaces and limit of each row.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised, or cannot be copied where it must be.
        """
        if self._given is None or self.policies:
            return
        first, *others = env_specs
        policies = [self._adapted(self._given, first)]
        if is_row_by_row(policies[0]):
            # Each load of a source gives another copy.
            source = self._given if isinstance(self._given, PolicySource) or not others else _source_of(self._given)
            policies += [self._adapted(source, env_spec) for env_spec in others]
        self.policies = policies

    def _adapted(self, given: Any, env_spec: EnvSpec) -> Policy:
        seed_globals(self._root, SETUP)
        if isinstance(given, PolicySource):
            return given.load(env_spec, deterministic=self._deterministic)
        return adapt_policy(given, env_spec, deterministic=self._deterministic)


def _source_of(policy: Any) -> PolicySource:
    hint = "give the policy get_actions, which acts for all rows, or run one environment a worker"
    return UserPolicySource(Source.of(policy, PolicyLoadError, hint=hint))


def seed_method(policy: Policy, name: str) -> Callable[..., Any] | None:
    """Return the policy's own `seed` or `seed_rows`; None where it has none."""
    method = getattr(policy, name, None)
    return method if callable(method) else None


def is_row_by_row(policy: Policy) -> bool:
    """Return whether the policy acts on one observation at a time, and its `get_actions` is a loop over rows."""
    return isinstance(policy, AdaptedPolicy) and policy.row_by_row
