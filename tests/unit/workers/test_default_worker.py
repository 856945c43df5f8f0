"""DefaultWorker: an episode is what its number says, recorded as it was, with the right end."""

from __future__ import annotations

import math
import pickle
import random
import sys
import types
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.envs import NewEnvUpdate
from rollout_cli.errors import EnvError, InternalError, PolicyError, RolloutError
from rollout_cli.seeding import derive_seed
from rollout_cli.workers import DefaultWorker
from tests.support import envs, policies
from tests.unit.workers.making import SEED, assert_same_episodes, make_worker, run_numbers

# -- how episodes end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "flags"), [("terminated", (True, False)), ("truncated", (False, True)), ("both", (True, True))]
)
def test_the_last_observation_is_what_followed_the_last_step(ends: envs.Ending, flags: tuple[bool, bool]) -> None:
    """However an episode ends, its flags are kept, and the last observation is the one after the end."""
    chunk = run_numbers(make_worker(envs.ChainEnv(ends)), range(8))
    assert {flags} == set(zip(chunk.terminated.tolist(), chunk.truncated.tolist(), strict=True))
    assert (
        chunk.lengths.tolist() == chunk.last_observations[0][:, 0].tolist() == chunk.last_observations[0][:, 1].tolist()
    )


def test_the_limit_truncates_and_says_so() -> None:
    """An episode that reaches `max_episode_length` is truncated there, with the observation that followed."""
    chunk = run_numbers(make_worker(envs.EndlessEnv(), max_episode_length=6), range(3))
    assert [6, 6, 6] == chunk.lengths.tolist() == chunk.last_observations[0][:, 0].tolist()
    assert ([False] * 3, [True] * 3) == (chunk.terminated.tolist(), chunk.truncated.tolist())


def test_an_end_at_the_limit_is_both() -> None:
    """An episode that terminates in the very step that the limit cuts at has both flags."""
    env = envs.SleepyEnv(seconds=0.0, length=5)
    chunk = run_numbers(make_worker(env, max_episode_length=5), range(2))
    assert ([True, True], [True, True], [5, 5]) == (
        chunk.terminated.tolist(),
        chunk.truncated.tolist(),
        chunk.lengths.tolist(),
    )


@pytest.mark.parametrize("limit", [None, math.inf, 10])
def test_without_a_limit_in_reach_episodes_end_by_themselves(limit: float | None) -> None:
    """None, infinity, and more steps than any episode has change nothing."""
    expected = run_numbers(make_worker(envs.ChainEnv()), range(5))
    assert_same_episodes(expected, run_numbers(make_worker(envs.ChainEnv(), max_episode_length=limit), range(5)))


def test_inside_an_episode_each_observation_follows_the_one_before() -> None:
    """Row t + 1 holds what the environment gave after row t's action."""
    chunk = run_numbers(make_worker(envs.ChainEnv()), range(6))
    positions = [list(range(length)) for length in chunk.lengths.tolist()]
    assert [place for episode in positions for place in episode] == chunk.observations[0][:, 0].tolist()
    assert chunk.env_infos.to_dicts() == [{"position": place + 1} for episode in positions for place in episode]


def test_rewards_are_those_of_the_recorded_actions() -> None:
    """Each row's reward answers that row's action."""
    chunk = run_numbers(make_worker(envs.ChainEnv(), policies.GlobalNoisePolicy), range(6))
    assert {0, 1} == set(chunk.actions[0].tolist())
    assert [1.0 if action == 1 else 0.5 for action in chunk.actions[0]] == chunk.rewards.tolist()


# -- what others do to their arrays ------------------------------------------------------------------------------------


def test_a_reused_observation_buffer_changes_nothing() -> None:
    """An environment that writes each observation over the last one gives the same episodes as one that does not."""
    expected = run_numbers(make_worker(envs.ChainEnv()), range(8))
    assert_same_episodes(expected, run_numbers(make_worker(envs.ReusedBufferEnv()), range(8)))


