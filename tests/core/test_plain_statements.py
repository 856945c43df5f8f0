"""Statements are plain: one assignment each, and no comprehension or conditional expression inside another."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from tests.helpers.processes import ROOT

UNCHECKED = ("dataset", "run")
"""Packages that the second rule does not hold for."""
EXCUSE = "# hot loop: "
"""A comment of this kind, with the reason, excuses a line."""
CHOICES = (ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def parallel_assignments(source: str) -> Iterator[int]:
    """Yield the lines that assign a tuple of values to a tuple of targets, except where they swap."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple | ast.List):
            continue
        values = sorted(map(ast.unparse, node.value.elts))
        for target in node.targets:
            if not isinstance(target, ast.Tuple | ast.List) or EXCUSE in lines[node.lineno - 1]:
                continue
            if sorted(map(ast.unparse, target.elts)) != values:
                yield node.lineno


def nested_choices(source: str) -> Iterator[int]:
    """Yield the lines of comprehensions and conditional expressions that hold another one."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, CHOICES) and EXCUSE in lines[node.lineno - 1]:
            continue
        if isinstance(node, CHOICES) and sum(isinstance(inner, CHOICES) for inner in ast.walk(node)) > 1:
            yield node.lineno


def broken_lines(rule: Callable[[str], Iterator[int]], unchecked: tuple[str, ...] = ()) -> list[str]:
    """Return the lines of the package that break a rule, but for those of some packages."""
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "rollout_cli").rglob("*.py"))]
    checked = [path for path in paths if path.parts[1] not in unchecked]
    return [f"{path}:{line}" for path in checked for line in rule((ROOT / path).read_text(encoding="utf-8"))]


def test_statements_are_plain() -> None:
    assert not broken_lines(parallel_assignments)
    assert not broken_lines(nested_choices, UNCHECKED)


@pytest.mark.parametrize(
    ("statement", "is_broken"),
    [
        ("a, b = x, y", True),
        ("self.a, self.b = a, b", True),
        ("a, (b, c) = x, f()", True),
        ("a = b, c = x, y", True),
        ("a, b = x, y  # hot loop: one step of every episode", False),
        ("a, b = b, a", False),
        ("rows[i], rows[j] = rows[j], rows[i]", False),
        ("a, b = f(x, y)", False),
        ("a = x, y", False),
    ],
)
def test_parallel_assignments(statement: str, is_broken: bool) -> None:
    """A swap, the result of one call, and a line with an excuse are allowed."""
    assert is_broken == bool([*parallel_assignments(statement)])


@pytest.mark.parametrize(
    ("statement", "is_broken"),
    [
        ("a = x if p else y if q else z", True),
        ("a = [f(x) if x else y for x in xs]", True),
        ("a = [[y for y in x] for x in xs]", True),
        ("a = {x: f'{y if x else z}' for x in xs}", True),
        ("a = [x for x in xs for y in x]", False),
        ("f([x for x in xs], y if p else z)", False),
        ("for x in [y for y in ys]:\n    a = x if p else z", False),
    ],
)
def test_nested_choices(statement: str, is_broken: bool) -> None:
    """Two in one expression are allowed where neither is inside the other."""
    assert is_broken == bool([*nested_choices(statement)])
