"""The dataset's README.md: a card for people, with the front matter that `datasets.load_dataset(folder)` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_cli.escaping import one_line

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
    """Return the card of the dataset that `info` describes."""
    title = f"# Episodes of {_env_name(info)}"
    counts = f"{info['episodes']} episodes, {info['steps']} steps ({info['status']})."
    return "\n".join([_FRONT_MATTER, title, "", counts, "", _LAYOUT])


def _env_name(info: Mapping[str, Any]) -> str:
    """Return gymnasium's id, or else how the environment was named when the dataset was made."""
    for part, key in (("env", "id"), ("env_source", "spec")):
        found = info.get(part)
        if isinstance(found, Mapping) and found.get(key):
            return one_line(str(found[key]))
    return "an environment"
