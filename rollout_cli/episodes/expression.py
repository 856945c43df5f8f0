"""EXPRESSION: which episodes to keep, said in terms of their facts and infos.

`return >= 400 and not env_info.TimeLimit` is read as tokens first, since `return` is a word of Python and
the names of columns hold dots. The tokens become an expression of Python, in which a placeholder of the same
length stands for each name and each string, and of which a whitelist is evaluated, for all episodes at once.
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
    r"(?P<zeros>0+(?=[0-9]))"  # Python has none in front of a number.
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
"""The language's words, and Python's for them."""
_CORRECTIONS = {"=": "==", "&": "and", "|": "or", "!": "not"}


def _quotient(left: Any, right: Any) -> Any:
    """Return a quotient, masked where it is by zero; numpy's own masks those that are nan or inf, too."""
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
    """An expression, read and checked as far as that needs no episodes; UsageError says what is wrong."""

    def __init__(self, source: str) -> None:
        self._source = " ".join(source.splitlines()).strip()
        # By the positions in the source where they start and end.
        self._names: dict[tuple[int, int | None], str] = {}
        self._strings: dict[tuple[int, int | None], str] = {}
        if not self._source:
            raise UsageError(
                "the expression is empty",
                code="expression-syntax",
                hint="for example: return >= 400 and length < 200",
            )
        try:
            self._tree = ast.parse(self._as_python(), mode="eval").body
        except (SyntaxError, RecursionError, MemoryError) as error:
            place = (getattr(error, "offset", 1) or len(self._source) + 1) - 1  # 0 is the end.
            hint = "for example: return >= 400 and not (length < 200 or env_info.is_success)"
            raise self._fault("it is not complete, or has a word too many", place, hint) from error

    def _as_python(self) -> str:
        """Return the source with a Python name of the same length in place of each column and string."""
        pieces = []
        for match in _TOKEN.finditer(self._source):
            piece = match[0]
            kind = match.lastgroup
            if kind == "other":
                hint = "a column with signs in its name is written in backquotes: `env_info.a-b`"
                if piece in _CORRECTIONS:
                    hint = f"write {_CORRECTIONS[piece]}"
                raise self._fault(f"{piece!r} is not part of the language", match.start(), hint)
            if kind == "name" and piece not in _WORDS:
                self._names[match.span()] = piece.strip("`")
                piece = "x" * len(piece)
            elif kind == "string":
                self._strings[match.start(), match.end() - 1] = piece[1:-1]
                piece = "x" * (len(piece) - 1) + " "  # A word may follow at once.
            elif kind in ("space", "zeros"):
                piece = " " * len(piece)
            pieces.append(_WORDS.get(piece, piece))
        return "".join(pieces)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it names, each once, in the order of the source."""
        return tuple(dict.fromkeys(self._names.values()))

    def evaluate(self, columns: Arrays, n_episodes: int) -> Array:
        """Return of which episodes it is true, bool (N,).

        Args:
            columns: Each column that it names: numbers, bools or texts (dtype object), (N,), masked where an
                episode has no value.
            n_episodes: N.

        Raises:
            UsageError: If it compares or calculates with values of a type that it cannot be used on.
        """
        self._columns = columns
        with np.errstate(all="ignore"):  # A masked value is none: so is what is divided by zero.
            return np.broadcast_to(self._truth(self._tree), n_episodes)

    def no_column(self, name: str, present: Sequence[str]) -> UsageError:
        """Return the error that the column `name`, which it names, is not among those `present`."""
        close = [column for column in present if column.endswith(f".{name}")]
        close = close or difflib.get_close_matches(name, present, 1)
        hint = f"did you mean {_quoted(close[0])}?" if close else f"there are: {', '.join(present)}"
        place = min(start for (start, _), column in self._names.items() if column == name)
        return self._fault(f"there is no column {name!r}", place, hint)

    def _values(self, node: ast.expr) -> Array:  # noqa: PLR0911 - one for each kind of node
        """Return numbers, bools or texts (dtype object), (N,) or one for all, masked where there is none."""
        span = node.col_offset, node.end_col_offset
        match node:
            case ast.Name() if span in self._strings:
                return np.array([self._strings[span]], object)
            case ast.Name() if span in self._names:
                return self._columns[self._names[span]]
            case ast.Constant(value):
                constant = np.asarray(value)  # An integer that needs more than 64 bits is an object.
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
        raise self._fault("that is not part of the language", node.col_offset)

    def _numbers(self, node: ast.expr) -> Array:
        """Return what is calculated with, in float64: integers would overflow without a word."""
        if (values := self._values(node)).dtype == object:
            raise self._fault("it calculates with a text", node.col_offset)
        return values.astype(np.float64)

    def _truth(self, node: ast.expr) -> Array:
        """Return where values are true: where numbers are not zero, and never where there is none."""
        if (values := self._values(node)).dtype == object:
            raise self._fault("a text is neither true nor false", node.col_offset, "compare it")
        return np.ma.filled(values != 0, fill_value=False)

    def _compare(self, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> Array:
        if isinstance(sign, ast.In | ast.NotIn):
            if not isinstance(right, ast.List | ast.Tuple):
                hint = "for example: length in [200, 500]"
                raise self._fault("'in' needs a list", right.col_offset, hint)
            is_in = isinstance(sign, ast.In)
            join, equality = (np.logical_or, ast.Eq()) if is_in else (np.logical_and, ast.NotEq())
            compared = (self._compare(left, equality, item) for item in right.elts)
            return reduce(join, compared, np.array(not is_in))
        first = self._values(left)
        second = self._values(right)
        if (first.dtype == object) != (second.dtype == object):
            if _is_empty(first) or _is_empty(second):  # The type of its values is unknown.
                return np.zeros(1, bool)
            raise self._fault("it compares a text with a number", left.col_offset)
        return np.ma.filled(_OPERATORS[type(sign)](first, second), fill_value=False).astype(bool)

    def _fault(self, problem: str, place: int, hint: str = "") -> UsageError:
        return UsageError(
            f"the expression {self._source!r} cannot be used: {problem} at character {place + 1}",
            code="expression-syntax",
            hint=hint,
        )


def _quoted(name: str) -> str:
    """Return the name of a column as an expression has it."""
    match = _TOKEN.fullmatch(name)
    if match and match.lastgroup == "name":
        return name
    return f"`{name}`"


def _is_empty(values: Array) -> bool:
    """Return whether no episode has a value."""
    return bool(np.ma.getmaskarray(values).all())


def of_one_kind(name: str, values: Array) -> Array:
    """Return an info, as an `EpisodeBatch` has it, as one number or one string an episode, or masked."""
    if values.ndim == 1 and values.dtype != object:
        return values.astype(np.float64)  # As below, whatever else is in the chunk.
    kinds = set(map(_kind, values)) - {None}
    if kinds == {float, str}:  # Beside numbers, what JSON has texts for is a number.
        values = np.array(from_plain(values.tolist()), object)
        kinds = set(map(_kind, values)) - {None}
    if values.ndim > 1 or len(kinds) > 1 or object in kinds:
        raise UsageError(
            f"{name} cannot be used in an expression: not every value of it is one number, or one text",
            code="expression-column",
            hint="choose by an index instead: `dataset[mask]` of the Python API takes an array of bools",
        )
    is_missing = np.array([value is None for value in values])
    if kinds == {str}:
        return np.ma.MaskedArray(np.where(is_missing, "", values), is_missing)
    return np.ma.MaskedArray(np.where(is_missing, 0, values).astype(np.float64), is_missing)


def _kind(value: Any) -> type | None:
    """Return str, float for any number, object for anything else; None for None."""
    if value is None:
        return None
    if isinstance(value, bool | int | float | np.bool_ | np.number):
        return float
    return str if isinstance(value, str) else object
