"""The JSON file of a run, and the Markdown that one or several such files make."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import machine_lines, results_table
from benchmarks.results import Result, Row
from benchmarks.stats import Spread


@dataclass(frozen=True, slots=True)
class Document:
    """What one run measured, on what, and how.

    Attributes:
        machine: Facts about the machine, by name.
        pairs: Rounds.
        seconds: Length of the long runs.
        results: So far.
    """

    machine: dict[str, str]
    pairs: int
    seconds: float
    results: tuple[Result, ...]


def write(path: Path, document: Document) -> None:
    """Replace the file at once, so that a run that is stopped leaves a whole one."""
    new = path.with_name(f".{path.name}.tmp")
    new.write_text(json.dumps(asdict(document), indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def read(path: Path) -> Document:
    """Read what `write` wrote.

    Raises:
        OSError: If there is no such file.
        ValueError: If it is no such document.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        results = tuple(map(_result, fields["results"]))
        return Document(fields["machine"], fields["pairs"], fields["seconds"], results)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not written by `python -m benchmarks --json`: {error!r}") from error


def _result(fields: dict[str, Any]) -> Result:
    rows = tuple(Row(**{**row, "figure": row["figure"] and Spread(**row["figure"])}) for row in fields["rows"])
    return Result(**{**fields, "rows": rows})


def markdown(documents: Sequence[Document], order: Sequence[str], *, quotable: tuple[int, float]) -> list[str]:
    """Return the lines that benchmarks/README.md has: the machine, how it was measured, and the table.

    Of a case that is in several documents the last counts that has figures of it. Cases stand in the `order` of their
    names. `quotable` is how many rounds and seconds there must be at least.
    """
    chosen: dict[str, tuple[Result, Document]] = {}
    for document in documents:
        for result in document.results:
            earlier = chosen.get(result.case)
            if earlier is None or result.rows or not earlier[0].rows:
                chosen[result.case] = result, document
    places = {name: place for place, name in enumerate(order)}
    results = sorted((result for result, _ in chosen.values()), key=lambda result: places.get(result.case, len(places)))
    used = [document for document in documents if any(document is other for _, other in chosen.values())] or documents
    table = results_table(results)
    return [*machine_lines(_common([document.machine for document in used])), *_measured(used, quotable), "", *table]


def _common(machines: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return the facts of all machines; where they differ, each of the values once."""
    names = dict.fromkeys(name for facts in machines for name in facts)
    return {name: " / ".join(dict.fromkeys(facts[name] for facts in machines if name in facts)) for name in names}


def _measured(documents: Sequence[Document], quotable: tuple[int, float]) -> list[str]:
    ways = dict.fromkeys((document.pairs, document.seconds) for document in documents)
    lines = [f"- measured: {pairs} rounds, long runs of {seconds:g} s" for pairs, seconds in ways]
    if any(pairs < quotable[0] or seconds < quotable[1] for pairs, seconds in ways):
        lines.append("- SMOKE RUN: too short to quote")
    return lines
