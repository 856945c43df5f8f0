"""What a NativeVecWorker does about policies and vector environments that keep to their contracts only nearly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import EnvError, PolicyError, RolloutError
from rollout_cli.workers import DefaultWorker, NativeVecWorker, WorkerFactory
from rollout_cli.workers.native_rules import EndlessGuard
from rollout_cli.workers.row_episodes import RowEpisodes
from rollout_cli.workers.rules import EpisodeRules, OnInvalidAction
from tests.support import vector_envs
from tests.support.envs import ChainEnv
from tests.support.policies import LinearPolicy

DISABLED, NEXT_STEP, SAME_STEP = AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
each_mode = pytest.mark.parametrize("mode", [DISABLED, NEXT_STEP, SAME_STEP], ids=lambda mode: mode.value)
N_ENVS = 3

Parts = list[Any]


class BentVectorEnv(SyncVectorEnv):
    """Rows of ChainEnv; what a step gives is changed by `bend`, from the second step on."""

    def __init__(self, mode: AutoresetMode, bend: Callable[[Parts], Any]) -> None:
        super().__init__([ChainEnv] * N_ENVS, autoreset_mode=mode)
        self._bend, self._steps = bend, 0

    def step(self, actions: Any) -> Any:
        parts = list(super().step(actions))
        self._steps += 1
        # An environment that resets nothing by itself is tried out when it is taken, by a few steps.
        return self._bend(parts) if self._steps > (4 if self.metadata["autoreset_mode"] is DISABLED else 1) else parts


def with_part(at: int, value: Any) -> Callable[[Parts], Any]:
    """Put a value in place of one part of a step."""

    def bend(parts: Parts) -> Any:
        parts[at] = value(parts[at]) if callable(value) else value
        return tuple(parts)

    return bend


def run(env: Any, policy: Any, rules: EpisodeRules | None = None, **options: Any) -> Any:
    """Run some episodes; return what a sampler takes: the chunk, and the error of an episode."""
    factory = WorkerFactory(
        n_workers=1, seed=3, worker_class=NativeVecWorker, worker_args={"n_envs": N_ENVS}, rules=rules, **options
    )
    worker = factory(0)
    worker.update_env(env)
    worker.update_agent(policy(worker.env_spec) if isinstance(policy, type) else policy)
    worker.assign(range(6))
    while worker.has_work:
        worker.advance(-1.0)
    return factory.take(worker)


OLD = r"env.step did not give \(observation, reward, terminated, truncated, info\)"
BENT: dict[str, tuple[Callable[[Parts], Any], str]] = {
    "gym's old step": (lambda parts: tuple(parts[:4]), OLD),
    "nothing": (lambda parts: None, OLD + ": cannot unpack"),
    "few rewards": (with_part(1, np.zeros(2)), r"the rewards are not one number a row: got float64\(2,\), expected fl"),
    "texts": (with_part(1, np.array(["a", "b", "c"])), r"the rewards are not one number a row: got <U1\(3,\)"),
    "no reward": (with_part(1, None), r"the rewards are not one number a row: got object\(\)"),
    "columns": (with_part(1, np.zeros((3, 1))), r"the rewards are not one number a row: got float64\(3, 1\)"),
    "odd rewards": (with_part(1, [[1.0], 2.0, 3.0]), r"the rewards are not one number a row: got list \[\[1.0\], 2.0"),
    "few flags": (with_part(2, np.zeros(2, bool)), r"terminated is not one bool a row: got bool\(2,\), expected bool"),
    "one flag": (with_part(3, False), r"truncated is not one bool a row: got bool False, expected bool\(3,\)"),
    "numbers": (with_part(2, np.full(3, 0.5)), r"terminated is not one bool a row: got float64\(3,\)"),
    "twos": (with_part(3, np.full(3, 2)), r"truncated is not one bool a row: got int64\(3,\)"),
    "odd flags": (with_part(3, [[True], False, True]), r"truncated is not one bool a row: got list \[\[True\]"),
    "few rows": (with_part(0, lambda seen: seen[:2]), r"the observation is not of its space: got float32\(2, 3\), ex"),
    "flat rows": (with_part(0, lambda seen: seen[:, :2]), r"the observation is not of its space: got float32\(3, 2\)"),
    "other numbers": (with_part(0, lambda seen: seen.astype(complex)), r"the observation is not of its space: got co"),
    "ragged": (with_part(0, lambda seen: [[1.0], 2.0, 3.0]), r"the observation is not of its space: got list \[\[1.0"),
    "no mapping": (with_part(4, [1]), r"infos are a mapping, not list \[1\]"),
    "short masks": (with_part(4, {"x": np.zeros(3), "_x": np.ones(2, bool)}), "the infos of env.step cannot be told"),
}


@each_mode
@pytest.mark.parametrize("name", BENT)
def test_what_is_not_of_the_interface_is_told(mode: AutoresetMode, name: str) -> None:
    """One line with both sides, whose step it was, and a hint."""
    bend, message = BENT[name]
    with pytest.raises(EnvError, match=rf"^{message}.* \(worker 0, episodes 0 to \d, step \d of 3 rows\)$") as caught:
        run(BentVectorEnv(mode, bend), LinearPolicy)
    assert caught.value.hint
    assert "\n" not in caught.value.message


@each_mode
@pytest.mark.parametrize("kind", [np.int8, list, np.asarray])
def test_what_is_as_good_as_bools_will_do(mode: AutoresetMode, kind: Any) -> None:
    """Zeros and ones, and lists of bools."""
    convert = (lambda flags: flags.astype(np.int8)) if kind is np.int8 else kind
    expected, _ = run(BentVectorEnv(mode, tuple), LinearPolicy)
    actual, _ = run(BentVectorEnv(mode, with_part(2, convert)), LinearPolicy)
    assert expected.lengths.tolist() == actual.lengths.tolist()
    assert expected.terminated.tolist() == actual.terminated.tolist()


def test_last_observations_of_another_shape_are_told() -> None:
    """Those that an environment hands on beside the first ones of the next episodes."""

    def bend(parts: Parts) -> Any:
        found = parts[4].get("final_obs", ())
        for row, last in enumerate(found):
            if last is not None:
                found[row] = last[:2]
        return tuple(parts)

    with pytest.raises(EnvError, match=r"the last observation is not of its space: got the shape \(2,\), expected \(3"):
        run(BentVectorEnv(SAME_STEP, bend), LinearPolicy)


# -- policies ----------------------------------------------------------------------------------------------------------


class FixedPolicy(LinearPolicy):
    """Gives what it is told to."""

    given: Any = None

    def __init__(self, spec: EnvSpec) -> None:
        del spec

    def reset(self, do_resets: Any = None) -> None:
        """Begin."""

    def get_actions(self, observations: Any) -> Any:
        return self.given


POLICIES: dict[str, tuple[Any, str]] = {
    "few rows": (
        (np.zeros(2, int), {}),
        r"the policy gave bad actions: got int64\(2,\), expected int64\(3,\), one for",
    ),
    "many rows": ((np.zeros(4, int), {}), r"the policy gave bad actions: got int64\(4,\), expected int64\(3,\), one f"),
    "one action": ((1, {}), r"the policy gave bad actions: got int64\(\), expected int64\(3,\), one for each of the 3"),
    "ragged": (([[1], 1, 1], {}), r"the policy gave bad actions: got list \[\[1\], 1, 1\], expected int64"),
    "no infos": (np.zeros(3, int), "policy.get_actions raised ValueError"),
    "short masks": (
        (np.zeros(3, int), {"x": np.ma.MaskedArray(np.zeros((2, 1)), np.zeros((2, 1), bool))}),
        "the infos of policy.get_actions cannot be told by row",
    ),
}


@each_mode
@pytest.mark.parametrize("name", POLICIES)
def test_policies_that_do_not_act_for_each_row(mode: AutoresetMode, name: str) -> None:
    """The policy's error, with both sides and whose step it was."""
    given, message = POLICIES[name]
    policy = type("Given", (FixedPolicy,), {"given": given})
    with pytest.raises(PolicyError, match=rf"^{message}.* \(worker 0, episodes 0 to 2, step 0 of 3 rows\)$") as caught:
        run(vector_envs.chain(N_ENVS, mode), policy)
    assert caught.value.hint


