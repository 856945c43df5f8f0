"""EXPRESSION: what it is true of, which columns it reads, and what is said of one that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_cli.dataset.parquet import RowReader
from rollout_cli.dataset.reader import Dataset, load
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.errors import UsageError
from rollout_cli.samplers.keep import Judge
from rollout_cli.seeding.seeds import env_seed
from tests.helpers.chunks import episode
from tests.helpers.contents import chunk_contents
from tests.helpers.errors import raises
from tests.helpers.writing import SMALL, write_dataset


def env_info(number: int, step: int) -> dict[str, Any]:
    """Return infos of all kinds; `late` and `score` come when the columns are decided, and so have none."""
    infos = {"is_success": np.float32(number % 2), "mode": "ab"[number % 2], "a-b": step, "v": np.zeros(2)}
    infos |= {"rare": number} if number % 4 == 0 else {}
    infos |= (
        {"late": number, "score": [float("nan"), number, -float("inf")][number % 3]} if number > 50 else {}
    )
    return infos | ({"deep": [number]} if number > 55 else {})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """60 episodes of 20 to 29 steps in several files."""
    path = tmp_path_factory.mktemp("expression") / "d"
    write_dataset(path, chunks(), limits=SMALL, header={"env": {"id": "A"}})
    return load(path)


def chunks() -> list[Chunk]:
    return [
        episode(n, 20 + n % 10, env_info=env_info, episode_info=lambda n, _: {"task": n % 3})
        for n in range(60)
    ]


def even(n: int) -> bool:
    return n % 2 == 0


TRUE_OF: dict[str, Callable[[int], bool]] = {
    "length < 22": lambda n: n % 10 < 2,
    "20<length<=22 or `length`==29": lambda n: n % 10 in (1, 2, 9),
    "episode_number in [3, 5.0, 70] and not truncated": lambda n: n == 3,
    "episode_number not in (0, 1)": lambda n: n > 1,
    "length - 20 == episode_number / 2": lambda n: n % 10 == n / 2,
    "-length * 2 <= -58 and true": lambda n: n % 10 == 9,
    "length < 0022 and 00.5 < length": lambda n: n % 10 < 2,
    "seed + 1e0 > 1_000_000 ": lambda n: env_seed(0, n) > 999_999,
    "terminated and truncated": lambda n: n % 3 == 2,
    "terminated != truncated": lambda n: n % 3 != 2,
    "env_info.is_success": lambda n: not even(n),
    "not env_info.is_success": even,
    "env_info.mode == 'a'": even,
    'env_info.mode in ["b", "c"]': lambda n: not even(n),
    "`env_info.a-b` == length - 1": lambda n: True,
    "env_info.rare >= 0": lambda n: n % 4 == 0,
    "env_info.rare != 4": lambda n: n % 4 == 0 and n != 4,
    "env_info.rare not in [4]": lambda n: n % 4 == 0 and n != 4,
    "not env_info.rare >= 0": lambda n: n % 4 != 0,
    "env_info.rare / 0 > 0 or length / 0 > 0": lambda n: False,
    "env_info.late > 57": lambda n: n > 57,
    "env_info.score < 58": lambda n: n > 50 and (n % 3 == 2 or (n % 3 == 1 and n < 58)),
    "env_info.score / 2 < 29": lambda n: n > 50 and (n % 3 == 2 or (n % 3 == 1 and n < 58)),
    "env_info.score / 1 != 0": lambda n: n > 50,
    "1 / 0 > 0": lambda n: False,
    "env_info.score != env_info.score": lambda n: n > 50 and n % 3 == 0,
    "episode_info.task == 2": lambda n: n % 3 == 2,
    "episode_number < 99999999999999999999999": lambda n: True,
    "false": lambda n: False,
}


@pytest.mark.parametrize("expression", TRUE_OF)
def test_what_it_is_true_of(dataset: Dataset, expression: str) -> None:
    """Comparisons with a value that is missing are false; infos are those of the last step."""
    expected = [n for n in range(60) if TRUE_OF[expression](n)]
    assert expected == dataset.filter(expression).episodes["episode_number"].to_pylist()


@pytest.mark.parametrize("expression", TRUE_OF)
def test_a_worker_judges_as_the_dataset_does(expression: str) -> None:
    """However its episodes are cut into chunks; it keeps them whole."""
    judge, single, kept = Judge(expression), chunks(), list[Chunk]()
    for start, stop in ((0, 1), (1, 7), (7, 8), (8, 60)):
        chunk, rejected, unmet = judge.judge(concatenate(single[start:stop]))
        numbers = [] if chunk is None else chunk.numbers.tolist()
        assert sorted([*numbers, *rejected.tolist()]) == list(range(start, stop))
        kept += [] if chunk is None else [chunk]
    expected = [n for n in range(60) if TRUE_OF[expression](n)]
    assert expected == [n for chunk in kept for n in chunk.numbers.tolist()]
    for chunk in kept:
        only = concatenate([single[number] for number in chunk.numbers])
        assert chunk_contents(only)["rewards"] == chunk_contents(chunk)["rewards"]
    assert not unmet


@pytest.mark.parametrize("other", [None, 0.5])
def test_a_worker_judges_an_episode_alone_as_beside_others(other: Any) -> None:
    """An info is a float64, which does not tell these from one another, whatever else is in the chunk."""
    infos = [{"x": 2**53}, {"x": other}]
    both = [episode(n, 3, env_info=lambda n, _: infos[n]) for n in range(2)]
    for count in (1, 2):
        kept, _, _ = Judge(f"env_info.x == {2**53 + 1}").judge(concatenate(both[:count]))
        assert kept is not None
        assert [0] == kept.numbers.tolist()


def test_two_keys_of_one_dotted_name(tmp_path: Path) -> None:
    """A worker takes the one that has the name in a dataset, whichever it met first."""
    infos: list[dict[str, Any]] = [{"a.b": 1}, {"a": {"b": 2.5}}, {"a.b": 1, "a": {"b": 2.5}}]
    single = [episode(n, 1, env_info=lambda n, _: infos[n]) for n in range(3)]
    write_dataset(tmp_path, single)
    for order in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        kept, _, _ = Judge("env_info.a.b > 2").judge(concatenate([single[at] for at in order]))
        assert kept is not None
        assert [1, 2] == sorted(kept.numbers.tolist())
    assert [1, 2] == [each.number for each in load(tmp_path).filter("env_info.a.b > 2")]


@pytest.mark.parametrize("expression", ["length > 'a'", "length(3)", "env_info > 1", "worker == 0", "source"])
def test_what_a_worker_cannot_judge_by(expression: str) -> None:
    """It is said before there are episodes."""
    with raises(UsageError, "expression-syntax"):
        Judge(expression)


def test_what_is_missing_is_known_by_name() -> None:
    """Until an episode has it; a text that is missing everywhere compares as a missing number does."""
    judge = Judge("env_info.late == 51 or env_info.mood == 'a' or episode_info.tsk == 1")
    kept, _, unmet = judge.judge(concatenate(chunks()[:50]))
    assert {"env_info.late", "env_info.mood", "episode_info.tsk"} == unmet.keys()
    assert kept is None
    assert "env_info.mode" in unmet["env_info.mood"].hint
    kept, _, unmet = judge.judge(concatenate(chunks()[50:]))
    assert {"env_info.mood", "episode_info.tsk"} == unmet.keys()
    assert kept is not None
    assert [51] == kept.numbers.tolist()


def test_a_selection_is_filtered(dataset: Dataset) -> None:
    """In its own order; an empty one stays empty."""
    part = dataset[[9, 3, 4, 3]].filter("episode_number < 9 and env_info.mode == 'b'")
    assert [3, 3] == part.episodes["episode_number"].to_pylist()
    assert 0 == len(dataset[:0].filter("env_info.late > 1"))


def test_numbers_are_exact(tmp_path: Path) -> None:
    """Integers are compared as integers: floats do not tell these from one another."""
    write_dataset(tmp_path, [episode(n, 3) for n in (2**53, 2**53 + 1)])
    found = load(tmp_path).filter(f"episode_number == {2**53 + 1}")
    assert [2**53 + 1] == found.episodes["episode_number"].to_pylist()


def test_only_the_columns_that_are_named_are_read(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the table of episodes, nothing is read again."""
    read: list[Any] = []
    original = RowReader.read

    def reading(reader: RowReader, path: Path, start: int, stop: int, columns: Any = None) -> Any:
        read.append(columns)
        return original(reader, path, start, stop, columns)

    monkeypatch.setattr(RowReader, "read", reading)
    assert len(dataset.filter("length > 25 and seed > 3"))
    assert not read
    assert len(dataset.filter("env_info.is_success"))
    assert {("env_info.is_success", "env_info_extra")} == set(read)


