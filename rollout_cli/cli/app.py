"""The application: its commands, and the one place where a call of it ends in an exit code."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_cli.cli import collect, exact, info, policy_inspect, policy_pack, repair, replay, verify
from rollout_cli.cli.errors import report
from rollout_cli.cli.options import COMMAND_LINE, command
from rollout_cli.cli.output import print_text, settle, writing_results

_EPILOG = (
    "A flag is stronger than an environment variable (ROLLOUT_ and the option's name: ROLLOUT_WORKERS=4), a variable "
    "is stronger than the file given to --config, and the file stronger than the default."
)

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
policy_app = typer.Typer()

app.command("collect", epilog=_EPILOG)(command(collect.collect))
app.command("exact", epilog=_EPILOG)(command(exact.exact))
app.command("info")(command(info.info))
app.command("repair")(command(repair.repair))
app.command("replay")(command(replay.replay))
app.command("verify")(command(verify.verify))
app.add_typer(policy_app, name="policy")
policy_app.command("pack")(command(policy_pack.pack))
policy_app.command("inspect")(command(policy_inspect.inspect))


@policy_app.callback()
def _policy() -> None:
    """Make policy files, and look into them."""


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
    try:
        return _run(arguments)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the edge: an unknown error is shown as internal
        # The words are looked up, not parsed: what cannot be parsed is an error to be shown as well.
        verbose = not {"--verbose", "-v"}.isdisjoint(arguments)
        return report(error, as_json="--json" in arguments, verbose=verbose)
    finally:
        settle()


def _run(arguments: list[str]) -> int:
    """Let Typer read the arguments, and run the command that it hands back; what Typer ends itself has a code."""
    COMMAND_LINE.set(tuple(arguments))
    with writing_results():  # Nothing runs yet, but help pages are written.
        outcome = app(arguments, prog_name="rollout", standalone_mode=False)
    if not callable(outcome):
        return int(outcome or 0)
    outcome()
    return 0
