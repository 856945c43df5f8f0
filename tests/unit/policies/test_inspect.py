"""What a pickle would import is told as the unpickler would do it, and nothing of it is run."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
from collections import OrderedDict
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.errors import PolicyLoadError
from rollout_cli.policies.inspect_pickle import CodeByValue, PickleContents, import_name, inspect_pickle
from tests.support.policies import LinearPolicy

BUILD_A_NAME = (
    # numpy.prod gets attributes whose names are those of what is imported then.
    b"\x80\x05cnumpy\nprod\nN(Va\nVos\nd\x86bN(Vb\nVsystem\nd\x86b0cnumpy\nprod.a\np0\ncnumpy\nprod.b\np1\n00g0\ng1\n\x93."
)
HOSTILE = {
    "by the stack": (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", ["os.system"]),
    "memo, written and read in another order": (
        b"\x80\x04\x8c\x02osq\x05\x8c\x06systemq\x0000\x8c\x05numpy\x94\x8c\x04prod\x9400h\x05h\x00\x93.",
        ["os.system"],
    ),
    "memo by number and by count": (
        b"\x80\x04\x8c\x02osq\x00\x8c\x06systemq\x01\x8c\x05numpy\x94\x8c\x04prod\x940000h\x00h\x01\x93.",
        ["os.system"],
    ),
    "values between": (b"\x80\x04\x8c\x02os(K\x01K\x02K\x03t0\x8c\x06systemN0\x93.", ["os.system"]),
    "doubled": (b"\x80\x04\x8c\x02os2\x93.", ["os.os"]),
    "by texts of protocol 0": (b"S'os'\nVsystem\n\x93.", ["os.system"]),
    "by an object of protocol 0": (b"(S'echo'\nios\nsystem\n.", ["os.system"]),
    "by a class on the stack": (b"(cos\nsystem\nS'echo'\no.", ["os.system"]),
    "a dotted name": (b"\x80\x04\x8c\x02os\x8c\x0bpath.exists\x93.", ["os.path.exists"]),
    "a name with a backslash": (b"c\\x6fs\nsystem\n.", ["\\x6fs.system"]),
    "computed names": (BUILD_A_NAME, ["numpy.prod", "numpy.prod.a", "numpy.prod.b", "?.?"]),
    "no text as a name": (b"\x80\x04C\x02osK\x01\x93.", ["?.?"]),
    "a list as a name": (b"\x80\x04]\x8c\x06system\x93.", ["?.system"]),
    "a memo that is empty": (b"\x80\x04h\x07\x8c\x06system\x93.", ["?.system"]),
    "an extension": (b"\x80\x02\x82\x01.", ["?.?"]),
    "a module by a call": (
        b"cimportlib\nimport_module\n(S'os'\ntR.",
        ["importlib.import_module", "os (module)"],
    ),
}
BROKEN = {
    "nothing": b"",
    "a text": b"no pickle at all",
    "no end": b"\x80\x04K\x01",
    "an empty stack": b".",
    "a stack that is empty below": b"\x80\x04K\x01\x86.",
    "no mark": b"\x80\x04K\x01t.",
    "an object of no class": b"(o.",
    "a length beyond the end": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
    "an unknown opcode": b"\x80\x04\xff.",
    "names that are no text": b"c\xff\xfe\nx\n.",
    "an archive": b"PK\x03\x04" + bytes(30),
}


def inspected(folder: Path, data: bytes, **options: Any) -> PickleContents:
    """Inspect these bytes."""
    (folder / "p.pkl").write_bytes(data)
    return inspect_pickle(str(folder / "p.pkl"), **options)


def names(contents: PickleContents) -> list[str]:
    return [import_name(found) for found in contents.imports]


class Recording(pickle._Unpickler):
    """An unpickler that tells what it imports."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.found: dict[str, None] = {}

    def find_class(self, module: str, name: str) -> Any:
        self.found[f"{module}.{name}"] = None
        return super().find_class(module, name)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "item",
    [
        3,
        LinearPolicy,
        np.arange(6.0).reshape(2, 3),
        {"a": OrderedDict(x=Fraction(1, 3)), "b": (np.dtype("f4"), {1, 2}, frozenset("a"), b"x", 2**90, -1.5)},
        [np.random.default_rng(0), np.float32(1), bytearray(b"a"), complex(1, 2), len, np.random.default_rng],
    ],
)
def test_imports_are_those_of_the_unpickler(tmp_path: Path, item: Any, protocol: int) -> None:
    """In its order, for each protocol."""
    data = pickle.dumps(item, protocol)
    unpickler = Recording(data)
    unpickler.load()
    contents = inspected(tmp_path, data)
    assert list(unpickler.found) == names(contents)
    assert () == contents.code
    assert (len(data), sha256(data).hexdigest(), 0) == (contents.n_bytes, contents.sha256, contents.n_trailing)
    assert contents.protocol <= protocol


