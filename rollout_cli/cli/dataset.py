"""`rollout info`, `rollout verify` and `rollout repair`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout_cli.cli.options import Folder, JsonFlag, VerboseFlag, shown
from rollout_cli.cli.output import counted, print_json, print_message, print_rows
from rollout_cli.errors import VerificationError
from rollout_cli.loading import printable

if TYPE_CHECKING:
    from rollout_cli.dataset.reader import Dataset
    from rollout_cli.dataset.repair import RepairReport
    from rollout_cli.dataset.verify import VerifyReport

SHOWN = 20
"""So many faults or notes are shown, and of the others their number."""

Row = tuple[str, str]

_VARIED = ("observation", "action", "next_observation", "env_info.", "agent_info.", "episode_info.")
_QuietFlag = Annotated[bool, shown("--quiet", "-q", text="Print faults only.")]
_QuickFlag = Annotated[
    bool, typer.Option("--quick", help="Read metadata and footers, but no step.", show_default=False)
]
_DryRunFlag = Annotated[bool, shown("--dry-run", text="Report what would be done, and do nothing.")]


def info(
    folder: Folder,
    *,
    verbose: VerboseFlag = False,  # noqa: ARG001 - read where all commands end
    json: JsonFlag = False,
) -> None:
    """Print what a dataset holds; with --json its meta/info.json."""
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads numpy and pyarrow

    dataset = load(folder)
    if json:
        print_json(dataset.info)
    else:
        print_rows([("dataset", str(folder)), *_summary(dataset)])


def _summary(dataset: Dataset) -> Iterator[Row]:
    from rollout_cli.run.reproduce import described  # noqa: PLC0415 - as above

    facts = dataset.info
    yield "status", facts["status"]
    # A writer that was used without `collect` may have recorded neither.
    yield "environment", str(facts.get("env_source", {}).get("spec", "not recorded"))
    yield "policy", str(facts.get("policy", {}).get("spec", "not recorded"))
    yield "root seed", str(facts["root_seed"])
    yield "reproducible", described(facts.get("reproducible", {}))
    yield "collected", f"{facts['times']['started']} to {facts['times']['ended'] or 'now'}"
    yield "episodes", f"{len(dataset):,}"
    yield "steps", f"{facts['steps']:,}"
    if len(dataset):
        yield from _episode_rows(dataset)
    yield "size", f"{facts['bytes']:,} bytes in {counted(facts['segments'], 'data file')}"
    yield from _feature_rows(facts["features"])


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


def verify(
    folder: Folder,
    *,
    quick: _QuickFlag = False,
    quiet: _QuietFlag = False,
    verbose: VerboseFlag = False,  # noqa: ARG001 - as above
    json: JsonFlag = False,
) -> None:
    """Check that a dataset holds all that it states: files, checksums, episodes, steps and totals."""
    from rollout_cli.dataset.verify import verify_dataset  # noqa: PLC0415 - as above

    report = verify_dataset(folder, quick=quick)
    if report.faults:
        raise VerificationError(
            f"{report.path} does not hold what it states: {counted(len(report.faults), 'fault')}",
            hint=f"keep the valid part with: rollout repair {report.path}",
            details="\n".join(_first([str(fault) for fault in report.faults])),
            report=report.document(),
        )
    if json:
        print_json(report.document())
    elif not quiet:
        _show_verified(report)


def _show_verified(report: VerifyReport) -> None:
    facts = report.document()
    rows = [("verified", "metadata and footers" if report.quick else "everything"), ("status", facts["status"])]
    rows += [(name, f"{facts[name]:,}") for name in ("episodes", "steps", "files")]
    print_rows([("dataset", str(report.path)), *rows, ("notes", f"{facts['n_notes']:,}")])
    for line in _first(report.notes):
        print_message(f"note: {printable(line)}")


def _first(texts: Sequence[str]) -> list[str]:
    return [*texts[:SHOWN], *([f"and {len(texts) - SHOWN:,} more"] if len(texts) > SHOWN else [])]


def repair(
    folder: Folder,
    *,
    dry_run: _DryRunFlag = False,
    verbose: VerboseFlag = False,  # noqa: ARG001 - as above
    json: JsonFlag = False,
) -> None:
    """Keep the valid part of a dataset, and move the rest aside; nothing is deleted."""
    from rollout_cli.dataset.repair import repair_dataset  # noqa: PLC0415 - as above

    report = repair_dataset(folder, dry_run=dry_run)
    if json:
        print_json(report.document() | {"dry_run": dry_run})
    else:
        print_rows(_repair_rows(report, dry_run=dry_run))


def _repair_rows(report: RepairReport, *, dry_run: bool) -> list[Row]:
    done = "nothing to do" if not report.changed else "not done (--dry-run)" if dry_run else "done"
    rows = [
        ("dataset", str(report.path)),
        ("repair", done),
        ("status", report.status),
        ("episodes", f"{report.episodes:,} stay, {report.dropped_episodes:,} do not"),
        ("steps", f"{report.steps:,}"),
    ]
    if report.aside is not None:
        rows.append(("moved", f"{counted(len(report.moved), 'file')} to {report.aside}"))
    return rows
