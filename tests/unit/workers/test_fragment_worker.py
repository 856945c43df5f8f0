"""FragmentWorker: parts of episodes that fit together, numbers of its own, and policies that change meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest

from rollout_cli._info_arrays import info_rows
from rollout_cli.config import CollectConfig
from rollout_cli.envs import describe_env
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch, StepType
from rollout_cli.errors import EnvError, InternalError, UsageError
from rollout_cli.samplers import EpisodesPerWorker, LocalSampler, MinTimesteps, MultiprocessingSampler
from rollout_cli.workers import FragmentWorker, WorkerFactory
from tests.support.envs import BothFlagsEnv, ChainEnv, EndlessEnv, FailingEnv, LateInfoEnv, ReusedBufferEnv
from tests.support.policies import GaragePolicy, GlobalNoisePolicy, LinearPolicy, OwnGeneratorPolicy, RecurrentPolicy
from tests.unit.workers.making import SEED, make_worker, run_numbers


def make(
    env: Callable[[], gymnasium.Env[Any, Any]] = ChainEnv,
    policy: Callable[[EnvSpec], Any] = LinearPolicy,
    *,
    max_episode_length: float | None = None,
    **options: Any,
) -> FragmentWorker:
    """Return a worker with three rows and four steps a call."""
    options = {"n_envs": 3, "timesteps_per_call": 4, **options}
    worker = FragmentWorker(seed=SEED, max_episode_length=max_episode_length, worker_number=0, **options)
    worker.update_env([env() for _ in range(options["n_envs"])])
    worker.update_agent(policy(describe_env(env())))
    return worker


def rollouts(worker: FragmentWorker, count: int) -> list[EpisodeBatch]:
    return [worker.rollout() for _ in range(count)]


def by_number(batches: Iterable[EpisodeBatch]) -> Mapping[int, list[EpisodeBatch]]:
    """Return the fragments of each episode, in the order in which they came."""
    found: dict[int, list[EpisodeBatch]] = {}
    for batch in batches:
        for fragment in batch.split():
            found.setdefault(int(fragment.numbers[0]), []).append(fragment)
    return found


def has_ended(fragment: EpisodeBatch) -> bool:
    return bool(fragment.terminated[0] or fragment.truncated[0])


def whole_episodes(batches: Iterable[EpisodeBatch]) -> Mapping[int, list[EpisodeBatch]]:
    """Return the fragments of the episodes that came to their end."""
    return {number: found for number, found in by_number(batches).items() if has_ended(found[-1])}


def test_each_call_takes_its_steps_in_every_row() -> None:
    """A call gives n_envs * timesteps_per_call steps, however many episodes begin and end in it."""
    assert [12] * 20 == [len(batch.rewards) for batch in rollouts(make(), 20)]
    assert [12] * 3 == [len(batch.rewards) for batch in rollouts(make(EndlessEnv, max_episode_length=1), 3)]


@pytest.mark.parametrize("env", [ChainEnv, BothFlagsEnv, LateInfoEnv, ReusedBufferEnv])
@pytest.mark.parametrize("policy", [LinearPolicy, RecurrentPolicy])
def test_fragments_put_together_are_the_episodes_of_a_default_worker(env: Any, policy: Any) -> None:
    """Rows, infos, seed and flags of an episode's fragments, joined, are the whole episode's, bit for bit."""
    found = whole_episodes(rollouts(make(env, policy), 12))
    assert len(found) > 20
    assert any(len(parts) > 1 for parts in found.values())
    numbers = sorted(found)
    chunk = run_numbers(make_worker(env(), policy), numbers)
    expected = EpisodeBatch.from_chunks(describe_env(env()), [chunk]).split()
    for number, episode in zip(numbers, expected, strict=True):
        parts = found[number]
        joined = EpisodeBatch.concatenate(*parts)
        for name in ("observations", "actions", "rewards", "step_types"):
            np.testing.assert_array_equal(getattr(episode, name), getattr(joined, name), err_msg=name)
        for name in ("last_observations", "terminated", "truncated", "seeds"):
            np.testing.assert_array_equal(getattr(episode, name), getattr(parts[-1], name), err_msg=name)
        for name in ("env_infos", "agent_infos"):
            steps = int(episode.lengths[0])
            assert info_rows(getattr(episode, name), steps) == info_rows(getattr(joined, name), steps)
        for part in parts:
            assert episode.episode_infos["length"].tolist() == part.episode_infos["length"].tolist()


def test_a_fragment_knows_where_it_begins_and_what_comes_next() -> None:
    """First steps count on, a last observation is what the next fragment begins with, and only the first has FIRST."""
    worker = make(EndlessEnv, n_envs=2, timesteps_per_call=3)
    first, second, third = rollouts(worker, 3)
    assert [[0, 0], [3, 3], [6, 6]] == [batch.first_steps.tolist() for batch in (first, second, third)]
    assert [[0, 1]] * 3 == [batch.numbers.tolist() for batch in (first, second, third)]
    np.testing.assert_array_equal(first.last_observations, second.observations[[0, 3]])
    np.testing.assert_array_equal(second.last_observations, third.observations[[0, 3]])
    assert [[StepType.FIRST, 1, 1] * 2, [StepType.MID, 1, 1] * 2] == [
        batch.step_types.tolist() for batch in (first, second)
    ]
    assert not (first.terminated | first.truncated | second.terminated | second.truncated).any()


def test_the_limit_counts_the_steps_of_all_fragments() -> None:
    """An episode is truncated after max_episode_length steps, though they were handed on in parts."""
    found = by_number(rollouts(make(EndlessEnv, max_episode_length=10, timesteps_per_call=4), 10))
    lengths = {number: [int(part.lengths[0]) for part in parts] for number, parts in found.items()}
    assert [4, 4, 2] == lengths[0]
    assert {10} == {sum(parts) for number, parts in lengths.items() if has_ended(found[number][-1])}
    assert found[0][-1].truncated.tolist() == [True]


def test_rows_number_their_episodes_by_themselves() -> None:
    """Row r of three runs episodes r, r + 3, r + 6, …; no number comes twice."""
    worker = make()
    ended = [int(number) for batch in rollouts(worker, 20) for number in batch.numbers[batch.terminated]]
    assert len(ended) == len(set(ended))
    for row in range(3):
        own = [number for number in ended if number % 3 == row]
        assert list(range(row, row + 3 * len(own), 3)) == own


@pytest.mark.parametrize(("stride", "number", "expected"), [(1, 0, [0, 1, 2]), (1, 4, [6, 4, 5]), (2, 7, [12, 8, 10])])
def test_going_on_from_a_number(stride: int, number: int, expected: list[int]) -> None:
    """Each row begins with its own lowest number from there on."""
    worker = make(EndlessEnv)
    worker.number_stride = stride
    worker.go_on_from(number)
    assert sorted(expected) == worker.rollout().numbers.tolist()


def test_assigned_numbers_are_run_first() -> None:
    """A row runs the numbers that it was assigned, and goes on from the last of them."""
    worker = make(EndlessEnv, max_episode_length=4)
    worker.assign([7, 4])
    assert [[0, 2, 4], [3, 5, 7], [6, 8, 10]] == [batch.numbers.tolist() for batch in rollouts(worker, 3)]


class DrawingPolicy(GaragePolicy):
    """Tells what it draws from a generator, in its info."""

    def __init__(self, env_spec: EnvSpec, draw: Callable[[], float] | None = None) -> None:
        super().__init__(env_spec)
        self.rng = np.random.default_rng(0)

    def place(self, observation: Any, row: int) -> float:
        return float(self.rng.random())


class GlobalDrawingPolicy(DrawingPolicy):
    """Draws from numpy's global generator."""

    def place(self, observation: Any, row: int) -> float:
        return float(np.random.random())