@pytest.mark.parametrize("env", [envs.ChainEnv, envs.ReusedBufferEnv, envs.DictEnv])
def test_a_policy_that_edits_its_observation_changes_nothing(env: type[Any]) -> None:
    """A policy that overwrites what it was given gives the same episodes as one that does not."""
    expected = run_numbers(make_worker(env()), range(8))
    assert_same_episodes(expected, run_numbers(make_worker(env(), policies.EditingPolicy), range(8)))


# -- one number, one episode -------------------------------------------------------------------------------------------


class LazyGeneratorPolicy(policies.GaragePolicy):
    """Makes its generator, from the operating system's entropy, in its first step."""

    rng: np.random.Generator | None = None

    def place(self, observation: Any, row: int) -> float:
        self.rng = self.rng or np.random.default_rng()
        return float(self.rng.random())


class SamplingPolicy(policies.GaragePolicy):
    """Draws from the action space, which makes its generator when it first does."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self.action_space.sample(), {}


class SamplingEnv(envs.ChainEnv):
    """Draws from a space of its own in each third episode only."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = spaces.Discrete(1000)
        self._draws = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._draws = (seed or 0) % 3 == 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "noise": self.noise.sample() if self._draws else -1}


KINDS: list[tuple[type[Any], type[Any]]] = [
    (envs.ChainEnv, policies.LinearPolicy),
    (envs.ChainEnv, policies.GlobalNoisePolicy),
    (envs.ChainEnv, policies.OwnGeneratorPolicy),
    (envs.ChainEnv, policies.RecurrentPolicy),
    (envs.ChainEnv, LazyGeneratorPolicy),
    (envs.ChainEnv, SamplingPolicy),
    (SamplingEnv, policies.LinearPolicy),
    (envs.DictEnv, policies.OwnGeneratorPolicy),
]


@pytest.mark.parametrize(("env", "policy"), KINDS, ids=lambda kind: kind.__name__)
def test_a_number_is_the_same_episode_whatever_ran_before(env: type[Any], policy: type[Any]) -> None:
    """Each of the first episodes is the same, alone in a new worker, or after all the others."""
    together = run_numbers(make_worker(env(), policy), range(12))
    for number in (0, 3, 11):
        alone = run_numbers(make_worker(env(), policy), [number])
        assert_same_episodes(together.episodes(number, number + 1), alone)


def test_episodes_differ_from_each_other() -> None:
    """Different numbers draw differently: environment, own generator and global generator."""
    for policy in (policies.GlobalNoisePolicy, policies.OwnGeneratorPolicy):
        chunk = run_numbers(make_worker(envs.ChainEnv(), policy), range(20))
        places = [row["place"] for row in chunk.agent_infos.to_dicts()]
        assert len(places) == len(set(places))
        assert 20 == len(set(chunk.seeds.tolist()))


def test_the_seed_of_a_number_is_what_reset_gets() -> None:
    """The recorded seed is the one that `env.reset` was given, a function of root seed and number."""
    chunk = run_numbers(make_worker(envs.ChainEnv()), [0, 41])
    assert [derive_seed(SEED, 0, "env"), derive_seed(SEED, 41, "env")] == chunk.seeds.tolist()


