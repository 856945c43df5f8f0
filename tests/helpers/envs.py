"""FaultyEnv: one environment that behaves well, or badly in a chosen way, at a chosen moment, so many times.

It is importable as `tests.helpers.envs:FaultyEnv` wherever an environment is named by text. A test that needs
an environment with another odd trait adds it to HARMS, GIVES or SPACES rather than write another environment.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import os
import random
import signal
import string
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

SIGNS = "ROLLOUT_TEST_SIGNS"
"""The variable that names the folder of the signs, where the keyword argument does not."""

HIDDEN = "ROLLOUT_TEST_ENV"
"""The variable with further keyword arguments, as JSON: a dataset records those of the constructor, and not these, so
that its bytes can be compared with those of a run without a fault."""


class OddError(BaseException):
    """What no `except Exception` sees."""


class LocalError(Exception):
    """It cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


def _raise(error: BaseException) -> None:
    raise error


def _recurse() -> None:
    _recurse()


def _change_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _change_globals() -> None:
    random.seed(1)
    np.random.seed(1)
    np.seterr(all="raise")
    sys.setrecursionlimit(200)
    os.environ.clear()


def _print() -> None:
    print("a line that a simulator prints", flush=True)  # noqa: T201  It is what the test is of.
    os.write(1, b"and one past Python\n")


def _print_unflushed() -> None:
    assert sys.__stdout__ is not None
    sys.__stdout__.write("a line by a stream that was kept\n")
    ctypes.CDLL(None).printf(b"a line of a C library\n")


def _print_lines() -> None:
    for _ in range(40):  # More than a pipe holds.
        print("x" * 3_000)  # noqa: T201  It is what the test is of.


def _print_much() -> None:
    for _ in range(64):
        os.write(2, b"x" * 65_535 + b"\n")


HARMS: dict[str, Callable[[], Any]] = {
    "raise": lambda: _raise(ValueError("the simulator is broken")),
    "raise 10 MB": lambda: _raise(ValueError("the simulator is broken" + "!" * 10_000_000)),
    "raise unpicklable": lambda: _raise(LocalError("a local error")),
    "raise odd": lambda: _raise(OddError("an odd error")),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "memory": lambda: _raise(MemoryError()),
    "recurse": _recurse,
    "sys.exit 0": lambda: sys.exit(0),
    "sys.exit 3": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "hang": lambda: time.sleep(3600),
    "chdir": lambda: os.chdir("/"),
    "rmdir": lambda: Path.cwd().rmdir(),
    "signals": _change_signals,
    "globals": _change_globals,
    "child": lambda: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]),
    "print": _print,
    "print unflushed": _print_unflushed,
    "print lines": _print_lines,
    "print much": _print_much,
    "close stdout": lambda: os.close(1),
    "close files": lambda: os.closerange(3, 4_096),
}
"""What user code may do to its process."""


def _recursive() -> dict[str, Any]:
    info: dict[str, Any] = {}
    info["itself"] = info
    return info


COLLIDING = {"a.b": [1, math.inf], "a": {"b": "a text"}}
"""Infos whose keys are equal once dotted."""

