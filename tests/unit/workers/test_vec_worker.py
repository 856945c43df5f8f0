"""VecWorker: rows take their own next numbers, one policy call a step, updates by row, failures that name their row."""

from __future__ import annotations

import copy
import math
import pickle
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.envs import NewEnvUpdate, SetTaskUpdate, as_env_source, describe_env
from rollout_cli.errors import EnvError, EnvLoadError, InternalError, PolicyError, PolicyLoadError, RolloutError
from rollout_cli.policies import policy_source
from rollout_cli.samplers import Episodes, EpisodesPerWorker, LocalSampler, MultiprocessingSampler
from rollout_cli.seeding import derive_seed
from rollout_cli.workers import VecWorker, recorder
from tests.support import envs, policies, rows
from tests.unit.workers.making import SEED, assert_same_episodes, make_worker, run_numbers

Row = rows.RowEnv


def make_vec(
    row_envs: Sequence[gymnasium.Env[Any, Any]],
    policy: Callable[[Any], Any] = rows.TablePolicy,
    *,
    max_episode_length: float | None = None,
) -> VecWorker:
    """Return worker number 2 with these environments, one a row."""
    worker = VecWorker(seed=SEED, max_episode_length=max_episode_length, worker_number=2, n_envs=len(row_envs))
    worker.update_env(list(row_envs))
    worker.update_agent(policy(describe_env(row_envs[0])))
    return worker


def tags(chunk: Chunk) -> dict[int, int]:
    """Return which environment ran each episode."""
    starts = np.cumsum(chunk.lengths) - chunk.lengths
    infos = chunk.env_infos.to_dicts()
    return {number: infos[start]["tag"] for number, start in zip(chunk.numbers.tolist(), starts.tolist(), strict=True)}


# -- rows and numbers --------------------------------------------------------------------------------------------------


def test_a_number_runs_in_its_own_row() -> None:
    """Number i runs in row i % n_envs, in whatever order and portions numbers come."""
    worker = make_vec([Row(tag) for tag in range(3)])
    chunk = run_numbers(worker, [7, 0, 5, 4, 13, 9, 2])
    assert {number: number % 3 for number in (0, 2, 4, 5, 7, 9, 13)} == tags(chunk)
    assert {1: 1, 14: 2} == tags(run_numbers(worker, [14, 1]))


def test_numbers_of_a_worker_that_owns_every_third() -> None:
    """Where a worker owns every m-th number, they go round its rows."""
    worker = make_vec([Row(tag) for tag in range(2)])
    worker.number_stride = 3
    assert {1: 0, 4: 1, 7: 0, 10: 1} == tags(run_numbers(worker, [1, 4, 7, 10]))


def test_row_wise_policies_take_any_free_row() -> None:
    """Where the row cannot be seen, the next number goes to whichever row is free: none waits for a long episode."""
    worker = make_vec([Row(0, length=9), Row(1, length=1)], rows.AlonePolicy)
    assert {0: 0, **dict.fromkeys(range(1, 6), 1)} == tags(run_numbers(worker, range(6)))


def test_every_row_takes_its_next_number_by_itself() -> None:
    """A row whose episode ends begins its next number in the next step, while the others go on."""
    worker = make_vec([Row(0, length=1), Row(1, length=4)])
    worker.assign(range(8))
    finished = []
    while worker.has_work:
        worker.start_episode()
        worker.step_episode()
        finished.append(sorted(worker.finished_numbers))
    assert [[0], [0, 2], [0, 2, 4], [0, 1, 2, 4, 6]] == finished[:4]
    assert 16 == len(finished)


def test_episodes_are_handed_on_without_gaps() -> None:
    """An episode that ends before a lower number is held back until that one ended: chunks are cut at every gap."""
    worker = make_vec([Row(0, length=1), Row(1, length=4)])
    worker.assign(range(8))
    finished = []
    while worker.has_work:
        worker.advance(-1.0)
        finished.append(worker.finished_numbers.copy())
    assert [[0], [0], [0], [0, 1, 2]] == [sorted(numbers) for numbers in finished[:4]]
    assert list(range(8)) == sorted(finished[-1])


