"""Whether files, and lanes, follow one another without a gap."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollout_cli.dataset.shard import FILES_PER_CHUNK, Place, data_path, episodes_path, shard_place
from rollout_cli.dataset.verification.claims import Claims
from rollout_cli.dataset.verification.episode_numbers import LaneState
from rollout_cli.dataset.verification.folder import Folder
from rollout_cli.dataset.verification.report import Findings


def check_sequence(root: Path, claims: Claims, folder: Folder, findings: Findings) -> None:
    """Check that no file is missing below the last one of its lane."""
    for lane, places in lanes_of(claims, folder.places).items():
        if lane >= claims.lanes:
            for place in places:
                path = (data_path if place in folder.data else episodes_path)(root, place)
                findings.fault(path, f"it is of lane {lane}, and the dataset has {claims.lanes} lanes", place=place)
            continue
        stated = [place for place in places if place in folder.episodes]
        count = 0 if not stated else index_of(claims, stated[-1]) + 1
        for at in range(min(count, len(places) + 1)):
            place = place_of(claims, lane, at)
            if place not in folder.episodes:
                path = episodes_path(root, place)
                findings.fault(path, "it is missing, and there are later ones", place=place)
                break


def check_between_lanes(path: Path, claims: Claims, lanes: Mapping[int, LaneState], findings: Findings) -> None:
    """Check that each lane of a complete dataset begins where the one before it ends."""
    if claims.lanes == 1 or claims.status != "complete" or not all(lane.is_known for lane in lanes.values()):
        return
    following: int | None = claims.base
    for number in range(claims.lanes):
        lane = lanes.get(number)
        if lane is None:
            findings.fault(path, f"it says that the dataset is complete, but lane {number} has no episode")
            return
        if lane.first_number is not None and following is not None and lane.first_number != following:
            findings.fault(
                path,
                f"it says that the dataset is complete, but lane {number} begins with episode number "
                f"{lane.first_number}, expected {following}",
            )
        following = lane.next_number


def lanes_of(claims: Claims, places: tuple[Place, ...]) -> dict[int, list[Place]]:
    """Return the places of each lane, in order."""
    lanes: dict[int, list[Place]] = {}
    for place in places:
        lanes.setdefault(claims.lane_of(place[0]), []).append(place)
    return lanes


def place_of(claims: Claims, lane: int, at: int) -> Place:
    """Return the place of a lane's file number `at`."""
    return shard_place(claims.lanes, lane, at)


def index_of(claims: Claims, place: Place) -> int:
    """Return which file of its lane the one at `place` is."""
    return place[1] if claims.lanes > 1 else place[0] * FILES_PER_CHUNK + place[1]
