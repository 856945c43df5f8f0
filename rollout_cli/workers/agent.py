"""AgentHolder: the policy of a worker, in the user's form and in ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import InternalError, PolicyError, PolicyLoadError
from rollout_cli.policies import Policy, PolicySource, Shortcut, adapt_policy, shortcut_of
from rollout_cli.user_code import PickleFile, first_line
from rollout_cli.workers.seeder import EpisodeSeeder


def is_parameters(agent_update: Any) -> bool:
    """Return whether an update is parameters for the policy there is, and not a policy."""
    return isinstance(agent_update, dict | tuple | np.ndarray)


class AgentHolder:
    """Takes policies and parameters, and adapts a policy once the spaces are known.

    Args:
        seeder: Seeds each build and update.
        deterministic: Whether a policy that has a deterministic mode uses it.
    """

    def __init__(self, seeder: EpisodeSeeder, *, deterministic: bool) -> None:
        self._seeder = seeder
        self._deterministic = deterministic
        self._agent: Any = None
        self._policies: list[Policy] = []
        self._shortcut: Shortcut | None = None

    @property
    def act(self) -> Callable[[Any], Any]:
        """Return what chooses an action for one observation: the policy's `get_action`, or its shortcut."""
        return self._shortcut.act if self._shortcut else self.policy.get_action

    @property
    def pair(self) -> Callable[[Any], tuple[Any, dict[str, Any]]] | None:
        """Return what makes (action, info) of the answer that `act` gives; None where it gives these itself."""
        return self._shortcut.pair if self._shortcut else None

    @property
    def hands_off(self) -> bool:
        """Return whether the policy leaves observations alone, and need not get copies of them."""
        return bool(getattr(self.policy, "hands_off", False))

    def prepare(self, numbers: Sequence[int]) -> None:
        """Let the policy do at once, for the episodes that come next, what they have in common."""
        prepare = self._shortcut.prepare if self._shortcut else getattr(self.policy, "prepare_seeds", None)
        if prepare is not None:
            prepare(self._seeder.seeds.prepare_policy(numbers))

    def prepare_rows(self, numbers: Sequence[int]) -> None:
        """Do so for a policy that acts in many rows at once."""
        seeds = self._seeder.seeds.prepare_policy(numbers)
        prepare = getattr(self.policy, "prepare_seeds", None)
        if prepare is not None:
            prepare(seeds)

    @property
    def policy(self) -> Policy:
        """Return the adapted policy."""
        return self.policies[0]

    @property
    def policies(self) -> Sequence[Policy]:
        """Return the adapted policy, or its copies: one for each environment it was adapted to."""
        if not self._policies:
            raise InternalError("the worker needs both a policy and an environment: update_agent and update_env")
        return self._policies

    @property
    def is_ready(self) -> bool:
        """Return whether there is an adapted policy."""
        return bool(self._policies)

    def update(self, agent_update: Any) -> None:
        """Take a new policy, or parameters (a dict, tuple or array) for the one there is and all its copies.

        Raises:
            PolicyError: If the policy refuses the parameters.
        """
        if not is_parameters(agent_update):
            self._agent, self._policies = agent_update, []
            return
        if not self._policies:
            raise InternalError("parameters were sent to a worker that has no policy yet")
        for policy in self._policies:
            self._seeder.before_build()
            try:
                policy.set_param_values(agent_update)
            except Exception as error:
                hint = "parameters go from one policy's get_param_values to another of its kind"
                raise PolicyError(f"policy.set_param_values raised {first_line(error)}", hint=hint) from error

    def forget_policy(self) -> None:
        """Adapt anew: the spaces have changed."""
        self._policies = []

    def adapt(self, *env_specs: EnvSpec) -> None:
        """Make the policy ready, where there is one and it is not.

        A policy that acts on one observation at a time is copied for each of several environments.

        Args:
            env_specs: What is known of each environment; their spaces are equal, but each environment has its own.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised, or cannot be copied where it must be.
        """
        if self._agent is None or self._policies:
            return
        first, *others = env_specs
        policies = [self._adapted(self._agent, first)]
        if getattr(policies[0], "row_by_row", False):
            policies += [self._adapted(self._copy(), env_spec) for env_spec in others]
        self._policies = policies
        self._shortcut = shortcut_of(policies[0])

    def _adapted(self, agent: Any, env_spec: EnvSpec) -> Policy:
        self._seeder.before_build()
        if isinstance(agent, PolicySource):
            return agent.load(env_spec, deterministic=self._deterministic)
        return adapt_policy(agent, env_spec, deterministic=self._deterministic)

    def _copy(self) -> Any:
        if isinstance(self._agent, PolicySource):
            return self._agent  # Each load of it is another copy.
        hint = "give the policy get_actions, which acts for all rows, or run one environment a worker"
        return PickleFile.of(self._agent, PolicyLoadError, hint=hint).load(PolicyLoadError)