def test_a_long_episode_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a quarter of a second, what has ended is handed on, gap or not."""
    worker = make_vec([Row(0, length=1), Row(1, length=9)])
    monkeypatch.setattr(recorder, "HOLD_SECONDS", 0.0)
    worker.assign(range(8))
    for _ in range(3):
        worker.advance(-1.0)
    assert [0, 2, 4] == sorted(worker.finished_numbers)


def test_what_is_held_is_not_lost_and_not_run_twice() -> None:
    """Where all numbers are taken back, what had ended can be taken; above a ceiling, it is dropped with the rest."""
    stopped, capped = (make_vec([Row(0, length=1), Row(1, length=9)]) for _ in range(2))
    for worker in (stopped, capped):
        worker.assign(range(8))
        for _ in range(3):
            worker.advance(-1.0)
        assert [0] == worker.finished_numbers
    stopped.retract()
    assert [0, 2, 4] == sorted(stopped.finished_numbers)
    capped.retract(above=2)
    while capped.has_work:
        capped.advance(-1.0)
    assert [0, 1, 2] == sorted(capped.finished_numbers)


def test_what_is_held_outlives_an_error() -> None:
    """An environment that fails takes only its own episode along."""

    class Failing(Row):
        def step(self, action: Any) -> Any:
            if self.resets == 2:
                raise ValueError("the second episode fails")
            return super().step(action)

    worker = make_vec([Row(0, length=1), Failing(1, length=4)])
    worker.assign(range(40))
    with pytest.raises(EnvError):
        worker.advance(1e9)
    assert [0, 1, 2, 4, 6] == sorted(worker.finished_numbers)[:5]


def test_no_episode_is_begun_in_vain() -> None:
    """There are as many resets as episodes, however unequal rows are."""
    made = [Row(tag) for tag in range(4)]
    assert 22 == run_numbers(make_vec(made), range(22)).n_episodes
    assert 22 == sum(env.resets for env in made)


@pytest.mark.parametrize("n_envs", [0, -1])
def test_a_worker_has_at_least_one_row(n_envs: int) -> None:
    """No rows are refused."""
    with pytest.raises(ValueError, match=f"n_envs is {n_envs}, must be at least 1"):
        VecWorker(seed=0, max_episode_length=None, worker_number=0, n_envs=n_envs)


# -- how the policy is called ------------------------------------------------------------------------------------------


def calls_of(lengths: Sequence[int], numbers: Sequence[int]) -> list[tuple[Any, ...]]:
    """Run numbers in rows whose episodes have these lengths; return how the policy was called."""
    worker = make_vec([Row(tag, length) for tag, length in enumerate(lengths)], rows.LoggingPolicy)
    policy: Any = worker._agent.policy
    run_numbers(worker, numbers)
    calls: list[tuple[Any, ...]] = policy.calls
    return calls


def test_resets_have_masks() -> None:
    """The first reset has all rows, also those that do not begin; later ones have the rows that begin, and no other."""
    calls = calls_of([1, 3, 2, 1], [0, 1, 2, 4, 5, 8])
    resets = [mask for verb, mask, *_ in calls if verb == "reset"]
    assert [[True] * 4, [True, False, False, False], [True, False, False, False], [False, True, False, False]] == resets


def test_rows_are_seeded_before_they_are_reset() -> None:
    """Each reset comes right after `seed_rows` with the same mask and, in those rows, the policy's seeds."""
    calls = [call for call in calls_of([1, 3, 2], range(8)) if call[0] != "act"]
    numbers = iter([{0: 0, 1: 1, 2: 2}, {0: 3}, {0: 6, 2: 5}, {1: 4}, {1: 7}])
    for seeding, reset in zip(calls[::2], calls[1::2], strict=True):
        assert ("seed_rows", "reset", seeding[1]) == (seeding[0], reset[0], reset[1])
        expected = {row: derive_seed(SEED, number, "policy") for row, number in next(numbers).items()}
        assert expected == {row: seed for row, seed in enumerate(seeding[2]) if seeding[1][row]}
    assert [] == list(numbers)


def test_a_new_policy_is_told_of_all_rows_again() -> None:
    """After an update, the first reset has all rows once more."""
    worker = make_vec([Row(tag, 1) for tag in range(2)], rows.LoggingPolicy)
    run_numbers(worker, range(2))
    worker.update_agent({"action": 1})
    policy: Any = worker._agent.policy
    policy.calls.clear()
    run_numbers(worker, [4])
    assert [True, True] == policy.calls[1][1]


