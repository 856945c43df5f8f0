"""AgentHolder: the policy of a worker, in the user's form and in ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import InternalError, PolicyError
from rollout_cli.policies import Policy, PolicySource, adapt_policy
from rollout_cli.user_code import first_line
from rollout_cli.workers.seeder import EpisodeSeeder


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
        self._policy: Policy | None = None

    @property
    def policy(self) -> Policy:
        """Return the adapted policy."""
        if self._policy is None:
            raise InternalError("the worker needs both a policy and an environment: update_agent and update_env")
        return self._policy

    @property
    def is_ready(self) -> bool:
        """Return whether there is an adapted policy."""
        return self._policy is not None

    def update(self, agent_update: Any) -> None:
        """Take a new policy, or parameters (a dict, tuple or array) for the one there is.

        Raises:
            PolicyError: If the policy refuses the parameters.
        """
        if not isinstance(agent_update, dict | tuple | np.ndarray):
            self._agent, self._policy = agent_update, None
            return
        if self._policy is None:
            raise InternalError("parameters were sent to a worker that has no policy yet")
        self._seeder.before_build()
        try:
            self._policy.set_param_values(agent_update)
        except Exception as error:
            hint = "parameters go from one policy's get_param_values to another of its kind"
            raise PolicyError(f"policy.set_param_values raised {first_line(error)}", hint=hint) from error

    def forget_policy(self) -> None:
        """Adapt anew: the spaces have changed."""
        self._policy = None

    def adapt(self, env_spec: EnvSpec) -> None:
        """Make the policy ready, where there is one and it is not.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised.
        """
        if self._agent is not None and self._policy is None:
            self._policy = self.another(env_spec)

    def another(self, env_spec: EnvSpec) -> Policy:
        """Return the policy adapted once more; of a PolicySource, another copy."""
        self._seeder.before_build()
        if isinstance(self._agent, PolicySource):
            return self._agent.load(env_spec, deterministic=self._deterministic)
        return adapt_policy(self._agent, env_spec, deterministic=self._deterministic)
