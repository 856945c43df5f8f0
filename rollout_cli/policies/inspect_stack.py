"""The stack machine of pickles, on descriptions instead of values: what would be imported and called, and nothing run.

The imports of a pickle are not all written in it as such: since protocol 4 the names are taken from the stack, where
any opcode may have put them, by way of the memo too. So each opcode is followed as the unpickler follows it, and what
only running it could tell stands as `UNKNOWN`.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class MalformedPickleError(ValueError):
    """A stream that the machine cannot follow; its text tells why."""


class Unknown:
    """A value that nothing is known of."""


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True)
class Import:
    """`module.attribute`, as the unpickler would look it up.

    Attributes:
        module: The module's name; None where it is computed while the pickle is loaded.
        attribute: The attribute's dotted name; None where it is computed, and for a whole module.
        is_module: Whether the module itself is what is imported, as a call does it.
    """

    module: str | None
    attribute: str | None
    is_module: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """What calling `function` with `arguments` would give.

    Attributes:
        function: A description of what is called.
        arguments: Descriptions of the arguments; none where these are not known.
    """

    function: Any
    arguments: tuple[Any, ...]


_TEXTS = {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"}
_CHANGING = {"APPEND": 1, "SETITEM": 2, "BUILD": 1}
"""Opcodes that change the value below their arguments, of which there are so many."""
_CHANGING_TO_MARK = {"APPENDS", "SETITEMS", "ADDITEMS"}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class StackMachine:
    """Follows a pickle opcode by opcode.

    Args:
        imported: Called with each import, when the unpickler would do it.
        called: Called with each call, when the unpickler would make it.
    """

    def __init__(self, imported: Callable[[Import], None], called: Callable[[Call], None]) -> None:
        self._imported, self._called = imported, called
        self._stack: list[Any] = []
        self._below_marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._methods: dict[str, Callable[[Any], None]] = {
            "MARK": self._mark,
            "POP": self._pop_or_unmark,
            "POP_MARK": lambda _: self._discard(self._pop_mark()),
            "DUP": lambda _: self._push_again(),
            "TUPLE": lambda _: self._push(tuple(self._pop_mark())),
            "MEMOIZE": lambda _: self._put(len(self._memo)),
            "GLOBAL": lambda names: self._import(*names),
            "STACK_GLOBAL": lambda _: self._stack_global(),
            "INST": self._inst,
            "OBJ": lambda _: self._obj(),
            "REDUCE": lambda _: self._reduce(1),
            "NEWOBJ": lambda _: self._reduce(1),
            "NEWOBJ_EX": lambda _: self._reduce(2),
            "STOP": lambda _: self._discard(self._pop()),
        }
        self._methods |= dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), self._put)
        self._methods |= dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), self._get)
        self._methods |= dict.fromkeys(("EXT1", "EXT2", "EXT4"), lambda _: self._import(None, None))
        self._methods |= dict.fromkeys(_TEXTS, self._push)
        self._methods |= dict.fromkeys(_CHANGING_TO_MARK, lambda _: self._discard(self._pop_mark()))
        self._methods |= {name: self._dropping(count) for name, count in _CHANGING.items()}
        self._methods |= {name: self._tupling(count) for name, count in _TUPLES.items()}

    def follow(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Do what an opcode does.

        Args:
            opcode: The opcode.
            argument: Its argument; for GLOBAL and INST the names of the module and the attribute.

        Raises:
            MalformedPickleError: If the stack does not have what it takes.
        """
        method = self._methods.get(opcode.name)
        if method is not None:
            method(argument)
            return
        # All the rest only takes values away and gives others, of which nothing needs to be known.
        if pickletools.markobject in opcode.stack_before:
            self._pop_mark()
        else:
            self._take(len(opcode.stack_before))
        for _ in opcode.stack_after:
            self._push(UNKNOWN)

    # -- the stack -------------------------------------------------------------------------------------------------

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack:
            raise MalformedPickleError("it takes a value from the stack where there is none")
        return self._stack.pop()

    def _take(self, count: int) -> tuple[Any, ...]:
        return tuple(self._pop() for _ in range(count))[::-1]

    def _discard(self, _: Any) -> None:
        """Do nothing with a value."""

    def _mark(self, _: Any) -> None:
        self._below_marks.append(self._stack)
        self._stack = []

    def _pop_mark(self) -> list[Any]:
        if not self._below_marks:
            raise MalformedPickleError("it goes back to a mark where there is none")
        above, self._stack = self._stack, self._below_marks.pop()
        return above

    def _pop_or_unmark(self, _: Any) -> None:
        if self._stack or not self._below_marks:
            self._pop()
        else:
            self._pop_mark()

    def _push_again(self) -> None:
        value = self._pop()
        self._stack += [value, value]

    def _dropping(self, count: int) -> Callable[[Any], None]:
        return lambda _: self._discard(self._take(count))

    def _tupling(self, count: int) -> Callable[[Any], None]:
        return lambda _: self._push(self._take(count))

    def _put(self, index: int) -> None:
        value = self._pop()
        self._push(value)
        self._memo[index] = value

    def _get(self, index: int) -> None:
        # The unpickler would raise where there is none; whoever wrote such a stream hides what comes after it.
        self._push(self._memo.get(index, UNKNOWN))

    # -- imports and calls -----------------------------------------------------------------------------------------

    def _import(self, module: Any, attribute: Any) -> None:
        found = Import(
            module if isinstance(module, str) else None,
            attribute if isinstance(attribute, str) else None,
        )
        self._imported(found)
        self._push(found)

    def _stack_global(self) -> None:
        module, attribute = self._take(2)
        self._import(module, attribute)

    def _inst(self, names: tuple[str, str]) -> None:
        arguments = tuple(self._pop_mark())
        self._import(*names)
        self._call(self._pop(), arguments)

    def _obj(self) -> None:
        above = self._pop_mark()
        if not above:
            raise MalformedPickleError("it makes an object of no class")
        self._call(above[0], tuple(above[1:]))

    def _reduce(self, n_arguments: int) -> None:
        function, arguments, *_ = self._take(1 + n_arguments)
        self._call(function, arguments if isinstance(arguments, tuple) else ())

    def _call(self, function: Any, arguments: tuple[Any, ...]) -> None:
        call = Call(function, arguments)
        self._called(call)
        self._push(call)
