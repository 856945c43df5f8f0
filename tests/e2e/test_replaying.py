"""Stored episodes are run again from what a dataset says of itself, and come out the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_cli.config import EpisodeRange
from rollout_cli.dataset import Dataset, load
from rollout_cli.errors import (
    ConfigError,
    DatasetFormatError,
    EnvLoadError,
    NotReproducibleError,
    PolicyLoadError,
    RolloutError,
)
from rollout_cli.reproducing.replay import Replayed, replaying
from tests.support.policies import OwnGeneratorPolicy
from tests.support.projects import project
from tests.support.runs import run
from tests.support.slow import ROOT_SEED

__all__ = ["project"]

LOCAL: dict[str, Any] = {"sampler": "local", "workers": 1, "seed": ROOT_SEED}
POLICIES = "tests.support.policies"
ENVS = "tests.support.envs"


def replayed(dataset: Dataset, places: Sequence[int] | None = None, **options: Any) -> list[Replayed]:
    with replaying(dataset, **options) as replayer:
        return [replayer.replay(dataset[place]) for place in (range(len(dataset)) if places is None else places)]


def edit_info(dataset: Dataset, **changes: Any) -> Dataset:
    """Change info.json, keys with dots for inner ones, and open the dataset again."""
    path = dataset.path / "meta" / "info.json"
    info = json.loads(path.read_text())
    for name, value in changes.items():
        *outer, last = name.split("__")
        inner = info
        for key in outer:
            inner = inner[key]
        inner[last] = value
    path.write_text(json.dumps(info))
    return load(dataset.path)


RUNS: dict[str, dict[str, Any]] = {
    "CartPole in processes": {"timesteps": 3_000, "workers": 2, "sampler": "multiprocessing"},
    "noise": {"env": f"{ENVS}:ChainEnv", "policy": f"{POLICIES}:GlobalNoisePolicy", "timesteps": 300},
    "trees": {"env": f"{ENVS}:DictEnv", "policy": f"{POLICIES}:OwnGeneratorPolicy", "timesteps": 100},
    "tuples": {"env": f"{ENVS}:TupleEnv", "timesteps": 100},
    "images": {"env": f"{ENVS}:ImageEnv", "timesteps": 100, "next_observation": True},
    "a later part": {"env": f"{ENVS}:ChainEnv", "episodes": EpisodeRange(40, 60)},
    "exact": {"env": f"{ENVS}:ChainEnv", "command": "exact", "episodes_per_worker": 20, "workers": 3},
    "infos of many kinds": {"env": "tests.support.slow:late_info", "episodes": EpisodeRange(0, 310)},
    "some infos left out": {"env": "tests.support.irreproducible:timed", "timesteps": 100, "drop_info": ("episode.t",)},
    "a limit": {"env": f"{ENVS}:EndlessEnv", "timesteps": 100, "max_episode_length": 7},
    "order of arrival": {"env": f"{ENVS}:ChainEnv", "timesteps": 300, "order": "arrival"},
    "four rows": {"env": f"{ENVS}:ChainEnv", "policy": "tests.support.rows:TablePolicy", "envs_per_worker": 4}
    | {"timesteps": 300},
    "native": {"env": "tests.support.vector_envs:chain", "vectorization": "native", "envs_per_worker": 4}
    | {"timesteps": 300},
}


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_all_episodes_are_identical(tmp_path: Path, options: dict[str, Any]) -> None:
    """Whatever made them: every episode is the same, in rising and in falling order."""
    dataset = run(tmp_path / "out", **LOCAL | options)
    places = [*range(len(dataset)), *reversed(range(len(dataset)))]
    told = replayed(dataset, places)
    assert len(dataset) >= 5
    assert dataset.episodes["episode_number"].to_pylist() == [one.number for one in told[: len(dataset)]]
    assert [()] * len(places) == [one.found for one in told]


def test_a_stored_value_that_was_changed_is_found(tmp_path: Path) -> None:
    """Field, step and both values of the first place, and which other fields differ."""
    dataset = run(tmp_path / "out", env=f"{ENVS}:ChainEnv", timesteps=200, **LOCAL)
    path = next((tmp_path / "out" / "data").rglob("*.parquet"))
    table = pq.read_table(path)
    row = int(dataset.episodes["length"].to_numpy()[:3].sum()) + 2
    assert len(dataset[3]) > 3
    rewards = table["reward"].to_numpy().copy()
    stored = rewards[row] = np.nextafter(rewards[row], 2)
    at = table.schema.get_field_index("reward")
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(rewards)), path)
    before, changed, after = replayed(load(tmp_path / "out"), [2, 3, 4])
    assert ((), ()) == (before.found, after.found)
    (difference,) = changed.found
    assert ("reward", 2, (stored, np.nextafter(stored, 0))) == (difference.field, difference.step, difference.values)
    assert {"episode_id": 3, "identical": False} == {
        name: changed.document()[name] for name in ("episode_id", "identical")
    }


@pytest.mark.parametrize(
    ("env", "field", "reason"),
    [("normalised", "observation", "running statistics"), ("timed", "env_info.episode.t", "how long")],
)
def test_what_cannot_be_reproduced_differs(tmp_path: Path, env: str, field: str, reason: str) -> None:
    """The same causes are named as at the end of a run."""
    dataset = run(tmp_path / "out", env=f"tests.support.irreproducible:{env}", timesteps=300, **LOCAL)
    (one,) = replayed(dataset, [len(dataset) - 1])
    assert field == one.found[0].field
    assert reason in one.reason
    assert one.hint


# -- what is not as it was ---------------------------------------------------------------------------------------------


def refusal(dataset: Dataset, kind: type[RolloutError], **options: Any) -> RolloutError:
    with pytest.raises(kind) as caught:
        replayed(dataset, [0], **options)
    return caught.value


def with_policy_file(project: Path) -> Dataset:
    (project / "p.pkl").write_bytes(cloudpickle.dumps(OwnGeneratorPolicy))
    return run(project / "out", env=f"{ENVS}:ChainEnv", policy="p.pkl", timesteps=50, **LOCAL)


def test_a_policy_that_is_gone(project: Path) -> None:
    """The missing file and the hash to look for are told; from its new place it is replayed."""
    dataset = with_policy_file(project)
    (project / "p.pkl").rename(project / "moved.pkl")
    error = refusal(dataset, PolicyLoadError)
    assert f"not there any more: {project / 'p.pkl'}" in error.message
    assert dataset.info["policy"]["sha256"] in error.hint
    assert not replayed(dataset, [0], policy="moved.pkl")[0].found


def test_a_policy_that_was_replaced(project: Path) -> None:
    """A file of other bytes is refused, and nothing of it is loaded."""
    dataset = with_policy_file(project)
    (project / "p.pkl").write_bytes(b"this would not load")
    error = refusal(dataset, PolicyLoadError)
    assert "is not the one that made these episodes" in error.message
    assert 3 == error.exit_code


def test_an_environment_that_is_gone_or_was_replaced(project: Path) -> None:
    """The same of an environment's file."""
    (project / "e.json").write_text(gymnasium.spec("CartPole-v1").to_json())
    dataset = run(project / "out", env="e.json", timesteps=50, **LOCAL)
    assert not replayed(dataset, [0])[0].found
    (project / "e.json").write_text(gymnasium.spec("CartPole-v0").to_json())
    assert "is not the one" in refusal(dataset, EnvLoadError).message
    (project / "e.json").unlink()
    assert "not there any more" in refusal(dataset, EnvLoadError).message


