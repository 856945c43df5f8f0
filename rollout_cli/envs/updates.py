"""Updates of a worker's environment: garage's EnvUpdate and its subclasses, and their application."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from rollout_cli.envs.building import Env, call_builder
from rollout_cli.envs.functional.protocol import is_functional
from rollout_cli.envs.source import EnvSource
from rollout_cli.errors import EnvError, EnvLoadError, EnvTypeError
from rollout_cli.sources.loading import Source, name_of, reporting


class EnvUpdate:
    """An update that a worker calls with its current environment; this base class changes nothing.

    A restarted worker gets all updates from the last one with `replaces_env` on, whose result does not depend
    on the previous environment.

    Example:
        >>> import gymnasium
        >>> class MoonGravity(rollout_cli.EnvUpdate):
        ...     def __call__(self, old_env=None):
        ...         env = super().__call__(old_env)
        ...         env.unwrapped.gravity = 1.6  # m/s**2
        ...         return env
        >>> MoonGravity()(gymnasium.make("CartPole-v1")).unwrapped.gravity
        1.6
    """

    replaces_env: ClassVar[bool] = False

    def __call__(self, old_env: Env | None = None) -> Env:
        """Return the new environment; `old_env` is the current one, or None if the worker has none yet.

        Raises:
            EnvLoadError: If the update needs an environment but `old_env` is None, or building one fails.
        """
        if old_env is None:
            raise EnvLoadError(
                f"the update {type(self).__name__} changes an environment, but the worker has none yet",
                code="update-without-env",
                hint="pass an environment to the sampler, or use NewEnvUpdate",
            )
        return old_env


@dataclass(eq=False)
class NewEnvUpdate(EnvUpdate):
    """Closes the old environment and builds a new one.

    Args:
        env_constructor: Called without arguments in each worker; returns the new environment.

    Example:
        >>> import gymnasium
        >>> update = rollout_cli.NewEnvUpdate(lambda: gymnasium.make("Acrobot-v1"))
        >>> with rollout_cli.LocalSampler("random", gymnasium.make("CartPole-v1"), seed=0) as sampler:
        ...     batch = sampler.obtain_samples(0, 1, agent_update="random", env_update=update)
        >>> batch.observations.shape[1:]
        (6,)
    """

    replaces_env = True

    env_constructor: Callable[[], Env]

    def __call__(self, old_env: Env | None = None) -> Env:
        if old_env is not None:
            old_env.close()
        return _build(self.env_constructor)


@dataclass(eq=False)
class SetTaskUpdate(EnvUpdate):
    """Calls the outermost `set_task` of the environment; an environment of another type is replaced first.

    Args:
        env_type: The environment's class. If the worker's environment does not have exactly this type, a new
            one is built without arguments.
        task: The argument of `set_task`.
        wrapper_constructor: Called as `wrapper_constructor(env, task)` with a newly built environment.

    Raises:
        EnvLoadError: When called, if the environment has no `set_task` or cannot be built.

    Example:
        >>> from gymnasium.envs.classic_control import CartPoleEnv
        >>> class Pole(CartPoleEnv):
        ...     def set_task(self, task):
        ...         self.length = task
        >>> rollout_cli.SetTaskUpdate(Pole, task=0.25)(Pole()).length
        0.25
    """

    env_type: Callable[[], Env]
    task: Any
    wrapper_constructor: Callable[[Env, Any], Env] | None = None

    def __call__(self, old_env: Env | None = None) -> Env:
        # A subclass may interpret tasks differently, so the type must be identical.
        if old_env is not None and type(old_env.unwrapped) is self.env_type:
            self._set_task(old_env)
            return old_env
        if old_env is not None:
            old_name = type(old_env.unwrapped).__name__
            warnings.warn(
                f"SetTaskUpdate replaces the {old_name} by a new {name_of(self.env_type)}", stacklevel=2
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
                f"{type(env.unwrapped).__name__} has no set_task method",
                code="env-without-tasks",
                hint="add a set_task method to the environment, or use another update",
            ) from error
        set_task(self.task)


class ExistingEnvUpdate(EnvUpdate):
    """Replaces the environment by a copy of an existing one, in its current state.

    Args:
        env: The environment. It is pickled immediately; the caller keeps it.

    Raises:
        EnvLoadError: If the environment cannot be pickled.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("CartPole-v1")
        >>> copied = rollout_cli.ExistingEnvUpdate(env)()
        >>> copied is env, copied.spec.id
        (False, 'CartPole-v1')
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
    return env  # The worker checks the type.


def close_env(env: Any) -> None:
    """Close an environment unless it is None; raise EnvError if that fails."""
    if env is not None:
        with reporting(EnvError, "env.close raised", code="env-raised"):
            env.close()


def check_env(env: Any, kind: type[Any], *, hint: str, or_update: bool = False) -> None:
    """Raise EnvTypeError unless `env` is a `kind` or, with `or_update`, an EnvUpdate or EnvSource."""
    if not isinstance(env, kind) and not (or_update and isinstance(env, EnvUpdate | EnvSource)):
        expected = f"a {kind.__module__.partition('.')[0]}.{kind.__name__}"
        if or_update:
            expected += " or an EnvUpdate"
        raise EnvTypeError(
            f"an object of type {type(env).__name__} is not {expected}", code="env-type", hint=hint
        )


def check_makes_new(env_update: Any) -> None:
    """Raise EnvLoadError unless the update builds a new environment at each call, as `fresh_env` requires."""
    if not isinstance(env_update, EnvSource) and not (
        isinstance(env_update, EnvUpdate) and env_update.replaces_env
    ):
        raise EnvLoadError(
            f"fresh_env=True needs an update that builds an environment, got {name_of(type(env_update))}",
            code="fresh-env-update",
            hint="pass an EnvSource, a NewEnvUpdate, or an ExistingEnvUpdate",
        )


def updated_env(
    old_env: Any, env_update: Any, kind: type[Any], build: Callable[[EnvSource], Any] = EnvSource.build
) -> Any:
    """Apply an update (EnvUpdate, EnvSource or environment) and return the environment, which is a `kind`.

    A replaced environment is closed.
    """
    if isinstance(env_update, EnvUpdate):
        with reporting(EnvLoadError, f"{type(env_update).__name__} failed", code="env-update"):
            env = env_update(old_env)
        if is_functional(env):
            return env
        check_env(env, kind, hint=f"return an environment from {type(env_update).__name__}")
        return env
    if old_env is not env_update:
        close_env(old_env)
    return build(env_update) if isinstance(env_update, EnvSource) else env_update
