"""What objects show in a notebook: a short line, and a table of facts in which strangers' strings do nothing."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rollout_cli import CollectConfig, EpisodeBatch, collect, load
from rollout_cli.options.types import EpisodeRange
from tests.helpers.datasets import set_source


class Table(HTMLParser):
    """The cells of a table, and its tags."""

    def __init__(self, shown: Any) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.feed(shown._repr_html_())

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("notebook") / "out"
    config = CollectConfig(episodes=EpisodeRange(0, 3), sampler="local", seed=1, output=path)
    return path, collect(config)


def test_objects_show_their_facts(made: tuple[Path, Any]) -> None:
    """Lines are short whatever the size, and tables have the names and values that a reader looks for."""
    path, result = made
    dataset = load(path)
    batch = dataset.to_episode_batch()
    shown: list[tuple[Any, list[str]]] = [
        (dataset, [str(path), "CartPole-v1", "random", "complete", f"{result.steps:,}"]),
        (dataset[0], ["length", str(len(dataset[0]))]),
        (batch, ["3", f"{result.steps:,}", f"{result.mean_return:.6g}", f"float32 ({result.steps}, 4)"]),
        (dataset.transitions(), ["observations", "float32 (4,)", "next_observations"]),
        (dataset.windows(2), ["observations", "float32 (2, 4)"]),
        (result, ["steps", str(result.steps)]),
    ]
    for item, cells in shown:
        table = Table(item)
        assert {*cells} <= {*table.cells}, table.cells
        assert {"table", "caption", "tbody", "tr", "th", "td"} == table.tags
        if item is not result:
            assert len(repr(item)) < 200
    assert isinstance(batch, EpisodeBatch)
    assert f"<EpisodeBatch: 3 episodes, {result.steps} steps, mean return" in repr(batch)
    assert "0 items" in Table(dataset[:0].transitions()).cells[0]


def test_strings_of_strangers_do_nothing(made: tuple[Path, Any], tmp_path: Path) -> None:
    """A script in a record is text, and so are control characters of a terminal."""
    collect(CollectConfig(episodes=EpisodeRange(0, 1), sampler="local", seed=1, output=tmp_path / "out"))
    source = load(tmp_path / "out").info["sources"][0]
    hostile = "<script>alert(1)</script>\x1b[31m"
    set_source(tmp_path / "out", policy={**source["policy"], "spec": hostile})
    table = Table(load(tmp_path / "out"))
    assert "script" not in table.tags
    assert any("<script>alert(1)</script>" in cell and "\x1b" not in cell for cell in table.cells)
