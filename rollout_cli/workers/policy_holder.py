"""PolicyHolder: the policy of a worker, in the user's form and adapted to the worker's spaces."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import EnvError, InternalError, PolicyError, PolicyLoadError
from rollout_cli.policies.adapt import adapt_policy
from rollout_cli.policies.policy import AdaptedPolicy, is_policy_source
from rollout_cli.seeding.seeds import SETUP, seed_globals, torch_has_drawn
from rollout_cli.sources.loading import name_of, reporting


class PolicyHolder:
    """Takes policies and parameters, and adapts a policy once the spaces are known.

    Attributes:
        policy: The adapted policy; None before.
    """

    def __init__(self, root: int, *, deterministic: bool) -> None:
        self.policy: AdaptedPolicy | None = None
        self._root = root
        self._deterministic = deterministic
        self._original: Any = None

    @property
    def users_own(self) -> Any:
        """The user's own object; None before the first update, and a source's before the spaces are known."""
        if self.policy is not None:
            return self.policy.users_own
        return None if is_policy_source(self._original) else self._original

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Keep the policy that there was where a new one is refused."""
        before = self._original, self.policy
        try:
            yield
        except BaseException:
            self._original, self.policy = before
            raise

    def update(self, agent_update: Any) -> None:
        """Take a policy, or parameters (dict, tuple or array); PolicyError if it refuses."""
        if not isinstance(agent_update, dict | tuple | np.ndarray):
            self._original = agent_update
            self.policy = None
            return
        if self.policy is None:
            raise InternalError("parameters were sent to a worker that has no policy yet")
        hint = "parameters go from one policy's get_param_values to another of its kind"
        seed_globals(self._root, SETUP)
        with reporting(PolicyError, "policy.set_param_values raised", code="policy-raised", hint=hint):
            self.policy.set_param_values(agent_update)

    def forget(self) -> None:
        """Let go of the policy."""
        self._original = self.policy = None

    def adapt(self, env_spec: EnvSpec, envs: Sequence[Any]) -> AdaptedPolicy | None:
        """Return the policy, ready for these spaces, where there is one; PolicyLoadError if it cannot be.

        `envs` are the rows' environments, of which the policy may need action masks, or the vector
        environment.
        """
        if self._original is None or self.policy is not None:
            return self.policy
        had_torch = "torch" in sys.modules
        policy = self._adapted(env_spec)
        if not had_torch and torch_has_drawn():
            # It imported torch, whose generator begins in another state in each process, and can be seeded
            # now.
            policy = self._adapted(env_spec)
        _check_fits(policy, envs)
        self.policy = policy
        return policy

    def _adapted(self, env_spec: EnvSpec) -> AdaptedPolicy:
        seed_globals(self._root, SETUP)
        if is_policy_source(self._original):
            return self._original.load(env_spec, deterministic=self._deterministic)
        return adapt_policy(self._original, env_spec, deterministic=self._deterministic)


def _check_fits(policy: AdaptedPolicy, envs: Sequence[Any]) -> None:
    """Raise PolicyLoadError where the policy asks for what these environments do not have."""
    name = name_of(policy.users_own)
    is_native = isinstance(envs[0], VectorEnv)
    instead = 'omit {vectorization="native"}: {envs_per_worker=…} then steps environments'
    if is_native and policy.row_by_row:
        raise PolicyLoadError(
            f"{name} acts on one observation at a time, "
            "and a native vector environment needs actions for all rows",
            code="policy-not-batched",
            hint="give the policy get_actions, and its reset, where it has one, a mask of rows as argument; "
            f"or {instead} in turn",
        )
    if policy.takes_masks and (is_native or not all(env.has_wrapper_attr("action_masks") for env in envs)):
        hint = "give the environment a method action_masks(), or wrap it in sb3_contrib's ActionMasker"
        if is_native:
            hint = f"{instead} that have a method action_masks()"
        raise PolicyLoadError(
            f"{name} needs action masks, and the environment has none", code="policy-masks", hint=hint
        )


def masks_of(env: Any) -> Any:
    """Return the valid actions as the environment's `action_masks()` does; EnvError if that fails."""
    with reporting(EnvError, "env.action_masks failed", code="env-raised"):
        return env.get_wrapper_attr("action_masks")()
