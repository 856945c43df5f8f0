"""PolicyHolder: the policy of a worker, in the user's form and adapted to the worker's spaces."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import EnvError, InternalError, PolicyError, PolicyLoadError
from rollout_cli.loading import Source, name_of, reporting
from rollout_cli.policies.adapt import adapt_policy
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.policies.source import UserPolicySource, is_policy_source
from rollout_cli.seeding.seeds import SETUP, seed_globals, torch_has_drawn
from rollout_cli.workers.values import EpisodeRules, OnInvalidAction

NOT_READY = "the worker needs both a policy and an environment: update_agent and update_env"


class PolicyHolder:
    """Takes policies and parameters, and adapts a policy once the spaces are known.

    Attributes:
        policies: The adapted policy, or one for each row where it acts on one observation at a time; none
            before.
    """

    def __init__(self, root: int, *, deterministic: bool) -> None:
        self.policies: list[AdaptedPolicy] = []
        self._root, self._deterministic = root, deterministic
        self._given: Any = None

    @property
    def users_own(self) -> Any:
        """The user's own object; None before the first update, and a source's before the spaces are known."""
        if not self.policies:
            return None if is_policy_source(self._given) else self._given
        return self.policy if self.policy.wrapped is None else self.policy.wrapped

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Keep the policy that there was where a new one is refused."""
        before = self._given, self.policies
        try:
            yield
        except BaseException:
            self._given, self.policies = before
            raise

    @property
    def policy(self) -> AdaptedPolicy:
        """The first adapted policy."""
        if not self.policies:
            raise InternalError(NOT_READY)
        return self.policies[0]

    def action_rule(self, rules: EpisodeRules) -> OnInvalidAction:
        """Return what becomes of invalid actions; those that are valid by construction need no check."""
        return "warn" if self.policy.trusted else rules.invalid_action

    def update(self, agent_update: Any) -> None:
        """Take a policy, or parameters (dict, tuple or array) for all copies; PolicyError if it refuses."""
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

    def adapt(self, env_specs: Iterable[EnvSpec], envs: Sequence[Any]) -> None:
        """Make the policy ready for these spaces, where there is one and it is not; or PolicyLoadError.

        `envs` are the rows' environments, of which the policy may need action masks; none for a native one.

        There is one spec for each row of a native environment. A policy that acts on one observation at a
        time is copied for each, for its state and its draws belong to one episode; each copy has its row's
        own spaces, for it may draw from them.
        """
        if self._given is None or self.policies:
            return
        source, (first, *others) = self._given, env_specs
        had_torch = "torch" in sys.modules
        policies = [self._adapted(source, first)]
        if not had_torch and torch_has_drawn():
            # It imported torch, whose generator begins in another state in each process, and can be seeded
            # now.
            policies = [self._adapted(source, first)]
        if policies[0].takes_masks and not (
            envs and all(env.has_wrapper_attr("action_masks") for env in envs)
        ):
            omitted = 'omit {vectorization="native"}: {envs_per_worker=…} then steps'
            hint = f"{omitted} environments that have a method action_masks()"
            if envs:
                hint = (
                    "give the environment a method action_masks(), or wrap it in sb3_contrib's ActionMasker"
                )
            message = f"{name_of(policies[0].wrapped)} needs action masks, and the environment has none"
            raise PolicyLoadError(message, hint=hint)
        if others and policies[0].row_by_row:
            if not is_policy_source(source):
                hint = "give the policy get_actions, which acts for all rows, or run one environment a worker"
                source = UserPolicySource(Source.of(source, PolicyLoadError, hint=hint))
            policies += [self._adapted(source, env_spec) for env_spec in others]
        self.policies = policies

    def _adapted(self, given: Any, env_spec: EnvSpec) -> AdaptedPolicy:
        seed_globals(self._root, SETUP)
        if is_policy_source(given):
            return given.load(env_spec, deterministic=self._deterministic)
        return adapt_policy(given, env_spec, deterministic=self._deterministic)


def masks_of(env: Any) -> Any:
    """Return the valid actions as the environment's `action_masks()` does; EnvError if that fails."""
    with reporting(EnvError, "env.action_masks failed"):
        return env.get_wrapper_attr("action_masks")()
