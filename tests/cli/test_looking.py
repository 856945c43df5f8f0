"""`head`, `stats`, `list`, `plot`, `render`, `report` and `card`: lines for people, documents for programs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import rollout_cli
from rollout_cli import CollectConfig, collect
from rollout_cli.errors import UsageError
from rollout_cli.options.types import EpisodeRange
from rollout_cli.reports import charts
from rollout_cli.reports.identity import sized
from tests.cli.calling import Caller
from tests.helpers.datasets import episodes_of, info_of, set_source, steps_of
from tests.helpers.errors import raises

MAKE = ("collect", "--sampler", "local", "--workers", "1", "--seed", "7", "-q")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a dataset that no test changes."""
    from rollout_cli.cli.app import run

    folder = tmp_path_factory.mktemp("looking") / "cart"
    assert 0 == run([*MAKE, "--episodes", "9", "-o", str(folder)])
    return folder


def test_head(rollout: Caller, dataset: Path) -> None:
    """The first episodes, below their names; with --steps the steps of the first one."""
    table = episodes_of(dataset)
    lines = rollout("head", dataset, "-n", "3").stdout.splitlines()
    assert ["id", "number", "length", "return", "end", "seed"] == lines[0].split()
    first = [f"{table[name][0]}" for name in ("episode_id", "episode_number", "length")]
    assert [*first, f"{table['return'][0].as_py():g}", "terminated", f"{table['seed'][0]}"] == lines[
        1
    ].split()
    assert 4 == len(lines)
    document = json.loads(rollout("head", dataset, "--json").stdout)
    assert table["seed"].to_pylist()[:5] == [episode["seed"] for episode in document["episodes"]]
    steps = json.loads(rollout("head", dataset, "--steps", "--json").stdout)["steps"]
    assert steps_of(dataset)["observation"].to_pylist()[:5] == [step["observation"] for step in steps]
    assert 6 == len(rollout("head", dataset, "--steps").stdout.splitlines())
    assert int(table["length"][0].as_py()) < len(
        rollout("head", dataset, "--steps", "-n", f"{10**30}").stdout.splitlines()
    )


