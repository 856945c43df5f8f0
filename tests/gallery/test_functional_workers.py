"""The contract of all workers (`tests/workers`) with the engine of JAX environments.

The tests are those of the suite. `make` gives their workers JAX forms of the suite's environments and policies, and
blocks of two steps, so that a call of `advance` ends few episodes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollout_cli.envs.source import as_env_source
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import tabulate
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.policies.source import policy_source
from rollout_cli.samplers.messages import Start, Update
from rollout_cli.workers.context import WorkerContext
from rollout_cli.workers.functional import engine as engines
from rollout_cli.workers.functional.engine import FunctionalEngine
from rollout_cli.workers.functional.program import random_act
from rollout_cli.workers.kinds import VecWorker
from tests.workers import raising, test_contract, test_raised, test_values, worlds
from tests.workers.test_raised import no_interrupts
from tests.workers.worlds import N_ENVS, SEED, ChainEnv

KIND = "functional"
__all__ = ["no_interrupts"]  # A fixture of the suite.


class Chain:
    """ChainEnv; its infos of the reset, which a FunctionalEnv does not have, are missing."""

    max_episode_steps: int | None = None

    def __init__(self, original: Any) -> None:
        self.observation_space = original.observation_space
        self.action_space = original.action_space
        self.original = original

    def observe(self, position: Any, length: Any, noise: Any) -> Any:
        return jnp.stack([position, length, noise]).astype(jnp.float32)

    def reset(self, key: Any) -> Any:
        noise_key, key = jax.random.split(key)
        length = jnp.int32(self.original._fixed or 1 + 2 * jax.random.randint(key, (), 0, 5))
        position = jnp.int32(0)
        return self.observe(position, length, jax.random.uniform(noise_key)), (position, length)

    def step(self, key: Any, state: Any, action: Any) -> Any:
        position, length = state[0] + 1, state[1]
        ends = self.original._ends
        is_last = (position >= length) & (ends != "never")
        flags = is_last & (ends in ("terminated", "both")), is_last & (ends in ("truncated", "both"))
        observation = self.observe(position, length, jax.random.uniform(key))
        reward = jnp.where(action == 1, 1.0, 0.5)
        return observation, (position, length), reward, *flags, {"position": position}


class Mixed(Chain):
    """The chains of nine steps have fifty."""

    def reset(self, key: Any) -> Any:
        observation, (position, length) = super().reset(key)
        length = jnp.where(length == 9, 50, length)
        return observation.at[1].set(length), (position, length)


class Push(Chain):
    """The reward is the sum of the action."""

    def step(self, key: Any, state: Any, action: Any) -> Any:
        observation, state, _, *rest = super().step(key, state, 0)
        return observation, state, jnp.sum(action), *rest


class Faulty(Chain):
    """The rewards of chains of three steps are nan."""

    def step(self, key: Any, state: Any, action: Any) -> Any:
        observation, state, reward, *rest = super().step(key, state, action)
        return observation, state, jnp.where(state[1] == 3, math.nan, reward), *rest


class Raising(Chain):
    """Raises when a program is traced."""

    def reset(self, key: Any) -> Any:
        if self.original._where == "reset":
            raise self.original._error()
        return super().reset(key)

    def step(self, key: Any, state: Any, action: Any) -> Any:
        if self.original._where == "step":
            raise self.original._error()
        return super().step(key, state, action)


class Spaces(Chain):
    """SpaceEnv: observations drawn from its space."""

    def observe(self, position: Any, length: Any, noise: Any) -> Any:
        sample = random_act(SpaceRows(self.observation_space))
        assert sample is not None
        return sample(jax.random.key(position), None, None)

    def reset(self, key: Any) -> Any:
        length = jax.random.randint(key, (), 1, 8)
        return self.observe(0, 0, 0), (jnp.int32(0), length)

    def step(self, key: Any, state: Any, action: Any) -> Any:
        position, length = state[0] + 1, state[1]
        is_last = position >= length
        return self.observe(position, 0, 0), (position, length), 0.0, is_last, jnp.zeros((), bool), {}


FORMS: dict[str, type[Chain]] = {
    "SpaceEnv": Spaces,
    "Mixed": Mixed,
    "PushEnv": Push,
    "Wide": Push,
    "Faulty": Faulty,
    "Raising": Raising,
}
"""By the name of a class of the suite, its JAX form; those of other classes are Chain."""


def env_of(kind: str, make_env: Callable[[], Any], n_envs: int = N_ENVS) -> Chain:
    """Return the JAX form of an environment of the suite, without its wrappers."""
    original = make_env().unwrapped
    return FORMS.get(type(original).__name__, Chain)(original)


class Table:
    """A policy of the suite: TablePolicy is computed in JAX; other policies act on a batch of one row."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def set_param_values(self, params: Any) -> None:
        self.original.set_param_values(params)

    def get_param_values(self) -> Any:
        return {"table": np.array(getattr(self.original, "table", 0))}

    def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
        if isinstance(self.original, worlds.TablePolicy):
            place = (jnp.abs(observation).sum() * 7.31 % 1.0 * 16).astype(jnp.int32)
            return params["table"][place], {"place": place, "half": place / 2}
        self.original._calls = 1  # A GivenPolicy returns the given action from its second call on.
        actions, _ = self.original.get_actions(observation[None])
        return actions[0]