def test_idle_rows_repeat_what_they_saw() -> None:
    """A batch has all rows: one that has not run yet shows zeros, one that is idle what its policy saw last.

    The policy overwrites its batches, and sees nothing of that again.
    """
    calls = calls_of([2, 4, 1], [0, 1])
    batches = [columns[0] for verb, columns, *_ in calls if verb == "act"]
    assert {3} == {len(batch) for batch in batches}
    assert [[0, 0, 0]] * 4 == [batch[2] for batch in batches]
    assert [0, 1, 1, 1] == [batch[0][0] for batch in batches]
    assert batches[1][0] == batches[2][0] == batches[3][0]


class BrokenBatch(policies.GaragePolicy):
    """Gives its actions as another batch.

    Args:
        broken: Makes the other batch.
    """

    def __init__(self, env_spec: Any, broken: Callable[[Any], Any]) -> None:
        super().__init__(env_spec)
        self.broken = broken

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        actions, infos = super().get_actions(observations)
        return self.broken(actions), infos


BATCHES: list[tuple[Callable[[Any], Any], str]] = [
    (lambda actions: actions[:-1], "get_actions gave 2 for 3 observations, expected one a row"),
    (lambda actions: np.repeat(actions, 2), "get_actions gave 6 for 3 observations, expected one a row"),
    (lambda actions: actions[0], "policy.get_actions raised TypeError"),
    (lambda actions: np.stack([actions, actions], 1), "the policy gave a bad action: got list"),
]


@pytest.mark.parametrize(("broken", "message"), BATCHES)
def test_batches_of_another_size_are_refused(broken: Callable[[Any], Any], message: str) -> None:
    """What does not have one action a row is the policy's error, and says where."""
    worker = make_vec([Row(tag) for tag in range(3)], lambda spec: BrokenBatch(spec, broken))
    with pytest.raises(PolicyError, match=rf"{message}.* \(worker 2, episode 0, seed \d+, step 0\)$"):
        run_numbers(worker, range(3))


def test_a_batch_whose_parts_differ_is_refused() -> None:
    """Each leaf of a Dict action has one value a row."""

    class Uneven(rows.TablePolicy):
        def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
            actions, infos = super().get_actions(observations)
            return {**actions, "turn": actions["turn"][:-1]}, infos

    with pytest.raises(PolicyError, match="get_actions gave 1 and 2 for 2 observations"):
        run_numbers(make_vec([envs.DictEnv(), envs.DictEnv()], Uneven), range(2))


class MaskedInfoPolicy(policies.GaragePolicy):
    """Tells something of every second row only, and of the first row alone a vector."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        actions, _ = super().get_actions(observations)
        numbers = np.ma.MaskedArray(np.arange(4), np.arange(4) % 2 == 1)
        vectors = np.ma.MaskedArray(np.ones((4, 2)), np.repeat(np.arange(4) > 0, 2).reshape(4, 2))
        return actions, {"number": numbers, "vector": vectors, "nested": {"row": np.arange(4)}}


def test_infos_that_some_rows_lack() -> None:
    """A masked value is none; nested infos are taken apart by row."""
    chunk = run_numbers(make_vec([Row(tag, 1) for tag in range(4)], MaskedInfoPolicy), range(4))
    infos = chunk.agent_infos.to_dicts()
    expected = [{"number", "vector", "nested.row"}, {"nested.row"}, {"number", "nested.row"}, {"nested.row"}]
    assert expected == [set(row) for row in infos]
    assert [0, 1, 2, 3] == [row["nested.row"] for row in infos]


# -- how episodes end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "flags"), [("terminated", (True, False)), ("truncated", (False, True)), ("both", (True, True))]
)
def test_flags_and_last_observations(ends: Any, flags: tuple[bool, bool]) -> None:
    """However an episode ends, its flags are kept, and the last observation is the one after the end."""
    chunk = run_numbers(make_vec([Row(tag, ends=ends) for tag in range(3)]), range(9))
    assert {flags} == set(zip(chunk.terminated.tolist(), chunk.truncated.tolist(), strict=True))
    assert chunk.lengths.tolist() == chunk.last_observations[0][:, 0].tolist()


def test_the_limit_truncates_each_row() -> None:
    """`max_episode_length` counts each row's own steps; an end at the limit is both."""
    made = [Row(0, length=3), Row(1, length=5), Row(2, length=9)]
    chunk = run_numbers(make_vec(made, max_episode_length=5), range(6))
    assert [3, 5, 5] * 2 == chunk.lengths.tolist()
    assert [True, True, False] * 2 == chunk.terminated.tolist()
    assert [False, True, True] * 2 == chunk.truncated.tolist()


