"""The commands that show a dataset: `rollout info`, `head`, `stats`, `list`, `plot`, `render`, `report`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rollout_cli
from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag, flag, folder_argument, local_path
from rollout_cli.cli.output import print_json, print_message, print_rows, print_table, print_text, show
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.cli.trust import EnvKwargsFlag, TrustFlag, places_of
from rollout_cli.errors import DatasetFormatError, RolloutError, StorageError
from rollout_cli.keywords import Record
from rollout_cli.sources.untrusted import one_line, printable

if TYPE_CHECKING:
    from rollout_cli.dataset.reader import Dataset
    from rollout_cli.episodes.intervals import Interval

_WIDE = ("observation", "next_observation", "env_info", "agent_info")
"""Name prefixes of column groups that may have many columns."""

_MAX_PER_CELL = 4  # Numbers of an array that `head` shows in one cell.
_MAX_PER_COLUMN = 32  # Numbers of an array column that `stats` shows, one per line.


def info(folder: Folder, *, json: JsonFlag = False) -> None:
    """Summarize a dataset and the run that made it; --json prints info.json."""
    from rollout_cli.reports.identity import facts_of, identity  # noqa: PLC0415 - imports numpy and pyarrow

    if not (folder / "meta").exists():
        children = sorted(str(path.parents[1]) for path in folder.glob("*/meta/info.json"))
        if children:
            raise DatasetFormatError(
                f"{folder} is not a dataset, but contains datasets",
                code="not-a-dataset",
                hint=f"pass one of: {', '.join(children)}",
            )
    dataset = rollout_cli.load(folder)
    facts = facts_of(dataset)
    show(facts, {"dataset": folder, **identity(dataset, facts)}, as_json=json)


def head(
    folder: Folder,
    *,
    number: Annotated[
        int, flag("--number", "-n", metavar="N", help="Number of rows.", min=1, show_default=True)
    ] = 5,
    steps: Annotated[
        bool, flag("--steps", help="Show the first steps of the first episode instead.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Print the first episodes, or steps of the first episode, as a table."""
    dataset = rollout_cli.load(folder)
    rows = _first_steps(dataset, number) if steps else _first_episodes(dataset, number)
    if json:
        print_json({"path": str(folder), "steps" if steps else "episodes": rows})
    else:
        names = [*next(iter(rows), ["episodes"])]
        print_table(names, [[*map(_shortened, row.values())] for row in rows])


def _first_episodes(dataset: Dataset, number: int) -> list[Record]:
    from rollout_cli.reports.identity import end_of  # noqa: PLC0415 - as above

    return [
        {
            "id": row["episode_id"],
            "number": row["episode_number"],
            "length": row["length"],
            "return": row["return"],
            "end": end_of(row),
            "seed": row["seed"],
        }
        for row in dataset[:number].episodes.to_pylist()
    ]


def _first_steps(dataset: Dataset, number: int) -> list[Record]:
    """Return the first steps of the first episode, without columns that are constant within an episode."""
    if not len(dataset):
        return []
    table = dataset[:1].rows.steps()
    table = table.slice(0, min(number, len(table)))
    names = [name for name in table.column_names if name != "episode_id" and not name.endswith("_extra")]
    # A terminal may cut the last columns, so the wide groups come last.
    names.sort(key=lambda name: name.startswith(_WIDE))
    rows: list[Any] = table.select(names).to_pylist()
    for row in rows:
        for name, value in row.items():
            if isinstance(value, bytes):  # An image: JSON has no bytes.
                row[name] = _shortened(value)
    return rows


