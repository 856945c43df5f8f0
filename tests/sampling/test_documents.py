"""What garage's pages on samplers and workers say, row by row: classes, verbs, arguments, errors, older names."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest

import rollout_cli
from rollout_cli import DefaultWorker, EpisodeBatch, Episodes, Sampler, VecWorker, WorkerFactory, run_worker
from rollout_cli.cli.output import report
from rollout_cli.envs.describe import env_spec_of
from rollout_cli.envs.updates import EnvUpdate, NewEnvUpdate
from rollout_cli.errors import (
    EnvError,
    InternalError,
    PolicyError,
    PolicyLoadError,
    RolloutError,
    UsageError,
    UserCodeError,
)
from rollout_cli.policies.random import RandomPolicy
from rollout_cli.workers.context import WorkerContext
from rollout_cli.workers.values import EpisodeRules
from rollout_cli.workers.worker import OWN_EPISODES, VERBS
from tests.helpers.batches import assert_same_batches
from tests.helpers.envs import FaultyEnv
from tests.helpers.errors import raises
from tests.helpers.sampled import ConstantPolicy, act, still
from tests.helpers.sampling import BACKENDS, MakeSampler, batch_of, faulty, sampler_of
from tests.samples.meta_workers import BeliefWorker, TrialWorker
from tests.workers.worlds import NATIVE, BatchPolicy, ChainEnv, env_of

each_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture
def make_sampler(backend: str) -> Iterator[MakeSampler]:
    made: list[Sampler] = []

    def make(*args: Any, **options: Any) -> Sampler:
        made.append(sampler_of(backend, *args, **options))
        return made[-1]

    yield make
    for one in made:
        one.shutdown_worker()


# -- workers by their own verbs ----------------------------------------------------------------------------------------

KINDS: dict[str, Any] = {
    "default": lambda: DefaultWorker(seed=1, max_episode_length=8, worker_number=0),
    "vec": lambda: VecWorker(seed=1, max_episode_length=8, worker_number=0),
}


def ready(kind: str) -> Any:
    """Return a worker that has a policy, given before the environment as in garage, and an environment."""
    worker = KINDS[kind]()
    worker.update_agent(BatchPolicy(env_spec_of(ChainEnv())))
    worker.update_env(ChainEnv())
    return worker


def test_names_and_defaults() -> None:
    """Of the pages: what is what, and how many environments a VecWorker has."""
    assert issubclass(VecWorker, rollout_cli.Worker)
    assert issubclass(VecWorker, DefaultWorker)
    assert 8 == VecWorker.DEFAULT_N_ENVS
    assert rollout_cli.TrajectoryBatch is EpisodeBatch
    assert {"LocalSampler", "MultiprocessingSampler", "RaySampler", "WorkerFactory"} <= set(
        rollout_cli.__all__
    )


def test_arguments_out_of_range() -> None:
    """They are a ValueError, too; a word that is misspelt does not stand for another one, such as `skip`."""
    for wrong in (
        {"max_worker_restarts": -1},
        {"on_worker_death": "ignore"},
        {"on_env_error": "raise"},
        {"step_timeout": 0},
        {"episode_timeout": float("nan")},
    ):
        arguments: dict[str, Any] = wrong
        with raises(ValueError, "limit-value", *wrong):
            rollout_cli.Supervision(**arguments)
    method: Any = "fork"
    with raises(ValueError, "start-method", "start_method", "fork"):
        rollout_cli.MultiprocessingSampler(act, ChainEnv(), start_method=method)


@pytest.mark.parametrize(("kind", "n_episodes"), [("default", 1), ("vec", 8)])
def test_the_verbs_of_a_worker(kind: str, n_episodes: int) -> None:
    """By hand, or by `rollout`: one episode, or one of each row, whole; then none is left."""
    worker = ready(kind)
    assert [n_episodes] * 2 == [len(worker.rollout()), len(worker.rollout())]
    worker.start_episode()
    batches = []
    while worker.has_work:
        while not worker.step_episode():
            pass
        batches.append(worker.collect_episode())
    batch = EpisodeBatch.concatenate(*batches)
    assert list(range(2 * n_episodes, 3 * n_episodes)) == sorted(batch.numbers.tolist())
    assert [min(8, int(length)) for length in batch.last_observations[:, 1]] == batch.lengths.tolist()
    worker.shutdown()
    with raises(UsageError, "call-order"):
        worker.start_episode()


@pytest.mark.parametrize("mode", NATIVE)
def test_a_rollout_of_rows_that_reset_themselves(mode: str) -> None:
    """At least one episode a row, none of them chosen because it was short."""
    worker = VecWorker(seed=1, max_episode_length=None, worker_number=0, n_envs=3, vectorization="native")
    worker.update_env(env_of(mode, ChainEnv))
    worker.update_agent(BatchPolicy(worker.env_spec))
    assert [0, 1, 2, 3, 4, 5] == [*worker.rollout().numbers, *worker.rollout().numbers]


def test_the_worker_number_makes_the_seeds_differ() -> None:
    """No two workers of one seed run the same episode by their own verbs."""
    factory = WorkerFactory(seed=1, n_workers=2)
    seeds = []
    for worker in (factory(0), factory(1)):
        worker.update_env(ChainEnv())
        worker.update_agent(BatchPolicy(worker.env_spec))
        batch = worker.rollout()
        assert [worker.worker_number * OWN_EPISODES] == batch.numbers.tolist()
        seeds += batch.seeds.tolist()
    assert 2 == len(set(seeds))


@pytest.mark.parametrize("kind", KINDS)
def test_agent_and_env_are_public(kind: str) -> None:
    """As the user gave them, before and after the worker is ready; nothing before the first update."""
    worker, env = KINDS[kind](), ChainEnv()
    assert (None, None) == (worker.agent, worker.env)
    policy = BatchPolicy(env_spec_of(env))
    worker.update_agent(policy)
    assert policy is worker.agent
    worker.update_env(env)
    assert (policy, env) == (worker.agent, worker.env)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("own", "runs", "in_force"), [(6, 4, 4), (4, 6, 4), (None, 4.5, 5), (4, float("inf"), 4)]
)
def test_the_spec_has_the_limit_in_force(kind: str, own: int | None, runs: float, in_force: int) -> None:
    """The lower one of the environment's and the worker's."""
    limited: Any = ChainEnv("never")
    if own is not None:
        limited = gymnasium.wrappers.TimeLimit(limited, own)
    factory = WorkerFactory(max_episode_length=runs, worker_class=type(KINDS[kind]()))
    worker = factory(0)
    worker.update_env(limited)
    worker.update_agent(lambda observation: 0)
    assert {in_force} == set(worker.rollout().lengths.tolist())
    assert in_force == worker.env_spec.max_episode_length


@pytest.mark.parametrize("n_envs", [0, -1])
def test_no_environments_are_one_clear_error(n_envs: int) -> None:
    """Where the worker, the factory or the sampler is made."""
    options: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs}}
    for make in (
        lambda: VecWorker(seed=1, max_episode_length=None, worker_number=0, n_envs=n_envs),
        lambda: WorkerFactory(**options),
        lambda: rollout_cli.MultiprocessingSampler(still, FaultyEnv, **options),
    ):
        with raises(ValueError, "factory-argument", n_envs) as caught:
            make()
        assert isinstance(caught.value, RolloutError)


# -- updates -----------------------------------------------------------------------------------------------------------


class Parameters:
    """Its parameter, in whichever form it came last, is what it does."""

    given: Any = None

    def get_action(self, observation: Any) -> Any:
        return int(
            np.asarray(list(self.given.values()) if isinstance(self.given, dict) else self.given).sum()
        ), {}

    def get_param_values(self) -> Any:
        return self.given

    def set_param_values(self, params: Any) -> None:
        self.given = params


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_agent_update(kind: str) -> None:
    """A tuple, dict or array is parameters, None changes nothing, and else it is a policy."""
    worker = ready(kind)
    for update, action in (
        (Parameters(), None),
        ((np.ones(1),), 1),
        (None, 1),
        ({"w": 0}, 0),
        (np.array([1]), 1),
    ):
        worker.update_agent(update)
        if action is not None:
            assert {action} == set(worker.rollout().actions.tolist())


class Longer(EnvUpdate):
    def __call__(self, old_env: Any = None) -> Any:
        return ChainEnv(length=old_env.length + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_env_update(kind: str) -> None:
    """An environment, an EnvUpdate, None; for several rows a list of them, one a row."""
    worker = ready(kind)
    wide = [] if kind == "default" else [([ChainEnv(length=2)] * 8, 2), ([Longer()] * 8, 3)]
    for update, length in [
        (ChainEnv(length=4), 4),
        (Longer(), 5),
        (None, 5),
        (NewEnvUpdate(ChainEnv), None),
        *wide,
    ]:
        worker.update_env(update)
        assert length is None or {length} == set(worker.rollout().lengths.tolist())


WRONG: list[Any] = [
    ("default", [ChainEnv()], TypeError),
    ("default", 3, TypeError),
    ("vec", "CartPole-v1", TypeError),
]
WRONG += [("vec", [3] * 8, TypeError), ("vec", [ChainEnv()] * 7, ValueError), ("vec", [], ValueError)]


@pytest.mark.parametrize(("kind", "update", "error"), WRONG)
def test_wrong_updates_leave_a_worker_as_it_was(kind: str, update: Any, error: type[Exception]) -> None:
    """The documented errors, which are of our tree, too; the worker goes on with what it had."""
    worker = ready(kind)
    env = worker.env
    with pytest.raises(error) as caught:
        worker.update_env(update)
    assert isinstance(caught.value, RolloutError)
    with pytest.raises(PolicyLoadError):
        worker.update_agent(object())
    assert (env, 0) == (worker.env, worker.env.closed)
    assert (1 if kind == "default" else 8) == len(worker.rollout())


@each_backend
@pytest.mark.parametrize(("agent", "env", "error"), [(None, 3, TypeError), ([act], None, ValueError)])
def test_wrong_updates_leave_a_sampler_as_it_was(
    make_sampler: MakeSampler, agent: Any, env: Any, error: type[Exception]
) -> None:
    """They are refused before any worker hears of them."""
    sampler, other = make_sampler(act), make_sampler(act)
    for one in (sampler, other):
        one.obtain_samples(0, 20, None)
    with pytest.raises(error) as caught:
        sampler.obtain_samples(1, 20, agent, env)
    assert isinstance(caught.value, RolloutError)
    assert FaultyEnv().observation_space == sampler.env_spec.observation_space
    assert_same_batches(other.obtain_samples(1, 20, None), sampler.obtain_samples(1, 20, None))
    assert other.n_started == sampler.n_started


# -- workers of one's own ----------------------------------------------------------------------------------------------


def overriding(base: type[DefaultWorker], name: str) -> type[DefaultWorker]:
    return type("Mine", (base,), {name: lambda self, *args: None})


REFUSED: list[Any] = [(one, name, {}) for one in (DefaultWorker, VecWorker) for name in VERBS]
REFUSED += [(VecWorker, "reset_agent", {}), (VecWorker, "predecessors", {})]
REFUSED += [(VecWorker, "step_env", {"vectorization": "native"})]


@pytest.mark.parametrize(("base", "name", "arguments"), REFUSED)
def test_overrides_that_samplers_cannot_use_are_refused(
    base: Any, name: str, arguments: dict[str, Any]
) -> None:
    """By name, with the places to override instead; never ignored."""
    with raises(UserCodeError, "worker-class-overrides", name) as caught:
        WorkerFactory(worker_class=overriding(base, name), worker_args=arguments)
    assert caught.value.hint


class CountingWorker(DefaultWorker):
    """Notes in its environment's infos how often each place was called."""

    def worker_init(self) -> None:
        self.calls = np.zeros(2, int)

    def reset_env(self, env: Any, number: int, seed: int) -> Any:
        self.calls[0] += 1
        return super().reset_env(env, number, seed)

    def step_env(self, env: Any, action: Any) -> Any:
        self.calls[1] += 1
        *result, info = env.step(action)
        return *result, {**info, "calls": self.calls}


