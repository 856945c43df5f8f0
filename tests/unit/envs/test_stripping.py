"""Wrappers that are taken off change no episode, and only gymnasium's own go, from the outside in."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import (
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TimeAwareObservation,
    TimeLimit,
)

from rollout_cli.envs import EnvSource, as_env_source, env_record, strip_env
from rollout_cli.workers import DefaultWorker, VecWorker
from tests.support.envs import ChainEnv, EndlessEnv
from tests.support.rows import AlonePolicy, RowEnv
from tests.unit.workers.making import assert_same_episodes, run_numbers


class MadeSource(EnvSource):
    """A source of environments that `gymnasium.make` is said to build, or that are stepped as they are.

    Args:
        build: Builds one.
        stripped: Whether its wrappers may be taken off.
    """

    def __init__(self, build: Any, *, stripped: bool) -> None:
        self._build = build
        self.made_by_gymnasium = stripped  # type: ignore[misc]

    label = "made"

    def build(self) -> Any:
        return self._build()

    def describe(self) -> dict[str, Any]:
        return {}


def wrapped(env: Any, *limits: int) -> Any:
    """Return `env` in the wrappers that `gymnasium.make` gives it."""
    env = OrderEnforcing(PassiveEnvChecker(env))
    for limit in limits:
        env = TimeLimit(env, limit)
    return env


BUILDS = [
    lambda: wrapped(EndlessEnv(), 7),
    lambda: wrapped(EndlessEnv(), 9, 4),
    lambda: wrapped(EndlessEnv(), 4, 9),
    lambda: wrapped(ChainEnv(), 5),
    lambda: wrapped(RowEnv(0, 5), 5),
    lambda: wrapped(RowEnv(0, 5, ends="truncated"), 5),
    lambda: wrapped(ChainEnv("both"), 5),
    lambda: TimeAwareObservation(wrapped(ChainEnv(), 5)),
    lambda: wrapped(TimeAwareObservation(TimeLimit(EndlessEnv(), 4)), 6),
]


@pytest.mark.parametrize("worker", [(DefaultWorker, {}), (VecWorker, {"n_envs": 3})], ids=["one", "rows"])
@pytest.mark.parametrize("limit", [None, 3, 5, 100])
@pytest.mark.parametrize("build", BUILDS)
def test_episodes_are_those_with_the_wrappers_on(build: Any, limit: int | None, worker: Any) -> None:
    """Flag for flag: the limit truncates, and a step that terminates at the limit does both."""
    chunks = []
    for stripped in (False, True):
        made = worker[0](seed=3, max_episode_length=limit, worker_number=0, **worker[1])
        made.update_env(MadeSource(build, stripped=stripped))
        made.update_agent(AlonePolicy(made.env_spec))
        chunks.append(run_numbers(made, range(8)))
        made.shutdown()
    assert_same_episodes(*chunks)


def test_the_limit_step_may_terminate_too() -> None:
    """Both flags stay true, as TimeLimit leaves them."""
    worker = DefaultWorker(seed=3, max_episode_length=None, worker_number=0)
    worker.update_env(MadeSource(BUILDS[4], stripped=True))
    worker.update_agent(AlonePolicy(worker.env_spec))
    chunk = run_numbers(worker, range(2))
    assert ([True] * 2, [True] * 2) == (chunk.terminated.tolist(), chunk.truncated.tolist())


STRIPPED: list[tuple[Any, type[Any], int | None]] = [
    (lambda: wrapped(EndlessEnv(), 7), EndlessEnv, 7),
    (lambda: wrapped(EndlessEnv(), 9, 4), EndlessEnv, 4),
    (lambda: wrapped(EndlessEnv()), EndlessEnv, None),
    (lambda: wrapped(RecordEpisodeStatistics(TimeLimit(EndlessEnv(), 4)), 6), RecordEpisodeStatistics, 6),
    (lambda: RecordEpisodeStatistics(wrapped(EndlessEnv(), 4)), RecordEpisodeStatistics, None),
    (EndlessEnv, EndlessEnv, None),
]


@pytest.mark.parametrize(("build", "left", "limit"), STRIPPED)
def test_what_is_taken_off(build: Any, left: type[Any], limit: int | None) -> None:
    """The outer wrappers of gymnasium go, up to the first of another kind; the lowest of their limits acts."""
    stripped = strip_env(build())
    assert (left, limit) == (type(stripped.env), stripped.limit)


class OwnTimeLimit(TimeLimit):
    """A TimeLimit that may do more."""


def test_a_subclass_of_a_wrapper_is_left_on() -> None:
    """What derives from a wrapper may do something else."""
    env = OwnTimeLimit(wrapped(EndlessEnv(), 4), 3)
    assert (env, None) == strip_env(env)


def test_nothing_is_stepped_where_nothing_goes() -> None:
    """Only what is about to lose its watchers takes a watched reset and step."""
    bare, watched = RowEnv(), RowEnv()
    strip_env(bare)
    strip_env(wrapped(watched, 5))
    assert (0, 1) == (bare.resets, watched.resets)


class WrongEnv(ChainEnv):
    """Gives observations of another shape than its space has."""

    def observe(self) -> Any:
        return super().observe()[:2]


def test_the_watchers_see_one_reset_and_step() -> None:
    """What PassiveEnvChecker says of both is said as before."""
    with pytest.warns(UserWarning, match="is not within the observation space") as told:
        strip_env(wrapped(WrongEnv(), 5))
    texts = " ".join(str(warning.message) for warning in told)
    assert "reset()" in texts
    assert "step()" in texts


def test_the_action_space_does_not_draw() -> None:
    """The trial's action comes from a copy of the space, whose generator stays asleep."""
    env = wrapped(ChainEnv(), 5)
    strip_env(env)
    assert None is env.action_space._np_random


def test_what_is_recorded_stays_the_original() -> None:
    """The dataset's record has the whole environment: its spec, its wrappers and their limit."""
    worker = VecWorker(seed=3, max_episode_length=None, worker_number=0, n_envs=2)
    worker.update_env(as_env_source("CartPole-v1"))
    worker.update_agent(AlonePolicy(worker.env_spec))
    made = gymnasium.make("CartPole-v1")
    record = worker.facts()["env"]
    assert env_record(made) == record
    assert ("CartPole-v1", 500, 3) == (record["id"], record["max_episode_length"], len(record["wrappers"]))
    assert 500 == worker.env_spec.max_episode_length
    worker.shutdown()
    made.close()
