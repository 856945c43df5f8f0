"""Plots by matplotlib, MP4 films by ffmpeg, and a real environment that renders."""

from __future__ import annotations

import json
from pathlib import Path

import imageio.v3 as imageio
import pytest

from rollout_cli import CollectConfig, collect
from rollout_cli.dataset.reader import load
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.options.types import EpisodeRange
from rollout_cli.reports.card import write_card
from rollout_cli.reports.charts import PLOTS, Dimension, Profiles, chart_of
from rollout_cli.reports.figure import write_figure
from tests.helpers.processes import rollout


@pytest.fixture(scope="module")
def lander(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films") / "lander"
    config = CollectConfig(
        env="LunarLander-v3", episodes=EpisodeRange(0, 4), seed=1, workers=1, output=folder
    )
    collect(config)
    return folder


@pytest.mark.parametrize("what", PLOTS)
def test_plots(lander: Path, what: str, tmp_path: Path) -> None:
    """The same dataset gives the same picture."""
    for suffix in ("png", "svg"):
        for name in ("a", "b"):
            write_figure(chart_of(load(lander), what), tmp_path / f"{name}.{suffix}")
    assert imageio.imread(tmp_path / "a.png").std() > 10
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert what.split("-", maxsplit=1)[0][:6] in (tmp_path / "a.svg").read_text()


def test_names_with_dollars_are_no_formulas(tmp_path: Path) -> None:
    rows = [Dimension("$_$", edges=(0.0, 1.0), counts=(3,)), Dimension("text", text="'$\\a$'")]
    write_figure(Profiles("observations", "", rows), tmp_path / "seen.svg")
    assert (tmp_path / "seen.svg").is_file()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Of the reader of MP4.
@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_a_rendered_episode(lander: Path, suffix: str, tmp_path: Path) -> None:
    """Its actions give the stored observations again, and the film has a frame for each."""
    # In a process of its own: Box2D crashes where another library of C++ was loaded before it.
    ran = rollout("render", lander, "--episode", "2", "-o", f"a.{suffix}", "--json", cwd=tmp_path)
    document = json.loads(ran.stdout)
    assert document["difference"] is None
    film = imageio.imread(tmp_path / f"a.{suffix}")
    assert (document["frames"], 400, 600, 3) == film.shape
    assert (film[0] != film[-1]).any()


def test_a_card_with_a_plot(lander: Path) -> None:
    """Later cards keep it, until it is left out."""
    write_card(lander, license="mit", plot=True)
    for plot, is_shown in ((None, True), (False, False), (None, False), (True, True)):
        write_card(lander, plot=plot)
        assert is_shown == ("](meta/returns.png)" in (lander / "README.md").read_text())
    assert [] == [*verify_dataset(lander).faults, *verify_dataset(lander).notes]