def test_the_limit_truncates_rows_that_began_at_other_times() -> None:
    """A row that began two steps after another comes to the limit two steps later."""
    worker = make_vec([Row(tag, length=100) for tag in range(2)], max_episode_length=5)
    worker.assign([0])
    worker.start_episode()
    ended = [worker.step_episode() for _ in range(2)]
    worker.assign([1])
    worker.start_episode()
    ended += [worker.step_episode() for _ in range(5)]
    assert [False] * 4 + [True, False, True] == ended
    assert [5, 5] == worker.collect_episode().lengths.tolist()


def test_a_time_limit_truncates() -> None:
    """A TimeLimit wrapper's truncation is the environment's own."""
    made = [TimeLimit(envs.EndlessEnv(), 4) for _ in range(2)]
    chunk = run_numbers(make_vec(made), range(4))
    assert ([4] * 4, [False] * 4, [True] * 4) == (
        chunk.lengths.tolist(),
        chunk.terminated.tolist(),
        chunk.truncated.tolist(),
    )


@pytest.mark.parametrize("limit", [None, 13])
def test_environments_built_by_id(limit: int | None) -> None:
    """Without gymnasium's wrappers, which are taken off there, the episodes are those with them."""
    source = as_env_source("Pendulum-v1")
    worker = VecWorker(seed=SEED, max_episode_length=limit, worker_number=2, n_envs=3)
    worker.update_env(source)
    worker.update_agent(rows.AlonePolicy(worker.env_spec))
    wrapped = make_worker(gymnasium.make("Pendulum-v1"), rows.AlonePolicy, max_episode_length=limit)
    assert_same_episodes(run_numbers(wrapped, range(5)), run_numbers(worker, range(5)))
    worker.shutdown()


# -- garage's verbs ----------------------------------------------------------------------------------------------------


def test_rollout_loses_no_assigned_number() -> None:
    """Each rollout ends with the first episode that does, and goes on with the others: in the end all were run."""
    worker = make_vec([Row(tag) for tag in range(3)])
    worker.assign(range(9))
    batches = []
    while worker.has_work:
        batches.append(worker.rollout())
    assert list(range(9)) == sorted(number for batch in batches for number in batch.numbers.tolist())
    assert len(batches) > 3


def test_without_assigned_numbers_each_number_comes_once() -> None:
    """`rollout` runs the number after the highest there was, one at a time."""
    worker = make_vec([Row(tag) for tag in range(3)])
    for numbers in ([4], [1]):
        run_numbers(worker, numbers)
    assert [5, 6, 7, 8] == [int(worker.rollout().numbers[0]) for _ in range(4)]


def test_verbs_out_of_order_are_refused() -> None:
    """Stepping or collecting without an episode says so, and so does starting without policy or environment."""
    worker = make_vec([Row()])
    for verb in ("step_episode", "collect_episode"):
        with pytest.raises(InternalError, match=f"{verb} was called with no"):
            getattr(worker, verb)()
    for missing in (lambda w: None, lambda w: w.update_env(Row())):
        other = VecWorker(seed=0, max_episode_length=None, worker_number=0, n_envs=2)
        missing(other)
        with pytest.raises(InternalError, match="update_agent and update_env"):
            other.start_episode()


def test_pickling_is_refused() -> None:
    """A worker holds what belongs to its process."""
    with pytest.raises(InternalError, match="VecWorker cannot be pickled"):
        pickle.dumps(make_vec([Row()]))


def test_retracting_gives_up_what_is_above() -> None:
    """Waiting and running numbers above a ceiling are dropped, the others run on; without a ceiling, all go."""
    worker = make_vec([Row(tag, 3) for tag in range(3)])
    worker.assign(range(8))
    worker.advance(-1.0)
    worker.retract(above=1)
    worker.advance(math.inf)
    assert ([0, 1], False) == (sorted(worker.finished_numbers), worker.has_work)
    worker.assign([9, 10, 12])
    worker.advance(-1.0)
    worker.retract()
    assert (False, False) == (worker.running, worker.has_work)
    assert [0, 1] == sorted(worker.finished_numbers)


