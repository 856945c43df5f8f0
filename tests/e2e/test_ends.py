"""What ends a run: the first of steps, episodes and time; `data/` follows from the episodes that are kept."""

from __future__ import annotations

import json
import resource
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.seeding.seeds import env_seed
from tests.helpers.datasets import (
    assert_same_data,
    episode_facts,
    episodes_of,
    info_of,
    numbers_of,
    source_of,
    steps_of,
)
from tests.helpers.envs import HIDDEN, FaultyEnv
from tests.helpers.processes import Ran, called, running
from tests.helpers.thorough import usually

ENV = ("--env", "tests.helpers.envs:FaultyEnv", "--seed", "7")
LOCAL = ("--sampler", "local", "--workers", "1")


def collect(output: Path, *words: str, code: int = 0, hang: Any = None) -> Ran:
    """Collect; episodes of the seeds `hang` never end."""
    hidden = {HIDDEN: json.dumps({"what": "hang", "episodes": hang})} if hang else {}
    return called("collect", *words, "--quiet", "--output", output, env=hidden, code=code)


@pytest.mark.parametrize(
    ("first", "other", "stopped_by"),
    [
        (("--timesteps", "300"), ("--episodes", "500"), "timesteps"),
        (("--episodes", "60"), ("--timesteps", "9000"), "episodes"),
        (("--episodes", "40:60"), ("--timesteps", "9000"), "episodes"),
        (("--timesteps", "300"), ("--max-time", "3h"), "timesteps"),
    ],
)
def test_the_first_end_counts(
    tmp_path: Path, first: tuple[str, ...], other: tuple[str, ...], stopped_by: str
) -> None:
    """The bytes are those of a run with that end alone, for one and three workers; info.json says which it was."""
    collect(tmp_path / "alone", *first, *ENV, *LOCAL)
    for workers in ("1", "3"):
        out = tmp_path / workers
        collect(out, *first, *other, *ENV, "--workers", workers)
        assert_same_data(tmp_path / "alone", out)
        assert ("complete", stopped_by) == (info_of(out)["status"], source_of(out)["stopped_by"])


class LongEnv(FaultyEnv):
    """Episode 49 is a long one, and those after it raise."""

    def __init__(self) -> None:
        super().__init__("raise", episodes=[env_seed(7, number) for number in range(50, 150)])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        start = super().reset(seed=seed, options=options)
        self._length = 200 if seed == env_seed(7, 49) else self._length
        return start


def test_an_episode_that_nobody_needs_may_fail(tmp_path: Path) -> None:
    """The worker has begun it when the steps are complete, and so is the run."""
    words = ("--env", "tests.e2e.test_ends:LongEnv", "--seed", "7", *LOCAL)
    collect(tmp_path / "out", "--timesteps", "450", *words)
    assert list(range(50)) == numbers_of(tmp_path / "out")
    assert "complete" == info_of(tmp_path / "out")["status"]


def test_combined_ends_are_resumed(tmp_path: Path) -> None:
    """Each of them may be moved, and the bytes are those of one run."""
    collect(tmp_path / "whole", "--episodes", "450", *ENV, *LOCAL)
    out = tmp_path / "out"
    collect(out, "--timesteps", "1500", "--episodes", "900", *ENV, *LOCAL)
    assert "timesteps" == source_of(out)["stopped_by"]
    done = json.loads(called("collect", "--resume", *LOCAL, "--json", "--output", out).stdout)
    assert ("timesteps", 0) == (done["stopped_by"], done["sampling_time_s"])
    collect(out, "--resume", "--timesteps", "90000", "--episodes", "450", "--workers", "2")
    assert "episodes" == source_of(out)["stopped_by"]
    assert_same_data(tmp_path / "whole", out)
    ran = collect(out, "--resume", "--timesteps", "90000", "--episodes", "400", code=2)
    assert all(part in ran.stderr for part in ("450", "400", "[too-many-episodes]"))


@pytest.mark.parametrize("amount", usually([["--timesteps", "9000"], []], lambda amount: not amount))
def test_time_ends_a_run_that_would_never_end(tmp_path: Path, amount: tuple[str, ...]) -> None:
    """With what is finished in order, checked and complete; resumed with more time, it is the run without a limit."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    collect(whole, "--timesteps", "2700", *ENV, *LOCAL)
    stuck = episodes_of(whole)["seed"].to_pylist()[280:281]
    collect(
        out, *amount, *ENV, "--max-time", "1s", "--grace", "0.1", "--workers", "2", "--flush-every", "0.05",
        hang=stuck,
    )  # fmt: skip
    numbers, source = numbers_of(out), source_of(out)
    assert list(range(len(numbers))) == numbers
    assert 0 < len(numbers) <= 280
    assert ("complete", "max_time", "yes") == (
        info_of(out)["status"],
        source["stopped_by"],
        source["reproducible"]["status"],
    )
    kept = steps_of(out)
    assert kept.equals(steps_of(whole).slice(0, kept.num_rows))
    assert episode_facts(out)["seed"].to_pylist() == episode_facts(whole)["seed"].to_pylist()[: len(numbers)]
    called("verify", out)
    collect(out, "--resume", "--timesteps", "2700", "--max-time", "3h", *LOCAL)
    assert_same_data(whole, out)
    assert "timesteps" == source_of(out)["stopped_by"]


def test_time_without_an_episode(tmp_path: Path) -> None:
    """There is nothing that a dataset could be made of."""
    ran = collect(tmp_path / "out", *ENV, "--max-time", "0.2", "--env-kwargs", "what=hang", code=2)
    assert "[time-limit]" in ran.stderr
    assert "--max-time" in ran.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_a_disk_that_fails_ends_a_run_in_which_a_step_hangs(tmp_path: Path) -> None:
    """The timer's commit fails while no more episodes come: the run says so at once."""
    hang = {HIDDEN: json.dumps({"what": "hang", "episodes": [env_seed(7, 1_000)], "lull": 0.06})}
    words = [
        "collect",
        *("--timesteps", "90000"),
        *ENV,
        *("--env-kwargs", "space=image"),
        *("--workers", "2"),
    ]
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (600_000, 600_000))
    words += ["--quiet", *("--flush-every", "3"), *("--output", str(tmp_path / "out"))]
    with running(words, env=hang, before=limit) as run:
        ran = run.end()
    assert 5 == ran.code, ran.said
    assert "[write-failed]" in ran.stderr
