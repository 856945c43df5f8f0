"""A watch names the files that user code opens, and nothing else; two readings of one file agree or are an error."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rollout_cli.errors import ChangedFilesError
from rollout_cli.sources.pins import (
    FileRecord,
    FileWatch,
    PinnedFile,
    PinRules,
    agreed,
    hashed,
    record,
)
from tests.helpers.errors import raises
from tests.helpers.projects import project, write_module

__all__ = ["project"]


_others: set[str] = set()
"""The files of modules that other tests of this process have imported, and left."""


@pytest.fixture(autouse=True)
def _note_loaded_modules() -> None:
    _others.update(str(getattr(module, "__file__", None)) for module in [*sys.modules.values()])


@contextmanager
def watching(**rules: tuple[str, ...]) -> Iterator[FileWatch]:
    watch = FileWatch(PinRules(**rules))
    try:
        yield watch
    finally:
        watch.end()


def labels(watch: FileWatch) -> set[str]:
    """Return the labels of the files, without the modules that were loaded before the test."""
    return {file.label for file in watch.files() if file.path not in _others}


def test_files_are_seen_however_python_opens_them(project: Path) -> None:
    """By name, path, bytes or flags, memory-mapped too, and also by a relative path before the folder changes."""
    for name in ("text", "path", "flags", "bytes", "moved"):
        Path(name).write_text("x")
    np.savez("weights.npz", w=np.zeros(2))
    np.save("map.npy", np.zeros(2))
    with watching() as watch:
        Path("text").read_text()
        (project / "path").read_bytes()
        os.close(os.open("flags", os.O_RDONLY))
        os.close(os.open(b"bytes", os.O_RDONLY))
        np.load("weights.npz")["w"].sum()
        np.load("map.npy", mmap_mode="r").sum()
        Path("moved").read_text()
        os.chdir("/")
        os.chdir(project)
        expected = {"text", "path", "flags", "bytes", "weights.npz", "map.npy", "moved"}
        assert expected == labels(watch)
    Path("text").read_text()
    assert expected == labels(watch)


def test_what_is_not_the_users_is_left_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of Python, of packages, caches and the system, files that are gone, and what this process writes."""
    home = project / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "compiled")
    inside = (".cache/other/x", ".config/x", ".cache/huggingface/hub/x", ".cache/torch/hub/x", "plain/x")
    outside = (
        "lib/site-packages/x",
        "__pycache__/f-1.py311.nbi",
        "compiled/jit_step-cache",
        "torchinductor_me/x",
        "out/x",
        "log",
        "appended",
        "updated",
        "gone",
    )
    for name in (*(f"home/{path}" for path in inside), *outside):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x")
    with watching(ignored=("out",)) as watch:
        for name in (
            *(f"home/{path}" for path in inside),
            *outside,
            "/etc/hostname",
            "/proc/self/maps",
            os.__file__,
        ):
            Path(name).read_text()
        for name, mode in (("log", "w"), ("appended", "a"), ("updated", "r+")):
            Path(name).open(mode).close()
        os.fdopen(os.open("log", os.O_RDONLY)).close()
        Path("gone").unlink()
        with pytest.raises(FileNotFoundError):
            Path("missing").read_text()
        assert {f"home/{path}" for path in inside[2:]} == labels(watch)