def test_numbers_come_in_between() -> None:
    """Numbers that are assigned while others run wait for their rows, the lowest first."""
    worker = make_vec([Row(tag, 2) for tag in range(2)])
    worker.assign([0, 8])
    worker.advance(-1.0)
    worker.assign([6, 3])
    order = []
    while worker.has_work:
        worker.advance(-1.0)
        order += [number for number in worker.finished_numbers if number not in order]
    assert [0, 3, 6, 8] == order


# -- updates -----------------------------------------------------------------------------------------------------------


def test_a_new_policy_in_the_middle_drops_what_runs() -> None:
    """After an update, no step of the old policy is left, and nothing of the new one's episodes is missing."""
    worker = make_vec([Row(tag, 4) for tag in range(2)])
    worker.assign(range(4))
    worker.advance(-1.0)
    worker.retract()
    worker.update_agent({"action": 1})
    chunk = run_numbers(worker, range(4))
    assert ([4] * 4, {1}) == (chunk.lengths.tolist(), set(chunk.actions[0].tolist()))


class GainPolicy(rows.AlonePolicy):
    """Takes parameters, and has no get_actions."""

    gain = 1

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self.gain, {}

    def set_param_values(self, params: dict[str, Any]) -> None:
        self.gain = params["gain"]


@pytest.mark.parametrize("source", [False, True])
def test_parameters_reach_every_row(source: bool) -> None:
    """Where each row has a copy of the policy, each copy takes the parameters, and keeps those it has."""
    worker = make_vec([Row(tag, 2) for tag in range(3)])
    if source:
        sys.modules.setdefault(__name__, sys.modules[GainPolicy.__module__])
    worker.update_agent(policy_source(f"{__name__}:GainPolicy") if source else GainPolicy(worker.env_spec))
    assert [1] * 6 == run_numbers(worker, range(3)).actions[0].tolist()
    worker.update_agent({"gain": 0})
    assert [0] * 6 == run_numbers(worker, range(3)).actions[0].tolist()
    worker.update_env(NewEnvUpdate(Row))
    assert {0} == set(run_numbers(worker, range(3)).actions[0].tolist())


class LockedPolicy(rows.AlonePolicy):
    """Cannot be copied."""

    def __init__(self, env_spec: Any) -> None:
        super().__init__(env_spec)
        self.lock = threading.Lock()


def test_a_policy_that_cannot_be_copied_is_refused() -> None:
    """Several rows need several copies of a policy that acts on one observation."""
    with pytest.raises(PolicyLoadError, match="LockedPolicy cannot be pickled") as caught:
        make_vec([Row(), Row()], LockedPolicy)
    assert "get_actions" in caught.value.hint


def test_one_environment_is_copied_for_each_row() -> None:
    """An environment that is given itself runs in the first row, and copies of it in the others."""
    env = Row()
    worker = VecWorker(seed=SEED, max_episode_length=None, worker_number=2, n_envs=3)
    worker.update_env(env)
    worker.update_agent(rows.TablePolicy(worker.env_spec))
    chunk = run_numbers(worker, range(6))
    assert 2 == env.resets
    assert_same_episodes(run_numbers(make_worker(Row(), rows.TablePolicy), range(6)), chunk)


def test_lists_have_one_entry_a_row() -> None:
    """A list of another length is refused."""
    worker = VecWorker(seed=SEED, max_episode_length=None, worker_number=2, n_envs=3)
    with pytest.raises(EnvLoadError, match="one environment a row has 3 entries, not 2"):
        worker.update_env([Row(), Row()])


@pytest.mark.parametrize("other", [envs.BoxEnv(), TimeLimit(envs.ChainEnv(), 5)])
def test_environments_that_differ_are_refused(other: Any) -> None:
    """All rows have the same spaces and limit."""
    worker = VecWorker(seed=SEED, max_episode_length=None, worker_number=2, n_envs=2)
    with pytest.raises(EnvLoadError, match="different spaces or limits"):
        worker.update_env([envs.ChainEnv(), other])


class TaskEnv(Row):
    """A task is which environment it is."""

    def set_task(self, task: int) -> None:
        self.tag = task


