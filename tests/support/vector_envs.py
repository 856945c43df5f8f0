"""Sample vector environments, in all three autoreset modes.

`scripted` is written out here, with episodes that tell where they came from; the others are gymnasium's own
SyncVectorEnv around the single sample environments. All are importable as `tests.support.vector_envs:name`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TimeLimit

from tests.support.envs import BothFlagsEnv, ChainEnv, DictEnv, EndlessEnv, TextEnv

Array = npt.NDArray[Any]


def sync(factory: Callable[[], gymnasium.Env[Any, Any]]) -> Callable[..., VectorEnv[Any, Any, Any]]:
    """Return a factory of vector environments in any mode, whose rows are made by `factory`."""

    def build(num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> VectorEnv[Any, Any, Any]:
        return SyncVectorEnv([factory] * num_envs, copy=False, autoreset_mode=AutoresetMode(autoreset_mode))

    return build


chain = sync(ChainEnv)
both_flags = sync(BothFlagsEnv)
endless = sync(EndlessEnv)
dictionary = sync(DictEnv)
text = sync(TextEnv)
limited = sync(lambda: TimeLimit(EndlessEnv(), 6))


class SlowSyncVectorEnv(SyncVectorEnv):
    """Sleeps a little in each step, so that no worker is done before another has begun."""

    def step(self, actions: Any) -> Any:
        time.sleep(0.002)
        return super().step(actions)


def slow_chain(num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> SlowSyncVectorEnv:
    return SlowSyncVectorEnv([ChainEnv] * num_envs, autoreset_mode=AutoresetMode(autoreset_mode))


class ScriptedVectorEnv(VectorEnv[Any, Any, Any]):
    """Row r's k-th episode has `length(r, k)` steps; observations are [r, k, step], in one buffer that is used again.

    The reward is the step's number plus a half of the action. An info `step` is there in even steps only, `note` (a
    text) in every third; a reset tells `k`. An episode terminates where r + k is even, and is truncated else.
    """

    def __init__(
        self, num_envs: int, length: Callable[[int, int], int], autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
    ) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": autoreset_mode}
        self.single_observation_space = spaces.Box(-1, 10_000, (3,), np.int32)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.resets = 0
        self._length, self._mode = length, autoreset_mode
        self._at = np.zeros((num_envs, 3), np.int32)
        self._begun = np.full(num_envs, -1)
        self._over = np.zeros(num_envs, bool)

    def _begin(self, row: int) -> None:
        self._begun[row] += 1
        self._at[row] = row, self._begun[row], 0
        self._over[row] = False

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        infos: dict[str, Any] = {}
        for row in range(self.num_envs):
            self._begin(row)
            infos = self._add_info(infos, {"k": int(self._begun[row])}, row)
        return self._at, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rewards, infos = np.zeros(self.num_envs, np.float32), dict[str, Any]()
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for row in range(self.num_envs):
            if self._over[row]:
                self._begin(row)
                infos = self._add_info(infos, {"k": int(self._begun[row])}, row)
                # Flags and rewards of the step in which a row is reset mean nothing, and must not be believed.
                rewards[row], terminated[row] = -99.0, True
                continue
            self._at[row, 2] += 1
            k, step = int(self._begun[row]), int(self._at[row, 2])
            rewards[row] = step + 0.5 * actions[row]
            info = step_info(step)
            if step >= self._length(row, k):
                terminated[row], truncated[row] = (row + k) % 2 == 0, (row + k) % 2 == 1
                if self._mode is AutoresetMode.SAME_STEP:
                    infos = self._add_info(infos, {"final_obs": self._at[row].copy(), "final_info": info}, row)
                    self._begin(row)
                    info = {"k": int(self._begun[row])}
                else:
                    self._over[row] = True
            infos = self._add_info(infos, info, row)
        return self._at, rewards, terminated, truncated, infos


def step_info(step: int) -> dict[str, Any]:
    """Return what ScriptedVectorEnv tells in a step."""
    return ({"step": step} if step % 2 == 0 else {}) | ({"note": f"at {step}"} if step % 3 == 0 else {})


def scripted(num_envs: int, autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> ScriptedVectorEnv:
    return ScriptedVectorEnv(num_envs, lambda row, k: 1 + (3 * row + 5 * k) % 7, AutoresetMode(autoreset_mode))


class QuietVectorEnv(ScriptedVectorEnv):
    """Does what ScriptedVectorEnv does, and tells nothing of it."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed, options=options)[0], {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, _ = super().step(actions)
        return observations, rewards, terminated, truncated, {}