class OneByOne:
    """Acts on one observation at a time, and has parameters."""

    drawing: type[GaragePolicy] = GlobalDrawingPolicy

    def __init__(self, env_spec: EnvSpec) -> None:
        self._policy = self.drawing(env_spec)

    def get_action(self, observation: Any) -> Any:
        return self._policy.get_action(observation)

    def set_param_values(self, params: Any) -> None:
        self._policy.set_param_values(params)


class OneByOneAlone(OneByOne):
    """The same with a generator of its own."""

    drawing = DrawingPolicy


@pytest.mark.parametrize("policy", [DrawingPolicy, GlobalDrawingPolicy, OneByOne, OneByOneAlone])
@pytest.mark.parametrize("parameters", [False, True])
def test_each_call_draws_anew_though_the_policy_is_sent_again(policy: Any, parameters: bool) -> None:
    """An update in the middle of episodes does not put what the policy draws from back to where it was before."""
    worker = make(EndlessEnv, policy, n_envs=2, timesteps_per_call=3)
    draws = []
    for _ in range(6):
        draws += worker.rollout().agent_infos["place"].tolist()
        worker.update_agent({"gain": 1.0} if parameters else policy(describe_env(EndlessEnv())))
    assert 36 == len(set(draws))


@pytest.mark.parametrize("policy", [DrawingPolicy, GlobalDrawingPolicy, OneByOne])
def test_the_same_calls_give_the_same_fragments(policy: Any) -> None:
    """Two workers of one seed draw alike, and one of another seed does not, whatever came before in the process."""
    runs = []
    for seed in (1, 1, 2):
        np.random.random(7)
        worker = FragmentWorker(seed=seed, max_episode_length=None, worker_number=0, n_envs=2, timesteps_per_call=2)
        worker.update_env(ChainEnv())
        worker.update_agent(policy(describe_env(ChainEnv())))
        places = []
        for _ in range(5):
            places += worker.rollout().agent_infos["place"].tolist()
            worker.update_agent({"gain": 0.5})
        runs.append(places)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("policy", [GlobalNoisePolicy, OwnGeneratorPolicy])
