"""LeRobot: the task of each episode, the names of its environments, and quantiles."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import rollout_cli
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.errors import UsageError
from rollout_cli.exporters import format, lerobot_stats  # noqa: A004 - the module
from rollout_cli.exporters.lerobot_stats import FeatureStats
from tests.exporters.cases import BOX, CHOICE, SPECS, MemoryDataset, batch_of, export_to
from tests.helpers.errors import raises

CAMERA = spaces.Box(0, 255, (4, 5, 3), np.uint8)
ARRAY = spaces.Box(0, 1, (3, 4, 5), np.float32)
INFO = {"sources": [{"env_source": {"spec": "Env-v0"}}]}
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def with_tasks(tasks: list[Any]) -> EpisodeBatch:
    """Return episodes of three steps with these tasks; None for an episode without one."""

    def info(number: int, step: int) -> Mapping[str, Any]:
        return {} if tasks[number] is None else {"task": tasks[number]}

    return batch_of(SPECS["box"], [3] * len(tasks), episode_info=info)


@pytest.mark.parametrize(
    ("tasks", "options", "expected"),
    [
        (["pick", "place", "pick", None], {}, ["pick", "place", "pick", "Env-v0"]),
        ([None, None], {}, ["Env-v0", "Env-v0"]),
        ([7, 7], {}, ["Env-v0", "Env-v0"]),
        (["pick", "place"], {"task": "stack"}, ["stack", "stack"]),
        (["pick", "place", "pick"], {"flatten": True}, ["pick", "place", "pick"]),
    ],
)
def test_tasks(
    tasks: list[Any],
    options: dict[str, Any],
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each episode has its own string, or the environment's id, or the one of the option."""
    monkeypatch.setattr(format, "_BLOCK_BYTES", 7 * 64)  # Two episodes a block.
    path = export_to(tmp_path, MemoryDataset(with_tasks(tasks), INFO), "lerobot", **options).path
    table = pq.read_table(path / "meta" / "tasks.parquet").to_pydict()
    assert table["task"] == list(dict.fromkeys(expected))
    assert table["task_index"] == list(range(len(table["task"])))
    assert json.loads((path / "meta" / "info.json").read_text())["total_tasks"] == len(table["task"])
    episodes = pq.read_table(path / "meta" / "episodes").to_pydict()
    assert episodes["tasks"] == [[task] for task in expected]
    steps = pq.read_table(path / "data").to_pydict()
    assert [table["task"][index] for index in steps["task_index"]] == np.repeat(expected, 3).tolist()


def test_tasks_come_back(tmp_path: Path) -> None:
    """An import has the tasks, and the values under LeRobot's names."""
    space = spaces.Dict({"agent_pos": BOX, "pixels": spaces.Dict({"top": CAMERA, "side": CAMERA})})
    tasks = ["pick", "place", "pick", "stack"]
    batch = batch_of(
        EnvSpec(space, SPECS["box"].action_space), episode_info=lambda at, _: {"task": tasks[at]}
    )
    path = export_to(tmp_path, MemoryDataset(batch, INFO), "lerobot").path
    rollout_cli.import_dataset(path, tmp_path / "back")
    back = rollout_cli.load(tmp_path / "back").to_episode_batch()
    assert back.episode_infos["task"].tolist() == tasks
    np.testing.assert_array_equal(back.observations["state"], batch.observations["agent_pos"])
    for camera in ("top", "side"):
        pixels = batch.observations["pixels"][camera]
        np.testing.assert_array_equal(back.observations[f"images.{camera}"], pixels)
    np.testing.assert_array_equal(back.actions, batch.actions)


