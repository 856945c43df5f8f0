"""Nothing is made of a dataset that `verify` rejects, unless the user asks for that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rollout_cli import convert_dataset, export, filter_dataset, join_datasets, relabel_dataset, split_dataset
from rollout_cli.dataset.reader import load
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.errors import DatasetFormatError
from rollout_cli.run.merge import merge
from tests.helpers.damage import INFO, data, episodes, rewrite, set_json
from tests.helpers.errors import raises
from tests.helpers.writing import CHUNKS, SMALL, write_dataset

FILE = 2
"""The segment that is damaged."""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "d"
    assert write_dataset(path, CHUNKS, limits=SMALL).segments > FILE + 1
    return path


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(pristine, tmp_path / "d"))


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[pa.Table], pa.Table]:
    def of_table(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        values = change(np.array(table[name].to_pylist()))
        return table.set_column(at, table.schema.field(at), pa.array(values.tolist(), table.schema.types[at]))

    return of_table


HARMS = {
    "other actions": (data(FILE), changed("action", lambda values: values + 1)),
    "rows in another order": (episodes(FILE), lambda table: table.take([0, *range(len(table) - 1, 0, -1)])),
    "higher returns": (episodes(FILE), changed("return", lambda values: values + 1000.0)),
    "other rewards": (data(FILE), changed("reward", lambda values: values[::-1])),
    "other ends": (data(FILE), changed("terminated", lambda values: ~values)),
}
"""What is done to the rows of a file, whose metadata stay."""

EDITS: dict[str, Callable[..., object]] = {
    "filter": lambda path, out, **how: filter_dataset(load(path), out, "length > 0", **how),
    "split": lambda path, out, **how: split_dataset(load(path), out, {"a": 0.5, "b": 0.5}, **how),
    "join": lambda path, out, **how: join_datasets([load(path)[:20], load(path)[20:]], out, **how),
    "merge": lambda path, out, **how: merge([path, path], out, **how),
    "convert": lambda path, out, **how: convert_dataset(load(path), out, segment_rows=300, **how),
    "relabel": lambda path, out, **how: relabel_dataset(load(path), out, lambda each: each.rewards, **how),
    "export": lambda path, out, **how: export(load(path), "hf", out, **how),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("harm", HARMS)
def test_an_edit_refuses_what_verify_rejects(folder: Path, tmp_path: Path, harm: str, edit: str) -> None:
    """The error names the file, and what to do; nothing is written."""
    file, change = HARMS[harm]
    rewrite(folder / file, change)
    assert verify_dataset(folder).faults
    with raises(DatasetFormatError, "dataset-damaged", FILE) as caught:
        EDITS[edit](folder, tmp_path / "out")
    assert "rollout repair" in caught.value.hint
    assert caught.value.hint.endswith("verify=False")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("edit", sorted({*EDITS} - {"merge"}))  # It refuses an episode that is given twice.
def test_an_edit_that_does_not_verify_reads_it_as_it_is(folder: Path, tmp_path: Path, edit: str) -> None:
    file, change = HARMS["other actions"]
    rewrite(folder / file, change)
    EDITS[edit](folder, tmp_path / "out", verify=False)
    assert (tmp_path / "out").exists()


def test_a_load_that_verifies(pristine: Path, folder: Path) -> None:
    """A view of files that are as they were can be exported; a load verifies only where it is asked to."""
    file, change = HARMS["other actions"]
    rewrite(folder / file, change)
    with raises(DatasetFormatError, "dataset-damaged"):
        load(folder, verify=True)
    assert len(load(pristine, verify=True)) == len(load(folder))
    set_json(folder / INFO, bytes=sum(path.stat().st_size for path in folder.rglob("file-*.parquet")))
    export(load(folder)[:2], "hf", folder.parent / "two")
    with raises(DatasetFormatError, "dataset-damaged"):
        export(load(folder)[-30:], "hf", folder.parent / "many")
