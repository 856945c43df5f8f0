"""Two runs of one episode are compared bit by bit, and the earliest difference comes first."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.chunk import Chunk
from rollout_cli.comparing import Difference, differences, shown
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.infos import tabulate
from tests.support.chunks import BOX_SPEC, episode

TREE_SPEC = EnvSpec(
    spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (3, 4), np.uint8),
            "deep": spaces.Tuple((spaces.Discrete(3), spaces.Text(5))),
            "none": spaces.Box(0, 1, (0,), np.float32),
        }
    ),
    spaces.MultiBinary(3),
)


def found(first: Chunk, again: Chunk, spec: EnvSpec = BOX_SPEC) -> list[Difference]:
    return differences(*(EpisodeBatch.from_chunks(spec, [chunk]) for chunk in (first, again)))


def changed(column: Any, place: Any, value: Any) -> Any:
    """Return a copy of a column with one value changed."""
    out = column.copy()
    out[place] = value
    return out


def info(number: int, step: int) -> Mapping[Any, Any]:
    return {"a": {"b": step}, "odd": float(step)} if step % 2 else {"a": {"b": step}, "list": [step, None]}


@pytest.mark.parametrize("spec", [BOX_SPEC, TREE_SPEC])
def test_one_episode_twice_differs_in_nothing(spec: EnvSpec) -> None:
    """Who ran it and how long it took is not compared."""
    first = episode(3, 6, spec=spec, env_info=info, agent_info=info, episode_info=info, worker=0)
    again = episode(3, 6, spec=spec, env_info=info, agent_info=info, episode_info=info, worker=1)
    assert [] == found(first, replace(again, wall_times=np.ones(1)), spec)


CHANGES: dict[str, tuple[Callable[[Chunk], dict[str, Any]], int]] = {
    "seed": (lambda chunk: {"seeds": chunk.seeds + 1}, 0),
    "observation": (lambda chunk: {"observations": (changed(chunk.observations[0], (4, 1), 9.0),)}, 4),
    "action": (lambda chunk: {"actions": (1 - chunk.actions[0],)}, 0),
    "reward": (lambda chunk: {"rewards": changed(chunk.rewards, 2, np.nextafter(chunk.rewards[2], 9.0))}, 2),
    "terminated": (lambda chunk: {"terminated": ~chunk.terminated}, 5),
    "truncated": (lambda chunk: {"truncated": ~chunk.truncated}, 5),
    "last_observation": (lambda chunk: {"last_observations": (chunk.last_observations[0] + 1,)}, 6),
    "env_info.a.b": (lambda chunk: {"env_infos": tabulate([info(0, step + (step > 2)) for step in range(6)])}, 3),
    "agent_info.new": (lambda chunk: {"agent_infos": tabulate([{}] * 3 + [{"new": 1}] + [{}] * 2)}, 3),
    "episode_info.n": (lambda chunk: {"episode_infos": tabulate([{"n": 2}])}, 0),
}


@pytest.mark.parametrize("field", CHANGES)
def test_each_field_is_compared(field: str) -> None:
    """The first row that differs is told, by field and step; a value may also be there only once."""
    first = episode(2, 6, env_info=lambda _, step: info(0, step), episode_info=lambda _, __: {"n": 1})
    first = replace(first, terminated=np.array([True]), truncated=np.array([True]))
    change, step = CHANGES[field]
    told = found(first, replace(first, **change(first)))[0]
    assert (field, step) == (told.field, told.step)
    assert told.values[0] != told.values[1]
    assert list(told.values) == json.loads(json.dumps(told.values))


def test_bits_count_and_not_values() -> None:
    """Zero and minus zero differ; a NaN is the same as itself."""
    first = episode(0, 3)
    zero = replace(first, rewards=np.array([0.0, np.nan, 1.0]))
    assert [] == found(zero, zero)
    (difference,) = found(zero, replace(zero, rewards=np.array([-0.0, np.nan, 1.0])))
    assert (0, "reward at step 0") == (difference.step, difference.place)


def test_what_lies_under_a_mask_is_no_value() -> None:
    """Where a step has no info, the array may hold anything; where only one run has it, that is a difference."""
    batch = EpisodeBatch.from_chunks(BOX_SPEC, [episode(0, 2)])

    def with_info(values: list[int], mask: list[bool]) -> EpisodeBatch:
        return replace(batch, env_infos={"x": np.ma.MaskedArray(values, mask)})

    first = with_info([1, 2], [False, True])
    assert [] == differences(first, with_info([1, 9], [False, True]))
    (difference,) = differences(first, with_info([1, 2], [False, False]))
    assert (1, (None, 2)) == (difference.step, difference.values)


def test_types_of_infos_count() -> None:
    """The integer 1 is not the float 1."""
    first = episode(0, 2, env_info=lambda _, __: {"x": 1})
    again = episode(0, 2, env_info=lambda _, __: {"x": 1.0})
    assert ["env_info.x"] == [difference.field for difference in found(first, again)]


def test_what_comes_first_is_told_first() -> None:
    """By steps; within a step what others follow from: an observation, the action upon it, the reward for that."""
    first = episode(0, 5, agent_info=lambda _, __: {"p": 0.5}, env_info=lambda _, __: {"i": 1})
    again = replace(
        first,
        observations=(changed(first.observations[0], 3, 0.0),),
        actions=(1 - first.actions[0],),
        rewards=first.rewards + 1,
        agent_infos=tabulate([{"p": 0.25}] * 5),
        env_infos=tabulate([{"i": 2}] * 5),
    )
    fields = [difference.field for difference in found(first, again)]
    assert ["action", "agent_info.p", "reward", "env_info.i", "observation"] == fields


@pytest.mark.parametrize("lengths", [(4, 7), (7, 4)])
def test_runs_of_other_lengths(lengths: tuple[int, int]) -> None:
    """The step in which only one of them ended is told; what lies behind it is not compared."""
    whole = episode(0, 7)
    whole = replace(whole, terminated=np.array([True]), truncated=np.array([False]))
    told = found(whole.rows(0, lengths[0]), whole.rows(0, lengths[1]))
    assert [("terminated", 3), ("length", 3)] == [(difference.field, difference.step) for difference in told]
    assert lengths == told[1].values


def test_leaves_have_their_names_and_big_rows_an_index() -> None:
    """Of an image only the first pixel that differs is shown; texts are compared too."""
    first = episode(1, 3, spec=TREE_SPEC)
    camera, mode, text, nothing = first.observations
    again = replace(
        first,
        observations=(changed(camera, (1, 2, 3), camera[1, 2, 3] ^ 1), mode, changed(text, 2, "x"), nothing),
    )
    pixel, word = found(first, again, TREE_SPEC)
    assert ("observation.camera", 1, (2, 3)) == (pixel.field, pixel.step, pixel.index)
    assert (camera[1, 2, 3], camera[1, 2, 3] ^ 1) == pixel.values
    assert "observation.camera[2, 3] at step 1" == pixel.place
    assert ("observation.deep.1", "x") == (word.field, word.values[1])


def test_values_are_shortened() -> None:
    """What is shown is what JSON has, and short."""
    long = "x" * 500
    values = [1, 2.5, None, True, float("nan"), np.float32(0.5), np.arange(3), np.zeros(100), long, {"a": long}]
    for value in values:
        text = json.dumps(shown(value), allow_nan=False)
        assert len(text) < 100
    assert ([0, 1, 2], 0.5, "nan") == (shown(np.arange(3)), shown(np.float32(0.5)), shown(float("nan")))


def test_only_one_episode_each_is_compared() -> None:
    """Anything else is a mistake of the caller."""
    two = EpisodeBatch.from_chunks(BOX_SPEC, [episode(0, 2), episode(1, 2)])
    with pytest.raises(ValueError, match="not 2 and 1"):
        differences(two, two.split()[0])
