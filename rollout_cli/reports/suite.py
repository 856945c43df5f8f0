"""The card of a suite, a folder of datasets: a configuration of Hugging Face and a row of a table a member."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rollout_cli.dataset.card import dataset_name, escaped
from rollout_cli.dataset.reader import Dataset, load
from rollout_cli.dataset.store import file_store
from rollout_cli.errors import DatasetExistsError, UsageError
from rollout_cli.reports.card import write_card
from rollout_cli.reports.identity import estimates

MARK = "<!-- This card was written by `rollout card`, which replaces it. -->"

_CARD = """\
---
{license}pretty_name: {pretty_name}
task_categories:
- reinforcement-learning
tags:
- reinforcement-learning
- offline-rl
- gymnasium
configs:
{configs}---

{mark}

# {title}

{table}

Each folder is a separate dataset with a card. Its `meta/info.json` records its origin.

```python
import rollout_cli

dataset = rollout_cli.load("path/to/this/folder/{member}")
```

Rows, with Hugging Face `datasets`; `{member}-episodes` has a row an episode:

```python
import datasets

steps = datasets.load_dataset("path/to/this/folder", "{member}", split="train").with_format("arrow")
```
"""


def members_of(root: Path) -> list[Path]:
    """Return the datasets in a folder that is not a dataset itself, sorted by name."""
    if (root / "meta").exists():
        return []
    return sorted(path.parents[1] for path in root.glob("*/meta/info.json") if path.parents[1].name[0] != ".")


def write_suite_card(
    root: Path,
    *,
    title: str | None = None,
    license: str | None = None,  # noqa: A002 - the word of the card
    references: tuple[str | float, str | float] | None = None,
) -> Path:
    """Write README.md of a folder of datasets, and return its path.

    Args:
        root: The folder.
        title: The title of the folder's card, in one line.
        license: The license in Hugging Face's notation.
        references: The mean returns with the normalized scores 0 and 100, which each dataset then stores; a
            string is the name of a dataset in the folder, and stands for its mean return. None keeps the
            references of each dataset.

    Raises:
        DatasetExistsError: If the folder has a README.md of another origin.
        DatasetFormatError: If a dataset is damaged.
        DatasetLockedError: If a run is writing a dataset that shall store references.
        UsageError: If a dataset has no episodes, a reference names no dataset, or the second reference is not
            higher than the first.
    """
    path = root / "README.md"
    if path.exists() and MARK not in path.read_text(encoding="utf-8"):
        raise DatasetExistsError(
            f"{path} exists, and `rollout card` did not write it", code="output-exists", hint="move it away"
        )
    datasets = {member.name: load(member) for member in members_of(root)}
    for member, dataset in datasets.items():
        if not len(dataset):
            raise UsageError(
                f"{root / member} has no episodes, expected at least 1",
                code="no-episode",
                hint="collect its episodes, or move it away",
            )
    if references is not None:
        low, high = [_mean_return(reference, datasets) for reference in references]
        for member in datasets:
            write_card(root / member, references=(low, high))
            datasets[member] = load(root / member)
    first = next(iter(datasets))
    environments = ", ".join(dict.fromkeys(dataset_name(dataset.info) for dataset in datasets.values()))
    name = title or f"Episodes of {environments}"
    card = _CARD.format(
        license=f"license: {json.dumps(license)}\n" if license else "",
        pretty_name=json.dumps(name),
        configs="".join(line for item in datasets.items() for line in _configs(*item)),
        mark=MARK,
        title=escaped(name),
        table="\n".join(_table(datasets)),
        member=first,
    )
    file_store(root).replace(path, card.encode("utf-8", "backslashreplace"))
    return path


def _mean_return(reference: str | float, datasets: dict[str, Dataset]) -> float:
    if not isinstance(reference, str):
        return reference
    if reference not in datasets:
        raise UsageError(
            f"--references has {reference!r}, expected a number or one of the datasets: {', '.join(datasets)}",
            code="reference-unknown",
            hint="pass the name of a dataset in the folder",
        )
    return float(datasets[reference].rows.column("return").mean())


def _configs(member: str, dataset: Dataset) -> Iterator[str]:
    # `datasets` caches by the folder's name and these lines: see `render_card`.
    written = json.dumps(f"{_title(dataset)}, written {dataset.info['times']['updated']}")
    for suffix, files in (("", "data"), ("-episodes", "meta/episodes")):
        yield f"- config_name: {json.dumps(member + suffix)}\n"
        yield f"  description: {written}\n"
        yield f"  data_files:\n  - split: train\n    path: {json.dumps(f'{member}/{files}/**/*.parquet')}\n"


def _table(datasets: dict[str, Dataset]) -> Iterator[str]:
    names = ["dataset", "title", "episodes", "steps", "mean return (95 %)", "normalized score (95 %)"]
    yield f"| {' | '.join(names)} |"
    yield f"| {' | '.join(['---'] * len(names))} |"
    for member, dataset in datasets.items():
        found = estimates(dataset)
        cells = [
            _cell(member),
            _cell(_title(dataset)),
            f"{len(dataset):,}",
            f"{int(dataset.rows.column('length').sum()):,}",
            str(found["mean return"]),
            str(found.get("normalized score", "")),
        ]
        yield f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return escaped(text).replace("|", "\\|")


def _title(dataset: Dataset) -> str:
    title = dataset.info.get("card", {}).get("title")
    return title or f"Episodes of {dataset_name(dataset.info)}"
