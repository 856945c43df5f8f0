"""Episodes of an OGBench environment, stored as its scripts do, are imported with the values that its reader gives.

The scripts that make its datasets are not in the package, so the test writes the file that `load_dataset` reads.
`.ci/matrix/libraries` runs this module in an environment of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import ogbench
import pytest

import rollout_cli
from tests.helpers.processes import called

LENGTHS = (7, 3, 5)

pytestmark = pytest.mark.filterwarnings("ignore")  # Of its libraries.


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of random actions in PointMaze, a row a step, with the state of the simulator."""
    env: Any = gymnasium.make("pointmaze-medium-v0")
    rows: dict[str, list[Any]] = {
        name: [] for name in ("observations", "actions", "terminals", "qpos", "qvel")
    }
    env.action_space.seed(0)
    for seed, length in enumerate(LENGTHS):
        observation, _ = env.reset(seed=seed)
        for step in range(length):
            action = env.action_space.sample()
            state = env.unwrapped.data
            values = (observation, action, step == length - 1, state.qpos.copy(), state.qvel.copy())
            for column, value in zip(rows.values(), values, strict=True):
                column.append(value)
            observation = env.step(action)[0]
    dtypes = {"terminals": bool, "actions": np.float32}
    path = tmp_path_factory.mktemp("ogbench") / "pointmaze.npz"
    arrays: dict[str, Any] = {name: np.array(column, dtypes.get(name)) for name, column in rows.items()}
    np.savez_compressed(path, **arrays)
    env.close()
    return path


def test_values_are_those_of_its_reader(file: Path, tmp_path: Path) -> None:
    summary = rollout_cli.import_dataset(file, tmp_path / "d")
    assert ("ogbench", len(LENGTHS), sum(LENGTHS) - len(LENGTHS)) == (
        summary.format, summary.episodes, summary.steps
    )  # fmt: skip
    assert [] == rollout_cli.verify(tmp_path / "d").faults
    batch = rollout_cli.load(tmp_path / "d").to_episode_batch()
    read = ogbench.load_dataset(str(file), ob_dtype=np.float64, add_info=True)
    np.testing.assert_array_equal(read["observations"], batch.observations)
    np.testing.assert_array_equal(read["next_observations"], batch.next_observations)
    np.testing.assert_array_equal(read["actions"], batch.actions)
    for name in ("qpos", "qvel"):
        np.testing.assert_array_equal(read[name], batch.env_infos[name])
    assert [length - 1 for length in LENGTHS] == batch.lengths.tolist()


def test_the_way_back(file: Path, tmp_path: Path) -> None:
    """Its reader gives the same for the export of the import."""
    rollout_cli.import_dataset(file, tmp_path / "d")
    called("export", tmp_path / "d", "--to", "ogbench", "--output", tmp_path / "back.npz")
    first, second = (
        ogbench.load_dataset(str(path), ob_dtype=np.float64) for path in (file, tmp_path / "back.npz")
    )
    for name in ("observations", "next_observations", "actions", "terminals"):
        np.testing.assert_array_equal(first[name], second[name])
