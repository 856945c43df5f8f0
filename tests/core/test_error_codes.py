"""Codes of errors, and the wording of each: docs/errors.md is the one table that changes with a message.

After a change, write the table again and read the difference: `python -m tests.core.test_error_codes`.
"""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import NamedTuple

import pytest

from rollout_cli import errors
from rollout_cli.errors import RolloutError
from tests.helpers.processes import ROOT
from tests.helpers.wordings import PACKAGE, Scope, name_of, owners, parsed, strings

PAGE = ROOT / "docs" / "errors.md"
MARKER = "<!-- the table: python -m tests.core.test_error_codes -->"
CLASSES = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, RolloutError) and kind is not RolloutError
}
OTHERS = {
    "BadValueError": "EnvError, PolicyError",
    "kind": "UserCodeError and its subclasses",
    "failure": "UserCodeError and its subclasses",
    "reporting": "UserCodeError and its subclasses",
}
"""Calls that make an error whose class another place decides, and what it may be."""


class Wording(NamedTuple):
    """A message as the source has it, with names in place of values."""

    exit_code: int
    kind: str
    code: str
    message: str
    hint: str


@cache
def _wordings() -> tuple[Wording, ...]:
    """Return the wording of every error that the package makes."""
    found: set[Wording] = set()
    for path in PACKAGE.rglob("*.py"):
        tree = parsed(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (name := name_of(node.func)) in {*CLASSES, *OTHERS}:
                found.update(_of_call(node, name, Scope(tree, owners(tree).get(id(node)))))
    return tuple(sorted(found))


def _of_call(call: ast.Call, name: str, scope: Scope) -> Iterator[Wording]:
    """Return the wordings of one call: several if its message is chosen among some."""
    place = 1 if name in {"failure", "reporting"} else 0
    if len(call.args) <= place:
        return
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    hint = keywords.get("hint") or (call.args[1] if name == "BadValueError" and call.args[1:] else None)
    kind = CLASSES.get(name)
    given = keywords.get("code")
    code = given.value if isinstance(given, ast.Constant) else None
    if kind is None and code is None and name != "reporting":
        return  # It hands on the code of another call.
    for message in strings(call.args[place], scope):
        yield Wording(
            kind.exit_code if kind else errors.UserCodeError.exit_code,
            OTHERS.get(name, name),
            str(code or (kind.code if kind else "user-code-raised")),
            f"{message}: <exception>" if place else message,
            " / ".join(dict.fromkeys(filter(None, strings(hint, scope)))) if hint else "",
        )


def _table(wordings: tuple[Wording, ...]) -> str:
    """Return the tables of the page, one for each class of errors."""
    lines = []
    for (exit_code, kind), group in groupby(wordings, key=lambda each: each[:2]):
        lines += [
            "",
            f"## {kind}",
            "",
            f"Exit code {exit_code}.",
            "",
            "| code | message | hint |",
            "| --- | --- | --- |",
        ]
        lines += [f"| `{each.code}` | {_cell(each.message)} | {_cell(each.hint)} |" for each in group]
    return "\n".join(lines).strip() + "\n"


def _cell(text: str) -> str:
    # Values have no option names in them, so the markup of an option with a value in it is shown here.
    text = re.sub(r"\{(<[^<>]*>)[^{}]*\}", r"--\1", errors.as_flags(text))
    words = " ".join(text.split()).replace("|", "\\|").replace("``", "` `")
    return f"`` {words} ``" if words else ""


def test_every_wording_is_in_the_table() -> None:
    """The page has what the source raises: a message changes in two places, and is read in one."""
    table = PAGE.read_text(encoding="utf-8").partition(MARKER)[2].strip()
    assert table == _table(_wordings()).strip(), (
        "run python -m tests.core.test_error_codes, and read its diff"
    )


def test_codes_are_words_with_hyphens() -> None:
    assert not [each for each in _wordings() if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", each.code)]


def test_a_code_has_one_exit_code() -> None:
    """A program that knows the code knows what kind of failure it is."""
    exits: dict[str, set[int]] = {}
    for each in _wordings():
        exits.setdefault(each.code, set()).add(each.exit_code)
    assert not {code: several for code, several in exits.items() if len(several) > 1}


@pytest.mark.parametrize("kind", CLASSES.values(), ids=str)
def test_a_code_survives_pickling_and_copies(kind: type[RolloutError]) -> None:
    """Errors cross processes, and some get another hint on their way."""
    assert kind("what").code == kind.code
    error = kind("what", code="precise")
    assert pickle.loads(pickle.dumps(error)).code == error.with_hint("do this").code == "precise"


if __name__ == "__main__":
    head = PAGE.read_text(encoding="utf-8").partition(MARKER)[0]
    PAGE.write_text(f"{head}{MARKER}\n\n{_table(_wordings())}", encoding="utf-8")
