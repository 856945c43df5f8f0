"""JAX environments: the engine that runs them in one compiled scan, gymnax, and `rollout collect`.

JAX warns at each fork of a process that uses it, so `.ci/matrix/libraries` runs this module in an environment of
its own.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import rollout_cli
from rollout_cli.envs.source import as_env_source, env_source
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import EnvError, EnvLoadError, PolicyError, RolloutError, UsageError
from rollout_cli.policies.source import policy_source
from rollout_cli.seeding.seeds import env_seed
from rollout_cli.testing import check_functional_env
from rollout_cli.workers.context import WorkerContext
from rollout_cli.workers.functional import engine as engines
from rollout_cli.workers.functional.engine import FunctionalEngine
from rollout_cli.workers.kinds import DefaultWorker, VecWorker
from rollout_cli.workers.native.engine import NativeEngine
from rollout_cli.workers.rows.sequential import SequentialRows
from rollout_cli.workers.values import EpisodeRules
from tests.helpers.contents import row_dicts
from tests.helpers.datasets import assert_same_data, has_commit, info_of
from tests.helpers.errors import raises
from tests.helpers.processes import called, running
from tests.workers.worlds import SEED, assert_same_episodes, by_number, run

CARTPOLE = "gymnax:CartPole-v1"


class Chain:
    """A chain of 1 to 9 steps, drawn from the key; odd ones are truncated, even ones terminated.

    The reward is 1 for action 1 and 0.5 for action 0; an info says the position.
    """

    observation_space = spaces.Dict(
        {"place": spaces.Box(0, 10_000, (2,), np.float32), "parity": spaces.Discrete(2)}
    )
    action_space: spaces.Space[Any] = spaces.Discrete(2)
    max_episode_steps: int | None = None
    longest = 9

    def observe(self, state: Any) -> Any:
        position, length = state
        return {
            "place": jnp.stack([position, length]).astype(jnp.float32),
            "parity": (position % 2).astype(jnp.int32),
        }

    def reset(self, key: Any) -> Any:
        state = jnp.int32(0), jax.random.randint(key, (), 1, self.longest + 1)
        return self.observe(state), state

    def step(self, key: Any, state: Any, action: Any) -> Any:
        position, length = state
        state = position + 1, length
        is_last = state[0] >= length
        is_odd = length % 2 == 1
        reward = jnp.where(action == 1, 1.0, 0.5)
        info = {"at": {"position": state[0]}}
        return self.observe(state), state, reward, is_last & ~is_odd, is_last & is_odd, info


class Chooser:
    """Takes action 1 with a probability, its parameter, and says the number that it drew."""

    traces = 0

    def __init__(self, spec: EnvSpec | None = None) -> None:
        self.params = np.float32(0.5)

    def get_param_values(self) -> Any:
        return {"p": self.params}

    def set_param_values(self, params: Any) -> None:
        self.params = params["p"]

    def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
        Chooser.traces += 1
        drawn = jax.random.uniform(key)
        return (drawn < params["p"]).astype(jnp.int32), {"drawn": drawn}


class Parity:
    """Takes the action of the observation, in a program and on the host."""

    def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
        return observation["parity"]


class HostParity:
    """The same with numpy."""

    def get_actions(self, observations: Any) -> Any:
        return np.array(observations["parity"]), {}


def single_parity(observation: Any) -> int:
    """The same for one observation at a time."""
    return int(observation["parity"])


def make(
    env: Any = None, policy: Any = None, *, n_envs: int = 3, limit: float | None = None, **rules: Any
) -> VecWorker:
    """Return a worker of an environment, by default Chain, and a policy, by default Chooser."""
    context = WorkerContext(EpisodeRules(**rules))
    common: dict[str, Any] = {"seed": SEED, "max_episode_length": limit, "worker_number": 2}
    worker = VecWorker.in_context(context, n_envs=n_envs, **common)
    worker.update_env(Chain() if env is None else as_env_source(env))
    worker.update_agent(Chooser() if policy is None else policy)
    return worker


def check_chain(chunk: Chunk, longest: float = math.inf) -> None:
    """Check that every episode is complete, with its flags, rewards and infos; `longest` is the limit of the run."""
    for at in range(chunk.n_episodes):
        one = chunk.episodes(at, at + 1)
        parities, places = one.observations
        drawn = int(places[0, 1])
        length = int(min(drawn, longest))
        assert list(range(length)) == places[:, 0].tolist()
        assert [step % 2 for step in range(length)] == parities.tolist()
        assert [[length, drawn]] == one.last_observations[1].tolist()
        assert (length == drawn and drawn % 2 == 0) == one.terminated[0]
        assert (length < drawn or drawn % 2 == 1 or length == longest) == one.truncated[0]
        assert np.where(one.actions[0] == 1, 1.0, 0.5).tolist() == one.rewards.tolist()
        assert [{"at.position": step + 1} for step in range(length)] == row_dicts(one.env_infos)
        choices = [info["drawn"] < 0.5 for info in row_dicts(one.agent_infos)]
        assert choices == one.actions[0].astype(bool).tolist()
        assert env_seed(SEED, int(one.numbers[0])) == one.seeds[0]


# -- the engine ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_envs", [1, 3, 16, 50])
def test_episodes_are_complete(n_envs: int) -> None:
    """Every number once, in any number of rows, as ranges that come in any order."""
    worker = make(n_envs=n_envs)
    worker.assign([range(300, 340), range(2, 80, 2)])
    worker.advance(-1.0)
    chunk = run(worker, [range(3, 9, 2)])
    assert sorted([*range(300, 340), *range(2, 80, 2), 3, 5, 7]) == chunk.numbers.tolist()
    check_chain(chunk)
    assert isinstance(worker._engine, FunctionalEngine)


def test_an_episode_is_a_function_of_its_number() -> None:
    """Whatever ran before it, in whichever row, worker and program."""
    expected = run(make(), range(40))
    for n_envs in (1, 20, 64):
        worker = make(n_envs=n_envs)
        worker.assign([range(20, 90)])
        worker.advance(-1.0)
        worker.retract(above=None)
        actual = by_number([run(worker, range(20, 40)), run(worker, range(20))])
        assert_same_episodes(expected, actual)


def test_rows_that_end_in_one_step() -> None:
    """All fifty rows start the next numbers, which takes several passes."""

    class Even(Chain):
        def reset(self, key: Any) -> Any:
            state = jnp.int32(0), jnp.int32(4)
            return self.observe(state), state

    chunk = run(make(Even(), n_envs=50), range(220))
    assert list(range(220)) == chunk.numbers.tolist()
    assert {4} == set(chunk.lengths.tolist())
    check_chain(chunk)


def test_episodes_span_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few steps each, and rings of few; the limit of the run truncates."""
    monkeypatch.setattr(engines, "_MOST_STEPS", 3)
    monkeypatch.setattr("rollout_cli.workers.native.buffer._MOST_STEPS", 8)
    monkeypatch.setattr("rollout_cli.workers.native.buffer._FEWEST_STEPS", 1)

    class Long(Chain):
        longest = 60

    worker = make(Long(), limit=40)
    chunk = run(worker, range(30), steps=2)
    check_chain(chunk, 40)
    assert {40} < set(chunk.lengths.tolist())
    assert list(range(30)) == chunk.numbers.tolist()


