"""LocalSampler: all workers in the caller's process."""

from __future__ import annotations

import random
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from rollout_cli.envs.updates import EnvUpdate
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import (
    EnvError,
    InterruptedRunError,
    PolicyLoadError,
    UsageError,
    WorkerError,
)
from rollout_cli.samplers.leases import LeaseSize
from rollout_cli.samplers.local_sampler import LocalPool, LocalSampler
from rollout_cli.samplers.messages import Failed
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps
from rollout_cli.samplers.pool import Event
from rollout_cli.samplers.supervision import Supervision
from rollout_cli.seeding import generators
from rollout_cli.seeding.seeds import env_seed
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.kinds import VecWorker
from rollout_cli.workers.rows.lockstep import LockstepRows
from tests.helpers.envs import SelfSeedingEnv
from tests.helpers.errors import raises
from tests.helpers.fake_worker import FakeWorker, Script

SEED = 3
builds: list[str] = []


class Env(gymnasium.Env[Any, Any]):
    """Episodes of three steps; raises `harm` in episode 4, or when it is closed."""

    observation_space = spaces.Box(0, 100, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, harm: Any = None, harm_at: str = "step") -> None:
        builds.append("env")
        self.harm, self.harm_at = harm, harm_at

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.seed = 0, seed
        return np.zeros(1), {"drawn": random.random(), "numpy": float(np.random.random())}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.harm is not None and self.harm_at == "step" and self.seed == env_seed(SEED, 4):
            raise self.harm
        return np.full(1, self.steps, np.float64), 1.0, self.steps == 3, False, {"x": random.random()}

    def close(self) -> None:
        if self.harm is not None and self.harm_at == "close":
            raise self.harm


def left(observation: Any) -> int:
    return 0


def right(observation: Any) -> int:
    return 1


def local(env: Any = None, *, n_workers: int = 1, agents: Any = left, **options: Any) -> LocalSampler:
    return LocalSampler(agents, env or Env(), n_workers=n_workers, seed=SEED, **options)


def numbers_of(chunks: list[Chunk]) -> list[int]:
    return [int(number) for chunk in chunks for number in chunk.numbers]


def until_error(sampler: LocalSampler, plan: Any) -> tuple[list[int], BaseException]:
    """Return the numbers that were handed on before the error, and the error."""
    chunks: list[Chunk] = []
    try:
        for chunk in sampler.stream(plan):
            chunks.append(chunk)  # noqa: PERF402  They are wanted after the error, too.
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  The caller looks at it.
        return numbers_of(chunks), error
    raise AssertionError("no error came")