class CountingRows(VecWorker):
    calls: Any
    worker_init, step_env = CountingWorker.worker_init, CountingWorker.step_env


@each_backend
def test_other_overrides_are_used(make_sampler: MakeSampler) -> None:
    """For each episode and each step, by every sampler, in both workers."""
    batch = make_sampler(worker_class=CountingWorker, n_workers=1).obtain_samples(0, 30, None)
    assert [len(batch), len(batch.rewards)] == batch.env_infos["calls"][-1].tolist()
    options: dict[str, Any] = {"worker_class": CountingRows, "worker_args": {"n_envs": 2}, "n_workers": 1}
    for agents in ((), (Batched(lambda n: {}),)):  # Of a function the rows take turns.
        batch = make_sampler(*agents, **options).obtain_exact_episodes(2, None)
        assert [0, len(batch.rewards)] == batch.env_infos["calls"].max(axis=0).tolist()


class Remembering:
    """Its state is how many steps it has taken since its reset, and decides what it does."""

    steps = 0

    def reset(self) -> None:
        self.steps = 0

    def get_action(self, observation: Any) -> Any:
        self.steps += 1
        return np.array([np.sin(self.steps), 0.0], np.float32), {"steps": self.steps}


class Believing(Remembering):
    """Its latent is drawn around what it believes, which every transition changes."""

    belief = latent = 0.0

    def reset_belief(self) -> None:
        self.belief, self.steps = 0.0, 0

    def sample_from_belief(self) -> None:
        self.latent = self.belief + float(np.random.random())

    def update_context(self, before: Any, action: Any, reward: float, after: Any) -> None:
        self.belief += float(np.sum(before) - np.sum(after)) + reward

    def get_action(self, observation: Any) -> Any:
        action, info = super().get_action(observation)
        return action, {**info, "latent": self.latent, "belief": self.belief}


