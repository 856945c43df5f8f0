"""Mixtures, recorded actions and exploration from outside: same bytes, resume, replay, merge, from any folder."""

from __future__ import annotations

import json
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from rollout_cli import load
from tests.helpers.datasets import assert_same_data, source_of
from tests.helpers.envs import HIDDEN, SIGNS
from tests.helpers.policies import push
from tests.helpers.processes import called

ENV = ("--env", "tests.helpers.envs:FaultyEnv", "--quiet")
LOCAL = ("--sampler", "local")
EXPLORE = ("--epsilon", "0.25", "--action-noise", "0.1")
MIX = ("--policy", "mix:0.5*p.pkl+0.3*constant:[0.5, 0]+0.2*random", *EXPLORE)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """A folder with a policy's file and a dataset `made`, which is not the working folder."""
    made = tmp_path / "folder"
    made.mkdir()
    (made / "p.pkl").write_bytes(cloudpickle.dumps(push))
    return made


def collected(folder: Path, name: str, *words: str) -> Path:
    called("collect", *words, *ENV, "--output", name, cwd=folder)
    return folder / name


def test_the_bytes_are_the_same_for_any_number_of_workers(folder: Path) -> None:
    """Local, and with three worker processes that all run episodes."""
    words = ("--episodes", "60", "--seed", "3", *MIX)
    local = collected(folder, "local", *words, *LOCAL)
    env = {SIGNS: str(folder), HIDDEN: json.dumps({"meet": 3})}
    called("collect", *words, *ENV, "--workers", "3", "--output", "three", cwd=folder, env=env)
    assert_same_data(local, folder / "three")
    dataset = load(local)
    explored = np.concatenate([episode.agent_infos["explored"] for episode in dataset])
    assert 0.15 < explored.mean() < 0.35
    chosen = [set(episode.agent_infos["component"].tolist()) for episode in dataset]
    assert {1} == set(map(len, chosen))
    assert {0, 1, 2} == set().union(*chosen)


def test_the_width_of_a_batch_changes_nothing(folder: Path) -> None:
    """Where the policy acts in each row as alone, it explores so; a mixture needs rows that take turns."""
    words = ("--episodes", "60", "--seed", "3", *EXPLORE, *LOCAL)
    one = collected(folder, "one", *words)
    assert_same_data(one, collected(folder, "four", *words, "--envs-per-worker", "4"))
    vector = ("--env", "tests.helpers.envs:vector", "--vectorization", "native", "--envs-per-worker", "4")
    called("collect", *words, *vector, "--quiet", "--output", folder / "native")
    pairs = zip(load(one), load(folder / "native"), strict=True)
    assert all(first.actions.tobytes() == second.actions.tobytes() for first, second in pairs)
    mixed = ("collect", "--episodes", "3", "--policy", "mix:0.5*random+0.5*random", *vector, *LOCAL)
    ran = called(*mixed, "--quiet", "--output", folder / "mixed", code=3)
    assert all(part in ran.stderr for part in ("MixPolicy", "[policy-not-batched]"))


@pytest.mark.thorough
def test_a_mixture_is_resumed_and_replayed_from_another_folder(folder: Path, tmp_path: Path) -> None:
    """With its exploration; a file of a component that has changed is refused."""
    whole = collected(folder, "whole", "--episodes", "200", "--seed", "3", *MIX, *LOCAL)
    out = collected(folder, "out", "--episodes", "150", "--seed", "3", *MIX, *LOCAL)
    resume = ("collect", "--resume", "--quiet", "--episodes")
    called(*resume, "200", "--output", out, cwd=tmp_path)
    assert_same_data(whole, out)
    ran = called("replay", "--trust", out, "--episodes", "0:9", "--json", cwd=tmp_path)
    assert (9, []) == tuple(json.loads(ran.stdout)[key] for key in ("identical", "notices"))
    ran = called(*resume, "210", "--epsilon", "0.5", "--output", out, code=2)
    assert all(part in ran.stderr for part in ("epsilon", "0.25", "[resume-refused]"))
    (folder / "p.pkl").write_bytes(cloudpickle.dumps(lambda observation: push(observation, 0.1)))
    assert "[resume-differs]" in called(*resume, "210", "--output", out, code=2).stderr
    assert "[policy-hash]" in called("replay", "--trust", out, "--episode", "0", code=3).stderr


@pytest.mark.thorough
def test_shards_of_a_mixture_are_merged(folder: Path, tmp_path: Path) -> None:
    """The component's file lies in another folder on each machine."""
    (tmp_path / "p.pkl").write_bytes((folder / "p.pkl").read_bytes())
    words = ("--episodes", "150", "--seed", "3", *MIX, *LOCAL)
    parts = [
        collected(cwd, f"part{number}", *words, "--shard", f"{number}/2")
        for number, cwd in ((1, folder), (2, tmp_path))
    ]
    called("merge", *parts, "--output", tmp_path / "all", "--quiet")
    assert_same_data(collected(folder, "whole", *words), tmp_path / "all")


# -- recorded actions ------------------------------------------------------------------------------------------------


