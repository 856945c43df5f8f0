"""Schema inference: a run's first episodes decide which info keys become columns, and its fingerprint.

An info dictionary may hold anything at any step, but all files of a dataset must have one schema, for any
assignment of episodes to workers. Therefore the columns come from the shortest prefix of episodes 0, 1, 2, …
with at least `INFERENCE_STEPS` steps. A later value under another key or type goes to the row's JSON
remainder.

Two runs may have the same seed, names and options, and still differ, e.g. in the weights under one name.
Their first episodes differ then. Every run, also a shard, sees the first episode of the complete run, because
it helps to decide the columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from typing import Any

import numpy as np

from rollout_cli.dataset.convert import Array, fits
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import INFO_GROUPS, JSON, STRING, InfoColumns, InfoPath, kind_type
from rollout_cli.episodes.plain import Document

INFERENCE_STEPS = 1_000  # The columns are decided at the end of the episode that reaches this many steps.
FINGERPRINT_STEPS = 1_000  # Steps of the first episode, a limit for long episodes with large frames.


def _digests(chunk: Chunk) -> list[bytes]:
    """Return hashes of observations, actions and rewards of the first episode, up to `FINGERPRINT_STEPS`."""
    columns = (*chunk.observations, *chunk.actions, chunk.rewards)
    rows = min(int(chunk.lengths[0]), FINGERPRINT_STEPS)
    return [hashlib.blake2b(_bytes(values[:rows])).digest() for values in columns]


def _fingerprint(digests: Sequence[bytes], source: Document) -> str:
    """Return the fingerprint of the run that `source` (of info.json) describes, 32 hexadecimal digits.

    It depends only on the first episode's `digests`, the root seed and the environment's keyword arguments:
    not on workers, samplers, or the collected part of the run.
    """
    plain = json.loads(json.dumps([source["root_seed"], (source.get("env") or {}).get("kwargs")]))
    # All keys are strings after the round trip, and can be sorted.
    parts = [json.dumps(plain, sort_keys=True).encode(), *digests]
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


class SchemaInference:
    """Hold the first chunks back until their infos, in the order of episode numbers, decide the columns.

    One partition arrives in this order. Of several partitions, which start with `first_numbers`, the next
    one is observed once all lower numbers arrived, or at the end. Until then its chunks wait in memory.
    """

    def __init__(self, first_numbers: Sequence[int | None] = (None,)) -> None:
        self.decided = False
        self._digests: list[bytes] = []  # Of the first episode.
        self._firsts = first_numbers
        self._steps = self._next_number = 0
        # By group and path: the kinds that were seen, and if all values of a kind are exact as float64.
        self._seen_kinds: tuple[dict[InfoPath, dict[str, bool]], ...] = ({}, {}, {})
        self._held: list[list[Chunk]] = [[] for _ in first_numbers]
        # The partition under observation, and the number of its observed chunks.
        self._partition = self._observed = 0

    def hold(self, chunk: Chunk, partition: int) -> None:
        """Add the next chunk of a partition; `release` returns it later."""
        self._held[partition].append(chunk)
        self._observe_held(at_end=False)

    def finish(self) -> None:
        """Observe all partitions: no more numbers follow."""
        self._observe_held(at_end=True)

    def _observe_held(self, *, at_end: bool) -> None:
        while not self.decided:
            here = self._held[self._partition]
            following = self._partition + 1
            if self._observed < len(here):
                self._observed += 1
                self.observe(here[self._observed - 1])
            elif following < len(self._held) and (at_end or self._next_number == self._firsts[following]):
                self._partition = following
                self._observed = 0
            else:
                return

    def observe(self, chunk: Chunk) -> None:
        """Observe the next episodes, without holding them back."""
        # A shard of few steps observes its own episodes as part of the complete run before it holds them.
        if self.decided or int(chunk.numbers[-1]) < self._next_number:
            return
        ends = self._steps + np.cumsum(chunk.lengths)
        inside = min(int(np.searchsorted(ends, INFERENCE_STEPS)) + 1, chunk.n_episodes)
        observed = chunk.episodes(0, inside)
        self._digests = self._digests or _digests(observed)
        tables = (observed.env_infos, observed.agent_infos, observed.episode_infos)
        for met, table in zip(self._seen_kinds, tables, strict=True):
            for column in table.columns:
                kinds = met.setdefault(column.path, {})
                is_exact = column.values.dtype != object and bool(
                    fits(column.values, np.dtype(np.float64)).all()
                )
                kinds[column.kind] = kinds.get(column.kind, True) and is_exact
        self._steps = int(ends[inside - 1])
        self.decided = self._steps >= INFERENCE_STEPS
        self._next_number = int(chunk.numbers[-1]) + 1

    def result(self, source: Document) -> tuple[InfoColumns, str]:
        """Return the columns, and the fingerprint of the run that `source` (of info.json) describes.

        If too few steps arrived to decide the columns, they come from all held chunks.
        """
        # On a copy: an early result must not influence the decision.
        now = copy(self)
        now._seen_kinds = deepcopy(self._seen_kinds)  # noqa: SLF001
        now.finish()
        groups = zip(INFO_GROUPS, map(_info_columns, now._seen_kinds), strict=True)  # noqa: SLF001
        columns = {f"{prefix}.{key}": column for prefix, columns in groups for key, column in columns.items()}
        return columns, _fingerprint(now._digests, source)  # noqa: SLF001

    def held(self) -> list[tuple[Chunk, int]]:
        """Return the held chunks with their partitions."""
        return [(chunk, partition) for partition, chunks in enumerate(self._held) for chunk in chunks]

    def release(self) -> list[tuple[Chunk, int]]:
        """Stop holding and return the held chunks with their partitions."""
        held = self.held()
        self._held = []
        return held


def _info_columns(met: Mapping[InfoPath, Mapping[str, bool]]) -> InfoColumns:
    """Return path and kind of the columns of one group by dotted key."""
    chosen = ((path, choose_kind(kinds)) for path, kinds in met.items())
    columns = sorted((".".join(path), path, kind) for path, kind in chosen if kind is not None)
    # Keys may contain dots. If several paths have one dotted key, the first path gets the column.
    by_key = {key: (path, kind) for key, path, kind in reversed(columns)}
    return dict(reversed(by_key.items()))


def choose_kind(kinds: Mapping[str, bool]) -> str | None:
    """Return the kind of the column for values of all `kinds` at one path; None if they have no common kind.

    `kinds` maps each kind to True if all its values are exact as float64. JSON values do not count, because
    they never have a column. Integers (or floats) of one shape share the widest dtype. Integers and floats
    share float64, if every integer is exact in it.
    """
    typed = [kind for kind in kinds if kind != JSON]
    if len(typed) <= 1 or STRING in typed:
        return typed[0] if len(typed) == 1 else None
    dtypes, shapes = zip(*map(kind_type, typed), strict=True)
    sorts = {dtype.kind for dtype in dtypes}
    common = np.result_type(*dtypes)
    if sorts - {"f"} and not sorts <= {"i", "u"}:
        # Integers and floats.
        common = np.dtype(np.float64)
        if "b" in sorts or not all(kinds[kind] for kind in typed):
            return None
    elif len(sorts) > 1 and common.kind == "f":
        return None  # No integer type holds int64 and uint64.
    return common.name + typed[0].removeprefix(dtypes[0].name) if len(set(shapes)) == 1 else None


def _bytes(values: Array) -> Any:
    """Return the values of a column as bytes independent of its byte order; strings as JSON."""
    if values.dtype == object:
        return "".join(json.dumps(value, default=np.ndarray.tolist) for value in values).encode()
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data
