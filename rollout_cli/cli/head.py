"""`rollout head`."""

from __future__ import annotations

from typing import Annotated, Any

from rollout_cli.cli.options import Folder, JsonFlag, flag
from rollout_cli.cli.output import print_json, print_table

_CountFlag = Annotated[
    int, flag("--number", "-n", metavar="N", text="How many rows.", min=1, show_default=True)
]
_StepsFlag = Annotated[bool, flag("--steps", text="Show the first steps of the first episode instead.")]
_MOST_NUMBERS = 4


def head(
    folder: Folder,
    *,
    number: _CountFlag = 5,
    steps: _StepsFlag = False,
    json: JsonFlag = False,
) -> None:
    """Print the first episodes of a dataset as a table, or the first steps of its first episode."""
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads numpy and pyarrow

    rows = (_steps if steps else _episodes)(load(folder), number)
    if json:
        print_json({"path": str(folder), "steps" if steps else "episodes": rows})
    else:
        shown = [{name: _short(value) for name, value in row.items()} for row in rows]
        print_table([*shown[0]] if shown else ["episodes"], [[*row.values()] for row in shown])


def _episodes(dataset: Any, number: int) -> list[dict[str, Any]]:
    from rollout_cli.report.identity import end_of  # noqa: PLC0415 - as above

    names = {"id": "episode_id", "number": "episode_number", "length": "length", "return": "return"}
    return [
        {**{name: row[key] for name, key in names.items()}, "end": end_of(row), "seed": row["seed"]}
        for row in dataset[:number].episodes.to_pylist()
    ]


def _steps(dataset: Any, number: int) -> list[dict[str, Any]]:
    """Return the first steps, without the columns that are the same for all of an episode."""
    if not len(dataset):
        return []
    table = dataset[:1].rows.steps().slice(0, number)
    names = [name for name in table.column_names if name != "episode_id" and not name.endswith("_extra")]
    rows = table.select(names).to_pylist()
    # An image is bytes, and JSON has none.
    return [
        {name: _short(value) if isinstance(value, bytes) else value for name, value in row.items()}
        for row in rows
    ]


def _short(value: Any, digits: int = 6) -> str:
    """Return a value that fits into a cell: a few numbers of many, the size of an image."""
    if isinstance(value, list):
        more = [f"… {len(value) - _MOST_NUMBERS:,} more"] if len(value) > _MOST_NUMBERS else []
        return f"[{' '.join([*(_short(item, 4) for item in value[:_MOST_NUMBERS]), *more])}]"
    if isinstance(value, bytes):
        return f"image of {len(value):,} bytes"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
