"""Typer command classes, and the parameters that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rollout_cli.errors import DatasetFormatError, UsageError
from rollout_cli.sources.remote import RemotePath, folder_of
from rollout_cli.sources.untrusted import shell_word

if TYPE_CHECKING:
    from rollout_cli.options.option import Option

_AS_COLLECT = ("check", "tune")
"""Commands with the options of `collect`: the arguments of a `collect` command work for them too."""
_PRECEDENCE = (
    "Precedence: a flag, then an environment variable (ROLLOUT_ and the option's name, e.g. "
    "ROLLOUT_WORKERS=4), then the --config file, then the default."
)


def epilog(*examples: str) -> str:
    """Return the end of a help page: example commands, and the precedence of option sources."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  $ {example}" for example in examples), _PRECEDENCE])


flag = functools.partial(typer.Option, show_default=False)
"""`typer.Option` that does not show its default, unless `show_default` is passed."""
shown = functools.partial(flag, rich_help_panel="Output")
"""An option in the help panel for a command's output."""


def folder_argument(metavar: str, words: str, parser: Callable[[str], Path] = folder_of) -> Any:
    """Return a Typer argument that takes folders as paths or URIs."""
    return typer.Argument(metavar=metavar, help=words, show_default=False, parser=parser)


def _dataset_of(text: str) -> Path:
    """Parse the folder of a dataset.

    Raises:
        DatasetFormatError: If it is a dataset of another tool.
    """
    path = folder_of(text)
    if isinstance(path, RemotePath) or not path.exists():
        return path
    from rollout_cli.importers.load import recognised  # noqa: PLC0415 - imports numpy and pyarrow

    if (found := recognised(path)) is not None:
        raise DatasetFormatError(
            f"{path} is a dataset of {found.title}, expected one of rollout",
            code="not-a-dataset",
            hint=f"import it: rollout import {shell_word(path)} --from {found.name} {{output=DIR}}",
        )
    return path


def local_path(text: str) -> Path:
    """Parse the path of a local file to write; a `file:` URI is a local path.

    Raises:
        UsageError: If the text is another URI, or a path without a file name, such as `.`.
    """
    path = folder_of(text)
    if isinstance(path, RemotePath) or not path.name:
        raise UsageError(
            f"--output is {text!r}, expected the path of a local file",
            code="output-not-local",
            hint="pass the path of a local file to write",
        )
    return path


ConfigFlag = Annotated[Path | None, shown("--config", "-c", metavar="FILE", help="TOML file of options.")]
Folder = Annotated[Path, folder_argument("DIR", "Dataset folder or URI.", _dataset_of)]
LocalFolder = Annotated[Path, folder_argument("DIR", "Local dataset folder.", _dataset_of)]
VerifyFlag = Annotated[
    bool,
    flag("--verify/--no-verify", help="Verify the input first (default)."),
]
JsonFlag = Annotated[bool, shown("--json", help="Write one JSON document to stdout.")]
QuietFlag = Annotated[bool, shown("--quiet", "-q", help="Print only the path, warnings and errors.")]


class _PlainFlags:
    """Help pages without `<bool>` next to flags, which reads as if flags took a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class Group(_PlainFlags, TyperGroup):
    """A group of commands."""


class Command(_PlainFlags, TyperCommand):
    """A command with `--verbose`; Typer parses its arguments, and `app.run` calls its function.

    Typer turns KeyboardInterrupt and BrokenPipeError into exit codes, so commands must not run inside Typer.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        if all(param.name != "verbose" for param in self.params):
            # Not passed to the command: `app.run` reads it when it reports an error.
            annotation = Annotated[
                bool, shown("--verbose", "-v", help="Show tracebacks with errors.", expose_value=False)
            ]
            self.params += _params({"verbose": annotation})
        return super().get_params(ctx)

    def invoke(self, ctx: Any) -> Any:
        return functools.partial(ctx.invoke, self.callback, **ctx.params)


class LazyCommand(Command):
    """A command with the options of a run, whose strings are in `context.obj` by option name.

    The options are declared on first use, because importing pydantic takes longer than `rollout --help`.
    """

    _declared: tuple[str, ...] = ()

    def get_params(self, ctx: Any) -> list[Any]:
        if not self._declared:
            from rollout_cli.options.config import options_of  # noqa: PLC0415 - imports pydantic

            options = options_of("collect" if self.name in _AS_COLLECT else str(self.name))
            own = {param.name for param in self.params}  # `evaluate` takes several policies.
            annotations = {option.name: _annotation(option) for option in options if option.name not in own}
            self.params = [*_params(annotations), *self.params]
            self._declared = tuple(annotations)
        return super().get_params(ctx)

    def invoke(self, ctx: Any) -> Any:
        ctx.obj = {name: ctx.params.pop(name) for name in self._declared}
        return super().invoke(ctx)


def _params(annotations: dict[str, object]) -> list[Any]:
    """Return Typer parameters with these names and annotations; each defaults to None."""

    def declared() -> None:
        """Carry the signature that is set below."""

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
    """Return the gymnasium ids that start with a prefix, for shell completion."""
    import gymnasium  # noqa: PLC0415 - takes longer than a help page

    return sorted(name for name in gymnasium.registry if name.startswith(incomplete))


def _completion(option: Option) -> Callable[..., list[str]] | None:
    if option.choices:
        return lambda: list(option.choices)
    return _env_ids if option.name == "env" else None


def _annotation(option: Option) -> object:
    """Return the Typer annotation of an option; it takes any string, which `CollectConfig` validates."""
    names = option.flag
    value_type: Any = str | None
    if option.kind == "switch":
        names += f"/--no-{names.removeprefix('--')}"
        value_type = bool | None
    elif option.repeats:
        value_type = list[str] | None
    parameter = typer.Option(
        *filter(None, [names, option.short]),
        help=f"{option.summary} (default: {option.shown})" if option.shown else option.summary,
        metavar=option.metavar,
        rich_help_panel=option.panel,
        show_default=False,
        autocompletion=_completion(option),
    )
    return Annotated[value_type, parameter]
