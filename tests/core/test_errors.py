"""The error tree: hints, and the way across a process border; tests of the documents compare the exit codes."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollout_cli
from rollout_cli import errors
from rollout_cli.cli.app import app
from rollout_cli.errors import MARKUP, EnvError, RolloutError, UserCodeError, VerificationError, as_flags
from rollout_cli.options.config import OPTIONS

PACKAGE = Path(rollout_cli.__file__).parent


def kinds() -> list[type[RolloutError]]:
    return [
        item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, RolloutError)
    ]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_an_error_crosses_a_process_border(kind: type[RolloutError]) -> None:
    """Class, message, hint and details survive pickling, so a worker's error reads the same in the parent."""
    sent = kind("worker 3 failed", hint="look below", details="Traceback …")
    arrived = pickle.loads(pickle.dumps(sent))
    assert type(arrived) is kind
    assert ("worker 3 failed", "look below", "Traceback …") == (
        arrived.message,
        arrived.hint,
        arrived.details,
    )
    assert "worker 3 failed" == str(arrived)
    assert ("", "") == (kind("only this").hint, kind("only this").details)


def test_what_an_error_knows_beside_its_texts_survives_pickling() -> None:
    """The episodes and the place of user code's error, and the report of a verification."""
    failed = pickle.loads(pickle.dumps(EnvError("it broke", place="worker 3, episode 7", episodes=(7, 8))))
    assert ("it broke (worker 3, episode 7)", "worker 3, episode 7", (7, 8)) == (
        str(failed),
        failed.place,
        failed.episodes,
    )
    assert {"faults": 2} == pickle.loads(
        pickle.dumps(VerificationError("damaged", report={"faults": 2}))
    ).report


def test_an_error_keeps_its_first_place() -> None:
    """It is given one by the innermost code that knows it."""
    placed = UserCodeError("it broke", hint="mend it", details="Traceback …").placed("worker 1", (3,))
    assert ("it broke (worker 1)", "mend it", "Traceback …", (3,)) == (
        str(placed),
        placed.hint,
        placed.details,
        placed.episodes,
    )
    again = placed.placed("worker 2", (4,))
    assert ("it broke (worker 1)", (4,)) == (again.message, again.episodes)


def test_a_copy_with_another_hint() -> None:
    """It has the cause, and the original keeps its own hint."""
    error = EnvError("it broke", hint="first", episodes=(7,))
    error.__cause__ = cause = ValueError("the simulator")
    changed = error.with_hint("second")
    assert (EnvError, "it broke", "second", (7,), cause) == (
        type(changed),
        changed.message,
        changed.hint,
        changed.episodes,
        changed.__cause__,
    )
    assert "first" == error.hint


HINTS = {
    "choose another {output}": ("choose another output", "choose another --output"),
    "{max_episode_length=N} truncates it": (
        "max_episode_length=N truncates it",
        "--max-episode-length N truncates it",
    ),
    "{resume=True} continues": ("resume=True continues", "--resume continues"),
    "{grace=…} says how long": ("grace=… says how long", "--grace says how long"),
    'use {sampler="local"}': ('use sampler="local"', "use --sampler local"),
    '{drop_info="a b=1"}': ('drop_info="a b=1"', "--drop-info 'a b=1'"),
    "{env_kwargs=size=N}": ('env_kwargs={"size": N}', "--env-kwargs size=N"),
    "{workers=2} and {envs_per_worker=4}": (
        "n_workers=2 and n_envs=4",
        "--workers 2 and --envs-per-worker 4",
    ),
    r'{drop_info="a \"b\" {c}"}': (r'drop_info="a \"b\" {c}"', """--drop-info 'a "b" {c}'"""),
    "make it a vector: {set=flatten=true}": (
        "make it a vector: flatten=True",
        "make it a vector: --set flatten=true",
    ),
    "it is in data/{seed}": ("it is in data/{seed}", "it is in data/{seed}"),
    "return (action, {}), or {'a': 1}": (
        "return (action, {}), or {'a': 1}",
        "return (action, {}), or {'a': 1}",
    ),
}


@pytest.mark.parametrize("hint", HINTS)
def test_options_in_hints(hint: str) -> None:
    """An argument to Python programs, a flag on the command line."""
    assert HINTS[hint] == (RolloutError("it broke", hint=hint).hint, as_flags(hint))


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _hints(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of `hint=…` arguments, and of names that hold hints."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            yield from _texts(node.value)
        elif isinstance(node, ast.Assign):
            names = " ".join(name.id for name in node.targets if isinstance(name, ast.Name))
            yield from _texts(node.value) if re.search("hint|advice|kept", names, re.IGNORECASE) else ()


_PARAMETERS = {
    name
    for command in app.registered_commands
    if command.callback is not None
    for name in inspect.signature(command.callback).parameters
}
"""Those of the commands that declare their own options."""


@pytest.mark.parametrize(
    "path",
    sorted(PACKAGE.rglob("*.py")),
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_hints_name_options_by_markup(path: Path) -> None:
    """No hint holds a flag of an option, which no Python program has; what is marked up is an option."""
    tree = ast.parse(path.read_text())
    flags = {option.flag for option in OPTIONS.values()}
    named = {flag for hint in _hints(tree) for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", hint)}
    assert not named & flags
    assert {name for hint in _hints(tree) for name, _ in MARKUP.findall(hint)} <= OPTIONS.keys() | _PARAMETERS
