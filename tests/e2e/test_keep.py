"""`--keep`: which episodes are kept follows from the episodes alone, and so do the bytes of `data/`."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from rollout_cli import load
from tests.e2e.test_resume import end_in
from tests.helpers.breaks import BREAKS
from tests.helpers.datasets import assert_same_data, info_of, numbers_of, source_of
from tests.helpers.envs import HIDDEN
from tests.helpers.processes import Ran, called

ENV = ("--env", "tests.helpers.envs:FaultyEnv", "--seed", "7", "--segment-bytes", "20000")
LOCAL = ("--sampler", "local", "--workers", "1")
EXPRESSION = "return > 1 and env_info.steps >= 5 or episode_info.length == 4 and seed / 2 > 1e9"
"""Of facts, and of infos of steps and resets: about a third of the episodes."""


def collect(output: Path, *words: str, code: int = 0, hidden: Any = None) -> Ran:
    fault = {HIDDEN: json.dumps(hidden)} if hidden else {}
    return called("collect", *words, *ENV, "--quiet", "--output", output, env=fault, code=code)


def resume(output: Path, *words: str, code: int = 0) -> Any:
    ran = called("collect", "--resume", "--json", *LOCAL, *words, "--output", output, code=code)
    return json.loads(ran.stdout) if code == 0 else ran


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """250 episodes that are kept, collected in this process."""
    path = tmp_path_factory.mktemp("keep") / "whole"
    collect(path, "--keep", EXPRESSION, "--episodes", "250", *LOCAL)
    return path


@pytest.mark.thorough
def test_kept_episodes_are_those_that_a_filter_keeps(tmp_path: Path, whole: Path) -> None:
    """Of the same run without `--keep`: under the same numbers, and with the same values; three workers agree."""
    numbers = numbers_of(whole)
    assert 250 == len(numbers) < numbers[-1] / 2
    collect(tmp_path / "all", "--episodes", str(numbers[-1] + 1), *LOCAL)
    chosen = load(tmp_path / "all").filter(EXPRESSION)
    assert numbers == chosen.episodes["episode_number"].to_pylist()
    assert load(whole)[200].batch.rewards.tolist() == chosen[200].batch.rewards.tolist()
    for name in ("seed", "length", "return"):
        assert load(whole).episodes[name].to_pylist() == chosen.episodes[name].to_pylist()
    collect(tmp_path / "three", "--keep", EXPRESSION, "--episodes", "250", "--workers", "3")
    assert_same_data(whole, tmp_path / "three")
    called("verify", whole)
    called("replay", "--trust", whole, "--episode", "249")
    acceptance = source_of(whole)["acceptance"]
    assert {"kept": 250, "run": numbers[-1] + 1, "rejected": numbers[-1] - 249}.items() <= acceptance.items()
    assert f"250 of {numbers[-1] + 1:,} episodes" in called("info", whole).stdout
    assert ("yes", "episodes") == (source_of(whole)["reproducible"]["status"], source_of(whole)["stopped_by"])


@pytest.mark.thorough
def test_a_killed_run_is_resumed_and_extended(tmp_path: Path, whole: Path) -> None:
    """Killed in an episode that hangs: the bytes are those of one run, and steps may end it as well."""
    out, numbers = tmp_path / "out", numbers_of(whole)
    seeds = load(whole).episodes["seed"].to_pylist()
    words = ("collect", "--keep", EXPRESSION, *ENV, "--workers", "2", "--timesteps", "1150")
    assert -signal.SIGKILL == end_in(seeds[205:206], out, *words, more_than=204).code
    assert numbers[:205] == numbers_of(out)
    steps = resume(out)["steps"]
    assert steps - load(out).episodes["length"].to_pylist()[-1] < 1150 <= steps
    called("verify", out)
    said = resume(out, "--keep", "return > 2", code=2).said
    assert all(part in said for part in ("keep", "return > 2", "resume-refused"))
    resume(out, "--timesteps", "100000", "--episodes", "250")
    assert_same_data(whole, out)
    assert source_of(whole)["acceptance"] == source_of(out)["acceptance"]
    assert "too-many-episodes" in resume(out, "--episodes", "100", code=2).said
    assert numbers == numbers_of(out)


def test_episodes_that_are_lost_are_run_again(tmp_path: Path, whole: Path) -> None:
    """Though the run had ended behind them; one of them that was skipped then is listed no more."""
    out, numbers = tmp_path / "out", numbers_of(whole)
    fault = {"what": "raise", "episodes": [load(whole).episodes["seed"].to_pylist()[-3]]}
    words = ("--keep", EXPRESSION, "--episodes", "249", "--on-env-error", "skip", *LOCAL)
    collect(out, *words, hidden=fault)
    assert [*numbers[:-3], *numbers[-2:]] == numbers_of(out)
    BREAKS["the last segment is missing"](out)
    resume(out, "--episodes", "250")
    assert_same_data(whole, out)
    assert "skipped" not in source_of(out)
    assert source_of(whole)["acceptance"] == source_of(out)["acceptance"]


def test_a_cap_ends_the_run(tmp_path: Path, whole: Path) -> None:
    """With what is kept of so many episodes; a higher one continues, and to ask again runs nothing."""
    out, numbers = tmp_path / "out", numbers_of(whole)
    cap = next(n for n in range(numbers[200], numbers[-1]) if n not in numbers) + 1
    count = sum(number < cap for number in numbers)
    words = ("--keep", EXPRESSION, "--episodes", "250", "--keep-cap", str(cap))
    ran = collect(out, *words, "--workers", "2")
    assert f"--keep-cap ended the run: kept {count} of {cap} episodes" in ran.stderr
    assert ("complete", "keep_cap") == (info_of(out)["status"], source_of(out)["stopped_by"])
    assert numbers[:count] == numbers_of(out)
    called("verify", out)
    again = resume(out)
    assert ("keep_cap", 0, cap) == (again["stopped_by"], again["sampling_time_s"], again["acceptance"]["run"])
    said = resume(out, "--keep-cap", "300", code=2).said
    assert all(part in said for part in (f"{cap:,} ", "300", "too-many-episodes")), said
    resume(out, "--keep-cap", "5000")
    assert_same_data(whole, out)


def test_nothing_is_kept(tmp_path: Path) -> None:
    """The cap says when that is known, and no dataset is left."""
    ran = collect(tmp_path / "out", "--keep", "return > 1e9", "--episodes", "1", *LOCAL, code=2)
    assert "[no-episode-kept]" in ran.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("amount", [10, 2_500])
def test_an_info_that_no_episode_has(tmp_path: Path, amount: int) -> None:
    """It is an error at the end, or after 1,000 episodes, though `not` would keep them all."""
    ran = collect(tmp_path / "out", "--keep", "not env_info.step", "--episodes", str(amount), *LOCAL, code=2)
    assert all(part in ran.stderr for part in ("'env_info.step'", "env_info.steps", "[expression-syntax]"))
    assert min(amount, 1_000) <= len(numbers_of(tmp_path / "out")) < 2_500


def test_episodes_that_fail_are_skipped_as_well(tmp_path: Path, whole: Path) -> None:
    """They count to none of both, and are listed; those rejected are not."""
    skipped = numbers_of(whole)[3]
    seed = load(whole).episodes["seed"].to_pylist()[3]
    words = ("--keep", EXPRESSION, "--episodes", "5", "--on-env-error", "skip", *LOCAL)
    collect(tmp_path / "out", *words, hidden={"what": "raise", "episodes": [seed]})
    assert [*numbers_of(whole)[:3], *numbers_of(whole)[4:6]] == numbers_of(tmp_path / "out")
    source = source_of(tmp_path / "out")
    assert [skipped] == [episode["episode_number"] for episode in source["skipped"]["episodes"]]
    assert numbers_of(whole)[5] == source["acceptance"]["run"]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--keep", "wall_time_s < 1"), ("'wall_time_s'", "[expression-syntax]")),
        (("--keep", "lenght > 1"), ("'lenght'", "[expression-syntax]")),
        (("--keep", "length >"), ("[expression-syntax]",)),
        (("--keep", "true", "--shard", "1/2"), ("--shard", "--keep", "[options-exclude-each-other]")),
        (("--keep", "true", "--episodes", "5:9"), ("--keep", "[options-exclude-each-other]")),
        (("--keep-cap", "9"), ("--keep-cap", "--keep", "[option-needs-another]")),
    ],
)
def test_what_is_refused(tmp_path: Path, words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    """Before a worker starts."""
    ran = collect(tmp_path / "out", "--episodes", "4", *words, code=2)
    assert all(part in ran.stderr for part in parts), ran.stderr
