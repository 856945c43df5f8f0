"""What workers are given: policies, environments and updates of them, and all that a new worker must be sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rollout_cli.envs.source import as_env_source
from rollout_cli.envs.updates import EnvUpdate
from rollout_cli.errors import EnvLoadError, PolicyLoadError, UserCodeError
from rollout_cli.loading import reporting
from rollout_cli.policies.source import policy_source
from rollout_cli.samplers.messages import Pickled, Update
from rollout_cli.workers.factory import WorkerFactory


class UpdateHistory:
    """The updates of one worker, without those that a later one makes void.

    Args:
        first: The first policy and environment.
    """

    def __init__(self, first: Update) -> None:
        self._agents, self._envs = [first.agent], [first.env]

    def add(self, update: Update, agent: Any, env: Any) -> None:
        """Note the updates of one call.

        Args:
            update: The updates, pickled.
            agent: The policy's update itself, which says whether it builds on those before.
            env: The environment's.
        """
        if update.agent is not None:
            # Parameters replace earlier parameters; a whole policy replaces everything.
            parameters = isinstance(agent, dict | tuple | np.ndarray)
            self._agents = [self._agents[0], update.agent] if parameters else [update.agent]
        if update.env is not None:
            rows = env if isinstance(env, list) else [env]
            builds_on = any(isinstance(row, EnvUpdate) and not row.replaces_env for row in rows)
            self._envs = [*self._envs, update.env] if builds_on else [update.env]

    @property
    def updates(self) -> tuple[Update, ...]:
        """Return all updates to apply to a new worker, in order: those of the environment first."""
        envs = [Update(env=env) for env in self._envs[1:]]
        agents = [Update(agent=agent) for agent in self._agents[1:]]
        return Update(self._agents[0], self._envs[0]), *envs, *agents


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

    Raises:
        UserCodeError: If a policy or environment cannot be found, or cannot be pickled.
        ValueError: If a list does not have one entry a worker.
    """

    def __init__(self, factory: WorkerFactory, agents: Any, envs: Any) -> None:
        self._factory = factory
        self.by_worker = isinstance(agents, list) or isinstance(envs, list)
        sources = factory.prepare_worker_messages(envs, _env)
        policies = factory.prepare_worker_messages(agents, _policy)
        self.histories = [UpdateHistory(update) for update in _updates(policies, sources)]
        self.labels = [_label(source) for source in sources]

    def note(self, agent_update: Any, env_update: Any) -> list[Update]:
        """Add one call's updates, as `Sampler.stream` has them; return them by worker."""
        self.by_worker = self.by_worker or isinstance(agent_update, list) or isinstance(env_update, list)
        agents = self._factory.prepare_worker_messages(agent_update, _policy)
        envs = self._factory.prepare_worker_messages(env_update, _env_update)
        updates = _updates(agents, envs)
        for history, update, agent, env in zip(self.histories, updates, agents, envs, strict=True):
            history.add(update, agent, env)
        return updates


def _updates(agents: Iterable[Any], envs: Iterable[Any]) -> list[Update]:
    pairs = zip(_pickled(agents, "policy", PolicyLoadError), _pickled(envs, "environment", EnvLoadError), strict=True)
    return [Update(*pair) for pair in pairs]


def _pickled(objs: Iterable[Any], what: str, kind: type[UserCodeError]) -> list[Pickled | None]:
    """Return every object pickled; one that several workers share is pickled once."""
    pickled: dict[int, Pickled | None] = {}

    def message(obj: Any) -> Pickled | None:
        if id(obj) not in pickled:
            hint = "each worker gets a copy: give a class, a factory or module:attr, from which it builds its own"
            with reporting(kind, f"the {what} cannot be pickled", hint=hint):
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
