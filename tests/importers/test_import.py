"""Export and import: the episodes come back, but for what the format does not hold; bad files are refused whole."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import rollout_cli
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.spaces import tree_leaves
from rollout_cli.errors import DatasetFormatError, UsageError, UserCodeError
from rollout_cli.importers.load import FORMATS, import_dataset
from tests.exporters.cases import BOX, CHOICE, SPECS, MemoryDataset, batch_of, export_to, place_of
from tests.helpers.datasets import source_of
from tests.helpers.errors import raises
from tests.helpers.processes import called
from tests.helpers.thorough import usually


class Touch:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


COLUMNS = ("d3rlpy", "d4rl", "robomimic", "tianshou")
"""Formats of one HDF5 file without spaces."""


MISSING = {
    "d4rl": "actions",
    "d3rlpy": "actions_2",
    "robomimic": "data/demo_2/actions",
    "minari": "episode_2/actions",
    "tianshou": "act",
}
"""By format in HDF5, a member that is needed."""


def imported(folder: Path, name: str, spec: EnvSpec, **options: Any) -> tuple[EpisodeBatch, EpisodeBatch]:
    """Export episodes and import them; return both."""
    exported = batch_of(spec)
    export_to(folder, MemoryDataset(exported), name)
    summary = import_dataset(place_of(name, folder), folder / "back", **options)
    assert (name, 4, len(exported.rewards)) == (summary.format, summary.episodes, summary.steps)
    assert [] == rollout_cli.verify(folder / "back").faults
    source = source_of(folder / "back")
    assert ("imported", None, name) == (source["kind"], source["root_seed"], source["imported"]["format"])
    assert list(summary.unknown) == source["imported"]["unknown"]
    return exported, rollout_cli.load(folder / "back").to_episode_batch()


def assert_equal(one: Any, other: Any) -> None:
    for mine, theirs in zip(tree_leaves(one), tree_leaves(other), strict=True):
        if mine.dtype == object:  # Strings, or arrays of a Sequence.
            for some, others in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(some, others)
        else:
            np.testing.assert_array_equal(mine, theirs)


EVERY = {
    **SPECS,
    "sequence": EnvSpec(spaces.Dict({"a": spaces.Sequence(BOX, stack=True), "b": BOX}), CHOICE),
    "dots": EnvSpec(spaces.Dict({"a.b": BOX, "a": spaces.Dict({"b": BOX})}), CHOICE),
    "pixels": EnvSpec(
        spaces.Tuple([spaces.Box(0, 255, shape, np.uint8) for shape in ((4, 5), (3, 4, 5), (2,))]), BOX
    ),
}


@pytest.mark.parametrize(
    ("kind", "name"), [*(("minari", name) for name in SPECS), *(("hf", name) for name in EVERY)]
)
def test_all_comes_back(tmp_path: Path, kind: str, name: str) -> None:
    """With every space, all values, both ends and the seeds."""
    exported, back = imported(tmp_path, kind, EVERY[name])
    assert EVERY[name] == back.env_spec
    for field in (
        "observations",
        "last_observations",
        "actions",
        "rewards",
        "terminated",
        "truncated",
        "seeds",
    ):
        assert_equal(getattr(exported, field), getattr(back, field))


@pytest.mark.parametrize("spec", [SPECS["box"], EnvSpec(BOX, CHOICE)], ids=["box", "choice"])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_come_back(tmp_path: Path, name: str, spec: EnvSpec) -> None:
    """Where both flags were set only one comes back, but from Tianshou's; the rewards of d3rlpy are float32."""
    n_actions = 3 if spec.action_space == CHOICE else None
    exported, back = imported(tmp_path, name, spec, n_actions=n_actions)
    assert_equal(exported.observations, back.observations)
    assert_equal(exported.actions, back.actions)
    np.testing.assert_allclose(exported.rewards, back.rewards, rtol=1e-6 if name == "d3rlpy" else 0)
    assert_equal(exported.terminated, back.terminated)
    both = exported.terminated if name != "tianshou" else np.zeros_like(exported.terminated)
    assert_equal(exported.truncated & ~both, back.truncated)
    expected = exported.last_observations.copy()
    if name == "d3rlpy":
        expected[exported.terminated] = np.nan
    np.testing.assert_array_equal(expected, back.last_observations)
    assert [-1] * 4 == back.seeds.tolist()


