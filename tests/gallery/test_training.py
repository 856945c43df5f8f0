"""What is collected trains: a clone of an expert plays as long as it does, a sequence model learns from windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from rollout_cli import CollectConfig, collect, load
from rollout_cli.dataset.reader import Dataset
from rollout_cli.options.types import EpisodeRange


def expert(observation: Any) -> int:
    """Balance CartPole: push towards the side to which the pole falls."""
    return int(np.dot(observation, (0.1, 0.5, 2.0, 1.5)) > 0)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return collected(expert, 20, tmp_path_factory.mktemp("training"))


def collected(policy: Any, episodes: int, folder: Path, **options: Any) -> Dataset:
    (folder / "policy.pkl").write_bytes(cloudpickle.dumps(policy))
    spec = str(folder / "policy.pkl")
    collect(
        CollectConfig(
            policy=spec,
            episodes=EpisodeRange(0, episodes),
            seed=0,
            workers=1,
            output=folder / "out",
            **options,
        )
    )
    return load(folder / "out")


def test_a_clone_plays_as_long_as_its_expert(dataset: Dataset, tmp_path: Path) -> None:
    assert np.mean(dataset.episodes["return"]) > 480
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    steps = dataset.transitions()
    loader = DataLoader(
        steps, sampler=BatchSampler(RandomSampler(steps), 256, drop_last=False), batch_size=None
    )
    for _ in range(10):
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(net(batch["observations"]), batch["actions"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    played = collected(net, 10, tmp_path, deterministic=True)
    assert np.mean(played.episodes["return"]) >= 400


def test_a_sequence_model_learns_from_windows(dataset: Dataset) -> None:
    """As in a Decision Transformer, returns-to-go, observations and earlier actions predict the action, causally."""
    torch.manual_seed(0)
    length = 20
    windows = dataset.windows(length, returns_to_go=True)
    embed = torch.nn.Linear(1 + 4 + 2, 32)
    block = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    head = torch.nn.Linear(32, 2)
    places = torch.nn.Parameter(torch.zeros(length, 32))
    optimizer = torch.optim.Adam([*embed.parameters(), *block.parameters(), *head.parameters(), places], 3e-3)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(length)
    losses = []
    rng = np.random.default_rng(0)
    for _ in range(100):
        batch = {
            name: torch.from_numpy(values)
            for name, values in windows[rng.integers(0, len(windows), 64)].items()
        }
        actions = torch.nn.functional.one_hot(batch["actions"], 2).float()
        earlier = torch.cat([torch.zeros_like(actions[:, :1]), actions[:, :-1]], 1)
        returns = batch["returns_to_go"].float().unsqueeze(-1) / 500
        tokens = embed(torch.cat([returns, batch["observations"], earlier], -1)) + places
        logits = head(block(tokens, src_mask=causal))
        mask = batch["mask"]
        loss = torch.nn.functional.cross_entropy(logits[mask], batch["actions"][mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.5 * losses[0]
