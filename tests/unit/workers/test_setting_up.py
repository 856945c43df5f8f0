"""What is set up around a worker: in which order, what becomes of failures, and the two ready-made set-ups."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollout_cli.envs import describe_env
from rollout_cli.errors import EnvError, UsageError, UserCodeError
from rollout_cli.samplers import LocalSampler, MultiprocessingSampler, Sampler
from rollout_cli.workers import WorkerFactory
from rollout_cli.workers.setting_up import entering, one_torch_thread
from rollout_cli.workers.tf_setup import tensorflow_session
from tests.support.envs import ChainEnv
from tests.support.policies import GaragePolicy, LinearPolicy
from tests.support.setups import Diary, DiaryEnv, DiaryPolicy, DiarySetup

SAMPLERS: list[type[Sampler]] = [LocalSampler, MultiprocessingSampler]
SPEC = describe_env(ChainEnv())


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path / "diary")


def sampler(kind: type[Sampler], diary: Diary, *, fails: str = "", env_fails: bool = False, **options: Any) -> Sampler:
    env = DiaryEnv(diary, fails=env_fails)
    options = {"n_workers": 1, "worker_setup": DiarySetup(diary, fails), **options}
    return kind(DiaryPolicy(SPEC, diary), env, seed=0, max_episode_length=5, **options)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_it_is_entered_before_the_policy_is_unpickled_and_left_after_the_environment_is_closed(
    kind: type[Sampler], diary: Diary
) -> None:
    """Around everything of the user's, and again when the workers are started again."""
    with sampler(kind, diary) as source:
        for _ in range(2):
            source.obtain_samples(0, 10, None)
            source.obtain_samples(1, 10, {"gain": 0.5})
            source.shutdown_worker()
            lines = diary.lines()
            assert ("enter", "policy", "close", "leave") == (lines[0], lines[1], lines[-2], lines[-1])
            assert {"enter": 1, "leave": 1} == {word: lines.count(word) for word in ("enter", "leave")}
            diary.path.unlink()


@pytest.mark.parametrize("kind", SAMPLERS)
def test_it_is_left_after_an_error(kind: type[Sampler], diary: Diary) -> None:
    """An environment that fails does not keep it from being left."""
    with sampler(kind, diary, env_fails=True) as source, pytest.raises(EnvError, match="the step is broken"):
        source.obtain_samples(0, 10, None)
    assert ("enter", "leave") == (diary.lines()[0], diary.lines()[-1])


def test_every_process_has_its_own(diary: Diary) -> None:
    """With three workers it is entered and left three times, each time in the worker's process."""
    with sampler(MultiprocessingSampler, diary, n_workers=3) as source:
        source.obtain_exact_episodes(1, None)
    found = diary.by_process()
    assert 3 == len(found)
    assert {("enter", "leave")} == {(lines[0], lines[-1]) for lines in found.values()}


def test_workers_of_one_process_share_it(diary: Diary) -> None:
    """A LocalSampler enters it once, whatever the number of workers."""
    with sampler(LocalSampler, diary, n_workers=3) as source:
        source.obtain_exact_episodes(1, None)
    assert (1, 1) == (diary.lines().count("enter"), diary.lines().count("leave"))


@pytest.mark.parametrize("kind", SAMPLERS)
def test_one_that_cannot_be_entered(kind: type[Sampler], diary: Diary) -> None:
    """It is told as what it is, before anything else happens, and again at the next call."""
    with sampler(kind, diary, fails="enter") as source:
        for _ in range(2):
            with pytest.raises(
                UserCodeError, match="set-up could not be entered: OSError: there is no device"
            ) as caught:
                source.obtain_samples(0, 10, None)
            assert "worker_setup" in caught.value.hint
    assert [] == diary.lines()


def test_one_that_cannot_be_left(diary: Diary) -> None:
    """In the caller's process the failure is told."""
    source = sampler(LocalSampler, diary, fails="leave")
    source.obtain_samples(0, 10, None)
    with pytest.raises(UserCodeError, match="set-up could not be left: OSError: the device is stuck"):
        source.shutdown_worker()


def test_a_set_up_does_not_swallow_errors() -> None:
    """One whose exit returns True learns of the error, which goes on all the same."""
    seen: list[Any] = []

    class Swallowing:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> bool:
            seen.append(error[1])
            return True

    failure = ValueError("told")
    with pytest.raises(ValueError, match="told"), entering(Swallowing):
        raise failure
    assert [failure] == seen


def test_without_one_nothing_is_entered() -> None:
    """The context does nothing."""
    with WorkerFactory(n_workers=1).setup() as nothing:
        assert nothing is None


@pytest.mark.parametrize("kind", SAMPLERS)
def test_beside_a_factory_it_is_refused(kind: type[Sampler], diary: Diary) -> None:
    """The factory has it; given beside one it would be lost."""
    for options in ({"worker_setup": DiarySetup(diary)}, {"is_tf_worker": True}):
        with pytest.raises(UsageError, match="beside a worker_factory"):
            kind(LinearPolicy(SPEC), ChainEnv(), worker_factory=WorkerFactory(n_workers=1), **options)


def test_two_set_ups_are_one_too_many(diary: Diary) -> None:
    """`is_tf_worker` is a set-up itself."""
    with pytest.raises(ValueError, match="give one of the two"):
        WorkerFactory(is_tf_worker=True, worker_setup=DiarySetup(diary))


# -- TensorFlow -------------------------------------------------------------------------------------------------------

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


# -- torch ------------------------------------------------------------------------------------------------------------

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
