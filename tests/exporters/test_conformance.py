"""All formats, all spaces, both sources: the same file, with the values of the dataset, or a refusal by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rollout_cli
from rollout_cli.dataset.reader import Dataset
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.spaces import map_tree, space_leaves, tree_leaves
from rollout_cli.errors import UnsupportedSpaceError
from rollout_cli.exporters import format  # noqa: A004 - the module
from rollout_cli.exporters.export import FORMATS
from rollout_cli.exporters.format import Export, Format
from rollout_cli.exporters.source import EpisodeLike, FlatSource
from tests.exporters.cases import SPECS, MemoryDataset, batch_of, chunks_of, export_to, files_of, place_of
from tests.exporters.folders import FOLDER_READERS
from tests.exporters.readers import FILE_READERS, Leaves, Read
from tests.helpers.batches import assert_same_batches
from tests.helpers.errors import raises
from tests.helpers.writing import write_dataset

Datasets = Callable[[str], Dataset]
READERS = {**FILE_READERS, **FOLDER_READERS}


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Datasets:
    """Return the dataset of a case, which is written once."""
    written: dict[str, Path] = {}

    def dataset(case: str) -> Dataset:
        if case not in written:
            written[case] = tmp_path_factory.mktemp(case) / "dataset"
            write_dataset(written[case], chunks_of(SPECS[case]), spec=SPECS[case])
        return rollout_cli.load(written[case])

    return dataset


@pytest.mark.parametrize("case", SPECS)
@pytest.mark.parametrize("name", FORMATS)
def test_format(name: str, case: str, datasets: Datasets, tmp_path: Path) -> None:
    """A dataset and a batch in memory become the same files, and nothing else is left."""
    dataset = datasets(case)
    batch = dataset.to_episode_batch()
    in_memory = MemoryDataset(batch, dataset.info)
    options: dict[str, Any] = {} if _holds(name, case) else {"flatten": True}
    if options:
        with raises(UnsupportedSpaceError, "format-space", name) as refused:
            export_to(tmp_path, dataset, name)
        assert "{set=flatten=true}" in refused.value.marked_hint
    export_to(tmp_path, dataset, name, **options)
    export_to(tmp_path / "memory", in_memory, name, **options)
    path = place_of(name, tmp_path)
    assert files_of(path) == files_of(place_of(name, tmp_path / "memory"))
    assert not [file for file in tmp_path.rglob(".*") if not file.name.startswith(".z")]
    episodes = FlatSource(in_memory) if options else in_memory
    for expected, actual in zip(episodes, READERS[name](path), strict=True):
        _check(expected, actual, FORMATS[name], batch.env_spec)


def _holds(name: str, case: str) -> bool:
    """Return whether the documents say that a format holds the spaces of a case."""
    if case == "dict" and name == "robomimic":
        return False  # Its actions are one vector.
    trees, all_spaces = ("tuple", "dict"), ("tuple", "dict", "text")
    held: dict[str, tuple[str, ...]] = dict.fromkeys(("hf", "lerobot", "minari", "rllib"), all_spaces)
    held |= dict.fromkeys(("torchrl", "zarr"), trees) | dict.fromkeys(("d3rlpy", "robomimic"), ("tuple",))
    return case not in {"tuple", "dict", "text"} or case in held.get(name, ())


def _check(expected: EpisodeLike, actual: Read, kind: Format, spec: EnvSpec) -> None:
    """Check what was read of an episode, after the changes that the format declares."""
    last = map_tree(lambda part: np.asarray(part)[None], expected.last_observation)
    rows = map_tree(lambda some, end: np.concatenate([some, end]), expected.observations, last)
    _same(_named(rows, slice(-1)), actual.observations)
    if actual.next_observations:
        _same(_named(rows, slice(1, None)), actual.next_observations)
    else:
        is_lost = not expected.terminated
        assert not (is_lost and kind.last_observation), (
            "the observation after an episode that goes on is lost"
        )
    start = 0 if kind.start else getattr(spec.action_space, "start", 0)
    actions = expected.actions - start if np.any(start) else expected.actions
    _same(_named(actions, slice(None)), actual.actions)
    if actual.rewards is not None:
        np.testing.assert_array_equal(
            expected.rewards.astype(actual.rewards.dtype), actual.rewards, strict=True
        )
        assert actual.rewards.dtype == np.float64 or not kind.float64_rewards
    assert (actual.rewards is None) == ("rewards" in kind.never)
    for ended, flag in ((expected.terminated, actual.terminated), (expected.truncated, actual.truncated)):
        assert flag is None or flag == ended


def _named(tree: Any, rows: slice, path: str = "") -> Leaves:
    if isinstance(tree, dict | tuple):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        parts = [_named(child, rows, f"{path}.{key}") for key, child in items]
        return {name: leaf for part in parts for name, leaf in part.items()}
    return {path.removeprefix("."): tree[rows]}


def _same(expected: Leaves, actual: Leaves) -> None:
    assert sorted(expected) == sorted(actual)
    for key, values in expected.items():
        # Some formats have numbers as vectors of one.
        read = actual[key][:, 0] if values.ndim == 1 and actual[key].ndim == 2 else actual[key]
        np.testing.assert_array_equal(values, read, strict=values.dtype != object)


@pytest.mark.parametrize("case", ["tuple", "dict", "text"])
def test_flat_spaces(case: str) -> None:
    """Flat values are those of `gymnasium.spaces.flatten`, and are in the flat space."""
    spec = SPECS[case]
    batch = batch_of(spec)
    flat = FlatSource(MemoryDataset(batch))
    for episode, expected in zip(flat, batch.split(), strict=True):
        for name in ("observation", "action"):
            space, flat_space = getattr(spec, f"{name}_space"), getattr(flat.env_spec, f"{name}_space")
            tree, actual = getattr(expected, f"{name}s"), getattr(episode, f"{name}s")
            if space == flat_space:
                np.testing.assert_array_equal(tree, actual, strict=True)
                continue
            for row, values in enumerate(actual):
                sample = map_tree(lambda leaf, row=row: leaf[row], tree)
                np.testing.assert_array_equal(gymnasium.spaces.flatten(space, sample), values)
            assert actual.dtype == flat_space.dtype
            assert actual.shape[1:] == flat_space.shape


@pytest.mark.parametrize("most_bytes", [1, 256, 1 << 25])
def test_blocks(most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks together are the episodes, in order; their size is a matter of memory alone."""
    monkeypatch.setattr(format, "_BLOCK_BYTES", most_bytes)
    batch = batch_of(SPECS["dict"])
    parts = list(Export(MemoryDataset(batch), Path(), Path(), ()).blocks())
    assert len(parts) == {1: 4, 256: 3, 1 << 25: 1}[most_bytes]
    assert_same_batches(batch, EpisodeBatch.concatenate(*parts))


