"""DatasetWriter: what it writes, what it refuses, and how it ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollout_cli.chunk import PART_BYTES
from rollout_cli.dataset import CutLimits, DatasetWriter, load
from rollout_cli.dataset.encoding import Encoder, EncodingThread, InlineEncoder, Work
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import InternalError, StorageError, UnsupportedSpaceError, UsageError
from tests.support.chunks import BOX_SPEC, episode, grouped, in_parts
from tests.support.datasets import FailingFiles, data_files, leftovers, write_dataset

TINY = CutLimits(shard_bytes=3000, min_shard_bytes=500, group_bytes=1000, group_rows=20)


def test_a_dataset_has_the_files_that_its_layout_says(tmp_path: Path) -> None:
    """Each data file has its episodes file, and nothing else is left."""
    summary = write_dataset(tmp_path / "out", [episode(n, 9) for n in range(30)], limits=TINY)
    names = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    shards = [f"chunk-00000/file-{at:05}.parquet" for at in range(summary.shards)]
    assert summary.shards > 2
    files = ["README.md", *(f"data/{shard}" for shard in shards), *(f"meta/episodes/{shard}" for shard in shards)]
    assert sorted([*files, "meta/info.json", "meta/stats.json"]) == names
    assert [] == leftovers(tmp_path / "out")


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
    """Delta for ids and actions, split bytes for floats in lists too, and no dictionaries."""
    write_dataset(tmp_path / "out", [episode(n, 9) for n in range(30)])
    group = pq.ParquetFile(tmp_path / "out/data/chunk-00000/file-00000.parquet").metadata.row_group(0)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    expected = {
        "episode_id": "DELTA_BINARY_PACKED",
        "step": "PLAIN",
        "observation.list.element": "BYTE_STREAM_SPLIT",
        "action": "DELTA_BINARY_PACKED",
        "reward": "BYTE_STREAM_SPLIT",
        "terminated": "PLAIN",
        "step_type": "PLAIN",
    }
    assert {} == {
        name: columns[name].encodings for name, kind in expected.items() if kind not in columns[name].encodings
    }
    assert {"ZSTD"} == {column.compression for column in columns.values()}
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


def fail_late(path: Path, encoder: Encoder, error: type[BaseException] = ZeroDivisionError) -> int:
    """Write 120 episodes and fail; return how many were committed by then."""
    committed = 0
    with (
        suppress(error),
        DatasetWriter(path, env_spec=BOX_SPEC, root_seed=0, limits=TINY, encoder=encoder) as writer,
    ):
        for number in range(120):
            writer.write(episode(number, 9))
        committed = len(load(path))
        raise error
    return committed


@pytest.mark.parametrize("encoder", [InlineEncoder, EncodingThread])
def test_an_exception_elsewhere_loses_nothing(tmp_path: Path, encoder: Callable[[], Encoder]) -> None:
    """All that was written is committed, with its statistics, and the status is `interrupted`."""
    path = tmp_path / "out"
    committed = fail_late(path, encoder())
    dataset = load(path)
    assert "interrupted" == dataset.info["status"]
    assert 0 < committed < 120
    assert 120 == len(dataset) == dataset.info["episodes"]
    assert 1080 == json.loads((path / "meta" / "stats.json").read_text())["reward"]["count"]
    assert [] == leftovers(path)


def test_who_asks_for_the_end_at_once_does_not_wait(tmp_path: Path) -> None:
    """What was committed stays, and the rest goes."""
    path = tmp_path / "out"
    committed = fail_late(path, InlineEncoder(), KeyboardInterrupt)
    assert ("interrupted", committed) == (load(path).info["status"], len(load(path)))
    assert 0 < committed < 120
    assert [] == leftovers(path)


def test_an_exception_inside_a_write_commits_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what the open row group holds then."""
    path = tmp_path / "out"
    with (
        suppress(MemoryError),
        DatasetWriter(path, env_spec=BOX_SPEC, root_seed=0, limits=TINY, encoder=InlineEncoder()) as writer,
    ):
        for number in range(122):
            writer.write(episode(number, 9))
        committed = len(load(path))

        def fail(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr("rollout_cli.dataset.lane.EpisodeFacts", fail)
        writer.write(episode(122, 9))
    assert "interrupted" == load(path).info["status"]
    assert 0 < committed <= len(load(path)) < 122
    assert [] == leftovers(path)


def test_an_end_at_once_ends_the_thread_that_encodes(tmp_path: Path) -> None:
    """What it had committed until then stays: whole shards, all of them counted."""
    path, before = tmp_path / "out", set(threading.enumerate())
    committed = fail_late(path, EncodingThread(), KeyboardInterrupt)
    assert set() == set(threading.enumerate()) - before
    dataset = load(path)
    assert "interrupted" == dataset.info["status"]
    assert committed <= len(dataset) == dataset.info["episodes"] < 120
    assert list(range(len(dataset))) == dataset.episodes["episode_number"].to_pylist()
    assert [] == leftovers(path)


class FailingThread(EncodingThread):
    """The next piece of work after `fails` was set fails; it is waited for, so that it is known when."""

    fails = False

    def submit(self, work: Work) -> None:
        """Give the next piece of work."""
        super().submit(fail_to_write if self.fails else work)
        if self.fails:
            self._join()
            self.fails = False


def fail_to_write() -> None:
    raise StorageError("the disk is full")


def written_until_it_fails(path: Path) -> tuple[DatasetWriter, int]:
    """Return a writer whose encoder has failed since the last write, and the number of episodes written."""
    encoder = FailingThread()
    limits = CutLimits(shard_bytes=30_000, min_shard_bytes=500, group_bytes=3_000, group_rows=60)
    writer = DatasetWriter(path, env_spec=BOX_SPEC, root_seed=0, limits=limits, encoder=encoder)
    number = 0
    while number < 120 or encoder.fails:
        encoder.fails = encoder.fails or number == 119
        writer.write(episode(number, 9))
        number += 1
    return writer, number


def test_an_error_of_the_thread_is_raised_by_the_next_write(tmp_path: Path) -> None:
    """As it was, and nothing is committed after it."""
    path = tmp_path / "out"
    writer, number = written_until_it_fails(path)
    committed = len(load(path))
    with pytest.raises(StorageError, match="the disk is full"):
        writer.write(episode(number, 9))
    writer.abort()
    assert ("interrupted", committed) == (load(path).info["status"], len(load(path)))
    assert 0 < committed < 120
    assert [] == leftovers(path)


@pytest.mark.parametrize("verb", [DatasetWriter.abort, DatasetWriter.remove])
def test_an_error_that_no_write_raised_is_raised_at_the_end(
    tmp_path: Path, verb: Callable[[DatasetWriter], None]
) -> None:
    """And the rest of the ending is done."""
    writer, _ = written_until_it_fails(tmp_path / "out")
    with pytest.raises(StorageError, match="the disk is full"):
        verb(writer)
    assert [] == leftovers(tmp_path)


def test_at_once_or_in_a_thread_the_disk_sees_the_same(tmp_path: Path) -> None:
    """The same operations in the same order, and the same bytes."""
    chunks = [episode(n, 9) for n in range(150)]
    operations, contents = [], []
    for number, encoder in enumerate((InlineEncoder(), EncodingThread())):
        path, files = tmp_path / str(number), FailingFiles()
        write_dataset(path, chunks, limits=TINY, files=files, encoder=encoder)
        operations.append([(name, target.relative_to(path.parent).parts[1:]) for name, target in files.operations])
        contents.append(data_files(path))
    assert operations[0] == operations[1]
    assert contents[0] == contents[1]


def test_leaving_without_close_is_no_completion(tmp_path: Path) -> None:
    """Only `close` may say `complete`."""
    with DatasetWriter(tmp_path / "out", env_spec=BOX_SPEC, root_seed=0) as writer:
        writer.write(episode(0, 9))
    assert ("interrupted", 1) == (load(tmp_path / "out").info["status"], len(load(tmp_path / "out")))


def test_a_closed_writer_takes_nothing_more(tmp_path: Path) -> None:
    """A programming error, not silence."""
    with DatasetWriter(tmp_path / "out", env_spec=BOX_SPEC, root_seed=0) as writer:
        writer.close(status="complete")
        with pytest.raises(InternalError, match="closed"):
            writer.write(episode(0, 9))


def test_an_episode_whose_last_part_never_came_is_not_stated(tmp_path: Path) -> None:
    """The episodes before it are."""
    parts = in_parts(episode(1, 90), [30, 60, 90])
    with DatasetWriter(tmp_path / "out", env_spec=BOX_SPEC, root_seed=0, limits=TINY) as writer:
        for chunk in (episode(0, 9), *parts[:2]):
            writer.write(chunk)
        writer.close(status="interrupted")
    assert [0] == load(tmp_path / "out").to_episode_batch().numbers.tolist()


def test_parts_of_the_samplers_size_are_taken(tmp_path: Path) -> None:
    """An episode just over the limit comes in two parts."""
    spec = EnvSpec(spaces.Box(0, 1, (64, 1024)), spaces.Discrete(2))
    length = PART_BYTES // (64 * 1024 * 4) + 2
    whole = episode(0, length, spec=spec)
    assert 2 == len(whole.parts())
    write_dataset(tmp_path / "out", whole.parts(), spec=spec)
    assert length == len(load(tmp_path / "out")[0])


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
