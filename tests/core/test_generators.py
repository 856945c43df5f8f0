"""EpisodeSeeder: whatever a policy or environment draws from follows from (root, number), whichever worker runs it."""

from __future__ import annotations

import functools
import importlib.util
import random
from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.seeding.generators import MAX_OBJECTS, EpisodeSeeder
from rollout_cli.seeding.seeds import seed_globals

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None


class Slotted:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __call__(self) -> float:
        return float(self.rng.random())


class Holder:
    """Holds some object, and draws from it."""

    def __init__(self, item: Any, draw: Callable[[Any], float]) -> None:
        self.item, self.draw = item, draw

    def __call__(self) -> float:
        return float(self.draw(self.item))


def _closure() -> Callable[[], float]:
    rng = np.random.default_rng()
    return lambda: float(rng.random())


def _with_default(rng: Any = None) -> float:
    return float(rng.random())


def _made_with_default() -> Callable[[], float]:
    def draw(rng: Any = np.random.default_rng()) -> float:  # noqa: B008
        return float(rng.random())

    return draw


def _torch_generator() -> Callable[[], float]:
    generator = torch.Generator()
    generator.seed()
    return Holder(generator, lambda item: torch.rand((), generator=item))


HOLDERS: dict[str, Callable[[], Callable[[], float]]] = {
    "slots": Slotted,
    "closure": _closure,
    "default": _made_with_default,
    "partial": lambda: functools.partial(_with_default, np.random.default_rng()),
    "bound method": lambda: np.random.default_rng().random,
    "nested": lambda: Holder(
        {"a": [({1: np.random.default_rng()},)]}, lambda item: item["a"][0][0][1].random()
    ),
    "space": lambda: Holder(
        spaces.Dict({"x": spaces.Box(0, 1, (), np.float64)}), lambda item: item.sample()["x"]
    ),
    "legacy numpy": lambda: Holder(np.random.RandomState(), lambda item: item.random()),
    "legacy over PCG64": lambda: Holder(np.random.RandomState(np.random.PCG64()), lambda item: item.random()),
    "Philox": lambda: Holder(np.random.Generator(np.random.Philox()), lambda item: item.random()),
    "python": lambda: Holder(random.Random(), lambda item: item.random()),
}

