"""The record of a dataset: its fields are checked by their declared types, and docs/dataset-format.md lists them.

After a change, write the table again: `python -m tests.dataset.test_record`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from rollout_cli.dataset.layout import info_path, read_info
from rollout_cli.dataset.record import DatasetInfo, wrong_field
from rollout_cli.errors import DatasetFormatError
from tests.helpers.errors import raises
from tests.helpers.processes import ROOT

PAGE = ROOT / "docs" / "dataset-format.md"
BEGIN, END = "<!-- fields: python -m tests.dataset.test_record -->\n", "<!-- end of fields -->"
NAMES = {
    str: "string",
    int: "int",
    bool: "bool",
    float: "number",
    type(None): "null",
    Any: "any",
    list: "list",
    dict: "object",
}
STORED = ROOT / "tests" / "golden" / "format3" / "meta" / "info.json"


def declared(kind: Any = DatasetInfo, path: str = "") -> Iterator[tuple[str, str, bool]]:
    """Yield the path of every declared field, the names of its types, and whether it may be absent."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        is_optional = get_origin(hint) is NotRequired
        plain = get_args(hint)[0] if is_optional else hint
        kinds = get_args(plain) if get_origin(plain) is UnionType else (plain,)
        place = f"{path}.{name}".lstrip(".")
        names = [NAMES[dict if is_typeddict(one) else get_origin(one) or one] for one in kinds]
        yield place, " or ".join(names), is_optional
        for one in kinds:
            inner = get_args(one)[0] if get_origin(one) is list else one
            if is_typeddict(inner):
                yield from declared(inner, f"{place}[]" if inner is not one else place)


def table() -> str:
    lines = ["| field | type | |", "| --- | --- | --- |"]
    lines += [
        f"| `{path}` | {kinds} | {'may be absent' if optional else ''} |"
        for path, kinds, optional in declared()
    ]
    return "\n".join(lines) + "\n"


def places(document: Any, path: str) -> Iterator[tuple[Any, Any]]:
    """Yield each container and key of a path in a document."""
    name, _, rest = path.partition(".")
    key = name.removesuffix("[]")
    if not isinstance(document, dict) or key not in document:
        return
    if not rest:
        yield document, key
    for item in document[key] if name.endswith("[]") else [document[key]]:
        yield from places(item, rest)


def test_the_documents_list_every_field() -> None:
    listed = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert listed.strip() == table().strip(), "run python -m tests.dataset.test_record, and read its diff"


@pytest.mark.parametrize(("path", "kinds", "optional"), list(declared()), ids=str)
def test_a_field_of_another_type_is_named(path: str, kinds: str, optional: bool) -> None:
    """Also one that is absent, if it must not be."""
    stored = json.loads(STORED.read_text())
    assert wrong_field(stored) is None
    if kinds == "any":
        return
    for wrong in ({"a": 1}, [1], "text", 7, True, None):
        changed = copy.deepcopy(stored)
        spots = list(places(changed, path))
        if not spots or type_name(wrong) in kinds.split(" or "):
            continue
        for container, key in spots:
            container[key] = wrong
        problem = wrong_field(changed)
        assert problem, wrong
        assert path.replace("[]", ".0") in problem
    absent = copy.deepcopy(stored)
    for container, key in list(places(absent, path)):
        del container[key]
        assert optional == (wrong_field(absent) is None)


def type_name(value: Any) -> str:
    return NAMES[type(value)]


def test_unknown_fields_pass_through_in_their_place(tmp_path: Path) -> None:
    """A newer version may have added them."""
    stored = json.loads(STORED.read_text())
    stored = {"newer": [1], **stored}
    stored["sources"][0] = {"also": {"a": None}, **stored["sources"][0]}
    info_path(tmp_path).parent.mkdir()
    info_path(tmp_path).write_text(json.dumps(stored))
    assert json.dumps(stored) == json.dumps(read_info(tmp_path))


def test_the_error_names_the_field(tmp_path: Path) -> None:
    stored = json.loads(STORED.read_text())
    stored["sources"][0]["policy"]["sha256"] = 3
    info_path(tmp_path).parent.mkdir()
    info_path(tmp_path).write_text(json.dumps(stored))
    with raises(DatasetFormatError, "info-value", "sources.0.policy.sha256", "string or null"):
        read_info(tmp_path)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
