"""What workers are given: policies, environments and updates of them, and what one that starts late must be sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rollout_cli.envs import EnvUpdate, as_env_source
from rollout_cli.policies import policy_source
from rollout_cli.samplers.messages import Pickled
from rollout_cli.workers import WorkerFactory

Update = tuple[Pickled | None, Pickled | None]


class UpdateHistory:
    """The updates of one worker, without those that a later one makes void.

    Args:
        agent: The first policy.
        env: The first environment.
    """

    def __init__(self, agent: Pickled | None, env: Pickled | None) -> None:
        self._agents = [agent]
        self._envs = [env]

    def add(self, update: Update, given: tuple[Any, Any]) -> None:
        """Note the (agent, env) updates of one call.

        Args:
            update: The updates, pickled; None is none.
            given: The updates themselves, which tell whether they build on those before.
        """
        agent, env = update
        if agent is not None:
            # Parameters replace earlier parameters; a whole policy replaces everything.
            parameters = isinstance(given[0], dict | tuple | np.ndarray)
            self._agents = [self._agents[0], agent] if parameters else [agent]
        if env is not None:
            rows = given[1] if isinstance(given[1], list) else [given[1]]
            builds_on = any(isinstance(row, EnvUpdate) and not row.replaces_env for row in rows)
            self._envs = [*self._envs, env] if builds_on else [env]

    @property
    def updates(self) -> list[Update]:
        """Return all updates to apply to a new worker, in order: those of the environment first."""
        first = (self._agents[0], self._envs[0])
        envs: list[Update] = [(None, env) for env in self._envs[1:]]
        agents: list[Update] = [(agent, None) for agent in self._agents[1:]]
        return [first, *envs, *agents]


class UpdateLog:
    """What all workers of a sampler are given.

    Attributes:
        histories: By worker, what brings a new one to where it should be.
        labels: By worker, what its first environment is called.
        by_worker: Whether policies or environments differ by worker.

    Args:
        factory: Makes lists with one entry a worker.
        agents: As in `Sampler`.
        envs: As in `Sampler`.
    """

    def __init__(self, factory: WorkerFactory, agents: Any, envs: Any) -> None:
        self._factory = factory
        self.by_worker = isinstance(agents, list) or isinstance(envs, list)
        sources = factory.prepare_worker_messages(envs, _env)
        policies = factory.prepare_worker_messages(agents, _policy)
        pairs = zip(_pickled(policies), _pickled(sources), strict=True)
        self.histories = [UpdateHistory(agent, env) for agent, env in pairs]
        self.labels = [_label(source) for source in sources]

    def note(self, agent_update: Any, env_update: Any) -> list[Update]:
        """Add one call's updates, as `Sampler.stream` has them; return them by worker, pickled."""
        self.by_worker = self.by_worker or isinstance(agent_update, list) or isinstance(env_update, list)
        agents = self._factory.prepare_worker_messages(agent_update, _policy)
        envs = self._factory.prepare_worker_messages(env_update, _env_update)
        updates = list(zip(_pickled(agents), _pickled(envs), strict=True))
        given = zip(agents, envs, strict=True)
        for history, update, objects in zip(self.histories, updates, given, strict=True):
            history.add(update, objects)
        return updates


def _pickled(objs: Iterable[Any]) -> list[Pickled | None]:
    """Return every object pickled; one that several workers share is pickled once."""
    pickled: dict[int, Pickled | None] = {}

    def message(obj: Any) -> Pickled | None:
        if id(obj) not in pickled:
            pickled[id(obj)] = Pickled.of(obj)
        return pickled[id(obj)]

    return [message(obj) for obj in objs]


def _policy(agent: Any) -> Any:
    """Return what to send for a policy: a text is a SPEC, as on the command line."""
    return policy_source(agent) if isinstance(agent, str) else agent


def _env(env: Any) -> Any:
    """Return what to send for an environment; a worker with several may have a list with one a row."""
    return [as_env_source(row) for row in env] if isinstance(env, list) else as_env_source(env)


def _label(source: Any) -> str:
    return _label(source[0]) if isinstance(source, list) else str(source.label)


def _env_update(env: Any) -> Any:
    if isinstance(env, list):
        return [_env_update(row) for row in env]
    return env if env is None or isinstance(env, EnvUpdate) else as_env_source(env)
