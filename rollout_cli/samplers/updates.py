"""What workers are given: policies, environments and their updates, and all that a new worker needs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import cloudpickle
import numpy as np

from rollout_cli.envs.source import as_env_source
from rollout_cli.envs.updates import EnvUpdate
from rollout_cli.errors import EnvLoadError, PolicyLoadError, UserCodeError
from rollout_cli.policies.source import policy_source
from rollout_cli.samplers.messages import Update
from rollout_cli.sources.loading import reporting
from rollout_cli.workers.factory import WorkerFactory


class UpdateLog:
    """What all workers of a sampler are given; `agents` and `envs` are as in `Sampler`.

    Attributes:
        labels: By worker, what its first environment is called.
        by_worker: Whether policies or environments differ by worker.
        has_failed: Whether the last call's updates could not be applied: the next of an environment builds on
            what was there before them.

    Raises:
        UserCodeError: If a policy or environment cannot be found, or cannot be pickled.
        ValueError: If a list does not have one entry a worker.
    """

    def __init__(self, factory: WorkerFactory, agents: Any, envs: Any) -> None:
        self._factory = factory
        self.by_worker = isinstance(agents, list) or isinstance(envs, list)
        sources = factory.prepare_worker_messages(envs, _env)
        updates = _updates(factory.prepare_worker_messages(agents, _policy), sources)
        # By worker, what it needs of all updates so far: a later one may replace earlier ones.
        self._agents = [[update.agent] for update in updates]
        self._envs = [[update.env] for update in updates]
        self.has_failed = False
        self._envs_before = self._envs
        self.labels = [str(_rows(source)[0].label) for source in sources]

    def note(self, agent_update: Any, env_update: Any) -> list[Update]:
        """Add one call's updates, as `Sampler.stream` has them; return them by worker."""
        agents = self._factory.prepare_worker_messages(agent_update, _policy)
        envs = self._factory.prepare_worker_messages(
            env_update, partial(_env, as_it_is=(EnvUpdate, type(None)))
        )
        updates = _updates(agents, envs)
        if not self.has_failed:
            self._envs_before = [*self._envs]
        self.has_failed = False
        self.by_worker = self.by_worker or isinstance(agent_update, list) or isinstance(env_update, list)
        for worker, update in enumerate(updates):
            if update.agent is not None:
                # Parameters replace earlier parameters; a whole policy replaces everything.
                policy = [] if update.is_policy else self._agents[worker][:1]
                self._agents[worker] = [*policy, update.agent]
            elif update.env is not None and len(self._agents[worker]) > 1:
                # A policy that is built anew for other spaces needs its parameters once more.
                updates[worker] = replace(update, agent=self._agents[worker][1])
            if update.env is not None:
                rows = _rows(envs[worker])
                self._envs[worker] = [update.env]
                if any(isinstance(row, EnvUpdate) and not row.replaces_env for row in rows):
                    self._envs[worker] = [*self._envs_before[worker], update.env]
        return updates

    def history(self, worker: int) -> tuple[Update, ...]:
        """Return all updates to apply to a new worker, in order: those of the environment first.

        The policy need not fit any but the last environment.
        """
        agent, *agents = self._agents[worker]
        *envs, env = self._envs[worker]
        return (
            *(Update(env=env) for env in envs),
            Update(agent, env),
            *(Update(agent=agent) for agent in agents),
        )


def _updates(agents: list[Any], envs: list[Any]) -> list[Update]:
    are_policies = [
        agent is not None and not isinstance(agent, dict | tuple | np.ndarray) for agent in agents
    ]
    pickled_agents = _pickled(agents, "policy", PolicyLoadError)
    pickled_envs = _pickled(envs, "environment", EnvLoadError)
    return list(map(Update, pickled_agents, pickled_envs, are_policies))


def _pickled(objs: list[Any], what: str, kind: type[UserCodeError]) -> list[bytes | None]:
    """Return every object pickled; one that several workers share is pickled once."""
    pickled: dict[int, bytes | None] = {id(None): None}
    # A class or function alone is no policy: a SPEC names one that makes it.
    instead = "module:attr as a text" if what == "policy" else "a class, a factory or module:attr"
    with reporting(
        kind,
        f"the {what} cannot be pickled",
        code="pickle-failed",
        hint=f"each worker gets a copy: give {instead}, from which it builds its own",
    ):
        for obj in objs:
            if id(obj) not in pickled:
                pickled[id(obj)] = cloudpickle.dumps(obj)
    return [pickled[id(obj)] for obj in objs]


def _policy(agent: Any) -> Any:
    """Return what to send for a policy: a text is a SPEC, as on the command line."""
    return policy_source(agent) if isinstance(agent, str) else agent


def _env(env: Any, as_it_is: tuple[type, ...] = ()) -> Any:
    """Return what to send for an environment; a worker with several may have a list with one a row."""
    if isinstance(env, list):
        return [_env(row, as_it_is) for row in env]
    return env if isinstance(env, as_it_is) else as_env_source(env)


def _rows(env: Any) -> list[Any]:
    return env if isinstance(env, list) else [env]
