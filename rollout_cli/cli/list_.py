"""`rollout list`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rollout_cli.cli.options import JsonFlag, folder_argument
from rollout_cli.cli.output import print_json, print_message, print_table
from rollout_cli.errors import RolloutError, StorageError
from rollout_cli.loading import one_line

_Root = Annotated[Path, folder_argument("FOLDER", "A folder, or its URI.")]


def list_datasets(folder: _Root, *, json: JsonFlag = False) -> None:
    """List all datasets in a folder and below it."""
    from rollout_cli.report.identity import sized  # noqa: PLC0415 - it loads numpy and pyarrow

    if not folder.is_dir():
        raise StorageError(f"there is no folder {folder}")
    # A killed run's unfinished replacement, and what a repair moved aside, lie in folders with a dot.
    paths = sorted(
        path.parents[1]
        for path in folder.glob("**/meta/info.json")
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    rows = [{"path": str(path), **_row(path)} for path in paths]
    if json:
        print_json({"folder": str(folder), "datasets": rows})
    elif rows:
        shown = [row | {"bytes": sized(row["bytes"]) if "bytes" in row else ""} for row in rows]
        names = ("path", "env", "policy", "episodes", "steps", "size", "date", "status")
        keys = [{"size": "bytes"}.get(name, name) for name in names]
        print_table(names, [[_figure(row.get(key)) for key in keys] for row in shown])
    else:
        print_message(f"there is no dataset in {folder}")


def _row(path: Path) -> dict[str, Any]:
    """Return the facts of one dataset; what is wrong is the status of one that cannot be read."""
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - as above
    from rollout_cli.report.identity import facts_of  # noqa: PLC0415 - as above

    try:
        facts = facts_of(load(path))
    except RolloutError as error:
        return {"status": one_line(error.message)}
    envs, policies = (
        dict.fromkeys(str((source.get(key) or {}).get("spec", "")) for source in facts["sources"])
        for key in ("env_source", "policy")
    )
    counts = {name: facts[name] for name in ("episodes", "steps", "bytes", "status")}
    date = str((facts.get("times") or {}).get("started") or "")[:10]
    return {"env": ", ".join(envs), "policy": ", ".join(policies), "date": date, **counts}


def _figure(value: Any) -> Any:
    return f"{value:,}" if isinstance(value, int) else value