GIVES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "old reset": ("reset", lambda result: result[0]),
    "old step": ("step", lambda result: (*result[:3], result[4])),
    "obs shape": ("observation", lambda seen: seen[:3]),
    "obs complex": ("observation", lambda seen: seen.astype(complex)),
    "obs nan": ("observation", lambda seen: np.full_like(seen, math.nan)),
    "obs outside": ("observation", lambda seen: np.full_like(seen, 7)),
    "obs none": ("observation", lambda seen: None),
    "obs surrogate": ("observation", lambda seen: "a\ud800"),
    "reward text": ("reward", lambda reward: "much"),
    "reward nan": ("reward", lambda reward: math.nan),
    "reward inf": ("reward", lambda reward: math.inf),
    "reward complex": ("reward", lambda reward: np.complex64(1 + 2j)),
    "reward huge": ("reward", lambda reward: 10**400),
    "flag array": ("terminated", lambda flag: np.array([flag, flag])),
    "flag text": ("terminated", lambda flag: "no"),
    "info none": ("info", lambda info: None),
    "info list": ("info", lambda info: [1]),
    "info unstorable": ("info", lambda info: {"steps": lambda: 1}),
    "info type": ("info", lambda info: {"steps": "three"}),
    "info late": ("info", lambda info: {**info, "late": 1.5}),
    "info mixed": (
        "info",
        lambda info: {"steps": "three", "late": np.arange(3.0), "nan": math.nan, **COLLIDING},
    ),
    "info keys": ("info", lambda info: {"": 1, 7: 2, "a.b": 3, ("t",): 4, "\n": 5, None: 6, "episode_id": 7}),
    "info surrogate": ("info", lambda info: {**info, "bad\ud800key": 1, "text": "bad\ud800text"}),
    "info recursive": ("info", lambda info: _recursive()),
    "info 1 MB": ("info", lambda info: {**info, "huge": np.zeros(1 << 17)}),
    "info 8 MB": ("info", lambda info: {**info, "huge": np.zeros(1 << 20)}),
    "action nan": ("action", lambda action: np.full_like(action, math.nan)),
    "action outside": ("action", lambda action: np.array([2, -7], np.float32)),
    "action 1e300": ("action", lambda action: np.array([1e300, 0])),
    "action inf": ("action", lambda action: np.array([math.inf, 0], np.float32)),
    "action shape": ("action", lambda action: np.zeros(3, np.float32)),
    "action text": ("action", lambda action: "left"),
    "agent info": ("agent info", lambda info: {"why": object()}),
    "bare action": ("acted", lambda result: 1),
    "no answer": ("acted", lambda result: None),
    "list infos": ("acted", lambda result: (result[0], [1])),
    "two actions": ("batch", lambda result: (np.concatenate([result[0], result[0]]), result[1])),
    "long infos": ("batch", lambda result: (result[0], {"value": np.zeros(len(result[0]) + 2)})),
    "no batch": ("batch", lambda result: None),
}
"""What user code may give: the place where it does, and the bad value made of the good one."""

SPACES: dict[str, Callable[[], spaces.Space[Any]]] = {
    "box": lambda: spaces.Box(-1, 1, (4,), np.float32),
    "stack": lambda: spaces.Box(-1, 1, (3, 4), np.float32),
    "image": lambda: spaces.Box(0, 255, (8, 6, 3), np.uint8),
    "huge": lambda: spaces.Box(0, 255, (1 << 28,), np.uint8),
    # gymnasium up to 1.2 draws from its own characters in the order of their hashes.
    "text": lambda: spaces.Text(8, charset=string.digits + string.ascii_uppercase + string.ascii_lowercase),
    "discrete": lambda: spaces.Discrete(7, start=-2),
    "dict": lambda: spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (4, 4), np.uint8),
            "at": spaces.Tuple((spaces.Discrete(5), spaces.MultiBinary(3))),
        }
    ),
    "empty dict": lambda: spaces.Dict({}),
    "empty tuple": lambda: spaces.Tuple(()),
    "surrogate key": lambda: spaces.Dict({"bad\ud800key": spaces.Discrete(2)}),
    "sequence": lambda: spaces.Sequence(spaces.Text(2)),
    "lists": lambda: spaces.Dict(
        {
            "seen": spaces.Sequence(spaces.Box(-1, 1, (3,), np.float32)),
            "at": spaces.Sequence(spaces.Discrete(5), stack=True),
        }
    ),
}
"""Observation spaces."""


