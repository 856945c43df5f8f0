"""The fingerprint of a run: what it depends on, and that info.json and every file name it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollout_cli import CollectConfig, collect
from rollout_cli.dataset.inference import FINGERPRINT_STEPS, SchemaInference
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk, concatenate
from tests.helpers.chunks import BOX_SPEC, episode
from tests.helpers.damage import ORIGIN_KEYS
from tests.helpers.datasets import info_of, source_of
from tests.helpers.writing import RICH_SPEC, SMALL, resume_dataset, write_dataset

INFO = {"root_seed": 3, "env": {"kwargs": {"b": 1, "a": [2.5]}}}
LONG = FINGERPRINT_STEPS + 500


def fingerprint(*chunks: Chunk, info: Any = INFO) -> str:
    """Return the fingerprint of a run whose first episodes come as these chunks."""
    inference = SchemaInference()
    for chunk in chunks:
        inference.observe(chunk)
    return inference.result(info)[1]


@pytest.mark.parametrize("spec", [BOX_SPEC, RICH_SPEC, EnvSpec(spaces.Box(0, 1, (0, 3)), spaces.Discrete(2))])
def test_it_does_not_depend_on_how_episodes_come(spec: EnvSpec) -> None:
    """Alone, or with those that follow; 32 hexadecimal digits."""
    whole = episode(0, LONG, spec=spec)
    following = episode(1, 5, spec=spec)
    expected = fingerprint(whole)
    assert 32 == len(expected) == len(f"{int(expected, 16):032x}")
    assert expected == fingerprint(concatenate([whole, following]), episode(2, 9, spec=spec))


def test_it_does_not_depend_on_what_is_behind_the_first_steps_of_the_first_episode() -> None:
    """Nor on the order of keyword arguments, the worker, or how long it took."""
    whole = episode(0, LONG)
    rewards = whole.rewards.copy()
    rewards[FINGERPRINT_STEPS:] += 1
    other = replace(whole, rewards=rewards, workers=whole.workers + 1, wall_times=whole.wall_times + 1)
    assert fingerprint(whole) == fingerprint(other)
    swapped = {"root_seed": 3, "env": {"kwargs": {"a": [2.5], "b": 1}, "id": "X-v0"}, "partitions": 3}
    assert fingerprint(whole) == fingerprint(whole, info=swapped)


CHANGES: dict[str, Callable[[Chunk], None]] = {
    "a reward": lambda chunk: chunk.rewards.__setitem__(999, 0.25),
    "an observation": lambda chunk: chunk.observations[1].__setitem__((0, 1, 2), 0.25),
    "a text": lambda chunk: chunk.observations[2].__setitem__(5, "other"),
    "an action": lambda chunk: chunk.actions[0].__setitem__(7, 9),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_depends_on_observations_actions_and_rewards(change: str) -> None:
    """A single value of the first steps."""
    expected = fingerprint(episode(0, LONG, spec=RICH_SPEC))
    changed = episode(0, LONG, spec=RICH_SPEC)
    CHANGES[change](changed)
    assert expected != fingerprint(changed)


def test_it_depends_on_the_root_seed_and_the_keyword_arguments() -> None:
    """Also where nothing shows in the first episode."""
    whole = episode(0, 5)
    infos = [INFO, {**INFO, "root_seed": 4}, {**INFO, "env": {"kwargs": {"a": [2.5]}}}, {"root_seed": 3}]
    assert len(infos) == len({fingerprint(whole, info=info) for info in infos})


def origins(path: Path) -> dict[str, tuple[str, ...]]:
    """Return run, partition and first number in the footer of each file."""
    footers = {file: pq.read_metadata(file).metadata for file in sorted(path.rglob("*.parquet"))}
    return {
        file.relative_to(path).as_posix(): tuple(footer[key.encode()].decode() for key in ORIGIN_KEYS)
        for file, footer in footers.items()
    }


def test_every_file_names_the_run_its_partition_and_its_first_episode(tmp_path: Path) -> None:
    """Flushed, skipped and resumed ones too; the first episode may be behind the first number that is covered."""
    chunks = [episode(n, 60) for n in (*range(1, 20), *range(24, 30))]
    write_dataset(tmp_path, chunks[:20], limits=SMALL, first_numbers=[0])
    run = source_of(tmp_path)["run"]
    assert fingerprint(chunks[0], info={"root_seed": 0}) == run
    resume_dataset(tmp_path, chunks, limits=SMALL, first_numbers=[0])
    firsts = [1, 4, 7, 10, 13, 16, 19, 26, 29]
    files = [f"chunk-00000/file-{at:05}.parquet" for at in range(len(firsts))]
    expected = [(run, "0", str(number)) for number in firsts]
    for folder in ("data", "meta/episodes"):
        assert dict(zip([f"{folder}/{file}" for file in files], expected, strict=True)) == {
            name: origin for name, origin in origins(tmp_path).items() if name.startswith(folder)
        }
    assert run == source_of(tmp_path)["run"]


def test_files_of_partitions_name_theirs(tmp_path: Path) -> None:
    """A dataset of too few steps to decide its columns has its fingerprint at its end."""
    write_dataset(tmp_path, [episode(n, 4) for n in (5, 0, 6)], partitions=[1, 0, 1], first_numbers=[0, 5])
    run = fingerprint(episode(0, 4), info={"root_seed": 0})
    expected = {(run, "0", "0"), (run, "1", "5")}
    assert (run, "partial", expected) == (
        source_of(tmp_path)["run"],
        info_of(tmp_path)["info_columns"],
        set(origins(tmp_path).values()),
    )


class Weighted:
    """A policy whose actions depend on a number that its name does not tell."""

    weight = 0.1

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return int(observation[2] * self.weight + observation[0] > 0), {}


RUNS: dict[str, dict[str, Any]] = {
    "one worker": {"episodes": 60, "workers": 1},
    "three workers": {"episodes": 60, "workers": 3},
    "processes": {"episodes": 60, "workers": 2, "sampler": "multiprocessing"},
    "rows": {"episodes": 60, "workers": 1, "envs_per_worker": 4},
    "few steps": {"episodes": 2, "workers": 1},
    "steps": {"timesteps": 1500, "workers": 2},
    "a range": {"episodes": "30:60", "workers": 1},
    "a shard": {"episodes": 60, "workers": 1, "shard": "3/3"},
    "exact": {"command": "exact", "episodes_per_worker": 20, "workers": 3},
}


@pytest.fixture(scope="module")
def expected_run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_of(tmp_path_factory.mktemp("expected"), RUNS["one worker"])


def run_of(folder: Path, options: dict[str, Any]) -> str:
    given = {"env": "CartPole-v1", "policy": f"{__name__}:Weighted", "sampler": "local", "seed": 7, **options}
    collect(CollectConfig(**given, output=folder / "out"))
    return str(source_of(folder / "out")["run"])


@pytest.mark.parametrize("name", list(RUNS)[1:])
def test_all_runs_of_a_seed_have_one_fingerprint(tmp_path: Path, expected_run: str, name: str) -> None:
    """Whatever part of the run is collected, and however."""
    assert expected_run == run_of(tmp_path, RUNS[name])


def test_another_policy_under_the_same_name_has_another(
    tmp_path: Path, expected_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As weights that were changed in their file."""
    monkeypatch.setattr(Weighted, "weight", 5.0)
    assert expected_run != run_of(tmp_path, RUNS["one worker"])
