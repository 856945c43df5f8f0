"""The same seed gives the same bytes, whoever runs the episodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.datasets import (
    assert_same_data,
    data_hashes,
    episode_facts,
    episodes_of,
    numbers_of,
    source_of,
    stats_of,
    steps_of,
)
from tests.helpers.envs import HIDDEN, SIGNS
from tests.helpers.processes import called, rollout
from tests.helpers.thorough import usually

ENV = ("--env", "tests.helpers.envs:FaultyEnv")
VECTOR = ("--env", "tests.helpers.envs:vector", "--vectorization", "native", "--envs-per-worker", "4")
POLICY = "tests.helpers.policies:"

KINDS: dict[str, tuple[str, ...]] = {
    "random actions": ENV,
    "a dictionary": (*ENV, "--env-kwargs", "space=dict"),
    "images": (*ENV, "--env-kwargs", "space=image", "--next-observation"),
    "texts": (*ENV, "--env-kwargs", "space=text"),
    "noise of its own": (*ENV, "--policy", f"{POLICY}OwnNoisePolicy"),
    "global noise": (*ENV, "--policy", f"{POLICY}GlobalNoisePolicy"),
    "late infos": (*ENV, "--env-kwargs", "what=info late"),
    "four rows": (*ENV, "--policy", f"{POLICY}CountingPolicy", "--envs-per-worker", "4"),
    "four native rows": (*VECTOR, "--policy", f"{POLICY}CountingPolicy"),
}
LOCAL = ("--sampler", "local", "--workers", "1")


def collect(output: Path, *words: str, meet: int = 0) -> Path:
    """Collect with one seed; `meet` workers wait for each other, so that each of them runs episodes."""
    signs = output.with_name(f"{output.name}-signs")
    signs.mkdir()
    together = {SIGNS: str(signs), HIDDEN: json.dumps({"meet": meet})}
    command = () if words[0] in ("collect", "exact") else ("collect",)
    called(*command, *words, "--seed", "7", "--quiet", "--output", output, env=together)
    # The check at the end has a worker of its own.
    assert meet <= len(list(signs.glob("met-*"))) <= meet + 1
    return output


@pytest.mark.parametrize(
    "kind", usually(KINDS, {"random actions", "images", "global noise", "four rows"}.__contains__)
)
def test_the_bytes_are_the_same_for_any_number_of_workers(tmp_path: Path, kind: str) -> None:
    """Local, and with two and three workers at once, `data/` and `stats.json` are the same, and so are the episodes."""
    words = ("--timesteps", "300", *KINDS[kind])
    local = collect(tmp_path / "local", *words, *LOCAL)
    for n in (2, 3):
        several = collect(tmp_path / str(n), *words, "--workers", str(n), meet=n)
        assert_same_data(local, several)
        assert stats_of(local) == stats_of(several)
        assert len(set(episodes_of(several)["worker"].to_pylist())) > 1


def test_one_worker_process_and_other_start_methods_too(tmp_path: Path) -> None:
    """However the processes are started."""
    words = ("--timesteps", "300", *ENV)
    local = collect(tmp_path / "local", *words, *LOCAL)
    for method in ("forkserver", "spawn"):
        assert_same_data(
            local, collect(tmp_path / method, *words, "--workers", "1", "--start-method", method)
        )


@pytest.mark.parametrize("policy", ["random", f"{POLICY}OwnNoisePolicy"])
def test_the_width_of_a_batch_changes_nothing_for_policies_that_act_row_by_row(
    tmp_path: Path, policy: str
) -> None:
    """The same bytes with one row and with four."""
    words = ("--timesteps", "300", *ENV, "--policy", policy, *LOCAL)
    one, four = collect(tmp_path / "1", *words), collect(tmp_path / "4", *words, "--envs-per-worker", "4")
    assert_same_data(one, four)
    assert "any" == source_of(four)["reproducible"]["scope"]


def test_native_rows_give_the_episodes_of_single_environments(tmp_path: Path) -> None:
    """Where the vector environment lets single rows be reset from seeds."""
    words = ("--timesteps", "300", *LOCAL)
    one, four = collect(tmp_path / "1", *words, *ENV), collect(tmp_path / "4", *words, *VECTOR)
    assert steps_of(one).equals(steps_of(four))
    assert episode_facts(one).equals(episode_facts(four))


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_native_rows_that_reset_themselves_say_so(tmp_path: Path, mode: str) -> None:
    """The shortest prefix of episodes all the same; `reproducible` says no, and why."""
    words = (*VECTOR, "--env-kwargs", f"autoreset_mode={mode}", "--timesteps", "300", "--workers", "2")
    output = collect(tmp_path / "out", *words)
    lengths = episodes_of(output)["length"].to_pylist()
    assert sum(lengths) >= 300 > sum(lengths[:-1])
    assert set(lengths) == {4, 5, 6, 7}
    verdict = source_of(output)["reproducible"]
    assert "no" == verdict["status"]
    assert "reset" in verdict["reason"]


def test_exact_gives_each_worker_its_own_numbers(tmp_path: Path) -> None:
    """Three workers with five episodes each make fifteen, in worker order, the first three chunk folders."""
    output = collect(tmp_path / "out", "exact", "--episodes-per-worker", "5", "--workers", "3", *ENV, meet=3)
    table = episodes_of(output)
    assert list(range(15)) == numbers_of(output)
    assert [0] * 5 + [1] * 5 + [2] * 5 == table["worker"].to_pylist() == table["data_chunk_index"].to_pylist()
    local = collect(
        tmp_path / "local",
        "exact",
        "--episodes-per-worker",
        "5",
        "--workers",
        "3",
        *ENV,
        "--sampler",
        "local",
    )
    assert_same_data(local, output)


def test_a_later_range_is_cut_from_the_same_run(tmp_path: Path) -> None:
    """Episodes 30:40 are those of 0:50."""
    whole = collect(tmp_path / "whole", "--episodes", "50", *ENV, *LOCAL)
    part = collect(tmp_path / "part", "--episodes", "30:40", *ENV, *LOCAL)
    assert list(range(30, 40)) == numbers_of(part)
    for name in ("seed", "length", "return"):
        assert episode_facts(whole)[name].to_pylist()[30:40] == episode_facts(part)[name].to_pylist()
    first = sum(episode_facts(whole)["length"].to_pylist()[:30])
    expected = steps_of(whole).slice(first, steps_of(part).num_rows)
    for name in ("observation", "action", "reward"):
        assert expected[name].to_pylist() == steps_of(part)[name].to_pylist()


def test_segments_change_nothing_but_the_files(tmp_path: Path) -> None:
    """`--segment-bytes` begins another file before the episode that would pass it; the steps stay the same."""
    words = ("--timesteps", "3000", *ENV, *LOCAL)
    large = collect(tmp_path / "large", *words)
    small = collect(tmp_path / "small", *words, "--segment-bytes", "20000")
    assert 1 == len(data_hashes(large))
    assert 3 < len(data_hashes(small)) < 30
    assert steps_of(large).equals(steps_of(small))


def test_another_seed_gives_other_data(tmp_path: Path) -> None:
    """Two root seeds share no episode's seed."""
    first = collect(tmp_path / "first", "--episodes", "40", *ENV, *LOCAL)
    other = tmp_path / "other"
    called("collect", "--episodes", "40", *ENV, *LOCAL, "--seed", "8", "--output", other)
    seeds = [set(episodes_of(path)["seed"].to_pylist()) for path in (first, other)]
    assert seeds[0].isdisjoint(seeds[1])


# A set of constants would not do: Python stores it in the bytecode in an order of its own, so that the first import,
# which compiles, may give another order than the next one.
SETS = """
import gymnasium

class Sets(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {"tasks": "/".join(set("kettle microwave burner hinge".split()))}

    def step(self, action):
        return 0, 0.0, True, False, {}
"""


@pytest.mark.thorough
def test_a_set_of_texts_has_one_order_in_each_run(tmp_path: Path) -> None:
    """Python hashes texts by a seed of each process: those of workers have the same one, here and tomorrow."""
    (tmp_path / "sets.py").write_text(SETS)
    words = ("collect", "--env", "sets:Sets", "--episodes", "2", "--seed", "0", "--quiet")
    runs = [tmp_path / str(n) for n in range(3)]
    for run in runs:
        rollout(*words, "--output", run, cwd=tmp_path)
    for run in runs[1:]:
        assert_same_data(runs[0], run)
