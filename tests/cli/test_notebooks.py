"""The tutorials: their cells run in order, and the outputs that they store are those of this version."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import ROOT, variables
from tests.helpers.thorough import usually

NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
_RUNNER = """
import ast, json, sys

shown = []
names = {"__name__": "__main__"}
for cell in json.loads(sys.stdin.read()):
    *statements, last = ast.parse(cell).body
    exec(compile(ast.Module(statements, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        shown.append(repr(eval(compile(ast.Expression(last.value), "cell", "eval"), names)))
    else:
        exec(compile(ast.Module([last], []), "cell", "exec"), names)
print(json.dumps(shown))
"""


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize(
    "path", usually(NOTEBOOKS, lambda path: path.stem == "first_dataset"), ids=lambda path: path.stem
)
def test_a_tutorial_shows_what_its_cells_return(path: Path, tmp_path: Path) -> None:
    """Each cell ends with a value; what has arrays of floats is compared by its first words."""
    cells = code_cells(path)
    ran = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        input=json.dumps(["".join(cell["source"]) for cell in cells]),
        cwd=tmp_path,
        env={**variables(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == ran.returncode, ran.stderr
    shown = json.loads(ran.stdout.splitlines()[-1])
    stored = ["".join(output["data"]["text/plain"]) for cell in cells for output in cell["outputs"]]
    assert len(cells) == len(shown) == len(stored)
    assert [text.split() for text in stored] == [text.split() for text in shown]


def test_there_are_tutorials() -> None:
    assert ["first_dataset", "offline_rl"] == [path.stem for path in NOTEBOOKS]
    for path in NOTEBOOKS:
        assert "/tmp/" not in path.read_text()
        assert all(
            "error" != output["output_type"] for cell in code_cells(path) for output in cell["outputs"]
        )
