"""Typer's commands and parameters: those of the declared options, and those that all commands have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rollout_cli.errors import UsageError
from rollout_cli.sources.remote import RemotePath, folder_of

if TYPE_CHECKING:
    from rollout_cli.options.option import Option

_STRENGTHS = (
    "A flag is stronger than an environment variable (ROLLOUT_ and the option's name: ROLLOUT_WORKERS=4), "
    "a variable is stronger than the file given to --config, and the file stronger than the default."
)


def epilog(*examples: str) -> str:
    """Return what a help page ends with: commands as examples, and which source of an option is stronger."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  $ {example}" for example in examples), _STRENGTHS])


flag = functools.partial(typer.Option, show_default=False)
"""A Typer option, whose help shows no default unless that is asked for."""
shown = functools.partial(flag, rich_help_panel="Showing")
"""An option of the panel about how a command shows its result."""


def folder_argument(metavar: str, words: str) -> Any:
    """Return a Typer argument that names a folder, or several, as paths or URIs."""
    return typer.Argument(metavar=metavar, help=words, show_default=False, parser=folder_of)


def local_path(text: str) -> Path:
    """Return where a command writes what no storage behind a URI is given; a `file:` URI is a local path.

    Raises:
        UsageError: If it is another URI, or a folder without a name, such as `.`.
    """
    path = folder_of(text)
    if isinstance(path, RemotePath) or not path.name:
        raise UsageError(
            f"--output {text!r} names no local file",
            code="output-not-local",
            hint="give the path of a file to write",
        )
    return path


ConfigFlag = Annotated[Path | None, shown("--config", "-c", metavar="FILE", help="A TOML file of options.")]
Folder = Annotated[Path, folder_argument("DIR", "A dataset's folder, or its URI.")]
VerifyFlag = Annotated[
    bool,
    flag("--verify/--no-verify", help="Refuse a dataset that `rollout verify` rejects.", show_default=True),
]
JsonFlag = Annotated[bool, shown("--json", help="Write one JSON document to stdout.")]
QuietFlag = Annotated[
    bool, shown("--quiet", "-q", help="Show warnings and errors only, and print the path alone.")
]


class _PlainFlags:
    """Switches without `<bool>` beside them, which reads as if they took a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class Group(_PlainFlags, TyperGroup):
    """A group of commands."""


class Command(_PlainFlags, TyperCommand):
    """A command with `--verbose`, whose body the caller of the application calls.

    Typer turns an interruption, and an error of a pipe, into an exit code: only arguments are read under it.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        if all(param.name != "verbose" for param in self.params):
            # It concerns errors, which are shown where all commands end.
            annotation = Annotated[
                bool, shown("--verbose", "-v", help="Show tracebacks with errors.", expose_value=False)
            ]
            self.params += _params({"verbose": annotation})
        return super().get_params(ctx)

    def invoke(self, ctx: Any) -> Any:
        return functools.partial(ctx.invoke, self.callback, **ctx.params)


class LazyCommand(Command):
    """A command with the declared options, as texts by their names in `context.obj`.

    They are declared when they are first asked for: that loads pydantic, which takes longer than `rollout
    --help`. `check` and `tune` have those of `collect`, so that its words can be given to them.
    """

    _declared: tuple[str, ...] = ()

    def get_params(self, ctx: Any) -> list[Any]:
        if not self._declared:
            from rollout_cli.options.config import options_of  # noqa: PLC0415 - it loads pydantic

            options = options_of("exact" if self.name == "exact" else "collect")
            annotations = {option.name: _annotation(option) for option in options}
            self.params = [*_params(annotations), *self.params]
            self._declared = tuple(annotations)
        return super().get_params(ctx)

    def invoke(self, ctx: Any) -> Any:
        ctx.obj = {name: ctx.params.pop(name) for name in self._declared}
        return super().invoke(ctx)


def _params(annotations: dict[str, object]) -> list[Any]:
    """Return Typer's parameters of these names, each None where it is not given."""

    def declared() -> None:
        """Have the signature below."""

    declared.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in annotations.items()
        ]
    )
    single = typer.Typer(add_completion=False)
    single.command()(declared)
    return list(typer.main.get_command(single).params)


def _env_ids(incomplete: str) -> list[str]:
    """Return the ids of gymnasium's environments that begin so, for a shell's completion."""
    import gymnasium  # noqa: PLC0415 - it takes longer than a help page

    return sorted(name for name in gymnasium.registry if name.startswith(incomplete))


def _completion(option: Option) -> Callable[..., list[str]] | None:
    if option.choices:
        return lambda: list(option.choices)
    return _env_ids if option.name == "env" else None


def _annotation(option: Option) -> object:
    """Return a parameter that takes any text: `CollectConfig` validates it, like files and variables."""
    names = option.flag
    taken: Any = str | None
    if option.kind == "switch":
        names += f"/--no-{names.removeprefix('--')}"
        taken = bool | None
    elif option.repeats:
        taken = list[str] | None
    described = typer.Option(
        *filter(None, [names, option.short]),
        help=f"{option.help} (default: {option.shown})" if option.shown else option.help,
        metavar=option.metavar,
        rich_help_panel=option.panel,
        show_default=False,
        autocompletion=_completion(option),
    )
    return Annotated[taken, described]
