"""EXPRESSION: which episodes to keep, said in terms of the table of episodes and of infos.

`return >= 400 and not env_info.TimeLimit` is read as tokens first, since `return` is a word of Python and the
names of columns hold dots. The tokens become an expression of Python over placeholders, of which a whitelist
is evaluated, for all episodes at once.
"""

from __future__ import annotations

import ast
import difflib
import re
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array, decode_infos, object_array
from rollout_cli.dataset.rows import Rows
from rollout_cli.dataset.schema import EPISODE_FIELDS, INFO_PREFIXES, info_columns_of
from rollout_cli.errors import UsageError

_TOKEN = re.compile(
    r"(?P<number>(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<name>`[^`]+`|[^\W\d]\w*(?:\.\w+)*)"
    r"|(?P<sign><=|>=|==|!=|[-<>+*/()\[\],])"
    r"|(?P<space>\s+)"
)
_WORDS = {name: name for name in ("and", "or", "not", "in")} | {
    "true": "True",
    "false": "False",
    "True": "True",
    "False": "False",
}
_CORRECTIONS = {"=": "==", "&": "and", "|": "or", "!": "not"}
_FACTS = tuple(field.name for field in EPISODE_FIELDS)
_COMPARISONS: Mapping[type, Callable[..., Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_ARITHMETIC: Mapping[type, Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
}


@dataclass(frozen=True, slots=True, eq=False)
class _Values:
    """Numbers, bools or texts (dtype object), (N,) or one for all, and which of them exist, bool."""

    data: Array
    exist: Any = True

    @property
    def is_text(self) -> bool:
        return self.data.dtype == object


class _Expression:
    """An expression, read and checked as far as that needs no dataset."""

    def __init__(self, text: str) -> None:
        self._text = text = " ".join(text.splitlines()).strip()
        self._names: dict[str, tuple[str, int]] = {}  # By placeholder: the column and its place in the text.
        self._texts: dict[str, str] = {}
        pieces, starts, length = [], [], 0
        for piece, place in self._tokens():
            starts.append((length, place))
            pieces.append(piece)
            length += len(piece) + 1
        self._starts = starts
        if not pieces:
            raise UsageError("the expression is empty", hint="for example: return >= 400 and length < 200")
        try:
            self._tree = ast.parse(" ".join(pieces), mode="eval").body
        except (SyntaxError, RecursionError, MemoryError) as error:
            place = self._place((getattr(error, "offset", None) or 1) - 1)
            hint = "for example: return >= 400 and not (length < 200 or env_info.is_success)"
            raise self._fault("it is not complete, or has a word too many", place, hint) from error

    def _tokens(self) -> Iterator[tuple[str, int]]:
        """Yield the words of Python that stand for the text, and the place in it where each begins."""
        place = 0
        while place < len(self._text):
            match = _TOKEN.match(self._text, place)
            if match is None:
                sign = self._text[place]
                hint = "a column with signs in its name is written in backquotes: `env_info.a-b`"
                hint = f"write {_CORRECTIONS[sign]}" if sign in _CORRECTIONS else hint
                raise self._fault(f"{sign!r} is not part of the language", place, hint)
            piece, kind, placeholder = match[0], match.lastgroup, f"_{place}"
            if kind == "name" and piece not in _WORDS:
                self._names[placeholder] = piece.strip("`"), place
            elif kind == "text":
                self._texts[placeholder] = piece[1:-1]
            else:
                placeholder = _WORDS.get(piece, piece)
            if kind != "space":
                yield placeholder, place
            place = match.end()

    def evaluate(self, rows: Rows) -> Array:
        """Return which episodes it is true of, bool (N,)."""
        columns = _columns(rows, {name for name, _ in self._names.values()})
        for name, place in self._names.values():
            if name not in columns:
                known = [*_FACTS, *info_columns_of(rows.info["features"])]
                close = difflib.get_close_matches(name, known, 1, 0.5)
                close = close or [column for column in known if column.endswith(f".{name}")]
                hint = f"did you mean {_quoted(close[0])}?" if close else f"there are: {', '.join(known)}"
                raise self._fault(f"there is no column {name!r}", place, hint)
        with np.errstate(all="ignore"):  # Division by zero is infinite, as in the columns themselves.
            is_true = self._truth(self._tree, columns)
        return np.broadcast_to(is_true, len(rows))

    def _values(self, node: ast.expr, columns: Mapping[str, _Values]) -> _Values:
        match node:
            case ast.Name(name) if name in self._texts:
                return _Values(object_array([self._texts[name]]))
            case ast.Name(name):
                return columns[self._names[name][0]]
            case ast.Constant(value):
                constant = np.asarray(value)  # An integer that needs more than 64 bits is an object.
                return _Values(constant if constant.dtype != object else np.asarray(float(str(value))))
            case ast.UnaryOp(ast.USub(), operand):
                number = self._numbers(operand, columns)
                return _Values(-number.data, number.exist)
            case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
                first, second = self._numbers(left, columns), self._numbers(right, columns)
                calculated = _ARITHMETIC[type(operator)](first.data, second.data)
                return _Values(calculated, first.exist & second.exist)
            case ast.BoolOp() | ast.Compare() | ast.UnaryOp(ast.Not()):
                return _Values(self._truth(node, columns))
        raise self._fault("that is not part of the language", self._place(node.col_offset))

    def _numbers(self, node: ast.expr, columns: Mapping[str, _Values]) -> _Values:
        """Return what is calculated with, in float64: integers would overflow without a word."""
        values = self._values(node, columns)
        if values.is_text:
            raise self._fault("it calculates with a text", self._place(node.col_offset))
        return _Values(values.data.astype(np.float64), values.exist)

    def _truth(self, node: ast.expr, columns: Mapping[str, _Values]) -> Array:
        """Return where an expression is true: of numbers, where they are not zero; never where none is."""
        match node:
            case ast.UnaryOp(ast.Not(), operand):
                return ~self._truth(operand, columns)
            case ast.BoolOp(operator, parts):
                join = np.logical_and if isinstance(operator, ast.And) else np.logical_or
                return np.asarray(
                    join.reduce(np.broadcast_arrays(*(self._truth(part, columns) for part in parts)))
                )
            case ast.Compare(left, operators, others):
                sides = [left, *others]
                pairs = zip(sides, operators, others, strict=False)
                compared = [self._compare(*pair, columns) for pair in pairs]
                return np.asarray(np.logical_and.reduce(np.broadcast_arrays(*compared)))
        values = self._values(node, columns)
        if values.is_text:
            raise self._fault("a text is neither true nor false", self._place(node.col_offset), "compare it")
        return np.asarray((values.data != 0) & values.exist)

    def _compare(
        self, left: ast.expr, operator: ast.cmpop, right: ast.expr, columns: Mapping[str, _Values]
    ) -> Array:
        if isinstance(operator, ast.In | ast.NotIn):
            if not isinstance(right, ast.List | ast.Tuple):
                place = self._place(right.col_offset)
                raise self._fault("'in' needs a list", place, "for example: worker in [0, 3]")
            equal = [self._compare(left, ast.Eq(), item, columns) for item in right.elts]
            is_in = np.logical_or.reduce(np.broadcast_arrays(*equal)) if equal else np.False_
            if isinstance(operator, ast.In):
                return np.asarray(is_in)
            return np.asarray(~is_in & self._values(left, columns).exist)
        first, second = (self._values(side, columns) for side in (left, right))
        if first.is_text != second.is_text:
            raise self._fault("it compares a text with a number", self._place(left.col_offset))
        return np.asarray(
            _COMPARISONS[type(operator)](first.data, second.data).astype(bool) & first.exist & second.exist
        )

    def _place(self, offset: int) -> int:
        """Return the place in the text of what stands at an offset of the words of Python."""
        return self._starts[max(bisect(self._starts, (offset, len(self._text))) - 1, 0)][1]

    def _fault(self, problem: str, place: int, hint: str = "") -> UsageError:
        return UsageError(
            f"the expression {self._text!r} cannot be used: {problem} at character {place + 1}", hint=hint
        )


def _quoted(name: str) -> str:
    """Return the name of a column as an expression has it."""
    return name if (match := _TOKEN.fullmatch(name)) and match.lastgroup == "name" else f"`{name}`"


def _columns(rows: Rows, names: set[str]) -> dict[str, _Values]:
    """Return the values of columns, one an episode; of infos of steps, those of the last step."""
    columns = {name: _Values(rows.column(name)) for name in names if name in _FACTS}
    typed = info_columns_of(rows.info["features"])
    for prefix in INFO_PREFIXES:
        wanted = {name for name in names if name.startswith(f"{prefix}.")}
        stored = (*sorted(wanted & typed.keys()), f"{prefix}_extra")  # It has values of other types, too.
        if not wanted:
            continue
        table = rows.ends(stored) if prefix == "episode_info" else _last_steps(rows, stored)
        infos = {f"{prefix}.{key}": values for key, values in decode_infos(prefix, table).items()}
        for name in wanted & {*infos, *typed}:
            columns[name] = _info_values(name, infos.get(name, np.full(len(rows), None, object)))
    return columns


def _last_steps(rows: Rows, columns: tuple[str, ...]) -> pa.Table:
    """Return the rows of `data` that episodes end with."""
    tables = []
    for block in rows.blocks():
        ends = np.cumsum(block.column("length")) - 1
        tables.append(block.steps(columns).take(pa.array(ends)))
    return pa.concat_tables(tables)


def _info_values(name: str, values: Array) -> _Values:
    """Return the values of an info, as `EpisodeBatch` has them, as those of an expression."""
    if values.ndim == 1 and values.dtype != object:
        return _Values(np.ma.getdata(values), ~np.ma.getmaskarray(values))
    exist = np.array([value is not None for value in values])
    kinds = set(map(_kind, values[exist]))
    if values.ndim > 1 or len(kinds) > 1 or None in kinds:
        raise UsageError(
            f"{name} cannot be used in an expression: not every value of it is one number, or one text",
            hint="choose by an index instead: `dataset[mask]` of the Python API takes an array of bools",
        )
    if kinds == {str}:
        return _Values(np.where(exist, values, ""), exist)
    return _Values(np.where(exist, values, 0).astype(np.float64), exist)


def _kind(value: Any) -> type | None:
    numbers = bool | int | float | np.bool_ | np.number
    return str if isinstance(value, str) else float if isinstance(value, numbers) else None


def matching(expression: str, rows: Rows) -> Array:
    """Return of which episodes an expression is true, bool (N,); only columns that it names are read.

    Raises:
        UsageError: If it is not of the language, or names a column that the dataset does not have.
        DatasetFormatError: If the files are damaged.
        StorageError: If they cannot be read.
    """
    parsed = _Expression(expression)
    return parsed.evaluate(rows) if len(rows) else np.zeros(0, bool)
