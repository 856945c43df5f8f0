"""What user code gives, nearly or not at all as its interface asks: converted, or refused with one clear line."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from rollout_cli.episodes.chunk import episode_returns
from rollout_cli.errors import EnvError, EnvLoadError, PolicyError
from rollout_cli.workers.checks import sound_episodes
from rollout_cli.workers.context import WorkerContext
from rollout_cli.workers.kinds import VecWorker
from rollout_cli.workers.values import EpisodeRules
from tests.helpers.contents import row_dicts
from tests.helpers.errors import raises
from tests.workers import worlds
from tests.workers.worlds import DISABLED, NATIVE, SAME_STEP, SEED, SINGLE, ChainEnv, make, run

each_single = pytest.mark.parametrize("kind", SINGLE)
each_native = pytest.mark.parametrize("kind", NATIVE)


def bending(at: int | None, bend: Callable[[Any], Any], verb: str = "step") -> Callable[[], ChainEnv]:
    """Return a factory of environments whose results are bent, at one place or (None) as a whole."""

    class Bent(ChainEnv):
        def __init__(self) -> None:
            super().__init__(length=3)

        def reset(self, **arguments: Any) -> Any:
            return self._bent(super().reset(**arguments)) if verb == "reset" else super().reset(**arguments)

        def step(self, action: Any) -> Any:
            return self._bent(super().step(action)) if verb == "step" else super().step(action)

        def _bent(self, result: Any) -> Any:
            if at is None:
                return bend(result)
            parts = list(result)
            parts[at] = bend(parts[at])
            return tuple(parts)

    return Bent


class Foreign:
    """An array of one element as TensorFlow's are: it has no `item`."""

    def __init__(self, value: Any) -> None:
        self._value = np.array([value])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value[0])


def read_only(seen: Any) -> Any:
    """Return float64 numbers that nobody can write to, as a view of a JAX array is."""
    seen = np.array(seen, np.float64)
    seen.flags.writeable = False
    return seen


GOOD: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "float64 observations": (0, lambda seen: seen.astype(np.float64)),
    "lists": (0, lambda seen: seen.tolist()),
    "numpy rewards": (1, np.float32),
    "array rewards": (1, lambda reward: np.array([reward])),
    "integer rewards": (1, lambda reward: 1),
    "numpy flags": (2, np.bool_),
    "array flags": (2, np.array),
    "flags of one element": (2, lambda flag: np.array([[flag]])),
    "integer flags": (2, int),
    "float flags": (2, np.float32),
    "array truncations": (3, lambda flag: np.array([flag])),
    "rewards in an array of any shape": (1, lambda reward: np.array([[reward]], np.float32)),
    "rewards of a foreign array": (1, Foreign),
    "flags of a foreign array": (2, Foreign),
    "read-only observations": (0, read_only),
    "a subclass of dict": (4, type("Info", (dict,), {})),
}


@each_single
@pytest.mark.parametrize("name", GOOD)
def test_values_that_are_converted(kind: str, name: str) -> None:
    """They mean the same in another type."""
    at, bend = GOOD[name]
    chunk = run(make(kind, bending(at, bend)), range(4))
    assert np.float32 == chunk.observations[0].dtype
    assert ([3] * 4, [True] * 4) == (chunk.lengths.tolist(), chunk.terminated.tolist())
    assert (
        np.where(chunk.actions[0] == 1, 1.0, 1.0 if name == "integer rewards" else 0.5).tolist()
        == chunk.rewards.tolist()
    )
    assert [0, 1, 2] * 4 == chunk.observations[0][:, 0].tolist()


@pytest.mark.parametrize("kind", worlds.KINDS)
@pytest.mark.parametrize("array", [np.asarray, read_only, np.float32, np.atleast_1d])
def test_values_of_an_array_library(kind: str, array: Callable[[Any], Any]) -> None:
    """Each observation, reward and flag is an array: 0-d, of one element, read-only, of floats for flags too."""
    worlds.assert_arrays_are_taken(kind, array)


