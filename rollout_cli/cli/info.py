"""`rollout info`."""

from __future__ import annotations

from rollout_cli.cli.options import Folder, JsonFlag
from rollout_cli.cli.output import show
from rollout_cli.errors import DatasetFormatError


def info(
    folder: Folder,
    *,
    json: JsonFlag = False,
) -> None:
    """Print what a dataset is and how it was made; with --json its meta/info.json."""
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.report.identity import facts_of, identity  # noqa: PLC0415 - as above

    below = (
        []
        if (folder / "meta").exists()
        else sorted(str(path.parents[1]) for path in folder.glob("*/meta/info.json"))
    )
    if below:
        raise DatasetFormatError(
            f"{folder} is no dataset, but holds some", hint=f"name one of: {', '.join(below)}"
        )
    dataset = load(folder)
    facts = facts_of(dataset)
    show(facts, {"dataset": folder, **identity(dataset, facts)}, as_json=json)
