"""GeneratorTurn: what several environments of one worker would draw from together, as each of them has it alone."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from rollout_cli.generators import FoundGenerator
from rollout_cli.seeding import GlobalGenerators
from rollout_cli.sleepers import GlobalSeeder, Look, TorchProbe

_CLOSE_LOOKS = 8
"""A policy that draws does so soon, and some looks cost much."""

_GLOBAL = ("random", "numpy.random")
"""The global generators, as `GlobalSeeder` looks at them."""


class GeneratorTurn:
    """A context in which one row begins an episode or takes a step: shared generators stand where this row left them.

    Shared are the global generators, as soon as anybody draws from them, and those that were found below several rows
    (of a class or a module). Without this, what a row draws would depend on what the other rows do.

    Attributes:
        shared: The found generators that other rows have too; set by `share`.

    Args:
        global_seeder: Knows whether anybody draws from the global generators.
    """

    def __init__(self, global_seeder: GlobalSeeder) -> None:
        self._global = global_seeder
        self._global_states: GlobalGenerators | None = None
        self._states: list[Any] = []
        self.shared: list[Any] = []

    def share(self, generators: list[Any]) -> None:
        """Take turns with these generators from now on; they stand where the next episodes' seeds put them."""
        self.shared, self._states = generators, []

    @property
    def is_needed(self) -> bool:
        """Return whether there is anything shared; without it, nothing need be entered."""
        return self._global.awake or bool(self.shared)

    def __enter__(self) -> None:
        """Put in what this row left, unless it has had no turn yet."""
        if self._global_states is not None and self._global.awake:
            self._global_states.restore()
        if len(self._states) == len(self.shared):
            for generator, state in zip(self.shared, self._states, strict=True):
                set_state(generator, state)

    def __exit__(self, *_: object) -> None:
        """Remember where the generators stand."""
        if self._global.awake:
            self._global_states = GlobalGenerators()
        self._states = [state_of(generator) for generator in self.shared]


class SharedDraws:
    """A context in which a policy acts for all rows; it sees whether that draws from a global generator.

    Such draws wake nobody: they cannot be seeded for one episode, as those of an environment can.

    Attributes:
        own: The generators that the policy alone holds; it is taken to draw from them.
        seen: The others that it was seen to draw from.

    Args:
        global_seeder: Looks at them.
    """

    def __init__(self, global_seeder: GlobalSeeder) -> None:
        self._global = global_seeder
        self._torch = TorchProbe()
        self._before: Look = (0, 0, 0, 0)
        self._lent: list[FoundGenerator] = []
        self._lent_before: list[bytes] = []
        self._close_looks = _CLOSE_LOOKS
        self.own: list[str] = []
        self.seen: list[str] = []

    def watch(self, found: list[FoundGenerator], of_envs: list[Any]) -> None:
        """Look closely for some calls: at torch's generator, and at what the policy may have from an environment.

        A policy that holds an environment's spaces, which the environment draws from, does not draw from them for that.

        Args:
            found: What was found below the policy.
            of_envs: The generators that were found below environments.
        """
        known = {id(generator) for generator in of_envs}
        self._lent = [one for one in found if one.space is not None or id(one.generator) in known]
        self.own = [one.path for one in found if one.space is None and id(one.generator) not in known]
        self._close_looks = _CLOSE_LOOKS

    def __enter__(self) -> None:
        """Look before the call."""
        self._before = self._global.look()
        if self._close_looks:
            self._torch.rest()
            self._lent_before = self._lent_states()

    def __exit__(self, *_: object) -> None:
        """Look after it."""
        after = self._global.look()
        if after != self._before:
            halves = zip(_GLOBAL, (self._before[:2], self._before[2:]), (after[:2], after[2:]), strict=True)
            self._note([name for name, one, other in halves if one != other])
            self._global.excuse(self._before)
        if self._close_looks:
            self._close_looks -= 1
            self._note(["torch"] if self._torch.moved() else [])
            states = zip(self._lent, self._lent_before, self._lent_states(), strict=True)
            self._note([found.path for found, one, other in states if one != other])

    def _lent_states(self) -> list[bytes]:
        return [pickle.dumps(state_of(found.current)) for found in self._lent]

    def _note(self, names: list[str]) -> None:
        self.seen += [name for name in names if name not in self.seen]


def share_out(turns: Iterable[GeneratorTurn], found: Iterable[Iterable[Any]]) -> None:
    """Tell each turn which of the generators found below its row were found below another row too."""
    rows = [{id(generator): generator for generator in generators} for generators in found]
    counts = Counter(key for known in rows for key in known)
    for turn, known in zip(turns, rows, strict=True):
        turn.share([generator for key, generator in known.items() if counts[key] > 1])


def state_of(generator: Any) -> Any:
    """Return the state of a generator of any kind that is looked for."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def set_state(generator: Any, state: Any) -> None:
    """Put a generator into a state of its own kind."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)
