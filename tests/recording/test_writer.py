"""Writer: what is read is what was written; bad arrays are refused; a killed program continues."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rollout_cli
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.errors import (
    ArgumentError,
    DatasetExistsError,
    DatasetLockedError,
    RolloutError,
    UsageError,
)
from rollout_cli.recording.writer import Writer
from tests.dataset.test_round_trip import SPACES
from tests.helpers.batches import assert_same_batches
from tests.helpers.chunks import episode
from tests.helpers.damage import set_json
from tests.helpers.datasets import assert_same_data, has_commit, info_of, numbers_of, source_of
from tests.helpers.errors import raises
from tests.helpers.processes import called, variables
from tests.helpers.thorough import usually

BOX: Any = spaces.Box(-np.inf, np.inf, (3,), np.float32)
TWO = spaces.Discrete(2)


def arrays(number: int, length: int = 20) -> dict[str, Any]:
    """Return episode `number`: the arguments of `Writer.write`."""
    rng = np.random.default_rng(number)
    return {
        "observations": rng.standard_normal((length + 1, 3), dtype=np.float32),
        "actions": rng.integers(0, 2, length),
        "rewards": rng.standard_normal(length),
        "terminated": number % 3 != 0,
        "truncated": number % 3 == 0,
        "env_infos": {"x": np.arange(length), "name": [f"step {step}" for step in range(length)]},
        "episode_info": {"task": f"task {number}"},
        "seed": number,
    }


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_space_comes_back(data: st.DataObject) -> None:
    """The same batch as that of the episodes' chunks."""
    spec = EnvSpec(data.draw(SPACES), data.draw(SPACES), data.draw(st.none() | st.integers(1, 99)))
    chunks = [episode(number, data.draw(st.integers(1, 4)), spec=spec) for number in range(3)]
    expected = EpisodeBatch.from_chunks(spec, chunks)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out"
        with Writer(
            path,
            observation_space=spec.observation_space,
            action_space=spec.action_space,
            max_episode_length=spec.max_episode_length,
        ) as writer:
            for one in expected.split():
                writer.write(
                    joined(one.observations, one.last_observations),
                    one.actions,
                    one.rewards,
                    terminated=bool(one.terminated[0]),
                    truncated=bool(one.truncated[0]),
                    seed=int(one.seeds[0]),
                )
        assert_same_batches(expected, rollout_cli.load(path).to_episode_batch())
        assert [] == rollout_cli.verify(path).faults


def joined(tree: Any, last: Any) -> Any:
    if isinstance(tree, dict):
        return {key: joined(tree[key], last[key]) for key in tree}
    if isinstance(tree, tuple):
        return tuple(map(joined, tree, last))
    return np.concatenate([tree, last])


def test_the_record_says_what_is_known(tmp_path: Path) -> None:
    """No root seed, how the spaces were found, and infos in both forms."""
    with Writer(tmp_path / "d", action_space=TWO, env="Mine-v0", policy="a script") as writer:
        writer.write(**arrays(0))
        writer.write(**arrays(1) | {"env_infos": [{"x": step} for step in range(20)]})
    source = source_of(tmp_path / "d")
    assert ("written", None, "inferred") == (source["kind"], source["root_seed"], source["spaces"])
    assert ("Mine-v0", "a script") == (source["env_source"]["spec"], source["policy"]["spec"])
    assert {"status": "unknown", "reason": "written"} == source["reproducible"]
    dataset = rollout_cli.load(tmp_path / "d")
    assert [0, 1] == [one.seed for one in dataset]
    np.testing.assert_array_equal(np.arange(20), dataset[0].env_infos["x"])
    np.testing.assert_array_equal(np.arange(20), dataset[1].env_infos["x"])
    called("verify", tmp_path / "d")
    shown = called("info", tmp_path / "d").stdout
    assert re.search(r"^origin +written; another program ran the episodes$", shown, re.MULTILINE)
    assert re.search(r"^root seed +not recorded$", shown, re.MULTILINE)
    for words in (("replay", "--all"), ("render", "-o", tmp_path / "x.gif")):
        assert "[run-unknown]" in called(words[0], tmp_path / "d", *words[1:], code=2).stderr
    resumed = called("collect", "--resume", "--episodes", "9", "-o", tmp_path / "d", code=2)
    assert "[run-unknown]" in resumed.stderr


