"""Loops of a learner: each iteration collects 2,048 steps with new parameters.

`python -m benchmarks.learner_loops LOOP ENV STEPS` prints a JSON document with the collected steps and the `seconds`
that they took, without the start (workers, imports, the first two iterations).
`python -m benchmarks.learner_loops update KIND SECONDS` prints the times of short calls with and without an update.

All loops use a torch network of 64 x 64 tanh units, 16 environments and one thread for linear algebra. Instead of an
optimizer step, a little noise is added to every parameter.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv

from benchmarks.policies import WIDTH
from rollout_cli import LocalSampler, MultiprocessingSampler, Sampler, VecWorker

N_ENVS = 16
STEPS = 2048
"""Minimum steps of an iteration."""

WARM_UP = 2
"""Warm-up iterations, which are not timed."""

SHORT_CALL = 20
"""Steps of a call in the timing of updates."""

Collect = Callable[[], int]
"""Collects the steps of one iteration; returns their number."""


class Actor(torch.nn.Module):
    """A 64 x 64 network with an action distribution as its output: Categorical or Normal."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__()
        assert env.observation_space.shape is not None
        space = env.action_space
        self.is_discrete = isinstance(space, gymnasium.spaces.Discrete)
        n_outputs = (
            int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else int(np.prod(space.shape or ()))
        )
        self.net = torch.nn.Sequential(
            torch.nn.Linear(env.observation_space.shape[0], WIDTH),
            torch.nn.Tanh(),
            torch.nn.Linear(WIDTH, WIDTH),
            torch.nn.Tanh(),
            torch.nn.Linear(WIDTH, n_outputs),
        )
        self.log_std = torch.nn.Parameter(torch.zeros(n_outputs))

    def forward(self, observations: torch.Tensor) -> torch.distributions.Distribution:
        """Return the distribution of n actions for float observations (n, ...)."""
        output = self.net(observations)
        if self.is_discrete:
            return torch.distributions.Categorical(logits=output)
        return torch.distributions.Normal(output, self.log_std.exp())


def make_env(env_id: str) -> gymnasium.Env[Any, Any]:
    """Return the environment; Box actions are clipped, since Gaussian policies exceed the bounds."""
    env = gymnasium.make(env_id)
    return gymnasium.wrappers.ClipAction(env) if isinstance(env.action_space, gymnasium.spaces.Box) else env


def change(net: torch.nn.Module) -> None:
    """Change all parameters a little, instead of an optimizer step."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=1e-4)


def local_sampler(env_id: str) -> tuple[Sampler, Actor]:
    """Return a LocalSampler whose worker steps 16 environments, and its network."""
    return _sampler(LocalSampler, env_id, n_workers=1)


def process_sampler(env_id: str) -> tuple[Sampler, Actor]:
    """Return a MultiprocessingSampler whose two workers step 8 environments each, and its network."""
    return _sampler(MultiprocessingSampler, env_id, n_workers=2)


def _sampler(kind: type[Sampler], env_id: str, *, n_workers: int) -> tuple[Sampler, Actor]:
    env = make_env(env_id)
    net = Actor(env)
    worker_args = {"n_envs": N_ENVS // n_workers}
    return kind(net, env, n_workers=n_workers, worker_class=VecWorker, worker_args=worker_args, seed=0), net


def sampler_loop(make: Callable[[str], tuple[Sampler, Actor]], env_id: str) -> Collect:
    """Collect with a sampler that receives a `state_dict` in each iteration."""
    sampler, net = make(env_id)

    def collect() -> int:
        change(net)
        batch = sampler.obtain_samples(0, STEPS, agent_update=net.state_dict())
        return len(batch.rewards)

    return collect


def vector_loop(env_id: str) -> Collect:
    """Collect with gymnasium's SyncVectorEnv into arrays [time, environment], as CleanRL does."""
    envs = SyncVectorEnv([partial(make_env, env_id)] * N_ENVS)
    net = Actor(make_env(env_id))
    length = STEPS // N_ENVS
    observation_shape: Any = envs.single_observation_space.shape
    action_shape: Any = envs.single_action_space.shape
    observation, _ = envs.reset(seed=0)

    def collect() -> int:
        nonlocal observation
        change(net)
        observations = np.zeros((length, N_ENVS, *observation_shape), np.float32)
        actions = np.zeros((length, N_ENVS, *action_shape), envs.single_action_space.dtype)
        rewards = np.zeros((length, N_ENVS))
        terminated, truncated = np.zeros((2, length, N_ENVS), bool)
        for step in range(length):
            observations[step] = observation
            with torch.no_grad():
                actions[step] = net(torch.from_numpy(observations[step])).sample().numpy()
            observation, rewards[step], terminated[step], truncated[step], _ = envs.step(actions[step])
        return length * N_ENVS

    return collect


def sb3_loop(env_id: str) -> Collect:
    """Collect with Stable-Baselines3's PPO, which also computes values and log-probabilities at each step."""
    from stable_baselines3 import PPO  # noqa: PLC0415  Only this loop needs it.
    from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415

    model: Any = PPO("MlpPolicy", make_vec_env(env_id, N_ENVS), n_steps=STEPS // N_ENVS, seed=0, device="cpu")
    _, callback = model._setup_learn(STEPS)  # noqa: SLF001  `learn` collects and trains in one.

    def collect() -> int:
        change(model.policy)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=model.n_steps)
        return STEPS

    return collect


LOOPS: dict[str, Callable[[str], Collect]] = {
    "local": partial(sampler_loop, local_sampler),
    "processes": partial(sampler_loop, process_sampler),
    "sync_vector": vector_loop,
    "sb3": sb3_loop,
}


def time_loop(loop: str, env_id: str, n_steps: int) -> dict[str, Any]:
    """Run iterations until `n_steps` steps are collected; return the steps and the seconds."""
    collect = LOOPS[loop](env_id)
    for _ in range(WARM_UP):
        collect()
    collected = 0
    began = time.perf_counter()
    while collected < n_steps:
        collected += collect()
    return {"steps": collected, "seconds": time.perf_counter() - began}


def time_updates(kind: str, seconds: float) -> dict[str, Any]:
    """Make calls of 20 steps for `seconds`; return the times of calls without an update and with each kind.

    The calls alternate between no update, a `state_dict`, and a module.
    """
    sampler, net = {"local": local_sampler, "processes": process_sampler}[kind]("CartPole-v1")
    times: dict[str, list[float]] = {"none": [], "state_dict": [], "module": []}
    updates: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "state_dict": net.state_dict,
        "module": lambda: net,
    }
    for _ in range(WARM_UP):
        sampler.obtain_samples(0, SHORT_CALL, agent_update=net.state_dict())
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, update in updates.items():
            change(net)
            began = time.perf_counter()
            sampler.obtain_samples(0, SHORT_CALL, agent_update=update())
            times[name].append(time.perf_counter() - began)
    sampler.shutdown_worker()
    return times


def main(arguments: list[str]) -> None:
    """Run a loop, or time calls with and without an update."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    match arguments:
        case ["update", kind, seconds]:
            document = time_updates(kind, float(seconds))
        case [loop, env_id, steps]:
            document = time_loop(loop, env_id, int(steps))
        case _:
            sys.exit(__doc__)
    json.dump(document, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
