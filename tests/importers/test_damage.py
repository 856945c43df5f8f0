"""Damaged and hostile files: one error, which names the place, and no folder; no file outside is read."""

from __future__ import annotations

import json
import random
import shutil
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import rollout_cli
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import DatasetExistsError, DatasetFormatError, RolloutError
from rollout_cli.importers.load import FORMATS, import_dataset
from tests.exporters.cases import SPECS, MemoryDataset, batch_of, export_to, place_of
from tests.helpers.damage import set_json
from tests.helpers.errors import raises
from tests.helpers.thorough import usually
from tests.importers.test_import import MISSING


def test_links_lead_nowhere(tmp_path: Path) -> None:
    """An external link may name any file of this machine."""
    export_to(tmp_path, MemoryDataset(batch_of(SPECS["box"])), "d4rl")
    path = place_of("d4rl", tmp_path)
    shutil.copy(path, tmp_path / "other.hdf5")
    with h5py.File(path, "a") as file:
        del file["observations"]
        file["observations"] = h5py.ExternalLink("other.hdf5", "observations")
    with raises(DatasetFormatError, "import-damaged", "observations", "ExternalLink"):
        import_dataset(path, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_data_of_other_files_stay_there(tmp_path: Path) -> None:
    """HDF5 can store the bytes of an array in any file, or map other files."""
    (tmp_path / "secret").write_bytes(bytes(4096))
    export_to(tmp_path, MemoryDataset(batch_of(SPECS["box"])), "d4rl")
    path = place_of("d4rl", tmp_path)
    shutil.copy(path, tmp_path / "other.hdf5")
    for kind in ("external", "virtual"):
        with h5py.File(path, "a") as file:
            rows = file["rewards"].shape
            del file["rewards"]
            if kind == "external":
                file.create_dataset("rewards", rows, "f8", external=[(str(tmp_path / "secret"), 0, 4096)])
            else:
                layout = h5py.VirtualLayout(rows, "f8")
                layout[:] = h5py.VirtualSource(tmp_path / "other.hdf5", "rewards", rows)
                file.create_virtual_dataset("rewards", layout)
        with raises(DatasetFormatError, "import-damaged", "rewards", "another file"):
            import_dataset(path, tmp_path / "back")
        assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_member_is_named(tmp_path: Path, name: str) -> None:
    """After two good episodes: nothing is left."""
    export_to(tmp_path, MemoryDataset(batch_of(SPECS["box"])), name)
    path = place_of(name, tmp_path)
    with h5py.File(path / "data/main_data.hdf5" if name == "minari" else path, "a") as file:
        del file[MISSING[name]]
    with raises(DatasetFormatError, "import-damaged", MISSING[name].rpartition("/")[2], "missing"):
        import_dataset(path, tmp_path / "back", name)
    assert not (tmp_path / "back").exists()


DAMAGED = {
    "hf": "data/train-00000.parquet",
    "lerobot": "data/chunk-000/file-000.parquet",
    "minari": "data/main_data.hdf5",
}
"""By format, the file of its folder that is damaged."""


@pytest.mark.parametrize("name", usually([*MISSING, "hf", "lerobot", "ogbench"], "minari".__eq__))
def test_damage_is_answered(tmp_path: Path, name: str) -> None:
    """Bytes that were changed or cut: an import, or one clear error and no folder."""
    export_to(tmp_path, MemoryDataset(batch_of(SPECS["box"])), name)
    path = place_of(name, tmp_path)
    file = path / DAMAGED[name] if name in DAMAGED else path
    whole = file.read_bytes()
    rng = random.Random(name)
    n_refused = 0
    for number in range(60):
        damaged = bytearray(whole)
        if number % 3 == 0:
            del damaged[rng.randrange(len(whole)) :]
        else:
            for _ in range(rng.randrange(1, 40)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        file.write_bytes(damaged)
        try:
            import_dataset(path, tmp_path / "back", name)
            assert [] == rollout_cli.verify(tmp_path / "back").faults
            shutil.rmtree(tmp_path / "back")
        except DatasetFormatError:
            n_refused += 1
        assert not (tmp_path / "back").exists()
    assert n_refused > 20


def test_tables_that_disagree_are_refused(tmp_path: Path) -> None:
    """Those of steps and of episodes in our export for Hugging Face, and the spaces in its metadata."""
    export_to(tmp_path, MemoryDataset(batch_of(SPECS["box"])), "hf")
    path = place_of("hf", tmp_path)
    steps, ends = (path / name / "train-00000.parquet" for name in ("data", "episodes"))
    tables = {file: pq.read_table(file) for file in (steps, ends)}
    described = json.loads(tables[steps].schema.metadata[b"rollout"])
    damaged: list[tuple[Path, pa.Table, str]] = [
        (steps, tables[steps].slice(1), "3 steps of episode 0, but .* lists 4 steps of episode 0"),
        (steps, tables[steps].slice(4), "1 steps of episode 1, but .* lists 4 steps of episode 0"),
        (steps, tables[steps].slice(0, 5), "2 episodes, expected 4"),
        (ends, tables[ends].slice(0, 2), "has episode 2, which is not in"),
        (ends, tables[ends].drop_columns(["seed"]), "seed"),
        (steps, tables[steps].drop_columns(["observation"]), "observation"),
    ]
    for wrong in (
        {"max_episode_length": "long"},
        {"action_space": {"type": "Box", "shape": [1 << 40], "low": 0, "high": 1, "dtype": "<f4"}},
        {"observation_space": described["action_space"]},
    ):
        metadata = {"rollout": json.dumps({**described, **wrong})}
        damaged.append((steps, tables[steps].replace_schema_metadata(metadata), "[a-z]"))
    damaged.append((steps, tables[steps].replace_schema_metadata({}), "do not state their spaces"))
    for file, table, part in damaged:
        pq.write_table(table, file)
        with pytest.raises(RolloutError, match=part):
            import_dataset(path, tmp_path / "back", "hf")
        assert not (tmp_path / "back").exists()
        pq.write_table(tables[file], file)
    assert 4 == import_dataset(path, tmp_path / "back").episodes


@pytest.mark.parametrize("name", ["lerobot", "minari"])
def test_a_dataset_without_episodes_is_refused(tmp_path: Path, name: str) -> None:
    """Whether its spaces are known or not: nothing stays open, and no folder is left."""
    export_to(tmp_path, MemoryDataset(batch_of(SPECS["box"])), name)
    path = place_of(name, tmp_path)
    if name == "minari":
        set_json(path / "data/metadata.json", total_episodes=0)
    else:
        shutil.rmtree(path / "data")
    with raises(DatasetFormatError, "import-empty"):
        import_dataset(path, tmp_path / "back")
    assert [path.relative_to(tmp_path).parts[0]] == [each.name for each in tmp_path.iterdir()]


@pytest.mark.parametrize("name", [*MISSING, "ogbench"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    """The importer holds an episode of 0.5 MB, and not the 20 MB of the file."""
    spec = EnvSpec(spaces.Box(-1, 1, (500,), np.float32), SPECS["box"].action_space)
    export_to(tmp_path, MemoryDataset(batch_of(spec, [250] * 40)), name)
    with FORMATS[name].read(place_of(name, tmp_path)) as foreign:
        tracemalloc.start()
        try:
            lengths = [len(episode.actions) for episode in foreign.episodes]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert 40 == len(lengths)
    assert 500_000 < peak < 4_000_000


def test_a_refused_episode_is_named(tmp_path: Path) -> None:
    """Its array, and the file."""
    export_to(tmp_path, MemoryDataset(batch_of(SPECS["box"])), "robomimic")
    path = place_of("robomimic", tmp_path)
    with h5py.File(path, "a") as file:
        file["data/demo_1/rewards"][:] = np.nan
    with raises(DatasetFormatError, "import-damaged", path.name, "rewards of episode 1"):
        import_dataset(path, tmp_path / "back")
    (tmp_path / "there").mkdir()
    with pytest.raises(DatasetExistsError):
        import_dataset(path, tmp_path / "there")
