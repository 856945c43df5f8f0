"""The commands that check or repair a dataset: `rollout verify`, `repair`, `replay` and `diff`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rollout_cli
from rollout_cli.cli.options import Folder, JsonFlag, flag, folder_argument, shown
from rollout_cli.cli.output import counted, first_of, print_message, show
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.cores import use_one_thread
from rollout_cli.errors import UsageError, VerificationError
from rollout_cli.keywords import Record
from rollout_cli.sources.untrusted import printable, shell_word

if TYPE_CHECKING:
    from rollout_cli.dataset.reader import Dataset
    from rollout_cli.run.compare import Difference
    from rollout_cli.run.replay import Replayed

EnvKwargsFlag = Annotated[
    list[str] | None,
    flag(
        "--env-kwargs",
        metavar="KEY=VALUE",
        help="Secret environment argument; repeatable.",
    ),
]

TrustFlag = Annotated[bool, flag("--trust", help="Also run arbitrary code that the dataset names.")]


def verify(
    folder: Folder,
    *,
    quick: Annotated[bool, shown("--quick", help="Check metadata and footers only.")] = False,
    quiet: Annotated[bool, shown("--quiet", "-q", help="Print faults only.")] = False,
    json: JsonFlag = False,
) -> None:
    """Check a dataset's files, checksums, episodes, steps and totals."""
    from rollout_cli.dataset.verify import verify_dataset  # noqa: PLC0415 - imports pyarrow

    report = verify_dataset(folder, quick=quick)
    if report.faults:
        raise VerificationError(
            f"{report.path} is not a valid dataset: {counted(len(report.faults), 'fault')}",
            code="dataset-invalid",
            hint=f"keep the valid part with: rollout repair {shell_word(report.path)}",
            details="\n".join(first_of(report.faults)),
            report=report.document(),
        )
    facts = report.document()
    verified = "metadata and footers" if report.quick else "everything"
    if facts["status"] == "collecting":  # The run is not finished, or was killed.
        verified += " so far"
    rows = {
        "dataset": report.path,
        "verified": verified,
        "status": facts["status"],
        "episodes": f"{facts['episodes']:,}",
        "steps": f"{facts['steps']:,}",
        "files": f"{facts['files']:,}",
        "notes": f"{facts['n_notes']:,}",
    }
    show(facts, rows, as_json=json, quiet=quiet)
    if not (json or quiet):
        for line in first_of(report.notes):
            print_message(f"note: {printable(line)}")


def repair(
    folder: Folder,
    *,
    dry_run: Annotated[bool, shown("--dry-run", help="Print the repair without changing files.")] = False,
    json: JsonFlag = False,
) -> None:
    """Keep a dataset's valid part; move invalid files to another folder."""
    from rollout_cli.dataset.repair import repair_dataset  # noqa: PLC0415 - imports pyarrow

    report = repair_dataset(folder, dry_run=dry_run)
    outcome = "done"
    if not report.changed:
        outcome = "nothing to do"
    elif dry_run:
        outcome = "not done (--dry-run)"
    rows = {
        "dataset": report.path,
        "repair": outcome,
        "status": report.status,
        "episodes": f"{report.episodes:,} kept, {report.dropped_episodes:,} dropped",
        "steps": f"{report.steps:,}",
    }
    if report.aside is not None:
        rows["moved"] = f"{counted(len(report.moved), 'file')} to {report.aside}"
    show(report.document() | {"dry_run": dry_run}, rows, as_json=json)


def replay(
    folder: Folder,
    *,
    episode: Annotated[int | None, flag("--episode", metavar="ID", help="Replay one episode.", min=0)] = None,
    episodes: Annotated[str | None, flag("--episodes", metavar="A:B", help="Replay ids A to B-1.")] = None,
    all_: Annotated[bool, flag("--all", help="Replay every episode.")] = False,
    policy: Annotated[
        str | None, flag("--policy", "-p", metavar="SPEC", help="New location of the recorded policy.")
    ] = None,
    policy_kwargs: Annotated[
        list[str] | None,
        flag("--policy-kwargs", metavar="KEY=VALUE", help="New location of a policy argument's file."),
    ] = None,
    env_kwargs: EnvKwargsFlag = None,
    trust: TrustFlag = False,
    quiet: Annotated[bool, shown("--quiet", "-q", help="Print differences only.")] = False,
    json: JsonFlag = False,
) -> None:
    """Rerun episodes with the recorded policy and environment; compare bit by bit."""
    use_one_thread()
    from rollout_cli.options.config import OPTIONS  # noqa: PLC0415 - imports pydantic
    from rollout_cli.run.replay import replay as run_again  # noqa: PLC0415 - imports numpy and pyarrow

    ids = _episode_ids(episode, episodes, all_=all_)
    env_arguments = OPTIONS["env_kwargs"].read(env_kwargs or [], "--env-kwargs", text=True)
    policy_arguments = OPTIONS["policy_kwargs"].read(policy_kwargs or [], "--policy-kwargs", text=True)
    dataset = rollout_cli.load(folder)
    places = places_of(dataset, folder, ids)
    with user_output_on_stderr():
        replayed, notices = run_again(
            dataset,
            places,
            policy=policy,
            trust=trust,
            env_kwargs=env_arguments,
            policy_kwargs=policy_arguments,
        )
    if ids is not None and len(places) < len(ids):
        notices = [f"the dataset has {len(places):,} of the {len(ids):,} requested episodes", *notices]
    if not quiet:
        for notice in notices:
            print_message(f"notice: {printable(notice)}")
    different = [(rerun, rerun.difference) for rerun in replayed if rerun.difference]
    document = {
        "path": str(folder),
        "replayed": len(replayed),
        "identical": len(replayed) - len(different),
        "different": [{**rerun.facts, "difference": asdict(difference)} for rerun, difference in different],
        "notices": notices,
    }
    if different:
        raise _difference_error(folder, different, document)
    rows: dict[str, object] = {"dataset": folder}
    if len(replayed) == 1:
        rows["episode"] = _title(replayed[0])
    else:
        rows["episodes"] = f"{len(replayed):,}"
    show(document, rows | {"replayed": "identical"}, as_json=json, quiet=quiet)


