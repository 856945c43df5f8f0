"""NativeVecWorker: native vector environments in all three autoreset modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.envs import as_env_source, env_source
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import EnvError, EnvLoadError, InternalError, PolicyError
from rollout_cli.policies.random import RandomPolicy
from rollout_cli.seeding import derive_seed
from rollout_cli.workers import DefaultWorker, NativeVecWorker, native_worker, next_step_episodes
from rollout_cli.workers import block_recorder as recording
from tests.support import envs, vector_envs
from tests.support.policies import (
    FailingPolicy,
    GlobalNoisePolicy,
    LinearPolicy,
    OwnGeneratorPolicy,
    RecurrentPolicy,
)
from tests.unit.workers.making import SEED, assert_same_episodes

DISABLED, NEXT_STEP, SAME_STEP = AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
MODES = [DISABLED, NEXT_STEP, SAME_STEP]
each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
each_self_resetting = pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP], ids=lambda mode: mode.value)

Make = Callable[[EnvSpec], Any]


def native(
    env: Any, policy: Make = LinearPolicy, *, n_envs: int = 3, limit: float | None = None, worker: int = 0
) -> NativeVecWorker:
    made = NativeVecWorker(seed=SEED, max_episode_length=limit, worker_number=worker, n_envs=n_envs)
    made.update_env(env)
    made.update_agent(policy(made.env_spec))
    return made


def default(env: gymnasium.Env[Any, Any], policy: Make = LinearPolicy, *, limit: float | None = None) -> DefaultWorker:
    made = DefaultWorker(seed=SEED, max_episode_length=limit, worker_number=2)
    made.update_env(env)
    made.update_agent(policy(made.env_spec))
    return made


def run(worker: NativeVecWorker | DefaultWorker, numbers: Any, *, steps: int = 1) -> Chunk:
    """Run these episodes to the end, taking what is finished every few steps."""
    worker.assign(numbers)
    chunks = []
    while worker.has_work:
        for _ in range(steps):
            if worker.has_work:
                worker.advance(-1.0)
        if (chunk := worker.take()) is not None:
            chunks.append(chunk)
    whole = concatenate(chunks)
    order = np.argsort(whole.numbers)
    return concatenate([whole.episodes(at, at + 1) for at in order.tolist()])


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so short that nearly every episode is carried from one to the next."""
    monkeypatch.setattr(recording, "BLOCK_STEPS", 5)


# -- DISABLED: the same episodes as one environment alone --------------------------------------------------------------

TWINS: dict[str, tuple[Any, Any]] = {
    "chain": (vector_envs.chain, envs.ChainEnv),
    "both flags": (vector_envs.both_flags, envs.BothFlagsEnv),
    "dictionary": (vector_envs.dictionary, envs.DictEnv),
}


@pytest.mark.parametrize("policy", [LinearPolicy, lambda spec: RandomPolicy(spec.action_space), RecurrentPolicy])
@pytest.mark.parametrize("twin", ["chain", "both flags"])
@pytest.mark.parametrize("n_envs", [1, 3, 8])
def test_rows_that_can_be_seeded_run_the_episodes_of_one_environment(twin: str, policy: Make, n_envs: int) -> None:
    """Observations, actions, infos, flags and seeds are bit for bit those of DefaultWorker in one environment."""
    vector, single = TWINS[twin]
    expected = run(default(single(), policy), range(20))
    actual = run(native(vector(n_envs, DISABLED), policy, n_envs=n_envs), range(20))
    assert_same_episodes(expected, actual)


def test_dict_observations() -> None:
    """Dict observations and actions are columns like any other."""
    policy: Make = lambda spec: RandomPolicy(spec.action_space)  # noqa: E731
    expected = run(default(envs.DictEnv(), policy), range(10))
    actual = run(native(vector_envs.dictionary(3, DISABLED), policy), range(10))
    assert_same_episodes(expected, actual)


