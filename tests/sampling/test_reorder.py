"""ReorderBuffer: episodes come as they end, and go in the order of their numbers."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.episodes.chunk import AnyChunk, Chunk, concatenate
from rollout_cli.errors import StorageError
from rollout_cli.samplers import reorder
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, PlanState
from rollout_cli.samplers.reorder import ReorderBuffer
from tests.helpers.chunks import episode, in_parts
from tests.helpers.fake_worker import bare_episode


def buffer(stop: int = 10, folder: Path | None = None) -> ReorderBuffer:
    return ReorderBuffer(PlanState(Episodes(0, stop), n_workers=1), folder)


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything that waits go to the disk, which is full at once."""
    monkeypatch.setattr(reorder, "MEMORY_BYTES", 0)
    monkeypatch.setattr(reorder, "DISK_BYTES", 1)


def several(*numbers: int, length: int = 2) -> Chunk:
    return concatenate([bare_episode(number, length, reward=number) for number in numbers])


def given_by(of: ReorderBuffer) -> list[int]:
    return [int(number) for chunk in of.ready() for number in chunk.numbers]


@given(st.data(), st.integers(1, 25), st.sampled_from([0, 500, 1 << 20]))
def test_any_order_comes_out_in_order(data: st.DataObject, count: int, memory: int) -> None:
    """Chunks with gaps, in any order, in memory or on disk: each episode comes once, with its own rows."""
    left = data.draw(st.permutations(range(count)))
    out: list[AnyChunk] = []
    with mock.patch.object(reorder, "MEMORY_BYTES", memory), closing(buffer(count)) as of:
        while left:
            size = data.draw(st.integers(1, 5))
            of.add(several(*sorted(left[:size])))
            left = left[size:]
            out += of.ready()
        assert 0 == of.n_waiting
    assert list(range(count)) == [int(number) for chunk in out for number in chunk.numbers]
    assert [number for number in range(count) for _ in range(2)] == [
        r for chunk in out for r in chunk.load().rewards.tolist()
    ]


def test_nothing_above_the_end_is_given() -> None:
    """A chunk is cut at the plan's last number, which may become known after the chunk has come."""
    state = PlanState(MinTimesteps(7), n_workers=1)
    of = ReorderBuffer(state)
    of.add(several(1, 2, 3, 4))
    assert (4, []) == (of.n_waiting, given_by(of))
    state.complete(range(1, 5), np.array([2, 2, 2, 2]))
    state.complete(range(1), np.array([2]))
    assert 3 == of.n_waiting
    of.add(several(0))
    assert [0, 1, 2, 3] == given_by(of)


def test_partitions_do_not_wait_for_each_other() -> None:
    """Each worker's episodes go in their own order."""
    of = ReorderBuffer(PlanState(EpisodesPerWorker(3, first=10, done=(1, 0)), n_workers=2))
    of.add(several(12))
    of.add(several(13, 14))
    assert [13, 14] == given_by(of)
    assert (True, False) == (of.is_past(14), of.is_past(15))
    of.add(several(11))
    assert [11, 12] == given_by(of)


def test_a_skipped_episode_is_passed_over() -> None:
    """The order continues without it, and parts of it that came are forgotten."""
    of = buffer()
    first, *_ = in_parts(episode(0, 9), [3, 6, 9])
    of.add(first)
    of.add(several(1, 3))
    of.skip(2)
    of.skip(0)
    assert [1, 3] == given_by(of)
    assert (True, False) == (of.is_past(2), of.is_past(4))


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_an_episode_in_parts_is_given_whole(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts wait for all others; after a worker's death they are replaced by those of the rerun."""
    monkeypatch.setattr(reorder, "MEMORY_BYTES", memory)
    of = buffer()
    whole = episode(0, 9)
    parts = in_parts(whole, [3, 6, 9])
    for part in (parts[0], parts[1], *parts):
        assert [] == list(of.ready())
        of.add(part)
    out = list(of.ready())
    assert [0, 1, 2] == [chunk.part.index for chunk in out if chunk.part is not None]
    assert whole.rewards.tolist() == concatenate([chunk.load() for chunk in out]).rewards.tolist()
    of.close()


@pytest.mark.usefixtures("no_memory")
def test_the_file_is_emptied_when_nobody_needs_it(tmp_path: Path) -> None:
    """It is full at its limit, has no name, and takes no space once its chunks were given."""
    of = buffer(100, tmp_path)
    was_full = [of.is_full]
    of.add(several(*range(1, 40)))
    was_full.append(of.is_full)
    assert [] == list(tmp_path.iterdir())
    of.add(several(0))
    assert list(range(40)) == given_by(of)
    assert [False, True, False] == [*was_full, of.is_full]
    of.close()


@pytest.mark.usefixtures("no_memory")
def test_a_full_disk_is_a_storage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Exit code 5, the folder and what to do; closing the buffer then is quiet."""
    of = buffer(folder=tmp_path)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("r+b"))  # noqa: SIM115
    with pytest.raises(StorageError, match="No space left on device") as caught:
        of.add(several(3))
    assert (5, True) == (caught.value.exit_code, str(tmp_path) in caught.value.message)
    assert "TMPDIR" in caught.value.hint
    of.close()


@pytest.mark.usefixtures("no_memory")
def test_a_folder_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    """So is a spill folder that does not exist any more."""
    of = buffer(folder=tmp_path / "gone")
    with pytest.raises(StorageError, match="No such file"):
        of.add(several(3))
