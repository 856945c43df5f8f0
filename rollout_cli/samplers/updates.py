"""UpdateLog: the policies, environments and updates sent to workers, including a new worker's history."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import cloudpickle

from rollout_cli.envs.source import as_env_source
from rollout_cli.envs.updates import EnvUpdate
from rollout_cli.errors import EnvLoadError, PolicyLoadError, UserCodeError
from rollout_cli.policies.source import policy_source
from rollout_cli.samplers.messages import Update
from rollout_cli.sources.loading import reporting
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.policy_holder import is_parameters


class UpdateLog:
    """Policies, environments and updates of a sampler's workers; `agents` and `envs` are as in `Sampler`.

    Attributes:
        labels: Name of each worker's first environment.
        by_worker: Whether policies or environments differ by worker.

    Raises:
        UserCodeError: If a policy or environment cannot be found or cannot be pickled.
        ValueError: If a list does not have one entry per worker.
    """

    def __init__(self, factory: WorkerFactory, agents: Any, envs: Any) -> None:
        self._factory = factory
        self.by_worker = isinstance(agents, list) or isinstance(envs, list)
        sources = factory.prepare_worker_messages(envs, _env)
        updates = _updates(factory.prepare_worker_messages(agents, _policy), sources)
        # The updates that each worker still needs: a later update may replace earlier ones.
        self._agents = [[update.agent] for update in updates]
        self._envs = [[update.env] for update in updates]
        self._has_failed = False
        self._envs_before = self._envs
        self.labels = [str(_rows(source)[0].label) for source in sources]

    def note(self, agent_update: Any, env_update: Any) -> list[Update]:
        """Add one call's updates, given as in `Sampler.stream`; return one Update per worker."""
        agents = self._factory.prepare_worker_messages(agent_update, _policy)
        envs = self._factory.prepare_worker_messages(
            env_update, partial(_env, unchanged=(EnvUpdate, type(None)))
        )
        updates = _updates(agents, envs)
        if not self._has_failed:
            self._envs_before = [*self._envs]
        self._has_failed = False
        self.by_worker = self.by_worker or isinstance(agent_update, list) or isinstance(env_update, list)
        for worker, update in enumerate(updates):
            if update.agent is not None:
                # Parameters replace earlier parameters; a policy replaces the policy and its parameters.
                policy = [] if update.is_policy else self._agents[worker][:1]
                self._agents[worker] = [*policy, update.agent]
            elif update.env is not None and len(self._agents[worker]) > 1:
                # A policy that is rebuilt for other spaces needs its parameters again.
                updates[worker] = replace(update, agent=self._agents[worker][1])
            if update.env is not None:
                rows = _rows(envs[worker])
                self._envs[worker] = [update.env]
                if any(isinstance(row, EnvUpdate) and not row.replaces_env for row in rows):
                    self._envs[worker] = [*self._envs_before[worker], update.env]
        return updates

    def failed(self) -> None:
        """Mark the last updates as impossible to apply.

        The next environment update replaces them and applies to the environments before them.
        """
        self._has_failed = True

    def history(self, worker: int) -> tuple[Update, ...]:
        """Return all updates to apply to a new worker, in order: environments first.

        The policy has to fit only the last environment.
        """
        agent, *agents = self._agents[worker]
        *envs, env = self._envs[worker]
        return (
            *(Update(env=env) for env in envs),
            Update(agent, env),
            *(Update(agent=agent) for agent in agents),
        )


def _updates(agents: list[Any], envs: list[Any]) -> list[Update]:
    are_policies = [agent is not None and not is_parameters(agent) for agent in agents]
    pickled_agents = _pickled(agents, "policy", PolicyLoadError)
    pickled_envs = _pickled(envs, "environment", EnvLoadError)
    return list(map(Update, pickled_agents, pickled_envs, are_policies))


def _pickled(objs: list[Any], what: str, kind: type[UserCodeError]) -> list[bytes | None]:
    """Return the pickle of every object; an object that several workers share is pickled once."""
    pickled: dict[int, bytes | None] = {id(None): None}
    # A class or function is not accepted as a policy, but a SPEC can name a class or factory of policies.
    instead = "the string 'module:attr'" if what == "policy" else "a class, a factory or 'module:attr'"
    with reporting(
        kind,
        f"the {what} cannot be pickled",
        code="pickle-failed",
        hint=f"pass {instead}, so that each worker builds its own copy",
    ):
        for obj in objs:
            if id(obj) not in pickled:
                pickled[id(obj)] = cloudpickle.dumps(obj)
    return [pickled[id(obj)] for obj in objs]


def _policy(agent: Any) -> Any:
    """Return the object to pickle for a policy; a string is a SPEC, as on the command line."""
    return policy_source(agent) if isinstance(agent, str) else agent


def _env(env: Any, unchanged: tuple[type, ...] = ()) -> Any:
    """Return the object to pickle for an environment, or a list of them for a worker with one per row.

    Objects of the types in `unchanged` are returned without conversion to an EnvSource.
    """
    if isinstance(env, list):
        return [_env(row, unchanged) for row in env]
    return env if isinstance(env, unchanged) else as_env_source(env)


def _rows(env: Any) -> list[Any]:
    return env if isinstance(env, list) else [env]