def test_an_episode_without_rewards_and_ends_comes_back(tmp_path: Path) -> None:
    """As OGBench's files are: the rewards are unknown, and so is how an episode ended."""
    exported, back = imported(tmp_path, "ogbench", SPECS["box"])
    assert_equal(exported.observations, back.observations)
    assert_equal(exported.last_observations, back.last_observations)
    assert_equal(exported.actions, back.actions)
    assert np.isnan(back.rewards).all()
    assert [True] * 4 == back.truncated.tolist()
    assert "rewards: stored as nan" in source_of(tmp_path / "back")["imported"]["unknown"]


@pytest.mark.parametrize("name", ["box", "named"])
def test_lerobot_comes_back(tmp_path: Path, name: str) -> None:
    """With the task, and both ends, where the exporter wrote them."""
    vectors = spaces.Dict({"arm": BOX, "gripper": spaces.Box(-1, 1, (2, 3))})
    spec = {"box": SPECS["box"], "named": EnvSpec(vectors, vectors)}[name]
    exported, back = imported(tmp_path, "lerobot", spec)
    assert_equal(exported.observations, back.observations)
    assert_equal(exported.actions, back.actions)
    np.testing.assert_allclose(exported.rewards, back.rewards, rtol=1e-6)
    assert_equal(exported.terminated, back.terminated)
    assert_equal(exported.truncated | ~exported.terminated, back.truncated)
    assert all(np.isnan(leaf).all() for leaf in tree_leaves(back.last_observations))
    assert 1 == len({*back.episode_infos["task"].tolist()})