def test_spaces_are_inferred(tmp_path: Path) -> None:
    """Trees of arrays; images have the bounds of their dtype."""
    observations = {"camera": np.zeros((3, 4, 4, 3), np.uint8), "at": (np.zeros((3, 2)), np.zeros(3))}
    with Writer(tmp_path / "d") as writer:
        writer.write(observations, np.zeros((2, 1), np.float32), [0, 1], terminated=True, truncated=False)
    spec = rollout_cli.load(tmp_path / "d").env_spec
    at = spaces.Tuple(
        [spaces.Box(-np.inf, np.inf, (2,), np.float64), spaces.Box(-np.inf, np.inf, (), np.float64)]
    )
    assert (
        spaces.Dict({"camera": spaces.Box(0, 255, (4, 4, 3), np.uint8), "at": at}) == spec.observation_space
    )
    assert spaces.Box(-np.inf, np.inf, (1,), np.float32) == spec.action_space


WRONG: dict[str, dict[str, Any]] = {
    "actions of episode 1": {"actions": np.zeros(19, np.int64)},
    "observations of episode 1": {"observations": np.zeros((21, 4), np.float32)},
    "rewards of episode 1": {"rewards": np.full(20, np.nan)},
    "observations of episode 1 is a list": {"observations": [[1.0, 2.0, 3.0], [1.0]]},
    "terminated of episode 1": {"terminated": False, "truncated": False},
    "truncated of episode 1": {"truncated": 1},
    "env_infos['x'] of episode 1": {"env_infos": {"x": np.arange(3)}},
    "agent_infos of episode 1": {"agent_infos": [{}]},
    "seed of episode 1": {"seed": -3},
}


@pytest.mark.parametrize("place", WRONG)
def test_wrong_arrays_are_refused(tmp_path: Path, place: str) -> None:
    """By name; nothing of the episode is written, and the writer goes on."""
    with Writer(tmp_path / "d", observation_space=BOX, action_space=TWO) as writer:
        writer.write(**arrays(0))
        with raises(ArgumentError, "episode-array", place):
            writer.write(**arrays(1) | WRONG[place])
        assert 1 == writer.write(**arrays(1))
    assert [0, 1] == numbers_of(tmp_path / "d")
    assert [] == rollout_cli.verify(tmp_path / "d").faults


@pytest.mark.parametrize(
    ("given_space", "actions"),
    [
        (TWO, np.array([0.0, 1.0])),
        (spaces.Box(-1, 1, (1,), np.float32), np.array([["a"], ["b"]])),
        (spaces.Dict({"a": TWO}), np.zeros(2)),
        (spaces.MultiBinary(2), np.full((2, 2), 300)),
    ],
    ids=str,
)
def test_actions_that_would_change_are_refused(
    tmp_path: Path, given_space: gymnasium.Space[Any], actions: Any
) -> None:
    with (
        Writer(tmp_path / "d", observation_space=BOX, action_space=given_space) as writer,
        raises(ArgumentError, "episode-array", "actions"),
    ):
        writer.write(np.zeros((3, 3)), actions, [0.0, 0.0], terminated=True, truncated=False)
    assert not (tmp_path / "d").exists()


def test_a_space_that_the_arrays_do_not_tell(tmp_path: Path) -> None:
    with Writer(tmp_path / "d") as writer, raises(ArgumentError, "space-unknown", "actions"):
        writer.write(**arrays(0))
    assert not (tmp_path / "d").exists()


def test_folders(tmp_path: Path) -> None:
    """Others' data stay, one writer at a time, and only such a dataset is continued."""
    with Writer(tmp_path / "d", observation_space=BOX, action_space=TWO) as writer:
        writer.write(**arrays(0))
        with pytest.raises(DatasetLockedError):
            Writer(tmp_path / "d", observation_space=BOX, action_space=TWO, resume=True)
    with pytest.raises(DatasetExistsError):
        Writer(tmp_path / "d")
    with raises(UsageError, "resume-spaces"):
        Writer(tmp_path / "d", action_space=spaces.Discrete(3), resume=True)
    called("collect", "--episodes", "1", "--sampler", "local", "-q", "-o", tmp_path / "c")
    with raises(UsageError, "resume-kind", "collected"):
        Writer(tmp_path / "c", resume=True)
    with raises(UsageError, "writer-closed"):
        writer.write(**arrays(1))


