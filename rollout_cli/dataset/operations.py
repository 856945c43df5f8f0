"""Operations that make new datasets from the episodes of others, which stay unchanged.

Each operation checks everything before it writes. The output replaces an older dataset only when complete.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, TypedDict, Unpack

import numpy as np

from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.folder import OutputFolder, check_folder
from rollout_cli.dataset.layout import AnyPath
from rollout_cli.dataset.reader import Dataset, Episode, require_valid
from rollout_cli.dataset.rewrite import Derivation, Edited, derivation, rewrite
from rollout_cli.dataset.rows import Rows
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.episodes.chunk import Chunk, unmatched_patterns
from rollout_cli.episodes.infos import INFO_GROUPS
from rollout_cli.episodes.plain import Fields
from rollout_cli.errors import UsageError, UserCodeError
from rollout_cli.progress import Progress
from rollout_cli.sources.loading import Source, did_you_mean, is_module_attribute, name_of, reporting
from rollout_cli.sources.remote import folder_of

Reward = Callable[[Episode], Any]
"""Returns the rewards of an episode, (T,)."""


class Writing(TypedDict, total=False):
    """The options of writing that all operations share.

    Attributes:
        overwrite: True to replace a dataset in the output folder, once the new one is complete.
        dry_run: True to check everything without writing.
        progress: Receives the number of written episodes; None for no progress report.
    """

    overwrite: bool
    dry_run: bool
    progress: Progress | None


def filter_dataset(
    dataset: Dataset, output: AnyPath, keep: str, *, verify: bool = True, **writing: Unpack[Writing]
) -> Edited:
    """Write the episodes that match the expression `keep`, such as `return >= 400`.

    Args:
        dataset: The episodes.
        output: The folder of the new dataset.
        keep: The expression; docs/editing.md describes the language.
        verify: True to check the files with the dataset's steps first, as `rollout verify` does.
        **writing: `overwrite=True` replaces a dataset in `output`, `dry_run=True` checks without writing, and
            `progress` receives the number of written episodes.

    Returns:
        The new dataset's `path`, `episodes`, `steps` and number of `sources`; `written` is False after a dry
        run.

    Raises:
        UsageError: If the expression is invalid, or matches no episode.
        DatasetExistsError: If the content of the folder `output` may not be replaced.
        StorageError: If a disk operation fails, or the dataset is damaged.

    Example:
        >>> rollout_cli.filter_dataset(rollout_cli.load("data"), "long", "length >= 15").steps
        55
    """
    if verify:
        require_valid(dataset)
    chosen = dataset.filter(keep)
    if not len(chosen):
        raise UsageError(
            f"no episode of {dataset.path} matches {keep!r}",
            code="no-episode-matches",
            hint="list the columns with: rollout info",
        )
    planned = derivation([chosen], output, operation="filter", options={"keep": keep})
    return write_derivations([planned], **writing)[0]


def split_dataset(
    dataset: Dataset,
    output: AnyPath,
    parts: Mapping[str, float],
    *,
    seed: int = 0,
    verify: bool = True,
    **writing: Unpack[Writing],
) -> dict[str, Edited]:
    """Assign each episode to one of several datasets, which are written to `output/NAME`.

    An episode's part depends on the seed and on the set of episodes, not on their order. Other errors are those
    of `filter_dataset`.

    Args:
        dataset: The episodes.
        output: The folder that will contain the parts.
        parts: The share of episodes of each part, by name; the shares sum to 1.
        seed: The seed of the random assignment.
        verify: As for `filter_dataset`.
        **writing: As for `filter_dataset`.

    Raises:
        UsageError: If the shares do not sum to 1, or a part would have no episode.

    Example:
        >>> parts = rollout_cli.split_dataset(rollout_cli.load("data"), "parts", {"train": 0.7, "test": 0.3})
        >>> parts["train"].episodes + parts["test"].episodes
        3
    """
    if verify:
        require_valid(dataset)
    shares = np.array(list(parts.values()), float)
    folder = folder_of(output)
    is_valid = len(shares) and (shares > 0).all() and np.isclose(shares.sum(), 1)
    if not is_valid or not all(re.fullmatch(r"\w[\w.-]*", name) for name in parts):
        text = ",".join(f"{name}={share}" for name, share in parts.items())
        raise UsageError(
            f"cannot split a dataset into {text!r}",
            code="parts-option",
            hint="pass shares that sum to 1, and names of letters, digits, `_`, `.` and `-`, such as "
            "train=0.9,test=0.1",
        )
    rows = dataset.rows
    runs = [source["run"] for source in dataset.info["sources"]]
    names = zip(rows.column("source").tolist(), rows.column("episode_number").tolist(), strict=True)
    texts = (f"{seed} {runs[source]} {number}".encode() for source, number in names)
    drawn = [int.from_bytes(blake2b(text, digest_size=8).digest()) for text in texts]
    ranks = np.argsort(np.argsort(np.array(drawn, np.uint64)))
    edges = np.round(np.cumsum(shares / shares.sum()) * len(dataset)).astype(int)
    chosen = np.searchsorted(edges, ranks, side="right")
    selections = {name: dataset[chosen == at] for at, name in enumerate(parts)}
    for name, part in selections.items():
        if not len(part):
            raise UsageError(
                f"the part {name!r} would have none of the {len(dataset)} episodes",
                code="part-empty",
                hint="increase its share",
            )
    planned = [
        derivation(
            [part],
            folder / name,
            operation="split",
            options={"part": name, "parts": dict(parts), "seed": seed},
        )
        for name, part in selections.items()
    ]
    return dict(zip(parts, write_derivations(planned, **writing), strict=True))


def join_datasets(
    datasets: Sequence[Dataset], output: AnyPath, *, verify: bool = True, **writing: Unpack[Writing]
) -> Edited:
    """Write the concatenated episodes of datasets of one environment. Other errors: see `filter_dataset`.

    Infos whose types differ between the datasets become JSON.

    Args:
        datasets: At least two datasets or selections.
        output: The folder of the new dataset.
        verify: As for `filter_dataset`.
        **writing: As for `filter_dataset`.

    Raises:
        UsageError: If there are fewer than two datasets, their spaces differ, or two have the same episode.

    Example:
        >>> dataset = rollout_cli.load("data")
        >>> rollout_cli.join_datasets([dataset[2:], dataset[:1]], "joined").steps
        49
    """
    if len(datasets) < 2:  # noqa: PLR2004 - a join needs two
        raise UsageError(
            "expected at least two datasets to merge, found one",
            code="one-dataset",
            hint="pass two or more datasets",
        )
    for dataset in datasets if verify else ():
        require_valid(dataset)
    return write_derivations([derivation(datasets, output, operation="merge", options={})], **writing)[0]


def convert_dataset(
    dataset: Dataset,
    output: AnyPath,
    *,
    next_observation: bool | None = None,
    drop_info: Sequence[str] = (),
    segment_bytes: int | None = None,
    segment_rows: int | None = None,
    group_rows: int | None = None,
    verify: bool = True,
    **writing: Unpack[Writing],
) -> Edited:
    """Write all episodes in another form; None keeps a property of the dataset. Other errors: `filter_dataset`.

    Args:
        dataset: The episodes.
        output: The folder of the new dataset.
        next_observation: True to store each step's next observation, in separate columns.
        drop_info: Infos to leave out: dotted paths, such as `episode.t`, or glob patterns.
        segment_bytes: The nominal bytes of a data file, at most 1 GiB.
        segment_rows: The maximum number of rows of a data file.
        group_rows: The maximum number of rows of a row group, the unit of reading.
        verify: As for `filter_dataset`.
        **writing: As for `filter_dataset`.

    Raises:
        UsageError: If no option is set, a size is out of range, or an info does not exist.

    Example:
        >>> rollout_cli.convert_dataset(rollout_cli.load("data"), "wide", next_observation=True).written
        True
    """
    if verify:
        require_valid(dataset)
    changes = {
        "segment_bytes": segment_bytes,
        "segment_rows": segment_rows,
        "group_rows": group_rows,
        "next_observation": next_observation,
        "drop_info": list(drop_info) or None,
    }
    options: Fields = {name: value for name, value in changes.items() if value is not None}
    limits = SizeLimits(**{name: options.get(name, size) for name, size in dataset.info["limits"].items()})
    for pattern in unmatched_patterns(drop_info, [*dataset.rows.table.schema.infos]):
        blocks = ((group, block) for block in dataset.rows.blocks() for group in INFO_GROUPS)
        without_column = {f"{group}.{key}" for group, block in blocks for key in block.info_keys(group)}
        if unmatched_patterns([pattern], without_column):
            raise UsageError(
                f"unknown info {pattern!r}", code="info-unknown", hint="list the infos with: rollout info"
            )
    if not options:
        raise UsageError(
            f"no option changes {dataset.path}",
            code="nothing-to-change",
            hint="pass {next_observation=True}, {drop_info=KEY} or {segment_bytes=N}",
        )
    planned = derivation(
        [dataset],
        output,
        operation="convert",
        options=options,
        next_observation=next_observation,
        limits=limits,
        drop_info=drop_info,
    )
    return write_derivations([planned], **writing)[0]


def relabel_dataset(
    dataset: Dataset,
    output: AnyPath,
    reward: str | Reward,
    *,
    verify: bool = True,
    **writing: Unpack[Writing],
) -> Edited:
    """Write all episodes with new rewards. Other errors: see `filter_dataset`.

    Args:
        dataset: The episodes.
        output: The folder of the new dataset.
        reward: A function, or its `module:attr`, that returns the rewards of an `Episode`, (T,).
        verify: As for `filter_dataset`.
        **writing: As for `filter_dataset`.

    Raises:
        UserCodeError: If the function does not exist, raises an error, or returns invalid rewards.

    Example:
        >>> def half(episode):
        ...     return episode.rewards / 2
        >>> relabeled = rollout_cli.relabel_dataset(rollout_cli.load("data"), "relabeled", half)
        >>> rollout_cli.load("relabeled")[0].total_reward
        18.5
    """
    if verify:
        require_valid(dataset)
    if isinstance(reward, str):
        if not is_module_attribute(reward):
            raise UsageError(
                f"{reward!r} is not the name of a function",
                code="function-spec",
                hint=did_you_mean(reward) or "pass module:function, such as mine:reward",
            )
        source = Source.find(reward, UserCodeError)
        name = reward
        function = source.load(UserCodeError)
        sha256 = source.sha256
        if not callable(function):
            raise UserCodeError(
                f"{reward} is of type {type(function).__name__}, expected a function",
                code="function-type",
                hint="pass a function that takes an episode and returns its rewards",
            )
    else:
        name = f"{reward.__module__}:{name_of(reward)}"
        function = reward
        sha256 = None

    def relabel(block: Rows, chunk: Chunk) -> Chunk:
        rewards = [_rewards(name, function, episode) for episode in Dataset(block)]
        return replace(chunk, rewards=np.concatenate(rewards))

    # One call before anything is written.
    first = _rewards(name, function, dataset[0]).tobytes() if len(dataset) else b""
    planned = derivation(
        [dataset],
        output,
        operation="relabel",
        options={"reward": name, "sha256": sha256},
        change=relabel,
        changed=first,
    )
    return write_derivations([planned], **writing)[0]


def _rewards(name: str, function: Reward, episode: Episode) -> Array:
    """Return the rewards of an episode from the user's function, float64 (T,)."""
    with reporting(UserCodeError, f"{name} failed for episode {episode.id}", code="reward-function"):
        returned = function(episode)
        rewards = np.asarray(returned)
    if np.ma.is_masked(returned):  # E.g. computed from an info that some steps lack; masked values are zeros.
        masked = np.flatnonzero(np.ma.getmaskarray(returned))
        raise UserCodeError(
            f"{name} returned a masked value for step {masked[0]} of episode {episode.id}, expected a number",
            code="reward-masked",
            hint="fill the masked values, e.g. with rewards.filled(0.0)",
        )
    if rewards.shape != (len(episode),) or rewards.dtype.kind not in "biuf":
        raise UserCodeError(
            f"{name} returned an array of shape {rewards.shape} and dtype {rewards.dtype} "
            f"for episode {episode.id}, expected one number for each of {len(episode)} steps",
            code="reward-shape",
            hint=f"return an array of shape ({len(episode)},)",
        )
    if len(steps := np.flatnonzero(np.isnan(rewards))):
        raise UserCodeError(
            f"{name} returned nan for step {steps[0]} of episode {episode.id}, expected a number",
            code="reward-nan",
            hint="replace nan, e.g. with numpy.nan_to_num",
        )
    return rewards.astype(np.float64)


def write_derivations(
    derivations: Sequence[Derivation],
    *,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> list[Edited]:
    """Write the datasets sequentially, after checking all output folders; the arguments are `Writing`'s."""
    for planned in derivations:
        check_folder(planned.result.path, overwrite=overwrite)
    for planned in () if dry_run else derivations:
        # An unreachable `replace_from` keeps the old dataset until the new one is complete.
        folder = OutputFolder(planned.result.path, overwrite=overwrite, replace_from=[sys.maxsize])
        shown = progress or Progress()
        rewrite(planned.chunks, folder, planned.settings, n_steps=planned.result.steps, progress=shown)
    return [replace(planned.result, written=not dry_run) for planned in derivations]
