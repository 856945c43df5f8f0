"""Transitions, windows and batches from the files hold the values of `to_episode_batch`, however they are asked for."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_cli.dataset import parquet
from rollout_cli.dataset.batches import COLUMNS
from rollout_cli.dataset.reader import Dataset, load
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.spaces import map_tree, tree_leaves
from rollout_cli.errors import StorageError
from tests.helpers import chunks
from tests.helpers.errors import raises
from tests.helpers.writing import RICH_SPEC, SMALL, rich_episodes, write_dataset

FLAT = ("observations", "actions", "rewards")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """119 episodes of 1 to 23 steps, in segments of several row groups that episodes straddle."""
    path = tmp_path_factory.mktemp("transitions") / "out"
    write_dataset(path, rich_episodes(), spec=RICH_SPEC, limits=SMALL)
    return load(path)


def expected(batch: EpisodeBatch) -> dict[str, Any]:
    """Return all transitions of a batch."""
    flags = {"terminated": batch.terminated, "truncated": batch.truncated}
    ends = np.cumsum(batch.lengths) - 1
    found = {name: getattr(batch, name) for name in COLUMNS if name not in flags}
    for name, values in flags.items():
        found[name] = np.zeros(len(batch.rewards), bool)
        found[name][ends] = values
    return found


def assert_same(left: Any, right: Any) -> None:
    """Check two trees: structure, dtypes, shapes and values, and that what was read may be written to."""
    map_tree(np.testing.assert_array_equal, left, right)
    assert [(leaf.dtype, leaf.shape) for leaf in tree_leaves(left)] == [
        (leaf.dtype, leaf.shape) for leaf in tree_leaves(right)
    ]
    assert all(leaf.flags.writeable for leaf in tree_leaves(right))


SELECTIONS: dict[str, Any] = {
    "all": slice(None),
    "some": slice(3, 60, 3),
    "backwards": slice(None, None, -1),
    "anyhow": [7, 90, 3, 3, -1, 8, 9, 10],
    "one": [40],
}


@pytest.mark.parametrize("chosen", SELECTIONS)
def test_all_transitions_of_a_selection_are_those_of_its_batch(dataset: Dataset, chosen: str) -> None:
    part = dataset[SELECTIONS[chosen]]
    steps, wanted = part.transitions(), expected(part.to_episode_batch())
    assert len(wanted["rewards"]) == len(steps)
    whole = steps[:]
    assert [*COLUMNS] == [*whole]
    for name in COLUMNS:
        assert_same(wanted[name], whole[name])


def test_transitions_are_taken_by_any_places(dataset: Dataset) -> None:
    """Lists, arrays, slices and masks, from either end; torch asks by `__getitems__`; a pickled one reads again."""
    steps = pickle.loads(pickle.dumps(dataset.transitions()))
    wanted, n = expected(dataset.to_episode_batch()), len(steps)
    mask = np.zeros(n, bool)
    mask[[5, n - 1]] = True
    chosen: list[tuple[Any, list[int]]] = [
        ([0, n - 1, -1, -n, 5, 5], [0, n - 1, n - 1, 0, 5, 5]),
        (np.array([3, -2], np.int16), [3, n - 2]),
        (slice(-3, None), [n - 3, n - 2, n - 1]),
        (mask, [5, n - 1]),
        ([], []),
    ]
    for at, places in chosen:
        batches = [steps[at]] if isinstance(at, slice) else [steps[at], steps.__getitems__(at)]
        for batch in batches:
            for name in COLUMNS:
                assert_same(map_tree(lambda leaf: leaf[places], wanted[name]), batch[name])  # noqa: B023
    one = steps[-1]
    assert wanted["rewards"][-1] == one["rewards"]
    assert np.shape(one["next_observations"]["frames"]) == (2, 3)


@pytest.mark.parametrize(
    ("at", "error"),
    [
        (10**9, IndexError),
        ([0, 10**9], IndexError),
        ([-(10**9)], IndexError),
        ([True], IndexError),
        ([0.5], TypeError),
        (np.ma.MaskedArray([0, 1], [False, True]), TypeError),
        ([[0]], TypeError),
        ("first", TypeError),
    ],
)
def test_places_that_do_not_fit_are_refused(dataset: Dataset, at: Any, error: type[Exception]) -> None:
    for flat in (dataset.transitions(["rewards"]), dataset.windows(4)):
        with pytest.raises(error):
            flat[at]


def test_chosen_columns_are_read_alone(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each row group once, whatever the order of the episodes."""
    read: list[tuple[Path, int, Any]] = []
    original = parquet.RowReader.decoded

    def noted(self: parquet.RowReader, path: Path, group: int, columns: Any) -> Any:
        read.append((path, group, columns))
        return original(self, path, group, columns)

    monkeypatch.setattr(parquet.RowReader, "decoded", noted)
    batch = load(dataset.path)[::-1].transitions(["rewards", "terminated"])[:2]
    assert ["rewards", "terminated"] == [*batch]
    assert {("reward",)} == {columns for *_, columns in read}
    assert len(set(read)) == len(read) > 5