def test_an_endless_episode_leaves_the_finished_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rings have room for the next block of steps, although the last block raised."""
    monkeypatch.setattr(engines, "_MOST_STEPS", 8)
    monkeypatch.setattr("rollout_cli.workers.native.buffer._MOST_STEPS", 16)

    class Endless(Chain):
        def reset(self, key: Any) -> Any:
            _, (position, length) = super().reset(key)
            state = position, jnp.where(length == 9, 1_000, length)
            return self.observe(state), state

    worker = make(Endless(), n_envs=16, step_guard=12)
    worker.assign([range(24)])
    with raises(EnvError, "episode-endless") as caught:
        while True:
            worker.advance(-1.0)
    failed = set(caught.value.episodes)
    chunk = run(worker, [range(1_002, 1_004)], steps=9)
    check_chain(chunk)
    assert chunk.n_episodes > 10
    assert not failed & set(chunk.numbers.tolist())


def test_rows_rest_for_a_block_at_most() -> None:
    """More episodes end in the first block than it has numbers for; the next step gives them the next ones."""
    worker = make(n_envs=16)
    worker.assign([range(3_000)])
    batch = worker.rollout()
    assert 3_000 == len(batch.lengths)


def test_every_row_has_the_state_of_a_reset() -> None:
    """Also the rows without an episode, which are stepped too: a state of zeros may be none of the environment's."""
    worker = make(n_envs=3)
    worker.start_episode()
    engine = worker._engine
    assert isinstance(engine, FunctionalEngine)
    lengths = np.asarray(engine._rows.state[1])
    assert 16 == len(lengths)
    assert (lengths > 0).all()


