"""The Typer application with all its commands, and `run`, which returns an exit code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rollout_cli._version import __version__
from rollout_cli.cli import change, collect, evaluate, look, serve, share, trust
from rollout_cli.cli.options import Command, Group, LazyCommand, epilog
from rollout_cli.cli.output import print_text, report
from rollout_cli.cli.streams import flush_all, prepare_streams, writing_results

app = typer.Typer(cls=Group, rich_markup_mode="rich", pretty_exceptions_enable=False)
policy_app = typer.Typer(cls=Group, help="Make policy files.")
_RESERVE = 8 << 20
"""Bytes of address space, freed before an error is reported: reporting allocates memory too."""

_PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "Look": {
        "info": look.info,
        "head": look.head,
        "stats": look.stats,
        "list": look.list_datasets,
        "plot": look.plot,
        "render": look.render,
        "report": look.report,
    },
    "Trust": {
        "verify": trust.verify,
        "repair": trust.repair,
        "replay": trust.replay,
        "diff": trust.diff,
    },
    "Change": {
        "merge": change.merge,
        "split": change.split,
        "filter": change.filter,
        "convert": change.convert,
        "relabel": change.relabel,
    },
    "Share": {"import": share.import_, "export": share.export, "card": share.card, "push": share.push},
}
"""The dataset commands by help panel; each panel has its own module."""

app.command(
    "collect",
    cls=LazyCommand,
    epilog=epilog(
        "rollout collect --timesteps 100000 --seed 0",
        "rollout collect --policy ppo.zip --env LunarLander-v3 --episodes 500 --output data/lander",
        "rollout collect --config run.toml --workers 8",
        "rollout collect --resume --output data/lander --episodes 1000",
    ),
)(collect.collect)
app.command(
    "exact",
    cls=LazyCommand,
    help="Collect exactly N episodes from each worker, in worker order.",
    epilog=epilog("rollout exact --episodes-per-worker 5 --workers 3 --seed 0"),
)(collect.collect)
app.command(
    "evaluate",
    cls=LazyCommand,
    epilog=epilog(
        "rollout evaluate --policy ppo.zip --policy random --env LunarLander-v3 --deterministic",
        "rollout evaluate --policy 'checkpoints/*.zip' --env HalfCheetah-v5 --episodes 50 --plot curve.png",
    ),
)(evaluate.evaluate)
app.command("check", cls=LazyCommand, epilog=epilog("rollout check --policy ppo.zip --env LunarLander-v3"))(
    collect.check
)
app.command("tune", cls=LazyCommand, epilog=epilog("rollout tune --env HalfCheetah-v5"))(collect.tune)
app.command("serve", cls=Command)(serve.serve)
for _panel, _bodies in _PANELS.items():
    for _name, _body in _bodies.items():
        app.command(_name, cls=Command, rich_help_panel=_panel)(_body)
policy_app.callback()(lambda: None)
policy_app.command(cls=Command)(share.pack)
app.add_typer(policy_app, name="policy")


@app.callback(invoke_without_command=True)
def _rollout(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", show_default=False)
    ] = False,
) -> None:
    """Collect gymnasium episodes with parallel workers into a Parquet dataset."""
    if context.invoked_subcommand is None or version:
        print_text(f"rollout {__version__}" if version else context.get_help())
        raise typer.Exit


@functools.cache
def _root_command() -> Callable[..., Any]:
    """Return Typer's command for the application, built once per process because building it is slow."""
    return typer.main.get_command(app)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; print errors instead of raising them."""
    prepare_streams()
    reserve = bytes(_RESERVE)
    try:
        with writing_results():  # Typer parses the arguments here, and may print a help page.
            outcome = _root_command()(arguments, prog_name="rollout", standalone_mode=False)
        # Typer returns a command with its arguments bound, or an exit code after --help or --version.
        if callable(outcome):
            outcome = outcome()
        return int(outcome or 0)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - `report` accepts any error
        del reserve
        # Search the arguments instead of parsing them: the error may be that they cannot be parsed.
        verbose = not {"--verbose", "-v"}.isdisjoint(arguments)
        return report(error, as_json="--json" in arguments, verbose=verbose)
    finally:
        flush_all()
