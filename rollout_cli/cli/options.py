"""Typer's parameters, derived from the declared options, and those that concern only how a command shows its result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rollout_cli.config import Option, options_of
from rollout_cli.config.kinds import Switch

COMMAND_LINE: ContextVar[tuple[str, ...]] = ContextVar("COMMAND_LINE", default=())
"""The words of the command line that is being run, after the program's name."""

SHOWING = "Showing"
"""The part of a help page about what a command shows."""

JsonFlag = Annotated[
    bool, typer.Option("--json", help="Write one JSON document to stdout.", rich_help_panel=SHOWING, show_default=False)
]
VerboseFlag = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Show tracebacks with errors.", rich_help_panel=SHOWING, show_default=False),
]
QuietFlag = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Show warnings and errors only, and print the path alone.",
        rich_help_panel=SHOWING,
        show_default=False,
    ),
]
ProgressFlag = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show progress: a bar on a terminal, lines elsewhere. (default: shown, but not with --json)",
        rich_help_panel=SHOWING,
        show_default=False,
    ),
]
DryRunFlag = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Print the configuration and run nothing.", rich_help_panel=SHOWING, show_default=False
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="A TOML file of options.", rich_help_panel=SHOWING, show_default=False
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the command line of `collect` or `exact` gave.

    Args:
        flags: The declared options by name; None where not given.
        config: A configuration file.
        dry_run: Print the configuration and run nothing.
        progress: Whether to show progress; None where not said.
        quiet: Show warnings and errors only.
        json: Print one JSON document.
        argv: The words of the command line that all this was read from.
    """

    flags: dict[str, object]
    config: Path | None
    dry_run: bool
    progress: bool | None
    quiet: bool
    json: bool
    argv: tuple[str, ...]


def command(body: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """Return what Typer is to call: it only binds the arguments.

    The body runs when Typer is through, because Typer turns an interruption, and an error of a pipe, into an exit code.
    """

    @functools.wraps(body)
    def bind(**given: Any) -> Callable[[], None]:
        return functools.partial(body, **given)

    return bind


def with_declared_options(name: str) -> Callable[[Callable[[Arguments], None]], Callable[..., None]]:
    """Return a decorator that gives the body of the command `name` the parameters that Typer reads."""

    def decorate(body: Callable[[Arguments], None]) -> Callable[..., None]:
        def take(**given: Any) -> None:
            flags = {option.name: given.pop(option.name) for option in options_of(name)}
            given.pop("verbose")  # It concerns errors, which are shown where all commands end.
            body(Arguments(flags=flags, argv=COMMAND_LINE.get(), **given))

        take.__doc__ = body.__doc__
        take.__signature__ = inspect.Signature(_parameters(name))  # type: ignore[attr-defined]
        return take

    return decorate


def _parameters(name: str) -> list[inspect.Parameter]:
    declared = [_parameter(option.name, _annotation(option), None) for option in options_of(name)]
    return [
        *declared,
        _parameter("config", ConfigFile, None),
        _parameter("dry_run", DryRunFlag, default=False),
        _parameter("progress", ProgressFlag, None),
        _parameter("quiet", QuietFlag, default=False),
        _parameter("verbose", VerboseFlag, default=False),
        _parameter("json", JsonFlag, default=False),
    ]


def _parameter(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(option: Option) -> object:
    """Return text for Typer to pass on as it is: the option's kind reads it, as it reads files and variables."""
    switch = isinstance(option.kind, Switch)
    flag = f"{option.flag}/--no-{option.flag.removeprefix('--')}" if switch else option.flag
    typed: object = bool | None if switch else list[str] | None if option.kind.repeats else str | None
    told = f"{option.help} (default: {option.default})" if option.default else option.help
    described = typer.Option(
        *filter(None, [flag, option.short]),
        help=told,
        metavar=option.kind.metavar or None,
        rich_help_panel=option.panel,
        show_default=False,
    )
    return Annotated[typed, described]
