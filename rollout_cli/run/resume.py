"""Resuming: the committed episodes of a dataset, whether a run may continue it, and the remaining plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rollout_cli.dataset.folder import current_root, has_no_dataset, recover_replaced, remove_dataset
from rollout_cli.dataset.layout import collected_source, read_info
from rollout_cli.dataset.record import ChangeRecord, DatasetInfo, RunFacts
from rollout_cli.dataset.run_changes import (
    Change,
    ChangeKind,
    Effect,
    compare_files,
    compare_runs,
    compare_spaces,
    joined_files,
    joined_messages,
    of_effect,
)
from rollout_cli.dataset.store import file_store
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import ConfigError, UsageError
from rollout_cli.keywords import Record
from rollout_cli.options.config import DECISIVE, ENDS, CollectConfig, Values
from rollout_cli.options.option import CommandName
from rollout_cli.progress import Progress
from rollout_cli.run.provenance import recorded_values
from rollout_cli.samplers.plan import Plan, remaining
from rollout_cli.sources.pins import FileRecord

if TYPE_CHECKING:
    from rollout_cli.dataset.committed import Committed, CommittedPartition

_UNRECORDED = "the run that skipped it was killed before it could record why"


def recorded_options(command: CommandName, options: Record) -> Values:
    """Return the recorded options of the dataset to resume; all other option sources take precedence.

    Raises:
        RolloutError: If `options` lack a dataset, it does not exist, or another command made it.
    """
    if "output" not in options:
        raise ConfigError(
            "--resume needs --output",
            code="resume-without-dataset",
            hint="pass the folder of the dataset to resume: {output=DIR}",
        )
    if not ENDS.isdisjoint(options) and has_no_dataset(options["output"]):
        return {}
    values = recorded_values(collected_source(read_info(current_root(options["output"]))))
    made_by = values.pop("command")
    if made_by != command:
        raise UsageError(
            f"{options['output']} was made by `rollout {made_by}`, expected `rollout {command}`",
            code="resume-command",
            hint=f"continue it with `rollout {made_by}`",
        )
    # If another sampler is requested, drop the options that it does not take.
    sampler = options.get("sampler", values.get("sampler"))
    if sampler != "ray":
        values.pop("ray_address", None)
    if sampler == "local":
        values.pop("step_timeout", None)
        values.pop("episode_timeout", None)
    return values


@dataclass(frozen=True, slots=True)
class ResumeState:
    """The start of a run: the committed episodes of its dataset, if any, and the remaining plan.

    Attributes:
        config: The configuration, with the dataset's root seed.
        plan: The remaining plan; None if nothing is left to run.
        info: The dataset's info.json; None for a new dataset.
        committed: The committed segments; None for a new dataset.
        accepted: The changes since the dataset was started that the user accepts.
        replace_from: The next number of each partition that the new dataset must reach before it replaces the
            old one.
        before: The info.json of a dataset that is collected again from scratch, else None.
        replaced_files: The files with which the episodes of that dataset were made; empty if the user accepts
            changes.
    """

    config: CollectConfig
    plan: Plan | None
    info: DatasetInfo | None
    committed: Committed | None = None
    accepted: list[Change] = field(default_factory=list)
    replace_from: tuple[int, ...] = ()
    before: DatasetInfo | None = None
    replaced_files: Sequence[FileRecord] = ()

    @property
    def source(self) -> RunFacts:
        """The record of the run that started the dataset; empty for a new dataset."""
        return collected_source(self.info) if self.info else {}

    @property
    def is_complete(self) -> bool:
        """Whether the dataset is complete, and nothing is left to run."""
        return self.plan is None and self.info is not None and self.info["status"] == "complete"

    @property
    def totals(self) -> Record:
        """The number of committed episodes and steps, and the sum of returns."""
        return {name: getattr(self.committed, name, 0) for name in ("episodes", "steps", "return_sum")}

    @property
    def next_number(self) -> int:
        """One past the last episode of the first partition that was run."""
        return 0 if self.committed is None else _covered(self.committed)[0].next_number

    @property
    def skipped(self) -> dict[int, str]:
        """The reasons of earlier runs for skipped episodes, by episode number."""
        episodes = self.source.get("skipped", {}).get("episodes", [])
        recorded = {episode["episode_number"]: episode["reason"] for episode in episodes}
        if self.committed is None:
            return recorded
        if self.config.keep is not None:  # Gaps may be rejected episodes, so only the record counts.
            return {number: why for number, why in recorded.items() if number < self.next_number}
        # Skipped episodes after the last committed one are run again.
        return {n: recorded.get(n, _UNRECORDED) for n in chain.from_iterable(self.committed.skipped)}

    def check(self, record: RunFacts, spec: EnvSpec, progress: Progress, *, has_read_files: bool) -> None:
        """Compare this run's record and spaces with the dataset's; warn about other versions.

        Unless `has_read_files`, the record has only the files that were read at load.

        Raises:
            UsageError: If the run cannot continue the dataset.
        """
        if self.committed is None:
            self._accept_files(record)
            return
        from rollout_cli.dataset.schema import SpaceSchema  # noqa: PLC0415 - imports pyarrow

        changes = compare_runs(self.source, record, DECISIVE, has_read_files=has_read_files)
        # First, because a changed file may also change the spaces or the policy's class.
        self.accept(changes)
        spaces = compare_spaces(self.committed.info, {"spaces": SpaceSchema.of(spec).describe()})
        _refuse(self.config.output, [*spaces, *of_effect(changes, Effect.REFUSED)])
        if has_read_files:
            for notice in of_effect(changes, Effect.NOTICE):
                progress.notice(str(notice))
            if versions := of_effect(changes, Effect.WARNING):
                progress.warn(f"the dataset was started with other versions: {joined_messages(versions)}")

    def accept(self, changes: Iterable[Change]) -> None:
        """Add acceptable changes to `accepted`, if the user accepts changes.

        Raises:
            UsageError: If there are acceptable changes, and the user does not accept changes.
        """
        found = of_effect(changes, Effect.ACCEPTABLE)
        if found and not self.config.accept_changes:
            raise UsageError(
                f"cannot resume {self.config.output}: {joined_messages(found)}",
                code="resume-differs",
                hint="restore the files with which the dataset was started, or use another {output}; "
                "{accept_changes=True} continues with the changed files",
            )
        self.accepted.extend(change for change in found if change not in self.accepted)

    def _accept_files(self, record: RunFacts) -> None:
        before = self.source["files"] if self.info else self.replaced_files
        self.accept(compare_files(before, record["files"], has_read_files=False))

    @property
    def changes(self) -> list[ChangeRecord]:
        """The accepted changes for info.json, of earlier resumes and of this one."""
        before = list(self.source.get("changes", []))
        if not self.accepted or self.committed is None:
            return before
        source = self.source
        old = {
            "files": source["files"],
            "versions": source["versions"],
            "policy": source["policy"].get("sha256"),
            "env": source["env"].get("sha256"),
            "worker": source["worker"].get("sha256"),
        }
        numbers = [partition.next_number for partition in self.committed.partitions]
        what = f"{'files changed: ' if self.config.accept_changes else ''}{joined_messages(self.accepted)}"
        return [*before, {"what": what, "from_numbers": numbers, "before": old}]

    def history(self, record: RunFacts) -> Record:
        """Return the `files` of this run and of earlier runs, and the accepted `changes`, for info.json.

        Raises:
            UsageError: If a file has changed, and the user does not accept changes. The files that a worker
                reads may depend on its first episode, so the check of a stored episode may have missed some.
        """
        self._accept_files(record)
        files = joined_files(self.source.get("files", []), record["files"], self.accepted)
        return {"files": files, "changes": self.changes}


def resume_state(config: CollectConfig, plan: Plan, sources: RunFacts, progress: Progress) -> ResumeState:
    """Return the state from which a run of the complete `plan` starts; remove a dataset without any commit.

    Raises:
        UsageError: If the folder has a dataset of another run, or more episodes than the plan.
        StorageError: If the folder has no dataset, or one that cannot be read or contradicts itself.
    """
    root = config.output
    if not config.resume:
        return ResumeState(config, plan, None)
    store = file_store(root)
    recover_replaced(store, root)
    if has_no_dataset(root):
        progress.notice(f"nothing to resume in {root}: starting a new dataset")
        remove_dataset(store, root)
        return ResumeState(config, plan, None)
    from rollout_cli.dataset.committed import read_committed  # noqa: PLC0415 - imports pyarrow

    info = read_info(root)
    source = collected_source(info)
    recorded_values(source)  # Raises if the dataset does not record a run that can be resumed.
    if config.seed is None:
        config = replace(config, seed=source["root_seed"])
    this_run = cast("RunFacts", {**sources, "root_seed": config.seed})
    changes = compare_runs(source, this_run, DECISIVE)
    first = (info["first_numbers"] or [0])[0]
    shifted = (
        [Change(ChangeKind.OPTION, "the first episode", first, plan.first)] if first != plan.first else []
    )
    _refuse(root, [*of_effect(changes, Effect.REFUSED), *shifted])
    committed = read_committed(root, info)
    left = remaining(plan, _covered(committed), n_episodes=committed.episodes)
    state = ResumeState(config, left, info, committed)
    state.accept(changes)
    if state.is_complete or committed.can_resume:
        for notice in committed.notices:
            progress.warn(notice)
        return state
    progress.notice(
        f"{root} has too few steps to continue: collecting it again with the same seed, and keeping its "
        f"{committed.episodes:,} episodes until then"
    )
    replace_from = tuple(partition.next_number for partition in committed.partitions)
    files = [] if config.accept_changes else source.get("files", [])
    config = replace(config, overwrite=True, resume=False, accept_changes=False)
    return ResumeState(config, plan, None, replace_from=replace_from, before=info, replaced_files=files)


def _covered(committed: Committed) -> list[CommittedPartition]:
    """Return the committed partitions; if the run ended, include the episodes rejected after the last kept one."""
    first, *others = committed.partitions
    info = committed.info
    acceptance = collected_source(info).get("acceptance")
    # If the counts differ, files were lost, and their episodes are run again.
    if info["status"] == "complete" and acceptance and acceptance["kept"] == committed.episodes:
        first = first._replace(next_number=max(first.next_number, acceptance["next_number"]))
    return [first, *others]


def _refuse(root: Path, changes: list[Change]) -> None:
    if changes:
        raise UsageError(
            f"cannot resume {root}: {joined_messages(changes)}",
            code="resume-refused",
            hint="pass the options and files that the dataset was started with, or omit them, or pass another {output}",
        )
