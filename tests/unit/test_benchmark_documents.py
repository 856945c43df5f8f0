"""The benchmarks' JSON files and the table that several of them make."""

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.documents import Document, markdown, read, write
from benchmarks.results import Result, Row
from benchmarks.stats import Spread


def _document(*results: Result, pairs: int = 10, **facts: str) -> Document:
    return Document({"cores": "2", **facts}, pairs, 5.0, results)


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Rows with and without a figure, reasons and raw measurements come back; another file is refused by name."""
    rows = (Row("a", "b", Spread(2.0, 1.0, 3.0)), Row("c", "d", None, detail="failed: e"))
    document = _document(Result("one", rows, failed=True, raw={"a": [1, 2]}), Result("two", reason="none"))
    write(tmp_path / "a.json", document)
    assert document == read(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"b\.json is not written by"):
        read(tmp_path / "b.json")


def _figure(case: str, value: float) -> Result:
    return Result(case, (Row(case, "", Spread(value, value, value)),))


def test_documents_of_several_runs_make_one_table() -> None:
    """Cases stand in their usual order; the last document with figures counts; facts that differ are all told."""
    first = _document(_figure("b", 1.0), _figure("a", 2.0), load="0.1")
    second = _document(_figure("b", 3.0), Result("a", reason="not installed"), load="0.2", torch="2.13.0")
    assert [
        "- cores: 2",
        "- load: 0.1 / 0.2",
        "- torch: 2.13.0",
        "- measured: 10 rounds, long runs of 5 s",
        "",
        *report.results_table([_figure("a", 2.0), _figure("b", 3.0)]),
    ] == markdown([first, second], ["a", "b"], quotable=(10, 5.0))


def test_a_table_with_a_figure_of_a_short_run_says_so() -> None:
    """One document with fewer rounds makes the table one that is not for quoting."""
    lines = markdown([_document(_figure("a", 1.0)), _document(_figure("b", 1.0), pairs=3)], [], quotable=(10, 5.0))
    assert "- SMOKE RUN: too short to quote" in lines
    assert "- measured: 3 rounds, long runs of 5 s" in lines