def test_updates_by_row() -> None:
    """A list of updates changes each row's environment by its own one; None leaves a worker as it is."""
    worker = make_vec([TaskEnv(), TaskEnv()])
    before = worker._slots[0].env
    worker.update_env([SetTaskUpdate(TaskEnv, 7), SetTaskUpdate(TaskEnv, 8)])
    worker.update_env(None)
    worker.update_agent(None)
    assert before is worker._slots[0].env
    assert {0: 7, 1: 8, 2: 7} == tags(run_numbers(worker, range(3)))


def test_new_spaces_need_a_policy_for_them() -> None:
    """With an environment of other spaces, the policy that follows is adapted to them."""
    worker = make_vec([Row(), Row()])
    run_numbers(worker, range(2))
    worker.update_env(as_env_source(envs.DictEnv))
    worker.update_agent(rows.TablePolicy(worker.env_spec))
    expected = run_numbers(make_worker(envs.DictEnv(), rows.TablePolicy), range(4))
    assert_same_episodes(expected, run_numbers(worker, range(4)))


def test_shutdown_closes_every_environment() -> None:
    """All rows' environments are closed."""

    class Closing(Row):
        closed = 0

        def close(self) -> None:
            type(self).closed += 1

    make_vec([Closing(), Closing(), Closing()]).shutdown()
    assert 3 == Closing.closed


# -- through the samplers ----------------------------------------------------------------------------------------------

SAMPLERS = [LocalSampler, MultiprocessingSampler]
OPTIONS: dict[str, Any] = {"n_workers": 2, "seed": 5, "worker_class": VecWorker, "worker_args": {"n_envs": 2}}


