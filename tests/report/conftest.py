"""Datasets that no test changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_cli import CollectConfig, collect
from rollout_cli.dataset.reader import Dataset, load
from rollout_cli.options.types import EpisodeRange


def made(folder: Path, episodes: int = 12, **kwargs: object) -> Dataset:
    """Collect episodes of `Pictures`."""
    collect(
        CollectConfig(
            env="tests.report.worlds:Pictures",
            env_kwargs=kwargs,
            episodes=EpisodeRange(0, episodes),
            seed=3,
            sampler="local",
            workers=1,
            output=folder,
        )
    )
    return load(folder)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return made(tmp_path_factory.mktemp("looking") / "pictures")


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return made(tmp_path_factory.mktemp("looking") / "vectors", blind=True)
