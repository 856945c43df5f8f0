"""`rollout collect` and `rollout exact`: they differ in the options that say how much."""

from __future__ import annotations

import faulthandler
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_cli.cli.options import ConfigFlag, JsonFlag, QuietFlag, shown
from rollout_cli.cli.output import counted, print_json, print_message, print_text, show, showing_progress
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.loading import printable

if TYPE_CHECKING:
    from rollout_cli.config import CollectConfig, CommandName, Values
    from rollout_cli.run.collect import CollectResult


_DryRunFlag = Annotated[bool, shown("--dry-run", text="Print the configuration and run nothing.")]
_ProgressFlag = Annotated[
    bool | None,
    shown(
        "--progress/--no-progress",
        text="Show progress: a bar on a terminal, lines elsewhere. (default: shown, but not with --json)",
    ),
]


def collect(
    context: typer.Context,
    *,
    config: ConfigFlag = None,
    dry_run: _DryRunFlag = False,
    progress: _ProgressFlag = None,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Run a policy in an environment for N steps, N episodes or some time, and write a dataset.

    Episodes are whole, and those kept do not depend on how many workers there are or which of them is
    fastest.
    """
    _run("collect", context.obj, config, dry_run=dry_run, progress=progress, quiet=quiet, as_json=json)


def exact(
    context: typer.Context,
    *,
    config: ConfigFlag = None,
    dry_run: _DryRunFlag = False,
    progress: _ProgressFlag = None,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Collect exactly N episodes from each worker, in worker order, and write a dataset."""
    _run("exact", context.obj, config, dry_run=dry_run, progress=progress, quiet=quiet, as_json=json)


def _run(
    command: CommandName,
    flags: Mapping[str, object],
    file: Path | None,
    *,
    dry_run: bool,
    progress: bool | None,
    quiet: bool,
    as_json: bool,
) -> None:
    from rollout_cli.config import config_to_dict  # noqa: PLC0415 - it loads pydantic
    from rollout_cli.option_sources import resolve  # noqa: PLC0415 - as above

    config = resolve(command, flags=flags, environ=os.environ, file=file, recorded=_recorded)
    if not dry_run:
        # With --json nothing but warnings is shown beside the document, unless progress is asked for.
        result = _collect(config, progress=progress, quiet=quiet or (as_json and not progress))
        show(asdict(result), _rows(result), as_json=as_json, quiet=quiet, path=result.path)
        if not as_json and not quiet:
            here = Path.cwd()
            path = result.path.relative_to(here) if result.path.is_relative_to(here) else result.path
            print_message(f"next: rollout info {shlex.quote(printable(str(path)))}")
        return
    if config.env is None:
        from rollout_cli.run.request import completed  # noqa: PLC0415 - it loads numpy and gymnasium

        with showing_progress(wanted=False, quiet=quiet) as receiver:
            config = completed(config, receiver)
    if as_json:
        print_json(config_to_dict(config))
    else:
        import tomli_w  # noqa: PLC0415 - for this alone

        print_text(tomli_w.dumps(config_to_dict(config)).rstrip("\n"))


def _recorded(command: CommandName, options: Values) -> Values:
    from rollout_cli.run.resume import recorded_options  # noqa: PLC0415 - it loads numpy

    return recorded_options(command, options)


def _collect(config: CollectConfig, *, progress: bool | None, quiet: bool) -> CollectResult:
    if config.sampler == "multiprocessing" and config.start_method == "forkserver":
        # It loads the package of processes.
        from rollout_cli.samplers.processes.fork_server import running_server  # noqa: PLC0415

        running_server("forkserver")  # It imports the workers' modules while this process imports its own.
    elif config.sampler == "local" and not faulthandler.is_enabled():
        # Where user code runs in this process, a crash of it leaves its stack on stderr: nothing else could
        # report it.
        faulthandler.enable(file=2, all_threads=False)
    from rollout_cli.run.collect import collect as run_collect  # noqa: PLC0415 - it loads numpy and gymnasium

    with showing_progress(wanted=progress, quiet=quiet) as receiver, user_output_on_stderr():
        return run_collect(config, progress=receiver)


def _rows(result: CollectResult) -> dict[str, object]:
    from rollout_cli.dataset.layout import acceptance_text, described  # noqa: PLC0415 - as above

    pace = f"{result.steps_per_second:,.0f} steps/s with {counted(result.n_workers, 'worker')}"
    sampling = f" (sampling {result.sampling_time_s:.1f} s, {pace})" if result.sampling_time_s else ""
    return {
        "dataset": result.path,
        "status": f"{result.status} (stopped by --{result.stopped_by.replace('_', '-')})",
        "episodes": f"{result.episodes:,}",
        **({"kept": acceptance_text(result.acceptance)} if result.acceptance else {}),
        "steps": f"{result.steps:,}",
        "mean return": f"{result.mean_return:.6g}",
        "mean length": f"{result.mean_length:.6g}",
        "seed": result.seed,
        "reproducible": described(result.reproducible),
        "time": f"{result.wall_time_s:.1f} s{sampling}",
    }