def test_64_bit_types(tmp_path: Path) -> None:
    """With `jax_enable_x64` the observations of gymnax have 64 bits, in the program and in the record."""
    words = ("--env", CARTPOLE, "--episodes", "40", "--envs-per-worker", "4", "--quiet")
    called("collect", *words, "--output", tmp_path, env={"JAX_ENABLE_X64": "1"})
    dataset = rollout_cli.load(tmp_path)
    assert 40 == len(dataset)
    assert np.float64 == dataset[0].observations.dtype


def test_numbers_above_are_retracted() -> None:
    """Also those that run; what has ended stays."""

    class Endless(Chain):
        max_episode_steps = 2_000

        def reset(self, key: Any) -> Any:
            state = jnp.int32(0), jnp.int32(5_000)
            return self.observe(state), state

    worker = make(Endless(), n_envs=8)
    worker.assign([range(20)])
    worker.advance(-1.0)
    assert tuple(range(8)) == worker.running_numbers
    worker.retract(above=3)
    assert (0, 1, 2, 3) == worker.running_numbers
    chunk = run(worker, range(0))
    assert [0, 1, 2, 3] == chunk.numbers.tolist()
    check_chain(chunk, 2_000)


def test_the_verbs() -> None:
    """`rollout` runs a number in each row; one step call runs a block."""
    worker = make()
    assert 3 == len(worker.rollout().lengths)
    worker.start_episode()
    while not worker.step_episode():
        pass
    assert len(worker.collect_episode().lengths) >= 3


def test_parameters_do_not_compile_again() -> None:
    """They are arguments of the program."""
    worker = make()
    run(worker, range(9))
    traces = Chooser.traces
    for p in (0.0, 1.0):
        worker.update_agent({"p": np.float32(p)})
        assert {int(p)} == set(run(worker, range(9)).actions[0].tolist())
    assert traces == Chooser.traces


def test_parameters_of_other_types_are_checked() -> None:
    """They compile the program again, before a step runs."""

    class Following:
        def __init__(self) -> None:
            self.params: Any = {"action": np.int32(1)}

        def get_param_values(self) -> Any:
            return self.params

        def set_param_values(self, params: Any) -> None:
            self.params = params

        def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
            return params["action"]

    worker = make(policy=Following())
    assert {1} == set(run(worker, range(9)).actions[0].tolist())
    worker.update_agent({"action": np.float32(0.7)})
    worker.assign([range(9)])
    with raises(PolicyError, "batch-shape", "float32()", "int64()"):
        worker.advance(-1.0)


def test_parameters_of_a_class_of_the_user_compile_once() -> None:
    """Its objects are never equal, and it converts its arrays; the types of the arrays decide."""

    @jax.tree_util.register_pytree_node_class
    class Weights:
        def __init__(self, chance: Any) -> None:
            self.chance = jnp.asarray(chance)

        def tree_flatten(self) -> Any:
            return (self.chance,), None

        @classmethod
        def tree_unflatten(cls, _: Any, leaves: Any) -> Any:
            made = object.__new__(cls)
            made.chance = leaves[0]
            return made

    class Weighted(Chooser):
        traces = 0

        def get_param_values(self) -> Any:
            return Weights(self.params)

        def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
            Weighted.traces += 1
            return super().jax_act(key, observation, {"p": params.chance})

    worker = make(policy=Weighted())
    run(worker, range(5))
    traces = Weighted.traces
    for update, chance in enumerate((0.25, 0.75), start=1):
        worker.update_agent({"p": np.float32(chance)})
        run(worker, range(5 * update, 5 * update + 5))
    assert traces == Weighted.traces


def test_an_array_holds_parameters() -> None:
    """Also one of JAX, as `get_param_values` returned it."""

    class Flat(Chooser):
        def get_param_values(self) -> Any:
            return self.params

        def set_param_values(self, params: Any) -> None:
            self.params = params

        def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
            return params[0].astype(jnp.int32)

    with rollout_cli.LocalSampler(Flat(), Chain(), seed=0) as sampler:
        batch = sampler.obtain_samples(0, 20, agent_update=jnp.array([1.0]))
        assert {1} == set(batch.actions.tolist())
        batch = sampler.obtain_samples(1, 20, agent_update=jnp.array([0.0]))
        assert {0} == set(batch.actions.tolist())


