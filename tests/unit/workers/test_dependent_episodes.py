"""Episodes that depend on the one before, as the sample RL2Worker's do: still functions of their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.config import CollectConfig, EpisodeRange
from rollout_cli.samplers import Episodes, EpisodesPerWorker, LocalSampler, MinTimesteps, MultiprocessingSampler, Plan
from rollout_cli.workers import DefaultWorker, WorkerFactory
from sample_configs.rl2_worker import Doors, RL2Worker, Searcher
from tests.unit.workers.making import SEED, assert_same_episodes, run_numbers

TRIAL = 4


def make(env: Any = None, policy: Any = None, **options: Any) -> RL2Worker:
    worker = RL2Worker(seed=SEED, max_episode_length=None, worker_number=0, **options)
    worker.update_env(env or Doors())
    worker.update_agent(policy or Searcher())
    return worker


def tasks(chunk: Chunk) -> list[int]:
    return [int(task) for task in chunk.episode_infos.to_arrays()["task"]]


def returns(chunk: Chunk) -> list[float]:
    return [float(sum(rewards)) for rewards in np.split(chunk.rewards, np.cumsum(chunk.lengths)[:-1])]


def test_a_trial_has_one_task_and_a_policy_that_learns_it() -> None:
    """The door is the same in a trial's episodes and is found in the first; another trial has another one."""
    chunk = run_numbers(make(), range(10 * TRIAL))
    by_trial = np.array(tasks(chunk)).reshape(10, TRIAL)
    assert (by_trial == by_trial[:, :1]).all()
    assert {0, 1, 2} == set(by_trial[:, 0].tolist())
    first, *others = np.array(returns(chunk)).reshape(10, TRIAL).T
    assert (3 - by_trial[:, 0]).tolist() == first.tolist()
    assert all((later == 3.0).all() for later in others)


@pytest.mark.parametrize("numbers", [[2], [3, 5], [1, 2, 9, 10, 11], [6, 7, 4, 5]])
def test_an_episode_is_the_same_whatever_was_run_before(numbers: list[int]) -> None:
    """What leads to it is run and not recorded, where that did not just end in this worker."""
    whole = run_numbers(make(), range(12))
    actual = run_numbers(make(), numbers)
    expected = concatenate([whole.episodes(number, number + 1) for number in sorted(numbers)])
    assert_same_episodes(expected, actual)


class StepsCounted(Doors):
    """Counts the steps of all its episodes."""

    total = 0

    def step(self, action: Any) -> Any:
        self.total += 1
        return super().step(action)


def test_nothing_is_run_twice_in_a_trial() -> None:
    """Numbers that follow each other in one worker need no episode but their own (the first one is run again once)."""
    env = StepsCounted()
    worker = make(env)
    run_numbers(worker, [0])
    before = env.total
    run_numbers(worker, range(1, 2 * TRIAL))
    assert 3 * (2 * TRIAL - 1) == env.total - before


@pytest.mark.parametrize("interruption", ["retract", "policy", "parameters", "env"])
def test_a_trial_that_was_interrupted_is_led_up_to_again(interruption: str) -> None:
    """After episodes were given up, or the policy or environment changed, the policy's memory is not trusted."""

    class WithParameters(Searcher):
        def set_param_values(self, params: Any) -> None:
            self._door, self._found = 0, False

    whole = run_numbers(make(policy=WithParameters()), range(TRIAL))
    worker = make(policy=WithParameters())
    run_numbers(worker, [0, 1])
    if interruption == "retract":
        worker.assign([TRIAL])
        worker.advance(-1.0)
        worker.retract()
    elif interruption == "env":
        worker.update_env(Doors())
    else:
        worker.update_agent({} if interruption == "parameters" else WithParameters())
    assert_same_episodes(whole.episodes(2, 4), run_numbers(worker, [2, 3]))


class Remembering(Doors):
    """Counts the episodes of its trial, and tells the count."""

    count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        self.count = self.count + 1 if options and options["place"] else 0
        return observation, {**info, "count": self.count}


class PlaceTellingWorker(RL2Worker):
    """Tells the environment which episode of its trial begins."""

    def reset_options(self, number: int) -> dict[str, Any]:
        return {**super().reset_options(number), "place": self._place(number)}