def make(
    kind: str,
    env: Any = ChainEnv,
    policy: Callable[[Any], Any] = worlds.BatchPolicy,
    *,
    limit: float | None = None,
    context: WorkerContext | None = None,
    n_envs: int = N_ENVS,
) -> Any:
    """Return a worker with the JAX forms of an environment and a policy."""
    worker = VecWorker.in_context(
        context or WorkerContext(), seed=SEED, max_episode_length=limit, worker_number=2, n_envs=n_envs
    )
    worker.update_env(env if isinstance(env, Chain) else env_of(kind, env))
    worker.update_agent(Table(policy(worker.env_spec)))
    assert isinstance(worker._engine, FunctionalEngine)
    return worker


def check_chain(chunk: Chunk) -> None:
    """Check every episode of Chain, with the infos of ChainEnv's reset."""
    lengths = tabulate([{"length": int(length)} for length in chunk.last_observations[0][:, 1]])
    worlds.check_chain(replace(chunk, episode_infos=lengths))


class Broken(Chain):
    """Raises as `raising.Raising` does."""

    def __init__(self) -> None:
        super().__init__(ChainEnv(length=3))

    def reset(self, key: Any) -> Any:
        raising.pass_by("env.reset")
        return super().reset(key)

    def step(self, key: Any, state: Any, action: Any) -> Any:
        raising.pass_by("env.step")
        return super().step(key, state, action)


class Acting(Table):
    """Raises as `raising.Acting` does."""

    def __init__(self, env_spec: Any) -> None:
        super().__init__(worlds.BatchPolicy(env_spec))

    def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
        raising.pass_by("policy.jax_act")
        return super().jax_act(key, observation, params)


def start(kind: str) -> Start:
    """Return the command that builds these two, and runs 4 episodes."""
    policy = policy_source(f"{__name__}:Acting")
    env = as_env_source(Broken)
    return Start(1, (Update(cloudpickle.dumps(policy), cloudpickle.dumps(env)),), (range(4),), rebuild=True)


@pytest.fixture(autouse=True)
def jax_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the suite make JAX environments."""
    monkeypatch.setattr(engines, "_MOST_STEPS", 2)
    # Compiling takes longer than the time for which finished episodes are held back.
    monkeypatch.setattr("rollout_cli.workers.worker.HOLD_SECONDS", 60.0)
    for module, names in (
        (test_contract, {"make": make, "check_chain": check_chain, "RESET_FROM_OUTSIDE": (KIND,)}),
        (test_values, {"make": make}),
        (test_raised, {"start": start}),
        (worlds, {"env_of": env_of}),
    ):
        for name, value in names.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setitem(test_raised.PLACES, "policy.jax_act", ("policy-raised", "policy.jax_act"))
    monkeypatch.setattr(test_raised, "CALLS", ("env.reset", "env.step", "policy.jax_act"))


def for_engine(test: Any) -> Any:
    """Return a test of the suite with this kind of worker and its other parameters."""

    @functools.wraps(test)
    def again(**arguments: Any) -> None:
        test(**arguments)

    marks = [mark for mark in test.pytestmark if mark.args[0] != "kind"]
    again.pytestmark = [*marks, pytest.mark.parametrize("kind", [KIND]).mark]  # type: ignore[attr-defined]
    return again


SUITE = (
    test_contract.test_runs_the_assigned_numbers,
    test_contract.test_seeds_are_those_of_the_numbers,
    test_contract.test_numbers_come_in_any_order_and_more_than_once,
    test_contract.test_what_is_finished,
    test_contract.test_a_lower_number_holds_others_up_for_a_while,
    test_contract.test_long_episodes_are_whole,
    test_contract.test_retract_above,
    test_contract.test_retract_everything,
    test_contract.test_an_episode_is_a_function_of_its_number,
    test_contract.test_the_verbs,
    test_contract.test_new_parameters,
    test_contract.test_a_policy_that_refuses_parameters,
    test_contract.test_a_new_environment_is_used_and_the_old_one_closed,
    test_contract.test_a_policy_outlives_a_new_environment,
    test_contract.test_finished_episodes_are_taken_before_an_update,
    test_contract.test_workers_are_not_pickled,
    test_contract.test_flags,
    test_contract.test_the_runs_limit,
    test_contract.test_an_episode_without_end_fails,
    test_contract.test_an_episode_with_a_limit_may_be_longer_than_the_guard,
    test_contract.test_an_environment_that_raises,
    test_contract.test_a_reset_that_raises,
    test_contract.test_ctrl_c_is_nobodys_fault,
    test_contract.test_the_rule_for_invalid_actions,
    test_values.test_a_wide_action_is_checked_too,
    test_values.test_a_reward_that_is_no_number_leaves_its_episode_out,
)
"""The tests without what JAX environments lack: `close`, infos of resets, masks, buffers that change later."""

globals().update({test.__name__: for_engine(test) for test in SUITE})


@pytest.mark.parametrize("name", sorted(test_contract.BAD_ACTIONS.keys() - {"text"}))
def test_bad_actions_never_reach_the_environment(name: str) -> None:
    """The suite's actions but strings, which JAX itself refuses."""
    test_contract.test_bad_actions_never_reach_the_environment(KIND, name)


def test_the_crash_box_knows_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is updated before every block; episodes that start and end within a block are missing."""
    monkeypatch.setattr(engines, "_MOST_STEPS", 1)
    test_contract.test_the_crash_box_knows_what_runs(KIND)


@pytest.mark.parametrize("place", ["env.reset", "env.step", "policy.jax_act"])
@pytest.mark.parametrize(
    "name", ["ValueError", "StopIteration", "KeyboardInterrupt", "SystemExit", "OddError"]
)
def test_an_error_of_any_class(name: str, place: str) -> None:
    """The worker reports it as the user's, and runs once it is built again."""
    test_raised.test_an_error_of_any_class(name, place, KIND)