def test_infos_of_an_earlier_policy_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps are still in the rings."""
    monkeypatch.setattr(engines, "_MOST_STEPS", 3)
    monkeypatch.setattr("rollout_cli.workers.native.buffer._MOST_STEPS", 8)
    monkeypatch.setattr("rollout_cli.workers.native.buffer._FEWEST_STEPS", 1)
    worker = make()
    assert {"drawn"} == set(row_dicts(run(worker, range(40)).agent_infos)[0])
    worker.update_agent(Parity())
    assert not any(row_dicts(run(worker, range(40, 80)).agent_infos))


def test_another_policy_is_used() -> None:
    """One of the same class, whose attributes differ."""

    class Fixed:
        def __init__(self, action: int) -> None:
            self.action = action

        def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
            return jnp.int32(self.action)

    worker = make(policy=Fixed(0))
    assert {0} == set(run(worker, range(9)).actions[0].tolist())
    worker.update_agent(Fixed(1))
    assert {1} == set(run(worker, range(9)).actions[0].tolist())


def test_random_actions() -> None:
    """Uniform over each space, a function of the episode; an unbounded space samples on the host."""
    space = spaces.Tuple(
        (
            spaces.Discrete(3, start=-1),
            spaces.Box(np.array([-2.0, 1.0], np.float32), np.array([4.0, 1.5], np.float32)),
            spaces.MultiDiscrete([2, 5]),
            spaces.MultiBinary(2),
        )
    )

    class Wide(Chain):
        action_space = space

        def step(self, key: Any, state: Any, action: Any) -> Any:
            return super().step(key, state, action[0])

    chunk = run(make(Wide(), policy_source("random")), range(800))
    assert_same_episodes(chunk, run(make(Wide(), policy_source("random"), n_envs=70), range(800)))
    discrete, box, multi, binary = chunk.actions
    for values, choices in ((discrete, [-1, 0, 1]), (multi[:, 1], range(5)), (binary[:, 0], range(2))):
        counts = np.array([(values == choice).mean() for choice in choices])
        assert 1.0 == pytest.approx(counts.sum())
        assert np.abs(counts - 1 / len(counts)).max() < 0.03
    assert [pytest.approx(1.0, abs=0.15), pytest.approx(1.25, abs=0.02)] == box.mean(axis=0).tolist()
    assert (box >= [-2.0, 1.0]).all()
    assert (box <= [4.0, 1.5]).all()

    class Unbounded(Chain):
        action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

        def step(self, key: Any, state: Any, action: Any) -> Any:
            return super().step(key, state, action[0])

    worker = make(Unbounded(), policy_source("random"))
    assert 9 == run(worker, range(9)).n_episodes
    assert isinstance(worker._engine, NativeEngine)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(np.int32, -(2**31), 2**31 - 1), (np.uint32, 0, 2**32 - 1), (np.int64, -(2**40), 2**40)],
)
def test_random_integers_of_many_bits(dtype: Any, low: int, high: int) -> None:
    """JAX cannot sample them without 64-bit types, so the host does."""

    class Wide(Chain):
        action_space = spaces.Box(low, high, (2,), dtype)

        def step(self, key: Any, state: Any, action: Any) -> Any:
            return super().step(key, state, 1)

    (actions,) = run(make(Wide(), policy_source("random")), range(40)).actions
    assert dtype == actions.dtype
    assert 0.3 < (actions > (low + high) // 2).mean() < 0.7


@pytest.mark.parametrize("policy", ["random", "jax_act"])
def test_the_environment_gets_the_recorded_action(policy: str) -> None:
    """In the dtype of its space."""

    class Half(Chain):
        action_space = spaces.Box(0.0, 1.0, (), np.float16)

        def step(self, key: Any, state: Any, action: Any) -> Any:
            observation, state, _, *rest = super().step(key, state, 1)
            return observation, state, action.astype(jnp.float32), *rest

    class Exact:
        def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
            return jax.random.uniform(key)

    chunk = run(make(Half(), policy_source("random") if policy == "random" else Exact()), range(40))
    assert np.float16 == chunk.actions[0].dtype
    assert chunk.actions[0].astype(float).tolist() == chunk.rewards.tolist()


@pytest.mark.parametrize(("policy", "kind"), [(HostParity(), NativeEngine), (single_parity, SequentialRows)])
def test_a_policy_of_the_host_runs_the_same_episodes(policy: Any, kind: type[Any]) -> None:
    """It acts between steps with the same keys, for all rows or for one."""
    for limit in (None, 4):
        worker = make(policy=policy, n_envs=5, limit=limit)
        chunk = run(worker, range(40))
        assert isinstance(worker._engine, kind)
        assert_same_episodes(run(make(policy=Parity(), limit=limit), range(40)), chunk)


# -- faults ----------------------------------------------------------------------------------------------------


def test_invalid_actions() -> None:
    """The error names episode and step, what ended before is kept; `clip` clips."""

    class Pushed(Chain):
        action_space = spaces.Box(0.0, 1.0, (), np.float32)

    class Pushing:
        def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
            place = observation["place"]
            return jnp.where((place[0] == 3) & (place[1] == 8), 2.0, 0.0)

    worker = make(Pushed(), Pushing(), n_envs=30)
    worker.assign([range(200)])
    with raises(PolicyError, "action-outside-space", "2.0", "step 3"):
        while worker.has_work:
            worker.advance(-1.0)
    assert worker.finished_rows
    clipping = make(Pushed(), Pushing(), invalid_action="clip")
    assert 1.0 == run(clipping, range(200)).actions[0].max()
    sending = make(Pushed(), Pushing(), invalid_action="warn")
    assert 2.0 == run(sending, range(200)).actions[0].max()


def test_integers_of_the_dtype_of_their_space() -> None:
    """Wider ones could overflow in the record, whatever the rule for invalid actions; random actions have it."""

    class Small(Chain):
        action_space = spaces.Box(-100, 100, (), np.int8)

    class Far:
        def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
            return jnp.int32(300)

    for rule in ("error", "warn"):
        worker = make(Small(), Far(), invalid_action=rule)
        worker.assign([range(3)])
        with raises(PolicyError, "batch-shape", "int32()", "int8()"):
            worker.advance(-1.0)
    (actions,) = run(make(Small(), policy_source("random")), range(99)).actions
    assert np.int8 == actions.dtype
    assert actions.min() < -90
    assert actions.max() > 90


class _Wrong(Chain):
    fault = ""

    def reset(self, key: Any) -> Any:
        observation, state = super().reset(key)
        if self.fault == "shape":
            observation["place"] = jnp.zeros(3)
        if self.fault == "raises":
            raise ValueError("no map")
        return observation, state

    def step(self, key: Any, state: Any, action: Any) -> Any:
        observation, state, reward, terminated, truncated, info = super().step(key, state, action)
        if self.fault == "step raises":
            raise ValueError("no floor")
        if self.fault == "flag":
            terminated = terminated.astype(jnp.float32)
        if self.fault == "reward":
            reward = reward[None]
        if self.fault == "info":
            info["list"] = [jnp.zeros(2)]
        if self.fault == "mask":
            info |= {"x": jnp.zeros(2), "_x": jnp.ones(2, bool)}
        if self.fault == "state":
            state = state[0], state[1] + 0.5
        if self.fault == "structure":
            state = *state, state[0]
        if self.fault == "truncated":
            truncated = truncated.astype(jnp.float32)
        return observation, state, reward, terminated, truncated, info


FAULTS = {
    "shape": ("batch-shape", "'place'", "float32(3,)", "float32(2,)"),
    "raises": ("env-raised", "env.reset", "ValueError: no map"),
    "step raises": ("env-raised", "env.step", "ValueError: no floor"),
    "flag": ("step-value", "terminated is float32()"),
    "reward": ("step-value", "reward is float32(1,)"),
    "info": ("info-type", "'list'"),
    "mask": ("info-type", "'x' and '_x'"),
    "structure": ("state-type", "the structure of the state"),
    "truncated": ("step-value", "truncated is float32()"),
    "state": ("state-type", "the state[1] is float32()", "expected int32()"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named_before_anything_runs(fault: str) -> None:
    """By the worker, and by the check for users, where the environment does not raise by itself."""
    env = _Wrong()
    env.fault = fault
    env.max_episode_steps = 100
    code, *words = FAULTS[fault]
    worker = make(env)
    worker.assign([range(3)])
    with raises(EnvError, code, *words):
        worker.advance(-1.0)
    if "raises" not in fault:
        with raises(EnvError, "env-functional", *words):
            check_functional_env(env)


@pytest.mark.parametrize("policy", [HostParity(), single_parity])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named_for_a_policy_of_the_host(policy: Any, fault: str) -> None:
    env = _Wrong()
    env.fault = fault
    worker = make(env, policy)
    worker.assign([range(3)])
    code, *words = FAULTS[fault]
    with raises(EnvError, code, *words):
        worker.prepare()


def test_the_check_for_users() -> None:
    """It accepts Chain, and finds state outside of the arguments and observations outside of their space."""
    check_functional_env(Chain())

    class Counting(Chain):
        calls = 0

        def reset(self, key: Any) -> Any:
            self.calls += 1
            observation, (position, length) = super().reset(key)
            return observation, (position + self.calls, length)

    with raises(EnvError, "env-functional", "two runs with the same keys differ"):
        check_functional_env(Counting())

    class Narrow(Chain):
        observation_space = spaces.Dict(
            {**Chain.observation_space, "place": spaces.Box(0, 3, (2,), np.float32)}
        )

    with raises(EnvError, "env-outside-space", "'place'", "outside"):
        check_functional_env(Narrow())

    class Leaving(Chain):
        def step(self, key: Any, state: Any, action: Any) -> Any:
            observation, state, reward, terminated, *rest = super().step(key, state, action)
            observation["place"] += jnp.where(terminated, 20_000, 0)
            return observation, state, reward, terminated, *rest

    with raises(EnvError, "env-outside-space", "'place'", "outside"):
        check_functional_env(Leaving())
    wrong: Any = gymnasium.make("CartPole-v1")
    with raises(EnvError, "env-functional", "got a TimeLimit", "max_episode_steps"):
        check_functional_env(wrong)


def test_what_has_no_meaning_is_refused() -> None:
    """Wrappers, resets with options, fresh environments, overridden methods, native vectorization."""
    common: dict[str, Any] = {"seed": SEED, "max_episode_length": None, "worker_number": 0}
    with raises(UsageError, "jax-option", "fresh_env"):
        VecWorker(n_envs=2, fresh_env=True, **common).update_env(as_env_source(CARTPOLE))
    with raises(UsageError, "jax-option", "reset_options"):
        make(reset_options={"x": 1})

    class Own(DefaultWorker):
        def step_env(self, env: Any, action: Any) -> Any:
            return env.step(action)

    with raises(UsageError, "jax-option", "worker_class"):
        Own(**common).update_env(Chain())
    with raises(UsageError, "jax-option", "JAX"):
        VecWorker(n_envs=2, vectorization="native", **common).update_env(as_env_source(CARTPOLE))
    with raises(EnvLoadError, "env-unknown", "CartPole-v2"):
        make("gymnax:CartPole-v2")
    worker = make()
    with raises(UsageError, "jax-option", "a list of environments"):
        worker.update_env([Chain(), Chain(), Chain()])
    with raises(UsageError, "jax-option", "an update that changes an environment"):
        worker.update_env(rollout_cli.EnvUpdate())
    constructor: Any = Chain
    worker.update_env(rollout_cli.NewEnvUpdate(constructor))
    check_chain(run(worker, range(9)))
    config = rollout_cli.CollectConfig(
        env=CARTPOLE, wrapper=("TimeAwareObservation",), timesteps=9, sampler="local"
    )
    with raises(RolloutError, "jax-option", "TimeAwareObservation"):
        rollout_cli.collect(config)


@pytest.mark.parametrize("policy", [None, HostParity()])
def test_time_limits(policy: Any) -> None:
    """A positive integer of any library is a limit, for policies in the program and on the host."""
    for limit in (np.int64(4), jnp.int32(4)):
        env = Chain()
        env.max_episode_steps = limit  # type: ignore[assignment]
        check_functional_env(env)
        chunk = run(make(env, policy), range(30))
        assert 4 == chunk.lengths.max()
        assert chunk.truncated[chunk.lengths == 4].all()
    for limit in (0, -1, 1000.0, "9"):
        env = Chain()
        env.max_episode_steps = limit  # type: ignore[assignment]
        for check in (check_functional_env, make):
            with raises(EnvLoadError, "env-attribute", "max_episode_steps", repr(limit)):
                check(env)


def test_spaces_of_another_library_are_refused() -> None:
    env = Chain()
    env.action_space = gymnax.make("CartPole-v1")[0].action_space()
    with raises(EnvLoadError, "env-attribute", "action_space of Chain is a Discrete"):
        make(env)
    env.action_space = spaces.Text(3)
    with raises(EnvLoadError, "space-unsupported", "Text"):
        make(env, HostParity()).start_episode()


def test_a_wrapper_may_delegate() -> None:
    """By `__getattr__`, as the wrappers of JAX environments do; what an object lacks is named."""

    class Wrapper:
        def __init__(self, env: Any) -> None:
            self._env = env

        def __getattr__(self, name: str) -> Any:
            if name in {"_env", "max_episode_steps"}:
                raise AttributeError(name)
            return getattr(self._env, name)

    class Whole(Wrapper):
        max_episode_steps = None

    wrapped: Any = Whole(Chain())
    check_functional_env(wrapped)
    check_chain(run(make(wrapped), range(9)))
    with raises(EnvLoadError, "env-not-gymnasium") as caught:
        make(lambda: Wrapper(Chain()))
    assert caught.value.hint.endswith("a FunctionalEnv of JAX also has max_episode_steps")


def test_a_policy_may_change_its_observation() -> None:
    def changing(observation: Any) -> int:
        parity = int(observation["parity"])
        observation["place"] += 1
        return parity

    expected = run(make(policy=single_parity), range(9))
    assert_same_episodes(expected, run(make(policy=changing), range(9)))


def test_actions_of_many_bits() -> None:
    """Bounds beyond those of int32 hold every action of int32."""

    class Wide(Chain):
        action_space = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (), np.int64)

    class Fixed:
        def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
            return jnp.int32(-7)

    for rule in ("error", "clip"):
        chunk = run(make(Wide(), Fixed(), invalid_action=rule), range(9))
        assert {-7} == set(chunk.actions[0].tolist())


def test_environments_of_all_rows_are_closed() -> None:
    """If a JAX environment replaces them."""
    closed = []

    class Closing(gymnasium.Wrapper[Any, Any, Any, Any]):
        def close(self) -> None:
            closed.append(self)

    worker = VecWorker(n_envs=3, seed=SEED, max_episode_length=None, worker_number=0)
    worker.update_env([Closing(gymnasium.make("CartPole-v1")) for _ in range(3)])
    worker.update_env(Chain())
    assert 3 == len({id(env) for env in closed})


# -- gymnax ----------------------------------------------------------------------------------------------------


IDS = [env_id for env_id in gymnax.registered_envs if env_id != "MNISTBandit-bsuite"]
"""Those that download nothing."""


@pytest.mark.parametrize("env_id", IDS)
def test_environments_of_gymnax(env_id: str) -> None:
    """Each runs with random actions; an episode that reaches the time limit is truncated."""
    env = as_env_source(f"gymnax:{env_id}").build()
    worker = make(f"gymnax:{env_id}", policy_source("random"), n_envs=16)
    chunk = run(worker, range(20))
    assert list(range(20)) == chunk.numbers.tolist()
    assert (chunk.terminated | chunk.truncated).all()
    limit = env.max_episode_steps  # type: ignore[union-attr]
    assert (chunk.lengths <= limit).all()
    assert (chunk.truncated == (chunk.lengths == limit)).all()


class Leaning:
    """Pushes CartPole to the side where it leans, mostly."""

    def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
        return ((observation[2] > 0) ^ (jax.random.uniform(key) < 0.2)).astype(jnp.int32)


def test_episodes_equal_a_plain_loop() -> None:
    """A hundred episodes of CartPole, every field, next to a loop of gymnax's functions with the documented keys.

    The last bits of numbers may differ, since XLA compiles other programs.
    """
    source = env_source(CARTPOLE, {"max_steps_in_episode": 60})
    worker = make(source, Leaning(), n_envs=32)
    chunk = run(worker, range(100))
    env, params = gymnax.make("CartPole-v1")
    step = jax.jit(env.step_env)
    assert chunk.terminated.any()
    assert chunk.truncated.any()
    for at in range(100):
        one = chunk.episodes(at, at + 1)
        key, reset_key = jax.random.split(jax.random.key(np.uint32(env_seed(SEED, at))))
        observation, state = env.reset_env(reset_key, params)
        for row in range(one.n_steps):
            key, action_key, step_key = jax.random.split(key, 3)
            assert np.allclose(observation, one.observations[0][row], rtol=1e-4, atol=1e-5)
            action = one.actions[0][row]
            assert action == Leaning().jax_act(action_key, one.observations[0][row], {})
            observation, state, reward, terminated, _ = step(step_key, state, action, params)
            assert reward == one.rewards[row]
            assert bool(terminated) == (row == one.n_steps - 1 and bool(one.terminated[0]))
        assert np.allclose(observation, one.last_observations[0][0], rtol=1e-4, atol=1e-5)
        assert (state.time == 60) == one.truncated[0]


# -- collect ---------------------------------------------------------------------------------------------------

WORDS = ("collect", "--env", CARTPOLE, "--timesteps", "3000", "--seed", "5", "--quiet")
LOCAL = ("--sampler", "local")
"""In this process, which has loaded JAX."""


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 16 rows in this process."""
    out = tmp_path_factory.mktemp("collected") / "data"
    called(*WORDS, *LOCAL, "--envs-per-worker", "16", "--output", out)
    return out


