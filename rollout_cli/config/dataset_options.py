"""Options of `CollectConfig`: where episodes go, and what of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rollout_cli.config.kinds import Choice, Folder, Seconds, Texts
from rollout_cli.config.options import COUNT, DATASET, SWITCH, Option

UNSET_OUTPUT = Path()
SHARD_BYTES = 384 << 20


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Where episodes go, and what of them."""

    output: Annotated[
        Path,
        Option(
            Folder("DIR", "the path of a folder"),
            DATASET,
            "The dataset's folder.",
            short="-o",
            default="rollouts/<env>-<UTC time>",
        ),
    ] = UNSET_OUTPUT
    overwrite: Annotated[bool, Option(SWITCH, DATASET, "Replace the dataset that the folder holds.")] = False
    resume: Annotated[
        bool, Option(SWITCH, DATASET, "Go on with the dataset that the folder holds; it knows the options not given.")
    ] = False
    order: Annotated[
        Literal["index", "arrival"],
        Option(
            Choice("NAME", "'index' or 'arrival'", choices=("index", "arrival")),
            DATASET,
            "Keep episodes in number order (index), or as they finish (arrival), which favours short ones.",
            commands=("collect",),
        ),
    ] = "index"
    shard_bytes: Annotated[
        int,
        Option(
            COUNT,
            DATASET,
            "Begin another data file before the episode that would take one past N bytes, counted before encoding.",
            default="384 MiB",
        ),
    ] = SHARD_BYTES
    next_observation: Annotated[
        bool, Option(SWITCH, DATASET, "Also store each step's next observation, which the following row holds anyway.")
    ] = False
    flush_every: Annotated[
        float | None,
        Option(
            Seconds("SECONDS", "a number of seconds of at least 0"),
            DATASET,
            "Commit what is there every so often, though a file is not full: what a kill costs at most.",
            default="30, and no more than 3 % of the time",
        ),
    ] = None
    drop_info: Annotated[
        tuple[str, ...],
        Option(
            Texts("KEY", "names of infos"),
            DATASET,
            "Do not record an info, given by its dotted path, such as episode.t, or a glob of it; may be given again.",
        ),
    ] = ()
    require_reproducible: Annotated[
        bool,
        Option(SWITCH, DATASET, "End with an error unless episodes come out the same when they are run again."),
    ] = False