def test_steps_of_wide_observations(rollout: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actions and rewards come first, since a terminal has no room for all columns."""
    rollout(*MAKE, "--env", "tests.helpers.mutations:World", "--episodes", "1", "-o", "wide")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    lines = rollout("head", "wide", "--steps").stdout.splitlines()
    assert ["step", "action", "reward"] == lines[0].split()[:3]
    assert max(map(len, lines)) <= 80


def test_stats(rollout: Caller, dataset: Path) -> None:
    """A line for each number of a column; the document has all digits."""
    shown = rollout("stats", dataset).stdout
    assert re.search(r"^terminated +9 episodes$", shown, re.MULTILINE)
    assert re.search(r"^reward +1 +1 +1 +0 +100 %$", shown, re.MULTILINE)
    assert 4 == len(re.findall(r"^observation\[\d\]", shown, re.MULTILINE))
    document = json.loads(rollout("stats", dataset, "--json").stdout)
    assert json.loads((dataset / "meta" / "stats.json").read_text()) == document["columns"]
    assert episodes_of(dataset)["return"].to_numpy().mean() == document["return"]["mean"]


def test_stats_of_a_run_that_goes_on(rollout: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted from its steps; a sample of them says so, and shares are those of the sample."""
    rollout(*MAKE, "--episodes", "2", "-o", "out")
    expected = json.loads(rollout("stats", "out", "--json").stdout)
    info = info_of(Path("out"))
    Path("out/meta/info.json").write_text(json.dumps(info | {"status": "collecting"}))
    Path("out/meta/stats.json").unlink()
    assert expected == json.loads(rollout("stats", "out", "--json").stdout)
    assert "sample" not in rollout("stats", "out").stdout
    monkeypatch.setattr(charts, "_MOST_STEPS", 16)
    shown = rollout("stats", "out").stdout
    assert re.search(r"^columns +a sample of 16 steps$", shown, re.MULTILINE)
    assert re.search(r"^reward +1 +1 +1 +0 +100 %$", shown, re.MULTILINE)
    rollout("report", "out", "--output", "out.html")
    assert "Figures, histograms and shares are from a sample of 16 steps." in Path("out.html").read_text()


def test_list(rollout: Caller, dataset: Path) -> None:
    """All datasets below a folder, those that cannot be read too."""
    (dataset.parent / "inner" / "meta").mkdir(parents=True, exist_ok=True)
    (dataset.parent / "inner" / "meta" / "info.json").write_text("{")
    lines = rollout("list", dataset.parent).stdout.splitlines()
    names = ["path", "env", "policy", "episodes", "steps", "mean", "return", "date", "size", "status"]
    assert names == lines[0].split()
    steps = f"{episodes_of(dataset)['length'].to_numpy().sum():,}"
    size = sized(info_of(dataset)["bytes"]).split()
    mean = episodes_of(dataset)["return"].to_numpy().mean()
    path, *found = lines[1].split()
    date = info_of(dataset)["times"]["started"][:10]
    expected = ["cart", "CartPole-v1", "random", "9", steps, f"{mean:.6g}", date, *size, "complete"]
    assert expected == [path, *found]
    assert "Expecting property name" in lines[2]
    document = json.loads(rollout("list", dataset.parent, "--json").stdout)
    assert [9, None] == [row.get("episodes") for row in document["datasets"]]
    assert [mean, None] == [row.get("mean_return") for row in document["datasets"]]
    assert str(dataset) == document["datasets"][0]["path"]
    rollout("list", "nothing", code=5)


def test_list_in_a_terminal(rollout: Caller, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers in names are ordered as numbers, and names get narrower so that figures stay visible."""
    name = "a-policy-with-a-long-name"
    for number in (4500, 500):
        shutil.copytree(dataset, place := Path(f"runs/models/of/{name}/{number}"))
        source = info_of(place)["sources"][0]
        set_source(place, policy={**source["policy"], "spec": f"sb3:{name}/{number}.zip"})
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    lines = rollout("list", "runs").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert ["/500 ", "/4500 "] == [re.findall("/[0-9]+ ", line)[0] for line in lines[1:]]
    steps = f"{episodes_of(dataset)['length'].to_numpy().sum():,}"
    assert all(
        {"9", steps, info_of(dataset)["times"]["started"][:10]} <= {*line.split()} for line in lines[1:]
    )


def test_plot(rollout: Caller, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = rollout("plot", dataset).stdout.splitlines()
    assert "returns of 9 episodes" == lines[0]
    assert max(map(len, lines)) <= 80
    document = json.loads(rollout("plot", dataset, "actions", "--json").stdout)
    assert len(steps_of(dataset)) == sum(document["chart"]["counts"])
    document = json.loads(rollout("plot", dataset, "over-time", "--json").stdout)
    returns = episodes_of(dataset)["return"].to_pylist()  # So few have a group each.
    assert [[one] * 3 for one in returns] == document["chart"]["percentiles"]
    refused = rollout("plot", dataset, "rewards", code=2).stderr
    assert all(part in refused for part in ("returns", "over-time", "[plot-unknown]"))
    assert "--output a.png" in rollout("plot", dataset, "-o", "a.pdf", code=2).stderr


def test_render(rollout: Caller) -> None:
    """A film, and how many frames it has; a secret that the dataset lacks must be given again."""
    make = (*MAKE, "--env", "tests.report.worlds:Pictures", "--env-kwargs", "blind=true")
    rollout(*make, "--episodes", "2", "-o", "out")
    ran = rollout("render", "--trust", "out", "--episode", "1", "-o", "film")
    assert "identical" in ran.stdout
    assert len(list(Path("film").iterdir())) == episodes_of(Path("out"))["length"][1].as_py() + 1
    refused = rollout("render", "--trust", "out", "--episode", "2", "-o", "b.gif", code=2).stderr
    assert "[episode-missing]" in refused
    source = info_of(Path("out"))["sources"][0]
    source["collector"]["env_kwargs"]["password"] = "***"
    set_source(Path("out"), collector=source["collector"])
    assert "--env-kwargs password=" in rollout("render", "--trust", "out", "-o", "c", code=2).stderr


@pytest.mark.parametrize("fresh", [(), ("--fresh-env",)])
def test_a_film_of_a_world_that_is_drawn_when_it_is_made(rollout: Caller, fresh: tuple[str, ...]) -> None:
    """The environment of the film is built from the generators that its worker built it from."""
    rollout(*MAKE, "--env", "tests.report.worlds:Drawn", *fresh, "--episodes", "3", "-o", "out")
    ran = rollout("render", "--trust", "out", "--episode", "2", "-o", "film")
    assert "replayed  identical" in ran.stdout
    assert "" == ran.stderr


@pytest.mark.parametrize("output", ["s3://bucket/seen.html", ".", ""])
def test_what_names_no_local_file(
    rollout: Caller, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """A folder `s3:` would be a surprise, and a film, a picture, a page or a policy has a name."""
    monkeypatch.chdir(tmp_path)
    commands = *((name, dataset) for name in ("render", "plot", "report")), ("policy", "pack", "a:b")
    for command in commands:
        error = rollout(*command, "--output", output, code=2).stderr
        assert all(part in error for part in (repr(output), "[output-not-local]"))
    assert [] == [*tmp_path.iterdir()]
    rollout("report", dataset, "--output", f"file://{tmp_path}/seen.html")
    assert (tmp_path / "seen.html").is_file()


def test_report_and_card(rollout: Caller, dataset: Path) -> None:
    document = json.loads(rollout("report", dataset, "-o", "r.html", "--json").stdout)
    assert Path("r.html").stat().st_size == document["bytes"]
    rollout("report", dataset, "-o", "r.html", code=5)
    rollout(*MAKE, "--timesteps", "1200", "-o", "out")
    assert "out/README.md\n" == rollout("card", "out", "--license", "mit", "-q").stdout
    assert 'license: "mit"' in Path("out/README.md").read_text()
    assert "[option-value]" in rollout("card", "out", "--references", "5", code=2).stderr
    rollout("card", "out", "--title", "Random", "--references", "-100,0", "-q")
    rollout("collect", "--resume", "--timesteps", "1300", "-o", "out", "-q")
    for part in ('license: "mit"', "# Random", "0 at a mean return of -100, 100 at 0"):
        assert part in Path("out/README.md").read_text()
    seen = json.loads(rollout("stats", "out", "--json").stdout)
    score = seen["estimates"]["normalized score"]["value"]
    assert score == pytest.approx(seen["return"]["mean"] + 100)
    rollout("verify", "out")


def test_the_card_of_a_suite(rollout: Caller, tmp_path: Path) -> None:
    """A row and two configurations a member; another README is not replaced."""
    for name in ("b", "a"):
        rollout(*MAKE, "--episodes", "3", "-o", f"suite/{name}")
    rollout("card", "suite/a", "--title", "First | of [all]", "--references", "-10,0", "-q")
    assert "suite/README.md\n" == rollout("card", "suite", "--title", "Both", "--license", "mit", "-q").stdout
    text = Path("suite/README.md").read_text()
    assert text.startswith('---\nlicense: "mit"\npretty_name: "Both"\n')
    assert ["a", "a-episodes", "b", "b-episodes"] == re.findall(r'config_name: "(.*)"', text)
    mean = rollout_cli.load("suite/a").rows.column("return").mean()
    assert "| a | First \\| of \\[all\\] | 3 | " in text
    assert f" | {mean:.6g} (" in text
    assert f" | {10 * (mean + 10):.6g} (" in text
    assert Path("suite/README.md") == rollout_cli.card("suite", title="Both", license="mit")
    assert text == Path("suite/README.md").read_text()
    with raises(UsageError, "card-license"):
        rollout_cli.card("suite", license="two words")
    with raises(UsageError, "card-of-a-folder"):
        rollout_cli.card("suite", plot=True)
    assert {"folder": "suite", "path": "suite/README.md"} == json.loads(
        rollout("card", "suite", "--title", "Again", "--json").stdout
    )
    assert "# Again" in Path("suite/README.md").read_text()
    assert "[card-of-a-folder]" in rollout("card", "suite", "--plot", code=2).stderr
    Path("suite/README.md").write_text("My own words")
    assert "[output-exists]" in rollout("card", "suite", code=5).stderr
    assert "My own words" == Path("suite/README.md").read_text()


def test_the_references_of_a_suite(rollout: Caller, tmp_path: Path) -> None:
    """Two members, or numbers, are the scores 0 and 100 of all members; a mistake changes no dataset."""
    for name, episodes in (("b", "5"), ("a", "3")):
        rollout(*MAKE, "--episodes", episodes, "-o", f"suite/{name}")
    means = {name: rollout_cli.load(f"suite/{name}").rows.column("return").mean() for name in "ab"}
    lower, higher = sorted(means, key=means.__getitem__)
    rollout("card", "suite", "--references", f"{lower}, {higher}")
    text = Path("suite/README.md").read_text()
    for name, score in ((lower, 0), (higher, 100)):
        seen = json.loads(rollout("stats", f"suite/{name}", "--json").stdout)
        assert score == pytest.approx(seen["estimates"]["normalized score"]["value"])
        assert re.search(rf"^\| {name} \|.* \| {score} \([^|]*\) \|$", text, re.MULTILINE)
        rollout("verify", f"suite/{name}")
    rollout("card", "suite", "--references", f"-1000,{higher}")
    assert -1000 == info_of(Path("suite/a"))["card"]["references"]["low"]
    assert "[reference-unknown]" in rollout("card", "suite", "--references", "a,expert", code=2).stderr
    assert "[reference-order]" in rollout("card", "suite", "--references", f"{higher},{lower}", code=2).stderr
    assert "[option-value]" in rollout("card", "suite", "--references", "a", code=2).stderr
    assert -1000 == info_of(Path("suite/b"))["card"]["references"]["low"]


@pytest.mark.parametrize(
    ("n_bytes", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (123_456, "123 kB"), (5 * 10**13, "50 TB")],
)
def test_sizes_in_words(n_bytes: int, words: str) -> None:
    assert words == sized(n_bytes)


@pytest.mark.parametrize("text", ["{", "[1]", '{"reward": 3}'])
def test_statistics_that_are_damaged(rollout: Caller, dataset: Path, text: str) -> None:
    """They are one line, which names the file and what mends it."""
    (dataset / "meta" / "stats.json").write_text(text)
    for words in (("stats", dataset), ("report", dataset, "-o", "r.html"), ("plot", dataset, "actions")):
        refused = rollout(*words, code=5).stderr
        assert "stats.json" in refused.splitlines()[0]
        assert "`rollout repair`" in refused


def test_skipped_episodes(rollout: Caller, caplog: pytest.LogCaptureFixture) -> None:
    """Their share is in the summary, in all that describes the dataset, and in the log of a program."""
    words = ("--env", "tests.helpers.mutations:World", "--on-env-error", "skip", "--episodes", "60")
    collected = rollout(*MAKE[:-1], *words, "-o", "out")
    count = info_of(Path("out"))["sources"][0]["skipped"]["count"]
    share = f"{count} of 60 episodes ({100 * count / 60:.3g} %)"
    assert 0 < count < 20
    assert f"skipped       {share}" in collected.stdout
    assert f"warning: {share} were skipped" in collected.stderr
    assert share in rollout("info", "out").stdout
    assert f"note: {share} were skipped" in rollout("verify", "out").stderr
    assert f"| skipped | {share} |" in Path("out/README.md").read_text()
    rollout("report", "out", "-o", "out.html")
    assert share in Path("out.html").read_text()
    world = CollectConfig(env="tests.helpers.mutations:World", episodes=EpisodeRange(0, 60), seed=7)
    config = replace(world, sampler="local", workers=1, on_env_error="skip", output=Path("again"))
    assert count == collect(config).skipped
    assert f"{share} were skipped" in caplog.text


def test_a_program_hears_that_a_run_is_not_reproducible(
    rollout: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    rollout("--version")  # Its fixture changes the working folder.
    kwargs = {"blind": True, "moody": True}
    config = CollectConfig(
        env="tests.report.worlds:Pictures", env_kwargs=kwargs, episodes=EpisodeRange(0, 6), seed=7
    )
    result = collect(replace(config, sampler="local", workers=1, output=Path("moody")))
    assert "no" == result.reproducible["status"]
    assert "not reproducible: " in caplog.text
