"""The card of a suite, a folder of datasets: one Hugging Face configuration and one table row per member."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rollout_cli.dataset.card import dataset_name, escaped
from rollout_cli.dataset.reader import Dataset, load
from rollout_cli.dataset.store import file_store
from rollout_cli.errors import DatasetExistsError, UsageError
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

Rows, with Hugging Face `datasets`; `{member}-episodes` has one row per episode:

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
) -> Path:
    """Write README.md of a folder of datasets, and return its path.

    Args:
        root: The folder.
        title: The title of the folder's card, in one line.
        license: The license in Hugging Face's notation.

    Raises:
        DatasetExistsError: If the folder has a README.md that `rollout card` did not write.
        DatasetFormatError: If a dataset is damaged.
        UsageError: If a dataset has no episodes.
    """
    path = root / "README.md"
    datasets = check_suite(root)
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


def check_suite(root: Path) -> dict[str, Dataset]:
    """Return the datasets of a suite by name; raises the errors of `write_suite_card`."""
    path = root / "README.md"
    if path.exists() and MARK not in path.read_text(encoding="utf-8"):
        raise DatasetExistsError(
            f"{path} exists, and `rollout card` did not write it",
            code="output-exists",
            hint="rename or delete it",
        )
    datasets = {member.name: load(member) for member in members_of(root)}
    for member, dataset in datasets.items():
        if not len(dataset):
            raise UsageError(
                f"{root / member} has no episodes, expected at least 1",
                code="no-episode",
                hint="collect its episodes, or remove it from the suite",
            )
    return datasets


def mean_return(root: Path, reference: str | float) -> float:
    """Return a number, or the mean return of the dataset with this name in a folder."""
    if not isinstance(reference, str):
        return reference
    members = {member.name: member for member in members_of(root)}
    if reference not in members:
        raise UsageError(
            f"a reference is {reference!r}, expected a number"
            + (f" or one of the datasets: {', '.join(members)}" if members else ""),
            code="reference-unknown",
            hint="pass mean returns, or names of datasets in the folder",
        )
    return float(load(members[reference]).rows.column("return").mean())


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
