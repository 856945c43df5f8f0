"""What `collect` and `exact` have in common: all but the word for how much."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from rollout_cli.cli.options import Arguments
from rollout_cli.cli.output import counted, print_json, print_rows, print_text
from rollout_cli.cli.user_output import user_output_on_stderr
from rollout_cli.config import CollectConfig, config_to_dict, config_to_toml, resolve
from rollout_cli.config.options import CommandName
from rollout_cli.escaping import printable
from rollout_cli.progress import Progress, choose_progress

if TYPE_CHECKING:
    from rollout_cli.collect import CollectResult


def run_collection(command: CommandName, arguments: Arguments) -> None:
    """Collect as the command line, the environment variables and the file say, and print what came of it."""
    config = resolve(command, flags=arguments.flags, environ=os.environ, file=arguments.config, recorded=_recorded)
    if arguments.dry_run:
        _show_config(config, arguments)
        return
    _start_early(config)
    result = _collect(config, _progress(arguments), arguments)
    _show_result(result, arguments)


def _recorded(command: CommandName, given: dict[str, Any]) -> dict[str, Any]:
    from rollout_cli.recorded_layer import recorded_layer  # noqa: PLC0415 - it loads numpy and pyarrow

    return recorded_layer(command, given)


def _show_config(config: CollectConfig, arguments: Arguments) -> None:
    if arguments.json:
        print_json(config_to_dict(config))
    else:
        print_text(config_to_toml(config).rstrip("\n"))


def _progress(arguments: Arguments) -> Progress:
    # With --json nothing but warnings is shown beside the document, unless progress is asked for.
    quiet = arguments.quiet or (arguments.json and not arguments.progress)
    return choose_progress(sys.stderr, wanted=arguments.progress, quiet=quiet, environ=os.environ)


def _start_early(config: CollectConfig) -> None:
    """Let the fork server import what workers need while this process imports what it needs itself."""
    if config.sampler == "multiprocessing" and config.start_method == "forkserver":
        from rollout_cli.samplers.starting import start_fork_server  # noqa: PLC0415 - it loads multiprocessing

        start_fork_server()


def _collect(config: CollectConfig, progress: Progress, arguments: Arguments) -> CollectResult:
    from rollout_cli.collect import collect  # noqa: PLC0415 - it loads numpy, gymnasium and pyarrow

    try:
        with user_output_on_stderr():
            return collect(config, progress=progress, argv=arguments.argv)
    finally:
        progress.finish()  # A bar that is left open would swallow the error's lines.


def _show_result(result: CollectResult, arguments: Arguments) -> None:
    if arguments.json:
        print_json(result.to_dict())
    elif arguments.quiet:
        print_text(printable(str(result.path)))
    else:
        print_rows(_rows(result))


def _rows(result: CollectResult) -> list[tuple[str, str]]:
    pace = f"{result.steps_per_second:,.0f} steps/s with {counted(result.n_workers, 'worker')}"
    return [
        ("dataset", str(result.path)),
        ("status", result.status),
        ("episodes", f"{result.episodes:,}"),
        ("steps", f"{result.steps:,}"),
        ("mean return", f"{result.mean_return:.6g}"),
        ("mean length", f"{result.mean_length:.6g}"),
        ("seed", str(result.seed)),
        ("reproducible", result.reproducible["status"]),
        ("time", f"{result.wall_time_s:.1f} s, {pace}"),
    ]