def test_same_bytes(collected: Path, tmp_path: Path) -> None:
    """For two workers and for 64 rows; the record says what ran, and the run is reproducible."""
    out = tmp_path / "data"
    called(*WORDS, "--workers", "2", "--envs-per-worker", "64", "--output", out)
    assert_same_data(collected, out)
    called("verify", out)
    source = info_of(out)["sources"][0]
    assert "rollout_cli.envs.functional.gymnax.GymnaxEnv" == source["env"]["class"]
    assert 500 == source["env"]["max_episode_length"]
    assert CARTPOLE == source["env_source"]["spec"]
    assert {"gymnax", "jax"} <= source["versions"].keys()
    assert ("yes", "n_envs") == (source["reproducible"]["status"], source["reproducible"]["scope"])


def test_replay(collected: Path) -> None:
    """Episodes are repeated bit for bit from their seeds, without `--trust`, and by their actions on the host."""
    called("replay", collected, "--episodes", "0:5")
    env, policy = CARTPOLE, f"replay:{collected}"
    batch = rollout_cli.load(collected)
    again = run_local(env, policy, 5)
    for episode, other in zip((batch[at] for at in range(5)), again.split(), strict=True):
        assert np.array_equal(episode.observations, other.observations)
        assert np.array_equal(episode.actions, other.actions)