def test_text_observations() -> None:
    """Texts are recorded too, though no array of numbers holds them."""
    policy: Make = lambda spec: RandomPolicy(spec.action_space)  # noqa: E731
    expected = run(default(envs.TextEnv(), policy), range(6))
    actual = run(native(vector_envs.text(3, DISABLED), policy), range(6))
    assert_same_episodes(expected, actual)


def test_episodes_depend_on_number_and_width_alone() -> None:
    """Whatever ran before, and in which order numbers came, episode i is the same."""
    whole = run(native(vector_envs.chain(4, DISABLED), n_envs=4), range(24))
    worker = native(vector_envs.chain(4, DISABLED), n_envs=4, worker=1)
    worker.assign(range(12, 24))
    worker.advance(-1.0)
    worker.retract(above=15)
    late = run(worker, [8, 9, 10, 11, 16])
    numbers = [*range(8, 17)]
    assert numbers == late.numbers.tolist()
    expected = concatenate([whole.episodes(number, number + 1) for number in numbers])
    assert_same_episodes(expected, late)


def test_a_limit_truncates_single_rows() -> None:
    """The worker's own limit truncates a row, as it does for DefaultWorker; a last step that also ends keeps both."""
    expected = run(default(envs.ChainEnv(), limit=5), range(20))
    actual = run(native(vector_envs.chain(3, DISABLED), limit=5), range(20))
    assert_same_episodes(expected, actual)
    assert expected.truncated.any()
    assert (expected.terminated & expected.truncated).any()


def test_seeds_of_selected_rows() -> None:
    """One that takes a seed of 31 bits for each row that is reset is reproducible, and those seeds are told."""
    one = run(native(vector_envs.SeedsOfSelectedRows(4), n_envs=4), range(16))
    worker = native(vector_envs.SeedsOfSelectedRows(4), n_envs=4)
    assert worker.not_reproducible is None
    assert_same_episodes(one, run(worker, range(16), steps=3))
    assert [derive_seed(SEED, number, "env") >> 32 for number in range(16)] == one.seeds.tolist()


def test_rows_that_cannot_be_seeded_are_told() -> None:
    """An environment that resets rows but takes no seeds for them runs, and its episodes are not reproducible."""
    worker = native(vector_envs.UnseededRows(3))
    chunk = run(worker, range(9))
    assert "cannot be seeded" in worker.facts()["not_reproducible"]
    assert list(range(9)) == chunk.numbers.tolist()
    assert [-1] * 9 == chunk.seeds.tolist()
    check_chain(chunk)


# -- all modes ---------------------------------------------------------------------------------------------------------


def check_chain(chunk: Chunk) -> None:
    """Check that every episode of ChainEnv is whole: it counts its steps from 0 to the length that it tells."""
    for at in range(chunk.n_episodes):
        one = chunk.episodes(at, at + 1)
        length = int(one.lengths[0])
        (observations,), (last,) = one.observations, one.last_observations
        assert list(range(length)) == observations[:, 0].tolist()
        assert [length] * length == observations[:, 1].tolist()
        assert [length, length] == last[0, :2].tolist()
        assert [{"position": step + 1} for step in range(length)] == one.env_infos.to_dicts()
        assert [{"length": length}] == one.episode_infos.to_dicts()
        assert np.where(one.actions[0] == 1, 1.0, 0.5).tolist() == one.rewards.tolist()


@each_mode
@pytest.mark.parametrize("steps", [1, 7])
def test_episodes_are_whole_in_every_mode(mode: AutoresetMode, steps: int) -> None:
    """No dead row is recorded, no reset's observation or info is taken for a step's, the last ones are the last."""
    worker = native(vector_envs.chain(4, mode), n_envs=4)
    chunk = run(worker, range(40), steps=steps)
    assert list(range(40)) == chunk.numbers.tolist()
    assert chunk.terminated.all()
    assert not chunk.truncated.any()
    check_chain(chunk)