@contextmanager
def own_signal_handler() -> Iterator[None]:
    """Handle SIGINT as a run of the command does: then no KeyboardInterrupt comes of Ctrl-C."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Once(SelfSeedingEnv):
    """Fails under the first seed that one was built with."""

    def step(self, action: Any) -> Any:
        if builds == [f"seed {self._built_with}"]:
            raise OSError("the simulator is broken")
        return super().step(action)


def once(num_envs: int, seed: int) -> SyncVectorEnv:
    """Make such environments step together."""
    builds.append(f"seed {seed}")
    return SyncVectorEnv([partial(Once, seed)] * num_envs, autoreset_mode="NextStep")


def test_a_worker_that_is_built_again_does_not_repeat_itself() -> None:
    """A vector environment that resets itself gets another seed, and so other episodes."""
    builds.clear()
    native: dict[str, Any] = {
        "worker_class": VecWorker,
        "worker_args": {"n_envs": 1, "vectorization": "native"},
    }
    with local(once, agents="random", supervision=Supervision(on_env_error="retry"), **native) as sampler:
        chunks = list(sampler.stream(Episodes(0, 4)))
    assert [0, 1, 2, 3] == numbers_of(chunks)
    assert 2 == len(builds) == len(set(builds))


class BadFirst(Env):
    """Episode 0 fails."""

    def step(self, action: Any) -> Any:
        if self.seed == env_seed(SEED, 0):
            raise OSError("the simulator is broken")
        return super().step(action)


def bad_first(num_envs: int) -> SyncVectorEnv:
    """Make such environments step together."""
    return SyncVectorEnv([BadFirst] * num_envs, autoreset_mode="Disabled")


def test_a_row_that_runs_no_episode_fails_for_none() -> None:
    """A vector environment steps it all the same: were that in episode 0, each that runs alone would be skipped."""
    native: dict[str, Any] = {
        "worker_class": VecWorker,
        "worker_args": {"n_envs": 3, "vectorization": "native"},
    }
    with local(bad_first, agents="random", supervision=Supervision(on_env_error="skip"), **native) as sampler:
        assert [1, 2, 3, 4] == numbers_of(list(sampler.stream(Episodes(0, 5))))
    assert [0] == list(sampler.skipped)


# -- updates of both ---------------------------------------------------------------------------------------------------


class Wide(EnvUpdate):
    """Changes the environment to one of another space."""

    def __call__(self, old_env: Any = None) -> Any:
        env = Env()
        env.observation_space = spaces.Box(0, 200, (1,), np.float64)
        return env


class Fitting:
    """Fits the observations of `Env`, and has a parameter."""

    high = 100.0

    def __init__(self, env_spec: EnvSpec) -> None:
        if env_spec.observation_space != spaces.Box(0, self.high, (1,), np.float64):
            raise ValueError("other observations")
        self.weight = 0.0

    def get_action(self, observation: Any) -> Any:
        return 0, {"weight": self.weight}

    def get_param_values(self) -> Any:
        return {"weight": self.weight}

    def set_param_values(self, parameters: Any) -> None:
        self.weight = parameters["weight"]

    def reset(self, do_resets: Any = None) -> None:
        """Need nothing."""


class FittingWide(Fitting):
    """Fits those of `Wide`."""

    high = 200.0


class FittingBoth(Fitting):
    """Fits all."""

    def __init__(self, env_spec: EnvSpec) -> None:
        self.weight = 0.0


def weights(sampler: LocalSampler, *updates: Any) -> list[float]:
    batch = sampler.obtain_samples(0, 4, *updates)
    return sorted({float(weight) for weight in batch.agent_infos["weight"]})


def test_parameters_outlast_a_change_of_spaces() -> None:
    """In a worker that goes on, whose policy is built anew for them, as in one that is started then."""
    with local(agents=f"{__name__}:FittingBoth") as sampler:
        assert [2.0] == weights(sampler, {"weight": 2.0})
        assert [2.0] == weights(sampler, None, Wide())
        assert [3.0] == weights(sampler, {"weight": 3.0}, Env())
        sampler.shutdown_worker()
        assert [3.0] == weights(sampler, None)


def test_a_policy_and_the_environment_that_it_fits_come_together() -> None:
    """Neither the policy before need fit the new environment, nor the new one the environment before."""
    with local(agents=f"{__name__}:Fitting") as sampler:
        assert [0.0] == weights(sampler, None)
        assert [0.0] == weights(sampler, f"{__name__}:FittingWide", Wide())
        sampler.shutdown_worker()
        assert [0.0] == weights(sampler, None)


# -- what garage's verbs give ------------------------------------------------------------------------------------------


def test_a_worker_that_comes_late_gets_all_updates() -> None:
    """A worker that an earlier call did not need begins where the others are, and misses no update later."""
    with local(n_workers=2) as sampler:
        sampler.obtain_samples(0, 3, right)
        assert {1} == set(sampler.obtain_exact_episodes(1, None).actions.tolist())
        sampler.obtain_samples(0, 3, left)
        assert {0} == set(sampler.obtain_exact_episodes(1, None).actions.tolist())


def test_a_factory_decides_alone() -> None:
    """Arguments that are the factory's own are refused beside it, rather than ignored."""
    with raises(UsageError, "factory-options", "worker_factory", "n_workers"):
        LocalSampler(left, Env(), worker_factory=WorkerFactory(n_workers=1, seed=3), n_workers=2, seed=SEED)


# -- one process -------------------------------------------------------------------------------------------------------


def test_one_environment_is_built_where_anybody_may_run_any_number() -> None:
    """Two workers build two environments only where each has episodes of its own."""
    builds.clear()
    with LocalSampler(left, Env, n_workers=2, seed=SEED) as sampler:
        sampler.start_worker()
        assert sampler.wait_until_started() == sampler.env_spec
        sampler.obtain_samples(0, 30, None)
        assert 1 == len(builds)
        sampler.obtain_exact_episodes(1, None)
        assert 2 == len(builds)


