"""DatasetWriter: files, row groups, columns and encodings are those that the layout says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollout_cli.chunk import PART_BYTES
from rollout_cli.dataset import load
from rollout_cli.episode_batch import EnvSpec
from tests.support.chunks import episode, in_parts
from tests.support.datasets import data_files, leftovers, write_dataset
from tests.unit.dataset.small_files import TINY


def test_a_dataset_has_the_files_that_its_layout_says(tmp_path: Path) -> None:
    """Each data file has its episodes file, and nothing else is left."""
    summary = write_dataset(tmp_path / "out", [episode(n, 9) for n in range(30)], limits=TINY)
    names = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    shards = [f"chunk-00000/file-{at:05}.parquet" for at in range(summary.shards)]
    assert summary.shards > 2
    files = ["README.md", *(f"data/{shard}" for shard in shards), *(f"meta/episodes/{shard}" for shard in shards)]
    assert sorted([*files, "meta/info.json", "meta/stats.json"]) == names
    assert [] == leftovers(tmp_path / "out")


def test_with_lanes_each_has_its_folder_and_ids_are_offsets(tmp_path: Path) -> None:
    """Lane 1 may be written first; the order of names is the order of lanes."""
    chunks = [episode(number, 5) for number in (12, 10, 11, 13)]
    write_dataset(tmp_path / "out", chunks, lanes=[1, 0, 0, 1], n_lanes=2, base=10)
    dataset = load(tmp_path / "out")
    assert [0, 1, 2, 3] == dataset.episodes["episode_id"].to_pylist()
    assert [0, 0, 1, 1] == dataset.episodes["data_chunk_index"].to_pylist()
    assert ["data/chunk-00000/file-00000.parquet", "data/chunk-00001/file-00000.parquet"] == list(
        data_files(tmp_path / "out")
    )


def test_a_chunk_folder_has_a_thousand_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here three: then the next folder begins with file 0."""
    monkeypatch.setattr("rollout_cli.dataset.shard.FILES_PER_CHUNK", 3)
    summary = write_dataset(tmp_path / "out", [episode(n, 20) for n in range(13)], limits=TINY)
    assert 3 < summary.shards <= 9
    assert "data/chunk-00001/file-00000.parquet" == list(data_files(tmp_path / "out"))[3]
    assert list(range(13)) == load(tmp_path / "out").to_episode_batch().numbers.tolist()


def test_row_groups_and_shards_keep_their_limits(tmp_path: Path) -> None:
    """A split episode has equal row groups in one shard; the others are whole in one."""
    lengths = [5, 9, 50, 9, 9, 3]
    write_dataset(tmp_path / "out", [episode(n, length) for n, length in enumerate(lengths)], limits=TINY)
    groups = []
    for path in sorted((tmp_path / "out" / "data").rglob("*.parquet")):
        metadata = pq.ParquetFile(path).metadata
        groups.append([metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)])
    assert [[14], [16, 17, 17, 9], [12]] == groups


def test_the_footer_says_what_the_file_is(tmp_path: Path) -> None:
    """Format, spaces, limit and environment in each; the settled numbers in the episodes file."""
    write_dataset(tmp_path / "out", [episode(n, 9) for n in range(30)], limits=TINY, header={"env": {"id": "A-v0"}})
    data = pq.ParquetFile(tmp_path / "out/data/chunk-00000/file-00001.parquet").schema_arrow.metadata
    assert (b"1", b'{"id": "A-v0"}', b"null") == (
        data[b"rollout.format_version"],
        data[b"rollout.env"],
        data[b"rollout.max_episode_length"],
    )
    assert "Box" == json.loads(data[b"rollout.spaces"])["observation"]["type"]
    assert {"dtype": "float64", "_type": "Value"} == json.loads(data[b"huggingface"])["info"]["features"]["reward"]
    files = sorted((tmp_path / "out/meta/episodes").rglob("*.parquet"))
    settled = [json.loads(pq.ParquetFile(file).metadata.metadata[b"rollout.settles"]) for file in files]
    assert 0 == settled[0]["start"]
    assert 30 == settled[-1]["stop"]
    assert [step["stop"] for step in settled[:-1]] == [step["start"] for step in settled[1:]]


def test_encodings_are_the_chosen_ones(tmp_path: Path) -> None:
    """Differences for ids and steps, a dictionary for few integers, split bytes for floats; zstd where it saves."""
    write_dataset(tmp_path / "out", [episode(n, 9) for n in range(30)])
    group = pq.ParquetFile(tmp_path / "out/data/chunk-00000/file-00000.parquet").metadata.row_group(0)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    expected = {
        "episode_id": ("ZSTD", "DELTA_BINARY_PACKED"),
        "step": ("ZSTD", "DELTA_BINARY_PACKED"),
        "observation.list.element": ("ZSTD", "BYTE_STREAM_SPLIT"),
        "action": ("ZSTD", "RLE_DICTIONARY"),
        "reward": ("ZSTD", "BYTE_STREAM_SPLIT"),
        "terminated": ("ZSTD", "PLAIN"),
        "truncated": ("ZSTD", "PLAIN"),
        "step_type": ("ZSTD", "RLE_DICTIONARY"),
        "env_info_extra": ("UNCOMPRESSED", "PLAIN"),
        "agent_info_extra": ("UNCOMPRESSED", "PLAIN"),
    }
    chosen = {
        name: (columns[name].compression, next(iter({*columns[name].encodings} & {kind}), ""))
        for name, (_, kind) in expected.items()
    }
    assert expected == chosen
    assert set(columns) == set(expected)
    assert ["episode_id"] == [name for name, column in columns.items() if column.is_stats_set]
    assert not any(column.has_column_index or column.has_offset_index for column in columns.values())


def test_only_infos_may_lack_values(tmp_path: Path) -> None:
    """All else is required, in lists too: Parquet then spends neither time nor bytes on what is null."""
    infos = [episode(n, 9, env_info=lambda n, s: {"seen": np.ones(2)} if s else {"n": n}) for n in range(200)]
    write_dataset(tmp_path / "out", infos)
    data, episodes = (
        pq.ParquetFile(tmp_path / "out" / table / "chunk-00000/file-00000.parquet").schema_arrow
        for table in ("data", "meta/episodes")
    )
    assert ["env_info.n", "env_info.seen", "env_info_extra", "agent_info_extra"] == [
        field.name for field in data if field.nullable
    ]
    assert ["episode_info_extra"] == [field.name for field in episodes if field.nullable]
    assert not any(data.field(name).type.value_field.nullable for name in ("observation", "env_info.seen"))


def test_next_observations_are_written_when_asked_for(tmp_path: Path) -> None:
    """The following row's observation inside an episode, its last observation at the end, across row groups too."""
    write_dataset(
        tmp_path / "out", [episode(0, 50), *in_parts(episode(1, 50), [7, 30, 50])], limits=TINY, next_observation=True
    )
    batch = load(tmp_path / "out").to_episode_batch()
    table = pq.read_table(tmp_path / "out" / "data")
    assert batch.next_observations.tolist() == table["next_observation"].to_pylist()


def test_parts_of_the_samplers_size_are_taken(tmp_path: Path) -> None:
    """An episode just over the limit comes in two parts."""
    spec = EnvSpec(spaces.Box(0, 1, (64, 1024)), spaces.Discrete(2))
    length = PART_BYTES // (64 * 1024 * 4) + 2
    whole = episode(0, length, spec=spec)
    assert 2 == len(whole.parts())
    write_dataset(tmp_path / "out", whole.parts(), spec=spec)
    assert length == len(load(tmp_path / "out")[0])