def test_a_module_that_has_changed_is_told(tmp_path: Path) -> None:
    """Perhaps only a comment has, so episodes are run all the same."""
    dataset = run(tmp_path / "out", env=f"{ENVS}:ChainEnv", policy=f"{POLICIES}:LinearPolicy", timesteps=50, **LOCAL)
    edited = edit_info(dataset, policy__sha256="0" * 64)
    with replaying(edited) as replayer:
        assert (f"the module of the policy {POLICIES}:LinearPolicy has changed since the dataset was made",) == (
            replayer.notices
        )
        assert not replayer.replay(edited[0]).found


def test_other_versions_are_told(tmp_path: Path) -> None:
    """Of packages that numbers may depend on."""
    dataset = run(tmp_path / "out", env=f"{ENVS}:ChainEnv", timesteps=50, **LOCAL)
    with replaying(edit_info(dataset, versions__numpy="1.0")) as replayer:
        (notice,) = replayer.notices
        assert "made with numpy 1.0, and this is" in notice


def test_other_spaces_are_refused(tmp_path: Path) -> None:
    """There is nothing to compare then."""
    dataset = run(tmp_path / "out", env=f"{ENVS}:ChainEnv", timesteps=50, **LOCAL)
    edited = edit_info(dataset, collector__env=f"{ENVS}:BoxEnv", env_source__spec=f"{ENVS}:BoxEnv")
    assert "other spaces" in refusal(edited, EnvLoadError).message


def test_a_dataset_that_does_not_tell_what_made_it(tmp_path: Path) -> None:
    """What was written without `collect` cannot be replayed."""
    dataset = run(tmp_path / "out", env=f"{ENVS}:ChainEnv", timesteps=50, **LOCAL)
    assert "does not record" in refusal(edit_info(dataset, collector={}), DatasetFormatError).message


def test_a_secret_must_be_given_anew(tmp_path: Path) -> None:
    """What was cut from the record is asked for, and taken."""
    dataset = run(
        tmp_path / "out", env="tests.support.irreproducible:secretive", env_kwargs={"token": "x"}, timesteps=50, **LOCAL
    )
    assert "env_kwargs.token" in refusal(dataset, ConfigError).message
    assert not replayed(dataset, [0], env_kwargs={"token": "x"})[0].found


def test_workers_without_numbers_are_refused(tmp_path: Path) -> None:
    """Their episodes follow from nothing that could be done again."""
    worker = "tests.support.workers:PlainVerbs"
    dataset = run(tmp_path / "out", env=f"{ENVS}:ChainEnv", worker_class=worker, timesteps=50, **LOCAL)
    assert "takes no episode numbers" in refusal(dataset, NotReproducibleError).message
