"""The dataset card, README.md: a description for people and for Hugging Face, with code that loads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from rollout_cli.dataset.record import DatasetInfo, RunFacts, RunRecord
from rollout_cli.episodes.plain import Document
from rollout_cli.redact import without_secrets

PLOT = "returns.png"
"""The name, in `meta/`, of the picture that a card can show."""

_CARD = """\
---
{license}pretty_name: {pretty_name}
task_categories:
- reinforcement-learning
tags:
- reinforcement-learning
- offline-rl
- gymnasium
{env_tags}configs:
- config_name: default
  default: true
  description: {written}
  data_files:
  - split: train
    path: data/**/*.parquet
- config_name: episodes
  description: {written}
  data_files:
  - split: train
    path: meta/episodes/**/*.parquet
---

# {title}

{episodes:,} episodes, {steps:,} steps ({status}).
{plot}
{facts}

- `data/`: one row a step. `episode_id` and `step` name it; `observation`, `action`, `reward`, `terminated`,
  `truncated` and `step_type` (0 first, 1 middle, 2 terminal, 3 timeout) describe it.
- `meta/episodes/`: one row an episode, with its number, seed, length, return \
and the observation after its last step.
- `meta/info.json`: how the dataset was made, and what its columns are. \
`meta/stats.json`: statistics of the columns.

## How to read it

Episodes, in the shapes and dtypes of the environment's spaces (`pip install rollout-collect`):

```python
import rollout_cli

batch = rollout_cli.load("path/to/this/folder")[:10].to_episode_batch()
```

Rows, with Hugging Face `datasets`. Its format "numpy" casts float64 to float32; "arrow" leaves all values as
they are:

```python
import datasets

steps = datasets.load_dataset("path/to/this/folder", split="train").with_format("arrow")
episodes = datasets.load_dataset("path/to/this/folder", "episodes", split="train")
```

Rows, with any reader of Parquet, such as DuckDB:

```sql
select episode_id, sum(reward) from 'data/**/*.parquet' group by episode_id
```
"""


def render_card(info: DatasetInfo) -> str:
    """Return the card of the dataset that `info` describes; its front matter guides `datasets.load_dataset`.

    `info["card"]` may have `license`, `title` and `references`, and has `plot` if `meta/` holds the picture.
    """
    facts = [f"| {name} | {_cell(value)} |" for source in info["sources"] for name, value in _facts(source)]
    if skipped := skipped_text(n_skipped(info["sources"]), info["episodes"]):
        facts.append(f"| skipped | {skipped} |")
    name = dataset_name(info)
    options = info.get("card", {})
    title = options.get("title") or f"Episodes of {name}"
    if references := options.get("references"):
        facts.append(
            f"| normalized score | 0 at a mean return of {references['low']:.6g}, 100 at {references['high']:.6g} |"
        )
    # JSON strings are valid YAML strings.
    license_id = options.get("license")
    return _CARD.format(
        license=f"license: {json.dumps(license_id)}\n" if license_id else "",
        pretty_name=json.dumps(title),
        # `datasets` caches by the folder's name and these lines. Without the time, it would load another
        # dataset of that name, or a later one at that path, from the old cache.
        written=json.dumps(f"written {info['times']['updated']}"),
        env_tags="".join(f"- {json.dumps(env_name)}\n" for env_name in _env_names(info)),
        title=escaped(title),
        episodes=info["episodes"],
        steps=info["steps"],
        status=info["status"],
        plot=f"\n![Returns of the episodes](meta/{PLOT})\n" if options.get("plot") else "",
        facts="\n".join(["| | |", "| --- | --- |", *facts]),
    )


def n_skipped(sources: Sequence[RunFacts]) -> int:
    """Return the number of episodes that these runs skipped."""
    return sum(source["skipped"]["count"] for source in sources if "skipped" in source)


def skipped_text(count: int, n_episodes: int) -> str:
    """Return `7 of 32 episodes (21.9 %)` for 7 skipped and 25 other episodes; an empty string for none."""
    total = count + n_episodes
    return f"{count:,} of {total:,} episodes ({100 * count / total:.3g} %)" if count else ""


def _facts(source: RunRecord) -> Iterator[tuple[str, object]]:
    """Yield the facts of one run for the card; file names without folders, which mean nothing elsewhere."""
    records: dict[str, Document] = {
        "environment": source.get("env_source", {}),
        "policy": source.get("policy", {}),
    }
    for name, record in records.items():
        if spec := record.get("spec"):
            if record.get("path") is not None and "components" not in record:
                spec = PurePath(record["path"]).name
            text = _code(without_secrets(spec))
            kwargs = source.get("env", {}).get("kwargs") if name == "environment" else None
            if kwargs:
                text += f" with {_code(json.dumps(without_secrets(kwargs)))}"
            yield name, text
    if kind := source.get("kind"):
        yield "origin", f"{escaped(kind)}; another program ran the episodes"
    if source["root_seed"] is not None:
        yield "root seed", source["root_seed"]
    if verdict := source.get("reproducible", {}).get("status"):
        yield "reproducible", escaped(verdict)
    versions = source.get("versions", {})
    if {"rollout-collect", "gymnasium"} <= versions.keys():
        made_with = f"rollout-collect {versions['rollout-collect']}, gymnasium {versions['gymnasium']}"
        yield "made with", escaped(made_with)


def _code(text: str) -> str:
    """Return a string as inline code that its own backticks cannot end."""
    return "`" + text.replace("`", "'") + "`"


def escaped(text: object) -> str:
    """Return a string with Markdown and HTML escaped."""
    return re.sub(r"([`*<>&!\[\]])", r"\\\1", str(text))


def _cell(value: object) -> str:
    """Return a value as one line of text for a table cell."""
    return " ".join(repr(str(value))[1:-1].split()).replace("|", "\\|")


def dataset_name(info: DatasetInfo) -> str:
    """Return the names of the dataset's environments, as one string."""
    return " and ".join(_env_names(info)) or "an environment"


def _env_names(info: DatasetInfo) -> list[str]:
    """Return the environments' gymnasium ids, or the specs under which they were passed."""
    named = [
        source.get("env", {}).get("id") or source.get("env_source", {}).get("spec")
        for source in info["sources"]
    ]
    return list(dict.fromkeys(" ".join(repr(str(name))[1:-1].split()) for name in named if name))
