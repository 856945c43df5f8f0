"""Telling whether the global generators were drawn from, without the cost of looking at their whole state.

Most environments and policies never draw from `random` or `numpy.random`, but seeding these before each episode costs
as much as a step. So they sleep: they are seeded once, and a look at the place where each stands in its block of
numbers (the Mersenne twister makes 624 at a time) tells after an episode whether it was touched.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable

import numpy as np

from rollout_cli.seeding import SETUP, seed_global_generators, seed_torch

_INT = ctypes.sizeof(ctypes.c_int)
_BLOCK = 624

Look = tuple[int, int, int, int]
"""Where the two twisters stand."""


class TwisterProbe:
    """Reads the place of one Mersenne twister in its block, and one word of the block.

    Attributes:
        works: Whether both are where they are looked for, as a trial at the start showed. Where not, `moved` is always
            true, and its user must seed before every episode.

    Args:
        place: The address of the place, a C int.
        word: The address of a word of the block that a new block changes.
        seed: Seeds the generator; its state is then the same every time.
        draw: Draws from it, so that its place changes.
    """

    def __init__(self, place: int, word: int, seed: Callable[[int], object], draw: Callable[[], object]) -> None:
        self._place = ctypes.c_int.from_address(place)
        self._word = ctypes.c_uint32.from_address(word)
        self._rest = (0, 0)
        self.works = self._try(seed, draw)

    def _try(self, seed: Callable[[int], object], draw: Callable[[], object]) -> bool:
        states = []
        for trial in (0, 1, 0):
            seed(trial)
            seeded = (self._place.value, self._word.value)
            draw()
            states.append((seeded, (self._place.value, self._word.value)))
        seeded_places = [seeded[0] for seeded, _ in states]
        drawn_places = [drawn[0] for _, drawn in states]
        words_change = all(seeded[1] != drawn[1] for seeded, drawn in states)
        repeats = states[0] == states[2] != states[1]
        return seeded_places == [_BLOCK] * 3 and set(drawn_places) <= {1, 2} and words_change and repeats

    @property
    def cells(self) -> tuple[ctypes.c_int, ctypes.c_uint32]:
        """Return the two places in memory that are looked at."""
        return self._place, self._word

    def rest(self) -> None:
        """Remember the present state as untouched."""
        self._rest = self.look()

    def look(self) -> tuple[int, int]:
        """Return where it stands, to be compared with another look."""
        return self._place.value, self._word.value

    def excuse(self, before: tuple[int, int]) -> None:
        """Take what was drawn since a look as not drawn, if nothing was drawn before that look."""
        if self._rest == before:
            self.rest()

    def moved(self) -> bool:
        """Return whether something was drawn since `rest`."""
        return self._place.value != self._rest[0] or self._word.value != self._rest[1] or not self.works


def python_probe() -> TwisterProbe:
    """Return the probe of `random`'s generator, which is reseeded on the way."""
    # CPython keeps the place right behind the object's header, and the block behind it.
    place = id(random._inst) + object.__basicsize__  # noqa: SLF001
    return TwisterProbe(place, place + 2 * _INT, random.seed, random.random)


def numpy_probe() -> TwisterProbe:
    """Return the probe of `numpy.random`'s generator, which is reseeded on the way."""
    # numpy documents the address of a bit generator's state; its MT19937 keeps the block first and the place behind it.
    block = np.random.mtrand._rand._bit_generator.ctypes.state_address  # noqa: SLF001
    return TwisterProbe(block + _BLOCK * _INT, block + _INT, np.random.seed, np.random.random)


def _looker(one: TwisterProbe, other: TwisterProbe) -> Callable[[], Look]:
    """Return a look at both, which takes half as long as two."""
    (one_place, one_word), (other_place, other_word) = one.cells, other.cells
    return lambda: (one_place.value, one_word.value, other_place.value, other_word.value)


class TorchProbe:
    """Tells whether torch's default generator was drawn from, at the cost of a copy of its state."""

    def __init__(self) -> None:
        self._rest: bytes | None = None

    @property
    def is_resting(self) -> bool:
        """Return whether its state is known, as it is once torch is loaded."""
        return self._rest is not None

    def look(self) -> bytes | None:
        """Return its state; None where torch is not loaded."""
        torch = sys.modules.get("torch")
        return None if torch is None else torch.default_generator.get_state().numpy().tobytes()

    def rest(self) -> None:
        """Remember the present state as untouched."""
        self._rest = self.look()

    def moved(self) -> bool:
        """Return whether something was drawn since `rest`."""
        return self._rest is not None and self._rest != self.look()


class GlobalSeeder:
    """Seeds the global generators before episodes: always where somebody draws from them, else only at first.

    Attributes:
        look: Returns where `random` and `numpy.random` stand, to be compared with another look.

    Args:
        root_seed: The run's root seed.
    """

    def __init__(self, root_seed: int) -> None:
        self._root = root_seed
        self._probes = (python_probe(), numpy_probe())
        self.look = _looker(*self._probes)
        self._awake = not all(probe.works for probe in self._probes)
        self._torch: TorchProbe | None = None
        self.before_build()

    @property
    def awake(self) -> bool:
        """Return whether somebody draws from `random` or `numpy.random`, so that every episode is seeded."""
        return self._awake

    def let_torch_sleep(self, *, asleep: bool) -> None:
        """Say whether torch's default generator sleeps like the others; else it is seeded in every episode.

        For several environments whose episodes overlap: seeding it for one would change what the others draw.
        """
        self._torch = TorchProbe() if asleep else None

    def excuse(self, before: Look) -> None:
        """Let what was drawn since a look wake nobody."""
        for probe, seen in zip(self._probes, (before[:2], before[2:]), strict=True):
            probe.excuse(seen)

    def before_build(self) -> None:
        """Seed for one build or update."""
        seed_global_generators(self._root, SETUP)

    def watch(self) -> None:
        """Let the generators sleep, after builds that may have drawn from them."""
        self.before_build()
        for probe in self._probes:
            probe.rest()
        if self._torch is not None:
            self._torch.rest()
        self._awake = not all(probe.works for probe in self._probes)

    def begin_anew(self, number: int) -> None:
        """Seed everything from a number, whoever draws; what was drawn before wakes nobody any more."""
        seed_global_generators(self._root, number)
        for probe in self._probes:
            probe.rest()

    def begin(self, number: int | str) -> None:
        """Seed for one episode, unless nobody has ever drawn."""
        if self._awake:
            seed_global_generators(self._root, number)
        elif self._torch is None:
            seed_torch(self._root, number)
        elif not self._torch.is_resting:
            seed_torch(self._root, SETUP)
            self._torch.rest()

    def woken(self) -> bool:
        """Return whether somebody has drawn for the first time; from now on every episode is seeded."""
        if self._awake or not (self._probes[0].moved() or self._probes[1].moved() or self._torch_moved()):
            return False
        self._awake = True
        return True

    def _torch_moved(self) -> bool:
        return self._torch is not None and self._torch.moved()
