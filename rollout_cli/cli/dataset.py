"""`rollout info`, `rollout verify` and `rollout repair`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from rollout_cli.cli.options import Folder, JsonFlag, shown
from rollout_cli.cli.output import counted, first_of, print_message, show
from rollout_cli.errors import DatasetFormatError, VerificationError
from rollout_cli.loading import printable

if TYPE_CHECKING:
    from rollout_cli.dataset.reader import Dataset

_VARIED = ("observation", "action", "next_observation", "env_info.", "agent_info.", "episode_info.")
"""Where the names of columns begin that differ between datasets; the others are those of the format."""
_QuietFlag = Annotated[bool, shown("--quiet", "-q", text="Print faults only.")]
_QuickFlag = Annotated[bool, shown("--quick", text="Read metadata and footers, but no step.")]
_DryRunFlag = Annotated[bool, shown("--dry-run", text="Report what would be done, and do nothing.")]


def info(
    folder: Folder,
    *,
    json: JsonFlag = False,
) -> None:
    """Print what a dataset holds; with --json its meta/info.json."""
    from rollout_cli.dataset.layout import table_files  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads numpy and pyarrow

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
    facts = dict(dataset.info)
    if facts["status"] == "collecting":
        # The run goes on or was killed: its totals are not written before its end, but its commits are there.
        data, episodes = (table_files(folder / name).values() for name in ("data", "meta/episodes"))
        n_bytes = sum(path.stat().st_size for path in (*data, *episodes))
        steps = int(dataset.episodes["length"].to_numpy().sum())
        facts |= {"episodes": len(dataset), "steps": steps, "bytes": n_bytes, "segments": len(data)}
    show(facts, {"dataset": folder, **_summary(dataset, facts)}, as_json=json)


def _summary(dataset: Dataset, facts: Mapping[str, Any]) -> dict[str, object]:
    from rollout_cli.run.compare import described  # noqa: PLC0415 - as above

    rows = {"status": facts["status"]}
    for number, source in enumerate(facts["sources"]):
        place = f" of source {number}" if len(facts["sources"]) > 1 else ""
        # A writer that was used without `collect` may have recorded none of these.
        rows[f"environment{place}"] = source.get("env_source", {}).get("spec", "not recorded")
        rows[f"policy{place}"] = source.get("policy", {}).get("spec", "not recorded")
        rows |= {
            f"file {file['path']}{place}": f"sha256 {file['sha256']}" for file in source.get("files", [])
        }
        rows[f"root seed{place}"] = source["root_seed"]
        rows[f"reproducible{place}"] = described(source.get("reproducible", {}))
    rows |= {
        "collected": f"{facts['times']['started']} to {facts['times']['ended'] or 'now'}",
        "episodes": f"{facts['episodes']:,}",
        "steps": f"{facts['steps']:,}",
    }
    if len(dataset):
        table = {
            name: dataset.episodes[name].to_numpy()
            for name in ("return", "length", "terminated", "truncated")
        }
        for name, values in list(table.items())[:2]:
            spread = f"std {values.std():.6g}, min {values.min():.6g}, max {values.max():.6g}"
            rows[name] = f"mean {values.mean():.6g}, {spread}"
        rows["ended"] = f"{table['terminated'].sum():,} terminated, {table['truncated'].sum():,} truncated"
    rows["size"] = f"{facts['bytes']:,} bytes in {counted(facts['segments'], 'data file')}"
    for name, feature in facts["features"].items():
        if name.startswith(_VARIED):
            shape = tuple(feature.get("shape", ()))
            rows[f"column {name}"] = f"{feature['dtype']} {shape}" if shape else feature["dtype"]
    return rows


def verify(
    folder: Folder,
    *,
    quick: _QuickFlag = False,
    quiet: _QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Check that a dataset holds all that it states: files, checksums, episodes, steps and totals."""
    from rollout_cli.dataset.verify import verify_dataset  # noqa: PLC0415 - as above

    report = verify_dataset(folder, quick=quick)
    if report.faults:
        raise VerificationError(
            f"{report.path} does not hold what it states: {counted(len(report.faults), 'fault')}",
            hint=f"keep the valid part with: rollout repair {shlex.quote(str(report.path))}",
            details="\n".join(first_of(report.faults)),
            report=report.document(),
        )
    facts = report.document()
    part = "metadata and footers" if report.quick else "everything"
    # A run that is collecting goes on, or was killed.
    verified = f"{part} so far" if facts["status"] == "collecting" else part
    counts = {name: f"{facts[name]:,}" for name in ("episodes", "steps", "files")}
    rows = {"dataset": report.path, "verified": verified, "status": facts["status"], **counts}
    show(facts, {**rows, "notes": f"{facts['n_notes']:,}"}, as_json=json, quiet=quiet)
    for line in () if json or quiet else first_of(report.notes):
        print_message(f"note: {printable(line)}")


def repair(
    folder: Folder,
    *,
    dry_run: _DryRunFlag = False,
    json: JsonFlag = False,
) -> None:
    """Keep the valid part of a dataset, and move the rest aside; nothing is deleted."""
    from rollout_cli.dataset.repair import repair_dataset  # noqa: PLC0415 - as above

    report = repair_dataset(folder, dry_run=dry_run)
    rows = {
        "dataset": report.path,
        "repair": "nothing to do" if not report.changed else "not done (--dry-run)" if dry_run else "done",
        "status": report.status,
        "episodes": f"{report.episodes:,} stay, {report.dropped_episodes:,} do not",
        "steps": f"{report.steps:,}",
    }
    if report.aside is not None:
        rows["moved"] = f"{counted(len(report.moved), 'file')} to {report.aside}"
    show(report.document() | {"dry_run": dry_run}, rows, as_json=json)
