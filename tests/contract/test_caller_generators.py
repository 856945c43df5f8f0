"""LocalSampler runs in the caller's process and leaves its random generators alone; nor does the caller disturb it."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rollout_cli.envs import describe_env
from rollout_cli.errors import EnvError
from rollout_cli.samplers import Episodes, LocalSampler, MinTimesteps, local_sampler
from tests.contract.making import noisy, numbers_of, serial
from tests.support.envs import ChainEnv, FailingEnv
from tests.support.generators import StandInGenerator
from tests.support.policies import GaragePolicy


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> StandInGenerator:
    """Stand in for a torch that is loaded."""
    generator = StandInGenerator()
    module: Any = types.ModuleType("torch")
    module.default_generator, module.Generator = generator, StandInGenerator
    monkeypatch.setitem(sys.modules, "torch", module)
    return generator


def draw_from_torch() -> float:
    return float(sys.modules["torch"].default_generator.draw())


class DrawingPolicy(GaragePolicy):
    """Draws from all three global generators."""

    def place(self, observation: Any, row: int) -> float:
        return (random.random() + float(np.random.random()) + draw_from_torch()) % 1.0


class DrawingEnv(ChainEnv):
    """Draws from all three when it is built, reset, stepped and closed."""

    def __init__(self) -> None:
        super().__init__()
        self.draw()

    def draw(self) -> float:
        return draw_from_torch() + random.random() + float(np.random.random())

    def observe(self) -> Any:
        observation = super().observe()
        observation[2] = self.draw()
        return observation

    def close(self) -> None:
        self.draw()


def states() -> tuple[Any, ...]:
    """Return the states of the three generators as values that can be compared."""
    numpy_state: Any = np.random.get_state()
    return (
        random.getstate(),
        tuple(map(str, numpy_state)),
        numpy_state[1].tolist(),
        sys.modules["torch"].default_generator.get_state(),
    )


def drawing_sampler(env: Any = DrawingEnv, **options: Any) -> LocalSampler:
    return LocalSampler(DrawingPolicy(describe_env(ChainEnv())), env, n_workers=2, seed=5, **options)


def test_every_verb_leaves_the_callers_generators_alone() -> None:
    """Building, sampling, updating, streaming, closing a stream and shutting down: no state of the caller's changes."""
    sampler = drawing_sampler()
    before = states()
    verbs: list[Callable[[], object]] = [
        sampler.wait_until_started,
        lambda: sampler.obtain_samples(0, 50, None),
        lambda: sampler.obtain_exact_episodes(3, None),
        lambda: sampler.obtain_samples(0, 50, {"gain": 0.5}, DrawingEnv),
        lambda: list(sampler.stream(Episodes(0, 4))),
        sampler.shutdown_worker,
        sampler.start_worker,
    ]
    for verb in verbs:
        verb()
        assert before == states()
    sampler.shutdown_worker()


def test_between_the_chunks_of_a_stream_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the caller has its turn, its generators stand where it left them, whatever it draws meanwhile."""
    monkeypatch.setattr(local_sampler, "FLUSH_ROWS", 2000)
    with drawing_sampler() as sampler:
        expected = states()
        seen = []
        for chunk in sampler.stream(MinTimesteps(9000)):
            assert expected == states()
            seen.append(chunk.n_episodes)
            random.random()
            np.random.random()
            draw_from_torch()
            expected = states()
    assert len(seen) >= 3
    assert expected == states()


def test_the_caller_does_not_disturb_the_episodes() -> None:
    """What the caller draws between chunks and calls, and how it seeds, cannot be seen in the episodes."""
    policy = DrawingPolicy(describe_env(ChainEnv()))
    expected = serial(MinTimesteps(5000), DrawingEnv(), policy)
    random.seed(77)
    np.random.seed(78)
    chunks = []
    with drawing_sampler() as sampler:
        for chunk in sampler.stream(MinTimesteps(5000)):
            chunks.append(chunk)
            random.seed(len(chunks))
            np.random.random(len(chunks))
    assert expected.numbers.tolist() == numbers_of(chunks)
    observed = np.concatenate([chunk.observations[0] for chunk in chunks])
    assert expected.observations[0].tolist() == observed.tolist()
    assert expected.agent_infos.to_arrays()["place"].tolist() == [
        place for chunk in chunks for place in chunk.agent_infos.to_arrays()["place"].tolist()
    ]


def test_an_error_leaves_the_callers_generators_alone() -> None:
    """They are put back whatever is raised, and when a stream is closed in the middle."""
    with LocalSampler(noisy(ChainEnv()), FailingEnv("step", 5), n_workers=1, seed=5) as sampler:
        before = states()
        with pytest.raises(EnvError):
            sampler.obtain_samples(0, 1000, None)
        assert before == states()
    with drawing_sampler() as sampler:
        stream = sampler.stream(MinTimesteps(100_000))
        next(stream)
        stream.close()
        assert before == states()


class InterruptedOnceEnv(ChainEnv):
    """Is interrupted as by Ctrl-C in the middle of its fifth step."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 5:
            raise KeyboardInterrupt
        return super().step(action)


def test_an_interrupt_leaves_the_callers_generators_alone() -> None:
    """Ctrl-C in an episode reaches the caller, with its own generators; the episode is run again, from its start."""
    with LocalSampler(noisy(ChainEnv()), InterruptedOnceEnv(), n_workers=1, seed=5) as sampler:
        before = states()
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_samples(0, 100, None)
        assert before == states()
        batch = sampler.obtain_samples(0, 100, None)
    expected = serial(MinTimesteps(100), ChainEnv())
    assert expected.numbers.tolist() == batch.numbers.tolist()
    assert expected.observations[0].tolist() == batch.observations.tolist()


def test_two_samplers_at_once() -> None:
    """Two local samplers whose streams take turns do not disturb each other."""
    policy = DrawingPolicy(describe_env(ChainEnv()))
    expected = serial(MinTimesteps(5000), DrawingEnv(), policy)
    with drawing_sampler() as one, drawing_sampler() as other:
        pairs = list(zip(one.stream(MinTimesteps(5000)), other.stream(MinTimesteps(5000)), strict=False))
    for side in range(2):
        observed = np.concatenate([pair[side].observations[0] for pair in pairs])
        assert expected.observations[0][: len(observed)].tolist() == observed.tolist()