class Fault:
    """Something bad that happens at one moment of some episodes, at most so many times in the whole run.

    Each time, it leaves a sign: a test asks for it, so that no test passes because its fault never happened.

    Args:
        what: A name of HARMS or GIVES; empty for nothing.
        when: `load`, `reset`, `step` (the third of an episode), `all steps` or `close`.
        episodes: The seeds of the episodes in which it happens; all where there are none.
        times: At most so many times, in all processes together; 0 for always.
        signs: The folder of the signs, which must exist.
    """

    seed = 0
    """The seed of the episode that runs in this process; policies are not told, so they look here."""

    def __init__(
        self,
        what: str = "",
        when: str = "step",
        episodes: Sequence[int] = (),
        times: int = 0,
        signs: str | None = None,
    ) -> None:
        self._what, self._when, self.episodes, self._times = what, when, frozenset(episodes), times
        self._signs = signs or os.environ.get(SIGNS)

    def is_due(self, moment: str, seed: int | None = None) -> bool:
        """Return whether it happens now; if so, the sign is left."""
        here = moment == self._when or (self._when == "all steps" and moment in ("step", "other step"))
        if not self._what or not here:
            return False
        seed = Fault.seed if seed is None else seed
        if moment not in ("load", "close") and self.episodes and seed not in self.episodes:
            return False
        return leave_sign(self._what, self._signs, self._times)

    def act(self, moment: str, seed: int | None = None) -> None:
        """Do the harm, if it is due."""
        if self._what in HARMS and self.is_due(moment, seed):
            HARMS[self._what]()

    def give(self, place: str, moment: str, good: Any, seed: int | None = None) -> Any:
        """Return the bad value if it is due at this place, else the good one."""
        where, bad = GIVES.get(self._what, ("", None))
        return bad(good) if bad is not None and where == place and self.is_due(moment, seed) else good