@each_mode
def test_both_flags(mode: AutoresetMode) -> None:
    """A last step that terminates and truncates keeps both flags."""
    chunk = run(native(vector_envs.both_flags(3, mode)), range(12))
    assert chunk.terminated.all()
    assert chunk.truncated.all()


@each_mode
def test_a_time_limit_inside(mode: AutoresetMode) -> None:
    """The environment's own limit is known, and truncates."""
    worker = native(vector_envs.limited(3, mode))
    chunk = run(worker, range(7))
    assert 6 == worker.env_spec.max_episode_length
    assert [6] * 7 == chunk.lengths.tolist()
    assert chunk.truncated.all()


@each_mode
def test_exactly_the_numbers_that_were_assigned(mode: AutoresetMode) -> None:
    """Fewer numbers than rows, then more: each ends once, and rows without a number leave nothing behind."""
    worker = native(vector_envs.chain(8, mode), n_envs=8)
    first = run(worker, [0, 1, 2])
    second = run(worker, range(3, 30))
    assert [0, 1, 2] == first.numbers.tolist()
    assert list(range(3, 30)) == second.numbers.tolist()
    check_chain(first)
    check_chain(second)


@each_mode
def test_numbers_that_come_while_others_run(mode: AutoresetMode) -> None:
    """Numbers assigned later begin in rows that are free, or that begin anew."""
    worker = native(vector_envs.chain(4, mode), n_envs=4)
    worker.assign([0, 1])
    worker.advance(-1.0)
    chunk = run(worker, [2, 3, 4, 5, 6])
    assert list(range(7)) == chunk.numbers.tolist()
    check_chain(chunk)


@each_mode
def test_retracted_numbers_never_come(mode: AutoresetMode) -> None:
    """What is above the ceiling is dropped, whether it waits, runs, or is held back since a lower number is missing."""
    worker = native(vector_envs.chain(4, mode), n_envs=4)
    worker.assign(range(20))
    for _ in range(4):
        worker.advance(-1.0)
    known = set(worker.finished_numbers)
    worker.retract(above=3)
    while worker.has_work:
        worker.advance(-1.0)
    chunk = worker.take()
    assert chunk is not None
    assert sorted({0, 1, 2, 3} | known) == chunk.numbers.tolist()
    worker.assign([50])
    worker.advance(-1.0)
    worker.retract()
    worker.take()
    assert not worker.has_work
    assert [60, 61] == run(worker, [60, 61]).numbers.tolist()


def test_what_was_not_looked_through_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose ends nobody has looked for yet do not take numbers that come after all were given up."""
    monkeypatch.setattr(native_worker, "RELEASE_SECONDS", np.inf)
    monkeypatch.setattr(recording, "BLOCK_STEPS", 64)
    resets: list[Any] = []
    env = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    worker = native(env, lambda spec: RandomPolicy(spec.action_space))
    reset = env.reset

    def counted(**given: Any) -> Any:
        resets.append(given)
        return reset(**given)

    monkeypatch.setattr(env, "reset", counted)
    worker.assign(range(100))
    for _ in range(60):
        worker.advance(-1.0)
    assert ([], 1) == (worker.finished_numbers, len(resets))
    worker.retract()
    assert not worker.has_work
    chunk = run(worker, range(200, 206))
    assert (list(range(200, 206)), 2) == (chunk.numbers.tolist(), len(resets))


def test_a_missing_number_holds_higher_ones_back_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Higher numbers wait for a lower one that runs; when they waited long enough they come all the same."""
    env = vector_envs.ScriptedVectorEnv(2, lambda row, k: 50 if row == 0 else 1)
    worker = native(env, n_envs=2)
    worker.assign(range(10))
    worker.start_episode()
    for _ in range(9):
        worker.step_episode()
    assert [] == worker.finished_numbers
    monkeypatch.setattr(recording, "HOLD_SECONDS", 0.0)
    worker.step_episode()
    assert [1, 2, 3, 4, 5] == worker.finished_numbers


