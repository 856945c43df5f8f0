"""The fingerprint of a run, and the origin of each of its files: what says that a file belongs to a dataset.

Two runs may share seed, names and options, and still differ: in the weights that lie under one name, for
example. Their first episodes tell them apart. Every run sees the first episode of the whole run, which helps
to decide the columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import DatasetFormatError

FINGERPRINT_STEPS = (
    1_000  # Steps of the first episode that count, so that the frames of a long one cost little.
)

Origin = Mapping[str, str]
"""The keys of a file's footer that say where it belongs: its run, its partition, its first number."""


class FirstEpisode:
    """Hashes observations, actions and rewards of the first episode it sees, up to `FINGERPRINT_STEPS`."""

    def __init__(self) -> None:
        self._steps = 0
        # One a column, so that it does not matter where the parts of a long episode end.
        self._hashes: list[hashlib.blake2b] = []

    def observe(self, chunk: Chunk) -> None:
        """Take the next episodes of a run, or the next part of one; ignore those after the first episode."""
        columns = (*chunk.observations, *chunk.actions, chunk.rewards)
        self._hashes = self._hashes or [hashlib.blake2b() for _ in columns]
        rows = min(int(chunk.lengths[0]), max(0, FINGERPRINT_STEPS - self._steps))
        for digest, values in zip(self._hashes, columns, strict=True):
            digest.update(_bytes(values[:rows]))
        self._steps += FINGERPRINT_STEPS if chunk.completes else rows

    def copy(self) -> FirstEpisode:
        """Return another one, which has seen the same."""
        other = FirstEpisode()
        other._steps, other._hashes = self._steps, [digest.copy() for digest in self._hashes]
        return other

    def fingerprint(self, source: Mapping[str, Any]) -> str:
        """Return the fingerprint of the run that `source` (of info.json) describes, 32 hexadecimal digits.

        It depends on this episode, the root seed and the environment's keyword arguments alone: not on
        workers, samplers, or the part of the run that is collected.
        """
        plain = json.loads(json.dumps([source["root_seed"], (source.get("env") or {}).get("kwargs")]))
        # Keys are texts by now, so that they can be sorted.
        parts = [json.dumps(plain, sort_keys=True).encode(), *(digest.digest() for digest in self._hashes)]
        return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


def fingerprint_of(info: Mapping[str, Any]) -> str | None:
    """Return the fingerprint that the files of a dataset name; None where there are none yet.

    It is that of the run, or of a derived dataset a hash of its sources' and of how it was made of them.
    """
    runs = [source.get("run") for source in info["sources"]]
    if not info["derived"]:
        return None if runs[0] is None else str(runs[0])
    text = json.dumps([runs, info["derived"]], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _bytes(values: npt.NDArray[Any]) -> Any:
    """Return the values of a column as bytes that do not depend on its byte order; texts as JSON."""
    if values.dtype == object:
        return "".join(map(json.dumps, values)).encode()
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data


def file_origin(run: str | None, partition: int, first_number: int) -> Origin:
    """Return the origin that the footers of a data file and its episodes file state.

    A `run` of None stands for one whose fingerprint is unknown: no file states that.
    """
    return {
        "rollout.run": f"{run}",
        "rollout.partition": f"{partition}",
        "rollout.first_number": f"{first_number}",
    }


def check_origin(path: Path, footer: Mapping[bytes, bytes] | None, expected: Origin) -> None:
    """Raise `DatasetFormatError` unless the footer of the file `path` states the `expected` origin."""
    stated = {key: (footer or {}).get(key.encode(), b"missing").decode(errors="replace") for key in expected}
    differing = [
        f"{key} is {stated[key]}, not {text}" for key, text in expected.items() if stated[key] != text
    ]
    if differing:
        raise DatasetFormatError(
            f"{path} is of another run or place than the dataset has here: {', '.join(differing)}",
            hint="if a run replaced the dataset meanwhile, load it again; else see: rollout verify",
        )