@pytest.fixture
def made(folder: Path) -> Path:
    """A dataset of 220 episodes: the first 1,000 steps, which decide the columns, are fewer."""
    return collected(folder, "made", "--episodes", "220", "--seed", "3", *LOCAL)


def test_recorded_actions_give_the_same_episodes(folder: Path, made: Path) -> None:
    """With any workers, the same bytes; with another wrapper, the same actions, rewards and ends."""
    words = ("--episodes", "220", "--policy", "replay:made")
    again = collected(folder, "again", *words, *LOCAL)
    assert_same_data(made, again)
    assert 3 == source_of(again)["root_seed"]
    assert_same_data(made, collected(folder, "three", *words, "--workers", "3", "--seed", "3"))
    stacked = ("--wrapper", "FrameStackObservation?stack_size=2")
    other = load(collected(folder, "other", "--episodes", "20:40", *words[2:], *stacked, *LOCAL))
    for episode, first in zip(other, load(made)[20:40], strict=True):
        assert (first.number, first.seed, first.terminated) == (
            episode.number,
            episode.seed,
            episode.terminated,
        )
        assert first.actions.tobytes() == episode.actions.tobytes()
        assert first.rewards.tobytes() == episode.rewards.tobytes()
        assert first.observations.tobytes() == episode.observations[:, -1].tobytes()


@pytest.mark.thorough
def test_recorded_actions_are_resumed_and_replayed_from_another_folder(
    folder: Path, tmp_path: Path, made: Path
) -> None:
    """As any file is; other actions are refused."""
    out = collected(folder, "out", "--episodes", "100", "--policy", "replay:made", *LOCAL)
    called("collect", "--resume", "--quiet", "--episodes", "220", "--output", out, cwd=tmp_path)
    assert_same_data(made, out)
    assert (
        '"identical": 9'
        in called("replay", "--trust", out, "--episodes", "0:9", "--json", cwd=tmp_path).stdout
    )
    collected(folder, "made", "--overwrite", "--episodes", "220", "--seed", "3", *LOCAL, "--epsilon", "0.9")
    assert "[policy-hash]" in called("replay", "--trust", out, "--episode", "0", code=3).stderr


def test_a_selection_of_episodes_is_played_by_their_numbers(folder: Path, made: Path) -> None:
    """An episode that it has not is a fault of the run, which may skip it."""
    called("filter", made, "--keep", "length >= 6", "--output", folder / "long", "--quiet")
    words = ("--episodes", "40", "--policy", "replay:long")
    ran = called("collect", *words, *ENV, *LOCAL, "--output", "out", cwd=folder, code=3)
    assert "[recording-missing]" in ran.stderr
    out = load(collected(folder, "skipped", *words, *LOCAL, "--on-env-error", "skip"))
    kept = [episode for episode in load(made)[:40] if len(episode) >= 6]
    assert [episode.number for episode in kept] == [episode.number for episode in out]
    assert all((one.actions == two.actions).all() for one, two in zip(kept, out, strict=True))


def test_what_cannot_be_replayed_is_refused(folder: Path, made: Path) -> None:
    """Another root seed, another space, an episode that goes on, rows that began by themselves, no dataset."""
    words = ("collect", "--episodes", "3", "--policy", "replay:made", "--quiet", *LOCAL, "--output", "out")
    ran = called(*words, *ENV, "--seed", "4", cwd=folder, code=2)
    assert "[recording-seed]" in ran.stderr
    assert "--seed 3" in ran.stderr
    ran = called(*words, "--env", "CartPole-v1", cwd=folder, code=3)
    assert all(part in ran.stderr for part in ("Box(-1.0, 1.0", "Discrete(2)", "[policy-space]"))
    ran = called(*words, *ENV, "--env-kwargs", "endless=true", cwd=folder, code=3)
    assert "[recording-ended]" in ran.stderr
    vector = ("--env", "tests.helpers.envs:vector", "--env-kwargs", "autoreset_mode=NextStep")
    native = ("--vectorization", "native", "--envs-per-worker", "2", "--episodes", "5", "--quiet", *LOCAL)
    called("collect", *vector, *native, "--output", "native", cwd=folder)
    ran = called(*words, *ENV, "--policy", "replay:native", cwd=folder, code=3)
    assert "[recording-numbers]" in ran.stderr
    for spec, parts in (("replay:", ("[policy-spec]",)), ("replay:nothing", ("nothing", "[not-a-dataset]"))):
        ran = called(*words, *ENV, "--policy", spec, cwd=folder, code=None)
        assert all(part in ran.stderr for part in parts), ran.stderr


def test_recorded_actions_of_a_mixture(folder: Path, made: Path) -> None:
    """A component may be a dataset."""
    words = ("--episodes", "30", "--seed", "3", "--policy", "mix:0.5*replay:made+0.5*constant:[0, 0]")
    for episode, first in zip(load(collected(folder, "out", *words, *LOCAL)), load(made)[:30], strict=True):
        expected = first.actions if not episode.agent_infos["component"].any() else 0 * first.actions
        assert expected.tolist() == episode.actions.tolist()