@pytest.mark.parametrize("n_steps", [512, 2048])
def test_no_row_rests_while_a_needed_number_waits(n_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls take no more steps of the rows than their episodes need: the lowest number in the row that is free."""
    steps: list[int] = []
    step = LockstepRows._step

    def counted(rows: LockstepRows) -> None:
        steps[-1] += 1
        step(rows)

    monkeypatch.setattr(LockstepRows, "_step", counted)
    needed = []
    with LocalSampler(
        "random", "CartPole-v1", seed=SEED, worker_class=VecWorker, worker_args={"n_envs": 16}
    ) as sampler:
        for call in range(6):
            steps.append(0)
            lengths = sampler.obtain_samples(call, n_steps, None).lengths
            free_at = np.zeros(16, np.int64)
            for length in lengths:
                free_at[free_at.argmin()] += length
            needed.append(int(free_at.max()))
    # The first call knows no lengths; a later one may have estimated too few episodes.
    assert sum(steps[1:]) <= 1.05 * sum(needed[1:])


def test_episodes_that_cannot_be_needed_are_not_started() -> None:
    """With episodes of 500 steps, a call of 2,000 runs four of them, in any number of rows."""
    script = Script(lambda _: 500, speeds=(100,), n_envs=16)
    with LocalSampler(0.0, "CartPole-v1", worker_factory=script.factory()) as sampler:
        sampler.obtain_samples(0, 2_000, None)
        begun = len(script.begun[0])
        for call in range(1, 6):
            assert 4 == len(sampler.obtain_samples(call, 2_000, None).lengths)
    assert 5 * 4 == len(script.begun[0]) - begun


def test_an_update_searches_no_environment_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and policies change the policy alone: the engine stays, and only the policy is searched."""
    searched: list[str] = []
    search = generators._search

    def noted(root: Any, seen: dict[int, Any]) -> list[Any]:
        searched.append("env" if isinstance(root, gymnasium.Env) else "policy")
        return search(root, seen)

    monkeypatch.setattr(generators, "_search", noted)
    engines = set()
    factory = WorkerFactory(n_workers=1, seed=SEED, worker_class=VecWorker, worker_args={"n_envs": 3})
    with LocalSampler(Scaled(1.0), "CartPole-v1", worker_factory=factory) as sampler:
        batches = [sampler.obtain_samples(0, 30, None)]
        searched.clear()
        for call, update in enumerate(({"scale": -1.0}, Scaled(2.0), {"scale": 0.5})):
            batches.append(sampler.obtain_samples(call, 30, update))
            pool: Any = sampler._pool
            engines.add(id(pool._workers[0].loop._worker._engine))
    assert (["policy"] * 3, 1) == (searched, len(engines))
    first = 0
    for batch, scale in zip(batches, (1.0, -1.0, 2.0, 0.5), strict=True):
        with LocalSampler(Scaled(scale), "CartPole-v1", worker_factory=factory) as fresh:
            fresh.next_number = first
            same = fresh.obtain_samples(0, 30, None)
        first = fresh.next_number
        assert batch.observations.tolist() == same.observations.tolist()
        assert batch.actions.tolist() == same.actions.tolist()


class Scaled:
    """Draws actions with a weight that is its parameter; each row has a generator of its own."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.generators: dict[int, np.random.Generator] = {}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        draws = np.array([self.generators[row].normal() for row in range(len(observations))])
        return (observations[:, 2] * self.scale * 10 + draws > 0).astype(np.int64), {}

    def seed_rows(self, mask: Any, seeds: Any) -> None:
        for row in np.flatnonzero(mask).tolist():
            self.generators[row] = np.random.default_rng(int(seeds[row]))

    def get_param_values(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def set_param_values(self, params: dict[str, Any]) -> None:
        self.scale = params["scale"]


class _LateSampler(LocalSampler):
    """Its caller looks only after a worker has failed, in one of the first eight episodes."""

    _lease_size = LeaseSize(ahead=8)

    class _Pool(LocalPool):
        def wait(self) -> list[Event]:
            events = super().wait()
            while not any(isinstance(event, Failed) for event in events):
                events += super().wait()
            return events

    def _make_pool(self) -> LocalPool:
        return self._Pool(self._factory)


def test_a_failure_that_comes_with_the_start_loses_no_episode() -> None:
    """The workers have started, so the episodes before it come first."""
    plan = MinTimesteps(100)
    with _LateSampler(left, Env(ValueError("late")), n_workers=1, seed=SEED) as sampler:
        sampler.start_worker(plan)
        assert sampler.wait_until_started() == sampler.env_spec
        numbers, error = until_error(sampler, plan)
    assert [0, 1, 2, 3] == numbers
    assert isinstance(error, EnvError)


def states() -> Any:
    numpys: Any = np.random.get_state()
    return random.getstate(), numpys[1].tolist()


def test_torch_has_one_thread_while_local_workers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in worker processes, since last bits depend on it; the caller's number comes back after each turn."""
    threads = [4]
    torch = SimpleNamespace(set_num_threads=threads.append, get_num_threads=lambda: threads[-1])
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    class Looking(Env):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:-1], {"threads": sys.modules["torch"].get_num_threads()}

    with LocalSampler(left, Looking, n_workers=2, seed=SEED) as sampler:
        for chunk in sampler.stream(Episodes(0, 3)):
            assert 4 == threads[-1]
            assert {1} == set(chunk.env_infos.to_arrays()["threads"].tolist())
    assert 4 == threads[-1]


