"""The strings that an expression of the package's source can be, with names in angle brackets for values."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

from tests.helpers.processes import ROOT

PACKAGE = ROOT / "rollout_cli"
_MOST = 4
"""The maximum number of strings that stand for one value; a name stands for more."""

_DEEP = 6
"""The number of names and calls to follow: a function may call itself."""


class Scope(NamedTuple):
    """Where an expression is: names are looked up in the function, then in the module."""

    module: ast.Module
    function: ast.FunctionDef | None = None
    depth: int = 0

    def inside(self, function: ast.FunctionDef | None, module: ast.Module | None = None) -> Scope:
        """Return a scope in another function that is one step further away."""
        return Scope(module or self.module, function, self.depth + 1)


def name_of(node: ast.AST) -> str:
    """Return the last name of an expression such as `a.b`, or an empty string."""
    return str(getattr(node, "id", getattr(node, "attr", "")))


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def owners(module: ast.Module) -> dict[int, ast.FunctionDef]:
    """Return the innermost function of each node, by the id of the node."""
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    return {id(node): function for function in functions for node in ast.walk(function)}


def strings(node: ast.expr, scope: Scope) -> list[str]:
    """Return what a string expression can be; a value that is not known is its name in angle brackets."""
    found = _known(node, scope)
    return found if _is_better(found, node) and len(found) <= 2 * _MOST else [_placeholder(node)]


def _is_better(texts: list[str], node: ast.expr) -> bool:
    """Whether strings say more than the name of their expression does."""
    if isinstance(node, ast.Constant) or name_of(node).isupper():
        return bool(texts)
    return any(re.search(r"\b(?!an\b)\w{2}", re.sub("<[^<>]*>", "", text)) for text in texts)


def _known(node: ast.expr, scope: Scope) -> list[str]:  # noqa: PLR0911 - one case per kind of expression
    """Return what a string expression can be, or an empty list if that is not known."""
    if scope.depth > _DEEP:
        return []
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            parts = [_parts(value, scope) for value in values]
            return ["".join(chosen) for chosen in islice(product(*parts), 2 * _MOST)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [a + b for a in strings(left, scope) for b in strings(right, scope)]
        case ast.IfExp(body=body, orelse=orelse):
            return [*strings(body, scope), *strings(orelse, scope)]
        case ast.BoolOp(values=values):
            return [text for value in values for text in strings(value, scope)]
        case ast.Name(id=name):
            return _of_name(name, scope)
        case ast.Call():
            return _of_call(node, scope)
    return []


def _parts(node: ast.expr, scope: Scope) -> list[str]:
    """Return what a part of an f-string can be: its text, known strings, or the name of its value."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    assert isinstance(node, ast.FormattedValue)
    value = node.value
    found = _known(value, scope) if node.conversion == -1 else []
    is_parameter = scope.function is not None and name_of(value) in _parameters(scope.function)
    most = 1 if is_parameter else _MOST  # Parameters vary together, and the product would mix their values.
    return found if _is_better(found, value) and len(found) <= most else [_placeholder(value)]


def _of_name(name: str, scope: Scope) -> list[str]:
    """Return the strings of a local variable, a parameter or a constant of a module."""
    if scope.function is not None:
        if given := _assigned(name, ast.walk(scope.function)):
            inner = scope._replace(depth=scope.depth + 1)
            return [text for value in given if name not in ast.dump(value) for text in strings(value, inner)]
        if name in _parameters(scope.function):
            return _passed(name, scope.function, scope)
    if given := _assigned(name, scope.module.body):
        return _constant(given[0], scope.inside(None))
    module = _imported(name, scope.module)
    if module and (given := _assigned(name, module.body)):
        return _constant(given[0], scope.inside(None, module))
    return []


def _constant(node: ast.expr, scope: Scope) -> list[str]:
    """Return the value of a constant of a module: a string, a number, or several strings with commas."""
    match node:
        case ast.Constant(value=int(number)):
            return [f"{number:,}"]
        case ast.Tuple(elts=values) | ast.List(elts=values) if values:
            texts = [_known(value, scope) for value in values]
            return [", ".join(text for found in texts for text in found if text)] if all(texts) else []
    return _known(node, scope)


def _assigned(name: str, nodes: object) -> list[ast.expr]:
    return [
        node.value
        for node in nodes  # type: ignore[attr-defined]
        if isinstance(node, ast.Assign) and [name_of(target) for target in node.targets] == [name]
    ]


