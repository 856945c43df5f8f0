"""VecWorker's episodes are those of DefaultWorker, and those of plain loops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_cli.envs.describe import env_spec_of
from rollout_cli.envs.source import env_source
from rollout_cli.policies.source import policy_source
from rollout_cli.seeding.seeds import env_seed
from rollout_cli.workers.kinds import DefaultWorker, VecWorker
from rollout_cli.workers.native import buffer as buffers
from tests.helpers.contents import row_dicts
from tests.workers import worlds
from tests.workers.worlds import DISABLED, NEXT_STEP, SAME_STEP, SEED, SPACES, ChainEnv, make, run, space_env

POLICIES = {
    "table": worlds.TablePolicy,
    "counting": worlds.CountingPolicy,
    "own draws": worlds.OwnDrawPolicy,
    "seeded": worlds.SeededPolicy,
    "space draws": worlds.SpaceDrawPolicy,
    "batch": worlds.BatchPolicy,
    "random": lambda spec: policy_source("random").load(spec),
    "function": lambda spec: worlds.TablePolicy(spec).choose,
}


# gymnasium joins the infos of its own vector environments, and texts with them, in its own way.
@pytest.mark.parametrize(
    ("kind", "name", "policy"),
    [
        *product(["sync"], SPACES, ["random", "batch", "table"]),
        *product(
            ["native disabled"], sorted(SPACES.keys() - {"text", "tuple", "sequence"}), ["random", "batch"]
        ),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:.*Casting input x to numpy array"
)  # gymnasium gives rows of 0-d actions as numbers.
def test_any_spaces(kind: str, name: str, policy: str) -> None:
    """Bit for bit, with infos of several types, some of them missing in some steps."""
    expected = run(make("default", space_env(name), POLICIES[policy]), range(14))
    actual = run(make(kind, space_env(name), POLICIES[policy]), range(14))
    worlds.assert_same_episodes(expected, actual)


# A native environment acts in batches.
@pytest.mark.parametrize(
    ("kind", "policy"),
    [*product(["sync"], POLICIES), *product(["native disabled"], ["batch", "random"])],
)
@pytest.mark.parametrize("n_envs", [1, 2, 5])
def test_any_policy(kind: str, policy: str, n_envs: int) -> None:
    """Also those that keep state, or draw: their rows take turns."""
    expected = run(make("default", ChainEnv, POLICIES[policy], limit=6), range(23))
    actual = run(make(kind, ChainEnv, POLICIES[policy], limit=6, n_envs=n_envs), range(23), steps=3)
    worlds.assert_same_episodes(expected, actual)


TAXI = max(name for name in gymnasium.registry if name.startswith("Taxi-"))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1", "Pendulum-v1", TAXI])
def test_gymnasiums_own(env_id: str) -> None:
    """By id, with the environment's own limit or the run's, and the built-in random policy."""
    common: dict[str, Any] = {"seed": SEED, "max_episode_length": 50, "worker_number": 2}
    chunks = []
    for worker in (DefaultWorker(**common), VecWorker(n_envs=4, **common)):
        worker.update_env(env_source(env_id))
        worker.update_agent(policy_source("random"))
        chunks.append(run(worker, range(9), steps=20))
    worlds.assert_same_episodes(*chunks)


@pytest.mark.parametrize("kind", ["default", "sync", "native disabled"])
def test_a_plain_loop(kind: str) -> None:
    """The episodes are those of `env.reset(seed=env_seed(root, number))` and `env.step`."""
    chunk = run(make(kind), range(9))
    env = ChainEnv()
    policy = worlds.BatchPolicy(env_spec_of(env))
    for at in range(9):
        one, rows = chunk.episodes(at, at + 1), []
        observation, info = env.reset(seed=env_seed(SEED, at))
        assert [info] == row_dicts(one.episode_infos)
        ended = False
        while not ended:
            action, _ = policy.get_action(observation)
            after, reward, ended, _, _ = env.step(action)
            rows.append((observation.tolist(), int(action), reward))
            observation = after
        assert [seen for seen, *_ in rows] == one.observations[0].tolist()
        assert [action for _, action, _ in rows] == one.actions[0].tolist()
        assert [reward for *_, reward in rows] == one.rewards.tolist()
        assert observation.tolist() == one.last_observations[0][0].tolist()


def reference(env: Any, mode: str, n_numbers: int) -> dict[int, Any]:
    """Run a ScriptedVectorEnv that resets itself, row by row and step by step; return its episodes by number."""
    numbers, out = list(range(n_numbers)), dict[int, Any]()
    observations, infos = env.reset()

    def begin(row: int, infos: Any) -> Any:
        return {"number": numbers.pop(0) if numbers else None, "steps": [], "k": int(infos["k"][row])}

    rows = [begin(row, infos) for row in range(env.num_envs)]
    dead = [False] * env.num_envs
    while len(out) < n_numbers:
        before = observations.copy()
        actions = before.sum(axis=1) % 3
        observations, rewards, terminated, truncated, infos = env.step(actions)
        for row in range(env.num_envs):
            if dead[row]:
                rows[row], dead[row] = begin(row, infos), False
                continue
            step = len(rows[row]["steps"]) + 1
            rows[row]["steps"].append((before[row].tolist(), int(actions[row]), float(rewards[row]), step))
            if not (terminated[row] or truncated[row]):
                continue
            last = infos["final_obs"][row] if mode == SAME_STEP else observations[row]
            if rows[row]["number"] is not None:
                flags = bool(terminated[row]), bool(truncated[row])
                out[rows[row]["number"]] = (rows[row], last.tolist(), flags)
            if mode == SAME_STEP:
                rows[row] = begin(row, infos)
            else:
                dead[row] = True
    return out


class SumPolicy:
    """The action follows from the observation's sum; there is nothing to reset."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return observations.sum(axis=1) % 3, {}


