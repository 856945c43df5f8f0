"""The learner of docs/learning.md learns, and one seed gives one learning curve."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from rollout_cli import LocalSampler
from tests.cli.test_docs import blocks

N_COMPARED = 4


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The program that the page shows, as a module."""
    (body,) = [body for language, body in blocks("docs/learning.md") if language == "python"]
    path = tmp_path_factory.mktemp("learning") / "learn.py"
    path.write_text(body)
    spec = importlib.util.spec_from_file_location("learn", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    n_threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(n_threads)


@pytest.fixture(scope="module")
def curve(program: ModuleType) -> list[float]:
    """The learning curve with two workers."""
    return list(program.learn(seed=0, n_workers=2, n_iterations=18))


@pytest.mark.timeout(300)
def test_the_learner_reaches_400(curve: list[float]) -> None:
    """PPO balances CartPole within 18 iterations, starting from a random policy."""
    assert curve[0] < 50
    assert max(curve) >= 400


@pytest.mark.timeout(300)
def test_one_worker_gives_the_same_curve(program: ModuleType, curve: list[float]) -> None:
    """The number of workers changes no return."""
    assert curve[:N_COMPARED] == program.learn(seed=0, n_workers=1, n_iterations=N_COMPARED)


@pytest.mark.timeout(300)
def test_a_local_sampler_gives_the_same_curve(
    program: ModuleType, curve: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does the sampler, which leaves the learner's own random numbers alone."""
    monkeypatch.setattr(program, "MultiprocessingSampler", LocalSampler)
    assert curve[:N_COMPARED] == program.learn(seed=0, n_workers=1, n_iterations=N_COMPARED)


@pytest.mark.timeout(300)
def test_another_seed_gives_another_curve(program: ModuleType, curve: list[float]) -> None:
    """The seed is used."""
    assert curve[:2] != program.learn(seed=1, n_workers=2, n_iterations=2)
