"""PolicyHolder: the policy of a worker, in the user's form and adapted to the worker's spaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import InternalError, PolicyError, PolicyLoadError, RolloutError
from rollout_cli.loading import Source, failure
from rollout_cli.policies import AdaptedPolicy, Policy, PolicySource, adapt_policy
from rollout_cli.seeding.seeds import SETUP, seed_globals


class PolicyHolder:
    """Takes policies and parameters, and adapts a policy once the spaces are known.

    Args:
        root: The run's root seed; builds and updates are seeded from it.
        deterministic: Whether a policy that has a deterministic mode uses it.
    """

    def __init__(self, root: int, *, deterministic: bool) -> None:
        self._root, self._deterministic = root, deterministic
        self._given: Any = None
        self._policies: list[Policy] = []

    @property
    def is_ready(self) -> bool:
        """Return whether there is an adapted policy."""
        return bool(self._policies)

    @property
    def policy(self) -> Policy:
        """Return the adapted policy; the first one, where each row has its own."""
        if not self._policies:
            raise InternalError("the worker needs both a policy and an environment: update_agent and update_env")
        return self._policies[0]

    @property
    def policies(self) -> Sequence[Policy]:
        """Return the adapted policy alone, or one for each row where the policy acts on one observation at a time."""
        return self._policies

    @property
    def is_trusted(self) -> bool:
        """Return whether its actions need no check."""
        return isinstance(self.policy, AdaptedPolicy) and self.policy.trusted

    def update(self, agent_update: Any) -> None:
        """Take a new policy, or parameters (a dict, tuple or array) for the present one and all its copies.

        Raises:
            PolicyError: If the policy refuses the parameters.
        """
        if not isinstance(agent_update, dict | tuple | np.ndarray):
            self._given, self._policies = agent_update, []
            return
        if not self._policies:
            raise InternalError("parameters were sent to a worker that has no policy yet")
        for policy in self._policies:
            seed_globals(self._root, SETUP)
            try:
                policy.set_param_values(agent_update)
            except RolloutError:
                raise
            except Exception as error:
                hint = "parameters go from one policy's get_param_values to another of its kind"
                raise failure(PolicyError, "policy.set_param_values raised", error, hint=hint) from error

    def forget_adapted(self) -> None:
        """Adapt anew: the spaces have changed."""
        self._policies = []

    def adapt(self, env_specs: Iterable[EnvSpec]) -> None:
        """Make the policy ready, where there is one and it is not.

        A policy that acts on one observation at a time is copied for each of several rows, for its state and its draws
        belong to one episode; each copy has its row's own spaces, for it may draw from them.

        Args:
            env_specs: Spaces and limit of each row.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised, or cannot be copied where it must be.
        """
        if self._given is None or self._policies:
            return
        others = iter(env_specs)
        policies = [self._adapted(self._given, next(others))]
        if is_row_by_row(policies[0]):
            policies += [self._adapted(self._copy(), env_spec) for env_spec in others]
        self._policies = policies

    def _adapted(self, given: Any, env_spec: EnvSpec) -> Policy:
        seed_globals(self._root, SETUP)
        if isinstance(given, PolicySource):
            return given.load(env_spec, deterministic=self._deterministic)
        return adapt_policy(given, env_spec, deterministic=self._deterministic)

    def _copy(self) -> Any:
        if isinstance(self._given, PolicySource):
            return self._given  # Each load of it gives another copy.
        hint = "give the policy get_actions, which acts for all rows, or run one environment a worker"
        return Source.of(self._given, PolicyLoadError, hint=hint).load(PolicyLoadError)


def seed_method(policy: Policy, name: str) -> Callable[..., Any] | None:
    """Return the policy's own `seed` or `seed_rows`; None where it has none."""
    method = getattr(policy, name, None)
    return method if callable(method) else None


def is_row_by_row(policy: Policy) -> bool:
    """Return whether the policy acts on one observation at a time, and its `get_actions` is a loop over rows."""
    return isinstance(policy, AdaptedPolicy) and policy.row_by_row