def test_a_new_environment_remembers_nothing_of_the_trial() -> None:
    """It is brought to where the trial stands before the next episode."""
    worker = PlaceTellingWorker(seed=SEED, max_episode_length=None, worker_number=0)
    worker.update_env(Remembering())
    worker.update_agent(Searcher())
    run_numbers(worker, [0, 1])
    fresh = Remembering()
    fresh.count = 40
    worker.update_env(fresh)
    assert [2, 3, 0] == run_numbers(worker, [2, 3, 4]).episode_infos.to_arrays()["count"].tolist()


def test_an_episode_that_is_run_again_is_led_up_to_again() -> None:
    """Where a generator appears in the middle of a trial, all of the trial so far is run again for that episode."""

    class Late(Searcher):
        episodes = 0

        def get_action(self, observation: Any) -> Any:
            if observation[-1] == 1.0:
                type(self).episodes += 1
            noise = np.random.random() if type(self).episodes == 2 else 0.0
            action, info = super().get_action(observation)
            return action, {**info, "noisy": noise > 0}

    chunk = run_numbers(make(policy=Late()), range(TRIAL))
    expected = run_numbers(make(), range(TRIAL))
    assert expected.actions[0].tolist() == chunk.actions[0].tolist()
    # Episodes 0 and 1, and once more 0 for the sake of 1, and 1 to 3; and what the first look cost.
    assert Late.episodes >= 6


def test_giving_up_looks_at_the_number_that_is_wanted() -> None:
    """A ceiling below the wanted number ends what is run for its sake."""
    worker = make()
    worker.assign([3])
    worker.advance(-1.0)
    worker.retract(above=2)
    assert not worker.has_work


PLANS: list[Plan] = [MinTimesteps(100), Episodes(3, 30), EpisodesPerWorker(6)]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("n_workers", [1, 3])
def test_every_sampler_gives_the_same_trials(plan: Plan, n_workers: int) -> None:
    """However many workers share the numbers, and wherever the plan begins, episodes are those of one worker."""
    factory = WorkerFactory(n_workers=n_workers, seed=SEED, worker_class=RL2Worker)
    for kind in (LocalSampler, MultiprocessingSampler):
        with kind(Searcher(), Doors(), worker_factory=factory) as sampler:
            chunks = sorted(sampler.stream(plan), key=lambda chunk: int(chunk.numbers[0]))
        actual = concatenate(chunks)
        first, last = int(actual.numbers[0]), int(actual.numbers[-1])
        assert_same_episodes(run_numbers(make(), range(last + 1)).episodes(first, last + 1), actual)


def test_with_lists_a_trial_is_a_block_of_one_workers_own_numbers() -> None:
    """Where every worker has a policy of its own, its trials consist of the numbers that it owns."""
    factory = WorkerFactory(n_workers=2, seed=SEED, worker_class=RL2Worker)
    with LocalSampler([Searcher(), Searcher()], Doors(), worker_factory=factory) as sampler:
        chunk = concatenate(list(sampler.stream(Episodes(0, 4 * TRIAL))))
    for worker in (0, 1):
        own = np.array(tasks(chunk))[worker::2].reshape(2, TRIAL)
        assert (own == own[:, :1]).all()
        assert [3.0] * 3 == np.array(returns(chunk))[worker::2][1:TRIAL].tolist()


def test_a_dataset_of_trials_has_the_same_bytes(tmp_path: Path) -> None:
    """One row an episode, numbers rising, and no byte depends on who ran which."""
    from rollout_cli.collect import collect

    found = []
    for workers, sampler in ((1, "local"), (3, "multiprocessing")):
        path = tmp_path / f"{workers}"
        config = CollectConfig(
            episodes=EpisodeRange(0, 40),
            env="sample_configs.rl2_worker:Doors",
            policy="sample_configs.rl2_worker:Searcher",
            worker_class="sample_configs.rl2_worker:RL2Worker",
            workers=workers,
            sampler=sampler,  # type: ignore[arg-type]
            seed=3,
            output=path,
        )
        assert 40 == collect(config).episodes
        found.append({file.relative_to(path): file.read_bytes() for file in sorted((path / "data").rglob("*.parquet"))})
    assert found[0] == found[1]
    assert found[0]


def test_other_workers_depend_on_nothing() -> None:
    """A DefaultWorker's episodes follow nothing, get no options, and each begins with a reset policy."""
    worker = DefaultWorker(seed=SEED, max_episode_length=None, worker_number=0)
    worker.update_env(Doors())
    worker.update_agent(Searcher())
    assert (None, None) == (worker.follows(7), worker.reset_options(7))
    assert [3.0] * 5 == returns(run_numbers(worker, range(5)))
