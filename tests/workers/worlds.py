"""Environments, policies and workers for the workers' tests: small, exact, each with one trait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from rollout_cli.envs.describe import env_spec_of
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.workers.context import WorkerContext
from rollout_cli.workers.kinds import DefaultWorker, VecWorker
from tests.helpers.contents import row_dicts

Array = npt.NDArray[Any]
Env = gymnasium.Env[Any, Any]
SEED = 11

DISABLED, NEXT_STEP, SAME_STEP = "Disabled", "NextStep", "SameStep"
NATIVE = {"native disabled": DISABLED, "native next": NEXT_STEP, "native same": SAME_STEP}
KINDS = ("default", "sync", *NATIVE)
SINGLE = ("default", "sync")
RESET_FROM_OUTSIDE = ("default", "sync", "native disabled")
N_ENVS = 3


class ChainEnv(gymnasium.Env[Any, Any]):
    """A chain of 1, 3, 5, 7 or 9 steps, drawn from the seed.

    The observation is float32 [position, length, noise], the reward is 1 for action 1 and 0.5 for action 0.

    Args:
        ends: Which flags the last step sets: `terminated`, `truncated`, `both`, or `never`.
        length: Steps of every episode; None draws them.
    """

    def __init__(self, ends: str = "terminated", length: int | None = None) -> None:
        self.observation_space = spaces.Box(-1.0, 100_000.0, (3,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self._ends, self._fixed = ends, length
        self._position = self.length = 0
        self.closed = 0

    def observe(self) -> Any:
        return np.array([self._position, self.length, self.np_random.random()], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._position = 0
        self.length = 1 + 2 * int(self.np_random.integers(0, 5)) if self._fixed is None else self._fixed
        return self.observe(), {"length": self.length}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self._position += 1
        last = self._position >= self.length and self._ends != "never"
        flags = last and self._ends in ("terminated", "both"), last and self._ends in ("truncated", "both")
        return self.observe(), 1.0 if action == 1 else 0.5, *flags, {"position": self._position}

    def close(self) -> None:
        self.closed += 1


class ArrayEnv(ChainEnv):
    """Returns observations, rewards and flags as arrays of some library, which `array` makes."""

    def __init__(self, array: Callable[[Any], Any] = np.asarray) -> None:
        super().__init__()
        self._array = array

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(**arguments)
        return self._array(observation), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        *values, info = super().step(action)
        observation, reward, terminated, truncated = map(self._array, values)
        return observation, reward, terminated, truncated, info


class ArrayVectorEnv(VectorWrapper):
    """Does the same in a vector environment."""

    def __init__(self, env: Any, array: Callable[[Any], Any]) -> None:
        super().__init__(env)
        self._array = array

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observations, infos = self.env.reset(**arguments)
        return self._array(observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        *values, infos = self.env.step(actions)
        observations, rewards, terminated, truncated = map(self._array, values)
        return observations, rewards, terminated, truncated, infos


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Observations drawn from any space, a function of the seed and the step; 1 to 7 steps."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self._left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self._left = int(self.np_random.integers(1, 8))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"the action {action!r} is not in {self.action_space}")
        self._left -= 1
        info = {"left": self._left, "half": np.float32(self._left / 2)} | (
            {"odd": "yes"} if self._left % 2 else {}
        )
        return self.observation_space.sample(), float(self._left), self._left == 0, False, info


_CAMERA = spaces.Dict({"left": spaces.Box(0, 255, (4, 4), np.uint8), "gain": spaces.Box(0.0, 1.0, ())})
SPACES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "box": (spaces.Box(-1.0, 1.0, (2, 3), np.float64), spaces.Box(-2.0, 2.0, (2,), np.float32)),
    "0-d box": (spaces.Box(-1.0, 1.0, (), np.float32), spaces.Box(0.0, 1.0, (), np.float32)),
    "wide box": (spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-2.0, 2.0, (40,))),
    "discrete": (spaces.Discrete(5, start=-2), spaces.Discrete(3, start=1)),
    "large discrete": (spaces.Discrete(10_000), spaces.Discrete(10_000)),
    "multi discrete": (spaces.MultiDiscrete([3, 5, 2]), spaces.MultiDiscrete([2, 4])),
    "multi binary": (spaces.MultiBinary((2, 2)), spaces.MultiBinary(4)),
    "text": (spaces.Text(12, min_length=0), spaces.Text(4, charset="abc")),
    "image": (spaces.Box(0, 255, (48, 32, 3), np.uint8), spaces.Box(0, 255, (2,), np.uint8)),
    "empty box": (spaces.Box(-1.0, 1.0, (0,)), spaces.Discrete(2)),
    "dict": (
        spaces.Dict(
            {"camera": _CAMERA, "speed": spaces.Box(-1.0, 1.0, (2,)), "mode": spaces.Discrete(4, start=1)}
        ),
        spaces.Dict({"turn": spaces.Discrete(3), "push": spaces.Box(-1.0, 1.0, (2,))}),
    ),
    "sequence": (
        spaces.Dict(
            {
                "seen": spaces.Sequence(spaces.Box(-1.0, 1.0, (2,))),
                "at": spaces.Sequence(spaces.Discrete(4), stack=True),
            }
        ),
        spaces.Tuple((spaces.Sequence(spaces.Discrete(3, start=1)), spaces.Discrete(2))),
    ),
    "tuple": (
        spaces.Tuple((spaces.Discrete(5), spaces.Text(3), spaces.Box(-1.0, 1.0, (3,)))),
        spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(3))),
    ),
}


def space_env(name: str) -> Callable[[], SpaceEnv]:
    """Return a factory of environments with these spaces."""
    return lambda: SpaceEnv(*deepcopy(SPACES[name]))


class ScriptedVectorEnv(VectorEnv[Any, Any, Any]):
    """Resets itself; row r's k-th episode has `length(r, k)` steps, and observations [r, k, step] in one reused buffer.

    The reward is the step's number plus a half of the action. An info `step` is there in even steps only,
    `note` (a text) in every third; a reset gives `k`. An episode terminates where r + k is even, and is
    truncated else.
    """

    def __init__(
        self, num_envs: int, length: Callable[[int, int], int], mode: str = NEXT_STEP, *, quiet: bool = False
    ) -> None:
        self.num_envs, self._length, self._mode, self._quiet = num_envs, length, mode, quiet
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(-1, 10_000, (3,), np.int32)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._at = np.zeros((num_envs, 3), np.int32)
        self._begun = np.full(num_envs, -1)
        self._over = np.zeros(num_envs, bool)

    def _begin(self, row: int) -> None:
        self._begun[row] += 1
        self._at[row] = row, self._begun[row], 0
        self._over[row] = False

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        infos: dict[str, Any] = {}
        for row in range(self.num_envs):
            self._begin(row)
            infos = self._add_info(infos, {"k": int(self._begun[row])}, row)
        return self._at, {} if self._quiet else infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rewards, infos = np.zeros(self.num_envs, np.float32), dict[str, Any]()
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for row in range(self.num_envs):
            if self._over[row]:
                self._begin(row)
                infos = self._add_info(infos, {"k": int(self._begun[row])}, row)
                # Flags and rewards of the step in which a row is reset mean nothing, and must not be
                # believed.
                rewards[row], terminated[row] = -99.0, True
                continue
            self._at[row, 2] += 1
            k, step = int(self._begun[row]), int(self._at[row, 2])
            rewards[row] = step + 0.5 * actions[row]
            info = step_info(step)
            if step >= self._length(row, k):
                terminated[row], truncated[row] = (row + k) % 2 == 0, (row + k) % 2 == 1
                if self._mode == SAME_STEP:
                    infos = self._add_info(
                        infos, {"final_obs": self._at[row].copy(), "final_info": info}, row
                    )
                    self._begin(row)
                    info = {"k": int(self._begun[row])}
                else:
                    self._over[row] = True
            infos = self._add_info(infos, info, row)
        kept = {key: value for key, value in infos.items() if not self._quiet or "final" in key}
        return self._at, rewards, terminated, truncated, kept


def step_info(step: int) -> dict[str, Any]:
    """Return the infos of a step of ScriptedVectorEnv."""
    return ({"step": step} if step % 2 == 0 else {}) | ({"note": f"at {step}"} if step % 3 == 0 else {})


# -- policies ----------------------------------------------------------------------------------------------------------


def observed(space: spaces.Space[Any], observation: Any) -> float:
    """Return a number in [0, 1) that follows from the whole observation."""
    total = 0.0
    for value in SpaceRows(space).columns(observation):
        digits = np.frombuffer(value.encode(), np.uint8) if isinstance(value, str) else np.asarray(value)
        total += float(np.abs(digits.astype(np.float64) * 7.31).sum())
    return total % 1.0


class TablePolicy:
    """Has `get_action` alone, which looks the action up in a table, for any space; others change `place`."""

    def __init__(self, spec: EnvSpec) -> None:
        own = deepcopy(spec.action_space)
        own.seed(5)
        self.spec, self.table = spec, [own.sample() for _ in range(16)]

    def place(self, observation: Any) -> float:
        return observed(self.spec.observation_space, observation)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        place = int(self.place(observation) * 16)
        return self.table[place], {"place": place, "half": np.float32(place / 2)}

    def choose(self, observation: Any) -> Any:
        """Return the bare action, as a plain function does."""
        return self.get_action(observation)[0]


class CountingPolicy(TablePolicy):
    """Remembers how many steps it has taken since its reset."""

    count = 0

    def reset(self) -> None:
        self.count = 0

    def place(self, observation: Any) -> float:
        self.count += 1
        return (super().place(observation) + 0.37 * self.count) % 1.0


class OwnDrawPolicy(TablePolicy):
    """Draws from a generator of its own."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self.rng = np.random.default_rng()

    def place(self, observation: Any) -> float:
        return float(self.rng.random())