def test_infos_come_beside_the_steps(dataset: Dataset) -> None:
    """Masked where steps lack them, also those that a selection lacks; a name without a column is an error."""
    batch = dataset.to_episode_batch()
    names = ["env_info.x", "agent_info.grid", "env_info.text"]
    steps = dataset.transitions(["rewards"], infos=names)[10:30]
    assert ["rewards", *names] == [*steps]
    for name in names:
        group, _, key = name.partition(".")
        wanted = getattr(batch, f"{group}s")[key][10:30]
        assert_same(np.ma.getdata(wanted), np.ma.getdata(steps[name]))
        np.testing.assert_array_equal(np.ma.getmaskarray(wanted), np.ma.getmaskarray(steps[name]))
    first_step = dataset[1:2].transitions([], infos=["env_info.grid"])[1:5]["env_info.grid"]
    assert (4, 2, 3) == first_step.shape
    assert first_step.mask.all()
    for name in ("env_info.nothing", "episode_info.x", "x"):
        with pytest.raises(ValueError, match=f"'{name}'; choose from: env_info.grid, "):
            dataset.transitions(infos=[name])


def test_other_columns_are_refused(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="'obs'; choose from observations, actions"):
        dataset.transitions(["obs"])
    with pytest.raises(ValueError, match="choose from observations, actions, rewards"):
        dataset.windows(3, columns=["terminated"])


def test_no_episode_gives_no_item(dataset: Dataset) -> None:
    nothing = dataset[[]]
    assert 0 == len(nothing.transitions()) == len(nothing.windows(5)) == len([*nothing.iter_batches(4)])


def test_no_episode_has_no_info(dataset: Dataset) -> None:
    """Those that have a column may be asked for, as of any selection."""
    nothing, names = dataset[[]], ["env_info.x"]
    assert 0 == len(nothing.transitions(infos=names)) == len([*nothing.iter_batches(4, infos=names)])
    assert 0 == len(nothing.filter("env_info.x > 0"))