def _episode_ids(episode: int | None, episodes: str | None, *, all_: bool) -> range | None:
    """Return the requested episode ids; None for all episodes."""
    from rollout_cli.options.config import OPTIONS  # noqa: PLC0415 - as above

    choices = [episode is not None, episodes is not None, all_]
    if choices.count(True) != 1:
        raise UsageError(
            f"expected one of --episode, --episodes and --all, got {choices.count(True)}",
            code="episodes-option",
            hint="pass one of: --episode ID, {episodes=A:B}, --all",
        )
    if episodes is not None:
        return range(*OPTIONS["episodes"].read(episodes, "--episodes", text=True))
    return None if episode is None else range(episode, episode + 1)


def places_of(dataset: Dataset, folder: Path, requested: range | None) -> list[int]:
    """Return the places in the dataset of the episodes with these ids; of all episodes for None.

    Raises:
        UsageError: If the dataset has no such episode.
    """
    ids = dataset.episodes["episode_id"].to_pylist()
    places = [at for at, episode_id in enumerate(ids) if requested is None or episode_id in requested]
    if not places:
        hint = f"pass an id from {min(ids)} to {max(ids)}" if ids else "pass a dataset with episodes"
        wanted = (
            "episode" if requested is None else f"episode with an id in {requested.start}:{requested.stop}"
        )
        raise UsageError(f"{folder} has no {wanted}", code="episode-missing", hint=hint)
    return places


def _difference_error(
    folder: Path, different: Sequence[tuple[Replayed, Difference]], document: Record
) -> VerificationError:
    """Return the error for replayed episodes that differ: it states the first difference and lists all."""
    from rollout_cli.run.compare import advice  # noqa: PLC0415 - as above

    first, difference = different[0]
    episode_id = first.facts["episode_id"]
    subject = f"episode {episode_id} of {folder}"
    if document["replayed"] > 1:
        subject = f"{len(different):,} of {document['replayed']:,} episodes differ; the first, {subject},"
    lines = [f"episode {_title(rerun)}: {changed}" for rerun, changed in different]
    return VerificationError(
        f"{subject} differs when replayed: {difference}",
        code="data-not-repeated",
        hint="; ".join(document["notices"]) or advice(difference),
        details="\n".join(first_of(lines)),
        report=document,
    )


def _title(rerun: Replayed) -> str:
    facts = rerun.facts
    steps = counted(facts["steps"], "step")
    return f"{facts['episode_id']} (number {facts['episode_number']}, seed {facts['seed']}, {steps})"


def diff(
    folder: Folder,
    other: Annotated[Path, folder_argument("OTHER", "Dataset to compare with.")],
    *,
    quiet: Annotated[bool, shown("--quiet", "-q", help="Print a difference only.")] = False,
    json: JsonFlag = False,
) -> None:
    """Compare two datasets bit by bit; exit with 6 if they differ."""
    from rollout_cli.run.compare import diff as compare  # noqa: PLC0415 - imports numpy and pyarrow

    first = rollout_cli.load(folder)
    first_place = compare(first, rollout_cli.load(other))
    document = {"path": str(folder), "other": str(other), "identical": first_place is None}
    if first_place is not None:
        episode, difference = first_place
        place = difference.field if episode is None else f"{difference.place} of episode {episode}"
        ours, theirs = difference.values
        raise VerificationError(
            f"{folder} and {other} differ first in {place}: {ours} and {theirs}",
            code="datasets-differ",
            report={**document, "episode": episode, "difference": asdict(difference)},
        )
    rows = {"dataset": folder, "other": other, "episodes": f"{len(first):,}", "compared": "identical"}
    show({**document, "episodes": len(first)}, rows, as_json=json, quiet=quiet)
