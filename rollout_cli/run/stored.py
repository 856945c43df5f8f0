"""The stored episode: before a run extends a dataset, it runs an episode of it again and compares both.

This finds what no pin names: a policy or environment that reads a changed file by code in C, or a changed
machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.rows import rows_of
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.progress import Progress
from rollout_cli.run import reproduce
from rollout_cli.run.compare import Difference, first_difference
from rollout_cli.run.provenance import Surroundings, changed_versions, run_record
from rollout_cli.run.resume import ResumeState

_COMPARED = ("observation", "last_observation", "action", "reward", "terminated", "truncated", "length")
"""Not the infos: one that holds the time differs in each run."""


def check_stored(
    state: ResumeState,
    rebuild: reproduce.Rebuild,
    sources: Mapping[str, Any],
    surrounding: Surroundings,
    progress: Progress,
) -> reproduce.Verdict | None:
    """Run a partition's first stored episode again in a new worker, and check files and spaces on the way.

    It runs as many steps as the check at the end of a run may take. Where it differs, it runs once more: two
    new runs that differ from each other say that the episode cannot be reproduced. Two equal ones say that
    something has changed: this refuses, but where all pins are equal and the machine or the versions are
    others, it warns.

    Returns:
        The verdict on the whole dataset where it is known by this; None where nothing was found.

    Raises:
        UsageError: If what the dataset was begun with has changed, and the user does not accept that.
    """
    stored = _stored_beginning(state)
    if stored is None:
        return None
    first, limit = stored
    number = int(first.numbers[0])
    with rebuild(limit) as anew:
        spec = anew.wait_until_started()
        assert anew.report is not None
        state.check(run_record(sources, anew.report, surrounding), spec, progress, is_whole=False)
        if (known := reproduce.known_beforehand(anew.report)) is not None:
            return known
        again = reproduce.run_again(anew, number)
        record = run_record(sources, anew.report, surrounding)
        state.check(record, spec, progress, is_whole=True)
    difference = _difference(spec, first, again)
    if difference is None or state.accepted:
        return None
    with rebuild(limit) as anew:
        once_more = _difference(spec, again, reproduce.run_again(anew, number))
    was, now = difference.values
    text = f"episode {number}: {difference.place} was {was}, is {now}"
    if once_more is not None:
        return reproduce.Verdict("no", f"{text}, and otherwise once more", difference=difference)
    if changed_versions(state.source, record):
        progress.warn(f"with other versions, or on another machine, the stored {text}")
        state.accepted.append(f"with other versions, or on another machine, {text}")
    else:
        state.accept(f"the policy or the environment has changed: the stored {text}")
    return None


def _stored_beginning(state: ResumeState) -> tuple[Chunk, int | None] | None:
    """Return a partition's first stored episode behind all accepted changes, as far as it is run again."""
    assert state.committed is not None
    changes = state.source.get("changes", [])
    firsts = changes[-1]["from_numbers"] if changes else state.info["first_numbers"]
    root = state.config.output
    # Without a damaged segment at the end, which is moved aside when the dataset is extended.
    files = {written.segment.file: written.segment.paths(root)[1] for written in state.committed.segments}
    dataset = Dataset(rows_of(root, state.info, files))
    numbers, lengths, times = (
        dataset.episodes[name].to_numpy() for name in ("episode_number", "length", "wall_time_s")
    )
    for first, partition in zip(firsts, state.committed.partitions, strict=True):
        places = ((numbers >= first) & (numbers < partition.next_number)).nonzero()[0]
        if len(places):
            place = int(places[0])
            most = reproduce.MOST_SECONDS * lengths[place] / max(times[place], 1e-9)
            limit = None if most > lengths[place] else max(1, int(most))
            if limit is None:
                return dataset[place].beginning(int(lengths[place])), None
            return dataset[place].beginning(limit + 1).truncated_at(limit), limit
    return None


def _difference(spec: Any, first: Chunk, again: Chunk) -> Difference | None:
    return first_difference(
        *(EpisodeBatch.from_chunks(spec, [chunk]) for chunk in (first, again)), only=_COMPARED
    )
