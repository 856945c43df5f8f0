"""What a pickle would import, and what code it holds by value, told without loading it.

This is for people who want to know what a file needs and does at first sight. It is no security check: what is imported
may import and run anything else.
"""

from __future__ import annotations

import itertools
import pickletools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from rollout_cli.errors import PolicyLoadError
from rollout_cli.file_trust import read_bytes
from rollout_cli.policies.inspect_stack import Call, Import, StackMachine

MOST_BYTES = 4 << 30
MOST_OPCODES = 10_000_000
"""A pickle of more is refused: following so many takes a quarter of a minute."""

NOTE = "This lists what the file names. It is no security check: what is imported can run anything."

_MODULE_IMPORTERS = {("importlib", "import_module"), ("builtins", "__import__")}
_SHOWN_IN_ERRORS = 50
_ZIP = b"PK\x03\x04"


@dataclass(frozen=True, slots=True)
class CodeByValue:
    """Code that the pickle holds itself, as cloudpickle writes it.

    Attributes:
        kind: `function`, `class` or `module`.
        name: Its name, qualified where that is written there.
        file: Where a function's code came from; None for the others.
    """

    kind: str
    name: str
    file: str | None = None


@dataclass(frozen=True, slots=True)
class PickleContents:
    """What a pickle holds.

    Attributes:
        path: The file.
        n_bytes: Its size.
        sha256: Hash of its bytes.
        protocol: The highest protocol that its opcodes need, or that it says.
        imports: What it would import, in order and each once.
        code: What it holds by value, in order and each once.
        n_trailing: How many bytes come after the pickle's end, which no loader reads.
    """

    path: str
    n_bytes: int
    sha256: str
    protocol: int
    imports: tuple[Import, ...]
    code: tuple[CodeByValue, ...]
    n_trailing: int


def inspect_pickle(path: str, *, most_opcodes: int = MOST_OPCODES) -> PickleContents:
    """Read a pickle without loading it.

    Raises:
        PolicyLoadError: If it cannot be read, is too large, or is no whole pickle. What was found before a break is in
            the details, for a loader would have run that far.
    """
    data = read_bytes(path, PolicyLoadError, most=MOST_BYTES)
    _refuse_other_kinds(path, data)
    findings = _Findings()
    try:
        is_whole = findings.follow(data, most_opcodes)
    except (ValueError, ArithmeticError, LookupError, struct.error) as error:
        raise PolicyLoadError(
            f"{path!r} is no whole pickle: {error} (after byte {findings.position:,} of {len(data):,})",
            hint="it may be cut short, or another kind of file; trying to load it may run code all the same",
            details=findings.text(),
        ) from error
    if not is_whole:
        raise PolicyLoadError(
            f"{path!r} has more than {most_opcodes:,} opcodes, which is more than are looked through",
            hint="large arrays are a few opcodes each: keep them as arrays and not as lists",
            details=findings.text(),
        )
    return PickleContents(
        path=path,
        n_bytes=len(data),
        sha256=sha256(data).hexdigest(),
        protocol=findings.protocol,
        imports=tuple(findings.imports),
        code=tuple(findings.code),
        n_trailing=len(data) - findings.position - 1,
    )


def _refuse_other_kinds(path: str, data: bytes) -> None:
    if not data:
        raise PolicyLoadError(f"{path!r} is empty", hint="write it again, for example with `rollout policy pack`")
    if data.startswith(_ZIP):
        raise PolicyLoadError(
            f"{path!r} is a ZIP archive, as torch.save writes it, and no pickle",
            hint="a policy's file is a pickle of the policy itself, or of a class or factory",
        )


def _opcodes(data: bytes) -> Iterator[tuple[pickletools.OpcodeInfo, Any, int]]:
    """Yield opcodes, their arguments and places; with GLOBAL and INST come two names as the unpickler reads them."""
    for opcode, argument, position in pickletools.genops(data):
        assert position is not None
        # pickletools takes these names for escaped text, which they are not.
        names = _two_lines(data, position + 1) if opcode.name in {"GLOBAL", "INST"} else argument
        yield opcode, names, position


