"""Several environments a worker: at one width the same seed gives the same bytes, whoever runs the episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.dataset import Dataset
from tests.support.runs import data_hashes, episodes_by_worker, run
from tests.support.slow import ROOT_SEED

WIDTH = 4
AT_ONE_WIDTH: list[dict[str, Any]] = [
    {"sampler": "local", "workers": 1},
    {"workers": 1},
    {"workers": 2},
    {"workers": 3},
]
ONE_ROW: dict[str, Any] = {"sampler": "local", "workers": 1, "envs_per_worker": 1}


def collect_with(tmp_path: Path, settings: Sequence[dict[str, Any]], **options: Any) -> list[Dataset]:
    """Collect once with each setting; every worker must have run at least two episodes."""
    datasets = []
    for at, setting in enumerate(settings):
        merged = {"envs_per_worker": WIDTH, "seed": ROOT_SEED, "timesteps": 600, **setting, **options}
        dataset = run(tmp_path / str(at), **merged)
        counts = episodes_by_worker(dataset)
        assert set(range(setting["workers"])) == set(counts), counts
        assert min(counts.values()) >= 2, counts
        datasets.append(dataset)
    return datasets


def assert_same_data(datasets: Sequence[Dataset]) -> None:
    hashes = [data_hashes(dataset.path) for dataset in datasets]
    assert hashes[0]
    assert hashes == [hashes[0]] * len(hashes)


def verdict(dataset: Dataset) -> tuple[str, bool]:
    """Return the scope of what was found out of reproducing the episodes, and whether that failed."""
    told = dataset.info["reproducible"]
    return told["scope"], told["status"] == "failed"


ROW_WISE = [
    ("box", "random"),
    ("dictionary", "random"),
    ("image", "random"),
    ("box", "tests.support.rows:GlobalDrawPolicy"),
    ("dictionary", "tests.support.rows:CountingPolicy"),
    ("image", "tests.support.rows:OwnDrawPolicy"),
]


@pytest.mark.parametrize(("env", "policy"), ROW_WISE)
def test_row_wise_policies_give_the_same_bytes_at_any_width(tmp_path: Path, env: str, policy: str) -> None:
    """Local and with 1, 2 and 3 workers, four environments each, and with one: all the same; its scope is any."""
    settings = [*AT_ONE_WIDTH, ONE_ROW]
    datasets = collect_with(tmp_path, settings, env=f"tests.support.slow:{env}", policy=policy)
    assert_same_data(datasets)
    told = [(dataset.info["collector"]["envs_per_worker"], *verdict(dataset)) for dataset in datasets]
    assert [*[(WIDTH, "any", False)] * len(AT_ONE_WIDTH), (1, "any", False)] == told


BATCHED = [
    ("box", "tests.support.rows:MlpPolicy"),
    ("box", "tests.support.rows:TablePolicy"),
    ("dictionary", "tests.support.rows:TablePolicy"),
    ("image", "tests.support.rows:TablePolicy"),
]


@pytest.mark.parametrize(("env", "policy"), BATCHED)
def test_batched_policies_give_the_same_bytes_at_one_width(tmp_path: Path, env: str, policy: str) -> None:
    """Local and with 1, 2 and 3 workers, four environments each; the dataset says that this width is its scope."""
    datasets = collect_with(tmp_path, AT_ONE_WIDTH, env=f"tests.support.slow:{env}", policy=policy)
    assert_same_data(datasets)
    assert [("n_envs", False)] * 4 == [verdict(dataset) for dataset in datasets]


@pytest.mark.parametrize("sampler", ["local", "multiprocessing"])
@pytest.mark.parametrize(
    ("policy", "generator"),
    [("OwnGeneratorPolicy", "policy.rng"), ("GlobalNoisePolicy", "numpy.random")],
)
def test_a_batch_that_draws_from_one_generator_is_told(
    tmp_path: Path, sampler: str, policy: str, generator: str
) -> None:
    """The dataset says that it cannot be reproduced, names the generator, and the two ways out."""
    setting = {"sampler": sampler, "workers": 1}
    options = {"env": "tests.support.slow:box", "policy": f"tests.support.policies:{policy}", "timesteps": 200}
    (dataset,) = collect_with(tmp_path, [setting], **options)
    told = dataset.info["reproducible"]
    assert "failed" == told["status"]
    for word in (generator, "seed_rows", "one environment a worker"):
        assert word in told["reason"]


def test_exact_counts_episodes(tmp_path: Path) -> None:
    """Five episodes of each of three workers with four environments: fifteen, in worker order, none begun in vain."""
    log = tmp_path / "resets"
    options: dict[str, Any] = {"env": "tests.e2e.counting:CountingEnv", "env_kwargs": {"log": str(log)}}
    options |= {"command": "exact", "episodes_per_worker": 5, "timesteps": None}
    (dataset,) = collect_with(tmp_path, [{"workers": 3}], **options)
    assert [0] * 5 + [1] * 5 + [2] * 5 == dataset.episodes["worker"].to_pylist()
    assert list(range(15)) == dataset.episodes["episode_number"].to_pylist()
    assert sorted(dataset.episodes["seed"].to_pylist()) == sorted(int(line) for line in log.read_text().split())