def test_the_callers_generators_stay_as_they_are() -> None:
    """The episodes draw from global generators of their own, whoever draws between two chunks, with any workers."""

    def infos(n_workers: int, *, disturb: bool) -> list[float]:
        with local(n_workers=n_workers) as sampler:
            rows: dict[int, list[float]] = {}
            for chunk in sampler.stream(EpisodesPerWorker(6 // n_workers)):
                if disturb:
                    random.seed(5)
                    np.random.random()
                drawn = next(c for c in chunk.env_infos.columns if c.path == ("x",)).values.tolist()
                for at, number in enumerate(chunk.numbers.tolist()):
                    rows[number] = drawn[3 * at : 3 * at + 3]
            return [value for number in sorted(rows) for value in rows[number]]

    random.seed(11)
    np.random.seed(11)
    before = states()
    calm = infos(1, disturb=False)
    assert before == states()
    assert calm == infos(1, disturb=True)
    assert calm == infos(2, disturb=True)
    assert calm == infos(3, disturb=False)


def test_no_episode_is_run_that_nobody_needs() -> None:
    """A slow environment shows it: while the pace is unknown one episode is run at a time."""
    script = Script(lengths=lambda number: 10, speeds=(1,))
    with LocalSampler(0.0, "CartPole-v1", worker_factory=script.factory()) as sampler:
        assert [0, 1] == numbers_of(list(sampler.stream(MinTimesteps(15))))
    assert {0: [0, 1]} == script.begun


def test_time_outs_are_refused() -> None:
    """Nobody could end a step of the caller's own process."""
    with raises(UsageError, "timeout-without-process"):
        local(supervision=Supervision(step_timeout=1.0))


def test_a_thread_can_sample() -> None:
    """A call in another thread than the main one gives the same episodes."""
    rewards: list[Any] = []

    def sample() -> None:
        with local() as sampler:
            rewards.append(sampler.obtain_samples(0, 9, None).rewards.tolist())

    thread = threading.Thread(target=sample)
    thread.start()
    thread.join()
    assert [[1.0] * 9] == rewards


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_comes_after_the_episodes_before_it() -> None:
    """Four episodes are handed on; the error is the live object, with the user's own frame for a debugger."""
    with local(Env(harm=ValueError("broken"))) as sampler:
        numbers, error = until_error(sampler, Episodes(0, 20))
    assert [0, 1, 2, 3] == numbers
    assert isinstance(error, EnvError)
    assert "ValueError: broken" in error.message
    assert isinstance(error.__cause__, ValueError)
    assert "raise self.harm" in error.details
    assert (
        "step" == [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__cause__.__traceback__)][-1]
    )


@pytest.mark.parametrize("harm", [SystemExit(0), SystemExit(3), KeyboardInterrupt(), BaseException("odd")])
def test_what_is_no_exception_is_an_error_too(harm: BaseException) -> None:
    """The user's `sys.exit` ends no run quietly: it is an error of the environment's."""
    with own_signal_handler(), local(Env(harm=harm)) as sampler:
        numbers, error = until_error(sampler, Episodes(0, 20))
    assert ([0, 1, 2, 3], EnvError) == (numbers, type(error))
    assert type(harm).__name__ in str(error)


def test_what_gets_past_a_worker_counts_as_its_death() -> None:
    """As in a process of its own: three times, then a WorkerError that names it, the episode and its seed."""
    warnings: list[str] = []
    factory = Script(deadly={4}).factory()
    with LocalSampler(0.0, "CartPole-v1", worker_factory=factory, warn=warnings.append) as sampler:
        numbers, error = until_error(sampler, Episodes(0, 20))
        assert 2 == sampler.restarts
    assert ([0, 1, 2, 3], WorkerError) == (numbers, type(error))
    assert "episode-kills-worker" == error.code  # type: ignore[attr-defined]
    assert f"episode 4 (seed {env_seed(0, 4)})" in str(error)
    assert "DeadlyEpisode: episode 4" in str(error)
    assert "raise DeadlyEpisode" in error.details  # type: ignore[attr-defined]
    assert ["restarting it"] * 2 == [warning.split("; ")[1].split(" (")[0] for warning in warnings]


@pytest.mark.parametrize("harm", ["failing", "deadly"])
def test_a_failure_above_the_end_of_a_plan_is_not_an_error(harm: str) -> None:
    """Episode 50 starts in the step in which 49 ends the plan, and fails in it; no caller needs it."""
    above: Any = Counter(dict.fromkeys(range(50, 200), 1000))
    lengths = {48: 209, 49: 210}
    script = Script(lambda number: lengths.get(number, 10), speeds=(10_000,), n_envs=2, **{harm: above})
    warnings: list[str] = []
    with LocalSampler(0.0, "CartPole-v1", worker_factory=script.factory(), warn=warnings.append) as sampler:
        assert list(range(50)) == numbers_of(list(sampler.stream(MinTimesteps(899))))
        assert (True, []) == (sampler.is_done, warnings)
    assert 50 in script.begun[0]


def test_a_call_after_one_whose_failure_nobody_saw() -> None:
    """The caller has the episodes before the failure, and begins another call: its workers are new ones."""
    with local(Env(harm=ValueError("no"))) as sampler:
        first = sampler.stream(Episodes(0, 20))
        while 3 != next(first).numbers[-1]:
            pass
        assert [0, 1] == numbers_of(list(sampler.stream(Episodes(0, 2))))
        with raises(UsageError, "stream-overtaken"):
            next(first)


def test_ctrl_c_is_raised_as_it_is() -> None:
    """Where nobody handles SIGINT, a KeyboardInterrupt is the user's Ctrl-C; a later call works."""
    with local(Env(harm=KeyboardInterrupt())) as sampler:
        numbers, error = until_error(sampler, Episodes(0, 20))
        assert (list(range(len(numbers))), KeyboardInterrupt) == (numbers, type(error))
        assert [5] == numbers_of(list(sampler.stream(Episodes(5, 6))))


@pytest.mark.parametrize(
    "harm", [RuntimeError("no"), SystemExit(5), KeyboardInterrupt(), BaseException("odd")]
)
def test_an_environment_that_cannot_be_closed_loses_nothing(
    harm: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """What close raises is logged."""
    with own_signal_handler(), local(Env(harm=harm, harm_at="close")) as sampler:
        assert 9 == len(sampler.obtain_samples(0, 9, None).rewards)
    assert "closing worker 0 failed" in caplog.text


def test_what_cannot_be_pickled_is_refused() -> None:
    """Each worker gets a copy, so the policy must be copied; the error says so."""

    class Unpicklable:
        def __reduce__(self) -> Any:
            raise TypeError("holds a window")

    with raises(PolicyLoadError, "pickle-failed"):
        local(agents=Unpicklable())


def test_a_call_that_is_stopped_before_anything_ended_says_so() -> None:
    """obtain_samples has no batch of nothing to return."""
    with local() as sampler:
        sampler.request_stop()
        with raises(InterruptedRunError, "no-episode-ended"):
            sampler.obtain_samples(0, 10, None)
        assert 12 == len(sampler.obtain_samples(0, 10, None).rewards)


# -- the pool ----------------------------------------------------------------------------------------------------------


def test_the_set_up_is_entered_once_for_all_workers() -> None:
    """It is entered before the first worker is built and left after the last one was closed."""
    events: list[str] = []

    @contextmanager
    def setup() -> Iterator[None]:
        events.append("enter")
        yield
        events.append("leave")

    class Noisy(FakeWorker):
        def worker_init(self) -> None:
            events.append("build")

        def shutdown(self) -> None:
            events.append("close")

    factory = WorkerFactory(
        worker_class=Noisy, worker_args={"script": Script()}, n_workers=2, seed=0, worker_setup=setup
    )
    with LocalSampler(0.0, "CartPole-v1", worker_factory=factory) as sampler:
        list(sampler.stream(EpisodesPerWorker(2)))
    assert ["enter", "build", "build", "close", "close", "leave"] == events
