"""PolicyHolder, which keeps a worker's policy: the user's object, and its adapted form."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gymnasium.vector import VectorEnv

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import EnvError, PolicyError, PolicyLoadError, UsageError
from rollout_cli.policies.adapt import adapt_policy, policy_class
from rollout_cli.policies.policy import AdaptedPolicy, is_policy_source
from rollout_cli.seeding.seeds import SETUP, seed_globals, torch_has_drawn
from rollout_cli.sources.loading import loaded_modules, name_of, reporting
from rollout_cli.workers.values import WorkerReport


def is_parameters(update: Any) -> bool:
    """Return True if an update holds parameters: a mapping, a tuple, or an array of any library."""
    return isinstance(update, Mapping | tuple) or hasattr(update, "__array__")


class PolicyHolder:
    """Accepts policies and parameters, and adapts a policy once the spaces are known.

    Attributes:
        policy: The adapted policy; None before the first call of `adapt`.
    """

    def __init__(self, root: int, *, deterministic: bool) -> None:
        self.policy: AdaptedPolicy | None = None
        self._root = root
        self._deterministic = deterministic
        self._original: Any = None

    @property
    def users_own(self) -> Any:
        """The user's policy object; None before the first update, or while a source is not loaded yet."""
        if self.policy is not None:
            return self.policy.users_own
        return None if is_policy_source(self._original) else self._original

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Restore the previous policy if the block raises."""
        before = self._original, self.policy
        try:
            yield
        except BaseException:
            self._original, self.policy = before
            raise

    def update(self, agent_update: Any) -> None:
        """Use a new policy, or set parameters (dict, tuple or array); PolicyError if setting them fails."""
        if not is_parameters(agent_update):
            self._original = agent_update
            self.policy = None
            return
        if self.policy is None:
            raise UsageError(
                "got parameters of a policy, but the worker has no policy yet",
                code="update-without-policy",
                hint="pass a policy first, then its parameters",
            )
        hint = "pass values that get_param_values of the same kind of policy returned"
        seed_globals(self._root, SETUP)
        with reporting(PolicyError, "policy.set_param_values raised", code="policy-raised", hint=hint):
            self.policy.set_param_values(agent_update)

    def forget(self) -> None:
        """Drop the policy."""
        self._original = self.policy = None

    def adapt(self, env_spec: EnvSpec, envs: Sequence[Any]) -> AdaptedPolicy | None:
        """Adapt the policy to these spaces and return it, or None if no policy was set.

        `envs` are the rows' environments, which may have to provide action masks, or the vector environment.

        Raises:
            PolicyLoadError: If the policy cannot be loaded or does not fit the environments.
        """
        if self._original is None or self.policy is not None:
            return self.policy
        had_torch = "torch" in sys.modules
        policy = self._adapted(env_spec)
        if not had_torch and torch_has_drawn():
            # Loading imported torch and used its generator, whose initial state differs per process: seed it
            # and load again.
            policy = self._adapted(env_spec)
        _check_fits(policy, envs)
        self.policy = policy
        return policy

    def completed(self, report: WorkerReport) -> WorkerReport:
        """Add the class of the policy, the loaded modules, and those and the files of a policy's other process."""
        assert self.policy is not None, "a worker reports after it has adapted its policy"
        report = replace(report, policy_class=policy_class(self.policy), modules=loaded_modules())
        for remote in self.policy.remote_reports():
            report = report.joined(replace(report, modules=remote.modules, files=remote.files))
        return report

    def _adapted(self, env_spec: EnvSpec) -> AdaptedPolicy:
        seed_globals(self._root, SETUP)
        if is_policy_source(self._original):
            return self._original.load(env_spec, deterministic=self._deterministic)
        return adapt_policy(self._original, env_spec, deterministic=self._deterministic)


def _check_fits(policy: AdaptedPolicy, envs: Sequence[Any]) -> None:
    """Raise PolicyLoadError if the policy acts row by row in a vector environment, or `envs` lack masks."""
    name = name_of(policy.users_own)
    # The rows of a JAX environment can also be stepped one at a time.
    is_vector = isinstance(envs[0], VectorEnv)
    is_native = is_vector and not hasattr(envs[0], "functional")
    instead = 'omit {vectorization="native"} to step {envs_per_worker=…} single environments'
    if is_native and policy.row_by_row:
        raise PolicyLoadError(
            f"{name} acts on one observation at a time, "
            "expected a policy that acts in all rows of a native vector environment",
            code="policy-not-batched",
            hint="define get_actions on the policy, and let its reset, if any, accept a mask of rows; "
            f"or {instead}",
        )
    if policy.takes_masks and (is_vector or not all(env.has_wrapper_attr("action_masks") for env in envs)):
        hint = "add a method action_masks() to the environment, or wrap it in sb3_contrib's ActionMasker"
        if is_native:
            hint = f"{instead} with a method action_masks()"
        raise PolicyLoadError(
            f"{name} needs action masks, but the environment has no action_masks()",
            code="policy-masks",
            hint=hint,
        )


def masks_of(env: Any) -> Any:
    """Return the result of the environment's `action_masks()`; EnvError if it fails."""
    with reporting(EnvError, "env.action_masks failed", code="env-raised"):
        return env.get_wrapper_attr("action_masks")()
