"""How a worker's environment changes: garage's EnvUpdate and its family, and how a worker applies one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from rollout_cli.envs.building import Env, call_builder
from rollout_cli.envs.source import EnvSource
from rollout_cli.errors import EnvError, EnvLoadError, EnvTypeError
from rollout_cli.sources.loading import Source, name_of, reporting


class EnvUpdate:
    """A change of an environment, called in the worker with its present one; this class changes nothing.

    A worker that is restarted gets every update since the last whose result owes nothing to the environment
    before, as `replaces_env` says.
    """

    replaces_env: ClassVar[bool] = False

    def __call__(self, old_env: Env | None = None) -> Env:
        """Return the environment to use from now on; `old_env` is None where the worker has none yet.

        Raises:
            EnvLoadError: If there is none to keep, or building one fails.
        """
        if old_env is None:
            raise EnvLoadError(
                f"{type(self).__name__} changes an environment, but the worker has none yet",
                code="update-without-env",
                hint="give the sampler an environment, or use NewEnvUpdate",
            )
        return old_env


@dataclass(eq=False)
class NewEnvUpdate(EnvUpdate):
    """Closes the old environment and builds a new one.

    Args:
        env_constructor: Called without arguments in each worker; returns the new environment.
    """

    replaces_env = True

    env_constructor: Callable[[], Env]

    def __call__(self, old_env: Env | None = None) -> Env:
        if old_env is not None:
            old_env.close()
        return _build(self.env_constructor)


@dataclass(eq=False)
class SetTaskUpdate(EnvUpdate):
    """Gives the environment a task by its outermost `set_task`; one of another type is replaced first.

    Args:
        env_type: The environment's class; it is built without arguments where the worker has none of exactly
            this type.
        task: The argument of `set_task`.
        wrapper_constructor: Called as `wrapper_constructor(env, task)` around a newly built environment.
    """

    env_type: Callable[[], Env]
    task: Any
    wrapper_constructor: Callable[[Env, Any], Env] | None = None

    def __call__(self, old_env: Env | None = None) -> Env:
        # A subclass may mean something else by a task, so the type must be the same, not only compatible.
        if old_env is not None and type(old_env.unwrapped) is self.env_type:
            self._set_task(old_env)
            return old_env
        if old_env is not None:
            old_name = type(old_env.unwrapped).__name__
            warnings.warn(
                f"SetTaskUpdate closes a {old_name} to build {name_of(self.env_type)}", stacklevel=2
            )
            old_env.close()
        env = _build(self.env_type)
        self._set_task(env)
        if self.wrapper_constructor is None:
            return env
        return _build(self.wrapper_constructor, env, self.task)

    def _set_task(self, env: Env) -> None:
        try:
            set_task = env.get_wrapper_attr("set_task")
        except AttributeError as error:
            raise EnvLoadError(
                f"{type(env.unwrapped).__name__} has no set_task",
                code="env-without-tasks",
                hint="SetTaskUpdate needs an environment that has one",
            ) from error
        set_task(self.task)


class ExistingEnvUpdate(EnvUpdate):
    """Replaces the environment by a copy of an existing one, in its present state.

    Args:
        env: The environment; it is pickled at once, and stays the caller's.

    Raises:
        EnvLoadError: If it cannot be pickled.
    """

    replaces_env = True

    def __init__(self, env: Env) -> None:
        self._source = Source.of(env, EnvLoadError, hint="use NewEnvUpdate, which builds it in each worker")

    def __call__(self, old_env: Env | None = None) -> Env:
        if old_env is not None:
            old_env.close()
        env: Env = self._source.load(EnvLoadError)
        return env


def _build(constructor: Callable[..., Env], *arguments: Any) -> Env:
    env: Env = call_builder(partial(constructor, *arguments), {}, name_of(constructor))
    return env  # Whether it is one, the worker checks.


def close_env(env: Any) -> None:
    """Close an environment, if there is one; EnvError if that fails."""
    if env is not None:
        with reporting(EnvError, "env.close raised", code="env-raised"):
            env.close()


def check_env(env: Any, kind: type[Any], *, hint: str, or_update: bool = False) -> None:
    """Raise EnvTypeError unless `env` is of the `kind`; with `or_update` an update or source will do."""
    if not isinstance(env, kind) and not (or_update and isinstance(env, EnvUpdate | EnvSource)):
        expected = f"no {kind.__module__.partition('.')[0]}.{kind.__name__}"
        if or_update:
            expected += ", and no EnvUpdate"
        raise EnvTypeError(
            f"an object of type {type(env).__name__} is {expected}", code="env-type", hint=hint
        )


def check_makes_new(env_update: Any) -> None:
    """Raise EnvLoadError unless an update makes a new environment each time, as `fresh_env` needs."""
    if not isinstance(env_update, EnvSource) and not (
        isinstance(env_update, EnvUpdate) and env_update.replaces_env
    ):
        raise EnvLoadError(
            f"fresh_env=True builds the environment anew, and {name_of(type(env_update))} builds none",
            code="fresh-env-update",
            hint="give an EnvSource, a NewEnvUpdate, or an ExistingEnvUpdate",
        )


def updated_env(
    old_env: Any, env_update: Any, kind: type[Any], build: Callable[[EnvSource], Any] = EnvSource.build
) -> Any:
    """Return the environment of a kind that an update (EnvUpdate, EnvSource or environment) gives.

    One that it replaces is closed.
    """
    if isinstance(env_update, EnvUpdate):
        with reporting(EnvLoadError, f"{type(env_update).__name__} failed", code="env-update"):
            env = env_update(old_env)
        check_env(env, kind, hint=f"{type(env_update).__name__} gave it")
        return env
    if old_env is not env_update:
        close_env(old_env)
    return build(env_update) if isinstance(env_update, EnvSource) else env_update