def leave_sign(name: str, folder: str | None, times: int = 0) -> bool:
    """Leave one more sign; return False where there are `times` already. Of one kind ten are enough."""
    if folder is None:
        return True
    for place in range(times or 10):
        try:
            (Path(folder) / f"{name}-{place}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return True
    return times == 0


class FaultyEnv(gymnasium.Env[Any, Any]):
    """Episodes of 4 to 7 steps, a function of seed and actions.

    An action that is outside of its space must not come here; where it does, the sign `bad action` is left.

    Args:
        what: See `Fault`, as of `when`, `episodes`, `times` and `signs`.
        space: A name of SPACES, for the observations.
        pace: How long a step takes, in seconds.
        lull: How long one takes in the episodes of the fault: until it comes, a worker sends what it has finished.
        endless: Whether episodes never end.
        meet: The first step waits until so many processes have begun an episode.
        note: Anything; it is recorded among the keyword arguments, and changes nothing.
    """

    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(
        self,
        what: str = "",
        when: str = "step",
        episodes: Sequence[int] = (),
        times: int = 0,
        signs: str | None = None,
        *,
        space: str = "box",
        pace: float = 0.0,
        lull: float = 0.0,
        endless: bool = False,
        meet: int = 0,
        note: Any = None,
    ) -> None:
        hidden = json.loads(os.environ.get(HIDDEN, "{}"))
        fault = {"what": what, "when": when, "episodes": episodes, "times": times, "signs": signs}
        self._fault = Fault(**{name: hidden.get(name, value) for name, value in fault.items()})
        self.observation_space = SPACES[space]()
        self._signs = signs or os.environ.get(SIGNS)
        self._drawn, self._is_box = deepcopy(self.observation_space), space == "box"
        self._pace, self._meet, self._endless = hidden.get("pace", pace), hidden.get("meet", meet), endless
        self._lull = hidden.get("lull", lull)
        self._seed, self._resets, self._steps, self._length = 0, 0, 0, 0
        self._fault.act("load")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._resets += 1
        # A vector environment that resets its rows itself gives them no seed: 0, -1 and -2 stand for one by
        # turns.
        self._seed = Fault.seed = seed if seed is not None else -(self._resets % 3)
        self._drawn.seed(int(self.np_random.integers(2**31)))
        self._steps, self._length = 0, int(self.np_random.integers(4, 8))
        self._fault.act("reset", self._seed)
        if self._meet:
            self._wait_for_others()
        info = self._fault.give("info", "reset", {"length": self._length}, self._seed)
        return self._fault.give("reset", "reset", (self._observe("reset"), info), self._seed)

    def _wait_for_others(self) -> None:
        """Wait until others have begun too: each that has leaves its sign."""
        folder = Path(str(self._signs))
        (folder / f"met-{os.getpid()}").touch()
        while len(list(folder.glob("met-*"))) < self._meet:
            time.sleep(0.002)
        self._meet = 0

    def _observe(self, moment: str) -> Any:
        if self._is_box:  # Ten times as fast as its `sample`: the tests take such steps by the million.
            drawn: Any = self._drawn.np_random.uniform(-1, 1, 4).astype(np.float32)
        else:
            drawn = self._drawn.sample()
        return self._fault.give("observation", moment, drawn, self._seed)

    def step(self, action: Any) -> Any:
        pace = self._lull if self._lull and self._seed in self._fault.episodes else self._pace
        if pace:
            time.sleep(pace)
        if not self.action_space.contains(action):
            leave_sign("bad action", self._signs)
        self._steps += 1
        moment = "step" if self._steps == 3 else "other step"
        self._fault.act(moment, self._seed)
        give = functools.partial(self._fault.give, seed=self._seed)
        reward = give("reward", moment, float(np.sum(action)))
        ended = give("terminated", moment, self._steps >= self._length and not self._endless)
        info = give("info", moment, {"steps": self._steps})
        return give("step", moment, (self._observe(moment), reward, ended, False, info))

    def close(self) -> None:
        self._fault.act("close")


def vector(num_envs: int, autoreset_mode: str = "Disabled", **kwargs: Any) -> SyncVectorEnv:
    """Make FaultyEnvs step together, as an environment with a vector entry point does."""
    makers = [lambda: FaultyEnv(**kwargs)] * num_envs
    return SyncVectorEnv(makers, copy=False, autoreset_mode=autoreset_mode)


def stacked(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make a FaultyEnv whose observations are the last two frames, as for a network without memory."""
    return gymnasium.wrappers.FrameStackObservation(FaultyEnv(**kwargs), 2)


class SelfSeedingEnv(gymnasium.Env[Any, Any]):
    """Episodes of three steps, whose observations follow from the seed that it was built with, and no other.

    No search finds its generator, as with environments in C++. The info of a reset is that seed.
    """

    observation_space = spaces.Box(0, 1, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, seed: int) -> None:
        self._built_with, self._state, self._steps = seed, seed, 0

    def _observe(self) -> Any:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return np.full(1, self._state / 2**64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._steps = 0
        return self._observe(), {"built_with": self._built_with}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self._observe(), 1.0, self._steps == 3, False, {}


def self_seeding(num_envs: int, seed: int) -> SyncVectorEnv:
    """Make environments that reset themselves, each with a seed of its own, as EnvPool does."""
    makers = [functools.partial(SelfSeedingEnv, seed + row) for row in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode="NextStep")


class StateEnv(gymnasium.Env[Any, Any]):
    """A point that noise and actions move; it sees less than its state, and its picture shows the state.

    The variable STATE_ENV_DRIFT moves it further, like a simulator that is not reproducible on another machine.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.metadata = render_mode, {"render_modes": ["rgb_array"], "render_fps": 5}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.state = np.array([self.np_random.uniform(), 0.0])
        return self.state[:1].copy(), {}

    def step(self, action: Any) -> Any:
        drift = float(os.environ.get("STATE_ENV_DRIFT", "0"))
        self.state += [self.np_random.uniform() * (1 + action) + drift, 1]
        return self.state[:1].copy(), float(self.state[0]), bool(self.state[1] == 6), False, {"moved": True}

    def get_state(self) -> Any:
        return self.state  # Not a copy.

    def set_state(self, state: Any) -> None:
        self.state = state.copy()

    def render(self) -> Any:
        return np.resize(self.state.view(np.uint8), (8, 8, 3))


class OptionsEnv(gymnasium.Env[Any, Any]):
    """Observes the options `goal` and `wind` of its reset; an episode has five steps."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.metadata = render_mode, {"render_modes": ["rgb_array"], "render_fps": 5}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.options = 0, options or {}
        return np.array([self.options.get("goal", 0), self.options.get("wind", 0)], np.float64), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.np_random.uniform(-1, 1, 2), float(action), self.steps == 5, False, {}

    def render(self) -> Any:
        return np.full((8, 8, 3), self.steps, np.uint8)
