"""Environments whose observations, rewards and flags are tensors of torch or arrays of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy
import numpy as np
import pytest
import torch

from tests.workers import worlds


def with_gradient(values: Any) -> Any:
    """Return a tensor that numpy refuses, since it has a gradient; of flags one without."""
    tensor = torch.as_tensor(values)
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def one_element(values: Any) -> Any:
    """Return a tensor (1,) of a number, as environments with rows of their own return for one."""
    return torch.as_tensor(np.atleast_1d(values))


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "torch": torch.as_tensor,
    "torch, with a gradient": with_gradient,
    "torch, one element": one_element,
    "JAX": jax.numpy.asarray,
    "JAX, one element": jax.numpy.atleast_1d,
}


@pytest.mark.parametrize("kind", worlds.KINDS)
@pytest.mark.parametrize("library", ARRAYS)
def test_arrays_are_taken(kind: str, library: str) -> None:
    """By every kind of worker, as the same numbers of numpy are."""
    worlds.assert_arrays_are_taken(kind, ARRAYS[library])