def test_a_dataset_is_read_only_when_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a writer that ends meanwhile would commit what the next one does not know, and overwrites."""
    with Writer(tmp_path / "d", observation_space=BOX, action_space=TWO) as writer:
        writer.write(**arrays(0))
        monkeypatch.setattr("rollout_cli.recording.writer.read_info", lambda _: pytest.fail("it was read"))
        with pytest.raises(DatasetLockedError):
            Writer(tmp_path / "d", resume=True)
    monkeypatch.undo()
    with Writer(tmp_path / "d", resume=True) as writer:
        assert 1 == writer.write(**arrays(1))


def test_resume_where_nothing_is(tmp_path: Path) -> None:
    """In an empty folder it starts; a folder with other files stays; nothing stays locked."""
    (tmp_path / "d").mkdir()
    for _ in range(2):
        assert Writer(tmp_path / "d", resume=True).close() is None
    with Writer(tmp_path / "d", action_space=TWO, resume=True) as writer:
        writer.write(**arrays(0))
    assert [0] == numbers_of(tmp_path / "d")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "mine.txt").write_text("mine")
    for _ in range(2):
        with pytest.raises(RolloutError):
            Writer(tmp_path / "e", resume=True)
    assert "mine" == (tmp_path / "e" / "mine.txt").read_text()


@pytest.mark.parametrize("first", [5, 60])
def test_a_resumed_dataset_keeps_its_limits(tmp_path: Path, first: int) -> None:
    """Before and after the columns are decided: the files are those of an uninterrupted run."""
    parts: list[tuple[str, int, dict[str, Any]]] = [
        ("whole", 160, {"segment_bytes": 20_000}),
        ("d", first, {"segment_bytes": 20_000}),
        ("d", 160, {}),
    ]
    for name, stop, options in parts:
        with Writer(
            tmp_path / name, observation_space=BOX, action_space=TWO, resume=True, **options
        ) as writer:
            for number in range(writer.next_number, stop):
                writer.write(**arrays(number))
    assert_same_data(tmp_path / "whole", tmp_path / "d")
    assert info_of(tmp_path / "whole")["segments"] > 10
    before = info_of(tmp_path / "d")["limits"]
    with raises(UsageError, "resume-limits", "20,000", "20,001"):
        Writer(tmp_path / "d", resume=True, segment_bytes=20_001)
    set_json(tmp_path / "d" / "meta" / "info.json", limits={**before, "group_rows": 50})
    Writer(tmp_path / "d", resume=True, segment_bytes=20_000).close()
    assert {**before, "group_rows": 50} == info_of(tmp_path / "d")["limits"]


def test_sequences_of_one_length(tmp_path: Path) -> None:
    """Arrays that numpy would join to one."""
    space = spaces.Sequence(spaces.Box(0, 9, (2,), np.float32), stack=True)
    seen = [np.full((3, 2), step, np.float32) for step in range(4)]
    with Writer(tmp_path / "d", observation_space=space, action_space=TWO) as writer:
        writer.write(seen, [0, 1, 0], [0, 0, 0], terminated=True, truncated=False)
    (one,) = rollout_cli.load(tmp_path / "d")
    for mine, theirs in zip(seen, one.observations, strict=False):
        np.testing.assert_array_equal(mine, theirs)


def test_an_exception_ends_the_dataset_as_interrupted(tmp_path: Path) -> None:
    def write_and_fail() -> None:
        with Writer(tmp_path / "d", action_space=TWO) as writer:
            writer.write(**arrays(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert ("interrupted", 1) == (info_of(tmp_path / "d")["status"], info_of(tmp_path / "d")["episodes"])


PROGRAM = """
import sys
from tests.recording.test_writer import BOX, TWO, Writer, arrays

path, count = sys.argv[1], int(sys.argv[2])
with Writer(path, observation_space=BOX, action_space=TWO, resume=True, flush_every=1e6,
            segment_bytes=20_000) as writer:
    for number in range(writer.next_number, count):
        assert number == writer.write(**arrays(number))
        if number % 7 == 0:
            writer.flush()
            print(number, flush=True)
"""
COUNT = 160
"""Episodes of 20 steps: the first 50 decide the columns, so a kill before them is continued in another way."""


@pytest.mark.parametrize(
    ("seed", "most"), usually([(3, 12), *((seed, 4) for seed in range(6))], {(3, 12)}.__contains__)
)
def test_a_killed_program_continues(tmp_path: Path, seed: int, most: int) -> None:
    """Killed after at most so many commits: none is lost, and in the end the bytes are those of a whole run."""
    rng = random.Random(seed)
    written(tmp_path / "whole", kill_after=None)
    kills = 0
    while (last := written(tmp_path / "d", kill_after=rng.randint(1, most))) is not None:
        kills += 1
        assert set(range(last + 1)) <= set(numbers_of(tmp_path / "d"))
    assert kills > 1
    assert_same_data(tmp_path / "whole", tmp_path / "d")
    assert [] == rollout_cli.verify(tmp_path / "d").faults


def written(path: Path, *, kill_after: int | None) -> int | None:
    """Run the program; kill it after so many commits, and return the last number it had committed by then."""
    words = [sys.executable, "-c", PROGRAM, str(path), str(COUNT)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=variables()) as program:
        assert program.stdout is not None
        committed = []
        for line in program.stdout:
            committed.append(int(line))
            if len(committed) == kill_after:
                program.send_signal(signal.SIGKILL)
                break
    if program.returncode == 0:
        return None
    assert -signal.SIGKILL == program.returncode
    assert has_commit(path)
    return committed[-1]
