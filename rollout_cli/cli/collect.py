"""The commands with the options of a run: `rollout collect`, `exact`, `check` and `tune`."""

from __future__ import annotations

import faulthandler
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, cast

import typer

from rollout_cli.cli.options import ConfigFlag, JsonFlag, QuietFlag, shown
from rollout_cli.cli.output import (
    counted,
    print_json,
    print_message,
    print_rows,
    print_table,
    print_text,
    show,
    showing_progress,
)
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.cores import use_one_thread
from rollout_cli.errors import UserCodeError
from rollout_cli.redact import without_secrets
from rollout_cli.sources.untrusted import printable, shell_word

if TYPE_CHECKING:
    from rollout_cli.options.config import CollectConfig, Values
    from rollout_cli.options.option import CommandName
    from rollout_cli.run.tally import CollectResult


def collect(
    context: typer.Context,
    *,
    config: ConfigFlag = None,
    dry_run: Annotated[bool, shown("--dry-run", help="Print the configuration without running.")] = False,
    progress: Annotated[
        bool | None,
        shown(
            "--progress/--no-progress",
            help="Show progress. (default: shown, but not with --json)",
        ),
    ] = None,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Collect complete episodes until N steps, N episodes or a time limit.

    The episodes of the dataset do not depend on the number of workers or on their speed.
    """
    from rollout_cli.options.sources import resolve  # noqa: PLC0415 - imports pydantic

    # `exact` runs this function too; its options for the number of episodes differ.
    command = cast("CommandName", context.command.name)
    request = resolve(command, flags=context.obj, environ=os.environ, file=config, recorded=_recorded)
    if dry_run:
        _print_config(request, quiet=quiet, as_json=json)
        return
    # With --json, stderr shows warnings only, unless --progress is passed.
    result = _collect(request, progress=progress, quiet=quiet or (json and not progress))
    show(asdict(result), _rows(result), as_json=json, quiet=quiet, path=result.path)
    if not json and not quiet:
        path = result.path
        with suppress(FileNotFoundError, ValueError):  # The working folder was deleted, or is not a parent.
            path = path.relative_to(Path.cwd())
        print_message(f"next: rollout info {shell_word(path)}")


def _recorded(command: CommandName, options: Values) -> Values:
    from rollout_cli.run.resume import recorded_options  # noqa: PLC0415 - imports numpy

    return recorded_options(command, options)


def _print_config(config: CollectConfig, *, quiet: bool, as_json: bool) -> None:
    """Print a configuration as JSON, or as a TOML file for --config."""
    from rollout_cli.options.config import config_to_dict  # noqa: PLC0415 - imports pydantic

    if config.env is None:
        from rollout_cli.run.request import completed  # noqa: PLC0415 - imports numpy and gymnasium

        with showing_progress(wanted=False, quiet=quiet) as progress:
            config = completed(config, progress)
    options = without_secrets(config_to_dict(config))
    if as_json:
        print_json(options)
    else:
        _print_toml(options)


def _print_toml(options: Values) -> None:
    import tomli_w  # noqa: PLC0415 - used only here

    print_text(tomli_w.dumps(options).rstrip("\n"))


def prepare_workers(config: CollectConfig) -> None:
    """Start what workers need while this process goes on importing."""
    if config.sampler == "multiprocessing" and config.start_method == "forkserver":
        # Imported here because it imports numpy.
        from rollout_cli.samplers.processes.fork_server import running_server  # noqa: PLC0415

        running_server("forkserver")  # The server imports the workers' modules while this process continues.
    elif config.sampler == "local":
        use_one_thread()
        if not faulthandler.is_enabled():
            # User code runs in this process: if it crashes, only faulthandler can report where.
            faulthandler.enable(file=2, all_threads=False)


def _collect(config: CollectConfig, *, progress: bool | None, quiet: bool) -> CollectResult:
    prepare_workers(config)
    from rollout_cli.run.collect import collect as run_collect  # noqa: PLC0415 - imports numpy and gymnasium

    with showing_progress(wanted=progress, quiet=quiet) as receiver, user_output_on_stderr():
        return run_collect(config, progress=receiver)


def _rows(result: CollectResult) -> dict[str, object]:
    from rollout_cli.dataset.card import skipped_text  # noqa: PLC0415 - as above
    from rollout_cli.dataset.layout import acceptance_text, described  # noqa: PLC0415 - as above

    rows: dict[str, object] = {
        "dataset": result.path,
        "status": f"{result.status} (stopped by --{result.stopped_by.replace('_', '-')})",
        "episodes": f"{result.episodes:,}",
    }
    if skipped := skipped_text(result.skipped, result.episodes):
        rows["skipped"] = skipped
    if result.acceptance:
        rows["kept"] = acceptance_text(result.acceptance)
    time = f"{result.wall_time_s:.1f} s"
    if result.sampling_time_s:
        pace = f"{result.steps_per_second:,.0f} steps/s with {counted(result.n_workers, 'worker')}"
        time += f" (sampling {result.sampling_time_s:.1f} s, {pace})"
    return rows | {
        "steps": f"{result.steps:,}",
        "mean return": f"{result.mean_return:.6g}",
        "mean length": f"{result.mean_length:.6g}",
        "seed": result.seed,
        "reproducible": described(result.reproducible),
        "time": time,
    }


def check(
    context: typer.Context,
    *,
    seconds: Annotated[
        float,
        shown(
            "--seconds",
            min=0.1,
            metavar="SECONDS",
            help="Time limit of each check process. (default: 20)",
        ),
    ] = 20.0,
    config: ConfigFlag = None,
    strict: Annotated[bool, shown("--strict", help="Treat warnings as failures.")] = False,
    quiet: Annotated[bool, shown("--quiet", "-q", help="Print only warnings and failures.")] = False,
    json: JsonFlag = False,
) -> int:
    """Try a `rollout collect` run for some seconds and report problems.

    It takes the options of `collect` and keeps no dataset. The exit code is 3 if a check fails (or warns,
    with --strict), else 0.
    """
    request = _request(context, config)
    from rollout_cli.run.check import check as run_check  # noqa: PLC0415 - imports numpy and gymnasium

    with showing_progress(wanted=False, quiet=quiet or json) as progress, user_output_on_stderr():
        report = run_check(request, seconds=seconds, strict=strict, progress=progress)
    document = report.document()
    if json:
        print_json(document)
    else:
        width = max(len(entry["check"]) for entry in document["checks"])
        for entry in document["checks"]:
            if quiet and entry["status"] == "ok":
                continue
            line = f"{entry['status']:<4}  {entry['check']:<{width}}  {entry['what']}"
            print_text(printable(line.rstrip()))
            if entry["change"]:
                print_text(printable(f"{'':<{width + 6}}  change: {entry['change']}"))
            if entry["details"]:
                print_text(printable(indent(entry["details"], "  "), keep="\n"))
        if report.costs and not quiet:
            print_text("")
            print_rows(report.rows())
    return UserCodeError.exit_code if report.has_failed else 0


def tune(
    context: typer.Context,
    *,
    seconds: Annotated[
        float,
        shown(
            "--seconds",
            min=0.05,
            metavar="SECONDS",
            help="Measuring time of each choice, after a warm-up. (default: 3)",
        ),
    ] = 3.0,
    config: ConfigFlag = None,
    quiet: Annotated[bool, shown("--quiet", "-q", help="Print only the fastest choice.")] = False,
    json: JsonFlag = False,
) -> None:
    """Find the fastest number of workers and environments per worker.

    It takes the options of `collect`, and prints the fastest choice as TOML for --config.
    """
    request = _request(context, config)
    from rollout_cli.run.tune import tune as run_tune  # noqa: PLC0415 - imports numpy and gymnasium

    with showing_progress(wanted=False, quiet=quiet or json) as progress, user_output_on_stderr():
        document = run_tune(request, seconds=seconds, progress=progress).document()
    if json:
        print_json(document)
        return
    if not quiet:
        names = ("workers", "envs per worker", "vectorization", "steps/s", "bare loops", "problem")
        rows = []
        for row in document["rows"]:
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
            rows.append([*row["options"].values(), f"{row['rate']:,.0f}", ratio, row["problem"]])
        print_table(names, rows)
        print_text("")
    _print_toml(document["fastest"])


def _request(context: typer.Context, file: Path | None) -> CollectConfig:
    """Return the configuration for `check` and `tune`; without a limit it has a million steps."""
    from rollout_cli.options.sources import resolve  # noqa: PLC0415 - imports pydantic

    return resolve(
        "collect",
        flags=context.obj,
        environ=os.environ,
        file=file,
        recorded=_recorded,
        amount={"timesteps": 1_000_000},
    )