class ResetSumPolicy(SumPolicy):
    """The same, that is told of each beginning."""

    def reset(self, do_resets: Any = None) -> None:
        assert do_resets is not None
        assert do_resets.any()


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
@settings(max_examples=60)
@given(
    n_envs=st.integers(1, 5),
    n_numbers=st.integers(1, 30),
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=9),
    slots=st.integers(4, 30),
    take_every=st.sampled_from([1, 2, 5, 9, 1_000]),
    policy=st.sampled_from([SumPolicy, ResetSumPolicy]),
    quiet=st.booleans(),
)
def test_rows_that_reset_themselves(
    mode: str,
    *,
    n_envs: int,
    n_numbers: int,
    lengths: list[int],
    slots: int,
    take_every: int,
    policy: Callable[[], Any],
    quiet: bool,
) -> None:
    """Any lengths, widths, memory and ways of taking give the episodes of a loop over lists."""

    def length(row: int, k: int) -> int:
        return lengths[(row * 3 + k) % len(lengths)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffers, "_MOST_STEPS", slots)
        patch.setattr(buffers, "_FEWEST_STEPS", 1)
        env = worlds.ScriptedVectorEnv(n_envs, length, mode, quiet=quiet)
        worker = make("native next", env, lambda spec: policy(), n_envs=n_envs)
        chunk = run(worker, range(n_numbers), steps=take_every)
    expected = reference(worlds.ScriptedVectorEnv(n_envs, length, mode), mode, n_numbers)
    assert sorted(expected) == chunk.numbers.tolist()
    for at, number in enumerate(chunk.numbers.tolist()):
        one, (episode, last, flags) = chunk.episodes(at, at + 1), expected[number]
        assert [seen for seen, *_ in episode["steps"]] == one.observations[0].tolist()
        assert [act for _, act, *_ in episode["steps"]] == one.actions[0].tolist()
        assert [reward for *_, reward, _ in episode["steps"]] == one.rewards.tolist()
        infos = [{} if quiet else worlds.step_info(step) for *_, step in episode["steps"]]
        if mode == SAME_STEP and quiet:  # The last one's comes with the final observation.
            infos[-1] = worlds.step_info(len(infos))
        assert infos == row_dicts(one.env_infos)
        assert [{} if quiet else {"k": episode["k"]}] == row_dicts(one.episode_infos)
        assert last == one.last_observations[0][0].tolist()
        assert flags == (bool(one.terminated[0]), bool(one.truncated[0]))
        assert 0.0 <= one.wall_times[0] < 60.0


