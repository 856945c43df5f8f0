"""The contract of all workers: what a sampler may rely on, for one environment, synchronous rows and native ones."""

from __future__ import annotations

import math
import pickle
import signal
from collections.abc import Callable
from itertools import permutations
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from rollout_cli.envs.updates import NewEnvUpdate
from rollout_cli.errors import EnvError, PolicyError, PolicyLoadError, UsageError, UserCodeError
from rollout_cli.seeding.seeds import env_seed
from rollout_cli.workers.context import WorkerContext
from rollout_cli.workers.kinds import DefaultWorker, VecWorker
from rollout_cli.workers.native import buffer as buffers
from rollout_cli.workers.values import EpisodeRules, NullCrashBox
from rollout_cli.workers.worker import OWN_EPISODES
from tests.helpers.errors import raises
from tests.workers import worlds
from tests.workers.worlds import (
    KINDS,
    NATIVE,
    RESET_FROM_OUTSIDE,
    SEED,
    SINGLE,
    ChainEnv,
    check_chain,
    make,
    run,
)

each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@pytest.mark.parametrize("steps", [1, 4, 1_000])
def test_runs_the_assigned_numbers(kind: str, steps: int) -> None:
    """Every number once, whole, with its flags, however often it is taken; the worker's own number stands beside."""
    chunk = run(make(kind), range(5, 25), steps=steps)
    assert list(range(5, 25)) == chunk.numbers.tolist()
    check_chain(chunk)
    assert [True] * 20 == chunk.terminated.tolist()
    assert [False] * 20 == chunk.truncated.tolist()
    assert {2} == set(chunk.workers.tolist())
    assert (chunk.wall_times >= 0).all()


@each_kind
def test_seeds_are_those_of_the_numbers(kind: str) -> None:
    """What `env.reset` got; -1 where the environment began the episode by itself."""
    chunk = run(make(kind), range(3, 9))
    given = [env_seed(SEED, number) for number in range(3, 9)]
    assert (given if kind in RESET_FROM_OUTSIDE else [-1] * 6) == chunk.seeds.tolist()


@each_kind
def test_numbers_come_in_any_order_and_more_than_once(kind: str) -> None:
    """Leases of several ranges, and more of them while episodes run."""
    worker = make(kind)
    worker.assign([range(30, 34), range(2, 8, 2)])
    for _ in range(3):
        worker.advance(-1.0)
    chunk = run(worker, [range(3, 9, 2)])
    assert [2, 3, 4, 5, 6, 7, 30, 31, 32, 33] == chunk.numbers.tolist()
    check_chain(chunk)


@each_kind
def test_what_is_finished(kind: str) -> None:
    """Rows and bytes are those that `take` then gives, and nothing is lost."""
    worker = make(kind)
    worker.assign([range(12)])
    seen = set[int]()
    taken: list[int] = []
    while worker.has_work:
        worker.advance(-1.0)
        seen |= set(worker.running_numbers)
        rows, size = worker.finished_rows, worker.finished_bytes
        assert (rows > 0) == (size > 0)
        chunks = worker.take()
        assert rows - sum(chunk.n_steps for chunk in chunks) == worker.finished_rows
        taken += [number for chunk in chunks for number in chunk.numbers.tolist()]
    taken += [number for chunk in worker.take(everything=True) for number in chunk.numbers.tolist()]
    assert list(range(12)) == sorted(taken)
    assert ((), 0, False) == (worker.running_numbers, worker.finished_rows, worker.has_work)
    assert seen