@pytest.mark.parametrize("case", HOSTILE)
def test_names_that_are_hidden(tmp_path: Path, case: str) -> None:
    """Whichever way the names take, they are those that the unpickler would import, or `?` if only it could tell."""
    data, imports = HOSTILE[case]
    assert imports == names(inspected(tmp_path, data))


def test_code_by_value(tmp_path: Path) -> None:
    """Functions and classes that the file holds itself are told by name, and the modules that they need."""
    space: dict[str, Any] = {"__name__": "lean", "np": np}
    source = "class Lean:\n  def act(self, x):\n    return np.argmax(x)\ndef make(spec): return Lean()"
    exec(compile(source, "/home/me/lean.py", "exec"), space)
    contents = inspected(tmp_path, cloudpickle.dumps(space["make"]))
    assert {
        CodeByValue("function", "make", "/home/me/lean.py"),
        CodeByValue("class", "Lean"),
        CodeByValue("function", "Lean.act", "/home/me/lean.py"),
    } == set(contents.code)
    assert "numpy (module)" in names(contents)


def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaves_a_trace.py").write_text("open('trace', 'w').close()")
    data = b"cleaves_a_trace\nx\ncpathlib\nPath.touch\n(cpathlib\nPath\n(Vtrace\ntRtR."
    assert ["leaves_a_trace.x", "pathlib.Path.touch", "pathlib.Path"] == names(inspected(tmp_path, data))
    assert not (tmp_path / "trace").exists()


def test_what_comes_after_the_end(tmp_path: Path) -> None:
    """It is counted, and not looked at, for no loader does."""
    contents = inspected(tmp_path, b"N.cos\nsystem\n.")
    assert ((), 12) == (contents.imports, contents.n_trailing)


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_pickle(tmp_path: Path, case: str) -> None:
    """One clear error, whatever the bytes are."""
    with pytest.raises(PolicyLoadError, match=r"p\.pkl' is (no whole pickle|empty|a ZIP archive)"):
        inspected(tmp_path, BROKEN[case])


def test_a_break_tells_what_came_before(tmp_path: Path) -> None:
    """A loader would have run that far."""
    with pytest.raises(PolicyLoadError) as caught:
        inspected(tmp_path, b"cos\nsystem\n(S'echo'\ntR\xff")
    assert "os.system" in caught.value.details
    assert "may run code" in caught.value.hint


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle of too many opcodes or bytes is refused instead of followed for ever."""
    with pytest.raises(PolicyLoadError, match="more than 100 opcodes"):
        inspected(tmp_path, pickle.dumps(list(range(1000))), most_opcodes=100)
    monkeypatch.setattr("rollout_cli.policies.inspect_pickle.MOST_BYTES", 10)
    with pytest.raises(PolicyLoadError, match="too large"):
        inspected(tmp_path, pickle.dumps("a longer text"))


PIECES = [bytes([code]) for code in range(256)] + [b"\n", b"os\n", b"\x8c\x01a", b"(", b"."] * 20


@given(st.lists(st.sampled_from(PIECES)))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    """Random opcodes give contents or the one error, and never another."""
    folder, data = tmp_path_factory.getbasetemp(), b"".join(pieces)
    with contextlib.suppress(PolicyLoadError):
        assert len(data) == inspected(folder, data).n_bytes