BAD: dict[str, tuple[Any, Callable[[Any], Any], str, list[object]]] = {
    "gym's old step": (None, lambda result: (*result[:3], result[4]), "result-type", []),
    "no step": (None, lambda result: None, "result-type", []),
    "shape": (0, lambda seen: seen[:2], "value-shape", ["observation", "float32(2,)", "float32(3,)", "Box"]),
    "type": (
        0,
        lambda seen: seen.astype(complex),
        "value-shape",
        ["observation", "complex128(3,)", "float32"],
    ),
    "none": (0, lambda seen: None, "value-shape", ["observation", "NoneType None"]),
    "ragged": (0, lambda seen: [[1.0], 2.0], "value-shape", ["observation", "list [[1.0], 2.0]"]),
    "text reward": (1, lambda reward: "much", "step-value", ["reward='much'", "str"]),
    "readable reward": (1, lambda reward: "1.5", "step-value", ["reward='1.5'", "str"]),
    "no reward": (1, lambda reward: None, "step-value", ["reward=None", "NoneType"]),
    "rewards": (
        1,
        lambda reward: np.zeros((2, 1)),
        "step-value",
        ["reward=array([[0.], [0.]])", "ndarray", (2, 1)],
    ),
    "complex reward": (
        1,
        lambda reward: np.complex64(1 + 2j),
        "step-value",
        ["reward=", "1+2j", "complex64"],
    ),
    "huge reward": (1, lambda reward: 10**400, "step-value", ["reward=1000"]),
    "text flag": (2, lambda flag: "no", "step-value", ["terminated='no'", "str"]),
    "number flag": (3, lambda flag: 7, "step-value", ["truncated=7", "int"]),
    "flags": (
        2,
        lambda flag: np.array([True, False]),
        "step-value",
        ["terminated=array([ True, False])", "ndarray", (2,)],
    ),
    "flags, all false": (3, lambda flag: np.zeros(2, bool), "step-value", ["truncated=array([False, False"]),
    "fraction flag": (3, lambda flag: 0.5, "step-value", ["truncated=0.5"]),
    "list info": (4, lambda info: [1], "info-type", ["list [1]"]),
    "no info": (4, lambda info: None, "info-type", ["NoneType None"]),
}


@each_single
@pytest.mark.parametrize("name", BAD)
def test_steps_that_are_refused(kind: str, name: str) -> None:
    """One line: the call, the value, what was expected, and whose step it was."""
    at, bend, code, values = BAD[name]
    with raises(EnvError, code, "env.step", *values, "worker 2, episode 0, seed ") as caught:
        run(make(kind, bending(at, bend)), range(4))
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert (0,) == caught.value.episodes


@each_single
@pytest.mark.parametrize(
    ("at", "bend", "code", "values"),
    [
        (None, lambda result: result[0], "result-type", []),
        (1, lambda info: [1], "info-type", ["list [1]"]),
        (0, lambda seen: "text", "value-shape", ["observation", "str 'text'", "float32"]),
    ],
)
def test_resets_that_are_refused(kind: str, at: int | None, bend: Any, code: str, values: list[str]) -> None:
    """The same of `env.reset`."""
    with raises(EnvError, code, "env.reset", *values):
        run(make(kind, bending(at, bend, "reset")), range(4))


@each_single
def test_an_observation_that_lacks_a_key(kind: str) -> None:
    """A dictionary is held against its space."""

    class Lacking(gymnasium.ObservationWrapper[Any, Any, Any]):
        def __init__(self) -> None:
            super().__init__(ChainEnv(length=3))
            box = self.env.observation_space
            self.observation_space = spaces.Dict(chain=box, other=box)

        def observation(self, observation: Any) -> Any:
            return {"chain": observation}

    with raises(EnvError, "value-structure", "KeyError", "other"):
        run(make(kind, Lacking, lambda spec: lambda seen: 0), range(2))