def _shortened(value: Any, digits: int = 6) -> str:
    """Return a string that fits into a cell: the first numbers of an array, the size of an image."""
    if isinstance(value, list):
        numbers = [_shortened(number, 4) for number in value[:_MAX_PER_CELL]]
        if len(value) > _MAX_PER_CELL:
            numbers.append(f"… {len(value) - _MAX_PER_CELL:,} more")
        return f"[{' '.join(numbers)}]"
    if isinstance(value, bytes):
        return f"image of {len(value):,} bytes"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def stats(folder: Folder, *, json: JsonFlag = False) -> None:
    """Print statistics of returns, lengths, episode ends and every column."""
    from rollout_cli.reports.charts import stats_of  # noqa: PLC0415 - imports numpy and pyarrow
    from rollout_cli.reports.identity import ends, estimates, figures, spread  # noqa: PLC0415 - as above

    dataset = rollout_cli.load(folder)
    steps = int(dataset.rows.column("length").sum())
    counts = ends(dataset)
    columns: Record = {}
    counted = 0
    values = {}
    found: dict[str, Interval] = {}
    if len(dataset):
        columns, counted = stats_of(dataset)
        values = {name: dataset.rows.column(name) for name in ("return", "length")}
        found = estimates(dataset)
    if json:
        spreads = {name: figures(array) for name, array in values.items()}
        totals = {"path": str(folder), "episodes": len(dataset), "steps": steps, "column_steps": counted}
        intervals = {name: asdict(interval) for name, interval in found.items()}
        print_json({**totals, **spreads, "estimates": intervals, "ends": counts, "columns": columns})
        return
    rows = {"episodes": f"{len(dataset):,}", "steps": f"{steps:,}"}
    for name, array in values.items():
        rows[name] = spread(array)
    for name, interval in found.items():
        rows[name] = f"{interval}, 95 % interval"
    for ending, count in counts.items():
        rows[ending] = f"{count:,} episodes"
    if counted < steps:
        rows["columns"] = f"a sample of {counted:,} steps"
    print_rows(rows)
    print_text("")
    names = ("column", "min", "max", "mean", "std", "share")
    print_table(
        names, [line for name, column in columns.items() for line in _column_rows(name, column, counted)]
    )


def _column_rows(name: str, column: Record, steps: int) -> Iterator[list[str]]:
    """Yield one table row per element of a column's values; an image has one row, and long vectors are cut.

    The last cell is the share of steps whose value was counted and is finite.
    """
    import numpy as np  # noqa: PLC0415 - as above

    fields = np.array([column[key] for key in ("min", "max", "mean", "std", "count")], float)
    indices = [*np.ndindex(fields.shape[1:])]
    for index in indices[:_MAX_PER_COLUMN]:
        *numbers, count = fields[:, *index].tolist()
        title = f"{name}{list(index)}" if index else name
        share = column.get("sampled") or f"{100 * count / max(1, steps):.4g} %"
        yield [title, *(f"{number:.5g}" for number in numbers), share]
    if len(indices) > _MAX_PER_COLUMN:
        yield [f"{name} has {len(indices) - _MAX_PER_COLUMN:,} more: --json shows them", *[""] * 5]


def list_datasets(
    folder: Annotated[Path, folder_argument("FOLDER", "Folder or URI.")], *, json: JsonFlag = False
) -> None:
    """List all datasets in a folder and its subfolders."""
    from rollout_cli.reports.identity import sized  # noqa: PLC0415 - imports numpy and pyarrow

    if not folder.is_dir():
        raise StorageError(f"folder not found: {folder}", code="folder-missing", hint="check the path")
    # Skip dot folders: they hold unfinished replacements of killed runs, and files that a repair removed.
    paths = [
        path.parents[1]
        for path in folder.rglob("meta/info.json")
        if "/." not in f"/{path.relative_to(folder).as_posix()}"
    ]
    # Sort numbers in names by value.
    paths.sort(key=lambda path: re.sub("[0-9]+", lambda digits: digits[0].zfill(20), str(path)))
    rows = [{"path": str(path), **_listed(path)} for path in paths]
    if json:
        print_json({"folder": str(folder), "datasets": rows})
    elif rows:
        names = ("path", "env", "policy", "episodes", "steps", "mean return", "date", "size", "status")
        table = []
        for path, row in zip(paths, rows, strict=True):
            row["path"] = path.relative_to(folder)
            if "bytes" in row:
                row["size"] = sized(row["bytes"])
            table.append([_number(row.get(name.replace(" ", "_"))) for name in names])
        print_table(names, table, yielding=("policy", "env", "path"))
    else:
        print_message(f"no dataset found in {folder}")


def _listed(path: Path) -> Record:
    """Return the facts of one dataset; if it cannot be read, its status is the error message."""
    from rollout_cli.reports.identity import facts_of  # noqa: PLC0415 - as above

    try:
        dataset = rollout_cli.load(path)
        facts = facts_of(dataset)
    except RolloutError as error:
        return {"status": one_line(error.message)}
    row = {
        "env": _specs(facts, "env_source"),
        "policy": _specs(facts, "policy"),
        "date": facts["times"]["started"][:10],
        "episodes": facts["episodes"],
        "steps": facts["steps"],
        "bytes": facts["bytes"],
        "status": facts["status"],
    }
    if len(dataset):
        row["mean_return"] = float(dataset.rows.column("return").mean())
    return row