def test_a_policy_that_acts_one_by_one_and_draws_is_that_of_a_default_worker(policy: Any) -> None:
    """Where each row has a policy of its own, what it draws follows from the episode's number, from the first on."""

    class Alone:
        def __init__(self, env_spec: EnvSpec) -> None:
            self.inner = policy(env_spec)

        def get_action(self, observation: Any) -> Any:
            return self.inner.get_action(observation)

    found = whole_episodes(rollouts(make(policy=Alone), 10))
    numbers = sorted(found)
    chunk = run_numbers(make_worker(ChainEnv(), Alone), numbers)
    actions = np.concatenate([part.actions for number in numbers for part in found[number]])
    assert chunk.actions[0].tolist() == actions.tolist()


def test_parameters_reach_a_running_episode_and_leave_its_state() -> None:
    """After the update the episode goes on under the new parameters; the policy still knows how many steps it took."""
    worker = make(EndlessEnv, CountingPolicy, n_envs=2, timesteps_per_call=2)
    before = worker.rollout()
    worker.update_agent({"gain": 3.0})
    after = worker.rollout()
    assert [[1, 2, 1, 2], [3, 4, 3, 4]] == [batch.agent_infos["count"].tolist() for batch in (before, after)]
    assert [1.0, 3.0] == [float(batch.agent_infos["gain"][0]) for batch in (before, after)]
    assert [2, 2] == after.first_steps.tolist()


def test_a_new_policy_takes_over_and_is_reset() -> None:
    """The episodes go on; the policy, which has seen nothing of them, is reset in all rows first."""
    worker = make(EndlessEnv, CountingPolicy, n_envs=2, timesteps_per_call=2)
    worker.rollout()
    worker.update_agent(CountingPolicy(describe_env(EndlessEnv())))
    after = worker.rollout()
    assert [1, 2, 1, 2] == after.agent_infos["count"].tolist()
    assert [2, 2] == after.first_steps.tolist()