def _two_lines(data: bytes, begin: int) -> tuple[str, str]:
    middle = data.index(b"\n", begin)
    end = data.index(b"\n", middle + 1)
    return data[begin:middle].decode(), data[middle + 1 : end].decode()


@dataclass(slots=True)
class _Findings:
    """What has been found so far; dictionaries keep the order, and each thing once."""

    imports: dict[Import, None] = field(default_factory=dict)
    code: dict[CodeByValue, None] = field(default_factory=dict)
    protocol: int = 0
    position: int = 0

    def follow(self, data: bytes, most_opcodes: int) -> bool:
        """Follow a pickle to its end, and return whether it has one before so many opcodes."""
        machine = StackMachine(self._note_import, self._note_call)
        for opcode, argument, self.position in itertools.islice(_opcodes(data), most_opcodes):
            self.protocol = max(self.protocol, argument if opcode.name == "PROTO" else opcode.proto)
            machine.follow(opcode, argument)
            if opcode.name == "STOP":
                return True
        return False

    def text(self) -> str:
        """Return the imports as lines, for an error's details."""
        lines = [f"  {import_name(found)}" for found in self.imports]
        more = len(lines) - _SHOWN_IN_ERRORS
        shown = lines[:_SHOWN_IN_ERRORS] + ([f"  and {more:,} more"] if more > 0 else [])
        return "\n".join(["It would import until then:", *shown]) if shown else ""

    def _note_import(self, found: Import) -> None:
        self.imports[found] = None

    def _note_call(self, call: Call) -> None:
        module, code = _module_import(call), _code_by_value(call)
        if module is not None:
            self.imports[module] = None
        if code is not None:
            self.code[code] = None


def import_name(found: Import) -> str:
    """Return an import as a person reads it, with a question mark for what only loading could tell."""
    module = "?" if found.module is None else found.module
    return (
        f"{module} (module)" if found.is_module else f"{module}.{'?' if found.attribute is None else found.attribute}"
    )


def _module_import(call: Call) -> Import | None:
    """Return the module that a call imports, where it does that and the name is known."""
    if not isinstance(call.function, Import) or not call.arguments:
        return None
    is_importer = (call.function.module, call.function.attribute) in _MODULE_IMPORTERS
    if not is_importer and _cloudpickle_name(call) != "subimport":
        return None
    module = call.arguments[0]
    return Import(module if isinstance(module, str) else None, None, is_module=True)


def _code_by_value(call: Call) -> CodeByValue | None:
    """Return what a call of cloudpickle's makes of the pickle's own code."""
    texts = [argument for argument in call.arguments if isinstance(argument, str)]
    name = _cloudpickle_name(call)
    if name in {"_make_skeleton_class", "_make_skeleton_enum", "_make_typevar"}:
        return CodeByValue("class", texts[0] if texts else "?")
    if name == "dynamic_subimport":
        return CodeByValue("module", texts[0] if texts else "?")
    if _is_code_type(call.function):
        # Of the arguments of a code object these are texts: the file, the name, and the qualified name.
        file, function = (texts[0], texts[-1]) if len(texts) > 1 else (None, "?")
        return CodeByValue("function", function, file)
    return None


def _cloudpickle_name(call: Call) -> str | None:
    function = call.function
    is_its = isinstance(function, Import) and (function.module or "").split(".")[0] == "cloudpickle"
    return function.attribute if is_its else None


def _is_code_type(function: Any) -> bool:
    if isinstance(function, Import):
        return (function.module, function.attribute) == ("types", "CodeType")
    return (
        isinstance(function, Call)
        and _cloudpickle_name(function) == "_builtin_type"
        and function.arguments == ("CodeType",)
    )