def trials(batch: EpisodeBatch, n: int) -> list[bool]:
    """Return of each episode whether the policy remembered exactly the steps of its trial that came before."""
    found, before = [], 0
    for episode in batch.split():
        before = 0 if episode.numbers[0] % n == 0 else before
        found.append(
            episode.agent_infos["steps"].tolist()
            == list(range(before + 1, before + 1 + len(episode.rewards)))
        )
        before += len(episode.rewards)
    return found


@each_backend
@pytest.mark.parametrize(("kind", "policy"), [(TrialWorker, Remembering), (BeliefWorker, Believing)])
def test_the_workers_of_rl2_and_pearl(
    make_sampler: MakeSampler, kind: Any, policy: Any, tmp_path: Path
) -> None:
    """An episode is a function of its number, wherever its trial's others ran: two calls part a trial, an error too."""
    options: dict[str, Any] = {"worker_class": kind, "worker_args": {"n_episodes_per_trial": 3}}
    sampler = make_sampler(policy(), **options, n_workers=3)
    batches = [sampler.obtain_samples(itr, 61, None) for itr in range(2)]
    batch = EpisodeBatch.concatenate(*batches, sampler.obtain_exact_episodes(4, None))
    with sampler_of("local", policy(), **options, n_workers=1) as alone:
        assert_same_batches(batch_of(alone, alone.stream(Episodes(0, len(batch)))), batch)
    assert all(trials(batch, 3))
    env, rules = faulty("raise", 4, times=1, signs=tmp_path), rollout_cli.Supervision(on_env_error="retry")
    assert all(
        trials(make_sampler(policy(), env, supervision=rules, **options).obtain_samples(0, 60, None), 3)
    )
    assert 1 == len(list(tmp_path.iterdir()))


