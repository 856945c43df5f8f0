"""An environment, a policy and a set-up that raise what a test has chosen, in the place that it has chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.helpers.envs import LocalError, OddError
from tests.workers.worlds import BatchPolicy, ChainEnv

RAISED: dict[str, BaseException] = {}
"""By place, what is raised there."""


class UnprintableError(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise OddError


ERRORS: dict[str, BaseException] = {
    type(error).__name__: error
    for error in (
        ValueError("broken"),
        StopIteration(1),
        StopAsyncIteration(),
        GeneratorExit(),
        KeyboardInterrupt(),
        SystemExit(3),
        asyncio.CancelledError(),
        OddError("odd"),
        ExceptionGroup("several", [ValueError("broken")]),
        BaseExceptionGroup("several", [OddError("odd")]),
        UnprintableError(),
        LocalError("local"),
    )
}


def pass_by(place: str) -> None:
    """Raise what is to be raised here."""
    if place in RAISED:
        raise RAISED[place]


class Raising(ChainEnv):
    """An environment."""

    def __init__(self) -> None:
        pass_by("env built")
        super().__init__(length=3)

    def reset(self, **arguments: Any) -> Any:
        pass_by("env.reset")
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        pass_by("env.step")
        return super().step(action)

    def close(self) -> None:
        pass_by("env.close")


class Acting(BatchPolicy):
    """A policy."""

    def __init__(self, env_spec: Any) -> None:
        pass_by("policy built")
        super().__init__(env_spec)

    def reset(self, do_resets: Any = None) -> None:
        pass_by("policy.reset")

    def get_action(self, observation: Any) -> Any:
        pass_by("policy.get_action")
        return super().get_action(observation)


@contextmanager
def set_up() -> Iterator[None]:
    """A worker's set-up."""
    pass_by("the set-up")
    yield
