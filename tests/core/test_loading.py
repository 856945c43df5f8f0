"""Loading: user code is found without being run, loaded from the working folder, and each failure is one clear line."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from rollout_cli.errors import EnvError, PolicyLoadError, StorageError
from rollout_cli.sources.loading import (
    Source,
    failure,
    first_line,
    imports_from,
    is_module_attribute,
    reporting,
    traceback_text,
)
from rollout_cli.sources.untrusted import one_line, printable
from tests.helpers.errors import raises
from tests.helpers.projects import project, run_python, write_module

__all__ = ["project"]

# -- modules of the working folder -----------------------------------------------------------------------------------


def load(spec: str) -> Any:
    """Find in one process, load in another: a source crosses the border as a pickle."""
    source: Source = pickle.loads(pickle.dumps(Source.find(spec, PolicyLoadError)))
    return source.load(PolicyLoadError)


def test_finding_runs_nothing(project: Path) -> None:
    """Neither the module nor the packages that it lies in are imported before the source is loaded."""
    write_module(project, "pack.__init__", "raise RuntimeError('imported')")
    write_module(project, "pack.inner", "x = 1")
    source = Source.find("pack.inner:x", PolicyLoadError)
    assert sha256((project / "pack" / "inner.py").read_bytes()).hexdigest() == source.sha256
    assert not {"pack", "pack.inner"} & sys.modules.keys()
    with raises(PolicyLoadError, "import-failed", "pack.inner", "RuntimeError"):
        source.load(PolicyLoadError)


@pytest.mark.parametrize("name", ["alone", "package.inner", "folder.deeper.inner"])
def test_modules_packages_and_plain_folders(project: Path, name: str) -> None:
    """All are found, with the hash of their source, though a folder without __init__.py has no file."""
    (project / "package").mkdir()
    (project / "package" / "__init__.py").touch()
    write_module(project, name, "class nested:\n    value = 3\n")
    assert 3 == load(f"{name}:nested.value")
    assert "value = 3" in Path(sys.modules[name].__file__ or "").read_text()


def test_a_module_may_import_its_neighbours_then_and_later(project: Path) -> None:
    """While it is loaded, and as late as in a step."""
    write_module(project, "helper", "value = 1")
    write_module(project, "late_helper", "value = 2")
    write_module(
        project, "mine", "import helper\ndef later():\n    import late_helper\n    return late_helper.value\n"
    )
    assert 2 == load("mine:later")()
    assert str(project) == sys.path[-1]


STANDARD = [
    "random",
    "types",
    "queue",
    "select",
    "logging",
    "signal",
    "numpy",
    "gymnasium",
    "telnetlib",
    "uuid",
]


def test_names_of_libraries_do_not_shadow_them(project: Path) -> None:
    """A random.py beside the policy breaks nothing, imported by whomever: in a new process, from another folder."""
    for name in STANDARD:
        write_module(project, name, "raise RuntimeError('the wrong one')")
    write_module(
        project, "mine", "import random, queue, uuid, numpy, gymnasium\nrandom.random()\nvalue = 5\n"
    )
    text = """
        import gymnasium
        from rollout_cli.errors import PolicyLoadError
        from rollout_cli.sources.loading import Source
        source = Source.find("mine:value", PolicyLoadError)
        print(source.load(PolicyLoadError))
        import logging.handlers, multiprocessing.managers
    """
    assert "5\n" == run_python(project, text)


@pytest.mark.parametrize("name", ["random", "numpy", "colorsys"])
def test_a_spec_that_names_a_shadowed_file(project: Path, name: str) -> None:
    """A file with the name of a library in use is not imported, and the error shows which module was."""
    used = importlib.import_module(name).__file__
    write_module(project, name, "value = 1")
    with raises(PolicyLoadError, "attribute-missing", f"'{name}'", used, "'value'"):
        load(f"{name}:value")


def test_the_working_folder_comes_before_installed_packages(project: Path) -> None:
    """An installed package that is not in use yet gives way to the user's own module of its name."""
    name = next(name for name in ("tomli_w", "iniconfig", "mypy", "ruff", "librt") if name not in sys.modules)
    write_module(project, name, "value = 'the user'")
    assert "the user" == load(f"{name}:value")


def test_the_path_of_the_process_is_left_as_it_was() -> None:
    """Where no folder is given, as for an object of the caller's, nothing is put anywhere."""
    before = list(sys.path), list(sys.meta_path)
    with imports_from(None):
        pass
    assert before == (sys.path, sys.meta_path)


