"""Going on with a dataset after a kill at any moment: `data/` ends as if nobody had killed anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rollout_cli.chunk import Chunk
from rollout_cli.dataset import CutLimits, DatasetWriter, load
from rollout_cli.dataset import limits as reading_limits
from rollout_cli.dataset.committed import Committed, read_committed
from rollout_cli.dataset.encoding import InlineEncoder
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.layout import read_info
from rollout_cli.dataset.shard import data_path, episodes_path
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import DatasetFormatError
from tests.support.chunks import BOX_SPEC, episode, in_parts
from tests.support.datasets import data_files, leftovers, write_dataset
from tests.unit.dataset.test_flushing import LIMITS, SPEC, always, assert_same_datasets, some_episodes


class KilledFiles(FileStore):
    """A disk that copies the folder as a kill before a rename would leave it: before every seventh one."""

    def __init__(self, root: Path, copies: Path) -> None:
        self._root, self._copies = root, copies
        self.count = 0

    def before(self, operation: str, path: Path) -> None:
        self.count += operation == "rename"
        if operation == "rename" and self.count % 7 == 0:
            shutil.copytree(self._root, self._copies / f"{self.count:04}")


def go_on(
    path: Path,
    chunks: Sequence[Chunk],
    *,
    spec: EnvSpec = BOX_SPEC,
    limits: CutLimits | None = None,
    files: FileStore | None = None,
) -> Committed:
    """Resume a dataset of one lane with those of the chunks that are not settled; return what was committed."""
    committed = read_committed(path, read_info(path))
    (lane,) = committed.lanes
    stop = lane.last.stop if lane.last is not None else 0
    with DatasetWriter(path, env_spec=spec, root_seed=0, limits=limits, committed=committed, files=files) as writer:
        for chunk in chunks:
            first = max(0, stop - int(chunk.numbers[0]))
            if first < chunk.n_episodes:
                writer.write(chunk.episodes(first, chunk.n_episodes))
        writer.close(status="complete")
    return committed


def test_a_kill_before_any_rename_changes_no_byte_in_the_end(tmp_path: Path) -> None:
    """Of data files; nor a number in the statistics and totals. Flushes come after each chunk of all kinds."""
    chunks = some_episodes()
    write_dataset(tmp_path / "whole", chunks, spec=SPEC, limits=LIMITS)
    expected, whole = data_files(tmp_path / "whole"), load(tmp_path / "whole")
    batch = whole.to_episode_batch()
    files = KilledFiles(tmp_path / "killed", tmp_path / "copies")
    write_dataset(
        tmp_path / "killed", chunks, spec=SPEC, limits=LIMITS, timer=always(), files=files, encoder=InlineEncoder()
    )
    found = set()
    between = 0
    for copy in sorted((tmp_path / "copies").iterdir()):
        info = copy / "meta" / "info.json"
        if not info.exists() or json.loads(info.read_text())["window"] != "closed":
            continue
        surplus = [path for path in read_committed(copy, read_info(copy)).stale if path.suffix == ".parquet"]
        between += bool(surplus)
        committed = go_on(copy, chunks, spec=SPEC, limits=LIMITS)
        assert expected == data_files(copy)
        assert [] == leftovers(copy)
        assert_same_datasets(whole, load(copy), batch=batch)
        assert whole.info["dropped_infos"] == load(copy).info["dropped_infos"]
        found.add(committed.episodes)
    assert len(found) > 10
    assert between


def killed_after(path: Path, chunks: Sequence[Chunk], limits: CutLimits) -> None:
    """Write chunks with a flush after each, and leave what a kill would leave."""
    running = path.with_name(f"running-{path.name}")
    with DatasetWriter(
        running, env_spec=BOX_SPEC, root_seed=0, limits=limits, timer=always(), encoder=InlineEncoder()
    ) as writer:
        for chunk in chunks:
            writer.write(chunk)
        shutil.copytree(running, path)


def test_data_ahead_of_its_episodes_file_is_written_again(tmp_path: Path) -> None:
    """A kill between the two leaves rows that no commit speaks of, in the open row group and behind it."""
    limits = CutLimits(shard_bytes=1 << 20, group_rows=400)
    chunks = [episode(number, 90) for number in range(40)]
    write_dataset(tmp_path / "whole", chunks, limits=limits)
    killed_after(tmp_path / "early", chunks[:20], limits)
    killed_after(tmp_path / "late", chunks[:31], limits)
    newer = data_path(tmp_path / "late", (0, 0))
    newer.replace(data_path(tmp_path / "early", (0, 0)))
    assert 20 == len(load(tmp_path / "early"))
    committed = go_on(tmp_path / "early", chunks, limits=limits)
    assert 20 == committed.episodes
    assert data_files(tmp_path / "whole") == data_files(tmp_path / "early")


def test_numbers_that_were_skipped_are_settled(tmp_path: Path) -> None:
    """They are not asked for again, and stay in the footer."""
    chunks = [episode(number, 300) for number in (0, 1, 4, 5, 7, 8, 11)]
    path = tmp_path / "out"
    killed_after(path, chunks[:5], CutLimits())
    committed = go_on(path, chunks)
    last = committed.lanes[0].last
    assert last is not None
    assert (0, 8, (2, 3, 6)) == (last.start, last.stop, last.skipped)
    footer = pq.ParquetFile(episodes_path(path, (0, 0))).metadata.metadata[b"rollout.settles"]
    assert {"start": 0, "stop": 12, "skipped": [2, 3, 6, 9, 10]} == json.loads(footer)
    assert list(range(7)) == load(path).episodes["episode_id"].to_pylist()


def test_a_finished_dataset_can_go_on(tmp_path: Path) -> None:
    """Its last shard is continued like one that was flushed, also behind an episode whose last part never came."""
    limits = CutLimits(shard_bytes=60_000, min_shard_bytes=500, group_rows=70)
    chunks = [episode(number, 90 if number % 5 == 2 else 30) for number in range(60)]
    write_dataset(tmp_path / "whole", chunks, limits=limits)
    for stop in (40, 42, 47, 53):
        path = tmp_path / str(stop)
        with DatasetWriter(path, env_spec=BOX_SPEC, root_seed=0, limits=limits) as writer:
            for chunk in chunks[:stop]:
                writer.write(chunk)
            for part in in_parts(chunks[stop], [20, 25, chunks[stop].n_steps])[:2]:
                writer.write(part)
            writer.close(status="interrupted")
        assert stop == len(load(path))
        assert stop == go_on(path, chunks, limits=limits).episodes
        assert data_files(tmp_path / "whole") == data_files(path)


def test_each_lane_goes_on_for_itself(tmp_path: Path) -> None:
    """One is full, one is open, one has nothing yet."""
    limits = CutLimits(shard_bytes=9_000, min_shard_bytes=3_000, group_bytes=1_000)
    chunks = [episode(number, 25 + number % 7) for number in range(150)]
    lanes = [number // 50 for number in range(150)]
    options: dict[str, Any] = {"n_lanes": 3, "limits": limits, "first_numbers": [0, 50, 100]}
    write_dataset(tmp_path / "whole", chunks, lanes=lanes, **options)
    path = tmp_path / "out"
    with DatasetWriter(path, env_spec=BOX_SPEC, root_seed=0, **options) as writer:
        for number in (*range(50), *range(50, 73)):
            writer.write(chunks[number], lane=lanes[number])
        writer.close(status="interrupted")
    committed = read_committed(path, read_info(path))
    assert [50, 23, 0] == [lane.episodes for lane in committed.lanes]
    with DatasetWriter(path, env_spec=BOX_SPEC, root_seed=0, committed=committed, **options) as writer:
        for number in (*range(100, 150), *range(73, 100)):
            writer.write(chunks[number], lane=lanes[number])
        writer.close(status="complete")
    assert data_files(tmp_path / "whole") == data_files(path)
    assert_same_datasets(load(tmp_path / "whole"), load(path))


def test_the_record_tells_that_it_was_resumed(tmp_path: Path) -> None:
    """When it was begun first, and when again; the header is this run's."""
    path = tmp_path / "out"
    chunks = [episode(number, 300) for number in range(6)]
    write_dataset(path, chunks[:4], header={"collector": {"timesteps": 1}})
    began = load(path).info["times"]["started"]
    committed = read_committed(path, read_info(path))
    with DatasetWriter(
        path, env_spec=BOX_SPEC, root_seed=0, header={"collector": {"timesteps": 2}}, committed=committed
    ) as writer:
        assert ("collecting", 4) == (load(path).info["status"], load(path).info["episodes"])
        for chunk in chunks[4:]:
            writer.write(chunk)
        writer.close(status="complete")
    info = load(path).info
    assert (began, 1) == (info["times"]["started"], len(info["times"]["resumed"]))
    assert (2, 6, 1, "complete") == (info["collector"]["timesteps"], info["episodes"], info["shards"], info["status"])