def test_predecessors_are_run_again_only_where_they_must() -> None:
    """Not by the worker that has just run them; one that has not runs them first, and records none of them."""
    begun: list[int] = []

    class Noting(TrialWorker):
        def reset_agent(self, agent: Any, number: int) -> None:
            begun.append(number)

    worker = Noting(seed=1, max_episode_length=None, worker_number=0, n_episodes_per_trial=3)
    worker.update_env(ChainEnv())
    worker.update_agent(BatchPolicy(worker.env_spec))
    worker.assign([range(4, 9)])
    while worker.has_work:
        worker.advance(-1.0)
    assert [3, 4, 5, 6, 7, 8] == begun
    assert [4, 5, 6, 7, 8] == worker.collect_episode().numbers.tolist()


def test_predecessors_may_be_an_array() -> None:
    """Of one number too, which numpy takes for false where it is 0; a seed has no room in its integers."""
    begun: list[int] = []

    class Noting(TrialWorker):
        def predecessors(self, number: int) -> Any:
            return np.arange(number - number % self.n_episodes_per_trial, number)

        def reset_agent(self, agent: Any, number: int) -> None:
            begun.append(number)

    worker = Noting(seed=1, max_episode_length=None, worker_number=0)
    worker.update_env(ChainEnv())
    worker.update_agent(RandomPolicy(worker.env_spec.action_space))
    for number in (1, 3):
        worker.assign([range(number, number + 1)])
        worker.rollout()
    assert [0, 1, 2, 3] == begun


# -- samplers of one's own ---------------------------------------------------------------------------------------------