@each_single
def test_text_without_utf8(kind: str) -> None:
    """A lone surrogate cannot be stored; it is the environment's error."""

    class Texts(ChainEnv):
        def __init__(self) -> None:
            super().__init__(length=2)
            self.observation_space = spaces.Text(8)

        def observe(self) -> Any:
            return "a\ud800" if self._position else "good"

    with raises(EnvError, "string-value", "UTF"):
        run(make(kind, Texts, lambda spec: lambda seen: 0), range(2))


FRAMES = spaces.Box(0, 255, (80, 80), np.uint8)


@each_single
@pytest.mark.parametrize(
    ("space", "good", "bad", "code"),
    [
        (spaces.Box(-128, 127, (1,), np.int8), np.array([-128]), np.array([200]), "number-range"),
        (FRAMES, np.full((80, 80), 255, np.uint16), np.full((80, 80), 256, np.uint16), "number-range"),
        (spaces.MultiBinary(2), np.array([0, 1]), np.array([0, 257]), "number-range"),
        (spaces.Discrete(5), 4, 2**63, "value-shape"),
        (spaces.Discrete(5), np.uint64(4), np.uint64(2**64 - 1), "value-shape"),
    ],
)
def test_integers_without_room_are_refused(kind: str, space: Any, good: Any, bad: Any, code: str) -> None:
    """No other number is recorded in their place; the error is that of their own episode."""

    class Large(ChainEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = space

        def observe(self) -> Any:
            return bad if self._position == 1 and self.length == 3 else good

    with raises(EnvError, code, "env.step", "observation", space.dtype) as caught:
        run(make(kind, Large, lambda spec: lambda seen: 0), range(20))
    (number,) = caught.value.episodes
    chunk = run(make(kind, Large, lambda spec: lambda seen: 0), range(number))
    assert 3 not in chunk.lengths
    assert (chunk.observations[0] == good).all()


@pytest.mark.parametrize("kind", worlds.KINDS)
def test_actions_without_room_are_refused(kind: str) -> None:
    """The environment never sees another action in their place, which might be one of its space."""

    class Pushed(ChainEnv):
        def __init__(self) -> None:
            super().__init__(length=3)
            self.action_space = spaces.Box(-100, 100, (2,), np.int8)

        def step(self, action: Any) -> Any:
            raise AssertionError(f"it was given {action}")

    class Far:
        def get_actions(self, seen: Any) -> Any:
            return np.full((len(seen), 2), 300), {}

    for rule in ("error", "warn"):
        with raises(PolicyError, "number-range"):
            run(
                make(
                    kind, Pushed, lambda spec: Far(), context=WorkerContext(EpisodeRules(invalid_action=rule))
                ),
                range(3),
            )


@each_single
def test_a_list_of_actions_that_are_one_number_each(kind: str) -> None:
    """It is as good as an array."""

    class Listing:
        def __init__(self, spec: Any) -> None: ...

        def get_actions(self, seen: Any) -> Any:
            return [0.25] * len(seen), {}

    chunk = run(make(kind, worlds.space_env("0-d box"), Listing), range(3))
    assert {0.25} == set(chunk.actions[0].tolist())


@pytest.mark.parametrize("kind", worlds.KINDS)
def test_discrete_actions_without_room_are_refused(kind: str) -> None:
    """Their column has room for them, and the environment would be given another one."""

    class Small(ChainEnv):
        def __init__(self) -> None:
            super().__init__(length=3)
            space: Any = spaces.Discrete(3)
            space.dtype = np.dtype(np.int8)  # The argument came with gymnasium 1.2.2.
            self.action_space = space

        def step(self, action: Any) -> Any:
            assert action == 100
            return super().step(action)

    class Far:
        def __init__(self, spec: Any) -> None: ...

        def get_actions(self, seen: Any) -> Any:
            return np.where(seen[:, 0] == 1, 300, 100), {}

    with raises(PolicyError, "action-outside-space"):
        run(make(kind, Small, Far, context=WorkerContext(EpisodeRules(invalid_action="warn"))), range(3))


@each_single
@pytest.mark.parametrize(
    ("given", "expected"),
    [(True, 1), (np.bool_(True), 1), (np.int8(1), 1), (np.array(1), 1), (np.uint64(0), 0)],
)
def test_integers_of_any_type_are_discrete_actions(kind: str, given: Any, expected: int) -> None:
    """The environment gets its space's own type."""

    class Typed(ChainEnv):
        def step(self, action: Any) -> Any:
            assert type(action) is np.int64
            return super().step(action)

    chunk = run(make(kind, Typed, lambda spec: lambda seen: given), range(2))
    assert {expected} == set(chunk.actions[0].tolist())


@each_single
@pytest.mark.parametrize("given", [1.0, "1", None, [1], np.array([1]), math.nan])
def test_other_actions_are_refused(kind: str, given: Any) -> None:
    """A guess at their meaning could be wrong."""
    with raises(PolicyError, "value-shape"):
        run(make(kind, ChainEnv, lambda spec: lambda seen: given), range(2))


@pytest.mark.parametrize("kind", worlds.KINDS)
def test_a_wide_action_is_checked_too(kind: str) -> None:
    """Number by number or all at once: one is outside."""
    box = spaces.Box(-1.0, 1.0, (40,), np.float32)

    class Wide(ChainEnv):
        def __init__(self) -> None:
            super().__init__(length=3)
            self.action_space = box

        def step(self, action: Any) -> Any:
            return super().step(0)

    class OneOutside:
        def get_actions(self, seen: Any) -> Any:
            actions = np.zeros((len(seen), 40), np.float32)
            actions[:, 39] = 1.5
            return actions, {}

    with raises(PolicyError, "action-outside-space"):
        run(make(kind, Wide, lambda spec: OneOutside()), range(2))
    rules = EpisodeRules(invalid_action="clip")
    chunk = run(make(kind, Wide, lambda spec: OneOutside(), context=WorkerContext(rules)), range(3))
    assert 1.0 == chunk.actions[0].max()


@pytest.mark.parametrize("kind", worlds.KINDS)
def test_a_reward_that_is_no_number_leaves_its_episode_out(kind: str) -> None:
    """The others of the chunk are given beside the error, which has the number; thousands of faults are no trouble."""

    class Faulty(ChainEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, math.nan if self.length == 3 else reward, *rest

    worker = make(kind, Faulty)
    worker.assign([range(60)])
    while worker.has_work:
        worker.advance(worlds.now() + 0.1)
    chunk, error = sound_episodes(worlds.take_all(worker))
    assert isinstance(error, EnvError)
    assert chunk is not None
    assert not np.isnan(chunk.rewards).any()
    assert 3 not in chunk.lengths
    assert set(error.episodes).isdisjoint(chunk.numbers.tolist())
    assert 1 == len(error.episodes)
    assert "seed -1" not in error.message


def test_a_nan_action_is_named_where_the_reward_is_nan() -> None:
    """Under `warn` the environment is given such an action, and cannot be blamed."""

    class Following(ChainEnv):
        def __init__(self) -> None:
            super().__init__(length=1)
            self.action_space = spaces.Box(-1.0, 1.0, (1,))

        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(0)
            return observation, float(action[0]), *rest

    worker = make(
        "default",
        Following,
        lambda spec: lambda seen: np.full(1, math.nan, np.float32),
        context=WorkerContext(EpisodeRules(invalid_action="warn")),
    )
    worker.assign([range(1)])
    worker.advance(worlds.now() + 1)
    chunk, error = sound_episodes(worlds.take_all(worker))
    assert chunk is None
    assert error is not None
    assert "reward-nan" == error.code
    assert "policy" in error.hint


@each_single
@pytest.mark.parametrize("repeats", [1, 600])
def test_nothing_is_left_of_an_observation_that_was_refused(kind: str, repeats: int) -> None:
    """Nor of those of its parts that were good: the episodes after it have their own last observations."""

    class Halves(ChainEnv):
        calls = 0

        def __init__(self) -> None:
            super().__init__(length=2)
            part = spaces.Box(-1.0, 100_000.0, (3 * repeats,))
            self.observation_space = spaces.Dict(good=part, other=part)

        def observe(self) -> Any:
            Halves.calls, seen = Halves.calls + 1, np.tile(super().observe(), repeats)
            return {"good": seen, "other": seen[:2] if Halves.calls == 3 else seen}

    worker = make(kind, Halves, lambda spec: lambda seen: 0, n_envs=1)
    with raises(EnvError, "value-shape", "other"):
        run(worker, range(1))
    good, other = run(worker, range(1, 4)).last_observations
    assert good.tolist() == other.tolist()


# -- batches -----------------------------------------------------------------------------------------------------------


class BentVectorEnv(SyncVectorEnv):
    """Rows of ChainEnv; the second step's result is changed by `bend`."""

    def __init__(self, mode: str, bend: Callable[[list[Any]], Any]) -> None:
        super().__init__([lambda: ChainEnv(length=4)] * 3, autoreset_mode=mode)
        self._bend, self._steps = bend, 0

    def step(self, actions: Any) -> Any:
        parts = list(super().step(actions))
        self._steps += 1
        return self._bend(parts) if self._steps == 2 else parts


def with_part(at: int, value: Any) -> Callable[[list[Any]], Any]:
    """Put a value in place of one part of a step."""

    def bend(parts: list[Any]) -> Any:
        parts[at] = value(parts[at]) if callable(value) else value
        return tuple(parts)

    return bend


BENT: dict[str, tuple[Callable[[list[Any]], Any], str, list[str]]] = {
    "gym's old step": (lambda parts: tuple(parts[:4]), "result-type", []),
    "nothing": (lambda parts: None, "result-type", []),
    "few rewards": (with_part(1, np.zeros(2)), "batch-shape", ["float64(2,)", "3"]),
    "texts": (with_part(1, np.array(["a", "b", "c"])), "batch-shape", ["<U1(3,)"]),
    "columns": (with_part(1, np.zeros((3, 1))), "batch-shape", ["float64(3, 1)"]),
    "odd rewards": (with_part(1, [[1.0], 2.0, 3.0]), "batch-shape", ["list [[1.0], 2.0"]),
    "few flags": (with_part(2, np.zeros(2, bool)), "batch-shape", ["terminated", "bool(2,)"]),
    "one flag": (with_part(3, False), "batch-shape", ["truncated", "bool()"]),
    "halves": (with_part(2, np.full(3, 0.5)), "batch-shape", ["terminated", "float64(3,)"]),
    "twos": (with_part(3, np.full(3, 2)), "batch-shape", ["truncated", "int64(3,)"]),
    "few rows": (
        with_part(0, lambda seen: seen[:2]),
        "batch-shape",
        ["observations", "float32(2, 3)", "float32(3, 3)"],
    ),
    "other numbers": (
        with_part(0, lambda seen: seen.astype(complex)),
        "batch-shape",
        ["observations", "complex128(3, 3)"],
    ),
    "no mapping": (with_part(4, [1]), "info-type", ["list [1]"]),
    "short masks": (
        with_part(4, {"x": np.zeros(3), "_x": np.ones(2, bool)}),
        "batch-shape",
        ["'x'", "bool(2,)"],
    ),
}


@each_native
@pytest.mark.parametrize("name", BENT)
def test_vector_steps_that_are_refused(kind: str, name: str) -> None:
    """One line with both sides, whose step it was, and a hint."""
    bend, code, values = BENT[name]
    with raises(EnvError, code, "env.step", *values, "worker 2, episodes 0 to 2 of 3 ") as caught:
        run(make(kind, BentVectorEnv(NATIVE[kind], bend)), range(6))
    assert caught.value.hint
    assert (0, 1, 2) == caught.value.episodes


@pytest.mark.parametrize("kind", ["native next", "native same"])
def test_integers_of_vector_steps_without_room_are_refused(kind: str) -> None:
    """No other number is recorded in their place; those that have room are converted."""

    class Wide(worlds.ScriptedVectorEnv):
        extra = 0

        def step(self, actions: Any) -> Any:
            seen, *rest = super().step(actions)
            return seen.astype(np.int64) + self.extra, *rest

    env = Wide(3, lambda row, k: 3, NATIVE[kind])
    worker = make(kind, env)
    assert np.int32 == run(worker, range(3)).observations[0].dtype
    env.extra = 2**32
    with raises(EnvError, "number-range"):
        run(worker, range(3, 6))


@each_native
def test_infos_that_a_row_lacks_at_times(kind: str) -> None:
    """Each stands at its step, among objects where another row has None, and else in an array of numbers."""

    class Goals(ChainEnv):
        def __init__(self, first: int) -> None:
            super().__init__(length=5)
            self._first = first

        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            at = self._position
            return *rest, info | {"goal": np.array([at, 7]) if at >= self._first else None}

    env = SyncVectorEnv([partial(Goals, first) for first in (3, 1)], autoreset_mode=NATIVE[kind])
    infos = run(make(kind, env, n_envs=2), range(2)).env_infos
    assert ["goal", "goal", "position"] == sorted(column.path[0] for column in infos.columns)
    assert all((np.diff(column.row_numbers()) > 0).all() for column in infos.columns)
    goals = [None if info["goal"] is None else info["goal"].tolist() for info in row_dicts(infos)]
    assert [None, None, *([at, 7] for at in range(3, 6)), *([at, 7] for at in range(1, 6))] == goals


@each_native
def test_statistics_of_episodes(kind: str) -> None:
    """Their wrapper gives those of an episode with its last step, and counts on where others are reset."""
    env = RecordEpisodeStatistics(SyncVectorEnv([ChainEnv] * 3, autoreset_mode=NATIVE[kind]))
    chunk = run(make(kind, env), range(9))
    ends = np.cumsum(chunk.lengths) - 1
    found = {column.path: column for column in chunk.env_infos.columns if "episode" in column.path}
    returns, lengths = found["episode", "r"], found["episode", "l"]
    assert ends.tolist() == returns.row_numbers().tolist() == lengths.row_numbers().tolist()
    assert chunk.lengths.tolist() == lengths.values.tolist()
    assert episode_returns([chunk.rewards], chunk.lengths).tolist() == returns.values.tolist()
    assert [("length",)] == [column.path for column in chunk.episode_infos.columns]


@each_native
def test_zeros_and_ones_are_bools(kind: str) -> None:
    """As some simulators give them."""
    expected = run(make(kind, lambda: ChainEnv(length=4)), range(6))
    bent = BentVectorEnv(NATIVE[kind], with_part(2, lambda flags: flags.astype(np.int8)))
    worlds.assert_same_episodes(expected, run(make(kind, bent), range(6)))


@pytest.mark.parametrize("copy", [True, False])
def test_a_mask_that_is_ignored(copy: bool) -> None:
    """An environment that resets more rows than it is asked to would spoil their episodes."""

    class ResetsEverything(SyncVectorEnv):
        def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
            return super().reset(seed=seed)

    env = ResetsEverything(
        [partial(ChainEnv, length=length) for length in (2, 5, 5)], autoreset_mode=DISABLED, copy=copy
    )
    with raises(EnvLoadError, "reset-mask-ignored", "reset_mask"):
        run(make("native disabled", env), range(6))


def test_last_observations_that_are_missing() -> None:
    """SAME_STEP needs them."""

    class Silent(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            return *rest, {key: value for key, value in infos.items() if "final" not in key}

    with raises(EnvError, "final-observation-missing", "final_obs"):
        run(make("native same", Silent([ChainEnv] * 3, autoreset_mode=SAME_STEP)), range(6))


def test_last_infos_that_are_no_dictionary() -> None:
    """As gymnasium gave them before 1.0: an array of one dictionary a row."""

    class Old(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            return *rest, {**infos, "final_info": np.full(3, None)}

    with raises(EnvError, "info-type"):
        run(make("native same", Old([ChainEnv] * 3, autoreset_mode=SAME_STEP)), range(6))


def test_last_observations_that_lack_a_part() -> None:
    """Of a Dict; the line names the key."""

    class Partial(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            if "final_obs" in infos:
                infos["final_obs"] = {"speed": np.zeros((3, 2), np.float32), "mode": np.ones(3, np.int64)}
            return *rest, infos

    env = Partial([worlds.space_env("dict")] * 3, autoreset_mode=SAME_STEP)
    with raises(EnvError, "value-structure", "KeyError", "camera"):
        run(make("native same", env), range(6))


@pytest.mark.parametrize(
    ("space", "bend", "code", "values"),
    [
        ("box", lambda seen: None, "batch-shape", ["object(", ", 2, 3)"]),
        ("box", lambda seen: seen[0], "batch-shape", ["float64(", ", 3)"]),
        ("discrete", lambda seen: seen + 0.5, "batch-shape", ["float64(", "int64"]),
        ("text", lambda seen: 7, "string-value", ["int 7", "Text"]),
        ("dict", lambda seen: None, "value-structure", ["TypeError"]),
    ],
)
def test_last_observations_that_are_refused(space: str, bend: Any, code: str, values: list[str]) -> None:
    """They are held against the space, as all others are: a missing one is no nan, and a half is no integer."""

    class Bent(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            for row in np.flatnonzero(infos.get("_final_obs", ())):
                infos["final_obs"][row] = bend(infos["final_obs"][row])
            return *rest, infos

    env = Bent([worlds.space_env(space)] * 3, autoreset_mode=SAME_STEP)
    with raises(EnvError, code, "env.step", *values):
        run(make("native same", env), range(6))


def test_an_error_names_the_seed_that_a_row_was_given() -> None:
    """ALE's environments take an array of seeds, of 31 bits, and no list."""
    given: list[int] = []

    class TakesArray(SyncVectorEnv):
        def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
            if isinstance(seed, list):
                raise TypeError("no list")
            given.extend(seed.tolist())
            return super().reset(seed=seed.tolist(), options=options)

    class Outside(worlds.BatchPolicy):
        def get_actions(self, observations: Any) -> Any:
            return np.array([0, 7, 0]), {}

    env = TakesArray([ChainEnv] * 3, autoreset_mode=DISABLED)
    with pytest.raises(PolicyError) as caught:
        run(make("native disabled", env, Outside), range(3))
    assert f"episode 1, seed {given[1]}, step 0" in str(caught.value)


def test_last_observations_as_one_array() -> None:
    """ALE's form: those of all rows."""

    class Dense(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            if "final_obs" in infos:
                final = np.zeros((3, 3), np.float32)
                for row in np.flatnonzero(infos["_final_obs"]):
                    final[row] = infos["final_obs"][row]
                infos["final_obs"] = final
            return *rest, infos

    worlds.check_chain(run(make("native same", Dense([ChainEnv] * 3, autoreset_mode=SAME_STEP)), range(9)))


def test_an_environment_that_does_not_say_how_it_resets() -> None:
    """Nobody could tell whose steps are whose."""
    env = SyncVectorEnv([ChainEnv] * 3)
    env.metadata = {}
    with raises(EnvLoadError, "env-autoreset", "autoreset_mode"):
        make("native next", env)


def test_a_limit_that_nobody_can_keep() -> None:
    """Rows that reset themselves cannot be cut by the worker."""
    with raises(EnvLoadError, "env-autoreset") as caught:
        make("native next", limit=6)
    assert "max_episode_steps" in caught.value.hint


POLICIES: dict[str, tuple[Any, str, list[object]]] = {
    "few rows": ((np.zeros(2, int), {}), "policy-row-count", [2, 3]),
    "ragged": (([[1], 1, 1], {}), "batch-shape", ["[[1], 1, 1]"]),
    "long infos": ((np.zeros(3, int), {"x": np.zeros(5)}), "policy-row-count", [5, "'x'"]),
    "no pair": (np.zeros(3, int), "policy-result", ["ndarray"]),
}


@each_native
@pytest.mark.parametrize("name", POLICIES)
def test_policies_that_do_not_act_for_each_row(kind: str, name: str) -> None:
    """The policy's error, with whose step it was."""
    given, code, values = POLICIES[name]
    policy = type("Given", (), {"get_actions": lambda self, seen: given})
    with raises(PolicyError, code, *values) as caught:
        run(make(kind, ChainEnv, lambda spec: policy()), range(6))
    assert "worker 2, episodes 0 to 2 of 3 rows" == caught.value.place


# -- generators that rows share ----------------------------------------------------------------------------------------


class GlobalDrawEnv(ChainEnv):
    """Draws its noise from numpy's global generator."""

    def observe(self) -> Any:
        return np.array([self._position, self.length, np.random.random()], np.float32)


def test_an_environment_that_draws_globally() -> None:
    """One environment a worker is seeded for each episode; several would share the generator, which the check finds."""
    first = run(make("default", GlobalDrawEnv), range(5))
    worlds.assert_same_episodes(first, run(make("default", GlobalDrawEnv), range(5)))
    worlds.assert_same_episodes(first, run(make("sync", GlobalDrawEnv, n_envs=1), range(5)))


def test_a_batched_policy_that_draws() -> None:
    """One with `seed_rows` draws for each episode by itself."""

    class Drawing(worlds.BatchPolicy):
        def __init__(self, spec: Any) -> None:
            super().__init__(spec)
            self.rng = np.random.default_rng(0)

        def get_actions(self, observations: Any) -> Any:
            return self.rng.integers(0, 2, len(observations)), {}

    class Seeded(Drawing):
        def seed_rows(self, mask: Any, seeds: Any) -> None:
            self.rows = {**getattr(self, "rows", {})} | {
                row: np.random.default_rng(int(seeds[row])) for row in np.flatnonzero(mask).tolist()
            }

        def get_actions(self, observations: Any) -> Any:
            return np.array([self.rows[row].integers(0, 2) for row in range(len(observations))]), {}

    worker = make("sync", policy=Seeded)
    whole = run(worker, range(9))
    assert worker.report().not_reproducible is None
    worlds.assert_same_episodes(whole.episodes(4, 9), run(make("sync", policy=Seeded), range(4, 9)))


def test_environments_of_several_kinds() -> None:
    """Rows must be alike, and as many as there are rows."""
    worker = VecWorker(seed=SEED, max_episode_length=None, worker_number=0, n_envs=2)
    with raises(EnvLoadError, "worker-spaces"):
        worker.update_env([ChainEnv(), worlds.space_env("box")()])
    with raises(ValueError, "list-length"):
        worker.update_env([ChainEnv()] * 3)
    limited = gymnasium.wrappers.TimeLimit(ChainEnv(), 5)
    with raises(EnvLoadError, "worker-spaces"):
        worker.update_env([ChainEnv(), limited])
    with raises(EnvLoadError, "env-type"):
        worker.update_env(SyncVectorEnv([ChainEnv] * 2))


@pytest.mark.parametrize(
    ("arguments", "values"),
    [({"n_envs": 0}, ["n_envs", 0]), ({"vectorization": "x"}, ["'x'"])],
)
def test_arguments_that_are_refused(arguments: Any, values: list[object]) -> None:
    """At once, with the value."""
    with raises(ValueError, "factory-argument", *values):
        VecWorker(seed=1, max_episode_length=None, worker_number=0, **arguments)