TINY = CutLimits(shard_bytes=20_000, min_shard_bytes=500, group_bytes=9_000)


def damaged(path: Path, shard: int) -> Path:
    """Write a dataset of several shards and cut the data file of one short; return that file."""
    write_dataset(path, [episode(number, 100) for number in range(30)], limits=TINY)
    file = data_path(path, (0, shard))
    file.write_bytes(file.read_bytes()[:-100])
    return file


def test_a_damaged_last_file_is_written_again(tmp_path: Path) -> None:
    """What lies before it is the longest prefix whose files agree."""
    write_dataset(tmp_path / "whole", [episode(number, 100) for number in range(30)], limits=TINY)
    last = len(data_files(tmp_path / "whole")) - 1
    path = tmp_path / "out"
    damaged(path, last)
    assert 0 < go_on(path, [episode(number, 100) for number in range(30)], limits=TINY).episodes < 30
    assert data_files(tmp_path / "whole") == data_files(path)


def test_a_damaged_file_before_others_is_refused(tmp_path: Path) -> None:
    """What lies behind it is not thrown away."""
    path = tmp_path / "out"
    file = damaged(path, 1)
    with pytest.raises(DatasetFormatError, match="committed episodes lie behind it") as caught:
        read_committed(path, read_info(path))
    assert str(file) in caught.value.message


