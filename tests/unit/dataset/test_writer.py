"""DatasetWriter: what it states of a dataset, what it counts, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gymnasium import spaces

from rollout_cli.dataset import DatasetWriter, load
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import InternalError, UnsupportedSpaceError, UsageError
from tests.support.chunks import BOX_SPEC, episode, grouped, in_parts
from tests.support.datasets import write_dataset
from tests.unit.dataset.small_files import TINY


def test_the_summary_and_info_count_what_is_there(tmp_path: Path) -> None:
    """Episodes, steps, bytes and shards."""
    path = tmp_path / "out"
    summary = write_dataset(path, [episode(n, 9) for n in range(30)], limits=TINY)
    info = json.loads((path / "meta" / "info.json").read_text())
    sizes = sum(file.stat().st_size for file in path.rglob("*.parquet"))
    assert (30, 270, sizes) == (summary.episodes, summary.steps, summary.bytes)
    assert (30, 270, sizes, summary.shards) == tuple(info[name] for name in ("episodes", "steps", "bytes", "shards"))
    assert ("complete", "open") == (info["status"], info["window"])


def test_info_is_there_before_the_first_episode(tmp_path: Path) -> None:
    """With its header, and the status `collecting`."""
    header = {"env": {"id": "Some-v0"}, "policy": {"kind": "random"}}
    with DatasetWriter(tmp_path / "out", env_spec=BOX_SPEC, root_seed=7, header=header):
        info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert ("collecting", 7, {"kind": "random"}) == (info["status"], info["root_seed"], info["policy"])
    assert "float32" == info["features"]["observation"]["dtype"]


def test_facts_given_at_the_end_are_recorded(tmp_path: Path) -> None:
    """Such as whether the run was reproducible."""
    with DatasetWriter(tmp_path / "out", env_spec=BOX_SPEC, root_seed=0) as writer:
        writer.write(episode(0, 3))
        writer.close(status="interrupted", reproducible={"state": "unchecked"})
    info = load(tmp_path / "out").info
    assert ("interrupted", {"state": "unchecked"}) == (info["status"], info["reproducible"])


def test_a_header_may_not_replace_what_the_writer_knows(tmp_path: Path) -> None:
    """Its totals are its own."""
    with pytest.raises(InternalError, match="episodes"):
        DatasetWriter(tmp_path / "out", env_spec=BOX_SPEC, root_seed=0, header={"episodes": 5})


def test_the_window_is_closed_after_a_thousand_steps(tmp_path: Path) -> None:
    """And recorded as such."""
    assert "closed" == write_dataset(tmp_path / "a", [episode(n, 100) for n in range(10)]).window
    assert "open" == write_dataset(tmp_path / "b", [episode(n, 100) for n in range(9)]).window


def test_observed_episodes_decide_columns_but_are_not_written(tmp_path: Path) -> None:
    """A plan that begins at episode 2 has the columns of a plan that begins at 0."""
    chunks = [episode(n, 600, env_info=lambda n, _: {f"k{n}": n}) for n in range(4)]
    with DatasetWriter(tmp_path / "out", env_spec=BOX_SPEC, root_seed=0) as writer:
        for chunk in chunks[:2]:
            writer.observe(chunk)
        for chunk in chunks[2:]:
            writer.write(chunk)
        writer.close(status="complete")
    dataset = load(tmp_path / "out")
    assert [0, 1] == dataset.episodes["episode_id"].to_pylist()
    assert [2, 3] == dataset.episodes["episode_number"].to_pylist()
    assert ["env_info.k0", "env_info.k1"] == sorted(name for name in dataset.info["features"] if ".k" in name)


def test_values_that_cannot_be_stored_are_counted(tmp_path: Path) -> None:
    """By column, over all chunks; those of an episode in parts once."""
    odd = {"f": lambda: 0}
    chunks = [episode(n, 4, env_info=lambda *_: odd, episode_info=lambda *_: odd) for n in range(3)]
    summary = write_dataset(tmp_path / "out", [*grouped(chunks[:2], [2]), *in_parts(chunks[2], [1, 4])])
    assert {"env_info.f": 12, "episode_info.f": 3} == summary.dropped_infos


def test_a_space_without_columns_is_refused_before_the_folder_is_made(tmp_path: Path) -> None:
    """Graph, Sequence and OneOf."""
    spec = EnvSpec(spaces.Sequence(spaces.Discrete(2)), spaces.Discrete(2))
    with pytest.raises(UnsupportedSpaceError, match="Sequence"):
        DatasetWriter(tmp_path / "out", env_spec=spec, root_seed=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_root_seed_out_of_range_is_refused(tmp_path: Path, seed: int) -> None:
    """Its column is int64."""
    with pytest.raises(UsageError, match="root seed"):
        DatasetWriter(tmp_path / "out", env_spec=BOX_SPEC, root_seed=seed)
