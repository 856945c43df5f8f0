"""What a worker's loop sends of the episodes that have ended."""

from __future__ import annotations

import math
import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest

from rollout_cli.envs.describe import env_spec_of
from rollout_cli.envs.updates import NewEnvUpdate
from rollout_cli.errors import ChangedFilesError, EnvError, WorkerError
from rollout_cli.samplers.messages import Batch, Failed, Reported, Start, Started, ToSampler, Update
from rollout_cli.samplers.ray import actor
from rollout_cli.samplers.ray.actor import Recipe, Stored
from rollout_cli.samplers.worker_loop import WorkerLoop
from rollout_cli.samplers.worker_setup import WorkerSetup
from rollout_cli.sources import pins
from rollout_cli.sources.pins import PinRules
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.kinds import DefaultWorker, VecWorker
from tests.helpers.errors import raises
from tests.workers import worlds
from tests.workers.worlds import ChainEnv


def update_of(env: Any) -> Update:
    """Return what a worker needs to run episodes of an environment."""
    policy = worlds.BatchPolicy(env_spec_of(ChainEnv()))
    return Update(cloudpickle.dumps(policy), cloudpickle.dumps(NewEnvUpdate(env)))


def sent(env: Any, **options: Any) -> list[ToSampler]:
    """Return all that a loop sends for 20 episodes of an environment."""
    factory = WorkerFactory(n_workers=1, seed=3, **options)
    loop = WorkerLoop(lambda: factory, 0, owns_process=False)
    messages = loop.turn([Start(1, (update_of(env),), (range(20),))])
    while not loop.idle:
        messages += loop.turn()
    return messages


def test_infos_to_drop() -> None:
    """They are in no chunk that is sent, those of the environment's resets are."""
    messages = sent(ChainEnv, drop_infos=["position", "agent_info.*"])
    chunks = [message.chunk.load() for message in messages if isinstance(message, Batch)]
    assert 20 == sum(chunk.n_episodes for chunk in chunks)
    for chunk in chunks:
        assert ((), ()) == (chunk.env_infos.columns, chunk.agent_infos.columns)
        assert 1 == len(chunk.episode_infos.columns)