def test_a_file_that_states_nothing_is_no_commit(tmp_path: Path) -> None:
    """Such as a Parquet file of somebody else's."""
    path = tmp_path / "out"
    write_dataset(path, [episode(number, 300) for number in range(6)])
    table = pq.read_table(episodes_path(path, (0, 0)))
    pq.write_table(table, episodes_path(path, (0, 0)))
    assert 0 == read_committed(path, read_info(path)).episodes


@pytest.mark.parametrize("group_rows", [400, 10_000], ids=["full row groups", "an open one"])
def test_row_groups_that_are_too_large_are_not_read(
    tmp_path: Path, group_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to be counted, nor to be written again."""
    limits = CutLimits(shard_bytes=1 << 20, group_rows=group_rows)
    chunks = [episode(number, 90) for number in range(20)]
    killed_after(tmp_path / "out", chunks, limits)
    monkeypatch.setattr(reading_limits, "MAX_GROUP_BYTES", 100)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *_: pytest.fail("it was read"))
    with pytest.raises(DatasetFormatError, match="over the limit of 100"):
        go_on(tmp_path / "out", chunks, limits=limits)


def test_episodes_that_a_file_cannot_have_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that claims more than its bytes can hold is a broken one."""
    write_dataset(tmp_path / "out", [episode(number, 300) for number in range(6)])
    monkeypatch.setattr(reading_limits, "MAX_EPISODES_PER_BYTE", 0)
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_, **__: pytest.fail("it was read"))
    assert 0 == read_committed(tmp_path / "out", read_info(tmp_path / "out")).episodes


@pytest.mark.parametrize("file_of", [data_path, episodes_path])
def test_links_that_lead_out_are_not_gone_on_with(tmp_path: Path, file_of: Any) -> None:
    """Nor taken for a file that a kill left behind, which would be replaced."""
    write_dataset(tmp_path / "out", [episode(number, 300) for number in range(6)])
    path = file_of(tmp_path / "out", (0, 0))
    path.symlink_to(path.rename(tmp_path / "outside"))
    with pytest.raises(DatasetFormatError, match="leads out of the dataset"):
        read_committed(tmp_path / "out", read_info(tmp_path / "out"))