def test_a_working_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed modules are still found; a file is missing in words."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load("operator:itemgetter") is not None
    with raises(PolicyLoadError, "spec-file-missing", "a.pkl"):
        Source.read("a.pkl", PolicyLoadError)


# -- what cannot be loaded -------------------------------------------------------------------------------------------

BROKEN = {
    "needy": "import not_installed",
    "leaving": "import sys\nsys.exit(3)",
    "odd": "class Odd(BaseException): pass\nraise Odd('no Exception')",
    "syntax": "def broken(:",
    "endless": "def again(): again()\nagain()",
    "mine": "class Go: pass\ndef go(): pass\n",
    "pack.inner": "import pack.absent",
}


@pytest.mark.parametrize(
    ("spec", "code", "values", "hint"),
    [
        ("absent:Policy", "module-missing", ["'absent'"], ""),
        ("absent.inner:Policy", "module-missing", ["'absent.inner'"], ""),
        ("pack.other:Policy", "module-missing", ["'pack.other'"], ""),
        ("needy:x", "dependency-missing", ["'needy'", "ModuleNotFoundError"], "'not_installed'"),
        ("leaving:x", "import-failed", ["'leaving'", "SystemExit: 3"], "__main__"),
        ("odd:x", "import-failed", ["'odd'", "Odd: no Exception"], ""),
        ("syntax:x", "import-failed", ["'syntax'", "SyntaxError"], ""),
        ("endless:x", "import-failed", ["'endless'", "RecursionError"], ""),
        ("pack.inner:x", "dependency-missing", ["'pack.inner'", "ModuleNotFoundError"], "'pack.absent'"),
        ("mine:Absent", "attribute-missing", ["mine.py", "'Absent'"], "Go, go"),
        ("mine:Go.absent", "attribute-missing", ["mine.py", "'Go.absent'"], ""),
    ],
)
def test_modules_that_cannot_be_loaded(
    project: Path, spec: str, code: str, values: list[str], hint: str
) -> None:
    """Each is an error of the kind that was asked for, in one line, with what to do next."""
    for name, text in BROKEN.items():
        write_module(project, name, text)
    with raises(PolicyLoadError, code, *values) as caught:
        load(spec)
    assert caught.value.hint
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message
    assert 3 == caught.value.exit_code