def run_local(env: str, policy: str, n_episodes: int) -> Any:
    """Return episodes that a policy of the host runs in this process."""
    factory = rollout_cli.WorkerFactory(
        worker_class=VecWorker, worker_args={"n_envs": 4}, n_workers=1, seed=5
    )
    with rollout_cli.LocalSampler(policy_source(policy), env, worker_factory=factory) as sampler:
        return sampler.obtain_exact_episodes(n_episodes, None)


def test_compiled_programs_are_not_pinned(tmp_path: Path) -> None:
    """A resume does not read those of its beginning, or reads those that it wrote."""
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    words = (
        "--env",
        CARTPOLE,
        "--envs-per-worker",
        "4",
        "--workers",
        "1",
        "--quiet",
        "--output",
        tmp_path / "data",
    )
    called("collect", *words, "--episodes", "40", env=env)
    assert list((tmp_path / "compiled").glob("*-cache"))
    called("collect", "--resume", "--episodes", "80", "--quiet", "--output", tmp_path / "data", env=env)
    called("collect", "--resume", "--episodes", "120", "--quiet", "--output", tmp_path / "data")
    assert "-cache" not in (tmp_path / "data/meta/info.json").read_text(encoding="utf-8")


def test_a_killed_run_is_resumed(tmp_path: Path) -> None:
    """With the same bytes at its end, in another sampler."""
    out = tmp_path / "data"
    words = (*WORDS, "--workers", "2", "--envs-per-worker", "16", "--output", out, "--flush-every", "0.05")
    with running([*map(str, words), "--timesteps", "300000000"]) as process:
        process.wait_until(lambda: has_commit(out))
        process.kill()
    longer = tmp_path / "whole"
    # More than the limit of a data file: the kill may have left one that `load` does not see, but resume takes.
    steps = str(len(rollout_cli.load(out).rows) + (1 << 20) + 20_000)
    called("collect", "--resume", *LOCAL, "--timesteps", steps, "--quiet", "--output", out)
    called(*WORDS, *LOCAL, "--timesteps", steps, "--envs-per-worker", "16", "--output", longer)
    assert_same_data(longer, out)


