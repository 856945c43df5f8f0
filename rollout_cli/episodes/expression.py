"""EXPRESSION: a condition on episodes in terms of their columns and infos.

`return >= 400 and not env_info.TimeLimit` is split into tokens first, because `return` is a Python keyword
and names of columns contain dots. The tokens become a Python expression, with a placeholder of the same
length for each name and string. A whitelist of its nodes is evaluated, for all episodes at once.
"""

from __future__ import annotations

import ast
import difflib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import starmap
from typing import Any

import numpy as np

from rollout_cli.episodes.plain import from_plain
from rollout_cli.episodes.spaces import Array, Arrays
from rollout_cli.errors import UsageError

_TOKEN = re.compile(
    r"(?P<zeros>0+(?=[0-9]))"  # Python does not allow leading zeros.
    r"|(?P<number>(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<string>'[^']*'|\"[^\"]*\")"
    r"|(?P<name>`[^`]+`|[^\W\d]\w*(?:\.\w+)*)"
    r"|(?P<sign><=|>=|==|!=|[-<>+*/()\[\],])"
    r"|(?P<space>\s+)"
    r"|(?P<other>.)"
)
_WORDS = {
    "and": "and",
    "or": "or",
    "not": "not",
    "in": "in",
    "True": "True",
    "False": "False",
    "true": "True",
    "false": "False",
}
"""The keywords of the language, and their Python equivalents."""
_CORRECTIONS = {"=": "==", "&": "and", "|": "or", "!": "not"}


def _quotient(left: Any, right: Any) -> Any:
    """Return a quotient, masked for divisors of zero; numpy's division also masks nan and inf."""
    values = np.ma.getdata(left) / np.ma.getdata(right)
    missing = np.ma.getmaskarray(left) | np.ma.getmaskarray(right) | (np.ma.getdata(right) == 0)
    return np.ma.MaskedArray(values, missing)


_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
}


