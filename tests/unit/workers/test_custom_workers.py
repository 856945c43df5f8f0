"""Worker classes of the user's own: overridden verbs are respected, and samplers take any that gives episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rollout_cli
from rollout_cli.collect import collect
from rollout_cli.config import CollectConfig, EpisodeRange
from rollout_cli.errors import UserCodeError
from rollout_cli.samplers import LocalSampler, MultiprocessingSampler, Sampler
from rollout_cli.workers import DefaultWorker, VecWorker
from tests.support import workers
from tests.support.envs import ChainEnv, EndlessEnv
from tests.support.policies import GlobalNoisePolicy, LinearPolicy
from tests.support.workers import CountingVecWorker, CountingWorker, PlainVerbs, VerbsOnly
from tests.unit.workers.making import assert_same_episodes, make_worker, run_numbers
from tests.unit.workers.making_custom import SPEC, factory, make

# -- overridden verbs --------------------------------------------------------------------------------------------------


def test_overridden_verbs_of_a_default_worker_are_called() -> None:
    """Every episode is begun and every step taken through them, and the episodes are those of a DefaultWorker."""
    worker = make(CountingWorker)
    worker.assign(range(8))
    worker.advance(float("inf"))
    assert not worker.has_work
    chunk = worker.take()
    assert_same_episodes(run_numbers(make_worker(ChainEnv()), range(8)), chunk)
    assert (8, chunk.n_steps) == (worker.begun, worker.stepped)


def test_a_default_workers_loop_looks_at_the_clock_between_overridden_steps() -> None:
    """It goes on being interruptible after one step."""
    worker = make(CountingWorker)
    worker.assign([0])
    worker.advance(-1.0)
    assert 1 == worker.stepped


def test_an_episode_that_is_run_again_is_begun_by_the_overridden_verb() -> None:
    """Where a generator was unknown, `start_episode` comes once more."""
    worker = make(CountingWorker, GlobalNoisePolicy(SPEC))
    worker.assign(range(3))
    worker.advance(float("inf"))
    assert 4 == worker.begun
    assert_same_episodes(run_numbers(make_worker(ChainEnv(), GlobalNoisePolicy), range(3)), worker.take())


def test_overridden_verbs_of_a_vec_worker_are_called() -> None:
    """The first rows begin by `start_episode`, and every step of all rows is one `step_episode`."""
    arguments = {"n_envs": 3}
    worker, plain = (make(kind, worker_args=arguments) for kind in (CountingVecWorker, VecWorker))
    for each in (worker, plain):
        each.assign(range(9))
        each.advance(float("inf"))
    assert_same_episodes(plain.take(), worker.take())
    assert worker.begun >= 1
    assert worker.stepped >= 9


def test_our_own_classes_need_no_adapter() -> None:
    """A NumberedWorker is given as it is."""
    assert type(factory(DefaultWorker)(0)) is DefaultWorker


# -- through the samplers ----------------------------------------------------------------------------------------------

SAMPLERS: list[type[Sampler]] = [LocalSampler, MultiprocessingSampler]


@pytest.mark.parametrize("sampler_class", SAMPLERS)
@pytest.mark.parametrize("kind", [PlainVerbs, VerbsOnly])
@pytest.mark.parametrize("at_once", [1, 3])
def test_samplers_take_such_classes(sampler_class: type[Sampler], kind: type[Any], at_once: int) -> None:
    """Numbers come without a gap; updates and exact numbers of episodes work as ever."""
    made = factory(kind, n_workers=2, worker_args={"episodes_at_once": at_once})
    with sampler_class(LinearPolicy(SPEC), ChainEnv(), worker_factory=made) as sampler:
        batch = sampler.obtain_samples(0, 60, None)
        assert list(range(len(batch))) == batch.numbers.tolist()
        assert batch.lengths[:-1].sum() < 60 <= batch.lengths.sum()
        exact = sampler.obtain_exact_episodes(4, {"gain": 0.0})
        assert 8 == len(exact)
        assert [0.0] == sorted(set(exact.agent_infos["place"].tolist()))


@pytest.mark.parametrize("command", ["collect", "exact"])
def test_a_dataset_says_that_it_cannot_be_reproduced(tmp_path: Path, command: Any) -> None:
    """Its info.json has the reason, with the class."""
    amount: dict[str, Any] = (
        {"episodes": EpisodeRange(0, 6)} if command == "collect" else {"command": "exact", "episodes_per_worker": 3}
    )
    config = CollectConfig(
        env="tests.support.envs:ChainEnv",
        policy="tests.support.policies:LinearPolicy",
        worker_class="tests.support.workers:PlainVerbs",
        workers=2,
        seed=1,
        output=tmp_path / "out",
        **amount,
    )
    assert 6 == collect(config).episodes
    dataset = rollout_cli.load(tmp_path / "out")
    assert "failed" == dataset.info["reproducible"]["status"]
    assert "PlainVerbs takes no episode numbers" in dataset.info["reproducible"]["reason"]
    assert dataset.to_episode_batch().terminated.all()


BROKEN = [
    (
        "FailingVerbs",
        r"^FailingVerbs\.rollout raised an error \(worker 0, episode 0\): ValueError: the worker is broken$",
    ),
    ("ListGivingVerbs", "^ListGivingVerbs gave a list, not an EpisodeBatch$"),
    ("PartGivingVerbs", "^PartGivingVerbs gave a part of an episode$"),
    ("UnbuildableVerbs", "^the worker class UnbuildableVerbs cannot be built: TypeError: "),
]


@pytest.mark.parametrize("sampler_class", SAMPLERS)
@pytest.mark.parametrize(("name", "message"), BROKEN, ids=[name for name, _ in BROKEN])
def test_what_a_worker_class_does_wrong(sampler_class: type[Sampler], name: str, message: str) -> None:
    """The error names the class, has a hint, and where it raised shows where."""
    made = factory(getattr(workers, name), max_episode_length=5)
    with (
        sampler_class(LinearPolicy(SPEC), EndlessEnv(), worker_factory=made) as sampler,
        pytest.raises(UserCodeError, match=message) as caught,
    ):
        sampler.obtain_exact_episodes(1, None)
    assert caught.value.hint
    if name == "FailingVerbs":
        assert "in step_episode" in caught.value.details