def test_a_reward_that_is_no_number() -> None:
    """The sound episodes are sent before the error, which has the number of the faulty one."""

    class Faulty(ChainEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, math.nan if self.length == 3 else reward, *rest

    messages = sent(Faulty)
    chunks = [message.chunk for message in messages if isinstance(message, Batch)]
    numbers = [number for chunk in chunks for number in chunk.numbers.tolist()]
    failed = messages[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, EnvError)
    assert "reward-nan" == failed.error.code
    assert numbers
    assert not set(numbers) & set(failed.error.episodes)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> object:
    """Return the one reference that a store, in place of Ray's, has lost; others are what they refer to."""
    missing = object()

    def get(reference: Any) -> Any:
        if reference is missing:
            raise KeyError("lost")
        return reference

    errors = SimpleNamespace(RayActorError=KeyError, ObjectLostError=KeyError)
    monkeypatch.setattr(actor, "load_ray", lambda: SimpleNamespace(get=get, exceptions=errors))
    return missing


def recipe_of(*updates: Update, **options: Any) -> Recipe:
    """Return what it takes to run the episodes of such a worker again."""
    factory = WorkerFactory(n_workers=1, seed=3, **options)
    return Recipe(WorkerSetup.of(0, "worker", cloudpickle.dumps(factory)), updates, 1)


def test_lost_episodes_that_run_again_stand_in_order(lost: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long episode is sent after higher numbers; what is read is found by its place."""
    for where in (
        "samplers.ray.actor.TURN_SECONDS",
        "samplers.ray.actor.FLUSH_SECONDS",
        "workers.worker.HOLD_SECONDS",
    ):
        monkeypatch.setattr(f"rollout_cli.{where}", -1.0)
    expected = [message.chunk.load() for message in sent(ChainEnv) if isinstance(message, Batch)]
    lengths = np.concatenate([chunk.lengths for chunk in expected])
    assert (np.diff(lengths) > 0).any(), "no episode ends before a lower number"
    recipe = recipe_of(update_of(ChainEnv), worker_class=VecWorker, worker_args={"n_envs": 4})
    chunk = Stored(lost, 0, recipe, (range(20),), lengths)()
    assert (list(range(20)), lengths.tolist()) == (chunk.numbers.tolist(), chunk.lengths.tolist())
    with raises(WorkerError, "episodes-lost"):
        Stored(lost, 0, recipe, (range(20),), lengths[::-1])()


def test_lost_episodes_of_which_none_is_kept_again(lost: object) -> None:
    """They were kept before: the environment does not repeat its episodes, and that is what is said."""
    recipe = recipe_of(update_of(ChainEnv), keep="return > 1e9")
    with raises(WorkerError, "episodes-lost"):
        Stored(lost, 0, recipe, (range(2),), np.array([3, 3]))()


def test_lost_episodes_that_run_again_leave_the_callers_generators(lost: object) -> None:
    """Who reads them may be in the midst of drawing numbers."""
    lengths = np.concatenate([m.chunk.lengths for m in sent(ChainEnv) if isinstance(m, Batch)])
    random.seed(1)
    np.random.seed(1)
    Stored(lost, 0, recipe_of(update_of(ChainEnv)), (range(20),), lengths)()
    drawn = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    assert (random.random(), np.random.random()) == drawn


class TableEnv(ChainEnv):
    """Reads its rewards from a file, as it is built or as its first episode begins."""

    def __init__(self, path: Path, *, at_once: bool) -> None:
        super().__init__(length=3)
        self._path = path
        self._reward = self._read() if at_once else None

    def _read(self) -> float:
        return float(self._path.read_text())

    def step(self, action: Any) -> Any:
        self._reward = self._read() if self._reward is None else self._reward
        observation, _, *rest = super().step(action)
        return observation, self._reward, *rest


class TableWorker(DefaultWorker):
    """Reads a file as it is built."""

    def __init__(self, *, table: Path, **options: Any) -> None:
        super().__init__(**options)
        self.table = table.read_text()


@pytest.mark.parametrize("rules", [PinRules(), None])
def test_a_file_that_a_workers_class_reads_is_pinned(tmp_path: Path, rules: PinRules | None) -> None:
    """Another worker may read another one, and so it is none that each reads at load; no watch is left."""
    (tmp_path / "table").write_text("1.0")
    options: dict[str, Any] = {"worker_class": TableWorker, "worker_args": {"table": tmp_path / "table"}}
    messages = sent(ChainEnv, pins=rules, **options)
    (started,) = (message for message in messages if isinstance(message, Started))
    found = [file.at_load for file in started.report.files if file.path == f"{tmp_path / 'table'}"]
    assert ([] if rules is None else [False]) == found
    assert [] == pins._watches
    (tmp_path / "table").unlink()
    assert isinstance(sent(ChainEnv, pins=rules, **options)[-1], Failed)
    pins._watches.clear()


@pytest.mark.parametrize("at_once", [True, False])
def test_lost_episodes_are_not_run_again_from_a_changed_file(
    lost: object, tmp_path: Path, at_once: bool
) -> None:
    """Others would be taken for them where their lengths are the same."""
    (tmp_path / "table").write_text("1.0")
    recipe = recipe_of(update_of(partial(TableEnv, tmp_path / "table", at_once=at_once)), pins=PinRules())
    loop = actor._new_loop(recipe.setup, 0.0)
    messages = loop.turn([Start(1, recipe.updates, (range(2),), rebuild=True)])
    while not loop.idle:
        messages += loop.turn()
    files = next(m.report.files for m in reversed(messages) if isinstance(m, Reported))
    stored = Stored(lost, 0, recipe, (range(2),), np.array([3, 3]), files)
    assert [1.0] * 6 == stored().rewards.tolist()
    (tmp_path / "table").write_text("2.0")
    with raises(ChangedFilesError, "files-changed"):
        stored()