class Expression:
    """A parsed expression.

    Raises:
        UsageError: The syntax is wrong.
    """

    def __init__(self, source: str) -> None:
        self._source = " ".join(source.splitlines()).strip()
        # By their start and end in the source.
        self._names: dict[tuple[int, int | None], str] = {}
        self._strings: dict[tuple[int, int | None], str] = {}
        if not self._source:
            raise UsageError(
                "the expression is empty",
                code="expression-syntax",
                hint="pass an expression such as 'return >= 400 and length < 200'",
            )
        try:
            self._tree = ast.parse(self._as_python(), mode="eval").body
        except (SyntaxError, RecursionError, MemoryError) as error:
            place = (getattr(error, "offset", 1) or len(self._source) + 1) - 1  # 0 is the end.
            hint = "use a form such as: return >= 400 and not (length < 200 or env_info.is_success)"
            raise self._fault("syntax error", place, hint) from error

    def _as_python(self) -> str:
        """Return the source with each column and string replaced by a Python name of the same length."""
        pieces = []
        for match in _TOKEN.finditer(self._source):
            piece = match[0]
            kind = match.lastgroup
            if kind == "other":
                hint = "put a column name with special characters in backquotes: `env_info.a-b`"
                if piece in _CORRECTIONS:
                    hint = f"use {_CORRECTIONS[piece]}"
                raise self._fault(f"unknown operator {piece!r}", match.start(), hint)
            if kind == "name" and piece not in _WORDS:
                self._names[match.span()] = piece.strip("`")
                piece = "x" * len(piece)
            elif kind == "string":
                self._strings[match.start(), match.end() - 1] = piece[1:-1]
                piece = "x" * (len(piece) - 1) + " "  # A keyword may follow without a space.
            elif kind in ("space", "zeros"):
                piece = " " * len(piece)
            pieces.append(_WORDS.get(piece, piece))
        return "".join(pieces)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns in the expression, without duplicates, in order of appearance."""
        return tuple(dict.fromkeys(self._names.values()))

    def evaluate(self, columns: Arrays, n_episodes: int) -> Array:
        """Return a mask of the episodes that match, bool (N,).

        Args:
            columns: The columns in `names`: numbers, bools or strings (dtype object), (N,), masked for
                episodes without a value.
            n_episodes: N.

        Raises:
            UsageError: An operator does not accept the type of a column.
        """
        self._columns = columns
        with np.errstate(all="ignore"):  # Masked values, and divisions by zero, are missing values.
            return np.broadcast_to(self._truth(self._tree), n_episodes)

    def no_column(self, name: str, present: Sequence[str]) -> UsageError:
        """Return the error for the column `name` of the expression, which is not one of the columns `present`."""
        close = [column for column in present if column.endswith(f".{name}")]
        close = close or difflib.get_close_matches(name, present, 1)
        hint = f"did you mean {_quoted(close[0])}?" if close else f"use one of: {', '.join(present)}"
        place = min(start for (start, _), column in self._names.items() if column == name)
        return self._fault(f"unknown column {name!r}", place, hint)

    def _values(self, node: ast.expr) -> Array:  # noqa: PLR0911 - one for each kind of node
        """Return numbers, bools or strings (dtype object), (N,) or one for all, masked if missing."""
        span = node.col_offset, node.end_col_offset
        match node:
            case ast.Name() if span in self._strings:
                return np.array([self._strings[span]], object)
            case ast.Name() if span in self._names:
                return self._columns[self._names[span]]
            case ast.Constant(value):
                constant = np.asarray(value)  # An integer of more than 64 bits has dtype object.
                return constant if constant.dtype != object else np.asarray(float(str(value)))
            case ast.UnaryOp(ast.Not(), operand):
                return ~self._truth(operand)
            case ast.UnaryOp(ast.USub(), operand):
                return -self._numbers(operand)
            case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
                values: Array = _OPERATORS[type(sign)](self._numbers(left), self._numbers(right))
                return values
            case ast.BoolOp(sign, parts):
                join = np.logical_and if isinstance(sign, ast.And) else np.logical_or
                return reduce(join, map(self._truth, parts))
            case ast.Compare(left, signs, others):
                comparisons = zip([left, *others], signs, others, strict=False)
                return reduce(np.logical_and, starmap(self._compare, comparisons))
        raise self._fault("unsupported syntax", node.col_offset)

    def _numbers(self, node: ast.expr) -> Array:
        """Return the operand of an arithmetic operator as float64: integers would overflow silently."""
        if (values := self._values(node)).dtype == object:
            raise self._fault("arithmetic with a string", node.col_offset)
        return values.astype(np.float64)

    def _truth(self, node: ast.expr) -> Array:
        """Return the truth of values: True for numbers that are not zero, False for missing values."""
        if (values := self._values(node)).dtype == object:
            raise self._fault("a string is used as a condition", node.col_offset, "compare the string")
        return np.ma.filled(values != 0, fill_value=False)

    def _compare(self, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> Array:
        if isinstance(sign, ast.In | ast.NotIn):
            if not isinstance(right, ast.List | ast.Tuple):
                hint = "use a form such as: length in [200, 500]"
                raise self._fault("'in' needs a list", right.col_offset, hint)
            is_in = isinstance(sign, ast.In)
            join, equality = (np.logical_or, ast.Eq()) if is_in else (np.logical_and, ast.NotEq())
            compared = (self._compare(left, equality, item) for item in right.elts)
            return reduce(join, compared, np.array(not is_in))
        first = self._values(left)
        second = self._values(right)
        if (first.dtype == object) != (second.dtype == object):
            if _is_empty(first) or _is_empty(second):  # The type of the values is unknown.
                return np.zeros(1, bool)
            raise self._fault("comparison of a string with a number", left.col_offset)
        return np.ma.filled(_OPERATORS[type(sign)](first, second), fill_value=False).astype(bool)

    def _fault(self, problem: str, place: int, hint: str = "") -> UsageError:
        return UsageError(
            f"invalid expression {self._source!r}: {problem} at character {place + 1}",
            code="expression-syntax",
            hint=hint,
        )


def _quoted(name: str) -> str:
    """Return the name of a column as an expression spells it, with backquotes if necessary."""
    match = _TOKEN.fullmatch(name)
    if match and match.lastgroup == "name":
        return name
    return f"`{name}`"


def _is_empty(values: Array) -> bool:
    """Return True if no episode has a value."""
    return bool(np.ma.getmaskarray(values).all())


def of_one_kind(name: str, values: Array) -> Array:
    """Return the info array of an `EpisodeBatch` as one number or string per episode, masked if missing.

    Raises:
        UsageError: The values are not all numbers, or not all strings.
    """
    if values.ndim == 1 and values.dtype != object:
        return values.astype(np.float64)  # The same dtype as below, for every chunk.
    kinds = set(map(_kind, values)) - {None}
    if kinds == {float, str}:  # Among numbers, the strings `nan` and `inf` of JSON are numbers.
        values = np.array(from_plain(values.tolist()), object)
        kinds = set(map(_kind, values)) - {None}
    if values.ndim > 1 or len(kinds) > 1 or object in kinds:
        raise UsageError(
            f"{name} cannot be used in an expression: its values are not all numbers, or not all strings",
            code="expression-column",
            hint="select episodes in Python instead: `dataset[mask]` with an array of bools",
        )
    is_missing = np.array([value is None for value in values])
    if kinds == {str}:
        return np.ma.MaskedArray(np.where(is_missing, "", values), is_missing)
    return np.ma.MaskedArray(np.where(is_missing, 0, values).astype(np.float64), is_missing)


def _kind(value: Any) -> type | None:
    """Return str for strings, float for numbers, None for None, and object for other values."""
    if value is None:
        return None
    if isinstance(value, bool | int | float | np.bool_ | np.number):
        return float
    return str if isinstance(value, str) else object
