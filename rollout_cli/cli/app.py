"""The application: its commands, and the one place where a call of it ends in an exit code."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_cli.cli import collect, dataset, policy, replay
from rollout_cli.cli.options import Command, Group, deferred, takes_declared_options
from rollout_cli.cli.output import print_text, report
from rollout_cli.cli.streams import flush_all, open_closed_streams, writing_results

app = typer.Typer(cls=Group, rich_markup_mode="rich", pretty_exceptions_enable=False)
policy_app = typer.Typer(cls=Group)

app.command("collect", cls=Command)(takes_declared_options("collect", collect.collect))
app.command("exact", cls=Command)(takes_declared_options("exact", collect.exact))
app.command("info", cls=Command)(deferred(dataset.info))
app.command("verify", cls=Command)(deferred(dataset.verify))
app.command("repair", cls=Command)(deferred(dataset.repair))
app.command("replay", cls=Command)(deferred(replay.replay))
app.add_typer(policy_app, name="policy")
policy_app.command("pack", cls=Command)(deferred(policy.pack))


@policy_app.callback()
def _policy() -> None:
    """Make policy files."""


@app.callback(invoke_without_command=True)
def _rollout(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", show_default=False)] = False,
) -> None:
    """Run a policy in a gymnasium environment with many workers and write the episodes to a Parquet dataset."""
    if version:
        from rollout_cli import __version__  # noqa: PLC0415 - it reads the installed package's metadata

        print_text(f"rollout {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print_text(context.get_help())


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; every error is shown here, and nothing is raised."""
    open_closed_streams()
    try:
        return _run(arguments)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the edge: an unknown error is shown as internal
        # The words are searched, not parsed: words that cannot be parsed are an error to be shown as well.
        verbose = not {"--verbose", "-v"}.isdisjoint(arguments)
        return report(error, as_json="--json" in arguments, verbose=verbose)
    finally:
        flush_all()


def _run(arguments: list[str]) -> int:
    """Let Typer read the arguments, and run the command that it returns; an ending of Typer's own has a code."""
    with writing_results():  # Nothing runs yet, but help pages are written.
        outcome = app(arguments, prog_name="rollout", standalone_mode=False)
    if not callable(outcome):
        return int(outcome or 0)
    outcome()
    return 0