@pytest.fixture(scope="module")
def long_batch() -> EpisodeBatch:
    """Return an episode of 40,000 steps."""
    rng, short = np.random.default_rng(0), batch_of(SPECS["discrete"], [1])
    step_types = np.full(40_000, 1, np.uint8)
    step_types[0], step_types[-1] = 0, 2
    return replace(
        short,
        rewards=rng.standard_normal(40_000),
        lengths=np.array([40_000]),
        step_types=step_types,
        observations=rng.integers(7, size=40_000),
        actions=rng.integers(3, size=40_000),
    )


@pytest.mark.parametrize("name", FORMATS)
def test_one_long_episode(name: str, long_batch: EpisodeBatch, tmp_path: Path) -> None:
    """An episode of 40,000 steps has them all."""
    summary = export_to(tmp_path, MemoryDataset(long_batch), name)
    assert (summary.episodes, summary.steps) == (1, 40_000)
    (read,) = READERS[name](summary.path)
    np.testing.assert_array_equal(long_batch.actions, np.ravel(read.actions[""]))


def test_leaves_of_cases() -> None:
    """The cases hold a leaf of every kind, or a format could be wrong about it."""
    leaves = [leaf for spec in SPECS.values() for leaf in space_leaves(spec.observation_space)]
    assert {leaf.kind for leaf in leaves} == {"box", "discrete", "multi_discrete", "multi_binary", "text"}
    assert all(len(tree_leaves(batch_of(spec).observations)) for spec in SPECS.values())
