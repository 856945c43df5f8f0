"""docs/options.md is the reference of all options, written from their declarations.

After a change, write the page again and read the difference: `python -m tests.cli.test_options_page`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
import typer

from rollout_cli.cli.app import app
from rollout_cli.options.config import OPTIONS
from rollout_cli.options.option import Option
from tests.cli.calling import Caller
from tests.helpers.processes import ROOT

PAGE = ROOT / "docs" / "options.md"
MARKER = "<!-- the tables: python -m tests.cli.test_options_page -->"
COLLECTING = ("collect", "exact")
DRIVEN = ("check", "tune")
"""Commands that take the options of `collect` too."""
ALSO = dict.fromkeys(DRIVEN, " It also takes the options of `collect`.") | {
    "evaluate": " It also takes the options above that name it."
}


def _tables() -> str:
    """Return the tables of the page: options of runs by panel, then those of each other command."""
    lines = ["## collect, exact and evaluate"]
    for panel, options in groupby(OPTIONS.values(), key=lambda option: option.panel):
        lines += ["", f"### {panel}", "", *_header("default", "commands"), *map(_declared, options)]
    lines += ["", "### Output", "", *_header("default"), *_parameters("collect")]
    for name in _commands():
        if name not in COLLECTING:
            sentence = " ".join((_commands()[name].help or "").split("\n\n")[0].split())
            lines += [
                "",
                f"## {name}",
                "",
                sentence + ALSO.get(name, ""),
                "",
                *_header("default"),
                *_parameters(name),
            ]
    return "\n".join(lines) + "\n"


def _header(*columns: str) -> list[str]:
    names = ["option", "meaning", *columns]
    return [f"| {' | '.join(names)} |", f"| {' | '.join(['---'] * len(names))} |"]


def _declared(option: Option) -> str:
    """Return the row of an option of `collect` or `exact`, with its whole description."""
    names = ", ".join(f"`{name}`" for name in (option.flag, option.short) if name)
    default = f"`{option.shown}`" if option.shown else ""
    cells = [f"{names} {option.metavar}", option.help, default, ", ".join(option.commands)]
    return _row(cells)


def _parameters(command: str) -> Iterator[str]:
    """Yield the rows of a command's own parameters."""
    declared = {option.flag for option in OPTIONS.values()} if command in {*COLLECTING, *DRIVEN} else set()
    if command == "evaluate":  # It takes several policies.
        declared = {option.flag for option in OPTIONS.values() if command in option.commands} - {"--policy"}
    for parameter in _commands()[command].params:
        if declared.isdisjoint(parameter.opts):
            words, _, default = (parameter.help or "").partition(" (default: ")
            yield _row([_names(parameter), words, default.rstrip(")") or _default(parameter)])


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"{parameter.metavar}{'…' if parameter.nargs == -1 else ''}"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    return f"{names} {parameter.metavar or ''}"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    return f"`{parameter.default}`" if parameter.show_default and parameter.default is not True else ""


def _row(cells: list[str]) -> str:
    shown = " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {shown} |".replace("  ", " ")


def _commands() -> dict[str, Any]:
    """Return the commands by name, in the order of the help page; `policy pack` is one command."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {f"{name} {each}": inner[each] for each in inner} if inner else {name: command}
    return found


def test_the_page_has_every_option() -> None:
    """In the words and the order of the declarations."""
    _skip_for_old_typer()
    table = PAGE.read_text(encoding="utf-8").partition(MARKER)[2].strip()
    assert _tables().strip() == table, "run python -m tests.cli.test_options_page, and read its diff"


def _skip_for_old_typer() -> None:
    if not _commands()["info"].params[0].help:
        pytest.skip("this version of Typer does not tell the help of arguments")


@pytest.mark.parametrize("command", [*COLLECTING, "evaluate"])
def test_an_option_has_one_line_of_help(
    command: str, rollout: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 120 columns."""
    _skip_for_old_typer()
    monkeypatch.setenv("COLUMNS", "120")
    lines = rollout(command, "--help").stdout.splitlines()
    assert [] == [line for line in lines if re.match("│ {30}", line)]


@pytest.mark.parametrize("command", sorted({*_commands()} - {*COLLECTING, *ALSO}))
def test_other_help_fits_a_screen(command: str, rollout: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 lines at 100 columns, without the empty first and last line."""
    _skip_for_old_typer()
    monkeypatch.setenv("COLUMNS", "100")
    assert len(rollout(*command.split(), "--help").stdout.strip().splitlines()) <= 24


if __name__ == "__main__":
    head = PAGE.read_text(encoding="utf-8").partition(MARKER)[0]
    PAGE.write_text(f"{head}{MARKER}\n\n{_tables()}", encoding="utf-8")
