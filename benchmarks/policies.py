"""The policies that both sides of a comparison run: as functions of one observation, and in batches.

The command line accepts them as `benchmarks.policies:linear` etc.; the bare loops import them. Only the policies
that need torch import it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BALANCING = np.array([0.1, 0.3, 1.2, 0.8], np.float32)
"""Weights of (position, velocity, angle, angular velocity). Pushing right if the sum is positive lasts 500 steps."""

WIDTH = 64


def linear(observation: Array) -> int:
    """Balance CartPole with one dot product."""
    return int(BALANCING @ observation > 0)


class BatchedLinear:
    """The policy of `linear` for n observations at once."""

    def get_action(self, observation: Array) -> tuple[int, dict[str, Any]]:
        """Choose one action."""
        return linear(observation), {}

    def get_actions(self, observations: Array) -> tuple[Array, dict[str, Any]]:
        """Choose n actions, int64 (n,), for float32 (n, 4)."""
        return (observations @ BALANCING > 0).astype(np.int64), {}


def _balancing_layers() -> tuple[Array, Array, Array]:
    """Return the weights of a 4-64-64-2 tanh network that balances: random layers, and the last fitted to `linear`."""
    rng = np.random.default_rng(0)
    first = (rng.standard_normal((4, WIDTH)) * 0.5).astype(np.float32)
    second = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
    states = (rng.standard_normal((4096, 4)) * [1.0, 1.0, 0.15, 1.0]).astype(np.float32)
    hidden = np.tanh(np.tanh(states @ first) @ second)
    wanted = np.tanh(2 * states @ BALANCING)
    last = np.linalg.lstsq(hidden, wanted, rcond=None)[0].astype(np.float32)
    return first, second, np.stack([-last, last], axis=1)


_FIRST, _SECOND, _LAST = _balancing_layers()


def mlp(observation: Array) -> int:
    """Balance CartPole with a 64 x 64 network in numpy."""
    return int((np.tanh(np.tanh(observation @ _FIRST) @ _SECOND) @ _LAST).argmax())


class BatchedMlp:
    """The network of `mlp` for n observations at once."""

    def get_action(self, observation: Array) -> tuple[int, dict[str, Any]]:
        """Choose one action."""
        return mlp(observation), {}

    def get_actions(self, observations: Array) -> tuple[Array, dict[str, Any]]:
        """Choose n actions, int64 (n,), for float32 (n, 4)."""
        return (np.tanh(np.tanh(observations @ _FIRST) @ _SECOND) @ _LAST).argmax(axis=1), {}


def torch_mlp() -> Any:
    """Return an untrained 64 x 64 network that gives logits for two actions; sampled, episodes last about 22 steps."""
    import torch  # noqa: PLC0415  The import takes seconds and most cases do not need it.

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, WIDTH),
        torch.nn.Tanh(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.Tanh(),
        torch.nn.Linear(WIDTH, 2),
    )
    return net.eval()