def test_it_tells_what_finished_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came after the first few can be asked for, over all releases; it is what is taken, with its lengths."""
    monkeypatch.setattr(recording, "HOLD_SECONDS", 0.0)
    monkeypatch.setattr(native_worker, "RELEASE_SECONDS", 0.0)
    worker = native(vector_envs.ScriptedVectorEnv(2, lambda row, k: 7 if row == 0 else 1), n_envs=2)
    assert [] == list(worker.finished_since(0))
    worker.assign(range(50))
    told: list[int] = []
    for _ in range(12):
        worker.advance(-1.0)
        told += list(worker.finished_since(len(told)))
    assert worker.finished_numbers == told
    assert [] == list(worker.finished_since(len(told)))
    lengths = dict(zip(told, worker.finished_lengths, strict=True))
    chunk = worker.take()
    assert chunk is not None
    assert (sorted(told), [lengths[number] for number in sorted(told)]) == (
        chunk.numbers.tolist(),
        chunk.lengths.tolist(),
    )
    assert ([], 0) == (list(worker.finished_since(0)), worker.finished_rows)


def test_a_fast_environment_releases_after_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended is looked for after a number of steps, however little time they took, and not before."""
    monkeypatch.setattr(native_worker, "RELEASE_SECONDS", np.inf)
    monkeypatch.setattr(native_worker, "RELEASE_STEPS", 5)
    worker = native(vector_envs.ScriptedVectorEnv(2, lambda row, k: 1), n_envs=2)
    worker.assign(range(100))
    found = []
    for _ in range(10):
        worker.advance(-1.0)
        found.append(len(worker.finished_numbers) > 0)
        worker.take()
    assert [step in {5, 10} for step in range(1, 11)] == found


# -- against a plain reference -----------------------------------------------------------------------------------------


def reference(env: Any, mode: AutoresetMode, n_numbers: int, action: Callable[[Any], int]) -> dict[int, Any]:
    """Run a ScriptedVectorEnv that resets itself, row by row and step by step; return its episodes by number."""
    numbers, out = list(range(n_numbers)), dict[int, Any]()
    observations, infos = env.reset()
    rows: list[Any] = []

    def begin(row: int, infos: Any) -> Any:
        number = numbers.pop(0) if numbers else None
        return {"number": number, "steps": [], "k": int(infos["k"][row])}

    rows = [begin(row, infos) for row in range(env.num_envs)]
    dead = [False] * env.num_envs
    while len(out) < n_numbers:
        before = observations.copy()
        actions = np.array([action(row) for row in before])
        observations, rewards, terminated, truncated, infos = env.step(actions)
        for row in range(env.num_envs):
            if dead[row]:
                rows[row], dead[row] = begin(row, infos), False
                continue
            step = len(rows[row]["steps"]) + 1
            rows[row]["steps"].append((before[row].tolist(), int(actions[row]), float(rewards[row]), step))
            if not (terminated[row] or truncated[row]):
                continue
            same = mode is SAME_STEP
            last = infos["final_obs"][row] if same else observations[row]
            flags = bool(terminated[row]), bool(truncated[row])
            if rows[row]["number"] is not None:
                out[rows[row]["number"]] = (rows[row], last.tolist(), flags)
            if same:
                rows[row] = begin(row, infos)
            else:
                dead[row] = True
    return out


