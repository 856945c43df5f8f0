"""Which part of a dataset is whole: of each lane the longest prefix in which nothing is at fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout_cli.dataset.layout import info_path, read_info
from rollout_cli.dataset.shard import Place, data_path, episodes_path
from rollout_cli.dataset.verification.claims import Claims, read_claims
from rollout_cli.dataset.verification.files_check import FilesCheck
from rollout_cli.dataset.verification.folder import Folder
from rollout_cli.dataset.verification.repair_info import rebuilt_info
from rollout_cli.dataset.verification.report import Fault, Findings
from rollout_cli.dataset.verification.sequence import index_of, lanes_of
from rollout_cli.dataset.verification.verify import readable_info
from rollout_cli.errors import DatasetFormatError


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair does to the files.

    Attributes:
        kept: Places whose files stay as they are.
        cut: Places of which only the first episodes stay, and how many.
        aside: Files that are moved aside, in the order in which they are: a commit record before the rows that it
            states, and later ones first, so that what is left is a dataset at each moment.
        faults: What was found at fault.
    """

    kept: tuple[Place, ...]
    cut: dict[Place, int]
    aside: tuple[Path, ...]
    faults: tuple[Fault, ...]


def plan_repair(root: Path, claims: Claims, folder: Folder) -> RepairPlan:
    """Verify all files, and decide what stays.

    Args:
        root: The dataset's folder.
        claims: What the dataset says.
        folder: What lies in its folder.
    """
    findings = Findings(root)
    FilesCheck(root, claims, folder, findings).run()
    whole = _whole_episodes(findings.faults)
    kept: list[Place] = []
    cut: dict[Place, int] = {}
    for lane, places in lanes_of(claims, folder.places).items():
        if lane < claims.lanes:
            _keep_prefix(claims, places, folder, whole, (kept, cut))
    staying = {*kept, *cut}
    aside = [
        path(root, place)
        for place in sorted(set(folder.places) - staying, reverse=True)
        for path, present in ((episodes_path, folder.episodes), (data_path, folder.data))
        if place in present
    ]
    return RepairPlan(tuple(kept), cut, (*aside, *folder.strays), tuple(findings.faults))


def _whole_episodes(faults: Sequence[Fault]) -> dict[Place, int]:
    """Return, of each file that is at fault, how many of its episodes come before the first fault."""
    whole: dict[Place, int] = {}
    for fault in faults:
        if fault.place is not None:
            whole[fault.place] = min(fault.row, whole.get(fault.place, fault.row))
    return whole


def _keep_prefix(
    claims: Claims,
    places: Sequence[Place],
    folder: Folder,
    whole: dict[Place, int],
    out: tuple[list[Place], dict[Place, int]],
) -> None:
    kept, cut = out
    for at, place in enumerate(places):
        if index_of(claims, place) != at or place not in folder.episodes or place not in folder.data:
            return
        if place in whole:
            if whole[place]:
                cut[place] = whole[place]
            return
        kept.append(place)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a repair believes of a dataset.

    Attributes:
        claims: What it says.
        plan: What stays by that.
        rebuilt: Whether the files say so, and not info.json.
    """

    claims: Claims
    plan: RepairPlan
    rebuilt: bool


def choose_claims(root: Path, folder: Folder) -> Choice:
    """Believe info.json, unless by what the files say themselves more of them stays.

    Raises:
        DatasetFormatError: If neither can be read.
    """
    stated = _of_info(root, folder)
    if stated is not None and (stated.plan.kept or stated.plan.cut or not folder.episodes):
        return stated
    try:
        told = _of_files(root, folder)
    except DatasetFormatError:
        if stated is None:
            raise
        return stated
    return told if stated is None or told.plan.kept or told.plan.cut else stated


def refuse_what_is_none(root: Path) -> None:
    """Raise what any command does of a folder without a dataset; one that has lost its info.json alone is one."""
    if not info_path(root).exists() and not (root / "meta" / "episodes").is_dir():
        read_info(root)


def _of_info(root: Path, folder: Folder) -> Choice | None:
    if not info_path(root).exists():
        return None
    findings = Findings(root)
    info = readable_info(root, findings)
    claims = None if info is None else read_claims(root, info, findings)
    if claims is None or findings.faults:
        return None
    return Choice(claims, plan_repair(root, claims, folder), rebuilt=False)


def _of_files(root: Path, folder: Folder) -> Choice:
    info = rebuilt_info(root, folder)
    old = readable_info(root, Findings(root)) if info_path(root).exists() else None
    findings = Findings(root)
    # What else the old one tells stays, such as the policy and the versions.
    claims = read_claims(root, (old or {}) | info, findings)
    if claims is None:
        raise DatasetFormatError(f"{root} is no dataset that can be repaired: {findings.faults[0]}")
    return Choice(claims, plan_repair(root, claims, folder), rebuilt=True)
