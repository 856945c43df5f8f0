"""Typer's parameters: those of the declared options, and those that say how a command shows its result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rollout_cli.remote import folder_of

if TYPE_CHECKING:
    from rollout_cli.config import Option

_EPILOG = (
    "A flag is stronger than an environment variable (ROLLOUT_ and the option's name: ROLLOUT_WORKERS=4), a variable "
    "is stronger than the file given to --config, and the file stronger than the default."
)


def shown(*names: str, text: str, **more: Any) -> Any:
    """Return a Typer option of the panel about how a command shows its result."""
    return typer.Option(*names, help=text, rich_help_panel="Showing", show_default=False, **more)


Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="A dataset's folder, or its URI.", show_default=False, parser=folder_of)
]
JsonFlag = Annotated[bool, shown("--json", text="Write one JSON document to stdout.")]
VerboseFlag = Annotated[bool, shown("--verbose", "-v", text="Show tracebacks with errors.")]
QuietFlag = Annotated[bool, shown("--quiet", "-q", text="Show warnings and errors only, and print the path alone.")]
_PROGRESS = "Show progress: a bar on a terminal, lines elsewhere. (default: shown, but not with --json)"
_SHOWING = {
    "config": (Annotated[Path | None, shown("--config", "-c", metavar="FILE", text="A TOML file of options.")], None),
    "dry_run": (Annotated[bool, shown("--dry-run", text="Print the configuration and run nothing.")], False),
    "progress": (Annotated[bool | None, shown("--progress/--no-progress", text=_PROGRESS)], None),
    "quiet": (QuietFlag, False),
    "verbose": (VerboseFlag, False),
    "json": (JsonFlag, False),
}


class _PlainFlags:
    """Switches without `<bool>` beside them, which reads as if they took a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class Command(_PlainFlags, TyperCommand):
    """A command."""


DECLARED: dict[str, Callable[..., None]] = {}
"""The bodies of commands that have the options of `CollectConfig`; they get these as texts, `flags`, by their names."""


class Group(_PlainFlags, TyperGroup):
    """A group of commands; `collect` and `exact` get their options when one of them is called.

    Their declarations load pydantic, which would take longer than the rest of `rollout --help`.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in DECLARED:
            self.commands[args[0]] = _with_declared_options(DECLARED[args[0]])
        return super().resolve_command(ctx, args)


def deferred(body: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """Return the callback for Typer: it only binds the arguments, and `run` calls what it returns.

    Typer turns an interruption, and an error of a pipe, into an exit code.
    """

    @functools.wraps(body)
    def bind(**given: Any) -> Callable[[], None]:
        return functools.partial(body, **given)

    return bind


def _with_declared_options(body: Callable[..., None]) -> Any:
    from rollout_cli.config import options_of  # noqa: PLC0415 - it loads pydantic

    def bind(**given: Any) -> Callable[[], None]:
        showing = {key: given.pop(key) for key in _SHOWING}
        return functools.partial(body, flags=given, **showing)

    declared = {option.name: (_annotation(option), None) for option in options_of(body.__name__)}
    bind.__doc__ = body.__doc__
    bind.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for key, (annotation, default) in {**declared, **_SHOWING}.items()
        ]
    )
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(body.__name__, cls=Command, epilog=_EPILOG)(bind)
    return typer.main.get_command(single)


def _annotation(option: Option) -> object:
    """Return a parameter that takes text as it is: `CollectConfig` validates it, as it does files and variables."""
    is_switch = not option.metavar
    flag = f"{option.flag}/--no-{option.flag.removeprefix('--')}" if is_switch else option.flag
    described = typer.Option(
        *filter(None, [flag, option.short]),
        help=f"{option.help} (default: {option.shown})" if option.shown else option.help,
        metavar=option.metavar,
        rich_help_panel=option.panel,
        show_default=False,
        autocompletion=(lambda: list(option.choices)) if option.choices else None,
    )
    return Annotated[bool | None if is_switch else list[str] | None if option.repeats else str | None, described]