class UnseededRows(SyncVectorEnv):
    """Resets single rows, but takes no seed for each."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([ChainEnv] * num_envs, autoreset_mode=AutoresetMode.DISABLED)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        if isinstance(seed, list | np.ndarray):
            raise TypeError("seed must be an integer")
        return super().reset(seed=seed, options=options)


class SeedsOfSelectedRows(SyncVectorEnv):
    """Takes seeds as ALE's vector environment does: an array with one entry for each row that is reset, of 31 bits."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([ChainEnv] * num_envs, autoreset_mode=AutoresetMode.DISABLED)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        if not isinstance(seed, np.ndarray):
            raise TypeError("Unsupported seed type")
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        rows = np.flatnonzero(mask)
        if seed.shape != rows.shape or seed.max() >= 2**31:
            raise ValueError(f"expected {rows.shape}, got {seed.shape}")
        whole: list[int | None] = [None] * self.num_envs
        for row, value in zip(rows.tolist(), seed.tolist(), strict=True):
            whole[row] = value
        return super().reset(seed=whole, options=options)


class ResetsEverything(SyncVectorEnv):
    """Claims to leave resets to others, but does not look at the mask."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([ChainEnv] * num_envs, autoreset_mode=AutoresetMode.DISABLED)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)


class SilentVectorEnv(SyncVectorEnv):
    """Does not tell how it resets its rows."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([ChainEnv] * num_envs)
        self.metadata = {}


class DenseFinal(ScriptedVectorEnv):
    """Resets in the same step, and gives the last observations of all rows as one array, as ALE does; no last infos."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, lambda row, k: 1 + row, AutoresetMode.SAME_STEP)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        final = observations.copy()
        for row in np.flatnonzero(terminated | truncated).tolist():
            final[row] = infos["final_obs"][row]
        return observations, rewards, terminated, truncated, {"final_obs": final}


class GivesNoFinal(ScriptedVectorEnv):
    """Resets in the same step and keeps the last observations for itself."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, lambda row, k: 2, AutoresetMode.SAME_STEP)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        *rest, infos = super().step(actions)
        kept = {key: value for key, value in infos.items() if "final" not in key}
        return rest[0], rest[1], rest[2], rest[3], kept


class Pool:
    """Offers what EnvPool's gymnasium interface does: no VectorEnv, seeded when built, its spaces those of one row.

    Args:
        num_envs: How many rows.
        seed: What its rows are seeded from.
    """

    def __init__(self, num_envs: int, seed: int) -> None:
        self._rows = SyncVectorEnv([ChainEnv] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
        self._rows.reset(seed=seed)
        self.config = {"num_envs": num_envs}
        self.spec = self
        self.num_envs = num_envs
        self.observation_space = self._rows.single_observation_space
        self.action_space = self._rows.single_action_space
        self.unwrapped = self

    def reset(self) -> Any:
        return self._rows.reset()[0]

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = self._rows.step(actions)
        elapsed = {"elapsed_step": np.asarray(observations[:, 0], np.int32)}
        return observations, rewards, terminated, truncated, {"position": infos.get("position"), **elapsed}

    def close(self) -> None:
        self._rows.close()

    def async_reset(self) -> None:
        raise NotImplementedError

    def send(self, actions: Any) -> None:
        raise NotImplementedError

    def recv(self) -> Any:
        raise NotImplementedError