class SumPolicy(LinearPolicy):
    """The action follows from the observation's sum."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return int(observation.sum() % 3), {}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return observations.sum(axis=1) % 3, {}


@each_self_resetting
@settings(max_examples=60)
@given(
    n_envs=st.integers(1, 5),
    n_numbers=st.integers(1, 25),
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=9),
    block=st.integers(4, 12),
    take_every=st.integers(1, 9),
)
def test_against_a_plain_reference(
    mode: AutoresetMode, *, n_envs: int, n_numbers: int, lengths: list[int], block: int, take_every: int
) -> None:
    """Any lengths, widths, block sizes and ways of taking give the episodes of a loop over lists."""

    def length(row: int, k: int) -> int:
        return lengths[(row * 3 + k) % len(lengths)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "BLOCK_STEPS", block)
        worker = native(vector_envs.ScriptedVectorEnv(n_envs, length, mode), SumPolicy, n_envs=n_envs)
    chunk = run(worker, range(n_numbers), steps=take_every)
    expected = reference(
        vector_envs.ScriptedVectorEnv(n_envs, length, mode), mode, n_numbers, lambda row: int(row.sum() % 3)
    )
    assert sorted(expected) == chunk.numbers.tolist()
    for at, number in enumerate(chunk.numbers.tolist()):
        one, (episode, last, flags) = chunk.episodes(at, at + 1), expected[number]
        assert [seen for seen, *_ in episode["steps"]] == one.observations[0].tolist()
        assert [act for _, act, *_ in episode["steps"]] == one.actions[0].tolist()
        assert [reward for *_, reward, _ in episode["steps"]] == one.rewards.tolist()
        assert [vector_envs.step_info(step) for *_, step in episode["steps"]] == one.env_infos.to_dicts()
        assert [{"k": episode["k"]}] == one.episode_infos.to_dicts()
        assert last == one.last_observations[0][0].tolist()
        assert flags == (bool(one.terminated[0]), bool(one.truncated[0]))


class StatelessPolicy:
    """The action follows from the observation alone, and there is nothing to reset."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return observations.sum(axis=1) % 3, {}


@settings(max_examples=60)
@given(
    n_envs=st.integers(1, 5),
    n_numbers=st.integers(1, 40),
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=9),
    block=st.integers(4, 40),
    at_once=st.integers(1, 12),
    steps=st.sampled_from([1, 3, 10_000]),
)
def test_many_quiet_steps_looked_through_at_once(
    *, n_envs: int, n_numbers: int, lengths: list[int], block: int, at_once: int, steps: int
) -> None:
    """Where nothing is told in a step, steps are looked through many at a time: every episode is right all the same.

    Numbers go to rows in the order in which these begin, a row that ended begins after one step more.
    """

    def length(row: int, k: int) -> int:
        return lengths[(row * 3 + k) % len(lengths)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "BLOCK_STEPS", block)
        patch.setattr(next_step_episodes, "SETTLE_STEPS", at_once)
        env = vector_envs.QuietVectorEnv(n_envs, length)
        worker = native(env, lambda spec: StatelessPolicy(), n_envs=n_envs)
    worker.assign(range(n_numbers))
    stepper, chunks = worker._the_stepper(), []
    while worker.has_work:
        for _ in range(min(steps, 3 * at_once)):
            worker._begin()
            stepper.step()
        worker.advance(-1.0)
        if (taken := worker.take()) is not None:
            chunks.append(taken)
    begun = sorted(
        (sum(length(row, k) + 1 for k in range(before)), row, before)
        for row in range(n_envs)
        for before in range(n_numbers)
    )
    chunk = concatenate(chunks)
    assert list(range(n_numbers)) == sorted(chunk.numbers.tolist())
    for at, number in enumerate(chunk.numbers.tolist()):
        one, (_, row, k) = chunk.episodes(at, at + 1), begun[number]
        count = length(row, k)
        seen = [[row, k, step] for step in range(count)]
        acts = [sum(observation) % 3 for observation in seen]
        assert seen == one.observations[0].tolist()
        assert acts == one.actions[0].tolist()
        assert [step + 1 + 0.5 * act for step, act in enumerate(acts)] == one.rewards.tolist()
        assert [row, k, count] == one.last_observations[0][0].tolist()
        assert ((row + k) % 2 == 0, (row + k) % 2 == 1) == (bool(one.terminated[0]), bool(one.truncated[0]))
        assert 0.0 <= one.wall_times[0] < 60.0


