"""`rollout stats`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from rollout_cli.cli.options import Folder, JsonFlag
from rollout_cli.cli.output import print_json, print_rows, print_table, print_text

_MOST_NUMBERS = 32


def stats(folder: Folder, *, json: JsonFlag = False) -> None:
    """Print the statistics of a dataset: returns, lengths, how episodes end, and those of each column."""
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.report.charts import stats_of  # noqa: PLC0415 - as above
    from rollout_cli.report.identity import ends, figures, spread  # noqa: PLC0415 - as above

    dataset = load(folder)
    columns, counts = stats_of(dataset) if len(dataset) else {}, ends(dataset)
    steps = int(dataset.rows.column("length").sum())
    values = {name: dataset.rows.column(name) for name in ("return", "length")} if len(dataset) else {}
    if json:
        spreads = {name: figures(array) for name, array in values.items()}
        totals = {"path": str(folder), "episodes": len(dataset), "steps": steps}
        print_json({**totals, **spreads, "ends": counts, "columns": columns})
        return
    rows = {"episodes": f"{len(dataset):,}", "steps": f"{steps:,}"}
    rows |= {name: spread(array) for name, array in values.items()}
    print_rows(rows | {name: f"{count:,} episodes" for name, count in counts.items()})
    print_text("")
    names = ("column", "min", "max", "mean", "std", "share")
    print_table(names, [row for name, column in columns.items() for row in _rows(name, column, steps)])


def _rows(name: str, column: Mapping[str, Any], steps: int) -> Iterator[list[str]]:
    """Yield a line for each number of a column's rows; of an image one, and of long vectors the first ones.

    The share is that of the steps whose number is finite and counted.
    """
    import numpy as np  # noqa: PLC0415 - as above

    fields = [np.asarray(column[key], float) for key in ("min", "max", "mean", "std", "count")]
    indices = [*product(*map(range, fields[0].shape))]
    for index in indices[:_MOST_NUMBERS]:
        *numbers, count = (float(field[index]) for field in fields)
        shown = f"{name}{list(index)}" if index else name
        share = column.get("sampled") or f"{100 * count / max(1, steps):.4g} %"
        yield [shown, *(f"{number:.5g}" for number in numbers), share]
    if len(indices) > _MOST_NUMBERS:
        yield [f"{name} has {len(indices) - _MOST_NUMBERS:,} more: --json shows them", *[""] * 5]
