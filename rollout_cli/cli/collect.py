"""`rollout collect` and `rollout exact`: they differ in the options that say how much."""

from __future__ import annotations

import faulthandler
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from rollout_cli.cli.output import counted, print_json, print_message, print_rows, print_text
from rollout_cli.cli.streams import MessageStream, user_output_on_stderr
from rollout_cli.loading import printable

if TYPE_CHECKING:
    from rollout_cli.config import CollectConfig, CommandName, Values
    from rollout_cli.run.collect import CollectResult


def collect(**given: Any) -> None:
    """Run a policy in an environment for N steps or N episodes, and write a dataset.

    Episodes are whole, and those kept do not depend on how many workers there are or which of them is fastest.
    """
    _run("collect", **given)


def exact(**given: Any) -> None:
    """Collect exactly N episodes from each worker, in worker order, and write a dataset."""
    _run("exact", **given)


def _run(
    command: CommandName,
    *,
    flags: dict[str, object],
    config: Path | None,
    dry_run: bool,
    progress: bool | None,
    quiet: bool,
    verbose: bool,
    json: bool,
) -> None:
    from rollout_cli.config import config_to_dict, resolve  # noqa: PLC0415 - it loads pydantic

    del verbose  # It concerns errors, which are shown where all commands end.
    wanted = resolve(command, flags=flags, environ=os.environ, file=config, recorded=_recorded)
    if dry_run and json:
        print_json(config_to_dict(wanted))
    elif dry_run:
        import tomli_w  # noqa: PLC0415 - for this alone

        print_text(tomli_w.dumps(config_to_dict(wanted)).rstrip("\n"))
    else:
        # With --json nothing but warnings is shown beside the document, unless progress is asked for.
        result = _collect(wanted, progress=progress, quiet=quiet or (json and not progress))
        if json:
            print_json(asdict(result))
        elif quiet:
            print_text(printable(str(result.path)))
        else:
            _show_result(result)


def _recorded(command: CommandName, given: Values) -> Values:
    from rollout_cli.run.resume import recorded_options  # noqa: PLC0415 - it loads numpy

    return recorded_options(command, given)


def _collect(config: CollectConfig, *, progress: bool | None, quiet: bool) -> CollectResult:
    if config.sampler == "multiprocessing" and config.start_method == "forkserver":
        from rollout_cli.samplers.processes.fork_server import running_server  # noqa: PLC0415 - it loads processes

        running_server("forkserver")  # It imports the workers' modules while this process imports its own.
    elif config.sampler == "local" and not faulthandler.is_enabled():
        # Where user code runs in this process, a crash of it leaves its stack on stderr: nothing else could report it.
        faulthandler.enable(file=2, all_threads=False)
    from rollout_cli.run.collect import collect as run_collect  # noqa: PLC0415 - it loads numpy and gymnasium
    from rollout_cli.run.progress import choose_progress  # noqa: PLC0415

    shown = choose_progress(cast("TextIO", MessageStream(sys.stderr)), wanted=progress, quiet=quiet, environ=os.environ)
    try:
        with user_output_on_stderr():
            return run_collect(config, progress=shown)
    finally:
        shown.finish()  # A bar that is left open would swallow the error's lines.


def _show_result(result: CollectResult) -> None:
    from rollout_cli.run.reproduce import described  # noqa: PLC0415 - as above

    pace = f"{result.steps_per_second:,.0f} steps/s with {counted(result.n_workers, 'worker')}"
    sampling = f" (sampling {result.sampling_time_s:.1f} s, {pace})" if result.sampling_time_s else ""
    print_rows(
        {
            "dataset": result.path,
            "status": result.status,
            "episodes": f"{result.episodes:,}",
            "steps": f"{result.steps:,}",
            "mean return": f"{result.mean_return:.6g}",
            "mean length": f"{result.mean_length:.6g}",
            "seed": result.seed,
            "reproducible": described(result.reproducible),
            "time": f"{result.wall_time_s:.1f} s{sampling}",
        }
    )
    here = Path.cwd()
    path = result.path.relative_to(here) if result.path.is_relative_to(here) else result.path
    print_message(f"next: rollout info {shlex.quote(printable(str(path)))}")
