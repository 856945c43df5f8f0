"""The real torch where it is installed, modules to adapt, and the spaces that they act in."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install torch to run these"
)

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,), np.float64)
DISCRETE = EnvSpec(OBSERVATIONS, spaces.Discrete(4, start=2))
BOX = EnvSpec(OBSERVATIONS, spaces.Box(-1.0, 1.0, (2,), np.float32))


@pytest.fixture
def torch() -> Any:
    """Give torch, on one thread, with the same weights for each test."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch


def module_of(torch: Any, forward: Callable[[Any], Any]) -> Any:
    """Return a module whose forward is `forward`."""

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, observations: Any) -> Any:
            return forward(observations)

    return Module()


def samples(space: spaces.Space[Any], count: int) -> list[Any]:
    space.seed(0)
    return [space.sample() for _ in range(count)]


def sequential(torch: Any) -> Any:
    """Return a network of nested Sequentials, in eval mode."""
    inner = torch.nn.Sequential(torch.nn.Linear(5, 5, bias=False), torch.nn.LayerNorm(5), torch.nn.Dropout(0.5))
    tanh = torch.nn.Tanh()
    return torch.nn.Sequential(torch.nn.Linear(3, 5), tanh, inner, tanh, torch.nn.Linear(5, 4)).eval()
