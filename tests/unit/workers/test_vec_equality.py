"""VecWorker gives the episodes of DefaultWorker bit for bit, where rows can be told apart; a network's are close."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.chunk import Chunk
from rollout_cli.envs import as_env_source
from rollout_cli.policies import policy_source
from rollout_cli.seeding import derive_seed
from rollout_cli.spaces import tree_leaves
from rollout_cli.workers import DefaultWorker, VecWorker
from tests.support import envs, policies, rows
from tests.unit.workers.making import SEED, assert_same_episodes, run_numbers

NUMBERS = range(22)


MakePolicy = Callable[[Any], Any] | str


def make(worker_class: type[Any], env: Any, policy: MakePolicy, **options: Any) -> Any:
    """Return a worker whose environment comes from a source, as a sampler sends it, and so its policy where named."""
    worker = worker_class(seed=SEED, **{"max_episode_length": None, "worker_number": 2, **options})
    worker.update_env(as_env_source(env))
    worker.update_agent(policy_source(policy) if isinstance(policy, str) else policy(worker.env_spec))
    return worker


def alone(env: Any, policy: MakePolicy, numbers: Sequence[int] = NUMBERS, **options: Any) -> Chunk:
    return run_numbers(make(DefaultWorker, env, policy, **options), numbers)


def together(env: Any, policy: MakePolicy, numbers: Sequence[int] = NUMBERS, **options: Any) -> Chunk:
    return run_numbers(make(VecWorker, env, policy, **{"n_envs": 4, **options}), numbers)


KINDS = (
    "TablePolicy",
    "AlonePolicy",
    "call_table",
    "CountingPolicy",
    "OwnDrawPolicy",
    "SeededPolicy",
    "GlobalDrawPolicy",
    "SpaceDrawPolicy",
)
POLICIES = ["random", *(f"tests.support.rows:{kind}" for kind in KINDS)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("env", [envs.ChainEnv, *envs.ALL_SPACE_ENVS])
def test_every_space_and_kind_of_policy(env: type[Any], policy: str) -> None:
    """Episodes of four rows are those of one, whatever the policy remembers or draws from."""
    assert_same_episodes(alone(env, policy), together(env, policy))


@pytest.mark.parametrize("n_envs", [1, 2, 7, 30])
def test_any_width(n_envs: int) -> None:
    """With row-wise policies, the number of rows is nothing that could be seen."""
    expected = alone(envs.ChainEnv, rows.CountingPolicy)
    assert_same_episodes(expected, together(envs.ChainEnv, rows.CountingPolicy, n_envs=n_envs))


class LoopingEditor(policies.GaragePolicy):
    """Overwrites its whole batch, after it has looked at it, and gives its actions in one array that it fills anew."""

    def __init__(self, env_spec: Any) -> None:
        super().__init__(env_spec)
        self.actions = np.zeros(4, np.int64)

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        chosen, infos = super().get_actions(observations)
        observations[...] = -1
        self.actions[:] = chosen
        self.infos = infos
        return self.actions, infos


class KeepingEnv(envs.ReusedBufferEnv):
    """Writes each observation over the last, and tells what the action before was, which it kept hold of."""

    kept: Any = None

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before, self.kept = self.kept, action
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "before": -1 if before is None else int(before)}


def test_buffers_that_are_used_again_change_nothing() -> None:
    """An environment with one buffer, a policy that edits its batch and one that fills one action array: no change."""
    expected = alone(KeepingEnv, policies.LinearPolicy)
    for other in (policies.LinearPolicy, LoopingEditor, policies.EditingPolicy):
        chunk = together(KeepingEnv, other)
        for name in ("numbers", "lengths", "rewards"):
            np.testing.assert_array_equal(getattr(expected, name), getattr(chunk, name))
        np.testing.assert_array_equal(expected.observations[0], chunk.observations[0])
        np.testing.assert_array_equal(expected.actions[0], chunk.actions[0])


class StateEnv(envs.ChainEnv):
    """Its state is the array that it gives."""

    state: Any = None

    def observe(self) -> Any:
        before = 0.0 if self.state is None else self.state[0]
        self.state = super().observe() + np.float32(before)
        return self.state

    def draw_length(self) -> int:
        self.state = None
        return super().draw_length()


class EditingAlone(rows.AlonePolicy):
    """Overwrites what it sees, after it has looked at it."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        chosen = super().get_action(observation)
        observation[...] = -1.0
        return chosen


def test_an_environment_whose_array_is_its_state() -> None:
    """A policy that acts alone and edits what it sees does not edit the environment."""
    assert_same_episodes(alone(StateEnv, rows.AlonePolicy), together(StateEnv, EditingAlone))


class BigEnv(envs.SpaceEnv):
    """Gives each observation in one buffer of 8 kB."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(0, 255, (90, 91), np.uint8), spaces.Discrete(3))
        self._buffer = np.zeros((90, 91), np.uint8)

    def reset(self, **told: Any) -> tuple[Any, dict[str, Any]]:
        self._buffer[...], info = super().reset(**told)
        return self._buffer, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._buffer[...], *rest = super().step(action)
        return self._buffer, *rest  # type: ignore[return-value]


class EditingTable(rows.TablePolicy):
    """Overwrites its batch, in whatever tree it comes, after it has looked at it."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        chosen = super().get_actions(observations)
        for leaf in tree_leaves(observations):
            leaf[...] = leaf[::-1].copy()
        return chosen