def test_jax_is_loaded_in_workers_alone(tmp_path: Path) -> None:
    """Neither in the parent of a JAX environment, nor in any process of a Python environment."""
    program = """
import sys
import rollout_cli

if __name__ == "__main__":
    arguments = {"timesteps": 500, "workers": 1, "envs_per_worker": 16, "seed": 0}
    rollout_cli.collect(rollout_cli.CollectConfig(env="gymnax:CartPole-v1", output="jax", **arguments))
    rollout_cli.collect(rollout_cli.CollectConfig(env="CartPole-v1", output="plain", sampler="local", **arguments))
    print("loaded", "jax" in sys.modules)
"""
    with running(["-c", program], cwd=tmp_path, program=[sys.executable]) as process:
        ran = process.end()
    assert ran.stdout.endswith("loaded False\n"), ran.said


def test_a_sampler_of_this_process() -> None:
    """With new parameters at each call."""
    factory = rollout_cli.WorkerFactory(
        worker_class=VecWorker, worker_args={"n_envs": 8}, n_workers=1, seed=5
    )
    with rollout_cli.LocalSampler(Chooser(), Chain(), worker_factory=factory) as sampler:
        for p in (0.0, 1.0):
            batch = sampler.obtain_samples(0, 300, agent_update={"p": np.float32(p)})
            assert {int(p)} == set(batch.actions.tolist())
            assert batch.lengths.sum() >= 300