def test_steps_that_do_not_fit_into_memory_are_an_error(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(parquet.RowReader, "decoded", refuse)
    with raises(StorageError, "out-of-memory") as caught:
        dataset.transitions()
    assert "iter_batches" in str(caught.value.hint)


# Windows.


def windows_of(batch: EpisodeBatch, length: int, stride: int, pad: str | None) -> list[dict[str, Any]]:
    """Return the windows of a batch by plain loops: rewards, time steps, returns to go, and observations."""
    found = []
    for episode in batch.split():
        n = len(episode.rewards)
        for at in range(0, n, stride):
            first = at - length + 1 if pad == "before" else at
            steps = [step for step in range(first, first + length) if 0 <= step < n]
            if pad is None and len(steps) < length:
                continue
            head = sum(step < 0 for step in range(first, first + length))
            out = {
                "rewards": np.zeros(length),
                "timesteps": np.zeros(length, np.int64),
                "returns_to_go": np.zeros(length),
                "mask": np.zeros(length, bool),
                "frames": np.zeros((length, 2, 3)),
                "mission": np.full(length, "", object),
            }
            for place, step in enumerate(steps, start=head):
                out["rewards"][place] = episode.rewards[step]
                out["timesteps"][place] = step
                out["returns_to_go"][place] = episode.rewards[step:].sum()
                out["mask"][place] = True
                for key in ("frames", "mission"):
                    out[key][place] = episode.observations[key][step]
            found.append(out)
    return found


@pytest.mark.parametrize("pad", ["after", "before", None])
@pytest.mark.parametrize(("length", "stride"), [(1, 1), (5, 1), (20, 7), (40, 3)])
def test_windows_are_those_of_plain_loops(dataset: Dataset, length: int, stride: int, pad: Any) -> None:
    part = dataset[5:60:2]
    wanted = windows_of(part.to_episode_batch(), length, stride, pad)
    windows = pickle.loads(pickle.dumps(part.windows(length, stride, pad=pad, returns_to_go=True)))
    assert len(wanted) == len(windows)
    places = [*range(len(wanted)), -1] if wanted else []
    batch = windows[places]
    assert {*FLAT, "returns_to_go", "timesteps", "mask"} == {*batch}
    batch |= {key: batch["observations"][key] for key in ("frames", "mission")}
    for name in wanted[0] if wanted else ():
        values = np.stack([wanted[place][name] for place in places])
        np.testing.assert_allclose(
            values.astype(float), batch[name].astype(float)
        ) if values.dtype != object else np.testing.assert_array_equal(values, batch[name])
        assert values.dtype == batch[name].dtype


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint64])
def test_windows_are_chosen_by_any_integers(dataset: Dataset, dtype: Any) -> None:
    """The steps of a window need not fit into the integers by which it is chosen."""
    windows = dataset[[70] * 40].windows(4)
    for name, values in windows[[3, 120]].items():
        assert_same(values, windows[np.array([3, 120], dtype)][name])