class SeededPolicy(OwnDrawPolicy):
    """Makes its generator anew in its `seed`."""

    def seed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)


class SpaceDrawPolicy(TablePolicy):
    """Draws from the action space that it was given."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self.spec.action_space.sample(), {}


class BatchPolicy(TablePolicy):
    """The table for any number of rows at once."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        rows = SpaceRows(self.spec.observation_space).split(observations)
        actions, infos = zip(*(self.get_action(row) for row in rows), strict=True)
        batch = SpaceRows(self.spec.action_space).stack(actions)
        return batch, {key: np.array([info[key] for info in infos]) for key in infos[0]}


class ParameterPolicy(BatchPolicy):
    """Always takes one action: its parameter."""

    def get_param_values(self) -> dict[str, Any]:
        return {"action": self.table[0]}

    def set_param_values(self, params: dict[str, Any]) -> None:
        self.table = [params["action"]] * 16


class GivenPolicy:
    """Gives what it is told to, from the second step on; before that action 0."""

    given: Any = 0

    def __init__(self, spec: EnvSpec) -> None:
        self._calls = 0

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        self._calls += 1
        good = np.zeros(len(observations), np.int64)
        return (good if self._calls == 1 else self.given(good)), {}


# -- workers -----------------------------------------------------------------------------------------------------------


