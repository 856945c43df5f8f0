"""torch's DataLoader over transitions and windows, in this process and in forked and spawned workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from rollout_cli.dataset.reader import Dataset, load
from tests.helpers.chunks import episode
from tests.helpers.writing import SMALL, write_dataset

N_STEPS = 40 * 30


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("loaders") / "out"
    write_dataset(path, [episode(number, 30) for number in range(40)], limits=SMALL)
    return load(path)


WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 2, "multiprocessing_context": "spawn"},
]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("workers", WORKERS, ids=["here", "fork", "spawn"])
def test_a_loader_gives_each_transition_once(dataset: Dataset, workers: dict[str, Any]) -> None:
    """A batch is one call; its arrays become tensors of the same values, which may be written to."""
    steps = dataset.transitions()
    loader = DataLoader(
        steps, sampler=BatchSampler(RandomSampler(steps), 256, drop_last=False), batch_size=None, **workers
    )
    batches = list(loader)
    assert [256] * 4 + [N_STEPS - 4 * 256] == [len(batch["rewards"]) for batch in batches]
    assert [*steps[:1]] == [*batches[0]]
    rewards = torch.cat([batch["rewards"] for batch in batches]).numpy()
    assert sorted(rewards.tolist()) == sorted(steps[:]["rewards"].tolist())
    assert torch.float32 == batches[0]["observations"].dtype
    assert torch.bool == batches[0]["terminated"].dtype
    batches[0]["observations"] += 1


def test_a_loader_gives_windows(dataset: Dataset) -> None:
    windows = dataset.windows(20, returns_to_go=True)
    loader = DataLoader(
        windows, sampler=BatchSampler(SequentialSampler(windows), 64, drop_last=False), batch_size=None
    )
    batch = next(iter(loader))
    assert (64, 20, 4) == tuple(batch["observations"].shape)
    np.testing.assert_array_equal(windows[:64]["mask"], batch["mask"].numpy())


def test_a_loader_that_batches_by_itself_asks_for_all_items_at_once(dataset: Dataset) -> None:
    """With `collate_fn` it gets the batch as it is."""
    steps = dataset.transitions(["rewards"])
    loader = DataLoader(steps, batch_size=300, collate_fn=lambda batch: batch)
    assert [300] * 4 == [len(batch["rewards"]) for batch in loader]


def test_a_stream_is_an_iterable_of_tensors(dataset: Dataset) -> None:
    """`torch.as_tensor` takes the arrays of a batch from the files."""
    n = sum(len(torch.as_tensor(batch["observations"])) for batch in dataset.iter_batches(100, shuffle=0))
    assert N_STEPS == n
