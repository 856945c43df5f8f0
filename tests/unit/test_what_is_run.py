"""Where the package runs what it is given, and how it draws on terminals: few places, all of them known."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.unit.test_floors import MODULES, floor, imports

LOADERS = {
    "pickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "runpy",
    "torch",
    "numpy",
    "pandas",
}
"""Modules that can run what they read, by the names below."""
LOADING = {"load", "loads", "Unpickler", "Pickler", "open", "run_path", "run_module"}
RUNNING = {"eval", "exec", "compile", "__import__"}

ALLOWED = {
    # A policy or an environment that the user named, from the bytes that were hashed.
    "user_code:PickleFile.load pickle.loads",
    # What was pickled a moment ago, to see that it loads.
    "policies.pack:_check_loads pickle.loads",
    # Objects of the user's own, on their way to a worker of the same run.
    "envs.updates:NewEnvUpdate.__setstate__ cloudpickle.loads",
    "envs.updates:SetTaskUpdate.__setstate__ cloudpickle.loads",
    "samplers.messages:Pickled.load pickle.loads",
    "samplers.worker_main:worker_main pickle.loads",
    # Messages between the processes of one run, and those of them that wait in its unlinked spill file.
    "packing:unpack pickle.loads",
    "samplers.reports:unpack_error pickle.loads",
}


class Uses(ast.NodeVisitor):
    """Finds uses of what runs or loads code, called or not, each with the function that it stands in."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._aliases: dict[str, str] = {}
        self._inside: list[str] = []

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            self._aliases[name.asname or name.name] = name.name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for name in node.names:
            if node.module in LOADERS | {"builtins"} and name.name in LOADING | RUNNING:
                self._note(f"{node.module}.{name.name}")

    def _visit_inner(self, node: ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) -> None:
        self._inside.append(node.name)
        self.generic_visit(node)
        self._inside.pop()

    visit_FunctionDef = _visit_inner  # noqa: N815 - the names are ast's
    visit_AsyncFunctionDef = _visit_inner  # noqa: N815
    visit_ClassDef = _visit_inner  # noqa: N815

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in RUNNING:
            self._note(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        module = self._aliases.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if (module in LOADERS and node.attr in LOADING) or (module == "builtins" and node.attr in RUNNING):
            self._note(f"{module}.{node.attr}")

    def _note(self, what: str) -> None:
        self.found.add(f"{'.'.join(self._inside)} {what}")


def uses(source: str) -> set[str]:
    visitor = Uses()
    visitor.visit(ast.parse(source))
    return visitor.found


def test_code_and_pickles_are_loaded_where_they_must_be() -> None:
    """And nowhere else: a new place is named above, with its reason, or it is not made."""
    found = {f"{module}:{use}" for module, path in MODULES.items() for use in uses(path.read_text())}
    assert ALLOWED == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle\ndef f(x): return pickle.loads(x)", {"f pickle.loads"}),
        ("import pickle as p\nclass A:\n  def f(self): map(p.load, self)", {"A.f pickle.load"}),
        ("from cloudpickle import loads", {" cloudpickle.loads"}),
        ("import numpy as np\nnp.load('x')", {" numpy.load"}),
        ("run = eval\nre.compile('x')", {" eval"}),
        ("module.eval()\nimport json\njson.loads('1')", set()),
    ],
)
def test_the_search_finds_them(source: str, found: set[str]) -> None:
    """Under any name, called or handed on."""
    assert found == uses(source)


@pytest.mark.parametrize("module", [module for module in MODULES if floor(module) >= 5])
def test_nothing_of_a_dataset_can_be_unpickled(module: str) -> None:
    """What reads and writes datasets, and all above it, has no means to: it names no module that does such a thing."""
    assert set() == set(imports(module)) & {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}


def calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    for module in (module for module in MODULES if floor(module) >= 6):
        for node in ast.walk(ast.parse(MODULES[module].read_text())):
            if isinstance(node, ast.Call) and name in {getattr(node.func, "id", ""), getattr(node.func, "attr", "")}:
                yield module, node


@pytest.mark.parametrize("name", ["Console", "TextColumn"])
def test_no_text_is_read_as_markup(name: str) -> None:
    """Whatever draws with rich says so, where rich would read markup unasked."""
    found = list(calls(name))
    assert found
    for module, call in found:
        markup = next((word.value for word in call.keywords if word.arg == "markup"), None)
        assert isinstance(markup, ast.Constant), module
        assert markup.value is False, module


def test_no_markup_is_asked_for() -> None:
    """Nor does anything print through rich's own `print`."""
    assert [] == list(calls("from_markup"))
    assert set() == {module for module in MODULES if {"rich.print", "rich.markup"} & set(imports(module))}
