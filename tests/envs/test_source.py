"""Env SPECs, and what the Python API may give for an environment."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import pytest

from rollout_cli.envs.describe import time_limit_of
from rollout_cli.envs.source import EnvSource, as_env_source, build_native, env_source, wrapper_source
from rollout_cli.errors import EnvLoadError
from tests.helpers.errors import raises
from tests.helpers.projects import project, write_module
from tests.workers.worlds import ChainEnv

__all__ = ["project"]

MODULE = """
    import gymnasium
    from tests.workers.worlds import ChainEnv

    class Mine(ChainEnv):
        def __init__(self, size=1):
            super().__init__()
            self.size = size

    def make(size):
        return Mine(size)

    held = Mine(5)
    spec = gymnasium.spec("CartPole-v1")
    number = 3
    def nothing():
        return 4
    def broken():
        raise RuntimeError("no simulator")
    def needy():
        import not_installed
    def anything(**kwargs):
        return ChainEnv(**kwargs)
    def several():
        return type("ParallelEnv", (), {"possible_agents": ["first", "second"]})()
    def unreset():
        return type("ParallelEnv", (), {"observation_space": lambda self, agent: None})()
    gymnasium.register("Registered-v0", Mine, max_episode_steps=9)
"""


@pytest.fixture
def mine(project: Path) -> Iterator[Path]:
    """Give a working folder with a module of environments."""
    write_module(project, "mine", MODULE)
    yield project
    gymnasium.registry.pop("Registered-v0", None)


def crossed(source: EnvSource) -> Any:
    """What a worker gets of a source."""
    return pickle.loads(pickle.dumps(source))


def test_gymnasium_id() -> None:
    """An id is made by gymnasium, with the arguments, and without the wrappers that every step would pay for."""
    source = crossed(env_source("CartPole-v1", {"sutton_barto_reward": True, "max_episode_steps": 7}))
    env = source.build()
    assert env.unwrapped is env
    assert env._sutton_barto_reward is True
    assert 7 == time_limit_of(env)
    assert "CartPole-v1" == source.label
    kwargs = {"sutton_barto_reward": True, "max_episode_steps": 7}
    described: dict[str, Any] = {
        "spec": "CartPole-v1",
        "kwargs": kwargs,
        "path": None,
        "sha256": None,
        "wrappers": [],
    }
    assert described == source.describe()


def test_id_of_a_module(mine: Path) -> None:
    """The module before the colon is imported from the working folder, and registers the id."""
    env = crossed(env_source("mine:Registered-v0", {"size": 3})).build()
    assert (3, 9) == (env.unwrapped.size, env.spec.max_episode_steps)


@pytest.mark.parametrize(("spec", "size"), [("mine:Mine", 1), ("mine:held", 5)])
def test_module_attribute(mine: Path, spec: str, size: int) -> None:
    """A class is built, an environment is copied: no two builds share one."""
    source = crossed(env_source(spec))
    first, second = source.build(), source.build()
    assert (size, size) == (first.size, second.size)
    assert first is not second
    assert sys.modules["mine"].held is not first
    digest = sha256((mine / "mine.py").read_bytes()).hexdigest()
    assert {"spec": spec, "kwargs": {}, "path": None, "sha256": digest, "wrappers": []} == source.describe()


def test_module_factory_and_spec(mine: Path) -> None:
    """A factory gets the arguments, and a gymnasium EnvSpec is made."""
    assert 4 == crossed(env_source("mine:make", {"size": 4})).build().size
    assert "CartPole-v1" == crossed(env_source("mine:spec")).build().spec.id


def test_json(project: Path) -> None:
    """EnvSpec JSON is made as it stands, with further arguments; the file is read once."""
    text = gymnasium.make("CartPole-v1", max_episode_steps=11).spec.to_json()  # type: ignore[union-attr]
    (project / "spec.json").write_text(text)
    source = crossed(env_source("spec.json", {"sutton_barto_reward": True}))
    (project / "spec.json").unlink()
    env = source.build()
    assert 11 == env.spec.max_episode_steps
    assert env.unwrapped._sutton_barto_reward is True
    assert "CartPole-v1" == source.label
    assert sha256(text.encode()).hexdigest() == source.describe()["sha256"]
    assert str(project / "spec.json") == source.describe()["path"]


def test_json_with_wrappers(project: Path) -> None:
    """Wrappers in the JSON are put on again, around the time limit; a hand-written file may omit the list."""
    wrapped = gymnasium.wrappers.ClipReward(gymnasium.make("CartPole-v1"), 0.0, 0.5)
    assert wrapped.spec is not None
    (project / "spec.json").write_text(wrapped.spec.to_json())
    env = env_source("spec.json").build()
    assert isinstance(env, gymnasium.wrappers.ClipReward)
    assert isinstance(env.env, gymnasium.wrappers.TimeLimit)
    assert 500 == time_limit_of(env)
    fields = json.loads(gymnasium.spec("CartPole-v1").to_json())
    del fields["additional_wrappers"]
    (project / "short.json").write_text(json.dumps(fields))
    assert "CartPole-v1" == env_source("short.json").label


@pytest.mark.parametrize(
    "held", [gymnasium.spec("CartPole-v1"), ChainEnv, ChainEnv(), partial(ChainEnv, ends="both")]
)
def test_pickle(project: Path, held: Any) -> None:
    """A pickled spec, class, environment or factory builds new environments."""
    (project / "env.pkl").write_bytes(cloudpickle.dumps(held))
    source = crossed(env_source("env.pkl"))
    assert isinstance(source.build(), gymnasium.Env)
    assert source.build() is not source.build()
    assert "env.pkl" == source.label
    assert {"spec": "env.pkl", "path": str(project / "env.pkl")}.items() <= source.describe().items()


def test_python_objects() -> None:
    """An environment is copied as it is now, a factory is called, an id, spec and source stay what they are."""
    env = ChainEnv()
    env.reset(seed=3)
    source = crossed(as_env_source(env))
    assert env.length == source.build().length
    assert source.build() is not source.build()
    assert "ChainEnv" == source.label
    assert as_env_source(source) is source
    assert "CartPole-v1" == as_env_source("CartPole-v1").label
    assert "CartPole-v1" == as_env_source(gymnasium.spec("CartPole-v1")).label
    assert "CartPole-v1" == as_env_source(gymnasium.make("CartPole-v1")).label
    built: Any = replace(as_env_source(ChainEnv), kwargs={"ends": "both"}).build()
    assert "both" == built._ends


def test_objects_that_are_refused() -> None:
    """What is no environment is a clear error."""
    with raises(EnvLoadError, "env-type"):
        as_env_source(3)


def test_an_environment_that_cannot_be_pickled() -> None:
    """It is refused where it is given, not in the worker."""
    env = ChainEnv()
    env.lock = (number for number in range(3))  # type: ignore[attr-defined]
    with raises(EnvLoadError, "pickle-failed", "ChainEnv") as caught:
        as_env_source(env)
    assert "factory" in caught.value.hint


@pytest.mark.parametrize(
    ("spec", "kwargs", "error", "hint"),
    [
        ("CartPol-v1", {}, ("env-unknown", "'CartPol-v1'"), "CartPole-v1"),
        ("cartpole-v1", {}, ("env-unknown", "'cartpole-v1'"), "CartPole-v1"),
        ("CartPole-v9", {}, ("env-unknown", "'CartPole-v9'"), "CartPole-v"),
        ("Away/Somewhere-v0", {}, ("env-unknown", "Away/Somewhere-v0"), ""),
        ("", {}, ("env-unknown",), ""),
        ("so bad!", {}, ("env-unknown", "'so bad!'"), ""),
        ("absent:Some-v0", {}, ("module-missing", "'absent'"), ""),
        ("absent:Some", {}, ("module-missing", "'absent'"), ""),
        ("CartPole-v1", {"wheels": 4}, ("env-argument", "'wheels'"), "sutton_barto_reward, render_mode"),
        ("CartPole-v1", {"render_mod": 4}, ("env-argument", "'render_mod'"), "render_mode?"),
        ("mine:Mine", {"sizes": 4}, ("env-argument", "'mine:Mine'", "'sizes'"), "size?"),
        ("mine:nothing", {"size": 4}, ("env-argument", "'mine:nothing'", "'size'"), ""),
        ("mine:anything", {"wheels": 4}, ("env-argument", "'wheels'"), "documentation"),
        ("mine", {}, ("env-unknown", "'mine'"), "mine:Mine or mine:make or"),
        ("mine.py", {}, ("env-unknown", "'mine.py'"), "mine:Mine or mine:make or"),
        ("mine:several", {}, ("env-multi-agent", "'mine:several'"), "gymnasium.Env"),
        ("mine:unreset", {}, ("env-multi-agent", "'mine:unreset'"), "gymnasium.Env"),
        ("lazy:Absent", {}, ("attribute-missing", "'Absent'", "'lazy'", "ModuleNotFoundError"), ""),
        ("mine:Absent", {}, ("attribute-missing", "'Absent'"), "ChainEnv"),
        ("mine:number", {}, ("env-not-gymnasium", "'mine:number'", "int"), ""),
        ("mine:nothing", {}, ("env-not-gymnasium", "'mine:nothing'", "int"), ""),
        ("mine:broken", {}, ("env-build", "'mine:broken'", "RuntimeError: no simulator"), ""),
        ("mine:needy", {}, ("env-build", "ModuleNotFoundError"), "'not_installed'"),
        ("mine:held", {"size": 2}, ("env-argument", "size"), ""),
        ("absent.json", {}, ("spec-file-missing", "'absent.json'"), ""),
        ("list.json", {}, ("env-spec-json", "'list.json'", "TypeError"), "env.spec.to_json()"),
        ("cut.json", {}, ("env-spec-json", "'cut.json'", "JSONDecodeError"), "env.spec.to_json()"),
        ("idless.json", {}, ("env-spec-json", "'idless.json'", "ValueError"), "env.spec.to_json()"),
        ("garbage.pkl", {}, ("unpickle-failed", "'garbage.pkl'"), "cloudpickle.dump"),
    ],
)
def test_what_cannot_be_built(
    mine: Path, spec: str, kwargs: dict[str, Any], error: tuple[str, ...], hint: str
) -> None:
    """Every way to fail is one clear line of the environment kind, with what to do next."""
    (mine / "list.json").write_text("[1]")
    (mine / "cut.json").write_text('{"id": ')
    (mine / "idless.json").write_text("{}")
    (mine / "garbage.pkl").write_bytes(b"no pickle")
    write_module(mine, "lazy", "def __getattr__(name):\n    import not_installed\n")
    with raises(EnvLoadError, *error) as caught:
        env_source(spec, kwargs).build()
    assert caught.value.hint or caught.value.details
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message
    assert 3 == caught.value.exit_code


def test_a_missing_extra_gives_the_pip_line() -> None:
    """Where gymnasium names the package to install, the hint is that command."""

    def make() -> Any:
        raise gymnasium.error.DependencyNotInstalled('X is not installed, run `pip install "gymnasium[x]"`')

    with raises(EnvLoadError, "env-package-missing") as caught:
        as_env_source(make).build()
    assert 'run pip install "gymnasium[x]"' == caught.value.hint


def test_an_object_of_several_agents() -> None:
    """It is refused as such before it is pickled, with both ways out."""
    with raises(EnvLoadError, "env-multi-agent") as caught:
        as_env_source(type("Parallel", (), {"agents": ["first"]})())
    assert "SuperSuit" in caught.value.hint


def test_kinds_that_are_not_gymnasiums() -> None:
    """Vectorised and old environments are refused with what to do instead."""
    old = type("OldEnv", (), {"__module__": "gym.core"})()
    with raises(EnvLoadError, "env-not-gymnasium", "OldEnv") as caught:
        as_env_source(lambda: old).build()
    assert "shimmy" in caught.value.hint
    with raises(EnvLoadError, "env-not-gymnasium", "SyncVectorEnv") as caught:
        as_env_source(lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")).build()
    assert "single environment" in caught.value.hint


WRAPPERS_MODULE = """
    import gymnasium

    class Doubled(gymnasium.RewardWrapper):
        def __init__(self, env, factor=2.0):
            super().__init__(env)
            self.factor = factor

        def reward(self, reward):
            return self.factor * reward
