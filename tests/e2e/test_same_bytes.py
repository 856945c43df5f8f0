"""The same seed gives the same bytes, whoever runs the episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.dataset import Dataset, load
from tests.support.runs import data_hashes, episodes_by_worker, run
from tests.support.slow import ROOT_SEED

SETTINGS: list[dict[str, Any]] = [
    {"sampler": "local", "workers": 1},
    {"workers": 1},
    {"workers": 2},
    {"workers": 5},
]
ENVS = ["box", "dictionary", "discrete", "image"]
POLICIES = [
    "random",
    "tests.support.policies:GlobalNoisePolicy",
    "tests.support.policies:OwnGeneratorPolicy",
]


def collect_all(tmp_path: Path, **options: Any) -> list[Dataset]:
    """Collect once with each setting; every worker must have run at least two episodes."""
    datasets = []
    for at, setting in enumerate(SETTINGS):
        dataset = run(tmp_path / str(at), seed=ROOT_SEED, **setting, **options)
        counts = episodes_by_worker(dataset)
        assert set(range(setting["workers"])) == set(counts), counts
        assert min(counts.values()) >= 2, counts
        datasets.append(dataset)
    return datasets


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("env", ENVS)
def test_data_is_the_same_for_every_worker_count_and_sampler(tmp_path: Path, env: str, policy: str) -> None:
    """`data/` is byte-identical with 1, 2 and 5 workers and the local sampler, and holds what it should."""
    options = {"env": f"tests.support.slow:{env}", "policy": policy, "timesteps": 700}
    first, *_ = collect_all(tmp_path, **options)
    hashes = [data_hashes(tmp_path / str(at)) for at in range(len(SETTINGS))]
    assert hashes[0]
    assert hashes == [hashes[0]] * len(SETTINGS)
    lengths = first.episodes["length"].to_pylist()
    assert sum(lengths) >= 700 > sum(lengths[:-1])


def test_another_seed_gives_other_data(tmp_path: Path) -> None:
    """Seeds 0 and 1 share no episode seed, and their data differ."""
    options: dict[str, Any] = {"env": "tests.support.slow:chain", "timesteps": 300, "sampler": "local", "workers": 1}
    seeds = [set(run(tmp_path / str(seed), seed=seed, **options).episodes["seed"].to_pylist()) for seed in (0, 1)]
    assert seeds[0].isdisjoint(seeds[1])
    assert data_hashes(tmp_path / "0") != data_hashes(tmp_path / "1")


def test_late_info_keys_change_nothing(tmp_path: Path) -> None:
    """A key of episode 50 that is a text in episode 80 goes to the remainder, and so does a key after the window."""
    datasets = collect_all(tmp_path, env="tests.support.slow:late_info", episodes=_range(0, 320))
    hashes = [data_hashes(tmp_path / str(at)) for at in range(len(SETTINGS))]
    assert hashes == [hashes[0]] * len(SETTINGS)
    features = datasets[0].info["features"]
    assert "env_info.late" not in features
    assert "env_info.later" not in features
    remainders = {number: _remainder(tmp_path / "0", number) for number in (50, 80, 300, 301, 5)}
    expected = {50: {"late": 1}, 80: {"late": "text"}, 300: {"later": 1.5}, 301: {"position": "a text"}, 5: {}}
    assert expected == remainders


def _range(first: int, stop: int) -> Any:
    from rollout_cli.config import EpisodeRange

    return EpisodeRange(first, stop)


def _remainder(path: Path, episode: int) -> Any:
    import pyarrow.dataset as ds

    table = ds.dataset(path / "data", format="parquet").to_table(filter=ds.field("episode_id") == episode)
    first = table["env_info_extra"][0].as_py()
    return json.loads(first) if first is not None else {}


def test_a_later_range_is_cut_from_the_same_run(tmp_path: Path) -> None:
    """Episodes 30:40 are bit for bit those of 0:320, under the same columns."""
    options: dict[str, Any] = {"env": "tests.support.slow:chain", "seed": ROOT_SEED, "sampler": "local", "workers": 1}
    whole = run(tmp_path / "whole", episodes=_range(0, 320), **options)
    part = run(tmp_path / "part", episodes=_range(30, 40), **options)
    assert list(range(30, 40)) == part.episodes["episode_number"].to_pylist()
    expected, actual = whole[30:40].to_episode_batch(), part.to_episode_batch()
    assert (expected.observations == actual.observations).all()
    assert (expected.actions == actual.actions).all()
    assert whole.info["features"] == load(tmp_path / "part").info["features"]