# -- policies ----------------------------------------------------------------------------------------------------------


@each_self_resetting
def test_random_actions_go_on_in_each_row(mode: AutoresetMode) -> None:
    """Rows that reset themselves draw on: no two episodes or workers get the same actions."""
    policy: Make = lambda spec: RandomPolicy(spec.action_space)  # noqa: E731
    env = vector_envs.ScriptedVectorEnv

    def actions(first: int, worker: int) -> list[tuple[int, ...]]:
        made = native(env(3, _twenty, mode), policy, worker=worker)
        chunk = run(made, range(first, first + 9))
        return [tuple(chunk.episodes(at, at + 1).actions[0].tolist()) for at in range(9)]

    assert actions(0, 0) == actions(0, 0)
    assert 18 == len({*actions(0, 0), *actions(9, 1)})


class OneAtATimePolicy:
    """Acts on one observation; action 1 in every other step of its episode, which it counts itself."""

    def __init__(self, env_spec: EnvSpec) -> None:
        self._steps = 0

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        self._steps += 1
        return self._steps % 2, {"count": self._steps}

    def reset(self) -> None:
        self._steps = 0


@each_mode
def test_a_policy_that_acts_on_one_observation_is_copied_for_each_row(mode: AutoresetMode) -> None:
    """Its state is that of its row's episode alone, and what it tells is recorded."""
    chunk = run(native(vector_envs.chain(3, mode), OneAtATimePolicy), range(12))
    for at in range(chunk.n_episodes):
        one = chunk.episodes(at, at + 1)
        length = int(one.lengths[0])
        assert [(step + 1) % 2 for step in range(length)] == one.actions[0].tolist()
        assert [{"count": step + 1} for step in range(length)] == one.agent_infos.to_dicts()


def test_shared_generators_are_told() -> None:
    """A policy that draws for all rows from one generator, its own or a global one, is not reproducible."""
    own = native(vector_envs.chain(3, DISABLED), OwnGeneratorPolicy)
    assert "policy.rng" in own.facts()["not_reproducible"]
    shared = native(vector_envs.chain(3, DISABLED), GlobalNoisePolicy)
    run(shared, range(6))
    assert "global" in str(shared.not_reproducible)
    quiet = native(vector_envs.chain(3, DISABLED))
    run(quiet, range(6))
    assert quiet.not_reproducible is None


class TellingNoisePolicy(LinearPolicy):
    """Draws from a global generator for all rows, and tells what it drew."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        count = len(observations)
        return np.zeros(count, np.int64), {"noise": np.random.random(count)}


@each_mode
def test_workers_draw_apart(mode: AutoresetMode) -> None:
    """A policy that draws from a global generator does not explore alike in two workers, from the first step on."""
    noise = []
    for at in (0, 1):
        worker = native(vector_envs.chain(3, mode), TellingNoisePolicy, worker=at)
        noise.append(run(worker, range(30 * at, 30 * at + 30)).agent_infos.to_arrays()["noise"].tolist())
    assert set(noise[0]).isdisjoint(noise[1])


# -- rows and memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2])
def test_a_number_has_its_row(stride: int) -> None:
    """Number i runs in row i % n_envs of the worker's own numbers, whatever order numbers come in."""
    worker = native(vector_envs.chain(4, DISABLED), n_envs=4)
    worker.number_stride = stride
    worker.assign([9 * stride, 5 * stride])
    worker.assign([stride, 2 * stride])
    worker.advance(-1.0)
    running = worker._the_stepper().episodes.numbers
    finished = set(worker.finished_numbers)
    assert running[1] == stride or stride in finished
    assert running[2] == 2 * stride or 2 * stride in finished
    assert [-1, -1] == running[[0, 3]].tolist()


