"""EpisodeRecorder: finished episodes as one chunk, whatever runs meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.workers.recorder import EpisodeRecorder, EpisodeStore, frozen_copy

SPEC = EnvSpec(spaces.Discrete(1000), spaces.Discrete(10))


def store() -> EpisodeStore:
    return EpisodeStore(SPEC, worker_number=3)


def record_steps(into: EpisodeRecorder, number: int, steps: int) -> None:
    """Begin episode `number` and take steps whose observations are 100 * number + step."""
    into.begin({"begun": number})
    for step in range(steps):
        into.record_observation(100 * number + step)
        into.record_action(step)
        into.env_infos[step] = {"env": step}
        into.agent_infos[step] = {"agent": -step}
        into.rewards.append(float(step))


def finish(into: EpisodeRecorder, number: int, steps: int, **flags: bool) -> None:
    into.finish(
        number=number,
        seed=number + 50,
        last_observation=100 * number + steps,
        terminated=flags.get("terminated", True),
        truncated=flags.get("truncated", False),
        wall_time=1.5,
    )


def record_episode(into: EpisodeRecorder, number: int, steps: int, **flags: bool) -> None:
    record_steps(into, number, steps)
    finish(into, number, steps, **flags)


def test_a_chunk_holds_all_finished_episodes() -> None:
    """Every field of two finished episodes is in its row."""
    episodes = store()
    recorder = EpisodeRecorder(episodes)
    record_episode(recorder, 4, 2)
    record_episode(recorder, 7, 1, terminated=False, truncated=True)
    assert ([4, 7], 3) == (episodes.numbers, episodes.n_rows)
    chunk = episodes.take()
    assert chunk is not None
    assert ([4, 7], [54, 57], [2, 1]) == (chunk.numbers.tolist(), chunk.seeds.tolist(), chunk.lengths.tolist())
    assert ([True, False], [False, True]) == (chunk.terminated.tolist(), chunk.truncated.tolist())
    assert ([3, 3], [1.5, 1.5]) == (chunk.workers.tolist(), chunk.wall_times.tolist())
    assert ([400, 401, 700], [402, 701]) == (chunk.observations[0].tolist(), chunk.last_observations[0].tolist())
    assert ([0, 1, 0], [0.0, 1.0, 0.0]) == (chunk.actions[0].tolist(), chunk.rewards.tolist())
    assert [{"env": 0}, {"env": 1}, {"env": 0}] == chunk.env_infos.to_dicts()
    assert [{"agent": 0}, {"agent": -1}, {"agent": 0}] == chunk.agent_infos.to_dicts()
    assert [{"begun": 4}, {"begun": 7}] == chunk.episode_infos.to_dicts()


def test_several_recorders_fill_one_store_in_the_order_of_numbers() -> None:
    """Episodes that end in several environments at once are handed on by number, each with its own rows."""
    episodes = store()
    recorders = [EpisodeRecorder(episodes), EpisodeRecorder(episodes)]
    record_steps(recorders[0], 1, 1)
    record_steps(recorders[1], 2, 2)
    finish(recorders[1], 2, 2)
    finish(recorders[0], 1, 1)
    chunk = episodes.take()
    assert chunk is not None
    assert ([1, 2], [100, 200, 201]) == (chunk.numbers.tolist(), chunk.observations[0].tolist())


def test_nothing_finished_is_nothing_taken() -> None:
    """A running episode alone gives no chunk; what was taken is gone."""
    episodes = store()
    recorder = EpisodeRecorder(episodes)
    record_steps(recorder, 1, 3)
    assert (None, [], 0) == (episodes.take(), episodes.numbers, episodes.n_rows)
    finish(recorder, 1, 3)
    assert episodes.take() is not None
    assert (None, [], 0) == (episodes.take(), episodes.numbers, episodes.n_rows)


def test_taking_leaves_the_running_episode_whole() -> None:
    """Episodes are taken while the next one runs; it ends as if nothing had happened."""
    episodes = store()
    recorder = EpisodeRecorder(episodes)
    record_episode(recorder, 1, 2)
    record_steps(recorder, 2, 3)
    first = episodes.take()
    assert first is not None
    assert [1] == first.numbers.tolist()
    finish(recorder, 2, 3)
    second = episodes.take()
    assert second is not None
    assert ([200, 201, 202], [203]) == (second.observations[0].tolist(), second.last_observations[0].tolist())
    assert [{"env": 0}, {"env": 1}, {"env": 2}] == second.env_infos.to_dicts()
    assert [{"begun": 2}] == second.episode_infos.to_dicts()
    assert [0.0, 1.0, 2.0] == second.rewards.tolist()


def test_a_discarded_episode_leaves_no_trace() -> None:
    """Rows, infos and episode info of a dropped episode are gone; those before and after stay."""
    episodes = store()
    recorder = EpisodeRecorder(episodes)
    record_episode(recorder, 1, 2)
    record_steps(recorder, 2, 3)
    recorder.discard()
    record_episode(recorder, 3, 1)
    chunk = episodes.take()
    assert chunk is not None
    assert ([1, 3], [100, 101, 300]) == (chunk.numbers.tolist(), chunk.observations[0].tolist())
    assert [{"begun": 1}, {"begun": 3}] == chunk.episode_infos.to_dicts()
    assert [{"env": 0}, {"env": 1}, {"env": 0}] == chunk.env_infos.to_dicts()


def test_rows_without_infos_stay_empty() -> None:
    """Infos belong to their rows and to their episode, also where most rows have none."""
    episodes = store()
    recorder = EpisodeRecorder(episodes)
    record_steps(recorder, 1, 2)
    recorder.env_infos.pop(0)
    recorder.agent_infos.clear()
    finish(recorder, 1, 2)
    recorder.begin({})
    for step in range(3):
        recorder.record_observation(step)
        recorder.record_action(step)
        recorder.rewards.append(0.0)
    recorder.env_infos[0] = {"env": 7}
    finish(recorder, 2, 3)
    chunk = episodes.take()
    assert chunk is not None
    assert [{}, {"env": 1}, {"env": 7}, {}, {}] == chunk.env_infos.to_dicts()
    assert ([{}] * 5, ()) == (chunk.agent_infos.to_dicts(), chunk.agent_infos.columns)
    assert [{"begun": 1}, {}] == chunk.episode_infos.to_dicts()


class Uncopyable:
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("not me")


def test_infos_are_private() -> None:
    """Later changes to an info dictionary, or to what it holds, do not reach the recorded one."""
    array, nested, many = np.zeros(2), {"x": np.zeros(1)}, [1, 2]
    frozen = frozen_copy({"array": array, "nested": nested, "many": many, "text": "t"})
    array += 1
    nested["x"] += 1
    nested["y"] = np.ones(1)
    many.append(3)
    assert [0, 0] == frozen["array"].tolist()
    assert {"x": [0]} == {key: value.tolist() for key, value in frozen["nested"].items()}
    assert ([1, 2], "t") == (frozen["many"], frozen["text"])


def test_what_cannot_be_copied_is_kept_to_be_counted() -> None:
    """An object that refuses to be copied does not end the run: it is left out of the columns, and counted."""
    episodes = store()
    recorder = EpisodeRecorder(episodes)
    record_steps(recorder, 0, 1)
    recorder.env_infos[0] = frozen_copy({"odd": Uncopyable(), "fine": 1})
    finish(recorder, 0, 1)
    chunk = episodes.take()
    assert chunk is not None
    assert ([{"fine": 1}], {"odd": 1}) == (chunk.env_infos.to_dicts(), chunk.env_infos.dropped)


@pytest.mark.parametrize(("terminated", "truncated"), [(True, True), (False, True), (True, False)])
def test_both_flags_are_kept(terminated: bool, truncated: bool) -> None:
    """What an episode ended with is recorded as it was, both flags included."""
    episodes = store()
    record_episode(EpisodeRecorder(episodes), 0, 1, terminated=terminated, truncated=truncated)
    chunk = episodes.take()
    assert chunk is not None
    assert (terminated, truncated) == (bool(chunk.terminated[0]), bool(chunk.truncated[0]))