def _parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _passed(name: str, function: ast.FunctionDef, scope: Scope) -> list[str]:
    """Return the strings that the module's calls of a function pass as a parameter."""
    names = [parameter for parameter in _parameters(function) if parameter not in {"self", "cls"}]
    found = list[str]()
    for call in ast.walk(scope.module):
        if isinstance(call, ast.Call) and name_of(call.func) == function.name:
            values = dict(zip(names, call.args, strict=False))
            values |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            if name in values:
                found += strings(values[name], scope.inside(owners(scope.module).get(id(call))))
    return list(dict.fromkeys(found))


def _imported(name: str, module: ast.Module) -> ast.Module | None:
    """Return the module of the package that defines an imported name."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and any(name in {each.name, each.asname} for each in node.names):
            place = ROOT.joinpath(*(node.module or "").split("."))
            for path in (place.with_suffix(".py"), place / "__init__.py"):
                if path.is_relative_to(PACKAGE) and path.exists():
                    return parsed(path)
    return None


def _of_call(call: ast.Call, scope: Scope) -> list[str]:
    """Return the strings that a function of the package returns; of `misspelt`, an example."""
    name = name_of(call.func)
    if name == "misspelt":
        return ["did you mean <name>?"]
    if name == "join" and len(call.args) == 1 and isinstance(call.args[0], ast.Name):
        found = _of_name(call.args[0].id, scope._replace(function=None))
        return found if call.args[0].id.strip("_").isupper() else []
    if name == "join" or not isinstance(call.func, ast.Name | ast.Attribute):
        return []
    modules = [scope.module]
    if isinstance(call.func, ast.Name):
        modules += [module] if (module := _imported(name, scope.module)) else []
    for module in modules:
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                inner = scope.inside(node, module)
                returned = [
                    each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value
                ]
                texts = [_known(value, inner) for value in returned]
                return [text for found in texts for text in found if text] if all(texts) else []
    return []


def _placeholder(node: ast.expr) -> str:
    words = _described(node)
    return f"<{words}>" if words else "…"


def _of(function: str, value: ast.expr) -> str:
    described = _described(value)
    return function if described in {"", "object"} else f"{function} of {described}"


def _described(node: ast.expr) -> str:  # noqa: C901, PLR0911, PLR0912 - one case per kind of expression
    """Return a name for the value of an expression."""
    match node:
        case ast.Name(id=name):
            return "object" if name in {"self", "cls"} else name.strip("_").lower()
        case ast.Attribute(value=ast.Call(func=ast.Name(id="type"), args=[value]), attr="__name__"):
            return _of("type", value)
        case ast.Attribute(value=value, attr="name" | "__name__" | "path" as attribute):
            owner = _described(value)
            return attribute.strip("_") if owner in {"", "object"} else f"{owner} {attribute.strip('_')}"
        case ast.Attribute(attr=attribute):
            return attribute.strip("_")
        case ast.Call(func=ast.Name(id="len"), args=[value]):
            return _of("number", value)
        case ast.Call(func=ast.Name(id="type" | "min" | "max" as function), args=[value]):
            return _of(function, value)
        case ast.Call(func=ast.Name(id="getattr"), args=[_, name, *_]):
            return str(name.value) if isinstance(name, ast.Constant) else "value"
        case ast.Call(func=ast.Attribute(attr="join"), args=[value]):
            return _described(value)
        case ast.Call(func=ast.Attribute(value=value, attr=method)) if name_of(value) not in {
            "np",
            "json",
            "os",
        }:
            return _described(value) or method
        case ast.Call(func=function, args=[value, *_]):
            return _described(value) or name_of(function)
        case ast.Call(func=function):
            return name_of(function).strip("_")
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return key
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant()) if name.endswith("s"):
            return name.strip("_").removesuffix("s")
        case ast.Subscript(value=value) | ast.Starred(value=value) | ast.UnaryOp(operand=value):
            return _described(value)
        case ast.BinOp(left=left, right=right):
            return _described(left) or _described(right)
        case ast.IfExp(body=body, orelse=orelse):
            return _described(body) or _described(orelse)
        case ast.BoolOp(values=values):
            return next(filter(None, map(_described, values)), "")
        case ast.GeneratorExp(generators=[loop, *_]) | ast.ListComp(generators=[loop, *_]):
            return _described(loop.iter)
        case ast.FormattedValue(value=value):
            return _described(value)
        case (
            ast.JoinedStr(values=values)
            | ast.List(elts=values)
            | ast.Tuple(elts=values)
            | ast.Set(elts=values)
        ):
            return next(filter(None, map(_described, values)), "")
    return ""