def env_of(kind: str, env: Callable[[], Env], n_envs: int = N_ENVS) -> Any:
    """Return what a worker of this kind is given for environments that `env` makes."""
    if kind == "default":
        return env()
    return (
        [env() for _ in range(n_envs)]
        if kind == "sync"
        else SyncVectorEnv([env] * n_envs, autoreset_mode=NATIVE[kind])
    )


def make(
    kind: str,
    env: Callable[[], Env] | Any = ChainEnv,
    policy: Callable[[EnvSpec], Any] = BatchPolicy,
    *,
    limit: float | None = None,
    context: WorkerContext | None = None,
    n_envs: int = N_ENVS,
) -> DefaultWorker:
    """Return a worker of a kind, with environments that `env` makes (or the one it is), and a policy for them."""
    common: dict[str, Any] = {"seed": SEED, "max_episode_length": limit, "worker_number": 2}
    if kind == "default":
        worker = DefaultWorker.in_context(context or WorkerContext(), **common)
    else:
        common |= {"n_envs": n_envs, "vectorization": "sync" if kind == "sync" else "native"}
        worker = VecWorker.in_context(context or WorkerContext(), **common)
    worker.update_env(env_of(kind, env, n_envs) if callable(env) else env)
    worker.update_agent(policy(env_spec_of(env()) if callable(env) else worker.env_spec))
    return worker