@pytest.mark.parametrize("env", [BigEnv, envs.BoxEnv, envs.DictEnv, envs.ScalarEnv])
def test_a_batch_is_the_policys_own(env: type[Any]) -> None:
    """A policy may edit its batch, of whatever space, also of rows so big that they are recorded in shared blocks."""
    assert_same_episodes(alone(env, rows.TablePolicy, range(5)), together(env, EditingTable, range(5)))


class BoxKeepingEnv(envs.BoxEnv):
    """Keeps the action array of its last step, and tells what stands in it now."""

    kept: Any = None

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before = [0.0, 0.0] if self.kept is None else self.kept.tolist()
        self.kept = action
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "before": np.array(before)}


class FillingMlp(rows.MlpPolicy):
    """Gives all its actions in one array, which it fills anew."""

    def __init__(self, env_spec: Any) -> None:
        super().__init__(env_spec)
        self.actions = np.zeros((4, 2), np.float32)

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        self.actions[:] = super().get_actions(observations)[0]
        return self.actions, {}


def test_an_action_that_an_environment_keeps_stays_what_it_was() -> None:
    """The policy's next actions do not reach what environments hold of the last ones."""
    assert_same_episodes(together(BoxKeepingEnv, rows.MlpPolicy), together(BoxKeepingEnv, FillingMlp))


# -- a network ---------------------------------------------------------------------------------------------------------


def test_a_network_is_a_function_of_number_and_width() -> None:
    """Same bits whatever the other rows hold, in which order numbers come, and however they are leased."""
    expected = together(envs.BoxEnv, rows.MlpPolicy, range(40))
    worker = make(VecWorker, envs.BoxEnv, rows.MlpPolicy, n_envs=4)
    again = [run_numbers(worker, numbers) for numbers in (range(36, 40), range(3, 17), [35, 0, 21])]
    for chunk in again:
        for at, number in enumerate(chunk.numbers.tolist()):
            assert_same_episodes(expected.episodes(number, number + 1), chunk.episodes(at, at + 1))


def test_a_network_is_close_to_one_row() -> None:
    """On the recorded observations, the actions are within 1e-5 of those of one row at a time."""
    chunk = together(envs.BoxEnv, rows.MlpPolicy, range(60), n_envs=8)
    policy = rows.MlpPolicy(make(VecWorker, envs.BoxEnv, rows.MlpPolicy).env_spec)
    single = np.concatenate([policy.get_actions(observation[None])[0] for observation in chunk.observations[0]])
    assert chunk.n_steps == len(single) > 100
    np.testing.assert_allclose(single, chunk.actions[0], rtol=0, atol=1e-5)


# -- shared generators -------------------------------------------------------------------------------------------------

SOME_SEEDS = tuple(derive_seed(SEED, number, "env") for number in (9, 10, 17))


class LateEnv(rows.GlobalDrawEnv):
    """Draws in three episodes only."""

    def __init__(self) -> None:
        super().__init__(only_seeds=SOME_SEEDS)


class LateFixedEnv(rows.GlobalDrawEnv):
    """The same, in episodes that all end in the same step."""

    def __init__(self) -> None:
        super().__init__(length=3, only_seeds=SOME_SEEDS)


class FixedEnv(rows.GlobalDrawEnv):
    """Draws in every step of episodes that all end in the same step."""

    def __init__(self) -> None:
        super().__init__(length=3)


class LastStepEnv(rows.GlobalDrawEnv):
    """Draws in the last step of its episodes only."""

    def __init__(self) -> None:
        super().__init__(length=3, from_step=3)


SHARING = [rows.GlobalDrawEnv, rows.PythonDrawEnv, rows.ClassDrawEnv, LateEnv, LateFixedEnv, FixedEnv, LastStepEnv]


@pytest.mark.parametrize("policy", [rows.TablePolicy, rows.GlobalDrawPolicy, rows.OwnDrawPolicy])
@pytest.mark.parametrize("env", SHARING)
def test_rows_share_no_randomness(env: type[Any], policy: Any) -> None:
    """What draws from a generator of the process or of a class draws in each row as if it were alone."""
    assert_same_episodes(alone(env, policy), together(env, policy))


class LazyPolicy(rows.AlonePolicy):
    """Makes its generator, from the system's entropy, in the second step of an episode."""

    rng: np.random.Generator | None = None
    steps = 0

    def reset(self) -> None:
        self.steps = 0

    def place(self, observation: Any) -> float:
        self.steps += 1
        if self.steps == 2:
            self.rng = self.rng or np.random.default_rng()
        return 0.5 if self.rng is None else float(self.rng.random())


class LazyEnv(rows.RowEnv):
    """Draws from a space of its own, which has no generator before, in some episodes."""

    def __init__(self) -> None:
        super().__init__()
        from gymnasium import spaces

        self.noise = spaces.Discrete(1000)

    def observe(self) -> Any:
        observation = super().observe()
        observation[2] = self.noise.sample() if self._length > 4 else 0
        return observation


@pytest.mark.parametrize(
    ("env", "policy"), [(envs.ChainEnv, LazyPolicy), (LazyEnv, rows.AlonePolicy), (LazyEnv, rows.TablePolicy)]
)
def test_a_generator_that_appears_late(env: type[Any], policy: Any) -> None:
    """An episode in which a generator appeared is run again, and what ran beside it too."""
    numbers = range(1, 22) if policy is LazyPolicy else NUMBERS
    assert_same_episodes(alone(env, policy, numbers), together(env, policy, numbers))