"""


def test_wrappers_of_a_source(project: Path) -> None:
    """They are applied in order to each environment that is built, in a worker too, and recorded."""
    write_module(project, "doubled", WRAPPERS_MODULE)
    wrappers = (
        wrapper_source("doubled:Doubled", {"factor": 3.0}),
        wrapper_source("ClipReward", {"max_reward": 2.5}),
    )
    source = crossed(env_source("CartPole-v1", {"max_episode_steps": 7}, wrappers=wrappers))
    env = source.build()
    assert ["ClipReward", "Doubled"] == [type(env).__name__, type(env.env).__name__]
    assert 7 == time_limit_of(env)
    env.reset(seed=1)
    assert 2.5 == env.step(0)[1]
    digest = sha256((project / "doubled.py").read_bytes()).hexdigest()
    recorded = [
        (record["spec"], record["kwargs"], record["sha256"]) for record in source.describe()["wrappers"]
    ]
    assert [
        ("doubled:Doubled", {"factor": 3.0}, digest),
        ("ClipReward", {"max_reward": 2.5}, None),
    ] == recorded
    with raises(EnvLoadError, "wrapper-vector") as caught:
        build_native(source, 2, 0)
    assert 'omit vectorization="native"' in caught.value.hint


TUPLES_MODULE = """
    from typing import Tuple, Union
    from tests.workers.worlds import ChainEnv

    class Sized(ChainEnv):
        def __init__(self, shape: Union[Tuple[int, int], int], names: "list[str] | tuple[str, ...]", other=None):
            super().__init__()
            self.held = shape, names, other
"""


def test_an_annotation_decides_whether_a_list_is_a_tuple(project: Path) -> None:
    """TOML and JSON have lists alone, and gymnasium's ResizeObservation refuses them."""
    write_module(project, "tuples", TUPLES_MODULE)
    kwargs = {"shape": [4, 2], "names": ["a"], "other": [1]}
    wrappers = (wrapper_source("ReshapeObservation", {"shape": [3, 1]}),)
    env: Any = env_source("tuples:Sized", kwargs, wrappers=wrappers).build()
    assert (3, 1) == env.observation_space.shape
    assert ((4, 2), ["a"], [1]) == env.unwrapped.held
    assert [4, 2] == kwargs["shape"]


def test_a_vector_entry_point_that_cannot_be_imported() -> None:
    """The hint names what is missing, as it does for a single environment."""
    spec = gymnasium.envs.registration.EnvSpec("Absent-v0", vector_entry_point="absent_module:Rows")
    with raises(EnvLoadError, "env-build", "Absent-v0", "absent_module") as caught:
        build_native(as_env_source(spec), 2, 0)
    assert "'absent_module'" in caught.value.hint