SYNTAX, COLUMN = "expression-syntax", "expression-column"
REFUSED: dict[str, tuple[str, list[str], str]] = {
    "": (SYNTAX, [], ""),
    "retrun > 1": (SYNTAX, ["'retrun'", "1"], "return"),
    "length > 1 and is_success": (SYNTAX, ["'is_success'", "16"], "env_info.is_success"),
    "env_info.a-b > 1": (SYNTAX, ["'env_info.a'"], "`env_info.a-b`"),
    "zzz": (SYNTAX, ["'zzz'"], "episode_id, source,"),
    "length = 20": (SYNTAX, ["'='", "8"], "=="),
    "length > 1 && true": (SYNTAX, ["'&'", "12"], "and"),
    "length % 2": (SYNTAX, ["'%'"], ""),
    "length > ": (SYNTAX, ["9"], ""),
    "(length": (SYNTAX, [], ""),
    "length 20": (SYNTAX, ["8"], ""),
    "length in 20": (SYNTAX, ["'in'", "11"], "length in [200, 500]"),
    "length > 'a'": (SYNTAX, ["1"], ""),
    "length > 1 and 'a'": (SYNTAX, ["16"], ""),
    "env_info.mode + 1 > 2": (SYNTAX, ["1"], ""),
    "length(3)": (SYNTAX, [], ""),
    "env_info.v > 1": (COLUMN, ["env_info.v"], "dataset[mask]"),
    "env_info.deep == 1": (COLUMN, ["env_info.deep"], "dataset[mask]"),
}


@pytest.mark.parametrize("expression", REFUSED)
def test_what_cannot_be_used(dataset: Dataset, expression: str) -> None:
    """One line, with the place, and a hint."""
    code, values, hint = REFUSED[expression]
    with raises(UsageError, code, *values) as caught:
        dataset.filter(expression)
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message