@pytest.mark.parametrize("asked", [{"length": 0}, {"length": 3, "stride": 0}, {"length": 3, "pad": "left"}])
def test_windows_that_make_no_sense_are_refused(dataset: Dataset, asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least 1, and pad"):
        dataset.windows(**asked)


# Batches from the files.


def joined(batches: list[dict[str, Any]]) -> dict[str, Any]:
    return map_tree(lambda *leaves: np.concatenate(leaves), *batches)  # type: ignore[no-any-return]


def test_batches_in_order_are_all_transitions(dataset: Dataset) -> None:
    """Of the asked size, but for the last one; episodes straddle row groups, and batches straddle buffers."""
    wanted = expected(dataset.to_episode_batch())
    for n in (1000, 64, 7):
        batches = [*dataset.iter_batches(n)]
        sizes = [len(batch["rewards"]) for batch in batches]
        assert {n} == set(sizes[:-1])
        assert 0 < sizes[-1] <= n
        for name, values in joined(batches).items():
            assert_same(wanted[name], values)


def test_shuffled_batches_hold_each_transition_once(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an order that the seed decides, over row groups and in a buffer of some of them; infos come along."""
    monkeypatch.setattr("rollout_cli.dataset.batches.BUFFER_BYTES", 40_000)
    names = ["rewards", "next_observations"], ["env_info.x"]
    orders: dict[int, Any] = {}
    for seed in (0, 0, 1):
        batches = [*dataset.iter_batches(50, seed, *names)]
        rewards = np.concatenate([batch["rewards"] for batch in batches])
        assert orders.setdefault(seed, rewards.tolist()) == rewards.tolist()
        infos = [value for batch in batches for value in batch["env_info.x"].tolist()]
        frames = np.concatenate([batch["next_observations"]["frames"] for batch in batches])
    assert orders[0] != orders[1]
    batch = dataset.to_episode_batch()
    # Each reward was drawn, so it tells which step it is of.
    order = np.argsort(batch.rewards)[np.argsort(np.argsort(rewards))]
    assert sorted(order) == [*range(len(rewards))]
    np.testing.assert_array_equal(batch.next_observations["frames"][order], frames)
    assert batch.env_infos["x"][order].tolist() == infos
    distances = np.abs(np.diff(order))
    assert np.median(distances) > 50  # Not row groups alone: their rows have about 50 places.


def test_an_info_of_other_types_in_a_few_steps_is_objects_in_their_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that joins such steps with others has the values of both."""
    episodes = [
        chunks.episode(
            n, 20, env_info=lambda n, s: {"at": None if (n, s) == (30, 4) else np.full(3, s + 20.0 * n)}
        )
        for n in range(60)
    ]
    write_dataset(tmp_path / "out", episodes, limits=SMALL)
    monkeypatch.setattr("rollout_cli.dataset.batches.BUFFER_BYTES", 1)
    batches = [*load(tmp_path / "out").iter_batches(64, columns=["rewards"], infos=["env_info.at"])]
    found = [None if at is None else [*at] for batch in batches for at in batch["env_info.at"]]
    assert [None if at == 604 else [at] * 3 for at in range(1200)] == found


def test_a_batch_of_nothing_is_refused(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="has 0 steps"):
        dataset.iter_batches(0)


# Episodes.


def test_sampled_episodes_follow_from_the_seed(dataset: Dataset) -> None:
    ids = [dataset.sample_episodes(40, seed).episodes["episode_id"].to_pylist() for seed in (3, 3, 4)]
    assert ids[0] == ids[1] != ids[2]
    assert 40 == len(set(ids[0]))
    assert 0 == len(dataset.sample_episodes(0))
    for n in (-1, 120):
        with pytest.raises(ValueError, match=f"sample {n} of 119 episodes"):
            dataset.sample_episodes(n)


def test_an_episodes_next_observations_are_its_batchs(dataset: Dataset) -> None:
    for episode in dataset[:12]:
        assert_same(episode.batch.next_observations, episode.next_observations)


def test_an_episodes_arrays_are_its_own(dataset: Dataset) -> None:
    """What is written to them stays with this episode."""
    one, other = dataset[30], dataset[30]
    one.rewards[:] = 7
    one.observations["frames"][:] = 7
    assert {7.0} == set(one.rewards.tolist())
    assert other.rewards.tolist() == dataset[30].rewards.tolist() == rich_episodes()[30].rewards.tolist()
    assert 7 != dataset[30].observations["frames"][0, 0, 0]


@pytest.mark.parametrize("read", [lambda part: part[0], lambda part: next(iter(part))])
def test_the_arrays_of_an_episodes_batch_are_its_own(dataset: Dataset, read: Any) -> None:
    """Infos too: what is written to them is not in what is read next."""
    part = load(dataset.path)[30:]

    def arrays() -> list[Any]:
        batch = read(part).batch
        trees = (batch.observations, batch.actions, batch.last_observations)
        infos = (batch.env_infos, batch.agent_infos, batch.episode_infos)
        leaves = [leaf for tree in trees for leaf in tree_leaves(tree)]
        return [*leaves, batch.rewards, batch.lengths, *(each for group in infos for each in group.values())]

    before = repr([values.tolist() for values in arrays()])
    for values in arrays():
        values[...] = 7
    assert before == repr([values.tolist() for values in arrays()])


def test_infos_while_iterating_are_those_of_each_episode(dataset: Dataset) -> None:
    """Not those that another one of its file has."""
    for one in dataset[:20]:
        for group in ("env_infos", "agent_infos", "episode_infos"):
            infos = getattr(one, group)
            assert {*getattr(dataset[one.id].batch, group)} == {*dict(infos)}
            assert len(infos) == len([*infos])


def test_an_info_is_read_by_name_without_the_others(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one without a column; its keys are those that the episode has."""
    asked: list[Any] = []
    original = parquet.RowReader.decoded

    def noted(self: parquet.RowReader, path: Path, group: int, columns: Any) -> Any:
        asked.append(columns)
        return original(self, path, group, columns)

    monkeypatch.setattr(parquet.RowReader, "decoded", noted)
    episode = load(dataset.path)[3]
    values = episode.env_infos["x"]
    assert asked == [("env_info.x", "env_info_extra")]
    assert values.tolist() == episode.batch.env_infos["x"].tolist()
    for infos in (episode.env_infos, episode.agent_infos, episode.episode_infos):
        assert len(infos) == len([*infos]) > 2
    assert {*episode.batch.env_infos} == {*episode.env_infos}
    for key, wanted in episode.batch.episode_infos.items():
        np.testing.assert_array_equal(wanted, episode.episode_infos[key])
    assert "x" in episode.agent_infos
    assert "nothing" not in episode.agent_infos
    assert "<EpisodeInfos env_info: " in repr(episode.env_infos)
    deep = [one.env_infos["rare.deep"] for one in dataset if "rare.deep" in one.env_infos]
    assert len(deep) == len([n for n in range(120) if n % 7 == 3])