class CountingResets(envs.ChainEnv):
    """Counts its resets."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        return super().reset(seed=seed, options=options)


def test_only_an_episode_with_a_new_generator_is_run_again() -> None:
    """With a generator that appears in the first episode there is one reset more than episodes; otherwise none more."""
    resets = {}
    for policy in (policies.OwnGeneratorPolicy, LazyGeneratorPolicy):
        env = CountingResets()
        run_numbers(make_worker(env, policy), range(5))
        resets[policy.__name__] = env.resets
    assert {"OwnGeneratorPolicy": 5, "LazyGeneratorPolicy": 6} == resets


class StandInGenerator:
    """What torch's default generator offers, on Python's generator."""

    def __init__(self) -> None:
        self._random = random.Random()

    def manual_seed(self, seed: int) -> None:
        self._random.seed(seed)

    def get_state(self) -> Any:
        return self._random.getstate()

    def set_state(self, state: Any) -> None:
        self._random.setstate(state)

    def draw(self) -> float:
        return self._random.random()


class TorchImportingPolicy(policies.GaragePolicy):
    """Imports torch in its first step, as code that imports inside of functions does, and draws from it."""

    def place(self, observation: Any, row: int) -> float:
        torch = types.SimpleNamespace(default_generator=StandInGenerator(), Generator=StandInGenerator)
        return float(sys.modules.setdefault("torch", torch).default_generator.draw())  # type: ignore[arg-type]


def test_an_episode_that_imports_torch_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's generator cannot be seeded before torch is there: the first episode equals the one of a later worker."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    try:
        first = run_numbers(make_worker(envs.ChainEnv(), TorchImportingPolicy), [3])
        assert_same_episodes(first, run_numbers(make_worker(envs.ChainEnv(), TorchImportingPolicy), [3]))
    finally:
        sys.modules.pop("torch", None)


# -- garage's verbs ----------------------------------------------------------------------------------------------------


def test_rollout_gives_one_episode_after_another() -> None:
    """Without assigned numbers, `rollout` runs 0, 1, 2, …, each batch one episode."""
    worker = make_worker(envs.ChainEnv())
    batches = [worker.rollout() for _ in range(3)]
    assert [[0], [1], [2]] == [batch.numbers.tolist() for batch in batches]
    expected = run_numbers(make_worker(envs.ChainEnv()), range(3))
    assert expected.rewards.tolist() == [reward for batch in batches for reward in batch.rewards.tolist()]


def test_assigned_numbers_come_first_and_lowest_first() -> None:
    """`start_episode` begins the lowest assigned number, and goes on after the last one."""
    worker = make_worker(envs.ChainEnv())
    worker.assign([9, 4])
    assert [4, 9, 10] == [int(worker.rollout().numbers[0]) for _ in range(3)]


def test_stepping_by_hand() -> None:
    """`step_episode` takes one step and says when the episode has ended; episodes wait until they are collected."""
    worker = make_worker(envs.SleepyEnv(seconds=0.0, length=3))
    ended = []
    for _ in range(2):
        worker.start_episode()
        ended.append([worker.step_episode() for _ in range(3)])
    assert [[False, False, True]] * 2 == ended
    batch = worker.collect_episode()
    assert ([0, 1], [3, 3]) == (batch.numbers.tolist(), batch.lengths.tolist())


def test_starting_again_drops_the_running_episode() -> None:
    """An episode that was begun and left leaves nothing behind."""
    worker = make_worker(envs.SleepyEnv(seconds=0.0, length=3))
    worker.start_episode()
    worker.step_episode()
    batch = worker.rollout()
    assert ([1], [3]) == (batch.numbers.tolist(), batch.lengths.tolist())


def test_advance_takes_at_least_one_step() -> None:
    """With a deadline that has passed, one step is taken; with one far away, all assigned episodes are run."""
    worker = make_worker(envs.SleepyEnv(seconds=0.0, length=3))
    worker.assign([0, 1])
    worker.advance(-1.0)
    assert (True, []) == (worker.running, worker.finished_numbers)
    worker.advance(math.inf)
    assert (False, [0, 1], 6) == (worker.has_work, worker.finished_numbers, worker.finished_rows)


def test_retracting_gives_up_what_is_above() -> None:
    """Waiting and running numbers above a ceiling are dropped, what is finished stays; without a ceiling, all go."""
    worker = make_worker(envs.SleepyEnv(seconds=0.0, length=3))
    worker.assign([2, 5, 7])
    worker.advance(-1.0)
    worker.retract(above=5)
    assert (True, True) == (worker.running, worker.has_work)
    worker.advance(math.inf)
    assert [2, 5] == worker.finished_numbers
    worker.assign([8, 9])
    worker.advance(-1.0)
    worker.retract()
    assert (False, False, [2, 5]) == (worker.running, worker.has_work, worker.finished_numbers)


def test_a_running_episode_above_the_ceiling_is_dropped() -> None:
    """The episode that runs is no exception."""
    worker = make_worker(envs.SleepyEnv(seconds=0.0, length=3))
    worker.assign([4])
    worker.advance(-1.0)
    worker.retract(above=3)
    assert (False, False) == (worker.running, worker.has_work)


@pytest.mark.parametrize("verb", ["step_episode", "collect_episode"])
def test_verbs_out_of_order_are_refused(verb: str) -> None:
    """Stepping or collecting without an episode says so."""
    worker = make_worker(envs.ChainEnv())
    with pytest.raises(InternalError, match=f"{verb} was called with no"):
        getattr(worker, verb)()


def test_a_worker_without_policy_or_environment_says_so() -> None:
    """Starting before the updates names what is missing."""
    worker = DefaultWorker(seed=0, max_episode_length=None, worker_number=0)
    with pytest.raises(InternalError, match="update_env"):
        _ = worker.env_spec
    worker.update_env(envs.ChainEnv())
    with pytest.raises(InternalError, match="update_agent"):
        worker.start_episode()


def test_pickling_is_refused_and_names_the_factory() -> None:
    """A worker holds what belongs to its process; its factory is what crosses the border."""
    with pytest.raises(InternalError, match="DefaultWorker cannot be pickled") as caught:
        pickle.dumps(make_worker(envs.ChainEnv()))
    assert "WorkerFactory" in caught.value.hint


# -- updates -----------------------------------------------------------------------------------------------------------


def test_parameters_reach_the_policy() -> None:
    """A dict is parameters for the policy that is there; None changes nothing."""
    worker = make_worker(envs.ChainEnv())
    before = run_numbers(worker, [0])
    worker.update_agent({"gain": 0.5})
    worker.update_agent(None)
    after = run_numbers(worker, [0])
    places = [[row["place"] for row in chunk.agent_infos.to_dicts()] for chunk in (before, after)]
    assert places[0] != places[1]


def test_parameters_without_a_policy_are_refused() -> None:
    """There is nothing to set them on."""
    worker = DefaultWorker(seed=0, max_episode_length=None, worker_number=0)
    worker.update_env(envs.ChainEnv())
    with pytest.raises(InternalError, match="no policy"):
        worker.update_agent({"gain": 1.0})


class ClosingEnv(envs.ChainEnv):
    """Notes that it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("update", [envs.ChainEnv, lambda: NewEnvUpdate(envs.ChainEnv)])
