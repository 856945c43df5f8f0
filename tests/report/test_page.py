"""The report: one page that is whole, small and safe."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.rows import Rows
from rollout_cli.errors import DatasetExistsError, UsageError
from rollout_cli.reports import svg
from rollout_cli.reports.charts import Bars, Ranges, over_time
from rollout_cli.reports.page import page, write_report
from rollout_cli.reports.text import lines
from tests.helpers.errors import raises

EMPTY = {"meta", "img"}


class Checker(HTMLParser):
    """Collects tags, and checks that each one that is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    assert [] == checker.open
    return checker


def test_a_page_of_vectors(vectors: Dataset) -> None:
    """Well formed, without scripts and links elsewhere; names that are HTML are text."""
    found = checked(page(vectors))
    assert not {"script", "link", "iframe", "b&name"} & {tag for tag, _ in found.tags}
    assert not re.search(r"https?://|url\(|@import", page(vectors))
    assert "env_info.<b>&name" in found.text
    for text in (
        "How it was made",
        "observation[1]",
        "constant",
        "Median",
        "returns by worker",
        "12 terminated",
    ):
        assert text in found.text
    assert str(len(vectors)) in found.text
    classes = {attributes.get("class") for tag, attributes in found.tags if tag == "svg"}
    assert {"chart", "spark", "trace"} == classes


def test_a_page_of_images(pictures: Dataset) -> None:
    """Film strips, with the first and the last step of the best episode."""
    found = checked(page(pictures))
    images = [attributes for tag, attributes in found.tags if tag == "img"]
    best = pictures[[int(np.argmax(pictures.rows.column("return")))]]
    assert "step 0" == images[0]["alt"]
    assert f"step {best.rows.column('length')[0] - 1}" in [image["alt"] for image in images[:8]]
    assert all(str(image["src"]).startswith("data:image/png;base64,") for image in images)


def test_a_page_of_one_episode(vectors: Dataset) -> None:
    checked(page(vectors[:1]))


def test_names_in_charts_are_text() -> None:
    """Keys of Dict spaces, and labels of bars, may hold anything."""
    drawn = svg.lines(np.arange(3), {"<i>": np.ones(3)}) + svg.bars(Bars("<i>", "", ["<i>"], [1]))
    assert "i" not in {tag for tag, _ in checked(drawn).tags}
    assert 4 == checked(drawn).text.count("<i>")


def test_returns_that_are_not_finite(vectors: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are left out of charts, and none is the best one."""
    column = Rows.column

    def odd(rows: Rows, name: str) -> Any:
        values = column(rows, name)
        return (
            np.array([np.inf, -np.inf, np.nan] * len(values))[: len(values)] if name == "return" else values
        )

    monkeypatch.setattr(Rows, "column", odd)
    found = checked(page(vectors))
    assert 3 <= found.text.count("no finite value")
    assert "Best: episode 9, " in found.text
    assert "no finite value" in [*lines(over_time(vectors), 80)]


def test_returns_further_apart_than_a_float_can_say(
    vectors: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are drawn as others are, on a page and in a terminal."""
    column = Rows.column

    def huge(rows: Rows, name: str) -> Any:
        values = column(rows, name)
        return np.linspace(-1, 1, len(values)) * 1.7e308 if name == "return" else values

    monkeypatch.setattr(Rows, "column", huge)
    chart = over_time(vectors)
    assert [-1.7e308, 1.7e308] == [chart.percentiles.min(), chart.percentiles.max()]
    assert "nan" not in svg.ranges(chart)
    assert "  █" in [*lines(chart, 80)][-2]


def test_the_file(vectors: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "a" / "report.html"
    assert write_report(vectors, path) == path.stat().st_size < 2_000_000
    with pytest.raises(DatasetExistsError):
        write_report(vectors, path)
    with raises(UsageError, "output-suffix"):
        write_report(vectors, tmp_path / "report.pdf")
    with raises(UsageError, "no-episode"):
        write_report(vectors[:0], tmp_path / "b.html")
    assert ["a"] == [each.name for each in tmp_path.iterdir()]


def test_lines_break_where_a_number_is_not_finite() -> None:
    """The extent is that of the finite numbers; a single one is a dash."""
    drawn = svg.lines(np.arange(5), {"a": np.array([5.0, np.nan, 6.0, 7.0, np.inf])})
    assert "5 to 7, 2 not finite" in drawn
    assert [2, 2] == [len(points.split()) for points in re.findall(r'points="([^"]*)"', drawn)]
    assert "not finite</span>" in svg.lines(np.arange(1), {"a": np.array([np.nan])})
    huge = svg.lines(np.arange(2), {"a": np.array([-1.7e308, 1.7e308])})
    assert not re.search("nan|inf", huge)


@pytest.mark.parametrize("high", [0.1, -0.00123457, 123456789.0])
def test_labels_have_room_beside_the_axis(high: float) -> None:
    """At the largest size of the letters, that of a telephone."""
    chart = Ranges(
        "returns", "", ["0 to 1000000", "2", "3"], np.array([[high - 1, high, high]] * 3), ordered=True
    )
    for x, text in re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<]*)<', svg.ranges(chart)):
        assert float(x) >= 8 * len(text), text
