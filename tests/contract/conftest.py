"""The backends that the whole suite runs over, and the check that none of them leaves a process behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from rollout_cli.samplers import LocalSampler, MultiprocessingSampler, Sampler, shared_ring
from tests.support.marked import workers_below

MakeSampler = Callable[..., Sampler]
"""Takes the arguments of a sampler; its workers end with the test."""

BACKENDS = ("local", "forkserver", "spawn", "ring")
"""The last one is forkserver with all messages in shared memory, as far as there is room in a small piece of it."""


def running_workers() -> list[psutil.Process]:
    """Return the worker processes below this one."""
    return workers_below(psutil.Process())


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "ring":
        monkeypatch.setattr(shared_ring, "RING_MIN_BYTES", 1)
        monkeypatch.setattr(shared_ring, "RING_BYTES", 1 << 14)
    return str(request.param)


@pytest.fixture
def make_sampler(backend: str) -> Iterator[MakeSampler]:
    """Give a function that makes samplers of the backend; afterwards no worker process may be left."""
    with ExitStack() as stack:

        def make(*args: Any, **options: Any) -> Sampler:
            return stack.enter_context(sampler_of(backend, *args, **options))

        yield make
    assert [] == running_workers()


def sampler_of(backend: str, *args: Any, **options: Any) -> Sampler:
    """Return a sampler of a backend, with root seed 5 and two workers unless told otherwise."""
    if not any(name in options for name in ("worker_factory", "n_workers")):
        options = {"n_workers": 2, "seed": 5, **options}
    if backend == "local":
        return LocalSampler(*args, **options)
    method = "forkserver" if backend == "ring" else backend
    return MultiprocessingSampler(*args, start_method=method, **options)  # type: ignore[arg-type]
