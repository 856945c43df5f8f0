"""`--resume` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Ran

Rollout = Callable[..., Ran]
LOCAL = ["--sampler", "local", "-w", "1"]


def test_a_dataset_knows_the_options_that_are_not_given(rollout: Rollout, tmp_path: Path) -> None:
    """Also its seed; what is given is stronger, and the two words for how much overrule each other."""
    assert rollout("collect", "-n", "1200", "--seed", "5", "--max-episode-length", "9", *LOCAL, "-o", "out").code == 0
    ran = rollout("collect", "--resume", "-o", "out", "--episodes", "200", "--json")
    assert ran.code == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert (5, 200, "complete") == (document["seed"], document["episodes"], document["status"])
    collector = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())["collector"]
    assert (None, 200, 9, "local") == tuple(
        collector[name] for name in ("timesteps", "episodes", "max_episode_length", "sampler")
    )


def test_nothing_to_do_is_no_error(rollout: Rollout) -> None:
    """The result is that of the dataset, and a notice says why it took no time."""
    first = rollout("collect", "-n", "1200", "--seed", "5", *LOCAL, "-o", "out", "--json")
    ran = rollout("collect", "--resume", "-o", "out", "--progress", "--json")
    assert (0, True) == (ran.code, "there is nothing to do" in ran.stderr)
    names = ("episodes", "steps", "mean_return", "seed", "reproducible")
    before, after = json.loads(first.stdout), json.loads(ran.stdout)
    assert [before[name] for name in names] == [after[name] for name in names]


def test_dry_run_shows_what_would_go_on(rollout: Rollout) -> None:
    """With the options of the dataset."""
    rollout("collect", "-n", "1200", "--seed", "5", *LOCAL, "-o", "out")
    shown = rollout("collect", "--resume", "-o", "out", "-n", "2000", "--dry-run", "--json")
    document = json.loads(shown.stdout)
    assert (2000, 5, "local", True) == tuple(document[name] for name in ("timesteps", "seed", "sampler", "resume"))


def test_a_dataset_must_be_named(rollout: Rollout) -> None:
    """The default output is a new folder, in which there is nothing to go on with."""
    ran = rollout("collect", "--resume", "-n", "5")
    assert (2, True) == (ran.code, "name the dataset's folder with --output" in ran.stderr)


def test_going_on_and_replacing_exclude_each_other(rollout: Rollout) -> None:
    """One of them is a mistake."""
    ran = rollout("collect", "--resume", "--overwrite", "-n", "5", "-o", "out")
    assert (2, True) == (ran.code, "give only one of them" in ran.stderr)


def test_the_other_command_is_named(rollout: Rollout) -> None:
    """With the words that would do it."""
    rollout("exact", "-k", "2", *LOCAL, "-o", "out")
    ran = rollout("collect", "--resume", "-o", "out")
    assert (2, True) == (ran.code, "run: rollout exact --resume --output out" in ran.stderr)


def test_a_folder_that_is_not_there_is_an_error_unless_it_is_said_how_much(rollout: Rollout) -> None:
    """So a mistyped name is found, and one command line serves for the first time and the next."""
    assert rollout("collect", "--resume", "-o", "out").code == 5
    ran = rollout("collect", "--resume", "-o", "out", "-n", "50", *LOCAL)
    assert (0, True) == (ran.code, "a new dataset begins" in ran.stderr)


def test_an_option_that_was_cut_as_a_secret_is_asked_for(rollout: Rollout, tmp_path: Path) -> None:
    """The dataset does not know it."""
    (tmp_path / "mine.py").write_text(
        "from tests.support.envs import ChainEnv\n\n\ndef make(token):\n    return ChainEnv()\n"
    )
    given = ["--env-kwargs", "token=abcd"]
    assert rollout("collect", "-n", "1200", "-e", "mine:make", *given, *LOCAL, "-o", "out").code == 0
    ran = rollout("collect", "--resume", "-o", "out", "-n", "1500")
    assert (2, True) == (ran.code, "env_kwargs.token" in ran.stderr)
    assert rollout("collect", "--resume", "-o", "out", "-n", "1500", *given).code == 0
