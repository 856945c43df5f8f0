"""What `import rollout_cli` offers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rollout_cli
from rollout_cli.options.types import EpisodeRange
from tests.helpers.processes import variables


def test_dir_shows_the_public_names_alone() -> None:
    """Each exists, and is what type checkers see under `TYPE_CHECKING`."""
    names = dir(rollout_cli)
    assert sorted(names) == sorted(rollout_cli.__all__)
    for name in names:
        assert getattr(rollout_cli, name) is not None
    tree = ast.parse(Path(rollout_cli.__file__).read_text())
    (typing,) = (node for node in tree.body if isinstance(node, ast.If))
    aliases = [alias for node in typing.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assigned = [str(ast.unparse(node.targets[0])) for node in typing.body if isinstance(node, ast.Assign)]
    typed = {alias.asname for alias in aliases if alias.asname} | {*assigned, "__version__"}
    assert typed == {*names}


@pytest.mark.parametrize("first", ["rollout_cli.report", "rollout_cli.card", "rollout_cli.check"])
def test_functions_are_not_hidden_by_modules(first: str) -> None:
    """Whatever part of the package is loaded before them."""
    code = f"import rollout_cli.cli.app; rollout_cli.verify; print(callable({first}), callable(rollout_cli.report))"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=variables(), capture_output=True, text=True, check=False
    )
    assert "True True\n" == ran.stdout, ran.stderr


def test_a_dataset_by_public_names_alone(tmp_path: Path) -> None:
    """As the documents have it: collect, load, verify, replay, card, report and merge."""
    config = rollout_cli.CollectConfig(
        episodes=EpisodeRange(0, 2), sampler="local", seed=1, output=tmp_path / "out"
    )
    rollout_cli.collect(config)
    dataset = rollout_cli.load(tmp_path / "out")
    assert isinstance(dataset, rollout_cli.Dataset)
    assert isinstance(dataset[0], rollout_cli.Episode)
    assert [] == rollout_cli.verify(tmp_path / "out").faults
    replayed, notices = rollout_cli.replay(dataset)
    assert [None, None] == [episode.difference for episode in replayed]
    assert [] == notices
    assert rollout_cli.card(tmp_path / "out", license="mit").is_file()
    assert rollout_cli.report(dataset, tmp_path / "out.html") > 1000
    rollout_cli.split_dataset(dataset, tmp_path / "parts", {"a": 0.5, "b": 0.5})
    parts = [tmp_path / "parts" / name for name in "ab"]
    assert 2 == rollout_cli.merge(parts, tmp_path / "whole").episodes


def test_a_plot_is_a_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    config = rollout_cli.CollectConfig(
        episodes=EpisodeRange(0, 3), sampler="local", seed=1, output=tmp_path / "out"
    )
    rollout_cli.collect(config)
    figure = rollout_cli.plot(rollout_cli.load(tmp_path / "out"), "lengths")
    assert type(figure).__name__ == "Figure"
    assert figure.axes