class CountingPolicy(RecurrentPolicy):
    """Tells its gain, and how many steps each row has taken."""

    def get_actions(self, observations: Any) -> Any:
        actions, infos = super().get_actions(observations)
        return actions, {**infos, "count": self.counts.copy(), "gain": np.full(len(self.counts), self.gain)}


def test_a_new_environment_begins_new_episodes() -> None:
    """What ran in the old one is given up; no number is used again."""
    worker = make(EndlessEnv, n_envs=2)
    assert [0, 1] == worker.rollout().numbers.tolist()
    worker.update_env([EndlessEnv(), EndlessEnv()])
    batch = worker.rollout()
    assert ([2, 3], [0, 0]) == (batch.numbers.tolist(), batch.first_steps.tolist())


def test_an_error_names_the_step_of_the_episode() -> None:
    """The step in the message counts from the episode's begin, not from the fragment's."""
    worker = make(lambda: FailingEnv("step", 9), n_envs=1, timesteps_per_call=2)
    with pytest.raises(EnvError, match=r"step 8\)$"):
        rollouts(worker, 1000)


def test_nothing_to_collect() -> None:
    """Collecting twice in a row is a fault of the caller's."""
    worker = make()
    worker.rollout()
    with pytest.raises(InternalError, match="no step taken"):
        worker.collect_episode()


@pytest.mark.parametrize("option", ["n_envs", "timesteps_per_call"])
def test_at_least_one(option: str) -> None:
    """Both numbers are checked, and named."""
    options: dict[str, Any] = {option: 0}
    with pytest.raises(ValueError, match=f"{option} is 0, must be at least 1"):
        FragmentWorker(seed=0, max_episode_length=None, worker_number=0, **options)


# -- samplers ---------------------------------------------------------------------------------------------------------


def sampler(**options: Any) -> LocalSampler:
    policy = LinearPolicy(describe_env(ChainEnv()))
    options = {"n_workers": 2, "worker_args": {"n_envs": 3, "timesteps_per_call": 4}, **options}
    return LocalSampler(policy, ChainEnv(), seed=SEED, worker_class=FragmentWorker, **options)


def test_obtain_samples_gives_whole_rollouts_and_goes_on() -> None:
    """Each call gives the fewest rollouts with enough steps, and the next one continues the episodes of the last."""
    with sampler() as source:
        batches = [source.obtain_samples(itr, 20, None) for itr in range(6)]
    assert [24] * 6 == [len(batch.rewards) for batch in batches]
    assert 6 * 24 == source.total_env_steps
    assert 1 + max(int(batch.numbers.max()) for batch in batches) == source.next_number
    expected = by_number(rollouts(make(), 12))
    actual = by_number(batches)
    assert {number: _rewards(parts) for number, parts in expected.items()} == {
        number: _rewards(parts) for number, parts in actual.items()
    }


def _rewards(parts: Iterable[EpisodeBatch]) -> list[float]:
    return [reward for part in parts for reward in part.rewards.tolist()]


def test_updates_reach_the_worker() -> None:
    """Parameters of a call hold for its steps, and a new environment is stepped from then on."""
    policy = CountingPolicy(describe_env(EndlessEnv()))
    with LocalSampler(policy, EndlessEnv(), seed=0, n_workers=1, worker_class=FragmentWorker) as source:
        assert 1.0 == source.obtain_samples(0, 1, None).agent_infos["gain"][0]
        assert 4.0 == source.obtain_samples(1, 1, {"gain": 4.0}).agent_infos["gain"][0]
        batch = source.obtain_samples(2, 1, None, ChainEnv())
    assert not batch.first_steps.any()
    assert 8 == batch.numbers.min()


def test_workers_with_policies_of_their_own_take_turns() -> None:
    """With a list of policies, worker w runs the numbers that are w modulo the number of workers."""
    spec = describe_env(EndlessEnv())
    policies = [GaragePolicy(spec), GaragePolicy(spec)]
    options: dict[str, Any] = {"worker_args": {"n_envs": 2, "timesteps_per_call": 1}}
    with LocalSampler(policies, EndlessEnv(), seed=0, n_workers=2, worker_class=FragmentWorker, **options) as source:
        batches = [source.obtain_samples(itr, 2, None) for itr in range(4)]
    assert [[0, 2], [1, 3], [0, 2], [1, 3]] == [batch.numbers.tolist() for batch in batches]