def test_one_long_episode_keeps_only_its_own_steps() -> None:
    """What was carried along with an episode that runs on and on is let go when the other rows' episodes have ended."""
    worker = native(vector_envs.ScriptedVectorEnv(8, lambda row, k: 400 if row == 0 else 7), n_envs=8)
    worker.assign(range(3000))
    most = 0
    while 0 in worker._the_stepper().episodes.numbers or not most:
        worker.advance(-1.0)
        worker.take()
        carried = worker._the_recorder().history.n_carried
        step = worker._the_recorder().step
        most = max(most, carried)
        assert carried <= 2 * (step + 8 * 12)
    assert most >= 380


def test_a_dense_array_of_last_observations() -> None:
    """Last observations may come as one array for all rows; a last step without infos has none."""
    chunk = run(native(vector_envs.DenseFinal(3)), range(9))
    for at in range(9):
        one = chunk.episodes(at, at + 1)
        row, k, _ = one.observations[0][0].tolist()
        assert [row, k, row + 1] == one.last_observations[0][0].tolist()
        assert [[row, k, step] for step in range(row + 1)] == one.observations[0].tolist()


# -- errors and facts --------------------------------------------------------------------------------------------------


@each_self_resetting
def test_a_limit_below_the_environments_own_is_refused(mode: AutoresetMode) -> None:
    """An environment that resets itself cannot be cut short; a limit that it keeps anyway is none."""
    with pytest.raises(EnvLoadError, match="limit of 6 steps") as caught:
        native(vector_envs.limited(3, mode), limit=5)
    assert "--env-kwargs" in caught.value.hint
    with pytest.raises(EnvLoadError, match="no limit that is known"):
        native(vector_envs.chain(3, mode), limit=5)
    assert [6] == run(native(vector_envs.limited(3, mode), limit=6), [0]).lengths.tolist()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (vector_envs.ResetsEverything, "resets rows that"),
        (vector_envs.SilentVectorEnv, "does not tell how it resets rows"),
    ],
)
def test_environments_that_break_the_contract_are_refused(env: Any, message: str) -> None:
    """What cannot give right episodes is refused when it is taken."""
    with pytest.raises(EnvLoadError, match=message) as caught:
        native(env(3))
    assert caught.value.hint


def test_a_lost_last_observation_is_an_error() -> None:
    """An environment that resets in the same step must hand the last observation on."""
    worker = native(vector_envs.GivesNoFinal(2), n_envs=2)
    with pytest.raises(EnvError, match="final_obs"):
        run(worker, [0, 1])


@each_mode
def test_a_policy_that_fails(mode: AutoresetMode) -> None:
    """Its error says whose step it was."""
    worker = native(vector_envs.chain(3, mode), FailingPolicy)
    with pytest.raises(PolicyError, match="worker 0, episodes 0 to 2"):
        run(worker, range(30))


def test_actions_of_another_type_are_refused() -> None:
    """A batch of the wrong length or type is the policy's error, with both sides printed."""

    class Wrong(LinearPolicy):
        def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
            return np.zeros(2), {}

    with pytest.raises(PolicyError, match=r"float64\(2,\), expected int64\(3,\).* \(worker 0, ep"):
        run(native(vector_envs.chain(3, NEXT_STEP), Wrong), [0])


def test_facts() -> None:
    """The header records mode, width and class, and why episodes cannot be repeated."""
    env = native(env_source("CartPole-v1")).facts()["env"]
    assert ("CartPole-v1", "NextStep", 3, 500) == tuple(
        env[key] for key in ("id", "autoreset_mode", "num_envs", "max_episode_length")
    )
    assert "resets a row by itself" in native(env_source("CartPole-v1")).facts()["not_reproducible"]
    assert "n_envs" == native(vector_envs.chain(3, DISABLED)).facts()["scope"]


