"""Cuts: pure, closed before the episode that would pass a limit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.chunk import concatenate
from rollout_cli.dataset.cuts import Cut, CutLimits, Cutter, Placement, group_edges, nominal_bytes
from tests.support.chunks import episode, in_parts

LIMITS = CutLimits(shard_bytes=1000, min_shard_bytes=100, group_bytes=300, group_rows=10)


def place(cutter: Cutter, length: int, nominal: int) -> Cut:
    """Place one episode; return what ends before it."""
    placements = cutter.place(np.array([length]), np.array([nominal]))
    return placements[0].cut if placements else Cut.NONE


def test_a_group_closes_before_the_episode_that_would_pass_its_rows() -> None:
    """Ten rows fit, the eleventh does not."""
    cutter = Cutter(LIMITS)
    assert [Cut.NONE, Cut.NONE, Cut.GROUP] == [place(cutter, 5, 1) for _ in range(3)]


def test_a_group_closes_before_the_episode_that_would_pass_its_bytes() -> None:
    """300 bytes fit; one more does not."""
    cutter = Cutter(LIMITS)
    assert [Cut.NONE, Cut.NONE, Cut.GROUP] == [place(cutter, 1, size) for size in (150, 150, 1)]


def test_a_shard_closes_before_the_episode_that_would_pass_its_bytes() -> None:
    """Groups of 300 until 900; 100 more fit exactly, and the next byte would pass 1000."""
    cutter = Cutter(LIMITS)
    expected = [Cut.NONE, Cut.GROUP, Cut.GROUP, Cut.GROUP, Cut.SHARD]
    assert expected == [place(cutter, 1, size) for size in (300, 300, 300, 100, 1)]


def test_an_episode_over_a_limit_has_its_own_row_groups() -> None:
    """The group before it closes, and so does its last one before the next episode."""
    cutter = Cutter(LIMITS)
    assert [Cut.NONE, Cut.GROUP, Cut.GROUP] == [place(cutter, length, 10) for length in (3, 25, 3)]
    assert 3 == LIMITS.groups_needed(25, 10)
    assert [8, 16, 25] == group_edges(25, 3)


def test_an_episode_larger_than_a_shard_is_not_split_across_shards() -> None:
    """It has a shard to itself."""
    cutter = Cutter(LIMITS)
    assert [Cut.NONE, Cut.SHARD, Cut.SHARD] == [place(cutter, 5, size) for size in (10, 5000, 10)]


def test_lanes_share_the_bytes_of_a_shard() -> None:
    """Each lane has its share, but no less than the least."""
    assert 250 == LIMITS.for_lanes(4).shard_bytes
    assert 100 == LIMITS.for_lanes(40).shard_bytes


class OneByOne:
    """The rule as it reads, an episode at a time: what the vectorised cutter must give."""

    def __init__(self, limits: CutLimits) -> None:
        self._limits = limits
        self._shard_bytes = self._group_bytes = self._group_rows = 0

    def place(self, length: int, nominal: int) -> Cut:
        """Place the next episode; return what to close before it."""
        cut = self._cut_before(length, nominal)
        if cut is Cut.SHARD:
            self._shard_bytes = 0
        if cut is not Cut.NONE:
            self._group_bytes = self._group_rows = 0
        self._shard_bytes += nominal
        self._group_bytes += nominal
        self._group_rows += length
        return cut

    def _cut_before(self, length: int, nominal: int) -> Cut:
        if self._group_rows == 0:
            return Cut.NONE
        if self._shard_bytes + nominal > self._limits.shard_bytes:
            return Cut.SHARD
        full = self._group_rows + length > self._limits.group_rows
        return Cut.GROUP if full or self._group_bytes + nominal > self._limits.group_bytes else Cut.NONE


SIZES = st.tuples(st.integers(1, 30), st.one_of(st.integers(1, 1500), st.integers(1, 40)))
BATCHES = st.lists(st.lists(SIZES, min_size=1, max_size=30), min_size=1, max_size=8)
SMALL_SHARDS = CutLimits(shard_bytes=100, min_shard_bytes=100, group_bytes=300, group_rows=10)


@given(BATCHES, st.sampled_from([LIMITS, SMALL_SHARDS]))
def test_many_episodes_at_once_are_cut_as_one_by_one(batches: list[list[tuple[int, int]]], limits: CutLimits) -> None:
    """However they come, the cuts are those of the rule, and the episodes over a row group's limit are told."""
    model, cutter = OneByOne(limits), Cutter(limits)
    for batch in batches:
        rule = [(at, model.place(*size), limits.groups_needed(*size)) for at, size in enumerate(batch)]
        expected = [Placement(*episode) for episode in rule if episode[1] is not Cut.NONE or episode[2] > 1]
        lengths, nominal = np.array(batch, np.int64).T
        assert expected == cutter.place(lengths, nominal)


@given(BATCHES)
def test_no_limit_is_passed_but_by_one_episode_alone(batches: list[list[tuple[int, int]]]) -> None:
    """Row groups and shards stay within their limits, unless they hold a single episode."""
    cutter = Cutter(LIMITS)
    shards: list[list[list[tuple[int, int]]]] = []
    for size in (size for batch in batches for size in batch):
        cut = place(cutter, *size)
        if not shards or cut is Cut.SHARD:
            shards.append([])
        if cut is not Cut.NONE or not shards[-1]:
            shards[-1].append([])
        shards[-1][-1].append(size)
    for shard in shards:
        whole = [size for group in shard for size in group]
        assert len(whole) == 1 or sum(nominal for _, nominal in whole) <= LIMITS.shard_bytes
        for group in shard:
            assert len(group) == 1 or sum(length for length, _ in group) <= LIMITS.group_rows
            assert len(group) == 1 or sum(nominal for _, nominal in group) <= LIMITS.group_bytes


def test_nominal_bytes_do_not_depend_on_how_episodes_travel() -> None:
    """One by one, together, or in parts: the same number an episode."""
    whole = [episode(n, 4 + n, env_info=lambda n, s: {"t": "ä" * s, "x": 1.0} if s % 2 else {}) for n in range(4)]
    alone = [int(nominal_bytes(chunk, row_bytes=50, episode_bytes=7)[0]) for chunk in whole]
    assert alone == nominal_bytes(concatenate(whole), row_bytes=50, episode_bytes=7).tolist()
    parts = in_parts(whole[3], [2, 3, 7])
    assert [alone[3]] * 3 == [int(nominal_bytes(part, row_bytes=50, episode_bytes=7)[0]) for part in parts]


def test_nominal_bytes_count_rows_texts_and_info_values() -> None:
    """Four rows of 50, and at steps 1 and 3 a float and a text of two bytes a letter."""
    chunk = episode(0, 4, env_info=lambda n, s: {"t": "ä" * s, "x": 1.0} if s % 2 else {})
    assert [4 * 50 + 7 + 2 * 8 + 2 * (1 + 3)] == nominal_bytes(chunk, row_bytes=50, episode_bytes=7).tolist()
