"""Plots, films and the card."""

from __future__ import annotations

import io
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from rollout_cli import CollectConfig, collect
from rollout_cli.dataset.reader import Dataset, load
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import DatasetExistsError, EnvError, EnvLoadError, UsageError
from rollout_cli.options.types import EpisodeRange
from rollout_cli.reports import svg
from rollout_cli.reports.card import write_card
from rollout_cli.reports.charts import PLOTS, Bars, Ranges, chart_of, histogram
from rollout_cli.reports.figure import drawn, write_figure
from rollout_cli.reports.frames import as_frame, png, video_writer
from rollout_cli.reports.text import lines
from rollout_cli.run.render import AGAIN, STORED, render
from tests.helpers.chunks import episode
from tests.helpers.datasets import data_hashes, info_of
from tests.helpers.errors import raises
from tests.helpers.writing import write_dataset
from tests.report.conftest import made
from tests.report.worlds import Pictures


@pytest.mark.parametrize("what", PLOTS)
@pytest.mark.parametrize("width", [80, 40])
def test_plots_fit_into_the_terminal(vectors: Dataset, what: str, width: int) -> None:
    """In 80 columns every line; in 40 those whose names and numbers leave room."""
    chart = chart_of(vectors, what)
    drawn = list(lines(chart, width))
    assert chart.title == drawn[0]
    assert {len(line) <= 80 for line in drawn} == {True}
    assert any(block in "".join(drawn) for block in "█▇─")


def test_bars_count_every_episode(vectors: Dataset) -> None:
    chart = chart_of(vectors, "lengths")
    assert isinstance(chart, Bars)
    counts = np.bincount(vectors.rows.column("length"))
    assert counts[counts.argmax()] == max(chart.counts)
    assert len(vectors) == sum(chart.counts)
    assert ["4", "5", "6"] == list(chart.labels)


UNITS = {
    "returns": ("return", "episodes"),
    "lengths": ("length (steps)", "episodes"),
    "over-time": ("episode", "return"),
}


