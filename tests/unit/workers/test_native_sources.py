"""NativeVecWorker takes any source of vector environments, and refuses what cannot give right episodes."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

from rollout_cli.envs import as_env_source, env_source
from rollout_cli.errors import EnvLoadError
from tests.support import vector_envs
from tests.unit.workers.making_native import DISABLED, NEXT_STEP, each_self_resetting, native, run

pytestmark = pytest.mark.usefixtures("small_blocks")


def test_facts() -> None:
    """The header records mode, width and class, and why episodes cannot be repeated."""
    env = native(env_source("CartPole-v1")).facts()["env"]
    assert ("CartPole-v1", "NextStep", 3, 500) == tuple(
        env[key] for key in ("id", "autoreset_mode", "num_envs", "max_episode_length")
    )
    assert "resets a row by itself" in native(env_source("CartPole-v1")).facts()["not_reproducible"]
    assert "n_envs" == native(vector_envs.chain(3, DISABLED)).facts()["scope"]


def test_a_factory_that_can_leave_resets_to_others_is_asked_to() -> None:
    """A factory with an argument for the mode is called with DISABLED, unless the mode is given."""
    worker = native(env_source("tests.support.vector_envs:chain"))
    assert worker.not_reproducible is None
    given_mode = env_source("tests.support.vector_envs:chain", {"autoreset_mode": "SameStep"})
    assert "in the same step" in str(native(given_mode).not_reproducible)


def test_a_pool() -> None:
    """What has EnvPool's verbs works: no VectorEnv, no seed in reset, its spaces those of one row, no reset infos."""
    worker = native(env_source("tests.support.vector_envs:Pool"))
    chunk = run(worker, range(12))
    assert list(range(12)) == chunk.numbers.tolist()
    for at in range(12):
        one = chunk.episodes(at, at + 1)
        assert list(range(int(one.lengths[0]))) == one.observations[0][:, 0].tolist()
    assert "resets a row by itself" in str(worker.not_reproducible)


def test_objects_of_the_python_api() -> None:
    """A class or factory that was pickled by the sampler builds too; a width that is not asked for is refused."""
    source = as_env_source(vector_envs.ScriptedVectorEnv, {"length": _two, "autoreset_mode": NEXT_STEP})
    assert [2] == run(native(source), [0]).lengths.tolist()
    with pytest.raises(EnvLoadError, match="3 rows, not 4"):
        native(vector_envs.chain(3, DISABLED), n_envs=4)


def _two(row: int, k: int) -> int:
    return 2


@pytest.mark.parametrize(
    ("env", "message", "hint"),
    [
        ("Acrobot-v1", "no vector entry point", "--envs-per-worker"),
        ("NoSuchEnv-v0", "there is no environment", "named with the module"),
        ("tests.support.envs:ChainEnv", "single environment", "--envs-per-worker"),
        ("tests.support.envs:SECONDS", "has no attribute", "it has"),
    ],
)
def test_what_has_no_vector_form(env: str, message: str, hint: str) -> None:
    """Each is an error that says what to do instead."""
    with pytest.raises(EnvLoadError, match=message) as caught:
        native(env_source(env))
    assert hint in caught.value.hint


@each_self_resetting
def test_a_limit_below_the_environments_own_is_refused(mode: AutoresetMode) -> None:
    """An environment that resets itself cannot be cut short; a limit that it keeps anyway is none."""
    with pytest.raises(EnvLoadError, match="limit of 6 steps") as caught:
        native(vector_envs.limited(3, mode), limit=5)
    assert "--env-kwargs" in caught.value.hint
    with pytest.raises(EnvLoadError, match="no limit that is known"):
        native(vector_envs.chain(3, mode), limit=5)
    assert [6] == run(native(vector_envs.limited(3, mode), limit=6), [0]).lengths.tolist()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (vector_envs.ResetsEverything, "resets rows that"),
        (vector_envs.SilentVectorEnv, "does not tell how it resets rows"),
    ],
)
def test_environments_that_break_the_contract_are_refused(env: Any, message: str) -> None:
    """What cannot give right episodes is refused when it is taken."""
    with pytest.raises(EnvLoadError, match=message) as caught:
        native(env(3))
    assert caught.value.hint