def test_lerobot_without_ends_and_rewards(tmp_path: Path) -> None:
    """As recorded demonstrations are, with several tasks, success and a video."""
    features = {
        "observation.state": ("float32", [2]),
        "observation.images.top": ("video", [48, 64, 3]),
        "action": ("float32", [1]),
        "next.success": ("bool", [1]),
        "next.done": ("bool", [1]),
        **dict.fromkeys(("episode_index", "index", "task_index"), ("int64", [1])),
    }
    info = {
        "codebase_version": "v3.0",
        "features": {name: {"dtype": dtype, "shape": shape} for name, (dtype, shape) in features.items()},
    }
    place = tmp_path / "robot"
    (place / "meta").mkdir(parents=True)
    (place / "data/chunk-000").mkdir(parents=True)
    (place / "meta/info.json").write_text(json.dumps(info))
    pq.write_table(
        pa.table({"__index_level_0__": ["push", "lift"], "task_index": [0, 1]}), place / "meta/tasks.parquet"
    )
    rows: dict[str, Any] = {
        "observation.state": [[float(index), 0.5] for index in range(5)],
        "action": [float(index) for index in range(5)],
        "next.success": [False, True, False, False, False],
        "next.done": [False, True, False, False, True],
        "episode_index": [0, 0, 1, 1, 1],
        "index": [*range(5)],
        "task_index": [1, 1, 0, 0, 1],
    }
    pq.write_table(pa.table(rows), place / "data/chunk-000/file-000.parquet")
    summary = import_dataset(place, tmp_path / "back")
    assert "observation.images.top: videos are not imported" in summary.unknown
    one, two = rollout_cli.load(tmp_path / "back")
    assert ["lift", "push"] == [str(each.episode_infos["task"][0]) for each in (one, two)]
    assert ["push", "push", "lift"] == two.env_infos["task"].tolist()
    assert [False, True] == one.env_infos["success"].tolist()
    assert (False, True) == (one.terminated, one.truncated)
    np.testing.assert_array_equal([[2, 0.5], [3, 0.5], [4, 0.5]], two.observations)
    assert np.isnan(two.rewards).all()
    shutil.copy(place / "data/chunk-000/file-000.parquet", place / "data/chunk-000/file-001.parquet")
    with raises(DatasetFormatError, "import-damaged", "file-001", "each episode in one file"):
        import_dataset(place, tmp_path / "again")
    (place / "data/chunk-000/file-001.parquet").unlink()
    for wrong in ([[1.0]], [[1.0], [1.0, 2.0, 3.0]]):
        rows["observation.state"][3 : 3 + len(wrong)] = wrong
        pq.write_table(pa.table(rows), place / "data/chunk-000/file-000.parquet")
        with raises(DatasetFormatError, "import-damaged", "observation.state", "values in 3 rows"):
            import_dataset(place, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_an_array_in_fortran_order(tmp_path: Path) -> None:
    """As `np.savez` stores one that was transposed."""
    seen = np.arange(10.0).reshape(2, 5).T
    np.savez(tmp_path / "a.npz", observations=seen, actions=np.zeros((5, 1)), terminals=[0, 1, 0, 0, 1])
    import_dataset(tmp_path / "a.npz", tmp_path / "back")
    one, two = rollout_cli.load(tmp_path / "back")
    np.testing.assert_array_equal(seen[:1], one.observations)
    np.testing.assert_array_equal(seen[2:4], two.observations)


def test_columns_of_other_lengths_are_refused(tmp_path: Path) -> None:
    columns = {"observations": np.zeros((5, 2)), "actions": np.zeros((5, 1)), "terminals": np.arange(5) == 4}
    for name, wrong in (
        ("observations", np.zeros((4, 2))),
        ("observations", np.zeros(())),
        ("terminals", np.zeros(5)),
        ("terminals", np.ones((5, 1))),
    ):
        np.savez(tmp_path / "a.npz", **{**columns, name: wrong})
        with raises(DatasetFormatError, "import-damaged"):
            import_dataset(tmp_path / "a.npz", tmp_path / "back")
    np.savez(tmp_path / "a.npz", **{**columns, "actions": np.array([{}] * 5)})
    with raises(DatasetFormatError, "import-damaged"):
        import_dataset(tmp_path / "a.npz", tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("name", usually([*MISSING, "hf", "ogbench", "lerobot"], "lerobot".__eq__))
def test_commands_name_the_format(tmp_path: Path, name: str) -> None:
    """And how it is imported."""
    export_to(tmp_path, MemoryDataset(batch_of(SPECS["box"])), name)
    path = place_of(name, tmp_path)
    for words in (("info", path), ("verify", path), ("report", path, "-o", tmp_path / "a.html")):
        said = called(*words, code=5).stderr
        assert FORMATS[name].title in said
        assert f"rollout import {path} --from {name} --output DIR" in said


def test_a_pickle_is_not_loaded_without_trust(tmp_path: Path) -> None:
    """Whatever names its format."""
    for name in (None, "sb3"):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(Touch(tmp_path / "ran")))
        with raises(UserCodeError, "file-may-run-code"):
            import_dataset(tmp_path / "a.pkl", tmp_path / "back", name)
    assert ["a.pkl"] == [path.name for path in tmp_path.iterdir()]


def test_named_observations_come_back(tmp_path: Path) -> None:
    """Robomimic's modalities are a Dict, images too."""
    camera = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    spec = EnvSpec(
        spaces.Dict({"arm": spaces.Box(-np.inf, np.inf, (4,)), "camera": camera}), SPECS["box"].action_space
    )
    exported, back = imported(tmp_path, "robomimic", spec)
    assert back.env_spec.observation_space == spec.observation_space
    assert_equal(exported.observations, back.observations)
    assert_equal(exported.last_observations, back.last_observations)


def test_the_spaces_of_an_environment(tmp_path: Path) -> None:
    """They are those of `env`, and the actions of a file are refused without any."""
    called("collect", "--episodes", "3", "--seed", "1", "--sampler", "local", "-q", "-o", "own", cwd=tmp_path)
    called("export", "own", "--to", "d4rl", "-o", "own.hdf5", cwd=tmp_path)
    refused = called("import", "own.hdf5", "-o", "back", code=2, cwd=tmp_path).stderr
    assert all(part in refused for part in ("[space-unknown]", "--env", "--n-actions"))
    said = called("import", "own.hdf5", "--env", "CartPole-v1", "-o", "back", cwd=tmp_path)
    assert "not in own.hdf5: seeds" in said.stderr
    back, own = (rollout_cli.load(tmp_path / name) for name in ("back", "own"))
    assert own.env_spec.observation_space == back.env_spec.observation_space
    assert "imported; another program" in called("info", "back", cwd=tmp_path).stdout
    called("verify", "back", cwd=tmp_path)
    assert "[output-exists]" in called("import", "own.hdf5", "-o", "back", code=5, cwd=tmp_path).stderr
    assert (
        "[import-env]"
        in called("import", "own.hdf5", "-e", "None-v3", "-o", "c", code=2, cwd=tmp_path).stderr
    )


def test_the_environment_comes_back(tmp_path: Path) -> None:
    """Its id, spaces and time limit, with the command line's own words."""
    called("collect", "--episodes", "3", "--seed", "1", "--sampler", "local", "-q", "-o", "own", cwd=tmp_path)
    called("export", "own", "--to", "hf", "-o", "hf", cwd=tmp_path)
    assert "not in hf: infos" in called("import", "hf", "-o", "back", cwd=tmp_path).stderr
    back, own = (rollout_cli.load(tmp_path / name) for name in ("back", "own"))
    assert own.env_spec == back.env_spec
    assert 500 == back.env_spec.max_episode_length
    assert {"id": "CartPole-v1", "max_episode_length": 500} == source_of(tmp_path / "back")["env"]
    assert "rollout import hf --from hf" in called("info", "hf", code=5, cwd=tmp_path).stderr


def test_trailing_steps_are_truncated(tmp_path: Path) -> None:
    """Of D4RL's files, which may end within an episode, and without next observations."""
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"] = np.arange(10, dtype=np.float32).reshape(5, 2)
        file["actions"] = np.zeros((5, 1), np.float32)
        file["rewards"] = np.arange(5.0)
        file["terminals"] = np.array([False, True, False, False, False])
        file["infos/qpos"] = np.arange(5.0)
    summary = import_dataset(tmp_path / "a.hdf5", tmp_path / "back")
    assert 3 == len(summary.unknown)
    one, two = rollout_cli.load(tmp_path / "back")
    assert ((2, True, False), (3, False, True)) == tuple(
        (len(each), each.terminated, each.truncated) for each in (one, two)
    )
    assert np.isnan(two.last_observation).all()
    assert [2.0, 3.0, 4.0] == two.env_infos["qpos"].tolist()


def test_what_is_not_certain(tmp_path: Path) -> None:
    """No format, two, none of that name, and a dataset of ours."""
    (tmp_path / "a.hdf5").write_bytes(b"\x89HDF nothing")
    for words in (("a.hdf5",), (".",)):
        with raises(UsageError, "format-uncertain"):
            import_dataset(tmp_path / words[0], tmp_path / "back")
    with raises(UsageError, "import-missing", "none"):
        import_dataset(tmp_path / "none", tmp_path / "back")
    with raises(UsageError, "format-unknown", "hdf6"):
        import_dataset(tmp_path / "a.hdf5", tmp_path / "back", "hdf6")
    called("collect", "--episodes", "1", "--sampler", "local", "-q", "-o", "own", cwd=tmp_path)
    with raises(UsageError, "import-not-needed"):
        import_dataset(tmp_path / "own", tmp_path / "back")
    assert not (tmp_path / "back").exists()
