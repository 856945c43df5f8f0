"""A dataset that is damaged anywhere: no command is at fault itself, and no edit makes a valid dataset of it."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from random import Random

import pytest

import rollout_cli
from rollout_cli.errors import RolloutError
from tests.helpers.mutations import mutate
from tests.helpers.processes import Ran, called
from tests.helpers.thorough import usually

WORLD = ("--env", "tests.helpers.mutations:World", "--sampler", "local", "--workers", "1", "-q")
NAMED = ("info.json", "stats.json", ".parquet", "meta/episodes")
"""One of these is in the message of a damaged file."""

READS: dict[str, tuple[str, ...]] = {
    "info": ("info", "{root}"),
    "head": ("head", "{root}"),
    "head --steps": ("head", "{root}", "--steps"),
    "stats": ("stats", "{root}"),
    "list": ("list", "{root}"),
    "plot": ("plot", "{root}"),
    "plot over-time": ("plot", "{root}", "over-time"),
    "plot actions": ("plot", "{root}", "actions"),
    "plot observations": ("plot", "{root}", "observations"),
    "report": ("report", "{root}", "-o", "{out}.html"),
    "verify": ("verify", "{root}"),
    "verify --quick": ("verify", "{root}", "--quick"),
    "repair --dry-run": ("repair", "{root}", "--dry-run"),
    "diff": ("diff", "{root}", "{base}"),
    "diff of another": ("diff", "{base}", "{root}"),
    "replay": ("replay", "{root}", "--episode", "3"),
    "render": ("render", "{root}", "-o", "{out}"),
}
EDITS: dict[str, tuple[str, ...]] = {
    "filter": ("filter", "{root}", "-k", "env_info.left == 0 and episode_info.level > 3", "-o", "{out}"),
    "filter by returns": ("filter", "{root}", "-k", "return > -3", "-o", "{out}"),
    "split": ("split", "{root}", "-p", "a=0.5,b=0.5", "-o", "{out}"),
    "convert": ("convert", "{root}", "--no-next-observation", "--drop-info", "odd", "-o", "{out}"),
    "relabel": ("relabel", "{root}", "-r", "tests.helpers.mutations:zeros", "-o", "{out}"),
    "merge": ("merge", "{root}", "{other}", "-o", "{out}"),
    "export to hf": ("export", "{root}", "--to", "hf", "-o", "{out}"),
    "export of vectors": ("export", "{root}", "--to", "hf", "--set", "flatten=true", "-o", "{out}"),
    "a policy of its actions": ("collect", "-p", "replay:{root}", "--episodes", "2", *WORLD, "-o", "{out}"),
}
CHANGES: dict[str, tuple[str, ...]] = {
    "card": ("card", "{root}", "--license", "mit", "--plot"),
    "repair": ("repair", "{root}"),
    "resume": ("collect", "--resume", "--episodes", "40", "-q", "-o", "{root}"),
}

COUNT, BLOCK = int(os.environ.get("ROLLOUT_TEST_MUTATIONS", "1500")), 10
"""How many mutations there are; one block of them runs in the README's command."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collected dataset, one that is made of it, and another run's."""
    path = tmp_path_factory.mktemp("mutations")
    limits = ("--segment-bytes", "12000", "--next-observation")
    keep = ("--keep", "return > -1e9", "--keep-cap", "60", "--on-env-error", "skip", "--drop-info", "dropped")
    wrapper = ("--wrapper", "gymnasium.wrappers:NormalizeReward")
    called(
        "collect", *WORLD, *limits, *keep, *wrapper, "--episodes", "30", "--seed", "5", "-o", path / "base"
    )
    called("filter", path / "base", "-k", "length > 3", "-o", path / "made", "-q")
    called("collect", *WORLD, *limits, "--episodes", "5", "--seed", "6", "-o", path / "other")
    return path


def blocks() -> list[int]:
    return list(range(0, COUNT, BLOCK))


@pytest.mark.parametrize("start", usually(blocks(), lambda start: start == 0))
def test_damage_is_answered(folder: Path, tmp_path: Path, start: int) -> None:
    """Every command works, or ends with one error that names the file; no edit of what is invalid is valid."""
    for seed in range(start, start + BLOCK):
        random, place = Random(seed), tmp_path / str(seed)
        root = Path(shutil.copytree(folder / random.choice(["base", "base", "base", "made"]), place / "d"))
        what = f"seed {seed}: {mutate(root, random)}"
        names = random.sample([*READS, *CHANGES], 3)
        edit = random.choice([*EDITS])
        for name in names:
            subject = Path(shutil.copytree(root, place / name / "d")) if name in CHANGES else root
            run({**READS, **CHANGES}[name], folder, subject, place / f"{name}.out", f"{what}: {name}")
        is_valid = called("verify", root, code=None).code == 0
        edited = run(EDITS[edit], folder, root, out := place / "edited", f"{what}: {edit}")
        if not is_valid and edited.code == 0:
            made = [out / "a", out / "b"] if edit == "split" else [out]
            codes = [called("verify", each, code=None).code for each in made]
            assert 0 not in codes, f"{what}: {edit} hides the damage"
        answered(root, what)
        shutil.rmtree(place)


def run(words: tuple[str, ...], folder: Path, root: Path, out: Path, what: str) -> Ran:
    """Run a command, which may be refused and may not fail."""
    places = {"root": root, "out": out, "base": folder / "base", "other": folder / "other"}
    ran = called(*(word.format(**places) for word in words), code=None)
    assert ran.code in (0, 2, 3, 5, 6), f"{what}: {ran.said}"
    assert "Traceback" not in ran.stderr, f"{what}: {ran.said}"
    assert ran.code != 5 or any(name in ran.stderr for name in NAMED), f"{what}: {ran.said}"
    return ran


def answered(root: Path, what: str) -> None:
    """Read a dataset as a program does, which may be refused with an error of ours."""
    problem = ""
    try:
        read(root)
    except RolloutError as error:
        is_named = any(name in error.message for name in NAMED)
        problem = "" if error.exit_code > 1 and is_named else repr(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not of ours
        problem = repr(error)
    assert not problem, f"{what}: {problem}"


def read(root: Path) -> None:
    """Read all that a dataset has, as a program does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = rollout_cli.load(root)
        for episode in dataset:
            parts = (episode.observations, episode.actions, episode.last_observation, episode.batch)
            infos = (dict(episode.env_infos), dict(episode.episode_infos), episode.facts)
            assert len(parts) + len(infos)
        if len(dataset):
            dataset.to_episode_batch()
            dataset.transitions()
            dataset.windows(3)
        assert sum(len(batch["rewards"]) for batch in dataset.iter_batches(64, shuffle=1)) >= 0