def test_a_real_interrupt_passes(project: Path) -> None:
    """Ctrl-C while a module is imported is the user's, and no fault of the module."""
    write_module(project, "slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load("slow:x")


# -- pickles ---------------------------------------------------------------------------------------------------------


class Exits:
    def __reduce__(self) -> Any:
        return sys.exit, (0,)


@pytest.mark.parametrize(
    ("data", "code", "raised", "hint"),
    [
        (b"no pickle at all", "unpickle-failed", "", "cloudpickle.dump"),
        (pickle.dumps(list(range(1000)))[:500], "unpickle-failed", "", "cloudpickle.dump"),
        (b"", "unpickle-failed", "EOFError", "cloudpickle.dump"),
        (b"cgone_module\nPolicy\n.", "dependency-missing", "ModuleNotFoundError", "'gone_module'"),
        (b"ctests.core.test_loading\nGoneAway\n.", "attribute-missing", "AttributeError", "policy pack"),
        (pickle.dumps(Exits()), "unpickle-failed", "SystemExit: 0", ""),
    ],
)
def test_pickles_that_cannot_be_loaded(project: Path, data: bytes, code: str, raised: str, hint: str) -> None:
    """Each names the file."""
    (project / "some.pkl").write_bytes(data)
    with raises(PolicyLoadError, code, "'some.pkl'", raised) as caught:
        Source.read("some.pkl", PolicyLoadError).load(PolicyLoadError)
    assert caught.value.hint
    assert hint in caught.value.hint


def test_a_pickle_is_read_once(project: Path) -> None:
    """The bytes that were hashed are loaded, even if the file changes; they are not part of any message."""
    data = cloudpickle.dumps({"a": 1})
    (project / "some.pkl").write_bytes(data)
    source: Source = pickle.loads(pickle.dumps(Source.read("some.pkl", PolicyLoadError)))
    (project / "some.pkl").write_bytes(b"")
    assert {"a": 1} == source.load(PolicyLoadError)
    assert sha256(data).hexdigest() == source.sha256
    assert "data" not in repr(source)


def test_a_pickle_finds_modules_of_the_working_folder(project: Path) -> None:
    """A class that it names may lie there."""
    write_module(project, "classes", "class Mine: pass")
    (project / "some.pkl").write_bytes(b"cclasses\nMine\n.")
    assert "classes" == Source.read("some.pkl", PolicyLoadError).load(PolicyLoadError).__module__


def test_objects_are_pickled_at_once() -> None:
    """Each load is a copy of the object as it was."""
    item = [1]
    source = Source.of(item, PolicyLoadError, hint="")
    item.append(2)
    assert [1] == source.load(PolicyLoadError)
    assert source.load(PolicyLoadError) is not source.load(PolicyLoadError)
    with raises(PolicyLoadError, "pickle-failed") as caught:
        Source.of((n for n in range(3)), PolicyLoadError, hint="use a factory")
    assert "use a factory" == caught.value.hint


@pytest.mark.parametrize(
    ("name", "code", "cause"),
    [
        ("absent", "spec-file-missing", "absent"),
        ("folder", "spec-file-unreadable", "Is a directory"),
        ("pipe", "spec-file-not-regular", "pipe"),
        ("nul\0byte", "spec-file-unreadable", "embedded null byte"),
        ("/dev/zero", "spec-file-not-regular", "/dev/zero"),
        ("a" * 300, "spec-file-unreadable", "File name too long"),
    ],
)
def test_files_that_cannot_be_read(project: Path, name: str, code: str, cause: str) -> None:
    """Nothing waits for a pipe or reads a device without end."""
    (project / "folder").mkdir()
    os.mkfifo(project / "pipe")
    with raises(EnvError, code, cause):
        Source.read(name, EnvError)


# -- errors and their texts ------------------------------------------------------------------------------------------


class NoTextError(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError(), "ValueError"),
        (ValueError("  \n"), "ValueError"),
        (NoTextError(), "NoTextError: (no message: __str__ raised ValueError)"),
        (ValueError("\x1b[31mred\ud800"), "ValueError: \\x1b[31mred\\ud800"),
    ],
)
def test_first_lines(error: Exception, line: str) -> None:
    """Type and first line, which cannot drive a terminal."""
    assert line == first_line(error)


def test_texts_of_any_size_are_cut() -> None:
    """An error with 10 MB of text, or ten thousand frames, is shown by its beginning and its end."""
    error = ValueError("begin " + "x" * 10_000_000 + " end")
    assert len(first_line(error)) < 400
    assert all(word in first_line(error) for word in ("begin", "left out", "end"))
    assert len(traceback_text(error)) < 21_000
    assert len(failure(EnvError, "what", error, code="env-build").details) < 21_000


def test_reporting() -> None:
    """All that user code raises becomes one of ours, with its traceback; errors of ours and Ctrl-C pass."""

    def run(error: BaseException) -> None:
        with reporting(EnvError, "env.step failed", hint="look"):
            raise error

    for error in (ValueError("v"), SystemExit(3), GeneratorExit()):
        with raises(EnvError, "user-code-raised") as caught:
            run(error)
        assert caught.value.__cause__ is error
        assert "Traceback" in caught.value.details
    for kind, passing in ((StorageError, StorageError("s")), (KeyboardInterrupt, KeyboardInterrupt())):
        with pytest.raises(kind):
            run(passing)


def test_printable() -> None:
    """Control characters, line breaks and marks of direction are escaped, but for those to keep."""
    assert "ä ok" == printable("ä ok")
    assert "a\\nb\\x1b\\u202e" == printable("a\nb\x1b\u202e")
    assert "a\nb" == printable("a\nb", keep="\n")
    assert "a b" == one_line("a\nb")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("a.b:C.d", True),
        ("a:C-v0", False),
        ("a/b:C", False),
        ("a", False),
        (":C", False),
        ("a:", False),
        ("ä:ö", True),
    ],
)
def test_specs_that_read_as_module_and_attribute(spec: str, expected: bool) -> None:
    """An environment's id has a version or a slash, and so is none."""
    assert expected is is_module_attribute(spec)


def test_an_interrupt_of_the_users_code_itself() -> None:
    """Where Ctrl-C raises no KeyboardInterrupt, as in a run, one that appears is the user's code's own error."""
    handler = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with (
            raises(EnvError, "user-code-raised", "KeyboardInterrupt"),
            reporting(EnvError, "env.step failed"),
        ):
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, handler)
