"""The loops of the JAX cases: `python -m benchmarks.jax_loops ENV ROWS ROUNDS SECONDS LOOP …`.

It prints the steps and the seconds of each round as JSON, by loop. `bare scan` is one `lax.scan` with the resets of
gymnax or brax, whose observations, actions, rewards and flags go to the host; `engine` is a worker whose episodes
are taken as chunks; `gymnax's wrapper` steps one row through its wrapper for gymnasium. All take random actions.
Compiling is not timed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnax
import jax
import numpy as np

from rollout_cli.envs.source import as_env_source
from rollout_cli.policies.source import policy_source
from rollout_cli.workers.kinds import VecWorker

BLOCK_STEPS = 1 << 17
"""Steps of all rows in a call of the scan, as in the engine."""

EPISODE_STEPS = 1_000
"""The time limit of the brax environment."""


def gymnax_scan(name: str, n_rows: int) -> tuple[Any, Any]:
    """Return the carry and the step of a scan with gymnax's resets."""
    env, params = gymnax.make(name.removeprefix("gymnax:"))
    space = env.action_space(params)

    def step(carry: Any, _: None) -> Any:
        key, observations, states = carry
        key, action_key, step_key = jax.random.split(key, 3)
        actions = jax.vmap(space.sample)(jax.random.split(action_key, n_rows))
        step_keys = jax.random.split(step_key, n_rows)
        results = jax.vmap(env.step, in_axes=(0, 0, 0, None))(step_keys, states, actions, params)
        following, states, rewards, terminated, truncated, _ = results
        return (key, following, states), (observations, actions, rewards, terminated, truncated)

    keys = jax.random.split(jax.random.key(0), n_rows)
    observations, states = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, params)
    return (jax.random.key(1), observations, states), step


def brax_scan(_: str, n_rows: int) -> tuple[Any, Any]:
    """Return the carry and the step of a scan with brax's EpisodeWrapper and AutoResetWrapper."""
    from brax import envs  # noqa: PLC0415 - CartPole does not need it

    env = envs.create("inverted_pendulum", episode_length=EPISODE_STEPS, auto_reset=True, batch_size=n_rows)

    def step(carry: Any, _: None) -> Any:
        key, state = carry
        key, action_key = jax.random.split(key)
        actions = jax.random.uniform(action_key, (n_rows, env.action_size), minval=-1.0, maxval=1.0)
        after = env.step(state, actions)
        is_truncated = after.info["truncation"] > 0
        return (key, after), (
            state.obs,
            actions,
            after.reward,
            (after.done > 0) & ~is_truncated,
            is_truncated,
        )

    return (jax.random.key(1), jax.jit(env.reset)(jax.random.key(0))), step


def scan(env: str, n_rows: int) -> Callable[[], int]:
    """Return the function that runs a block of the scan, copies it to the host, and returns its steps."""
    carry, step = (gymnax_scan if env.startswith("gymnax:") else brax_scan)(env, n_rows)
    n_steps = BLOCK_STEPS // n_rows
    run = jax.jit(lambda carry: jax.lax.scan(step, carry, None, n_steps))

    def block() -> int:
        nonlocal carry
        carry, arrays = run(carry)
        jax.tree.map(np.asarray, arrays)
        return n_steps * n_rows

    return block


def engine(env: str, n_rows: int) -> Callable[[], int]:
    """Return the function that advances a worker, takes its episodes, and returns their steps."""
    worker = VecWorker(n_envs=n_rows, seed=0, max_episode_length=None, worker_number=0)
    worker.update_env(as_env_source(env).build())
    worker.update_agent(policy_source("random"))
    next_number = 0

    def advance() -> int:
        nonlocal next_number
        # A sampler keeps more numbers waiting than a block can start.
        if next_number - max(worker.running_numbers, default=0) < BLOCK_STEPS:
            worker.assign([range(next_number, next_number + BLOCK_STEPS)])
            next_number += BLOCK_STEPS
        worker.advance(time.perf_counter())
        return sum(chunk.n_steps for chunk in worker.take())

    return advance


def wrapper(env: str, _: int) -> Callable[[], int]:
    """Return the function that takes a step of one row through gymnax's wrapper."""
    from gymnax.wrappers import GymnaxToGymWrapper  # noqa: PLC0415 - it loads gymnasium's wrappers

    functional, params = gymnax.make(env.removeprefix("gymnax:"))
    wrapped = GymnaxToGymWrapper(functional, params)
    space = wrapped.action_space
    wrapped.reset(seed=0)

    def step() -> int:
        _, _, terminated, truncated, _ = wrapped.step(space.sample())
        if terminated or truncated:
            wrapped.reset()
        return 1

    return step


LOOPS: dict[str, Callable[[str, int], Callable[[], int]]] = {
    "bare scan": scan,
    "engine": engine,
    "gymnax's wrapper": wrapper,
}


def timed(advance: Callable[[], int], seconds: float) -> tuple[int, float]:
    """Advance for at least some seconds; return the steps and the seconds that it took."""
    taken = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        taken += advance()
    return taken, elapsed


def main(arguments: list[str]) -> None:
    """Compile, then time the loops alternately."""
    env, n_rows, n_rounds, seconds, *names = arguments
    loops = {name: LOOPS[name](env, int(n_rows)) for name in names}
    for advance in loops.values():
        for _ in range(3):  # The types of a carry may change after the first call, which compiles again.
            advance()
    rounds = [{name: timed(loops[name], float(seconds)) for name in names} for _ in range(int(n_rounds))]
    json.dump({name: [each[name] for each in rounds] for name in names}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
