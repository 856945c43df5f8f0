"""The two ready-made set-ups: a TensorFlow session around a worker, and one thread for torch in its process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollout_cli.envs import describe_env
from rollout_cli.errors import UsageError, UserCodeError
from rollout_cli.samplers import LocalSampler, MultiprocessingSampler, Sampler
from rollout_cli.workers.setting_up import entering, one_torch_thread
from rollout_cli.workers.tf_setup import tensorflow_session
from tests.support.envs import ChainEnv
from tests.support.policies import GaragePolicy, LinearPolicy
from tests.support.setups import Diary, DiarySetup

SAMPLERS: list[type[Sampler]] = [LocalSampler, MultiprocessingSampler]
SPEC = describe_env(ChainEnv())


# -- TensorFlow --------------------------------------------------------------------------------------------------------

STAND_IN = '''
"""Stands in for TensorFlow: graphs and sessions that are the default inside `with`."""
import contextlib

entered = []

class Named:
    def __init__(self, name): self.name = name
    @contextlib.contextmanager
    def as_default(self):
        entered.append(self.name)
        yield self
        entered.remove(self.name)

class {namespace}:
    @staticmethod
    def Graph(): return Named("graph")
    @staticmethod
    def Session(): return Named("session of " + ",".join(entered))
{after}
'''


@pytest.fixture(params=["1", "2"])
def tensorflow(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put a stand-in for TensorFlow 1 or 2 where this process and its workers import modules from."""
    after = "Graph, Session = api.Graph, api.Session" if request.param == "1" else "class compat: v1 = api"
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "tensorflow.py").write_text(STAND_IN.format(namespace="api", after=after))
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("tensorflow", None)


class SessionPolicy(GaragePolicy):
    """Needs a session when it is unpickled and when it acts, and tells which it found."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.at_birth = sessions()

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        action, _ = super().get_action(observation)
        return action, {"at_birth": self.at_birth, "acting": sessions()}


def sessions() -> str:
    module = sys.modules.get("tensorflow")
    return " & ".join(module.entered) if module is not None else "none"


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_tf_worker_has_a_session(kind: type[Sampler], tensorflow: None) -> None:
    """A new graph and a session of it are the defaults before the policy is unpickled, and as long as it acts."""
    with kind(SessionPolicy(SPEC), ChainEnv(), n_workers=1, seed=0, is_tf_worker=True) as source:
        infos = source.obtain_samples(0, 20, None).agent_infos
    assert {"graph & session of graph"} == set(infos["at_birth"]) | set(infos["acting"])
    assert sessions() in ("", "none")


def test_missing_tensorflow_is_told_with_what_to_install() -> None:
    """It is an error of usage that says how to get it."""
    with pytest.raises(UsageError, match="TensorFlow, which is not installed") as caught, tensorflow_session():
        pass
    assert "pip install tensorflow" == caught.value.hint


@pytest.mark.parametrize("kind", SAMPLERS)
def test_samplers_tell_it_too(kind: type[Sampler]) -> None:
    """Wherever the worker runs."""
    with (
        kind(LinearPolicy(SPEC), ChainEnv(), n_workers=1, is_tf_worker=True) as source,
        pytest.raises(UsageError, match="TensorFlow, which is not installed"),
    ):
        source.obtain_samples(0, 10, None)


def test_a_tensorflow_that_is_broken_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its import lacks is another module."""
    (tmp_path / "tensorflow.py").write_text("import a_module_that_is_not_there")
    monkeypatch.syspath_prepend(str(tmp_path))
    with (
        pytest.raises(UserCodeError, match="No module named 'a_module_that_is_not_there'"),
        entering(tensorflow_session),
    ):
        pass


# -- torch -------------------------------------------------------------------------------------------------------------

TORCH = '''
"""Stands in for torch: it knows how many threads it was told to use."""
threads = 7

def set_num_threads(count):
    global threads
    threads = count

class default_generator:
    @staticmethod
    def manual_seed(seed): pass
    @staticmethod
    def seed(): pass
    @staticmethod
    def get_state(): return None
    @staticmethod
    def set_state(state): pass

class Generator: pass

class nn:
    class Module: pass
'''


@pytest.mark.parametrize(("variable", "expected"), [(None, 1), ("3", 3), ("0", 1), ("many", 1)])
def test_torch_gets_the_threads_that_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, expected: int
) -> None:
    """One, or what the user's OMP_NUM_THREADS says."""
    told: list[int] = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(set_num_threads=told.append))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    one_torch_thread()
    assert [expected] == told


class TorchPolicy(GaragePolicy):
    """Loads torch when it is unpickled, and tells how many threads that has while it acts."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        import torch

        self.__dict__.update(state)
        self.before = torch.threads

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        import torch

        action, _ = super().get_action(observation)
        return action, {"before": self.before, "threads": torch.threads}


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield
    sys.modules.pop("torch", None)


@pytest.mark.parametrize(("with_setup", "expected"), [(False, 1), (True, 7)])
def test_a_worker_process_gives_torch_one_thread(torch: None, diary: Diary, with_setup: bool, expected: int) -> None:
    """As soon as the policy that needs it is loaded; where the user has a set-up, that alone decides."""
    setup = DiarySetup(diary) if with_setup else None
    with MultiprocessingSampler(TorchPolicy(SPEC), ChainEnv(), n_workers=1, seed=0, worker_setup=setup) as source:
        infos = source.obtain_samples(0, 20, None).agent_infos
    assert ({7}, {expected}) == (set(infos["before"].tolist()), set(infos["threads"].tolist()))


def test_the_callers_torch_is_left_alone(torch: None) -> None:
    """A LocalSampler changes no thread count of the caller's."""
    with LocalSampler(TorchPolicy(SPEC), ChainEnv(), n_workers=1, seed=0) as source:
        infos = source.obtain_samples(0, 20, None).agent_infos
    assert {7} == set(infos["threads"].tolist())