class OwnSampler(Sampler):
    """Has the documents' methods and nothing else."""

    def __init__(self, agents: Any, envs: Any, *, worker_factory: WorkerFactory) -> None:
        self._factory, self._given = worker_factory, (agents, envs)

    def start_worker(self) -> None:  # type: ignore[override]
        self._worker = self._factory(0)
        self._worker.update_agent(self._given[0])
        self._worker.update_env(self._given[1])

    def obtain_samples(self, itr: Any, num_samples: Any, agent_update: Any, env_update: Any = None) -> Any:  # type: ignore[override]
        return self.obtain_exact_episodes(num_samples, agent_update)

    def obtain_exact_episodes(self, n_eps_per_worker: Any, agent_update: Any, env_update: Any = None) -> Any:  # type: ignore[override]
        return EpisodeBatch.concatenate(*[self._worker.rollout() for _ in range(n_eps_per_worker)])

    def shutdown_worker(self) -> None:
        self._worker.shutdown()


def test_a_sampler_of_ones_own() -> None:
    """It needs no more than the documents' methods; the rest is inherited and uses these."""
    with OwnSampler.from_worker_factory(WorkerFactory(seed=1, n_workers=1), still, FaultyEnv()) as sampler:
        assert vars(sampler).keys() == vars(pickle.loads(cloudpickle.dumps(sampler))).keys()
        sampler.start_worker()
        assert [2, 3] == [
            len(sampler.obtain_samples(0, 2, None)),
            len(sampler.obtain_exact_trajectories(3, None)),
        ]
    with raises(RolloutError, "sampler-abstract"):
        Sampler(still, FaultyEnv).start_worker()


# -- run_worker --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_run_worker(kind: str) -> None:
    """It starts, streams, stops at a full queue without losing an episode, goes on, takes updates, and exits."""
    context = multiprocessing.get_context("spawn")
    make: Any = queue.Queue if kind == "thread" else context.Queue
    run: Any = threading.Thread if kind == "thread" else context.Process
    commands, batches, agent = make(4), make(2), ConstantPolicy(0.1)
    # The older page's way, and the newer one's.
    given = cloudpickle.dumps(agent) if kind == "thread" else agent
    arguments = (WorkerFactory(seed=3, n_workers=2), commands, batches, 1, given, FaultyEnv())
    worker = run(target=run_worker, args=arguments, daemon=True)
    worker.start()
    commands.put(("start", (cloudpickle.dumps(None), None, 1)))
    got = [batches.get(timeout=60) for _ in range(2)]
    commands.put(("stop", ()))
    commands.put(("start", ({"value": 0.5}, None, 2)))
    while got[-1][1][1] == 1:
        got.append(batches.get(timeout=60))
        commands.put(("continue", ()))
    for place, (tag, (batch, version, number)) in enumerate(got):
        assert ("trajectory", 1, [OWN_EPISODES + place]) == (tag, number, batch.numbers.tolist())
        assert {0.1 if version == 1 else 0.5} == set(batch.agent_infos["value"].tolist())
    commands.put(("exit", ()))
    worker.join()
    assert kind == "thread" or 0 == worker.exitcode


def test_a_full_queue_ends_the_streaming() -> None:
    """The batch that did not fit comes first when the worker is told to continue; meanwhile nothing more is run."""
    calls: list[str] = []

    class Commands(queue.Queue):  # type: ignore[type-arg]
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            calls.append("wait" if block else "look")
            return super().get(block, timeout)

    commands, batches = Commands(), queue.Queue[Any](1)
    for command in (("continue", ()), ("continue", ()), ("stop", ()), ("continue", ()), ("exit", ())):
        commands.put(command)
    run_worker(WorkerFactory(seed=3), commands, batches, 0, still, FaultyEnv())
    assert ["wait", "look", "wait", "wait", "wait"] == calls
    assert 1 == batches.qsize()


def test_a_policy_and_an_environment_of_one_start_fit_each_other() -> None:
    """The policy before, which needs action masks here, is not asked whether it fits the new environment."""

    class Masked(ChainEnv):
        def action_masks(self) -> Any:
            return np.ones(1, bool)

    class NeedsMasks:
        def predict(self, observation: Any, action_masks: Any = None) -> Any:
            raise AssertionError("it never acts")

    commands, batches = queue.Queue[Any](), queue.Queue[Any]()
    for command in (("start", (still, NewEnvUpdate(FaultyEnv), 1)), ("exit", ())):
        commands.put(command)
    run_worker(WorkerFactory(seed=3), commands, batches, 0, NeedsMasks(), Masked())
    assert commands.empty()