@settings(max_examples=40)
@given(
    n_envs=st.integers(1, 4),
    numbers=st.lists(st.integers(0, 60), min_size=1, max_size=25, unique=True),
    slots=st.integers(4, 20),
    above=st.none() | st.integers(0, 60),
    steps=st.integers(1, 30),
)
def test_any_numbers_and_retractions(
    *, n_envs: int, numbers: list[int], slots: int, above: int | None, steps: int
) -> None:
    """What is left of any lease, after any numbers are dropped at any moment, are the very same episodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffers, "_MOST_STEPS", slots)
        patch.setattr(buffers, "_FEWEST_STEPS", 1)
        worker = make("sync", ChainEnv, worlds.TablePolicy, n_envs=n_envs)
        worker.assign([range(number, number + 1) for number in numbers])
        for _ in range(steps):
            worker.advance(-1.0)
        finished = worker.take(everything=True)
        if above is not None:
            worker.retract(above=above)
        worker.assign([range(100, 102)])
        chunk = worlds.by_number([*finished, run(worker, range(0))])
    taken = {number for part in finished for number in part.numbers.tolist()}
    left = {number for number in numbers if above is None or number <= above} | taken | {100, 101}
    assert sorted(left) == chunk.numbers.tolist()
    alone = make("default", ChainEnv, worlds.TablePolicy)
    worlds.assert_same_episodes(run(alone, [range(n, n + 1) for n in sorted(left)]), chunk)


def test_the_row_of_a_number() -> None:
    """Number i runs in row i % n_envs; with a stride, in the row of its place among the worker's own numbers."""

    class Tagged(ChainEnv):
        tag = 0

        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            return *rest, {"tag": self.tag}

    def tags(stride: int, numbers: range) -> list[int]:
        envs = [Tagged(length=2) for _ in range(3)]
        for tag, env in enumerate(envs):
            env.tag = tag
        worker = VecWorker(seed=SEED, max_episode_length=None, worker_number=0, n_envs=3)
        worker.update_env(envs)
        worker.update_agent(worlds.BatchPolicy(worker.env_spec))
        worker.start_call(number_stride=stride, salt=())
        return [info["tag"] for info in row_dicts(run(worker, numbers).env_infos)[::2]]

    assert [number % 3 for number in range(7, 20)] == tags(1, range(7, 20))
    assert [number // 4 % 3 for number in range(2, 60, 4)] == tags(4, range(2, 60, 4))


def test_gymnasiums_vector_cartpole() -> None:
    """A real native environment: NEXT_STEP, many short episodes, and the transitions of its own dynamics."""
    worker = VecWorker(seed=3, max_episode_length=None, worker_number=0, n_envs=16, vectorization="native")
    worker.update_env(env_source("CartPole-v1"))
    worker.update_agent(policy_source("random"))
    chunk = run(worker, range(300), steps=40)
    assert list(range(300)) == chunk.numbers.tolist()
    single: Any = gymnasium.make("CartPole-v1").unwrapped
    single.reset()
    starts = np.cumsum(chunk.lengths) - chunk.lengths
    for at in (0, 7, 150, 299):
        rows = slice(int(starts[at]), int(starts[at] + chunk.lengths[at]))
        seen = [*chunk.observations[0][rows], chunk.last_observations[0][at]]
        for before, action, after in zip(seen[:-1], chunk.actions[0][rows], seen[1:], strict=True):
            single.state, single.steps_beyond_terminated = before.astype(np.float64), None
            np.testing.assert_allclose(single.step(int(action))[0], after, atol=1e-4)
    assert {1.0} == set(chunk.rewards.tolist())
    assert "NextStep" in (worker.report().not_reproducible or "")


def test_an_environment_that_takes_arrays_of_seeds() -> None:
    """ALE's form: 31 bits, of the rows that are reset alone; the dataset has what was really given."""

    class ArraySeeds(SyncVectorEnv):
        def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
            if not isinstance(seed, np.ndarray):
                raise TypeError("Unsupported seed type")
            rows = np.flatnonzero((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
            assert seed.shape == rows.shape
            assert seed.max() < 2**31
            whole: list[int | None] = [None] * self.num_envs
            for row, value in zip(rows.tolist(), seed.tolist(), strict=True):
                whole[row] = value
            return super().reset(seed=whole, options=options)

    env = ArraySeeds([ChainEnv] * 3, autoreset_mode=DISABLED)
    chunk = run(make("native disabled", env), range(9))
    assert [env_seed(SEED, number) >> 1 for number in range(9)] == chunk.seeds.tolist()
    worlds.check_chain(chunk)
