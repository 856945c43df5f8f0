"""Inference: the first episodes of a run decide which info keys become columns, and the run's fingerprint.

Info dictionaries may hold anything at any step, but all files of a dataset must have one schema, whichever
worker ran which episode. So the columns are those of the shortest prefix of episodes 0, 1, 2, … with at
least `INFERENCE_STEPS` steps. A value that comes later under another key or type goes to the row's JSON
remainder.

Two runs may share seed, names and options, and still differ: in the weights that lie under one name, for
example. Their first episodes tell them apart. Every run sees the first episode of the whole run, which helps
to decide the columns.
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

INFERENCE_STEPS = 1_000  # Steps after which, at an episode's end, the columns are decided.
FINGERPRINT_STEPS = 1_000  # Of the first episode: so that the frames of a long one cost little.


def _digests(chunk: Chunk) -> list[bytes]:
    """Return hashes of observations, actions and rewards of the first episode, up to `FINGERPRINT_STEPS`."""
    columns = (*chunk.observations, *chunk.actions, chunk.rewards)
    rows = min(int(chunk.lengths[0]), FINGERPRINT_STEPS)
    return [hashlib.blake2b(_bytes(values[:rows])).digest() for values in columns]


def _fingerprint(digests: Sequence[bytes], source: Document) -> str:
    """Return the fingerprint of the run that `source` (of info.json) describes, 32 hexadecimal digits.

    It depends on the first episode's `digests`, the root seed and the environment's keyword arguments alone:
    not on workers, samplers, or the part of the run that is collected.
    """
    plain = json.loads(json.dumps([source["root_seed"], (source.get("env") or {}).get("kwargs")]))
    # Keys are strings by now, and can be sorted.
    parts = [json.dumps(plain, sort_keys=True).encode(), *digests]
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


class SchemaInference:
    """Holds the first chunks back until their infos, seen in the order of their numbers, decide the columns.

    With one partition that is the order in which they come. Of several, which begin with `first_numbers`, the
    next one is looked at when all numbers before it came, or at the end. Until then its chunks wait in
    memory.
    """

    def __init__(self, first_numbers: Sequence[int | None] = (None,)) -> None:
        self.decided = False
        self._digests: list[bytes] = []  # Of the first episode.
        self._firsts = first_numbers
        self._steps = self._next_number = 0
        # Of each group and path the kinds met, and whether all values of each are exact as float64.
        self._met: tuple[dict[InfoPath, dict[str, bool]], ...] = ({}, {}, {})
        self._held: list[list[Chunk]] = [[] for _ in first_numbers]
        # The partition that is looked at, and how many of its chunks were.
        self._partition = self._observed = 0

    def hold(self, chunk: Chunk, partition: int) -> None:
        """Take the next chunk of a partition, to be given back by `release`."""
        self._held[partition].append(chunk)
        self._observe_held(at_end=False)

    def finish(self) -> None:
        """Look at all partitions: no more numbers come."""
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
        """Look at the next episodes, without holding them back."""
        # Before a shard of few steps holds its own episodes, it has looked at them as those of the whole run.
        if self.decided or int(chunk.numbers[-1]) < self._next_number:
            return
        ends = self._steps + np.cumsum(chunk.lengths)
        inside = min(int(np.searchsorted(ends, INFERENCE_STEPS)) + 1, chunk.n_episodes)
        observed = chunk.episodes(0, inside)
        self._digests = self._digests or _digests(observed)
        tables = (observed.env_infos, observed.agent_infos, observed.episode_infos)
        for met, table in zip(self._met, tables, strict=True):
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

        They are those of all held chunks where too few steps came to decide them.
        """
        # What is looked at early must not decide later.
        now = copy(self)
        now._met = deepcopy(self._met)  # noqa: SLF001
        now.finish()
        groups = zip(INFO_GROUPS, map(_info_columns, now._met), strict=True)  # noqa: SLF001
        columns = {f"{prefix}.{key}": column for prefix, columns in groups for key, column in columns.items()}
        return columns, _fingerprint(now._digests, source)  # noqa: SLF001

    def held(self) -> list[tuple[Chunk, int]]:
        """Return the held chunks with their partitions."""
        return [(chunk, partition) for partition, chunks in enumerate(self._held) for chunk in chunks]

    def release(self) -> list[tuple[Chunk, int]]:
        """Give back the held chunks with their partitions."""
        held = self.held()
        self._held = []
        return held


def _info_columns(met: Mapping[InfoPath, Mapping[str, bool]]) -> InfoColumns:
    """Return path and kind of the columns of one group, by dotted key."""
    chosen = ((path, choose_kind(kinds)) for path, kinds in met.items())
    columns = sorted((".".join(path), path, kind) for path, kind in chosen if kind is not None)
    # Keys may contain dots: of several paths with one dotted key, the first has the column.
    by_key = {key: (path, kind) for key, path, kind in reversed(columns)}
    return dict(reversed(by_key.items()))


def choose_kind(kinds: Mapping[str, bool]) -> str | None:
    """Return the kind of the column for values of all `kinds` at one path; None if they have none in common.

    `kinds` says of each whether all its values are exact as float64. JSON values never have a column, so they
    do not count. Integers and floats of one shape join in the widest of their sort; both together in float64,
    if every integer is exact in it.
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
    """Return the values of a column as bytes that do not depend on its byte order; texts as JSON."""
    if values.dtype == object:
        return "".join(json.dumps(value, default=np.ndarray.tolist) for value in values).encode()
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data
