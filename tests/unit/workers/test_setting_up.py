"""What is set up around a worker: in which order, and what becomes of failures."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_cli.envs import describe_env
from rollout_cli.errors import EnvError, UsageError, UserCodeError
from rollout_cli.samplers import LocalSampler, MultiprocessingSampler, Sampler
from rollout_cli.workers import WorkerFactory
from rollout_cli.workers.setting_up import entering
from tests.support.envs import ChainEnv
from tests.support.policies import LinearPolicy
from tests.support.setups import Diary, DiaryEnv, DiaryPolicy, DiarySetup

SAMPLERS: list[type[Sampler]] = [LocalSampler, MultiprocessingSampler]
SPEC = describe_env(ChainEnv())


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