def _specs(facts: Record, key: str) -> str:
    """Return the distinct SPECs of a dataset's runs, joined by commas."""
    return ", ".join(dict.fromkeys(str(source.get(key, {}).get("spec", "")) for source in facts["sources"]))


def _number(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else value


def plot(
    folder: Folder,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[returns|lengths|over-time|actions|observations]",
            help="Plot to draw.",
            show_default=False,
        ),
    ] = "returns",
    *,
    output: Annotated[
        Path | None,
        flag("--output", "-o", metavar="FILE", help="PNG or SVG file to write.", parser=local_path),
    ] = None,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Plot a dataset in the terminal, or to an image file with --output."""
    from rollout_cli.episodes.plain import plain_value  # noqa: PLC0415 - imports numpy
    from rollout_cli.reports.charts import chart_of  # noqa: PLC0415 - imports numpy and pyarrow
    from rollout_cli.reports.figure import write_figure  # noqa: PLC0415 - as above
    from rollout_cli.reports.text import lines  # noqa: PLC0415 - as above

    chart = chart_of(rollout_cli.load(folder), name)
    document = {"path": str(folder), "plot": name, "chart": plain_value(asdict(chart))}
    if output is not None:
        write_figure(chart, output)
        show(
            document | {"output": str(output)},
            {"dataset": folder, "plot": name, "picture": output},
            as_json=json,
            quiet=quiet,
            path=output,
        )
    elif json:
        print_json(document)
    else:
        width = min(shutil.get_terminal_size().columns, 120)
        print_text("\n".join(printable(line) for line in lines(chart, width)))


def render(
    folder: Folder,
    *,
    output: Annotated[
        Path,
        flag(
            "--output",
            "-o",
            metavar="PATH",
            help="FILE.gif, FILE.mp4, or a folder for PNG files.",
            parser=local_path,
        ),
    ],
    episode: Annotated[
        int, flag("--episode", metavar="ID", help="Episode to render.", min=0, show_default=True)
    ] = 0,
    fps: Annotated[
        float | None, flag("--fps", metavar="N", help="Frames per second.", min=0.1, max=1000)
    ] = None,
    again: Annotated[
        bool, flag("--again", help="Replay the actions even if images or states are stored.")
    ] = False,
    env_kwargs: EnvKwargsFlag = None,
    trust: TrustFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Render an episode to video, from stored images or states, or by replaying its actions."""
    from rollout_cli.options.config import OPTIONS  # noqa: PLC0415 - imports pydantic
    from rollout_cli.run.render import render as render_episode  # noqa: PLC0415 - imports numpy and pyarrow

    kwargs = OPTIONS["env_kwargs"].read(env_kwargs or [], "--env-kwargs", text=True)
    dataset = rollout_cli.load(folder)
    (place,) = places_of(dataset, folder, range(episode, episode + 1))
    with user_output_on_stderr():
        rendered = render_episode(
            dataset, place, output, fps=fps, again=again, env_kwargs=kwargs, trust=trust
        )
    difference = rendered.difference
    width, height = rendered.size
    rows = {
        "video": rendered.path,
        "episode": episode,
        "shows": rendered.origin,
        "frames": f"{rendered.frames:,} of {width} x {height}, {rendered.fps:g} per second",
    }
    if rendered.origin == "recorded actions, run again":
        rows["replayed"] = f"differs from {difference.place} on" if difference else "identical"
    show({"dataset": folder, **asdict(rendered)}, rows, as_json=json, quiet=quiet, path=rendered.path)
    if difference and not json:
        print_message(printable(f"warning: the video differs from the stored episode: {difference}"))


def report(
    folder: Folder,
    *,
    output: Annotated[
        Path, flag("--output", "-o", metavar="FILE.html", help="HTML file to write.", parser=local_path)
    ],
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write an HTML report of a dataset's episodes, columns and origin."""
    from rollout_cli.reports.identity import sized  # noqa: PLC0415 - imports numpy and pyarrow
    from rollout_cli.reports.page import write_report  # noqa: PLC0415 - as above

    n_bytes = write_report(rollout_cli.load(folder), output)
    show(
        {"dataset": str(folder), "path": str(output), "bytes": n_bytes},
        {"dataset": folder, "report": output, "size": sized(n_bytes)},
        as_json=json,
        quiet=quiet,
        path=output,
    )