def test_a_replaced_environment_is_closed(update: Any) -> None:
    """Whether by a whole environment or by an update, what is replaced is closed, and the running episode forgotten."""
    env = ClosingEnv()
    worker = make_worker(env)
    worker.start_episode()
    worker.update_env(update())
    assert (True, False) == (env.closed, worker.running)


def test_shutting_down_closes_the_environment() -> None:
    """Nothing stays open behind a worker, however often it is shut down."""
    env = ClosingEnv()
    worker = make_worker(env)
    worker.shutdown()
    worker.shutdown()
    assert env.closed


def test_other_spaces_need_the_finished_episodes_taken() -> None:
    """Episodes of two environments with different spaces cannot share columns."""
    worker = make_worker(envs.ChainEnv())
    worker.start_episode()
    while not worker.step_episode():
        pass
    with pytest.raises(InternalError, match="before the finished episodes were taken"):
        worker.update_env(envs.TupleEnv())


def test_other_spaces_are_recorded_from_then_on() -> None:
    """After the episodes were taken, an environment with other spaces takes over, policy included."""
    worker = make_worker(envs.ChainEnv(), lambda spec: lambda observation: 1)
    run_numbers(worker, [0])
    worker.update_env(envs.MultiBinaryEnv())
    worker.update_agent(lambda observation: np.zeros(4, np.int8))
    assert (np.dtype(np.int8), (2, 2)) == (
        run_numbers(worker, [0]).observations[0].dtype,
        run_numbers(worker, [1]).observations[0].shape[1:],
    )


def test_facts_name_the_user_s_own_classes() -> None:
    """What a dataset records of policy and environment is their classes."""
    facts = make_worker(envs.ChainEnv()).facts()
    assert ("tests.support.policies.LinearPolicy", "tests.support.envs.ChainEnv") == (
        facts["policy_class"],
        facts["env"]["class"],
    )


