"""Ids whose package registers them when it is imported: found without the module in front."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from rollout_cli.envs.source import env_source
from rollout_cli.errors import EnvLoadError, UsageError
from tests.helpers.errors import raises
from tests.helpers.projects import project, write_module

__all__ = ["project"]

MODULE = """
    import gymnasium
    from tests.workers.worlds import ChainEnv

    gymnasium.register("{}", ChainEnv)
"""
IDS = {
    "highway_env": "highway-made-up-v0",
    "ogbench": "visual-cube-made-up-v0",
    "made_up_pack": "made-up-pack/Env-v0",
}


@pytest.fixture
def packages(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give packages on Python's path: two of the table, and one whose namespace is its name."""
    monkeypatch.syspath_prepend(project)
    for module, env_id in IDS.items():
        write_module(project, module, MODULE.format(env_id))
    yield
    for env_id in IDS.values():
        gymnasium.registry.pop(env_id, None)


@pytest.mark.parametrize("module", IDS)
def test_an_id_of_an_installed_package(packages: None, module: str) -> None:
    """Its package is imported, and none of the others."""
    del packages
    env: Any = env_source(IDS[module]).build()
    assert "ChainEnv" == type(env.unwrapped).__name__
    assert [module] == [name for name in IDS if name in sys.modules]


def test_an_id_of_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is the pip command; a package without the id, and one that nobody knows, are refused as ever."""
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with raises(UsageError, "package-missing") as caught:
        env_source("FetchReach-v4").resolve()
    assert "pip install gymnasium-robotics" == caught.value.hint
    with raises(EnvLoadError, "env-unknown", "not_installed/Env-v0"):
        env_source("not_installed/Env-v0").resolve()


def test_a_package_that_cannot_be_imported(packages: None, project: Path) -> None:
    """What it raises is an error of the environment, with the traceback."""
    del packages
    write_module(project, "highway_env", "raise RuntimeError('no screen')")
    with raises(EnvLoadError, "import-failed", "highway_env", "highway-v0"):
        env_source("highway-v0").resolve()