@pytest.mark.parametrize("sampler_class", SAMPLERS)
def test_lists_of_environments_a_worker_and_row(sampler_class: type[Any]) -> None:
    """With a list a worker, number i belongs to worker i % n_workers, and goes round its rows; updates do likewise."""
    made = [[TaskEnv(0), TaskEnv(1)], [TaskEnv(10), TaskEnv(11)]]
    expected = {number: 10 * (number % 2) + number // 2 % 2 for number in range(12)}
    tasks = [
        [SetTaskUpdate(TaskEnv, 20 + row) for row in range(2)],
        [SetTaskUpdate(TaskEnv, 30 + row) for row in (0, 1)],
    ]
    with sampler_class(rows.TablePolicy(describe_env(made[0][0])), made, **OPTIONS) as sampler:
        assert expected == tags(concatenate(list(sampler.stream(Episodes(0, 12)))))
        second = tags(concatenate(list(sampler.stream(Episodes(0, 8), env_update=tasks))))
    assert {number + 12: expected[number] + 20 for number in range(8)} == second


@pytest.mark.parametrize("sampler_class", SAMPLERS)
def test_exact_counts_episodes(sampler_class: type[Any]) -> None:
    """Each worker gives exactly so many episodes, though they are no multiple of its rows."""
    with sampler_class(rows.TablePolicy(describe_env(Row())), Row(), **OPTIONS) as sampler:
        chunk = sorted(sampler.stream(EpisodesPerWorker(5)), key=lambda part: int(part.numbers[0]))
    whole = concatenate(chunk)
    assert (list(range(10)), [0] * 5 + [1] * 5) == (whole.numbers.tolist(), whole.workers.tolist())


# -- what is told of reproducing ---------------------------------------------------------------------------------------


class BatchPolicy(rows.TablePolicy):
    """Draws its places from somewhere, in `get_actions` too."""


class OwnBatch(BatchPolicy):
    def __init__(self, env_spec: Any) -> None:
        super().__init__(env_spec)
        self.rng = np.random.default_rng(0)

    def place(self, observation: Any) -> float:
        return float(self.rng.random())


class GlobalBatch(BatchPolicy):
    def place(self, observation: Any) -> float:
        return float(np.random.random())


class LateBatch(OwnBatch):
    """Makes its generator when it first acts."""

    def __init__(self, env_spec: Any) -> None:
        super().__init__(env_spec)
        self.rng: Any = None

    def place(self, observation: Any) -> float:
        self.rng = self.rng or np.random.default_rng()
        return super().place(observation)


class SpaceBatch(rows.TablePolicy):
    """Draws from the action space of the first environment."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self.spec.action_space.sample(), {"place": 0}


class OwnSpaceBatch(SpaceBatch):
    """Draws from a space of its own."""

    def __init__(self, env_spec: Any) -> None:
        super().__init__(env_spec)
        self.spec = copy.deepcopy(env_spec)


class SeededBatch(OwnBatch):
    """Has a generator for each row."""

    def seed_rows(self, mask: Any, seeds: Any) -> None:
        pass


class StandInTensor:
    """A tensor as far as the state of a generator goes."""

    def __init__(self, number: int) -> None:
        self._number = number

    def numpy(self) -> Any:
        return np.array([self._number])


class StandInGenerator:
    """What torch's default generator offers, on a counter."""

    def __init__(self) -> None:
        self._number = 0

    def manual_seed(self, seed: int) -> None:
        self._number = seed

    def get_state(self) -> StandInTensor:
        return StandInTensor(self._number)

    def set_state(self, state: StandInTensor) -> None:
        self._number = int(state.numpy()[0])

    def draw(self) -> float:
        self._number = (self._number * 48271 + 11) % (2**31 - 1)
        return self._number / (2**31 - 1)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a stand-in be the torch that was imported."""
    module: Any = types.SimpleNamespace(default_generator=StandInGenerator(), Generator=StandInGenerator)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


class TorchBatch(BatchPolicy):
    def place(self, observation: Any) -> float:
        return float(sys.modules["torch"].default_generator.draw())


REASONS = [
    (OwnBatch, "policy.rng"),
    (GlobalBatch, "numpy.random"),
    (LateBatch, "policy.rng"),
    (TorchBatch, "torch"),
    (SpaceBatch, "policy.spec.action_space"),
    (OwnSpaceBatch, "policy.spec.action_space"),
]


@pytest.mark.parametrize(("policy", "generator"), REASONS)
def test_a_batch_that_draws_from_one_generator_is_told(policy: type[Any], generator: str, torch: Any) -> None:
    """Rows that share a generator cannot be reproduced; the reason names it and the two ways out."""
    worker = make_vec([Row(tag) for tag in range(3)], policy)
    run_numbers(worker, range(6))
    facts = worker.facts()
    assert facts["not_reproducible"] == worker.not_reproducible
    assert f"({generator})" in facts["not_reproducible"]
    assert "seed_rows" in facts["not_reproducible"]
    assert "one environment a worker" in facts["not_reproducible"]


@pytest.mark.parametrize(
    ("policy", "scope"),
    [(rows.TablePolicy, "n_envs"), (SeededBatch, "n_envs"), (rows.GlobalDrawPolicy, None), (rows.OwnDrawPolicy, None)],
)
def test_what_can_be_reproduced(policy: type[Any], scope: str | None) -> None:
    """A batched policy is a function of the width; a row-wise one of nothing but the number."""
    worker = make_vec([rows.GlobalDrawEnv() for _ in range(3)], policy)
    run_numbers(worker, range(6))
    assert (None, scope) == (worker.not_reproducible, worker.facts().get("scope"))


def test_an_environment_that_draws_from_its_spaces_is_no_draw_of_the_policy() -> None:
    """A policy that holds the first environment's spaces does not draw from them where the environment does."""
    worker = VecWorker(seed=SEED, max_episode_length=None, worker_number=2, n_envs=3)
    worker.update_env(as_env_source(envs.DictEnv))
    worker.update_agent(rows.TablePolicy(worker.env_spec))
    run_numbers(worker, range(9))
    assert worker.not_reproducible is None


def test_a_batch_that_draws_wakes_nobody() -> None:
    """Episodes are not run again for what their policy draws for all rows, which no seeding could make repeat."""
    made = [Row(tag) for tag in range(3)]
    run_numbers(make_vec(made, GlobalBatch), range(6))
    assert 6 == sum(env.resets for env in made)


class TorchAlone(rows.AlonePolicy):
    def place(self, observation: Any) -> float:
        return float(sys.modules["torch"].default_generator.draw())


def test_rows_that_draw_from_torch_share_nothing(torch: Any) -> None:
    """A row-wise policy that draws from torch's default generator does in each row as if it were alone."""
    expected = run_numbers(make_worker(Row(), TorchAlone), range(12))
    assert_same_episodes(expected, run_numbers(make_vec([Row() for _ in range(3)], TorchAlone), range(12)))


# -- failures ----------------------------------------------------------------------------------------------------------


class FailingRowPolicy(rows.AlonePolicy):
    """Raises at the second step of an episode that has so many."""

    steps = 0

    def reset(self) -> None:
        self.steps = 0

    def place(self, observation: Any) -> float:
        self.steps += 1
        if self.steps == 2:
            raise ValueError("no more")
        return 0.5


class FailingReset(rows.AlonePolicy):
    def reset(self) -> None:
        raise ValueError("no reset")


class FailingSeed(rows.AlonePolicy):
    def seed(self, seed: int) -> None:
        raise ValueError("no seed")


class FailingBatchReset(rows.TablePolicy):
    def reset(self, do_resets: Any = None) -> None:
        raise ValueError("no reset")


class ShortObservation(Row):
    """Gives an observation of another shape after the first step."""

    def observe(self) -> Any:
        observation = super().observe()
        return observation[:2] if self._position == 1 else observation


class FlatObservation(Row):
    """Begins with an observation of another shape that has as many bytes."""

    def observe(self) -> Any:
        observation = super().observe()
        return observation[None] if self._position == 0 else observation


Long = [Row(0, 5), Row(1, 5)]
FAILURES: list[tuple[list[Any], Any, type[RolloutError], str, tuple[int, int]]] = [
    ([*Long, envs.FailingEnv("reset")], rows.TablePolicy, EnvError, "env.reset raised ValueError: the reset", (2, 0)),
    ([*Long, envs.FailingEnv("step", 1)], rows.TablePolicy, EnvError, "env.step raised ValueError: step 1", (2, 0)),
    ([*Long, FlatObservation(2, 5)], rows.TablePolicy, EnvError, r"not of its space: got float32\(1, 3", (2, 0)),
    ([*Long, ShortObservation(2, 5)], rows.TablePolicy, EnvError, r"not of its space: got float32\(2,", (2, 1)),
    ([Row(0, 1), Row(1, 5)], FailingRowPolicy, PolicyError, "policy.get_action raised ValueError: no more", (1, 1)),
    ([*Long], FailingReset, PolicyError, "policy.reset raised ValueError: no reset", (0, 0)),
    ([*Long], FailingSeed, PolicyError, "policy.seed raised ValueError: no seed", (0, 0)),
    ([*Long], FailingBatchReset, PolicyError, "policy.reset raised ValueError: no reset", (0, 0)),
    ([*Long], lambda spec: policies.FailingPolicy(spec, 3), PolicyError, "get_actions raised ValueError: the", (0, 1)),
]


@pytest.mark.parametrize(("made", "policy", "kind", "message", "place"), FAILURES)
def test_failures_name_what_and_where(
    made: list[Any], policy: Any, kind: type[RolloutError], message: str, place: tuple[int, int]
) -> None:
    """The error's class says whose fault it is; its one line names worker, episode, seed and step of the row."""
    number, step = place
    where = rf"\(worker 2, episode {number}, seed {derive_seed(SEED, number, 'env')}, step {step}\)$"
    with pytest.raises(kind, match=f"{message}.* {where}") as caught:
        run_numbers(make_vec(made, policy), range(len(made)))
    assert caught.value.hint


def test_after_a_failure_the_worker_goes_on() -> None:
    """What was finished stays; the other rows' episodes leave nothing behind."""
    worker = make_vec([Row(0, 1), Row(1, 5)], FailingRowPolicy)
    worker.assign(range(8))
    with pytest.raises(PolicyError):
        worker.advance(math.inf)
    before = list(worker.finished_numbers)
    worker.retract()
    worker.update_agent(lambda observation: 1)
    chunk = run_numbers(worker, range(20, 24))
    assert sorted([*before, *range(20, 24)]) == chunk.numbers.tolist()
    assert len(chunk.rewards) == chunk.lengths.sum()


def test_texts_are_empty_before_the_first() -> None:
    """A row that has not run yet shows empty texts."""
    worker = make_vec([envs.TextEnv(), envs.TextEnv()], rows.LoggingPolicy)
    policy: Any = worker._agent.policy
    run_numbers(worker, [0])
    assert {""} == {columns[0][1] for verb, columns, *_ in policy.calls if verb == "act"}
    assert isinstance(worker.env_spec.observation_space, spaces.Text)