# -- actions outside of their space ------------------------------------------------------------------------------------

BOX = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))
SMALL = spaces.Box(0, 100, (1,), np.int8)
TREE = spaces.Dict({"gear": spaces.Discrete(3), "wheel": BOX})


def acted(space: Any) -> Any:
    """Return an environment class that tells which action it got."""

    class ActedEnv(ChainEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space

        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, _ = super().step(0)
            wheel = action["wheel"] if isinstance(action, dict) else action
            return observation, reward, terminated, truncated, {"got": np.array(wheel)}

    return ActedEnv


def run_action(rule: OnInvalidAction, space: Any, actions: Any, mode: AutoresetMode) -> Any:
    env = SyncVectorEnv([acted(space)] * N_ENVS, autoreset_mode=mode)
    policy = type("Given", (FixedPolicy,), {"given": (actions, {})})
    return run(env, policy, EpisodeRules(invalid_action=rule))


@each_mode
def test_actions_are_moved_to_their_bounds(mode: AutoresetMode) -> None:
    """The environment gets what is recorded, and the policy's own array stays as it is."""
    given = np.array([[7.0, -2.0], [0.5, 9.0], [-0.5, 1.0]])
    before = given.copy()
    chunk, error = run_action("clip", BOX, given, mode)
    assert error is None
    assert np.float32 == chunk.actions[0].dtype
    assert {(1.0, 0.0), (0.5, 5.0), (-0.5, 1.0)} == set(map(tuple, chunk.actions[0].tolist()))
    (got,) = chunk.env_infos.columns
    np.testing.assert_array_equal(chunk.actions[0], got.values)
    np.testing.assert_array_equal(before, given)


@each_mode
def test_numbers_that_their_type_has_no_room_for_are_moved_first(mode: AutoresetMode) -> None:
    """An integer of 300 is over the bound, and not what is left of it in eight bits."""
    chunk, error = run_action("clip", SMALL, np.array([[300], [-300], [7]]), mode)
    assert error is None
    assert {100, 0, 7} == set(chunk.actions[0].ravel().tolist())


@each_mode
def test_boxes_in_a_dictionary_are_moved(mode: AutoresetMode) -> None:
    """What lies beside them is left alone."""
    given = {"gear": np.array([0, 1, 2]), "wheel": np.full((3, 2), 9.0, np.float32)}
    chunk, error = run_action("clip", TREE, given, mode)
    assert error is None
    assert {(1.0, 5.0)} == set(map(tuple, chunk.actions[1].tolist()))
    assert {0, 1, 2} == set(chunk.actions[0].tolist())


@each_mode
@pytest.mark.parametrize("rule", ["error", "clip"])
def test_nan_has_no_nearest_bound(mode: AutoresetMode, rule: OnInvalidAction) -> None:
    """It is an error under both rules."""
    chunk, error = run_action(rule, BOX, np.full((3, 2), np.nan), mode)
    assert chunk is None
    assert isinstance(error, PolicyError)
    assert 0 == error.episode


@each_mode
def test_actions_are_left_to_the_environment(mode: AutoresetMode) -> None:
    """With `warn` they are recorded as they are."""
    chunk, error = run_action("warn", BOX, np.full((3, 2), 9.0), mode)
    assert error is None
    assert {(9.0, 9.0)} == set(map(tuple, chunk.actions[0].tolist()))


@pytest.mark.parametrize("actions", [np.zeros((2, 2)), np.array([["a", "b"]] * 3), None])
def test_what_cannot_be_moved_is_refused(actions: Any) -> None:
    """As it is without clipping."""
    with pytest.raises(PolicyError, match="the policy gave bad actions: got"):
        run_action("clip", BOX, actions, NEXT_STEP)


GIVEN: dict[str, tuple[Any, Any]] = {
    "over the bound": (BOX, np.array([7.0, -2.0])),
    "not a number": (BOX, np.array([np.nan, 1.0])),
    "more than the type has room for": (SMALL, np.array([300])),
    "less than the type has room for": (SMALL, [-300]),
    "floats for integers": (SMALL, np.array([7.9])),
    "nan for integers": (SMALL, np.array([np.nan])),
    "floats for unsigned integers": (spaces.Box(0, 255, (1,), np.uint8), np.array([256.5])),
    "half a choice": (spaces.Discrete(3), 1.5),
    "nan for a choice": (spaces.Discrete(3), float("nan")),
    "truth for a choice": (spaces.Discrete(3), np.True_),
    "no choice": (spaces.Discrete(3), 5),
    "half of many choices": (spaces.MultiDiscrete([3, 4]), [1.5, 2.0]),
    "choices that there are not": (spaces.MultiDiscrete([3, 4]), [9, 2]),
    "halves for bits": (spaces.MultiBinary(2), np.array([0.5, 1.0])),
    "a number for a text": (spaces.Text(3), 7),
    "another shape": (BOX, np.zeros(3)),
    "ragged": (BOX, [[1.0], 2.0]),
    "part of a tree": (TREE, {"wheel": np.zeros(2)}),
    "a tree over its bounds": (TREE, {"gear": 1, "wheel": np.array([1e300, -1e300])}),
    "half a gear": (TREE, {"gear": 1.5, "wheel": np.zeros(2)}),
}


@each_mode
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("rule", ["error", "clip", "warn"])
@pytest.mark.parametrize("name", GIVEN)
def test_a_policy_a_row_is_judged_as_one_alone_is(mode: AutoresetMode, rule: OnInvalidAction, name: str) -> None:
    """By the numbers that it gave, not by what becomes of them in the space's type."""
    space, action = GIVEN[name]
    expected = outcome(DefaultWorker, acted(space)(), rule, action)
    env = SyncVectorEnv([acted(space)] * N_ENVS, autoreset_mode=mode)
    assert expected == outcome(NativeVecWorker, env, rule, action, n_envs=N_ENVS)


def outcome(worker_class: type[Any], env: Any, rule: OnInvalidAction, action: Any, **arguments: Any) -> Any:
    """Return the actions of six episodes, or else that they were refused: at once, or as they are handed on."""
    rules = EpisodeRules(invalid_action=rule)
    factory = WorkerFactory(n_workers=1, seed=3, worker_class=worker_class, worker_args=arguments, rules=rules)
    worker = factory(0)
    worker.update_env(env)
    worker.update_agent(lambda observation: action)
    worker.assign(range(6))
    try:
        while worker.has_work:
            worker.advance(-1.0)
        chunk, error = factory.take(worker)
    except PolicyError:
        return "refused"
    if isinstance(error, PolicyError):
        assert chunk is None
        return "refused"
    assert chunk is not None
    return [str(column[0]) for column in chunk.actions]


# -- episodes without an end -------------------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("most", [1, 5, 70, 300])
def test_an_episode_without_an_end_fails(mode: AutoresetMode, most: int) -> None:
    """After as many steps as are allowed; its number is known, and so is the way out."""
    message = rf"^the episode has no end: it is {most} steps long \(worker 0, episode 0, row 0\)$"
    with pytest.raises(EnvError, match=message) as e:
        run(vector_envs.endless(N_ENVS, mode), LinearPolicy, EpisodeRules(step_guard=most))
    assert 0 == e.value.episode
    assert ("--max-episode-length" if mode is DISABLED else "--env-kwargs max_episode_steps") in e.value.hint
    assert "--episode-step-guard" in e.value.hint


@each_mode
def test_big_observations_end_an_episode_earlier(mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes count as well as steps: twelve an observation."""
    monkeypatch.setattr("rollout_cli.workers.rules.GUARD_BYTES", 160)
    with pytest.raises(EnvError, match="it is 13 steps long"):
        run(vector_envs.endless(N_ENVS, mode), LinearPolicy)


class OneEndlessRow(vector_envs.ScriptedVectorEnv):
    """Row 1 ends its first episode after 4 steps, and never ends its second; the others have 3 steps each."""

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        def length(row: int, k: int) -> int:
            return 3 if row != 1 else 4 if k == 0 else 10**9

        super().__init__(num_envs, length, mode)


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP], ids=lambda mode: mode.value)
def test_one_row_without_an_end_among_others(mode: AutoresetMode) -> None:
    """It is found though the others go on, and those that ended can be taken."""
    factory = WorkerFactory(
        n_workers=1,
        seed=3,
        worker_class=NativeVecWorker,
        worker_args={"n_envs": N_ENVS},
        rules=EpisodeRules(step_guard=40),
    )
    worker = factory(0)
    worker.update_env(OneEndlessRow(N_ENVS, mode))
    worker.update_agent(lambda observation: 0)
    worker.assign(range(1000))
    caught: RolloutError | None = None
    steps = 0
    while caught is None and steps < 100:
        steps += 1
        try:
            worker.advance(-1.0)
        except EnvError as error:
            caught = error
    assert caught is not None
    assert "it is 40 steps long" in caught.message
    # The first episode's steps, the one in which NEXT_STEP resets the row, and those of the second.
    assert (45 if mode is NEXT_STEP else 44) == steps


def test_a_limit_is_no_endless_episode() -> None:
    """One that is truncated where the guard would look is whole."""
    factory = WorkerFactory(
        n_workers=1,
        seed=3,
        max_episode_length=5,
        worker_class=NativeVecWorker,
        worker_args={"n_envs": N_ENVS},
        rules=EpisodeRules(step_guard=5),
    )
    worker = factory(0)
    worker.update_env(vector_envs.endless(N_ENVS, DISABLED))
    worker.update_agent(lambda observation: 0)
    worker.assign(range(7))
    while worker.has_work:
        worker.advance(-1.0)
    chunk, error = factory.take(worker)
    assert error is None
    assert chunk is not None
    assert [5] * 7 == chunk.lengths.tolist()


def test_the_guard_sees_episodes_that_begin_after_it_has_looked_at_none() -> None:
    """A worker may run nothing for a while."""
    guard = EndlessGuard(EpisodeRules(step_guard=10), row_bytes=4, step=0, resets_itself=False, worker_number=0)
    episodes = RowEpisodes(2)
    guard.look(episodes, 10)
    assert 20 == guard.look_at
    episodes.begin(np.array([1]), np.array([7]), None, {}, step=12)
    guard.look(episodes, 20)
    assert 22 == guard.look_at
    with pytest.raises(EnvError, match=r"it is 10 steps long \(worker 0, episode 7, row 1\)"):
        guard.look(episodes, 22)