@pytest.mark.parametrize("what", UNITS)
def test_axes_have_numbers_and_units(vectors: Dataset, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The figure has few numbers and no ranges below it; the terminal and the report name both units."""
    figures: Any = pytest.importorskip("matplotlib.figure")
    kept: list[Any] = []
    save = figures.Figure.savefig

    def kept_and_saved(figure: Any, *words: Any, **options: Any) -> None:
        kept.append(figure)
        save(figure, *words, **options)

    monkeypatch.setattr(figures.Figure, "savefig", kept_and_saved)
    chart = chart_of(vectors, what)
    drawn(chart, ".png")
    (axes,) = kept[0].axes
    assert UNITS[what] == (axes.get_xlabel(), axes.get_ylabel()) == (chart.x, chart.y)
    written = [label.get_text().replace("\N{MINUS SIGN}", "-") for label in axes.get_xticklabels()]
    assert all(math.isfinite(float(text)) for text in written if text)
    assert UNITS[what] == tuple(re.split(r"  +", list(lines(chart, 80))[3].strip())[:2])
    assert isinstance(chart, Bars | Ranges)
    picture = svg.bars(chart) if isinstance(chart, Bars) else svg.ranges(chart)
    assert {*UNITS[what]} <= {*re.findall(r">([^<]+)</text>", picture)}


def test_a_figure_of_the_largest_numbers() -> None:
    pytest.importorskip("matplotlib")
    assert drawn(histogram("returns", np.array([1.7e308, -1.7e308, 1.0])), ".png")


def test_values_that_are_not_finite_are_said() -> None:
    chart = histogram("returns", np.array([1.0, np.inf, 3.0]))
    assert 2 == sum(chart.counts)
    assert chart.note.endswith("; 1 are not finite")
    assert "no finite value" == histogram("returns", np.array([np.nan])).note


def test_an_unknown_plot(vectors: Dataset) -> None:
    with raises(UsageError, "plot-unknown", "rewards"):
        chart_of(vectors, "rewards")
    with raises(UsageError, "no-episode"):
        chart_of(vectors[:0], "returns")


def test_a_plot_of_vectors_without_a_number(tmp_path: Path) -> None:
    spec = EnvSpec(spaces.Box(0, 1, (0,)), spaces.Discrete(2))
    write_dataset(tmp_path / "d", [episode(0, 5, spec=spec)], spec=spec)
    with raises(UsageError, "plot-not-a-number") as caught:
        chart_of(load(tmp_path / "d"), "observations")
    assert "plot returns" in str(caught.value.hint)


def test_a_missing_package_is_named(
    vectors: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line and the command; nothing is left behind."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with raises(UsageError, "package-missing") as caught:
        write_figure(chart_of(vectors, "returns"), tmp_path / "a.png")
    assert caught.value.hint == "pip install matplotlib"
    for name, suffix in (("PIL", "gif"), ("imageio", "mp4")):
        monkeypatch.setitem(sys.modules, name, None)
        with raises(UsageError, "package-missing"):
            render(vectors, 0, tmp_path / f"a.{suffix}")
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        ((4, 5), [1, 1, 1]),
        ((4, 5, 1), [1, 1, 1]),
        ((4, 5, 3), [1, 2, 3]),
        ((4, 5, 4), [1, 2, 3]),
        ((3, 4, 5), [1, 21, 41]),
        ((1, 4, 5), [1, 1, 1]),
        ((2, 4, 5), [21, 21, 21]),
        ((2, 4, 5, 3), [61, 62, 63]),
    ],
)
def test_frames(shape: tuple[int, ...], first: list[int]) -> None:
    """Grey ones, channels first or last, and the newest of a stack; a PNG file holds the same."""
    frame = as_frame(np.arange(1, 1 + np.prod(shape), dtype=np.uint8).reshape(shape))
    assert (4, 5, 3) == frame.shape
    assert first == frame[0, 0].tolist()
    assert frame.tolist() == np.asarray(Image.open(io.BytesIO(png(frame)))).tolist()


def pngs(folder: Path) -> list[Any]:
    return [np.asarray(Image.open(path)).tolist() for path in sorted(folder.iterdir())]


def test_stored_images(pictures: Dataset, tmp_path: Path) -> None:
    """The video shows them all, with the one after the last step."""
    rendered = render(pictures, 2, tmp_path / "film", trust=True)
    episode = pictures[2]
    assert (len(episode) + 1, (23, 20), STORED) == (rendered.frames, rendered.size, rendered.origin)
    assert [*episode.observations.tolist(), episode.last_observation.tolist()] == pngs(tmp_path / "film")


def test_actions_that_are_run_again(pictures: Dataset, vectors: Dataset, tmp_path: Path) -> None:
    """The environment renders what the images of the same run are; no policy is needed."""
    rendered = render(vectors, 5, tmp_path / "again", trust=True)
    assert (AGAIN, None, 20) == (rendered.origin, rendered.difference, rendered.fps)
    render(pictures, 5, tmp_path / "stored", trust=True)
    render(pictures, 5, tmp_path / "both", again=True, trust=True)
    assert pngs(tmp_path / "stored") == pngs(tmp_path / "again") == pngs(tmp_path / "both")


def test_a_gif(pictures: Dataset, tmp_path: Path) -> None:
    rendered = render(pictures, 0, tmp_path / "a.gif", fps=10, trust=True)
    video: Any = Image.open(tmp_path / "a.gif")
    with video:
        assert (rendered.frames, rendered.size, 100) == (video.n_frames, video.size, video.info["duration"])
    with pytest.raises(DatasetExistsError):
        render(pictures, 0, tmp_path / "a.gif", trust=True)
    with raises(UsageError, "output-suffix"):
        render(pictures, 0, tmp_path / "a.avi")
    assert ["a.gif"] == [path.name for path in tmp_path.iterdir()]


def test_a_gif_has_all_frames(tmp_path: Path) -> None:
    """Equal ones too, each with its duration, and their very pixels."""
    frames = [np.full((4, 6, 3), value, np.uint8) for value in (0, 0, 9, 9, 9, 0)]
    frames[3][1:3, 2, 1] = 77
    with video_writer(tmp_path / "a.gif", 20.0) as add:
        for frame in frames:
            add(frame)
    video: Any = Image.open(tmp_path / "a.gif")
    with video:
        assert (len(frames), 0) == (video.n_frames, video.info["loop"])
        for at, frame in enumerate(frames):
            video.seek(at)
            assert 50 == video.info["duration"]
            assert frame.tolist() == np.asarray(video.convert("RGB")).tolist()


def test_an_episode_that_differs(tmp_path: Path) -> None:
    """The video is of other observations, and that is said."""
    moody = made(tmp_path / "moody", blind=True, moody=True)
    differences = [
        render(moody, place, tmp_path / f"film{place}", trust=True).difference for place in range(6)
    ]
    assert any(difference and difference.field == "observation" for difference in differences)


def test_an_environment_that_renders_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = made(tmp_path / "out", 1, blind=True)
    monkeypatch.setattr("tests.report.worlds.Pictures.render", lambda self: None)
    with raises(EnvError, "env-no-image"):
        render(dataset, 0, tmp_path / "film", trust=True)
    assert ["out"] == [path.name for path in tmp_path.iterdir()]


def test_another_file_is_not_loaded(tmp_path: Path) -> None:
    """An environment in a file must be the one that made the episodes: a pickle can run any code."""
    file = tmp_path / "env.pkl"
    file.write_bytes(cloudpickle.dumps(Pictures(blind=True, render_mode="rgb_array")))
    config = CollectConfig(
        env=str(file), episodes=EpisodeRange(0, 1), sampler="local", workers=1, output=tmp_path / "out"
    )
    collect(config)
    assert render(load(tmp_path / "out"), 0, tmp_path / "film", trust=True).difference is None
    file.write_bytes(b"another")
    with raises(EnvLoadError, "env-hash", "env.pkl"):
        render(load(tmp_path / "out"), 0, tmp_path / "again", trust=True)


def test_the_card_is_written_again(vectors: Dataset, tmp_path: Path) -> None:
    """With a licence, which a later card keeps; no data change."""
    folder = Path(shutil.copytree(vectors.path, tmp_path / "copy"))
    before, card = data_hashes(folder), folder / "README.md"
    assert "license" not in card.read_text()
    write_card(folder, license="cc-by-4.0")
    write_card(folder)
    assert card.read_text().startswith('---\nlicense: "cc-by-4.0"\n')
    assert "cc-by-4.0" == info_of(folder)["card"]["license"]
    with raises(UsageError, "card-license"):
        write_card(folder, license="mit\nx: y")
    write_card(folder, title="Medium: 100 [runs]", references=(22.5, 500.0))
    write_card(folder, license="mit")
    assert 'pretty_name: "Medium: 100 [runs]"' in card.read_text()
    assert "# Medium: 100 \\[runs\\]" in card.read_text()
    assert "| normalized score | 0 at a mean return of 22.5, 100 at 500 |" in card.read_text()
    assert {"low": 22.5, "high": 500.0} == info_of(folder)["card"]["references"]
    for title in ("", " ", "two\nlines"):
        with raises(UsageError, "card-title"):
            write_card(folder, title=title)
    for references in ((1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.inf)):
        with raises(UsageError, "reference-order"):
            write_card(folder, references=references)
    assert before == data_hashes(folder)
    assert [] == [*verify_dataset(folder).faults, *verify_dataset(folder).notes]
    assert len(vectors) == len(load(folder))
