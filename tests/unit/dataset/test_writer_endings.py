"""DatasetWriter: however it ends, what was committed stays, the status says so, and nothing half-written is left."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rollout_cli.dataset import CutLimits, DatasetWriter, load
from rollout_cli.dataset.encoding import Encoder, EncodingThread, InlineEncoder, Work
from rollout_cli.errors import InternalError, StorageError
from tests.support.chunks import BOX_SPEC, episode, in_parts
from tests.support.datasets import FailingFiles, data_files, leftovers, write_dataset
from tests.unit.dataset.small_files import TINY


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
