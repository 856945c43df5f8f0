"""A dataset's info.json holds all that is needed to run the same thing again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from rollout_cli.collect import collect
from rollout_cli.config import CollectConfig, EpisodeRange, cut_options, recorded_config, recorded_options
from rollout_cli.dataset.layout import read_info
from rollout_cli.errors import ConfigError, DatasetFormatError
from rollout_cli.redaction import without_secrets
from tests.support.policies import OwnGeneratorPolicy
from tests.support.projects import project
from tests.support.runs import data_hashes, run

__all__ = ["project"]

CONFIGS: list[dict[str, Any]] = [
    {"timesteps": 10},
    {"episodes": EpisodeRange(3, 9), "order": "arrival", "deterministic": True, "seed": 5},
    {"command": "exact", "episodes_per_worker": 4, "workers": 3, "next_observation": True, "max_episode_length": 7},
    {
        "timesteps": 1,
        "env": "mine:Env",
        "env_kwargs": {"a": [1, 2.5], "b": {"c": "text"}},
        "worker_class": "mine:Worker",
        "worker_args": {"x": True},
    },
    {"timesteps": 1, "envs_per_worker": 8, "vectorization": "native", "sampler": "local", "start_method": "spawn"},
]


def info_of(config: CollectConfig, **paths: str) -> dict[str, Any]:
    """Return what info.json has of a run, after a way through JSON."""
    told = {
        "collector": recorded_options(config),
        "root_seed": config.seed,
        "policy": {"spec": config.policy, "path": paths.get("policy")},
        "env_source": {"spec": config.env, "path": paths.get("env")},
    }
    return dict(json.loads(json.dumps(told)))


@pytest.mark.parametrize("options", CONFIGS)
def test_every_option_comes_back(options: dict[str, Any], tmp_path: Path) -> None:
    """The recorded configuration is the one that was run, in the output that is asked for."""
    config = CollectConfig(output=tmp_path / "out", **options)
    assert config == recorded_config(info_of(config), output=tmp_path / "out")


def test_files_are_found_from_anywhere(tmp_path: Path) -> None:
    """A policy's or environment's file is named by its absolute path."""
    config = CollectConfig(timesteps=1, policy="p.pkl", env="e.json")
    again = recorded_config(info_of(config, policy="/a/p.pkl", env="/a/e.json"), output=tmp_path)
    assert ("/a/p.pkl", "/a/e.json") == (again.policy, again.env)


@pytest.mark.parametrize("missing", ["collector", "policy", "env_source", "root_seed"])
def test_a_dataset_that_records_no_run_is_refused(missing: str) -> None:
    """What a writer made that was used without `collect` cannot be run again."""
    info = info_of(CollectConfig(timesteps=1))
    del info[missing]
    with pytest.raises(DatasetFormatError, match="does not record"):
        recorded_config(info)


def test_an_unknown_option_is_refused() -> None:
    """A later version may have options that this one would ignore."""
    info = info_of(CollectConfig(timesteps=1))
    info["collector"]["novel"] = 1
    with pytest.raises(DatasetFormatError, match="novel"):
        recorded_config(info)


def test_the_recorded_run_makes_the_same_data(project: Path) -> None:
    """Run from what info.json says, with a drawn seed and a policy in a file, `data/` is the same."""
    (project / "p.pkl").write_bytes(cloudpickle.dumps(OwnGeneratorPolicy))
    options = {"policy": "p.pkl", "max_episode_length": 9, "sampler": "local", "workers": 1, "next_observation": True}
    run(project / "first", timesteps=100, **options)
    again = recorded_config(read_info(project / "first"), output=project / "second")
    collect(again)
    assert data_hashes(project / "first") == data_hashes(project / "second")


def test_secrets_must_be_given_again(tmp_path: Path) -> None:
    """A value that was cut from the record is named, and is never taken for the value itself."""
    config = CollectConfig(timesteps=1, env_kwargs={"token": "x", "level": 1})
    told, redacted = without_secrets(info_of(config))
    info = {**told, "redacted": [*redacted, "env.kwargs.token"]}
    assert {"env_kwargs": ["env_kwargs.token"]} == cut_options(info)
    with pytest.raises(ConfigError, match=r"env_kwargs\.token, which looked like a secret"):
        recorded_config(info)
    again = recorded_config(info, env_kwargs={"token": "y", "level": 1}, output=tmp_path)
    assert {"token": "y", "level": 1} == again.env_kwargs