def test_garages_verbs() -> None:
    """start, step and collect run one episode; they refuse to be used out of order."""
    worker = native(vector_envs.chain(3, DISABLED))
    with pytest.raises(InternalError, match="start_episode first"):
        worker.step_episode()
    batch = worker.rollout()
    assert [0] == batch.numbers.tolist()
    assert [1] == worker.rollout().numbers.tolist()
    with pytest.raises(InternalError, match="no finished episode"):
        worker.collect_episode()


# -- sources -----------------------------------------------------------------------------------------------------------


def test_cartpole_by_its_vector_entry_point() -> None:
    """Every recorded step of CartPole is one of its dynamics: the next observation follows from this one."""
    worker = native(env_source("CartPole-v1"), lambda spec: RandomPolicy(spec.action_space), n_envs=16)
    chunk = run(worker, range(64), steps=9)
    single: Any = gymnasium.make("CartPole-v1").unwrapped
    single.reset(seed=0)
    assert chunk.terminated.all()
    for at in range(0, 64, 7):
        one = chunk.episodes(at, at + 1)
        states = np.concatenate([one.observations[0], one.last_observations[0]])
        assert np.abs(states[0]).max() <= 0.05
        for step in range(int(one.lengths[0])):
            single.state, single.steps_beyond_terminated = states[step].astype(np.float64), None
            _, reward, terminated, _, _ = single.step(int(one.actions[0][step]))
            np.testing.assert_allclose(states[step + 1], single.state, rtol=1e-4, atol=1e-6)
            assert reward == one.rewards[step]
            assert terminated == (step + 1 == int(one.lengths[0]))


def test_a_factory_that_can_leave_resets_to_others_is_asked_to() -> None:
    """A factory with an argument for the mode is called with DISABLED, unless the mode is given."""
    worker = native(env_source("tests.support.vector_envs:chain"))
    assert worker.not_reproducible is None
    given_mode = env_source("tests.support.vector_envs:chain", {"autoreset_mode": "SameStep"})
    assert "in the same step" in str(native(given_mode).not_reproducible)


def test_a_pool() -> None:
    """What has EnvPool's verbs works: no VectorEnv, no seed in reset, its spaces those of one row, no reset infos."""
    worker = native(env_source("tests.support.vector_envs:Pool"))
    chunk = run(worker, range(12))
    assert list(range(12)) == chunk.numbers.tolist()
    for at in range(12):
        one = chunk.episodes(at, at + 1)
        assert list(range(int(one.lengths[0]))) == one.observations[0][:, 0].tolist()
    assert "resets a row by itself" in str(worker.not_reproducible)


@pytest.mark.parametrize(
    ("env", "message", "hint"),
    [
        ("Acrobot-v1", "no vector entry point", "--envs-per-worker"),
        ("NoSuchEnv-v0", "there is no environment", "named with the module"),
        ("tests.support.envs:ChainEnv", "single environment", "--envs-per-worker"),
        ("tests.support.envs:SECONDS", "has no attribute", "it has"),
    ],
)
def test_what_has_no_vector_form(env: str, message: str, hint: str) -> None:
    """Each is an error that says what to do instead."""
    with pytest.raises(EnvLoadError, match=message) as caught:
        native(env_source(env))
    assert hint in caught.value.hint


def test_objects_of_the_python_api() -> None:
    """A class or factory that was pickled by the sampler builds too; a width that is not asked for is refused."""
    source = as_env_source(vector_envs.ScriptedVectorEnv, {"length": _two, "autoreset_mode": NEXT_STEP})
    assert [2] == run(native(source), [0]).lengths.tolist()
    with pytest.raises(EnvLoadError, match="3 rows, not 4"):
        native(vector_envs.chain(3, DISABLED), n_envs=4)


def _two(row: int, k: int) -> int:
    return 2


def _twenty(row: int, k: int) -> int:
    return 20
