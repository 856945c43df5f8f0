"""Resuming: what an earlier run left in a folder, whether this one may go on with it, and what is left to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollout_cli.config import CollectConfig
from rollout_cli.dataset.committed import Committed, CommittedLane, read_committed
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.layout import check_folder, is_unbegun, read_info, remove_dataset
from rollout_cli.dataset.lock import FolderLock
from rollout_cli.envs import EnvSource
from rollout_cli.errors import UsageError
from rollout_cli.fingerprint import Fingerprint, asked, differences
from rollout_cli.policies import PolicySource
from rollout_cli.progress import Progress
from rollout_cli.samplers import Episodes, EpisodesPerWorker, Plan
from rollout_cli.samplers.remaining import SettledLane, remaining


@contextmanager
def held_folder(config: CollectConfig) -> Iterator[FolderLock | None]:
    """Check what the output folder holds, and hold it if it is there.

    Raises:
        DatasetExistsError: If something is there that may not be replaced, and is not to be resumed.
        DatasetLockedError: If another run writes to it.
        StorageError: If it cannot be read or written to.
    """
    if not config.resume:
        check_folder(config.output, overwrite=config.overwrite)
    lock = FolderLock(FileStore(), config.output) if config.output.is_dir() else None
    try:
        yield lock
    finally:
        if lock is not None:
            lock.release()


@dataclass(frozen=True, slots=True)
class Earlier:
    """The part of a run that an earlier one did, and what is left of it; nothing, unless the run is resumed.

    Attributes:
        config: The configuration to go on with.
        left: What is left to be run; None where nothing is.
        info: The dataset's info.json; empty where a dataset begins.
        committed: What is committed of it; None where a dataset begins.
    """

    config: CollectConfig
    left: Plan | None
    info: Mapping[str, Any]
    committed: Committed | None = None

    @property
    def is_all(self) -> bool:
        """Return whether there is nothing to do."""
        return self.left is None and self.info["status"] == "complete"

    @property
    def episodes(self) -> int:
        """Return how many episodes there are."""
        return self.committed.episodes if self.committed is not None else 0

    @property
    def steps(self) -> int:
        """Return how many steps they have."""
        return self.committed.steps if self.committed is not None else 0

    @property
    def return_sum(self) -> float:
        """Return the sum of their returns."""
        return self.committed.return_sum if self.committed is not None else 0.0

    def go_on(self, fingerprint: Fingerprint, versions: Mapping[str, str], progress: Progress) -> None:
        """Go on with its count, once it is known that the data will be those of one run; tell what is not as it was.

        Raises:
            UsageError: If they would not.
        """
        if self.committed is None:
            return
        _refuse_other(self.info, fingerprint, self.config.output)
        before = self.info.get("versions", {})
        changed = [
            f"{name} was {before.get(name)}, is {now}" for name, now in versions.items() if before.get(name) != now
        ]
        if changed:
            progress.warn(f"the dataset was begun with other versions: {'; '.join(changed)}")
        progress.go_on_from(episodes=self.episodes, steps=self.steps, return_sum=self.return_sum)


def earlier_run(config: CollectConfig, plan: Plan, policy: PolicySource, env: EnvSource, progress: Progress) -> Earlier:
    """Find what the output folder holds of the run that `config` asks for; one that never began is cleared away.

    Args:
        config: The run's configuration.
        plan: Its plan.
        policy: Where its policy comes from.
        env: Where its environment comes from.
        progress: Who is told where nothing can be gone on with.

    Raises:
        UsageError: If it is another run's, or more is there than the plan has.
        DatasetFormatError: If it is no dataset, or its files contradict each other.
        StorageError: If it cannot be read.
    """
    root = config.output
    if not config.resume:
        return Earlier(config, plan, {})
    if is_unbegun(root):
        progress.notice(f"there is nothing to resume in {root}: a new dataset begins")
        remove_dataset(FileStore(), root, with_folder=False)
        return Earlier(config, plan, {})
    info = read_info(root)
    if config.seed is None:
        config = replace(config, seed=info["root_seed"])
    _refuse_other(info, asked(config, policy, env), root)
    if config.order == "arrival" and isinstance(plan, Episodes):
        raise UsageError("a number of episodes in the order of arrival cannot be resumed", hint="collect them anew")
    committed = read_committed(root, info)
    lanes = [_settled(lane, first) for lane, first in zip(committed.lanes, first_numbers(config, plan), strict=True)]
    earlier = Earlier(config, remaining(plan, lanes), info, committed)
    if earlier.is_all or (info["window"] == "closed" and committed.episodes):
        return earlier
    progress.notice(f"nothing in {root} can be gone on with yet: it begins anew, with the same seed")
    return Earlier(replace(config, overwrite=True, resume=False), plan, {})


def first_numbers(config: CollectConfig, plan: Plan) -> list[int]:
    """Return the first number of each lane of a whole plan."""
    if isinstance(plan, EpisodesPerWorker):
        return [worker * plan.episodes for worker in range(config.workers)]
    return [plan.first]


def _refuse_other(info: Mapping[str, Any], now: Fingerprint, root: Path) -> None:
    """Refuse to go on with data that differ from this run's; `now` is its fingerprint, or a part of it."""
    found = differences(info.get("fingerprint", {}), now)
    if found:
        raise UsageError(
            f"{root} cannot be gone on with: {'; '.join(found)}",
            hint="give these as they were (--resume takes what is not given from the dataset), or another --output",
        )


def _settled(lane: CommittedLane, first: int) -> SettledLane:
    stop = first if lane.last is None else lane.last.stop
    return SettledLane(stop, lane.steps, lane.last_length)