def test_an_unknown_command() -> None:
    """The documented AssertionError, which is of our tree."""
    commands: Any = queue.Queue()
    commands.put(("jump", ()))
    with raises(AssertionError, "internal", "jump") as caught:
        run_worker(WorkerFactory(seed=3), commands, queue.Queue(), 0, still, FaultyEnv())
    assert isinstance(caught.value, InternalError)


# -- what a user sees --------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@each_backend
def test_progress(make_sampler: MakeSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a bar with the steps, or the episodes, that are asked for; without it none.

    Ray's own lines may come on the same stream at any time.
    """
    stream, sampler = Terminal(), make_sampler(still)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    sampler.obtain_samples(0, 40, None)
    assert "━" not in stream.getvalue()
    sampler.obtain_samples(0, 40, None, progress=True)
    sampler.obtain_exact_episodes(3, None, progress=True)
    assert all(text in stream.getvalue() for text in ("/40 steps", "6/6 episodes", "━"))


@each_backend
def test_an_error_of_a_worker_shows_the_users_traceback(make_sampler: MakeSampler) -> None:
    """As its cause, and the hint as a note: what Python prints of it needs nothing else."""
    with pytest.raises(EnvError) as caught:
        make_sampler(still, faulty("raise", 3)).obtain_samples(0, 100, None)
    text = "".join(traceback.format_exception(caught.value))
    cause = caught.value.__cause__
    assert "ValueError: the simulator is broken" in "".join(traceback.format_exception(cause))
    assert 1 == text.count("in step\n")
    assert text.rstrip().splitlines()[-1].startswith("hint: ")


def test_hints_name_arguments_in_python_and_flags_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same error, told to each in its own words."""
    context = WorkerContext(EpisodeRules(step_guard=50))
    worker = DefaultWorker.in_context(context, seed=1, max_episode_length=None, worker_number=0)
    worker.update_env(ChainEnv("never"))
    worker.update_agent(lambda observation: 0)
    with pytest.raises(EnvError) as caught:
        worker.rollout()
    assert all(option in caught.value.hint for option in ("max_episode_length=N", "episode_step_guard="))
    report(caught.value, as_json=False, verbose=False)
    hint = capsys.readouterr().err.partition("hint: ")[2]
    assert all(option in hint for option in ("--max-episode-length N ", "--episode-step-guard "))


@each_backend
def test_a_policy_that_cannot_be_pickled(make_sampler: MakeSampler) -> None:
    """Every sampler says so in the same words, as its argument or as an update."""
    policy = ConstantPolicy(0.1)
    policy.lock = threading.Lock()  # type: ignore[attr-defined]
    for use in (lambda: make_sampler(policy), lambda: make_sampler(still).obtain_samples(0, 9, policy)):
        with raises(PolicyLoadError, "pickle-failed", "TypeError") as caught:
            use()
        assert "module:attr" in caught.value.hint


class Batched:
    """Acts for a batch, with these infos."""

    def __init__(self, infos: Callable[[int], Any]) -> None:
        self._infos = infos

    def get_actions(self, observations: Any) -> Any:
        return np.zeros((len(observations), 2), np.float32), self._infos(len(observations))


INFOS: dict[str, tuple[Callable[[int], Any], str, list[object]]] = {
    "length": (lambda n: {"value": np.zeros(n + 1)}, "policy-row-count", [5, "'value'", 4]),
    "no rows": (lambda n: {"value": 1.0}, "policy-row-count", ["float", "'value'", 4]),
    "text": (lambda n: {"value": "four"}, "policy-row-count", ["str", "'value'", 4]),
    "nested": (lambda n: {"deep": {"er": [0]}}, "policy-row-count", [1, "'deep.er'", 4]),
    "no dict": (lambda n: [{}] * n, "policy-result", ["ndarray", "list"]),
}


@pytest.mark.parametrize("name", INFOS)
def test_infos_of_a_batch_are_checked(name: str) -> None:
    """Length and type; the error names the policy."""
    infos, code, values = INFOS[name]
    options: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 4}}
    with raises(PolicyError, code, "Batched.get_actions", *values):
        sampler_of("local", Batched(infos), **options).obtain_samples(0, 9, None)