@each_kind
def test_a_lower_number_holds_others_up_for_a_while(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `take` gives has no number above one that runs, until it has waited long enough."""
    worker = make(kind)
    worker.assign([range(40)])
    while worker.has_work:
        worker.advance(-1.0)
        lowest = min((*worker.running_numbers, 99))
        assert all(chunk.numbers.max() < lowest for chunk in worker.take())
    worker.take(everything=True)
    if kind != "default":
        monkeypatch.setattr("rollout_cli.workers.worker.HOLD_SECONDS", -1.0)
        worker.assign([range(40, 80)])
        while not worker.finished_rows:
            worker.advance(-1.0)
        assert worker.take()
        assert worker.running_numbers


@each_kind
@pytest.mark.parametrize("slots", [4, 7, 64])
def test_long_episodes_are_whole(kind: str, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes longer than the memory of steps come out whole, beside short ones that lower numbers hold up."""
    monkeypatch.setattr(buffers, "_MOST_STEPS", slots)
    monkeypatch.setattr(buffers, "_FEWEST_STEPS", 1)

    class Mixed(ChainEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self._fixed = None
            observation, _ = super().reset(seed=seed)
            if self.length == 9:
                observation[1] = self.length = 50
            return observation, {"length": self.length}

    chunk = run(make(kind, Mixed), range(30), steps=3)
    assert list(range(30)) == chunk.numbers.tolist()
    assert 50 in chunk.lengths
    check_chain(chunk)


@each_kind
def test_retract_above(kind: str) -> None:
    """Numbers above the last needed are dropped, waiting or running; the others are run."""
    worker = make(kind, lambda: ChainEnv(length=5))
    worker.assign([range(10)])
    worker.advance(-1.0)
    worker.retract(above=4)
    assert max(worker.running_numbers) <= 4
    chunk = run(worker, range(0))
    assert list(range(5)) == chunk.numbers.tolist()
    check_chain(chunk)


@each_kind
def test_retract_everything(kind: str) -> None:
    """Nothing is left; and the worker goes on as a new one."""
    worker = make(kind)
    worker.assign([range(20)])
    for _ in range(8):
        worker.advance(-1.0)
    worker.retract(above=None)
    assert (False, 0) == (worker.has_work, worker.finished_rows)
    assert [] == worker.take(everything=True)
    chunk = run(worker, range(40, 52))
    assert list(range(40, 52)) == chunk.numbers.tolist()
    check_chain(chunk)


def test_a_row_without_a_number_rests() -> None:
    """Its environment is neither reset nor stepped."""
    calls: list[str] = []

    class Noting(ChainEnv):
        def reset(self, **given: Any) -> Any:
            calls.append("reset")
            return super().reset(**given)

        def step(self, action: Any) -> Any:
            calls.append("step")
            return super().step(action)

    worker = make("sync", Noting)
    steps = run(worker, range(2)).n_steps + run(worker, range(2, 9)).n_steps
    assert (9, steps) == (calls.count("reset"), calls.count("step"))


@pytest.mark.parametrize("kind", RESET_FROM_OUTSIDE)
def test_an_episode_is_a_function_of_its_number(kind: str) -> None:
    """Whatever ran before it, and whatever was given up."""
    policy = worlds.OwnDrawPolicy if kind in SINGLE else worlds.BatchPolicy
    expected = run(make(kind, policy=policy), range(12))
    worker = make(kind, policy=policy)
    worker.assign([range(4, 30)])
    worker.advance(-1.0)
    worker.retract(above=None)
    actual = worlds.by_number([run(worker, range(6, 12)), run(worker, range(6))])
    worlds.assert_same_episodes(expected, actual)


@each_kind
def test_the_verbs(kind: str) -> None:
    """`rollout` begins the number after the last; `start_episode` takes an assigned one where there is any."""
    worker = make(kind)
    first = worker.rollout()
    assert 2 * OWN_EPISODES in first.numbers
    assert first.numbers.max() < worker.rollout().numbers.min()
    worker.assign([range(100, 101)])
    assert [100] == worker.rollout().numbers.tolist()
    with raises(UsageError, "call-order", "step_episode"):
        worker.step_episode()
    with raises(UsageError, "call-order"):
        worker.collect_episode()


@pytest.mark.parametrize("kind", SINGLE)
def test_a_subclass_resets_in_its_own_way(kind: str) -> None:
    """`reset_env` is called for each episode, with its number."""
    base, seen = (DefaultWorker if kind == "default" else VecWorker), []

    class Choosing(base):  # type: ignore[misc, valid-type]
        def reset_env(self, env: Any, number: int, seed: int) -> Any:
            seen.append(number)
            return env.reset(seed=7)

    arguments = {} if kind == "default" else {"n_envs": 2}
    worker = Choosing(seed=SEED, max_episode_length=None, worker_number=0, **arguments)
    worker.update_env(ChainEnv())
    worker.update_agent(worlds.BatchPolicy(worker.env_spec))
    chunk = run(worker, range(4))
    assert [0, 1, 2, 3] == sorted(seen)
    assert 1 == len(set(chunk.lengths.tolist()))


# -- updates -----------------------------------------------------------------------------------------------------------


@each_kind
def test_new_parameters(kind: str) -> None:
    """They reach the policy between episodes; the episodes that ran are given up."""
    worker = make(kind, policy=worlds.ParameterPolicy)
    run(worker, range(3))
    worker.update_agent({"action": 1})
    assert {1} == set(run(worker, range(3, 9)).actions[0].tolist())
    worker.update_agent({"action": 0})
    assert {0} == set(run(worker, range(9, 12)).actions[0].tolist())
    worker.update_agent(None)
    assert {0} == set(run(worker, range(12, 15)).actions[0].tolist())


@each_kind
def test_a_policy_that_refuses_parameters(kind: str) -> None:
    """It is named, with its own error."""

    class Refusing(worlds.ParameterPolicy):
        def set_param_values(self, params: Any) -> None:
            raise KeyError("weights")

    with raises(PolicyError, "policy-raised", "set_param_values", "KeyError"):
        make(kind, policy=Refusing).update_agent({"w": 1})


@each_kind
def test_a_new_environment_is_used_and_the_old_one_closed(kind: str) -> None:
    """Other spaces are taken over with it, once the finished episodes are taken."""
    worker = make(kind)
    run(worker, range(3))
    worker.update_env(worlds.env_of(kind, lambda: ChainEnv("both", length=2)))
    chunk = run(worker, range(3, 7))
    assert [2] * 4 == chunk.lengths.tolist()
    assert [True] * 4 == chunk.truncated.tolist()
    worker.update_env(worlds.env_of(kind, worlds.space_env("box")))
    worker.update_agent(worlds.BatchPolicy(worker.env_spec))
    assert (2, 3) == run(worker, range(2)).observations[0].shape[1:]


@pytest.mark.parametrize(("before", "after"), list(permutations(NATIVE, 2)))
def test_waiting_numbers_outlive_a_new_environment(before: str, after: str) -> None:
    """Also where the new one resets its rows in another way, so that other rows run them."""
    worker = make(before)
    worker.assign([range(9)])
    worker.update_env(worlds.env_of(after, ChainEnv))
    worlds.advance(worker)
    chunk = worlds.take_all(worker)
    assert list(range(9)) == chunk.numbers.tolist()
    check_chain(chunk)


@pytest.mark.parametrize("kind", RESET_FROM_OUTSIDE)
def test_a_policy_outlives_a_new_environment(kind: str) -> None:
    """Its draws are those of its episodes, as before."""
    policy = worlds.OwnDrawPolicy if kind in SINGLE else worlds.BatchPolicy
    worker = make(kind, policy=policy)
    run(worker, range(3))
    worker.update_env(worlds.env_of(kind, ChainEnv))
    expected = run(make(kind, policy=policy), range(3, 9))
    worlds.assert_same_episodes(expected, run(worker, range(3, 9)))


@pytest.mark.parametrize("kind", SINGLE)
def test_a_policy_draws_alike_where_environments_are_built_anew(kind: str) -> None:
    """From the spaces that it was given, which are those of no environment, whatever ran before."""

    def drawn(*ranges: range) -> Any:
        common: dict[str, Any] = {"seed": SEED, "max_episode_length": None, "worker_number": 2}
        common["fresh_env"] = True
        worker = DefaultWorker(**common) if kind == "default" else VecWorker(n_envs=2, **common)
        worker.update_env(NewEnvUpdate(ChainEnv))
        worker.update_agent(worlds.SpaceDrawPolicy(worker.env_spec))
        return [run(worker, numbers) for numbers in ranges][-1]

    worlds.assert_same_episodes(drawn(range(3, 9)), drawn(range(3), range(3, 9)))


@each_kind
def test_finished_episodes_are_taken_before_an_update(kind: str) -> None:
    """A sampler takes them first."""
    worker = make(kind)
    worker.assign([range(3)])
    while worker.has_work:
        worker.advance(-1.0)
    with raises(UsageError, "call-order"):
        worker.update_agent(worlds.BatchPolicy(worker.env_spec))
    with raises(UsageError, "call-order"):
        worker.update_env(worlds.env_of(kind, worlds.space_env("box")))


@each_kind
def test_shutdown_closes(kind: str) -> None:
    """All environments, once; an error there is the environment's."""
    made: list[ChainEnv] = []

    def remembered() -> ChainEnv:
        made.append(ChainEnv())
        return made[-1]

    worker = make(kind, remembered)
    used = made[: 1 if kind == "default" else 3]
    worker.shutdown()
    worker.shutdown()
    assert [1] * len(used) == [env.closed for env in used]

    class Unclosable(ChainEnv):
        def close(self) -> None:
            raise OSError("the device is stuck")

    with raises(EnvError, "env-raised", "OSError"):
        make(kind, Unclosable).shutdown()


@each_kind
def test_workers_are_not_pickled(kind: str) -> None:
    """They belong to their process."""
    with raises(UsageError, "worker-pickled"):
        pickle.dumps(make(kind))


@each_kind
def test_what_only_a_worker_knows(kind: str) -> None:
    """The policy's class, the environment's record, and how far episodes can be reproduced."""
    worker = make(kind)
    report = worker.report()
    assert "tests.workers.worlds.BatchPolicy" == report.policy_class
    assert report.env["class"].endswith("ChainEnv" if kind in ("default", "sync") else "SyncVectorEnv")
    assert (kind in RESET_FROM_OUTSIDE) == (report.not_reproducible is None)
    assert {"gymnasium", "numpy", "rollout_cli"} <= {*report.modules}
    assert "sys" not in report.modules


# -- limits and flags --------------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("ends", ["terminated", "truncated", "both"])
def test_flags(kind: str, ends: str) -> None:
    """Both flags are what the environment says."""
    chunk = run(make(kind, lambda: ChainEnv(ends)), range(5))
    assert {ends in ("terminated", "both")} == set(chunk.terminated.tolist())
    assert {ends in ("truncated", "both")} == set(chunk.truncated.tolist())


@pytest.mark.parametrize("kind", RESET_FROM_OUTSIDE)
@pytest.mark.parametrize("limit", [1, 4, 4.5, math.inf])
def test_the_runs_limit(kind: str, limit: float) -> None:
    """An episode that reaches it is truncated, and one that ends in that very step is terminated, too."""
    chunk = run(make(kind, lambda: ChainEnv(length=5), limit=limit), range(4))
    expected = min(5, math.ceil(limit)) if limit < math.inf else 5
    assert [expected] * 4 == chunk.lengths.tolist()
    assert [expected == 5] * 4 == chunk.terminated.tolist()
    assert [limit <= 5] * 4 == chunk.truncated.tolist()
    check_chain(chunk)


@each_kind
def test_an_episode_without_end_fails(kind: str) -> None:
    """After so many steps as the rules allow; the hint names both options."""
    worker = make(kind, lambda: ChainEnv("never"), context=WorkerContext(EpisodeRules(step_guard=1_500)))
    worker.assign([range(4)])
    with raises(EnvError, "episode-endless") as caught:
        worlds.advance(worker)
    assert "max_episode_length=" in caught.value.hint
    assert 1 == len(caught.value.episodes)


@each_kind
def test_an_episode_with_a_limit_may_be_longer_than_the_guard(kind: str) -> None:
    """Also where the limit is the environment's own: the guard is for episodes that nothing ends."""
    env = worlds.env_of(kind, lambda: TimeLimit(ChainEnv("never"), 600))
    if kind not in SINGLE:
        env.max_episode_steps = 600
    chunk = run(make(kind, env, context=WorkerContext(EpisodeRules(step_guard=300))), range(3), steps=600)
    assert [600] * 3 == chunk.lengths.tolist()
    if kind in RESET_FROM_OUTSIDE:
        worker = make(
            kind, lambda: ChainEnv("never"), limit=500, context=WorkerContext(EpisodeRules(step_guard=300))
        )
        assert [500] * 3 == run(worker, range(3), steps=600).lengths.tolist()


class TwoInOne(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An episode is two of the environment's."""

    def reset(self, **options: Any) -> Any:
        self.is_second = False
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if (terminated or truncated) and not self.is_second:
            self.is_second, terminated, truncated = True, False, False
            observation, _ = self.env.reset()
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("kind", ["default", "sync"])
def test_a_time_limit_counts_the_steps_inside_the_wrappers_around_it(kind: str) -> None:
    """So an episode of such a wrapper may have more steps; the run's own limit counts those that are recorded."""
    for limit, expected in ((None, 14), (9, 9), (20, 14)):
        worker = make(kind, lambda: TwoInOne(TimeLimit(ChainEnv("never"), 7)), limit=limit)
        chunk = run(worker, range(3))
        assert [expected] * 3 == chunk.lengths.tolist()
        assert chunk.truncated.all()


# -- action masks ------------------------------------------------------------------------------------------------------


class MaskedEnv(ChainEnv):
    """Allows one of its two actions in each step; it may be asked in an episode only."""

    is_running = False

    def action_masks(self) -> Any:
        if not self.is_running:
            raise RuntimeError("no episode runs")
        return np.arange(2) == (self._position + self.length // 2) % 2

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.is_running = True
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        assert self.action_masks()[action]
        result = super().step(action)
        self.is_running = not result[2]
        return result


class MaskedPolicy:
    """Takes the first valid action of each row, as a maskable model of Stable-Baselines3 is called."""

    def predict(self, observation: Any, action_masks: Any = None) -> Any:
        assert np.ndim(observation) == np.ndim(action_masks)
        return np.argmax(action_masks, axis=-1), None


def masked(kind: str, env: Any = MaskedEnv) -> DefaultWorker:
    return make(kind, env, lambda spec: MaskedPolicy())


def test_masks_reach_a_policy_that_takes_them() -> None:
    """At each step those of the row's own environment, also through wrappers; a row that rests is not asked."""
    expected = run(masked("default"), range(12))
    assert {0, 1} == set(expected.actions[0].tolist())
    worlds.assert_same_episodes(expected, run(masked("sync"), range(12)))
    for kind in SINGLE:
        worlds.assert_same_episodes(
            expected, run(masked(kind, lambda: TimeLimit(MaskedEnv(), 50)), range(12))
        )


@pytest.mark.parametrize("kind", SINGLE)
def test_masks_are_those_of_a_new_environment(kind: str) -> None:
    """An environment that takes the place of another one is asked from then on."""
    worker = masked(kind)
    run(worker, range(3))
    worker.update_env(worlds.env_of(kind, MaskedEnv))
    worlds.assert_same_episodes(run(masked(kind), range(3, 9)), run(worker, range(3, 9)))


@each_kind
def test_a_policy_that_takes_masks_needs_them(kind: str) -> None:
    """It is refused where the environment has none, and in a vector environment of its own."""
    with raises(PolicyLoadError, "policy-masks", "MaskedPolicy") as caught:
        masked(kind, ChainEnv if kind in SINGLE else MaskedEnv)
    assert ("action_masks()" if kind in SINGLE else 'vectorization="native"') in caught.value.hint


@pytest.mark.parametrize("kind", NATIVE)
def test_a_policy_of_one_observation_has_no_native_rows(kind: str) -> None:
    """It is refused, with what to do about it."""
    with raises(PolicyLoadError, "policy-not-batched", "TablePolicy") as caught:
        make(kind, policy=worlds.TablePolicy)
    # One that acts on batches may be refused for its reset alone.
    assert all(verb in caught.value.hint for verb in ("get_actions", "reset"))


@pytest.mark.parametrize("kind", SINGLE)
def test_masks_that_cannot_be_had(kind: str) -> None:
    """It is the environment's error, with its place."""

    class Broken(MaskedEnv):
        def action_masks(self) -> Any:
            raise ValueError("which actions?")

    failing(
        kind, masked(kind, Broken), EnvError, "env-raised", "env.action_masks", "ValueError: which actions?"
    )


# -- record first ------------------------------------------------------------------------------------------------------


# gymnasium's SyncVectorEnv gives the environment's own buffer as its final_obs.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "native same"])
def test_what_others_do_with_their_buffers_changes_no_record(kind: str) -> None:
    """An environment that writes over its observation and info, and a policy that edits what it sees and gave."""

    class Reusing(ChainEnv):
        def __init__(self) -> None:
            super().__init__()
            self._seen, self._info = (
                np.zeros(3, np.float32),
                {"position": 0, "path": [0], "deep": {"at": np.zeros(1)}},
            )

        def observe(self) -> Any:
            self._seen[:] = super().observe()
            return self._seen

        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = super().step(action)
            self._info["position"] = info["position"]
            self._info["path"][0] = info["position"]  # type: ignore[index]
            self._info["deep"]["at"][0] = info["position"]  # type: ignore[index]
            return observation, reward, terminated, truncated, self._info

    class Editing(worlds.BatchPolicy):
        def get_actions(self, observations: Any) -> Any:
            result = super().get_actions(observations)
            observations[:] = 77
            return result

    class Plain(ChainEnv):
        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            at = info["position"]
            return *rest, {"position": at, "path": [at], "deep": {"at": np.array([float(at)])}}

    worlds.assert_same_episodes(run(make(kind, Plain), range(9)), run(make(kind, Reusing, Editing), range(9)))


# -- errors ------------------------------------------------------------------------------------------------------------


def failing(
    kind: str, worker: DefaultWorker, error: type[UserCodeError], code: str, *values: object
) -> UserCodeError:
    """Run until the worker fails; check the error, and that the worker can go on."""
    worker.assign([range(7)])
    with raises(error, code, *values) as caught:
        worlds.advance(worker)
    assert "worker 2" in caught.value.place
    assert caught.value.place in caught.value.message
    assert "\n" not in caught.value.message
    assert set(caught.value.episodes) <= set(range(7))
    assert caught.value.episodes
    assert () == worker.running_numbers
    finished = worker.take(everything=True)
    assert not any(set(chunk.numbers.tolist()) & set(caught.value.episodes) for chunk in finished)
    return caught.value


class Raising(ChainEnv):
    """Raises in the third step, or in `reset`, of episodes that have one."""

    def __init__(self, error: Callable[[], BaseException], where: str = "step") -> None:
        super().__init__()
        self._error, self._where, self._resets = error, where, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._resets += 1
        if self._where == "reset" and self._resets == 2:
            raise self._error()
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self._where == "step" and self._position == 2:
            raise self._error()
        return super().step(action)


@each_kind
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (lambda: ValueError("it broke"), "ValueError: it broke"),
        (lambda: SystemExit(3), "SystemExit: 3"),
        (lambda: type("Odd", (BaseException,), {})("odd"), "Odd: odd"),
    ],
)
def test_an_environment_that_raises(kind: str, error: Any, text: str) -> None:
    """Where it happened and what; whoever blames one episode knows which."""
    found = failing(kind, make(kind, lambda: Raising(error)), EnvError, "env-raised", "env.step", text)
    assert isinstance(found.__cause__, BaseException)
    assert (kind in ("default", "sync")) == (len(found.episodes) == 1)


@each_kind
def test_a_reset_that_raises(kind: str) -> None:
    """It is the error of the episode that should begin."""
    where = "env.step" if kind in ("native next", "native same") else "env.reset"
    worker = make(kind, lambda: Raising(lambda: OSError("no"), "reset"))
    failing(kind, worker, EnvError, "env-raised", where, "OSError: no")


def test_a_row_that_cannot_reset_itself() -> None:
    """No episode runs then: it is the error of the one that waits, so that this one can be left out."""

    class Once(ChainEnv):
        resets = 0

        def reset(self, **given: Any) -> Any:
            Once.resets += 1
            if Once.resets == 2:
                raise OSError("no")
            return super().reset(**given)

    worker = make("native next", Once, n_envs=1)
    worker.assign([range(3)])
    with raises(EnvError, "env-raised", "OSError") as caught:
        worlds.advance(worker)
    assert (1,) == caught.value.episodes


@each_kind
def test_ctrl_c_is_nobodys_fault(kind: str) -> None:
    """It leaves the worker as it is; the finished episodes can still be taken."""
    worker = make(kind, lambda: Raising(KeyboardInterrupt))
    worker.assign([range(9)])
    # A shell that runs the tests in the background has Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            worlds.advance(worker)
    finally:
        signal.signal(signal.SIGINT, before)
    assert () == worker.running_numbers


@each_kind
def test_a_policy_that_raises(kind: str) -> None:
    """The policy's error, which names the method that it has; of a batch, all episodes that run are suspects."""

    def broken(good: Any) -> Any:
        raise ZeroDivisionError("too bold")

    policy = type("Broken", (worlds.GivenPolicy,), {"given": staticmethod(broken)})
    worker = make(kind, policy=policy)
    failing(kind, worker, PolicyError, "policy-raised", "policy.get_actions", "ZeroDivisionError: too bold")


@pytest.mark.parametrize("kind", RESET_FROM_OUTSIDE)
def test_a_policy_that_raised_can_go_on(kind: str) -> None:
    """Nothing is left of the step that failed, in which other rows may have acted."""
    base = worlds.TablePolicy if kind in SINGLE else worlds.BatchPolicy

    class Once(base):  # type: ignore[misc, valid-type]
        calls = 0

        def get_action(self, observation: Any) -> Any:
            Once.calls += 1
            if Once.calls == 5:
                raise ZeroDivisionError("too bold")
            return super().get_action(observation)

    worker = make(kind, policy=Once)
    failing(kind, worker, PolicyError, "policy-raised", "too bold")
    worker.retract(above=None)
    worlds.assert_same_episodes(run(make(kind, policy=base), range(9)), run(worker, range(9)))


BAD_ACTIONS: dict[str, tuple[Any, list[object]]] = {
    "outside": (lambda good: good + 2, [2, "Discrete(2)"]),
    "negative": (lambda good: good - 1, [-1, "Discrete(2)"]),
    "floats": (lambda good: good + 0.5, ["float", "int64"]),
    "shape": (lambda good: np.zeros((len(good), 2), int), ["2", "int64"]),
    "text": (lambda good: np.array(["left"] * len(good)), ["int64"]),
}


@each_kind
@pytest.mark.parametrize("name", BAD_ACTIONS)
def test_bad_actions_never_reach_the_environment(kind: str, name: str) -> None:
    """The policy's error, with the value and the space, before the environment has seen it."""
    given, values = BAD_ACTIONS[name]
    code = "value-shape" if kind in SINGLE else "batch-shape"
    if name in {"outside", "negative"}:
        code = "action-outside-space"

    class Strict(ChainEnv):
        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            return super().step(action)

    policy = type("Given", (worlds.GivenPolicy,), {"given": staticmethod(given)})
    error = failing(kind, make(kind, lambda: Strict(length=5), policy), PolicyError, code, *values)
    assert error.hint


def pushes(value: float) -> Callable[[Any], Any]:
    """Return a policy that pushes with this value, for `PushEnv`."""

    class Push:
        def get_actions(self, observations: Any) -> Any:
            return np.full((len(observations), 2), value, np.float32), {}

    return lambda spec: Push()


class PushEnv(ChainEnv):
    """Has Box actions in [-1, 1]^2, and a reward that is their sum."""

    def __init__(self) -> None:
        super().__init__(length=3)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(0)
        return observation, float(np.sum(action)), *rest


@each_kind
@pytest.mark.parametrize(
    ("rule", "value", "pushed"),
    [
        ("error", 2.0, None),
        ("error", math.nan, None),
        ("error", math.inf, None),
        ("clip", 2.0, 1.0),
        ("clip", -math.inf, -1.0),
        ("clip", math.nan, None),
        ("warn", 2.0, 2.0),
    ],
)
def test_the_rule_for_invalid_actions(kind: str, rule: Any, value: float, pushed: float | None) -> None:
    """`error` fails, `clip` moves to the nearest bound but nan, `warn` lets the environment have it."""
    worker = make(kind, PushEnv, pushes(value), context=WorkerContext(EpisodeRules(invalid_action=rule)))
    if pushed is None:
        error = failing(kind, worker, PolicyError, "action-outside-space", value)
        assert ("nan" in error.hint) == math.isnan(value)
        assert 1 == len(error.episodes)
        return
    chunk = run(worker, range(4))
    assert {pushed} == set(chunk.actions[0].ravel().tolist())
    assert {2 * pushed} == set(chunk.rewards.tolist())


class CountingBox(NullCrashBox):
    """A crash box that remembers."""

    def __init__(self) -> None:
        self.running: dict[int, int] = {}
        self.seen: set[int] = set()

    def begin(self, row: int, number: int) -> None:
        self.running.pop(row, None)
        if number >= 0:
            self.running[row] = number
            self.seen.add(number)

    def note(self, numbers: Any) -> None:
        self.running = {row: number for row, number in enumerate(numbers.tolist()) if number >= 0}
        self.seen |= set(self.running.values())


@each_kind
def test_the_crash_box_knows_what_runs(kind: str) -> None:
    """At every moment in which code of the user's runs, and in between."""
    box = CountingBox()
    worker = make(kind, context=WorkerContext(crash_box=box))
    worker.assign([range(12)])
    while worker.has_work:
        worker.advance(-1.0)
        assert set(worker.running_numbers) == set(box.running.values())
    assert set(range(12)) == box.seen
