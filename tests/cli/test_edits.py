"""`filter`, `split`, `merge`, `convert`, `relabel` and `diff`: lines for people, documents for programs, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_cli.dataset.reader import Episode
from tests.cli.calling import Caller
from tests.helpers.damage import flip
from tests.helpers.datasets import info_of, numbers_of
from tests.helpers.projects import project, write_module

__all__ = ["project"]

MAKE = ("collect", "--sampler", "local", "--workers", "1", "--episodes", "12", "-q")


@pytest.fixture
def made(rollout: Caller) -> Path:
    """Give a dataset of 12 episodes, in the working folder."""
    rollout(*MAKE, "--seed", "7", "-o", "made")
    return Path("made")


def test_filter(rollout: Caller, made: Path) -> None:
    """The rows, the document, the path; a dry run writes nothing."""
    words = ("filter", made, "--keep", "length >= 15", "-o", "out")
    dry = json.loads(rollout(*words, "--dry-run", "--json").stdout)
    assert not Path("out").exists()
    assert "filter, not done (--dry-run)" in rollout(*words, "--dry-run").stdout
    assert f"episodes   {dry['episodes']}\n" in rollout(*words).stdout
    assert dry | {"written": True} == json.loads(rollout(*words, "--overwrite", "--json").stdout)
    assert f"{Path('out').resolve()}\n" == rollout(*words, "--overwrite", "-q").stdout
    assert "[folder-not-empty]" in rollout(*words, code=5).stderr
    rollout("verify", "out")
    refused = rollout("filter", made, "--keep", "lenght > 3", "-o", "no", code=2).stderr.splitlines()
    assert all(part in refused[0] for part in ("'lenght'", "[expression-syntax]"))
    assert "length" in refused[1]


def test_split_and_merge(rollout: Caller, made: Path) -> None:
    """A merge of the parts has all episodes; the parts are named with their sizes."""
    words = ("split", made, "--parts", "train=0.75,test=0.25", "--seed", "1", "-o", "out")
    assert "train, split, not done (--dry-run)  9 episodes, " in rollout(*words, "--dry-run").stdout
    assert not Path("out").exists()
    assert "test, split   3 episodes, " in rollout(*words).stdout
    again = json.loads(rollout(*words, "--overwrite", "--json").stdout)
    assert [9, 3] == [part["episodes"] for part in again["parts"].values()]
    merged = rollout("merge", "out/train", "out/test", "-o", "whole").stdout
    assert "episodes   12\n" in merged
    assert info_of(made)["steps"] == info_of(Path("whole"))["steps"]
    for parts in ("train", "train=x", "train=1,test=1", "=1", "train=0.5,train=0.5"):
        rollout("split", made, "--parts", parts, "-o", "no", code=2)
    assert not Path("no").exists()


def test_merge_of_runs(rollout: Caller, made: Path) -> None:
    """Each episode has its source; one that is there twice is refused."""
    rollout(*MAKE, "--seed", "8", "-o", "other")
    words = ("merge", made, "other", "-o", "both")
    assert 2 == json.loads(rollout(*words, "--dry-run", "--json").stdout)["sources"]
    assert not Path("both").exists()
    rollout(*words, "-q")
    rollout("verify", "both")
    assert "[episode-repeated]" in rollout("merge", made, "both", "-o", "no", code=2).stderr
    rollout(*MAKE, "--env", "Pendulum-v1", "--max-episode-length", "5", "-o", "pendulum")
    refused = rollout("merge", made, "pendulum", "-o", "no", code=2).stderr
    assert all(part in refused for part in ("spaces", "[datasets-incompatible]"))
    assert not Path("no").exists()


def test_ranges_with_too_few_steps_to_decide_the_columns_are_joined(rollout: Caller) -> None:
    """As one run is that has no gap: a single run might have other columns."""
    for episodes in ("0:4", "4:9"):
        rollout(*MAKE[:-3], "--seed", "7", "--episodes", episodes, "-q", "-o", episodes[0])
    assert ["partial", "decided"] == [info_of(Path(part))["info_columns"] for part in "04"]
    assert 1 == json.loads(rollout("merge", "0", "4", "-o", "both", "--json").stdout)["sources"]
    assert ["merge"] == [step["operation"] for step in info_of(Path("both"))["derived"]]
    rollout("verify", "both")
    assert list(range(9)) == numbers_of(Path("both"))


def test_convert(rollout: Caller, made: Path) -> None:
    """The options change the form, and no value."""
    rollout("convert", made, "--next-observation", "--group-rows", "64", "-o", "out")
    assert "next_observation" in info_of(Path("out"))["features"]
    rollout("diff", made, "out")
    refused = rollout("convert", made, "--drop-info", "x", "-o", "no", code=2).stderr
    assert all(part in refused for part in ("'x'", "[info-unknown]"))
    assert "[nothing-to-change]" in rollout("convert", made, "-o", "no", code=2).stderr
    assert not Path("no").exists()


def test_relabel(rollout: Caller, made: Path, project: Path) -> None:
    """With a function of the working folder, whose output goes to stderr; what it raises is shown with its place."""
    del project
    write_module(
        Path(),
        "mine",
        """
        def reward(episode):
            print("called")
            return episode.rewards * 2

        def fails(episode):
            return episode.nothing
        """,
    )
    document = json.loads(rollout("relabel", made, "--reward", "mine:reward", "-o", "out", "--json").stdout)
    assert ("relabel", 12) == (document["operation"], document["episodes"])
    rollout("verify", "out")
    refused = rollout("relabel", made, "--reward", "mine:fails", "-o", "no", code=3).stderr
    assert all(part in refused for part in ("mine:fails", "AttributeError", "[reward-function]"))
    refused = rollout("relabel", made, "--reward", "mine.py", "-o", "no", code=2).stderr
    assert all(part in refused for part in ("mine:reward", "mine:fails", "[function-spec]"))
    assert not Path("no").exists()


def test_diff(rollout: Caller, made: Path) -> None:
    """Exit code 0 where they are the same, and 6 with the first place where they are not."""
    rollout(*MAKE, "--seed", "7", "-o", "same")
    assert "compared  identical" in rollout("diff", made, "same").stdout
    assert "" == rollout("diff", made, "same", "-q").stdout
    rollout(*MAKE, "--seed", "8", "-o", "other")
    ran = rollout("diff", made, "other", code=6)
    assert all(part in ran.stderr for part in ("made", "other", "seed", "[datasets-differ]"))
    document = json.loads(rollout("diff", made, "other", "--json", code=6).stdout)
    assert (False, 0, "seed") == (
        document["identical"],
        document["episode"],
        document["difference"]["field"],
    )


def test_an_edit_of_a_damaged_dataset(rollout: Caller, made: Path) -> None:
    """The error says what to do, and nothing untrue of what was there before."""
    flip(next(made.glob("data/**/*.parquet")), 600)
    words = ("filter", made, "--keep", "length > 0", "-o", "out")
    refused = rollout(*words, code=5).stderr
    named = ("made", "data/chunk-00000/file-00000.parquet", "[dataset-damaged]")
    assert all(part in refused for part in (*named, "`rollout repair made`", "--no-verify"))
    refused = rollout(*words, "--no-verify", code=5).stderr
    assert "list the damage with `rollout verify`" in refused
    assert "nothing was committed" in refused
    rollout(*MAKE, "--seed", "9", "-o", "out")
    refused = rollout(*words, "--no-verify", "--overwrite", code=5).stderr
    assert f"nothing was committed, and the dataset in {Path('out').resolve()} is unchanged" in refused
    rollout("verify", "out")


def test_a_film_of_relabelled_episodes(rollout: Caller) -> None:
    """The rewards are others than those of the environment, and are not compared."""
    rollout(*MAKE, "--env", "tests.report.worlds:Pictures", "--env-kwargs", "blind=true", "-o", "blind")
    rollout("relabel", "blind", "--reward", "tests.cli.test_edits:ordered", "-o", "labelled")
    ran = rollout("render", "--trust", "labelled", "--episode", "1", "-o", "film")
    assert "replayed  identical" in ran.stdout
    assert "" == ran.stderr
    refused = rollout("relabel", "blind", "--reward", "tests.cli.test_edits:MAKE", "-o", "no", code=3).stderr
    assert all(part in refused for part in ("tests.cli.test_edits:MAKE", "tuple", "[function-type]"))


def ordered(episode: Episode) -> Any:
    return np.arange(len(episode))
