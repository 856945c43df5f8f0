"""What a worker's loop sends of the episodes that have ended."""

from __future__ import annotations

import math
from typing import Any

import cloudpickle

from rollout_cli.envs.describe import env_spec_of
from rollout_cli.envs.updates import NewEnvUpdate
from rollout_cli.errors import EnvError
from rollout_cli.samplers.messages import Batch, Failed, Start, ToSampler, Update
from rollout_cli.samplers.worker_loop import WorkerLoop
from rollout_cli.workers.factory import WorkerFactory
from tests.workers import worlds
from tests.workers.worlds import ChainEnv


def sent(env: Any, **options: Any) -> list[ToSampler]:
    """Return all that a loop sends for 20 episodes of an environment."""
    factory = WorkerFactory(n_workers=1, seed=3, **options)
    loop = WorkerLoop(lambda: factory, 0, owns_process=False)
    policy = worlds.BatchPolicy(env_spec_of(ChainEnv()))
    update = Update(cloudpickle.dumps(policy), cloudpickle.dumps(NewEnvUpdate(env)))
    messages = loop.turn([Start(1, (update,), (range(20),))])
    while not loop.idle:
        messages += loop.turn()
    return messages


def test_infos_to_drop() -> None:
    """They are in no chunk that is sent, those of the environment's resets are."""
    messages = sent(ChainEnv, drop_infos=["position", "agent_info.*"])
    chunks = [message.chunk.load() for message in messages if isinstance(message, Batch)]
    assert 20 == sum(chunk.n_episodes for chunk in chunks)
    for chunk in chunks:
        assert ((), ()) == (chunk.env_infos.columns, chunk.agent_infos.columns)
        assert 1 == len(chunk.episode_infos.columns)


def test_a_reward_that_is_no_number() -> None:
    """The sound episodes are sent before the error, which has the number of the faulty one."""

    class Faulty(ChainEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, math.nan if self.length == 3 else reward, *rest

    messages = sent(Faulty)
    chunks = [message.chunk for message in messages if isinstance(message, Batch)]
    numbers = [number for chunk in chunks for number in chunk.numbers.tolist()]
    failed = messages[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, EnvError)
    assert "the reward is not a number (nan)" in failed.error.message
    assert numbers
    assert not set(numbers) & set(failed.error.episodes)
