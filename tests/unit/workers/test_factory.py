"""WorkerFactory: builds workers, prepares what each of them gets, and crosses the process border."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from rollout_cli.errors import UsageError, UserCodeError
from rollout_cli.workers import DefaultWorker, WorkerFactory
from rollout_cli.workers.factory import load_worker_class
from tests.support import envs


class ArgumentWorker(DefaultWorker):
    """Takes one more argument."""

    def __init__(self, *, flavour: str, **options: Any) -> None:
        super().__init__(**options)
        self.flavour = flavour


def test_workers_get_number_seed_limit_and_arguments() -> None:
    """A pickled copy of the factory builds the same worker as the factory itself."""
    factory = WorkerFactory(
        max_episode_length=4, n_workers=3, seed=9, worker_class=ArgumentWorker, worker_args={"flavour": "sweet"}
    )
    for made_by in (factory, pickle.loads(pickle.dumps(factory))):
        worker = made_by(2)
        assert isinstance(worker, ArgumentWorker)
        assert (2, "sweet") == (worker.worker_number, worker.flavour)
        worker.update_env(envs.EndlessEnv())
        worker.update_agent(lambda observation: 1)
        assert [4] == worker.rollout().lengths.tolist()


class BlockWorker(DefaultWorker):
    """Wants its numbers in blocks, the length of which is an argument."""

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        return int(worker_args["block"])


def test_arguments_that_blocks_cannot_be_told_from() -> None:
    """The error is the user's class's, and names it."""
    assert 3 == WorkerFactory(worker_class=BlockWorker, worker_args={"block": "3"}).numbers_at_once
    with pytest.raises(UserCodeError, match=r"BlockWorker.numbers_at_once: ValueError: invalid literal.*'x'"):
        _ = WorkerFactory(worker_class=BlockWorker, worker_args={"block": "x"}).numbers_at_once


def test_every_worker_is_another_one() -> None:
    """Two workers of one number share nothing."""
    factory = WorkerFactory(n_workers=1, seed=0)
    assert factory(0) is not factory(0)


@pytest.mark.parametrize("number", [-1, 3])
def test_there_are_only_n_workers(number: int) -> None:
    """A number outside the range is refused and both sides are named."""
    with pytest.raises(ValueError, match=f"worker_number is {number}, must be from 0 to 2"):
        WorkerFactory(n_workers=3, seed=0)(number)


def test_one_object_is_for_all_and_a_list_for_each() -> None:
    """What is no list goes to everyone; a list goes entry by entry; each goes through `preprocess`."""
    factory = WorkerFactory(n_workers=2, seed=0)
    assert ["a", "a"] == factory.prepare_worker_messages("a")
    assert ["A", "B"] == factory.prepare_worker_messages(["a", "b"], str.upper)
    assert [None, None] == factory.prepare_worker_messages(None)


@pytest.mark.parametrize("entries", [[], ["a"], ["a", "b", "c"]])
def test_a_list_of_another_length_is_refused(entries: list[str]) -> None:
    """A list has exactly one entry a worker; the message names both numbers."""
    with pytest.raises(ValueError, match=f"2 entries, not {len(entries)}"):
        WorkerFactory(n_workers=2, seed=0).prepare_worker_messages(entries)


@pytest.mark.parametrize("options", [{"n_workers": 0}, {"seed": -1}, {"max_episode_length": 0}])
def test_values_out_of_range_are_refused(options: dict[str, Any]) -> None:
    """Each is checked where it is given."""
    with pytest.raises(ValueError, match=f"{next(iter(options))} is {next(iter(options.values()))}, must be at least"):
        WorkerFactory(**options)


def test_defaults_are_drawn_when_the_factory_is_made() -> None:
    """Without a seed each factory draws its own; without n_workers there is one a usable core."""
    one, other = WorkerFactory(), WorkerFactory()
    assert one.seed != other.seed
    assert one.n_workers >= 1


def test_worker_classes_are_found_by_name() -> None:
    """`package.module:Class` names a worker class."""
    assert load_worker_class("tests.unit.workers.test_factory:ArgumentWorker").__name__ == "ArgumentWorker"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tests.support.envs:ChainEnv", "is no worker class"),
        ("tests.support.envs:Missing", "the worker class cannot be loaded"),
        ("no_such_module:Worker", "the worker class cannot be loaded: there is no module"),
    ],
)
def test_what_is_no_worker_class_is_refused(spec: str, message: str) -> None:
    """A missing module, a missing name and a class that is no worker are usage errors with a hint."""
    with pytest.raises(UsageError, match=message) as caught:
        load_worker_class(spec)
    assert caught.value.hint