def test_after_a_shutdown_no_number_is_used_again() -> None:
    """New workers begin new episodes, above all earlier ones."""
    with sampler() as source:
        source.obtain_samples(0, 12, None)
        used = source.next_number
        source.shutdown_worker()
        batch = source.obtain_samples(1, 12, None)
    assert batch.numbers.min() >= used
    assert not batch.first_steps.any()


def test_the_callers_generators_stay_as_they_are() -> None:
    """What the caller draws does not depend on the sampling."""
    np.random.seed(3)
    expected = np.random.random(3).tolist()
    np.random.seed(3)
    with LocalSampler(
        GlobalNoisePolicy(describe_env(ChainEnv())), ChainEnv(), n_workers=1, worker_class=FragmentWorker
    ) as source:
        actual = []
        for itr in range(3):
            source.obtain_samples(itr, 10, {"gain": 0.5})
            actual.append(float(np.random.random()))
    assert expected == actual


def test_after_an_error_new_episodes_begin() -> None:
    """The error tells where it happened; what ran then is given up, and the sampler works on."""
    policy = LinearPolicy(describe_env(ChainEnv()))
    with LocalSampler(policy, FailingEnv("step", 9), seed=0, n_workers=1, worker_class=FragmentWorker) as source:
        used: set[int] = set()
        with pytest.raises(EnvError, match=r"^env\.step raised ValueError") as caught:
            used.update(_numbers_until_it_fails(source))
        assert "step 9 is broken" in caught.value.details
        batch = source.obtain_samples(0, 8, None)
    assert not batch.first_steps.any()
    assert used.isdisjoint(batch.numbers.tolist())


def _numbers_until_it_fails(source: LocalSampler) -> Iterable[int]:
    while True:
        yield from source.obtain_samples(0, 8, None).numbers.tolist()


@pytest.mark.parametrize("steps", [0, -1])
def test_samples_are_at_least_one(steps: int) -> None:
    """As for whole episodes."""
    with sampler() as source, pytest.raises(ValueError, match="must be at least 1"):
        source.obtain_samples(0, steps, None)


def test_elsewhere_it_is_refused_by_name() -> None:
    """Whatever needs whole episodes says so before anything runs, and what to use."""
    policy, where = (
        LinearPolicy(describe_env(ChainEnv())),
        "FragmentWorker gives parts of episodes, which {} cannot use",
    )
    factory = WorkerFactory(n_workers=1, worker_class=FragmentWorker)
    with pytest.raises(UsageError, match=where.format("MultiprocessingSampler")) as caught:
        MultiprocessingSampler(policy, ChainEnv(), worker_factory=factory)
    assert "LocalSampler.obtain_samples" in caught.value.hint
    with sampler() as source:
        with pytest.raises(UsageError, match=where.format("obtain_exact_episodes")):
            source.obtain_exact_episodes(1, None)
        for plan in (MinTimesteps(1), EpisodesPerWorker(1)):
            with pytest.raises(UsageError, match=where.format("a stream of whole episodes")):
                next(source.stream(plan))


@pytest.mark.parametrize("kind", ["multiprocessing", "local"])
def test_a_dataset_refuses_it(kind: Any, tmp_path: Any) -> None:
    """`--worker-class` with it ends before a folder is made."""
    from rollout_cli.collect import collect

    config = CollectConfig(
        timesteps=5, workers=1, sampler=kind, worker_class="rollout_cli.workers:FragmentWorker", output=tmp_path / "out"
    )
    with pytest.raises(UsageError, match="FragmentWorker gives parts of episodes, which a dataset cannot use"):
        collect(config)
    assert not (tmp_path / "out").exists()