@pytest.mark.parametrize(
    ("space", "names"),
    [
        ({"pixels": CAMERA, "agent_pos": BOX}, {"image", "state"}),
        ({"environment_state": BOX, "agent_pos": BOX}, {"environment_state", "state"}),
        ({"pixels": spaces.Dict({"top": CAMERA}), "goal": BOX}, {"images.top", "goal"}),
        ({"agent_pos": BOX, "state": BOX}, {"agent_pos", "state"}),
        ({"pixels": CAMERA, "image": CAMERA}, {"pixels", "image"}),
        ({"pixels": spaces.Dict({"top": CAMERA}), "images.top": CAMERA}, {"pixels.top", "images.top"}),
        ({"pixels": ARRAY, "agent_pos": spaces.Dict({"x": BOX})}, {"pixels", "agent_pos.x"}),
        ({"pixels": spaces.Dict({"a": spaces.Dict({"b": CAMERA})})}, {"pixels.a.b"}),
    ],
)
def test_names_of_robots(space: dict[str, Any], names: set[str], tmp_path: Path) -> None:
    """Observations have the names that LeRobot gives them, unless another key has the name; actions do not."""
    action = spaces.Dict({"agent_pos": BOX})
    dataset = MemoryDataset(batch_of(EnvSpec(spaces.Dict(space), action)))
    path = export_to(tmp_path, dataset, "lerobot").path
    columns = pq.read_table(path / "data").column_names
    assert {f"observation.{name}" for name in names} | {"action.agent_pos"} == {
        name for name in columns if name.startswith(("observation", "action"))
    }


def test_quantiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of all steps, and of the pixels from 0 to 1, with the shapes of the other statistics."""
    monkeypatch.setattr(format, "_BLOCK_BYTES", 1)
    space = spaces.Dict({"pixels": CAMERA, "agent_pos": BOX})
    batch = batch_of(EnvSpec(space, CHOICE), [150, 30])
    path = export_to(tmp_path, MemoryDataset(batch), "lerobot").path
    stats = json.loads((path / "meta" / "stats.json").read_text())
    expected = {
        "observation.state": batch.observations["agent_pos"],
        "action": batch.actions[:, None],
        "next.reward": batch.rewards[:, None].astype(np.float32),
    }
    camera = batch.observations["pixels"][[0, 100, 150]].reshape(-1, 3)
    for name, level in QUANTILES.items():
        for feature, values in expected.items():
            np.testing.assert_allclose(stats[feature][name], np.quantile(values, level, axis=0))
        pixels = np.quantile(camera, level, axis=0, method="inverted_cdf") / 255
        np.testing.assert_allclose(stats["observation.image"][name], pixels[:, None, None])


def test_quantiles_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are sampled with a stride that does not depend on how they are cut; few are kept."""
    monkeypatch.setattr(lerobot_stats, "_MOST_ROWS", 100)
    rows = np.random.default_rng(0).normal(size=(1234, 2))
    for cuts in ([], [100, 101, 777], list(range(1, 1234))):
        stats = FeatureStats(is_image=False)
        for part in np.split(rows, cuts):
            stats.add(part)
            kept: Any = stats._sample
            assert sum(map(len, kept._parts)) <= 100
        np.testing.assert_array_equal(stats.document(1234)["q90"], np.quantile(rows[::16], 0.9, axis=0))


def test_quantiles_of_large_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is bounded by numbers, not by rows alone."""
    monkeypatch.setattr(lerobot_stats, "_MOST_NUMBERS", 600)
    rows = np.random.default_rng(0).normal(size=(100, 60))
    stats = FeatureStats(is_image=False)
    stats.add(rows)
    np.testing.assert_array_equal(stats.document(100)["q50"], np.quantile(rows[::16], 0.5, axis=0))


def test_quantiles_of_values_that_are_not_finite() -> None:
    """They do not count; a column without another value has none."""
    stats = FeatureStats(is_image=False)
    stats.add(np.array([[1, np.nan], [np.inf, np.nan], [3, np.nan], [np.nan, np.nan]]))
    assert stats.document(4)["q50"][0] == 2
    assert np.isnan(stats.document(4)["q50"][1])


@pytest.mark.parametrize("space", [BOX, spaces.Box(0, 255, (4, 5), np.uint8)])
def test_video_without_colors(space: spaces.Box, tmp_path: Path) -> None:
    """The option needs an RGB image."""
    dataset = MemoryDataset(batch_of(EnvSpec(space, CHOICE)))
    with raises(UsageError, "format-option", "RGB images"):
        export_to(tmp_path, dataset, "lerobot", video=True)


def test_video_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the pip command, and nothing is left."""
    monkeypatch.setitem(sys.modules, "av", None)
    with raises(UsageError, "package-missing", "av") as refused:
        export_to(tmp_path / "out", MemoryDataset(batch_of(SPECS["image"])), "lerobot", video=True)
    assert refused.value.marked_hint == "pip install av"
    assert not (tmp_path / "out").exists()