def test_deterministic_reaches_the_policy() -> None:
    """A policy with a deterministic mode is asked for it."""
    made: list[policies.PredictPolicy] = []

    def make(spec: Any) -> policies.PredictPolicy:
        made.append(policies.PredictPolicy(spec))
        return made[-1]

    run_numbers(make_worker(envs.ChainEnv(), make, deterministic=True), [0])
    assert {True} == {deterministic for _, _, deterministic in made[0].calls}


# -- failures ----------------------------------------------------------------------------------------------------------


class BadObservationEnv(envs.ChainEnv):
    """Gives an observation of another shape at position `at`."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def draw_length(self) -> int:
        return 3

    def observe(self) -> Any:
        return np.zeros(2, np.float32) if self._position == self._at else super().observe()


class OddRewardEnv(envs.ChainEnv):
    """Gives a text as its reward."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, "much", terminated, truncated, info


class FailingResetPolicy(policies.GaragePolicy):
    def reset(self, do_resets: Any = None) -> None:
        raise ValueError("no reset")


class FailingSeedPolicy(policies.GaragePolicy):
    def seed(self, seed: int) -> None:
        raise ValueError("no seed")


class TooManyActionsPolicy(policies.GaragePolicy):
    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return np.array([1, 1]), {}


class NoInfoPolicy(policies.GaragePolicy):
    def get_action(self, observation: Any) -> Any:
        return 1


FAILURES: list[tuple[Any, Any, type[RolloutError], str, int]] = [
    (envs.FailingEnv("reset"), policies.LinearPolicy, EnvError, "env.reset raised ValueError: the reset is broken", 0),
    (envs.FailingEnv("step", 1), policies.LinearPolicy, EnvError, "env.step raised ValueError: step 1 is broken", 0),
    (
        OddRewardEnv(),
        policies.LinearPolicy,
        EnvError,
        "env.step raised ValueError: could not convert string to float",
        0,
    ),
    (
        BadObservationEnv(0),
        policies.LinearPolicy,
        EnvError,
        r"the observation is not of its space: got float32\(2,\)",
        0,
    ),
    (
        BadObservationEnv(1),
        policies.LinearPolicy,
        EnvError,
        r"the observation is not of its space: got float32\(2,\)",
        1,
    ),
    (
        BadObservationEnv(3),
        policies.LinearPolicy,
        EnvError,
        r"the last observation is not of its space: got float32",
        3,
    ),
    (
        envs.ChainEnv(),
        lambda spec: policies.FailingPolicy(spec, 1),
        PolicyError,
        "policy.get_action raised ValueError",
        0,
    ),
    (envs.ChainEnv(), FailingResetPolicy, PolicyError, "policy.reset raised ValueError: no reset", 0),
    (envs.ChainEnv(), FailingSeedPolicy, PolicyError, "policy.seed raised ValueError: no seed", 0),
    (envs.ChainEnv(), TooManyActionsPolicy, PolicyError, r"the policy gave a bad action: got int64\(2,\), expected", 0),
    (envs.ChainEnv(), NoInfoPolicy, PolicyError, "policy.get_action raised TypeError", 0),
]


@pytest.mark.parametrize(("env", "policy", "kind", "message", "step"), FAILURES)
def test_failures_name_what_and_where(env: Any, policy: Any, kind: type[RolloutError], message: str, step: int) -> None:
    """The error's class says whose fault it is; its one line names worker, episode, seed and step."""
    seed = derive_seed(SEED, 6, "env")
    with pytest.raises(kind, match=rf"^{message}.* \(worker 2, episode 6, seed {seed}, step {step}\)$") as caught:
        run_numbers(make_worker(env, policy), [6])
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_after_a_failure_the_worker_goes_on() -> None:
    """The failed episode leaves nothing behind; those finished before it stay."""
    worker = make_worker(envs.ChainEnv(), lambda spec: policies.FailingPolicy(spec, 4))
    worker.assign(range(20))
    with pytest.raises(PolicyError):
        worker.advance(math.inf)
    before = list(worker.finished_numbers)
    worker.retract()
    worker.update_agent(lambda observation: 1)
    chunk = run_numbers(worker, [30])
    assert [*before, 30] == chunk.numbers.tolist()
    assert len(chunk.rewards) == chunk.lengths.sum()
