"""Options of `CollectConfig`: who runs it: workers, processes and seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rollout_cli.config.kinds import CLASS_NAME, Choice, Integer, ShapedText
from rollout_cli.config.options import COUNT, HOW, KEYWORDS, Option
from rollout_cli.cores import usable_cores


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Who runs it: workers, processes and seeds."""

    workers: Annotated[
        int, Option(COUNT, HOW, "How many workers step environments.", short="-w", default="the usable cores")
    ] = field(default_factory=usable_cores)
    envs_per_worker: Annotated[
        int,
        Option(
            COUNT,
            HOW,
            "Step N copies of the environment in each worker, with one batched policy call a step.",
            short="-m",
            default="1",
        ),
    ] = 1
    vectorization: Annotated[
        Literal["sync", "native"],
        Option(
            Choice("NAME", "'sync' or 'native'", choices=("sync", "native")),
            HOW,
            "Step copies of the environment one by one (sync), or its own vector environment (native).",
        ),
    ] = "sync"
    sampler: Annotated[
        Literal["multiprocessing", "local"],
        Option(
            Choice("NAME", "'multiprocessing' or 'local'", choices=("multiprocessing", "local")),
            HOW,
            "Run the workers as processes (multiprocessing) or inside this one (local).",
        ),
    ] = "multiprocessing"
    start_method: Annotated[
        Literal["forkserver", "spawn", "fork"],
        Option(
            Choice("NAME", "'forkserver', 'spawn' or 'fork'", choices=("forkserver", "spawn", "fork")),
            HOW,
            "How worker processes are started: forkserver, spawn or fork.",
        ),
    ] = "forkserver"
    worker_class: Annotated[
        str | None,
        Option(
            ShapedText("MODULE:CLASS", "a class as package.module:Class", CLASS_NAME),
            HOW,
            "A worker class of your own.",
            default="the built-in worker",
        ),
    ] = None
    worker_args: Annotated[
        Mapping[str, Any],
        Option(
            KEYWORDS,
            HOW,
            "A keyword argument for the worker class, the value a TOML literal or else text; may be given again.",
        ),
    ] = field(default_factory=dict)
    seed: Annotated[
        int | None,
        Option(
            Integer("N", "an integer from 0 to 2^63 - 1"),
            HOW,
            "The root seed, from which every episode's seeds follow.",
            default="drawn, printed and recorded",
        ),
    ] = None
