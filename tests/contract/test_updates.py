"""Updates: what a call changes holds for its own episodes and all later ones, in every worker, restarted or not."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from rollout_cli.envs import EnvUpdate, ExistingEnvUpdate, NewEnvUpdate, SetTaskUpdate, describe_env
from rollout_cli.episode_batch import EpisodeBatch
from rollout_cli.errors import EnvLoadError, PolicyError, PolicyLoadError
from rollout_cli.samplers import Episodes, MinTimesteps, Sampler
from tests.contract.conftest import MakeSampler
from tests.support.envs import BoxEnv, ChainEnv, SleepyEnv
from tests.support.policies import GaragePolicy


class StepsPolicy(GaragePolicy):
    """Its info is its gain, so that every step tells under which policy it was taken."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return np.int64(1), {"gain": self.gain}


def policy(gain: float = 1.0) -> StepsPolicy:
    made = StepsPolicy(describe_env(ChainEnv()))
    made.gain = gain
    return made


def gains(batch: EpisodeBatch) -> set[float]:
    return set(batch.agent_infos["gain"].tolist())


def slow_env() -> SleepyEnv:
    return SleepyEnv(0.0005)


class TaskEnv(ChainEnv):
    """Its reward is its task, to which updates may add."""

    task = 0.0

    def set_task(self, task: float) -> None:
        self.task = task

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.task, terminated, truncated, info


class AddToTask(EnvUpdate):
    """Builds on the environment that is there."""

    def __init__(self, amount: float) -> None:
        self.amount = amount

    def __call__(self, old_env: Any = None) -> Any:
        env: Any = super().__call__(old_env)
        env.unwrapped.task += self.amount
        return env


def rewards(batch: EpisodeBatch) -> list[float]:
    """Return each episode's (constant) reward."""
    assert all(len(set(episode.rewards.tolist())) == 1 for episode in batch.split())
    return [float(episode.rewards[0]) for episode in batch.split()]


def of_workers(sampler: Sampler, **updates: Any) -> list[float]:
    """Return the reward of one episode of each worker."""
    return rewards(sampler.obtain_exact_episodes(1, updates.get("agent"), updates.get("env")))


def test_a_policy_update_holds_from_its_call_on(make_sampler: MakeSampler) -> None:
    """Each call's episodes are taken under that call's policy or parameters, or else those of the call before."""
    sampler = make_sampler(policy(1.0), slow_env())
    found = [
        gains(sampler.obtain_samples(call, 40, update))
        for call, update in enumerate([None, {"gain": 2.0}, None, policy(3.0), {"gain": 4.0}, None])
    ]
    assert [{1.0}, {2.0}, {2.0}, {3.0}, {4.0}, {4.0}] == found


def test_an_update_after_a_stream_that_was_closed_early(make_sampler: MakeSampler) -> None:
    """Episodes that were under way under the old policy do not leak into the next call."""
    sampler = make_sampler(policy(1.0), slow_env())
    for call in range(2, 6):
        stream = sampler.stream(MinTimesteps(10_000))
        next(stream)
        stream.close()
        assert {float(call)} == gains(sampler.obtain_samples(0, 40, {"gain": float(call)}))


def test_lists_of_parameters_go_one_to_each_worker(make_sampler: MakeSampler) -> None:
    """The first entry is worker 0's, and each keeps its own."""
    sampler = make_sampler(policy(), ChainEnv())
    for update in ([{"gain": 5.0}, {"gain": 6.0}], None):
        batch = sampler.obtain_exact_episodes(2, update)
        found = [set(episode.agent_infos["gain"].tolist()) for episode in batch.split()]
        assert [{5.0}, {5.0}, {6.0}, {6.0}] == found


def test_env_updates_reach_every_worker_in_order(make_sampler: MakeSampler) -> None:
    """Updates that build on each other add up; one that replaces the environment begins anew."""
    sampler = make_sampler(policy(), TaskEnv())
    assert [0.0, 0.0] == of_workers(sampler)
    assert [1.5, 1.5] == of_workers(sampler, env=AddToTask(1.5))
    assert [1.5, 1.5] == of_workers(sampler)
    assert [2.0, 3.5] == of_workers(sampler, env=[AddToTask(0.5), AddToTask(2.0)])
    assert [7.0, 7.0] == of_workers(sampler, env=SetTaskUpdate(TaskEnv, 7.0))
    assert [0.0, 0.0] == of_workers(sampler, env=NewEnvUpdate(TaskEnv))
    assert [0.5, 0.5] == of_workers(sampler, env=ChainEnv(), agent=lambda observation: 0)
    task = TaskEnv()
    task.task = 9.0
    assert [9.0, 9.0] == of_workers(sampler, env=ExistingEnvUpdate(task))


def test_restarted_workers_are_where_the_others_were(make_sampler: MakeSampler) -> None:
    """Workers that are started anew get the last whole policy, the parameters after it, and every update since."""
    sampler = make_sampler(policy(), TaskEnv())
    of_workers(sampler, agent=policy(2.0), env=AddToTask(1.0))
    of_workers(sampler, agent={"gain": 3.0}, env=AddToTask(0.25))
    sampler.shutdown_worker()
    batch = sampler.obtain_exact_episodes(1, None, AddToTask(0.5))
    assert ({3.0}, [1.75, 1.75]) == (gains(batch), rewards(batch))


