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

    def rest(self) -> None:
        """Remember the present state as untouched."""
        self._rest = (self._place.value, self._word.value)

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


class GlobalSeeder:
    """Seeds the global generators before episodes: always where somebody draws from them, else only at first.

    Args:
        root_seed: The run's root seed.
    """

    def __init__(self, root_seed: int) -> None:
        self._root = root_seed
        self._probes = (python_probe(), numpy_probe())
        self._awake = not all(probe.works for probe in self._probes)
        self.before_build()

    def before_build(self) -> None:
        """Seed for one build or update."""
        seed_global_generators(self._root, SETUP)

    def watch(self) -> None:
        """Let the generators sleep, after builds that may have drawn from them."""
        self.before_build()
        for probe in self._probes:
            probe.rest()
        self._awake = not all(probe.works for probe in self._probes)

    def begin(self, number: int) -> None:
        """Seed for one episode, unless nobody has ever drawn."""
        if self._awake:
            seed_global_generators(self._root, number)
        elif "torch" in sys.modules:
            seed_torch(self._root, number)

    def woken(self) -> bool:
        """Return whether somebody has drawn for the first time; from now on every episode is seeded."""
        if self._awake or not (self._probes[0].moved() or self._probes[1].moved()):
            return False
        self._awake = True
        return True