def test_a_working_folder_in_a_hidden_folder_is_the_users(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People work there; other hidden folders stay out."""
    monkeypatch.setenv("HOME", str(project))
    for name in (".work/project/x", ".config/x"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_text("x")
    os.chdir(".work/project")
    with watching() as watch:
        Path("x").read_text()
        Path("../../.config/x").read_text()
        assert {"x"} == labels(watch)


def test_files_in_shared_memory_are_the_users(project: Path) -> None:
    """People put weights there; devices beside it are no files, and a descriptor's number says nothing elsewhere."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file, watching() as watch:
        Path(file.name).read_bytes()
        Path("/dev/null").read_bytes()
        Path(f"/dev/fd/{file.fileno()}").read_bytes()
        assert {Path(file.name).name} == labels(watch)


@pytest.mark.parametrize("bytecode", [True, False])
def test_a_module_is_its_source(project: Path, monkeypatch: pytest.MonkeyPatch, bytecode: bool) -> None:
    """Whether its bytecode is there, or it was imported before the watch began; it stays as it was loaded."""
    monkeypatch.setattr(sys, "dont_write_bytecode", not bytecode)
    monkeypatch.syspath_prepend(project)
    write_module(project, "helper", "X = 1")
    importlib.import_module("helper")
    del sys.modules["helper"]
    assert bytecode == (project / "__pycache__").exists()
    with watching() as watch:
        importlib.import_module("helper")
        assert {"helper.py"} == labels(watch)
    with watching() as watch:
        assert {"helper.py"} == labels(watch)
    write_module(project, "helper", "X = 22")
    with watching() as watch:
        (file,) = (file for file in watch.files() if file.label == "helper.py")
    with raises(ChangedFilesError, "files-changed", "helper.py"):
        hashed(file)
    importlib.reload(sys.modules["helper"])
    with watching() as watch:
        (file,) = (file for file in watch.files() if file.label == "helper.py")
    assert hashed(file).sha256


def test_labels_are_relative_to_the_folder_of_the_spec_or_the_working_folder(project: Path) -> None:
    """And elsewhere names; one that is named is pinned though nobody opens it."""
    for name in ("runs/7/w", "runs/8/w", "named", "other/sub/x"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x")
    with tempfile.NamedTemporaryFile(suffix=".xml") as file:
        with watching(folders=("runs/7",), named=("named", "missing", str(Path(file.name)))) as watch:
            for name in ("runs/7/w", "runs/8/w", "other/sub/x"):
                Path(name).read_text()
            found = {
                pin.label: pin.key for pin in watch.files() if pin.path.startswith((str(project), file.name))
            }
        name = Path(file.name).name
        expected = {"w": "w", "runs/8/w": "runs/8/w", "other/sub/x": "other/sub/x", "named": "named"}
        assert {**expected, name: file.name} == found


def test_a_module_elsewhere_is_called_by_its_dotted_name(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many packages have an `__init__.py`, and where they lie does not matter."""
    (project / "elsewhere").mkdir()
    write_module(project / "elsewhere", "package.inner.helper", "")
    for folder in ("package", "package/inner"):
        (project / "elsewhere" / folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(project / "elsewhere")
    (project / "here").mkdir()
    os.chdir(project / "here")
    with watching() as watch:
        importlib.import_module("package.inner.helper")
        assert {"package/__init__.py", "package/inner/__init__.py", "package/inner/helper.py"} == labels(
            watch
        )


def test_files_of_the_first_call_are_read_at_load(project: Path) -> None:
    """Later ones are read in an episode."""
    for name in ("early", "late"):
        Path(name).write_text("x")
    with watching() as watch:
        Path("early").read_text()
        watch.files()
        Path("early").read_text()
        Path("late").read_text()
        found = {pin.label: pin.at_load for pin in watch.files() if pin.label in ("early", "late")}
    assert {"early": True, "late": False} == found


def pinned(path: Path, key: str = "") -> PinnedFile:
    state = path.stat()
    return PinnedFile(path.name, key or path.name, str(path), (state.st_size, state.st_mtime_ns))


def test_workers_agree_where_they_read_the_same_bytes(project: Path) -> None:
    """Also where the file was written again meanwhile, or two files elsewhere have one name."""
    path, other = project / "w", project / "other" / "w"
    other.parent.mkdir()
    path.write_text("one")
    other.write_text("two")
    first = agreed((), [pinned(path)])
    path.write_text("one")
    os.utime(path, (1, 1))
    assert first == agreed(first, [pinned(path)])
    assert 2 == len(agreed(first, [pinned(other, key=str(other))]))


def test_workers_that_read_other_bytes_are_an_error(project: Path) -> None:
    """It names the file; so is one that changes before it could be hashed."""
    path = project / "w"
    path.write_text("one")
    first = agreed((), [pinned(path)])
    path.write_text("another")
    with raises(ChangedFilesError, "files-changed"):
        agreed(first, [pinned(path)])
    late = pinned(path)
    for change in (lambda: path.write_text("longer still"), path.unlink):
        change()
        with raises(ChangedFilesError, "files-changed"):
            agreed((), [late])


def entry(path: str, sha256: str, read: str = "load") -> FileRecord:
    return {"path": path, "sha256": sha256, "read": read}


def test_the_record_is_sorted() -> None:
    """By name, so that two runs of one kind have the same one."""
    files = [PinnedFile("b", "b", "/b", (1, 1), sha256="2"), PinnedFile("a", "/a", "/a", (1, 1), False, "1")]
    assert [entry("a", "1", "episode") | {"place": "/a"}, entry("b", "2")] == record(files)