def test_an_environment_with_other_spaces(make_sampler: MakeSampler) -> None:
    """An update may bring other spaces: batches have them from then on."""
    sampler = make_sampler(lambda observation: 1, ChainEnv())
    sampler.obtain_samples(0, 20, None)
    batch = sampler.obtain_samples(1, 20, lambda observation: np.zeros(2, np.float32), BoxEnv())
    assert describe_env(BoxEnv()) == batch.env_spec == sampler.env_spec
    assert (2, 3) == batch.observations.shape[1:]


def failing_constructor() -> Any:
    raise ValueError("no environment today")


def unloadable() -> Any:
    raise ValueError("no pickle today")


class Unloadable(StepsPolicy):
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return unloadable, ()


class RefusingPolicy(StepsPolicy):
    """Takes no parameters."""

    def set_param_values(self, params: dict[str, Any]) -> None:
        raise ValueError("no parameters today")


BAD_UPDATES: list[tuple[str, Callable[[], tuple[Any, Any]], type[Exception], str]] = [
    ("environment", lambda: (None, NewEnvUpdate(failing_constructor)), EnvLoadError, "no environment today"),
    ("pickle", lambda: (Unloadable(describe_env(ChainEnv())), None), PolicyLoadError, "no pickle today"),
    ("policy", lambda: (object(), None), PolicyLoadError, "object"),
]


@pytest.mark.parametrize(
    ("name", "update", "kind", "message"), BAD_UPDATES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_update_that_fails_stays_until_it_is_replaced(
    make_sampler: MakeSampler, name: str, update: Any, kind: type[Exception], message: str
) -> None:
    """A failed update fails its call and every later one that builds on it; no call runs on silently without it."""
    sampler = make_sampler(policy(1.0), slow_env())
    assert {1.0} == gains(sampler.obtain_samples(0, 20, None))
    agent, env = update()
    for agent_update, env_update in ((agent, env), (None, None), (None, None)):
        with pytest.raises(kind, match=message):
            sampler.obtain_samples(0, 20, agent_update, env_update)
    batch = sampler.obtain_samples(0, 20, policy(2.0), slow_env())
    assert {2.0} == gains(batch)


def test_parameters_that_are_refused_are_an_error_of_the_policy(make_sampler: MakeSampler) -> None:
    """What a policy raises when it is given parameters is its own error, and it stays until parameters are replaced."""
    sampler = make_sampler(RefusingPolicy(describe_env(ChainEnv())), slow_env())
    sampler.obtain_samples(0, 20, None)
    for update in ({"gain": 2.0}, None):
        with pytest.raises(PolicyError, match="no parameters today"):
            sampler.obtain_samples(0, 20, update)
    assert {4.0} == gains(sampler.obtain_samples(0, 20, policy(4.0)))


BOX_SPEC = describe_env(BoxEnv())


def zeros(observation: Any) -> Any:
    return np.zeros(2, np.float32)


def test_spaces_are_asked_for_after_a_call_that_was_ended_before_it_began(make_sampler: MakeSampler) -> None:
    """They are those of the last update, though workers tell of all that they build."""
    sampler = make_sampler(lambda observation: 1, ChainEnv(), n_workers=1)
    sampler.start_worker()
    sampler.request_stop()
    assert [] == list(sampler.stream(Episodes(0, 5), agent_update=zeros, env_update=BoxEnv()))
    assert BOX_SPEC == sampler.wait_until_started()


class BoxInstead(EnvUpdate):
    """Builds on the environment that is there, and gives one of other spaces."""

    def __call__(self, old_env: Any = None) -> Any:
        assert old_env is not None
        return BoxEnv()


def test_workers_that_start_late_tell_of_the_last_update(make_sampler: MakeSampler) -> None:
    """What they begin with is not yet what they run."""
    sampler = make_sampler(lambda observation: 1, ChainEnv())
    sampler.obtain_samples(0, 20, None)
    sampler.obtain_samples(0, 2, zeros, BoxInstead())
    sampler.shutdown_worker()
    again = pickle.loads(cloudpickle.dumps(sampler))
    with again:
        assert BOX_SPEC == again.wait_until_started()


class BlockedEnv(ChainEnv):
    """Its first episode ends at once. The second one goes on until it is told to block; let go, it raises.

    Args:
        folder: Where the files `block`, `blocked` and `go` tell of this.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._episodes = folder, 0

    def reset(self, **options: Any) -> Any:
        self._episodes += 1
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = super().step(action)
        if self._episodes > 1 and (self._folder / "block").exists():
            (self._folder / "blocked").touch()
            wait_for(self._folder / "go")
            raise ValueError("an episode that nobody wants any more")
        time.sleep(0.001)
        return observation, reward, self._episodes == 1, False, info


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.001)


@pytest.mark.parametrize("backend", ["forkserver"], indirect=True)
def test_a_failure_of_an_earlier_call_does_not_keep_a_worker_from_starting(
    make_sampler: MakeSampler, tmp_path: Path
) -> None:
    """Its report may come when the next update has been sent: the worker is built anew, from that update."""
    sampler = make_sampler(lambda observation: 1, BlockedEnv(tmp_path), n_workers=1)
    stream = sampler.stream(MinTimesteps(10_000))
    next(stream)
    (tmp_path / "block").touch()
    wait_for(tmp_path / "blocked")
    stream.close()
    (tmp_path / "go").touch()
    sampler.request_stop()
    assert [] == list(sampler.stream(Episodes(0, 5), agent_update=zeros, env_update=BoxEnv()))
    assert BOX_SPEC == sampler.wait_until_started()
    assert BOX_SPEC == sampler.obtain_samples(0, 20, None).env_spec