def run(worker: DefaultWorker, numbers: range | Iterable[range], *, steps: int = 1) -> Chunk:
    """Run these episodes to their end, taking what is finished every few steps; return them in order."""
    worker.assign([numbers] if isinstance(numbers, range) else numbers)
    chunks: list[Chunk] = []
    while worker.has_work:
        for _ in range(steps):
            if worker.has_work:
                worker.advance(-1.0)
        chunks += worker.take()
    return by_number([*chunks, *worker.take(everything=True)])


def take_all(worker: DefaultWorker) -> Chunk:
    """Take all that is finished, as one chunk."""
    return by_number(worker.take(everything=True))


def advance(worker: DefaultWorker) -> None:
    """Run all that is assigned, a step at a time."""
    while worker.has_work:
        worker.advance(-1.0)


def by_number(chunks: Sequence[Chunk]) -> Chunk:
    """Return the episodes of some chunks in the order of their numbers; each chunk's own must rise."""
    assert all((np.diff(chunk.numbers) > 0).all() for chunk in chunks)
    whole = concatenate(chunks)
    return concatenate([whole.episodes(at, at + 1) for at in np.argsort(whole.numbers).tolist()])


def assert_same_episodes(expected: Chunk, actual: Chunk) -> None:
    """Check that two chunks hold the same episodes, bit for bit, wherever and however fast they were run."""
    for name in ("numbers", "seeds", "lengths", "terminated", "truncated", "rewards"):
        np.testing.assert_array_equal(getattr(expected, name), getattr(actual, name), err_msg=name)
    for name in ("observations", "actions", "last_observations"):
        for one, other in zip(getattr(expected, name), getattr(actual, name), strict=True):
            assert one.dtype == other.dtype
            if one.dtype == object:
                assert [repr(value) for value in one] == [repr(value) for value in other], name
            else:
                np.testing.assert_array_equal(one, other, err_msg=name)
    for name in ("env_infos", "agent_infos", "episode_infos"):
        left, right = getattr(expected, name), getattr(actual, name)
        assert {(c.path, c.kind) for c in left.columns} == {(c.path, c.kind) for c in right.columns}, name
        assert [{k: str(v) for k, v in info.items()} for info in row_dicts(left)] == [
            {k: str(v) for k, v in info.items()} for info in row_dicts(right)
        ], name


def check_chain(chunk: Chunk) -> None:
    """Check that every episode of ChainEnv is whole: it counts its steps from 0 to its length."""
    for at in range(chunk.n_episodes):
        one = chunk.episodes(at, at + 1)
        length = int(one.lengths[0])
        (observations,), (last,) = one.observations, one.last_observations
        assert list(range(length)) == observations[:, 0].tolist()
        assert length == last[0, 0]
        assert [{"position": step + 1} for step in range(length)] == row_dicts(one.env_infos)
        assert [{"length": int(last[0, 1])}] == row_dicts(one.episode_infos)
        assert np.where(one.actions[0] == 1, 1.0, 0.5).tolist() == one.rewards.tolist()


def now() -> float:
    """Return the time of the workers' clock."""
    return time.perf_counter()


def assert_arrays_are_taken(kind: str, array: Callable[[Any], Any]) -> None:
    """Run episodes of which every value is an array of a library, and compare them with those of numpy's."""

    class Writing(BatchPolicy):
        def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
            actions, infos = super().get_actions(observations)
            observations[...] = 0  # An observation is the policy's own.
            return actions, infos

    native = kind in NATIVE
    env: Any = ArrayVectorEnv(env_of(kind, ChainEnv), array) if native else lambda: ArrayEnv(array)
    taken, plain = run(make(kind, env, Writing), range(12)), run(make(kind, policy=Writing), range(12))
    assert row_dicts(plain.env_infos) == row_dicts(taken.env_infos)
    for name in ("numbers", "lengths", "terminated", "truncated", "rewards"):
        assert np.array_equal(getattr(plain, name), getattr(taken, name)), name
    for name in ("observations", "last_observations"):
        expected, values = getattr(plain, name)[0], getattr(taken, name)[0]
        assert expected.dtype == values.dtype
        assert np.array_equal(expected, values), name