if torch is not None:

    class _TorchNoise(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.default_rng()

        def forward(self, _: Any = None) -> float:
            return float(self.rng.random())

    HOLDERS["torch"] = _torch_generator
    HOLDERS["module"] = lambda: functools.partial(
        torch.nn.Sequential(torch.nn.Identity(), _TorchNoise()), None
    )


def drawn(holder: Callable[..., float], number: int, *, root: int = 1, name: str = "policy") -> list[float]:
    """Return three draws of episode `number`."""
    seeder = EpisodeSeeder(root)
    seeder.watch(**{name: holder})
    seeder.begin(number)
    return [holder() for _ in range(3)]


@pytest.mark.parametrize("name", HOLDERS)
def test_a_generator_is_found_wherever_it_is_held(name: str) -> None:
    """Two objects of one kind, with generators in different states, draw the same in one episode, and else others."""
    first = drawn(HOLDERS[name](), 5)
    other = HOLDERS[name]()
    assert first == drawn(other, 5)
    assert [] == [number for number in first if number in drawn(other, 6) + drawn(other, 5, root=2)]


def test_several_generators_are_independent() -> None:
    """Each has a stream of its own, of policy and environment too; equal ones would explore alike."""
    pair = Holder([np.random.default_rng(), random.Random()], lambda item: item[0].random())
    env = Holder([np.random.default_rng()], lambda item: item[0].random())
    seeder = EpisodeSeeder(1)
    seeder.watch(policy=pair, env=env)
    seeder.begin(0)
    assert 3 == len(seeder._streams)
    assert 3 == len({pair(), pair.item[1].random(), env()})


def test_the_global_generators() -> None:
    """They, and the system's, are nobody's own; `begin` seeds them, and `seed_found` leaves them."""
    seed_globals(3, 4)
    expected = random.random()
    seeder = EpisodeSeeder(3)
    inner: Any = random.random
    torchs = [torch.default_generator] if torch else []
    seeder.watch(
        policy=[inner.__self__, np.random.rand, random.SystemRandom(), *torchs, np.random.mtrand._rand]
    )
    assert [] == seeder._streams
    seeder.begin(4)
    seeder.seed_found(4)
    assert expected == random.random()


class LazyEnv(gymnasium.Env[Any, Any]):
    """Makes one generator at its first reset, in front of the one that it had."""

    observation_space = spaces.Box(0, 1, (), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.lazy: Any = None
        self.own = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.lazy = self.lazy or np.random.default_rng()
        return self.own.random(), {}


def test_what_appears_at_the_first_reset_changes_no_other_stream() -> None:
    """A worker that has met a late generator seeds the early ones as one that has not; the late one is seeded too."""
    fresh, used = LazyEnv(), LazyEnv()
    seeders = [EpisodeSeeder(1), EpisodeSeeder(1)]
    for seeder, env in zip(seeders, (fresh, used), strict=True):
        seeder.watch(env=env)
    for _ in range(2):
        used.reset(seed=0)
        seeders[1].watch(env=used)
    for seeder in seeders:
        seeder.begin(7)
    assert fresh.reset(seed=3) == used.reset(seed=3)
    third = LazyEnv()
    seeder = EpisodeSeeder(1)
    seeder.watch(env=third)
    third.reset()
    seeder.watch(env=third)
    seeder.begin(7)
    seeders[1].begin(7)
    assert third.lazy.random() == used.lazy.random()


class Nested:
    """Has two objects with a generator each."""

    def __init__(self) -> None:
        self.first = Holder(np.random.default_rng(), lambda rng: rng.random())
        self.second = Holder(np.random.default_rng(), lambda rng: rng.random())

    def __call__(self) -> float:
        return self.first() - self.second()


def test_reading_the_attributes_of_an_object_changes_no_stream() -> None:
    """Python makes the `__dict__` of an instance when it is read, as pickle does: one more object on the way."""
    read = Nested()
    vars(read.first)
    assert drawn(Nested(), 2) == drawn(read, 2)


def test_another_object_takes_the_place_of_the_watched_one() -> None:
    """After an update the old policy is not seeded any more, and the new one's streams are those of a first search."""
    old, new, same = Slotted(), Slotted(), Slotted()
    seeder = EpisodeSeeder(1)
    seeder.watch(policy=old)
    seeder.watch(policy=new)
    assert 1 == len(seeder._streams)
    seeder.begin(2)
    assert drawn(same, 2) == [new() for _ in range(3)]


def test_spaces_that_never_drew_and_those_that_were_seeded_anew() -> None:
    """The generator that a space makes at its first draw, or in `seed`, is the one that is seeded."""
    space = spaces.Discrete(1_000_000)
    policy = Holder(space, lambda item: item.sample())
    first = drawn(policy, 3)
    seeder = EpisodeSeeder(1)
    seeder.watch(policy=policy)
    space.seed(99)
    seeder.begin(3)
    assert first == [policy() for _ in range(3)]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3", "HalfCheetah-v5"])
@pytest.mark.filterwarnings("ignore")
def test_real_environments(env_id: str) -> None:
    """The search survives their C and SWIG objects, before and after steps, and disturbs no episode."""
    try:
        envs = watched, _ = [gymnasium.make(env_id) for _ in range(2)]
    except gymnasium.error.DependencyNotInstalled as error:
        pytest.skip(str(error))
    seeder = EpisodeSeeder(1)
    rewards: list[list[float]] = [[], []]
    for env, seen in zip(envs, rewards, strict=True):
        env.reset(seed=3)
        for step in range(20):
            if env is watched:
                seeder.watch(env=env)
            seen.append(float(env.step(env.action_space.sample() * 0)[1]) if step else 0.0)
    assert rewards[0] == rewards[1]
    assert len(seeder._streams) >= 2
    for env in envs:
        env.close()


class Hostile:
    """Raises, or pretends, wherever it is asked."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    @property
    def np_random(self) -> Any:
        raise RuntimeError("np_random")


class HostileSpace(spaces.Discrete):
    @property
    def np_random(self) -> Any:
        raise RuntimeError("np_random")


class HostileRandom(random.Random):
    armed = False

    def seed(self, *args: Any, **kwargs: Any) -> None:
        if self.armed:
            raise RuntimeError("seed")
        super().seed(*args, **kwargs)


def test_strange_objects_raise_nothing() -> None:
    """Objects that raise at any touch are passed by, and what stands behind them is still seeded."""
    hostile = HostileRandom()
    hostile.armed = True
    rng = np.random.default_rng()
    policy = Holder(
        [Hostile(), HostileSpace(3), hostile, Hostile, {rng}, rng], lambda item: item[-1].random()
    )
    assert drawn(policy, 1) == drawn(policy, 1)


def test_a_huge_replay_buffer_costs_no_time_and_hides_nothing_near() -> None:
    """The search is bounded, and the nearest come first."""
    policy = Holder([[object() for _ in range(10 * MAX_OBJECTS)], Slotted()], lambda item: item[1]())
    assert drawn(policy, 1) == drawn(policy, 1)
    seeder = EpisodeSeeder(1)
    seeder.watch(policy=[[np.random.default_rng(), *(object() for _ in range(10 * MAX_OBJECTS))]])
    assert [] == seeder._streams


def test_copies_in_other_processes_have_the_same_streams() -> None:
    """The order in which generators are met does not depend on the process: a pickled copy draws the same."""
    policy = Holder(
        [np.random.default_rng() for _ in range(5)], lambda item: sum(rng.random() for rng in item)
    )
    copy: Any = cloudpickle.loads(cloudpickle.dumps(policy))
    assert drawn(policy, 4) == drawn(copy, 4)
