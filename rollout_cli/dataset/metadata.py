"""info.json and the card: the record of how a dataset was made, and of its contents."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rollout_cli.dataset.commits import Written
from rollout_cli.dataset.files import FORMAT, FORMAT_VERSION, FileStore, info_path
from rollout_cli.dataset.schema import DatasetSchema, SpaceSchema
from rollout_cli.dataset.stats import Anomaly
from rollout_cli.errors import InternalError, RolloutError

Status = Literal["complete", "interrupted"]


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """The contents of a closed dataset.

    Attributes:
        path: Its folder.
        status: `complete` or `interrupted`.
        episodes: Episodes in it.
        steps: Their steps.
        bytes: Bytes of its data and episodes files.
        segments: Data files.
        info_columns: `decided`, or `partial` where the run ended before its info columns were decided.
        dropped_infos: By column, how many info values could not be stored.
        anomalies: Columns with values that are not finite, or outside of their space.
    """

    path: Path
    status: Status
    episodes: int
    steps: int
    bytes: int
    segments: int
    info_columns: str
    dropped_infos: Mapping[str, int]
    anomalies: tuple[Anomaly, ...] = ()


class DatasetRecord:
    """info.json and the card of a dataset that is being written.

    Args:
        files: The disk.
        root: The dataset's folder.
        settings: How the dataset is written: `root_seed`, `partitions`, `first_numbers`, …
        spaces: The columns of the environment's spaces.
        header: What else info.json records.
        before: The info.json of the dataset that is resumed; None for a new one.

    Raises:
        InternalError: If the header has keys that are the writer's own.
    """

    def __init__(
        self,
        files: FileStore,
        root: Path,
        settings: Mapping[str, Any],
        spaces: SpaceSchema,
        header: Mapping[str, Any],
        *,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        self._files, self._root = files, root
        self._anomalies: tuple[Anomaly, ...] = ()
        now = _now()
        ours = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "status": "collecting",
            **dict.fromkeys(("episodes", "steps", "bytes", "segments"), 0),
            **settings,
            "max_episode_length": spaces.env_spec.max_episode_length,
            "spaces": spaces.describe(),
            "features": {column.name: column.describe() for column in spaces.columns},
            "info_columns": "inferring",
            "dropped_infos": {},
            "anomalies": [],
            "times": {"started": now, "updated": now, "ended": None},
        }
        if taken := sorted(ours.keys() & header.keys()):
            raise InternalError(f"the header of a dataset has keys that are the writer's own: {', '.join(taken)}")
        self._info: dict[str, Any] = ours | plain_json(dict(header))
        if before is not None:
            times = before.get("times") or {}
            resumed = [*times.get("resumed", []), now]
            self._info["times"].update(started=times.get("started", now), resumed=resumed)

    @property
    def env(self) -> Mapping[str, Any]:
        """Return the header's record of the environment."""
        env: Mapping[str, Any] = self._info.get("env") or {}
        return env

    def decide(self, schema: DatasetSchema) -> None:
        """Record the columns."""
        self._info.update(info_columns="decided" if schema.infos.decided else "partial", features=schema.describe())

    def count(self, written: Sequence[Written], anomalies: Sequence[Anomaly]) -> None:
        """Record the totals of the committed segments, and their anomalies."""
        self._anomalies = tuple(anomalies)
        dropped: Counter[str] = Counter()
        for one in written:
            dropped.update(one.record.dropped_infos)
        self._info.update(
            episodes=sum(one.record.episodes for one in written),
            steps=sum(one.record.steps for one in written),
            bytes=sum(one.bytes for one in written),
            segments=len(written),
            dropped_infos=dict(dropped),
            anomalies=[one.to_dict() for one in anomalies],
        )

    def end(self, status: Status, **facts: Any) -> None:
        """Record how the dataset ended, and write info.json and the card."""
        self._info.update(plain_json(facts), status=status)
        self._info["times"]["ended"] = _now()
        self.write()

    def write(self) -> None:
        """Write info.json and the card."""
        self._info["times"]["updated"] = _now()
        self._files.write_json(info_path(self._root), self._info)
        self._files.replace(self._root / "README.md", render_card(self._info).encode(errors="backslashreplace"))

    def summary(self) -> DatasetSummary:
        """Return the contents of the dataset."""
        names = ("status", "episodes", "steps", "bytes", "segments", "info_columns", "dropped_infos")
        return DatasetSummary(self._root, anomalies=self._anomalies, **{name: self._info[name] for name in names})


def plain_json(value: Any) -> Any:
    """Return `value` with numbers that JSON lacks as the texts inf, -inf and nan."""
    if isinstance(value, Mapping):
        return {key: plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


_FRONT_MATTER = """\
---
configs:
- config_name: default
  default: true
  data_files:
  - split: train
    path: data/**/*.parquet
- config_name: episodes
  data_files:
  - split: train
    path: meta/episodes/**/*.parquet
---
"""

_LAYOUT = """\
## Layout

- `data/`: one row a step. `episode_id` and `step` name it; `observation`, `action`, `reward`, `terminated`,
  `truncated` and `step_type` (0 first, 1 middle, 2 terminal, 3 timeout) describe it.
- `meta/episodes/`: one row an episode, with its number, seed, length, return and the observation after its last step.
- `meta/info.json`: how the dataset was made, and what its columns are.
- `meta/stats.json`: minimum, maximum, mean and standard deviation of the columns.

## Reading

```python
import rollout_cli

dataset = rollout_cli.load("path/to/this/folder")
batch = dataset[:10].to_episode_batch()
```

Any reader of Parquet reads it too:

```sql
select episode_id, sum(reward) from 'data/**/*.parquet' group by episode_id
```
"""


def render_card(info: Mapping[str, Any]) -> str:
    """Return the card of the dataset that `info` describes; its front matter guides `datasets.load_dataset`."""
    # gymnasium's id, or else how the environment was named when the dataset was made.
    parts = ((info.get(part) or {}).get(key) for part, key in (("env", "id"), ("env_source", "spec")))
    name = next((" ".join(repr(str(part))[1:-1].split()) for part in parts if part), "an environment")
    counts = f"{info['episodes']} episodes, {info['steps']} steps ({info['status']})."
    return "\n".join([_FRONT_MATTER, f"# Episodes of {name}", "", counts, "", _LAYOUT])


def note_what_is_kept(error: RolloutError, kept: DatasetSummary) -> None:
    """Add to the hint of an error that ended a dataset what was committed before it."""
    count = f"{kept.episodes:,} episodes ({kept.steps:,} steps)"
    if not kept.episodes:
        text = "nothing was committed"
    elif info_path(kept.path).is_file():
        text = f"{count} are safe in {kept.path}; --resume continues from there"
    else:
        text = f"{kept.path} is gone, and with it {count}"
    error.hint = f"{error.hint}; {text}" if error.hint else text
