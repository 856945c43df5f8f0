"""`rollout info`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout_cli.cli.options import JsonFlag, VerboseFlag
from rollout_cli.cli.output import print_json, print_rows, print_table
from rollout_cli.progress import is_rich_terminal

if TYPE_CHECKING:
    from rollout_cli.dataset import Dataset

Row = tuple[str, str]

_VARIED = ("observation", "action", "next_observation", "env_info.", "agent_info.", "episode_info.")


def info(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A dataset's folder.", show_default=False)],
    *,
    verbose: VerboseFlag = False,  # noqa: ARG001 - read where all commands end
    json: JsonFlag = False,
) -> None:
    """Print what a dataset holds; with --json its meta/info.json."""
    from rollout_cli.dataset import load  # noqa: PLC0415 - it loads numpy and pyarrow

    dataset = load(folder)
    if json:
        print_json(dataset.info)
    elif is_rich_terminal(sys.stdout, os.environ):
        print_table(str(folder), list(summary(dataset)))
    else:
        print_rows([("dataset", str(folder)), *summary(dataset)])


def summary(dataset: Dataset) -> Iterator[Row]:
    """Yield names and values, for people."""
    facts = dataset.info
    yield "status", facts["status"]
    yield "environment", _told(facts, "env_source", "spec")
    yield "policy", _told(facts, "policy", "spec")
    yield "root seed", str(facts["root_seed"])
    yield "reproducible", _reproducible(facts.get("reproducible", {}))
    yield "collected", _when(facts["times"])
    yield "episodes", f"{len(dataset):,}"
    yield "steps", f"{facts['steps']:,}"
    if len(dataset):
        yield from _episode_rows(dataset)
    yield "size", f"{facts['bytes']:,} bytes in {facts['shards']:,} data files"
    yield from _feature_rows(facts["features"])


def _told(facts: Mapping[str, Any], part: str, key: str) -> str:
    """Return what whoever made the dataset recorded: a writer used without `collect` may have recorded nothing."""
    return str(facts.get(part, {}).get(key, "not recorded"))


def _reproducible(verdict: Mapping[str, Any]) -> str:
    status = str(verdict.get("status", "not recorded"))
    return f"{status}: {verdict['reason']}" if "reason" in verdict else status


def _when(times: Mapping[str, Any]) -> str:
    return f"{times['started']} to {times['ended'] or 'now'}"


def _episode_rows(dataset: Dataset) -> Iterator[Row]:
    table = dataset.episodes
    for name in ("return", "length"):
        values = table[name].to_numpy()
        yield name, f"mean {values.mean():.6g}, std {values.std():.6g}, min {values.min():.6g}, max {values.max():.6g}"
    ended = {name: int(table[name].to_numpy().sum()) for name in ("terminated", "truncated")}
    yield "ended", f"{ended['terminated']:,} terminated, {ended['truncated']:,} truncated"


def _feature_rows(features: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the columns that differ between datasets; the others are those of the format."""
    for name, feature in features.items():
        if name.startswith(_VARIED):
            shape = tuple(feature.get("shape", ()))
            yield f"column {name}", f"{feature['dtype']} {shape}" if shape else feature["dtype"]
