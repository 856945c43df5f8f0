"""Simulator states: how to read and restore the state of an environment, by its own methods or by MuJoCo's."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from rollout_cli.envs.building import Env
from rollout_cli.envs.describe import layers
from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import EnvError, EnvLoadError
from rollout_cli.sources.loading import reporting


class _Simulator(Protocol):
    """The methods that an environment may offer."""

    def get_state(self) -> Array: ...

    def set_state(self, state: Array, /) -> None: ...


class _MuJoCo:
    """The state of a MuJoCo environment, with the methods of the protocol.

    It is mjSTATE_INTEGRATION, which starts with time, positions and velocities. mjSTATE_FULLPHYSICS lacks the
    constraint solver's warm start, without which later observations differ in their last bits.

    Args:
        physics: Returns MuJoCo's model and data, which an environment may replace at a reset.
    """

    def __init__(self, mujoco: Any, physics: Callable[[], tuple[Any, Any]]) -> None:
        self._mujoco = mujoco
        self._physics = physics
        self._kind = mujoco.mjtState.mjSTATE_INTEGRATION.value

    def get_state(self) -> Array:
        model, data = self._physics()
        state = np.empty(self._mujoco.mj_stateSize(model, self._kind))
        self._mujoco.mj_getState(model, data, state, self._kind)
        return state

    def set_state(self, state: Array, /) -> None:
        model, data = self._physics()
        self._mujoco.mj_setState(model, data, state, self._kind)
        self._mujoco.mj_forward(model, data)  # Compute the positions of bodies, which a picture shows.


def state_reader(env: Env) -> Callable[[], Array]:
    """Return a function that returns a copy of the environment's current state, an array of numbers.

    Raises:
        EnvLoadError: The environment's state cannot be read and restored.
    """
    simulator = _simulator_of(env)

    def read() -> Array:
        with reporting(EnvError, "get_state of the environment raised", code="env-raised"):
            state = np.array(simulator.get_state())
        if state.dtype.kind not in "biuf" or not state.size:
            raise EnvError(
                f"get_state of the environment returned {state.dtype}{list(state.shape)}, "
                "expected an array of numbers",
                code="env-state-value",
                hint="return one array of numbers from get_state, which set_state accepts",
            )
        return state

    return read


def state_setter(env: Env) -> Callable[[Array], None]:
    """Return a function that restores a state; the errors are those of `state_reader`."""
    simulator = _simulator_of(env)

    def restore(state: Array) -> None:
        with reporting(EnvError, "set_state of the environment raised", code="env-raised"):
            simulator.set_state(state)

    return restore


def _simulator_of(env: Env) -> _Simulator:
    for layer in layers(env):
        restore = getattr(layer, "set_state", None)
        if callable(getattr(layer, "get_state", None)) and callable(restore) and _takes_one(restore):
            simulator: _Simulator = layer
            return simulator
    base = env.unwrapped
    mujoco = sys.modules.get("mujoco")
    for physics in (partial(_of_gymnasium, base), partial(_of_dm_control, base)):
        try:
            model, _ = physics()
        except AttributeError:
            continue
        if mujoco is not None and isinstance(model, mujoco.MjModel):
            return _MuJoCo(mujoco, physics)
    raise EnvLoadError(
        f"cannot read and restore the state of the environment {type(base).__name__}: expected a MuJoCo "
        "environment, or the methods get_state() and set_state(state)",
        code="env-no-state",
        hint="add both methods to the environment or a {wrapper}, or collect without {store_state}",
    )


def _of_gymnasium(base: Any) -> tuple[Any, Any]:
    return base.model, base.data


def _of_dm_control(base: Any) -> tuple[Any, Any]:
    """Return model and data of an environment that wraps one of dm_control, as in shimmy and gym-aloha."""
    physics = base._env.physics  # noqa: SLF001  The wrappers have no public name for it.
    return physics.model.ptr, physics.data.ptr


def _takes_one(method: Callable[..., Any]) -> bool:
    """Return True if a call with one argument is valid, unlike `set_state(qpos, qvel)` of gymnasium."""
    try:
        inspect.signature(method).bind(None)
    except (TypeError, ValueError):  # ValueError: implemented in C, without a signature.
        return False
    return True
