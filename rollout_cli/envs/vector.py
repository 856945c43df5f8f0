"""Vector environments: building native ones, and one way to reset rows, whatever the environment's own way is.

`metadata["autoreset_mode"]` says how a row begins anew after its episode's end. DISABLED: it is reset from outside, by a
mask. NEXT_STEP: the environment resets it in the following step, which belongs to no episode. SAME_STEP: the environment
resets it in the last step itself, and gives the last observation and info beside the new ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rollout_cli.envs.source import EnvSource, call_builder
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.errors import EnvLoadError

Array = npt.NDArray[Any]
Vector = VectorEnv[Any, Any, Any]
Reset = tuple[Any, dict[str, Any]]

_MODE = "autoreset_mode"
_SYNC_HINT = "omit --vectorization native: --envs-per-worker then steps that many copies of the environment"
_VECTOR_HINT = "name a gymnasium.vector.VectorEnv class, or a factory that is called with num_envs"


def build_native(source: EnvSource, n_rows: int) -> Vector:
    """Build a vector environment of `n_rows` rows.

    A gymnasium id or EnvSpec must have a vector entry point; a class or factory is called with `num_envs`. Where it
    takes `autoreset_mode` and none is given, it is asked not to reset itself: only then can episodes be reproduced.

    Raises:
        EnvLoadError: If the source has no vector form, raises, or gives something else.
    """
    found, name = source.resolve(), source.label
    if isinstance(found, GymSpec):
        creator, build = _vector_entry_point(found, n_rows, name)
        given = {**found.kwargs, **source.kwargs}
    else:
        creator = build = _factory(found, n_rows, name)
        given = dict(source.kwargs)
    asked = {} if _MODE in given or not _takes(creator, _MODE) else {_MODE: AutoresetMode.DISABLED}
    built = call_builder(build, {**source.kwargs, **asked}, name)
    if not isinstance(built, VectorEnv):
        raise EnvLoadError(f"{name!r} gave {type(built).__name__}, no vector environment", hint=_VECTOR_HINT)
    if int(built.num_envs) != n_rows:
        built.close()
        hint = "let the factory take num_envs"
        raise EnvLoadError(f"{name!r} has {built.num_envs} rows, but {n_rows} were asked for", hint=hint)
    return built


def _vector_entry_point(spec: GymSpec, n_rows: int, name: str) -> tuple[Any, Callable[..., Vector]]:
    entry = spec.vector_entry_point
    if entry is None:
        raise EnvLoadError(f"{name!r} has no vector entry point, so it cannot be vectorized natively", hint=_SYNC_HINT)

    def make(**arguments: Any) -> Vector:
        return gymnasium.make_vec(spec, num_envs=n_rows, vectorization_mode="vector_entry_point", **arguments)

    return load_env_creator(entry) if isinstance(entry, str) else entry, make


def _factory(found: Any, n_rows: int, name: str) -> Callable[..., Any]:
    if not callable(found) or isinstance(found, gymnasium.Env):
        raise EnvLoadError(f"{name!r} is no vector environment, but a {type(found).__name__}", hint=_VECTOR_HINT)
    if isinstance(found, type) and issubclass(found, gymnasium.Env):
        raise EnvLoadError(f"{name!r} is a single environment, no vector environment", hint=_SYNC_HINT)

    def build(**arguments: Any) -> Any:
        return found(num_envs=n_rows, **arguments)

    build.__signature__ = _signature(found)  # type: ignore[attr-defined]
    return build


def _signature(creator: Any) -> inspect.Signature:
    try:
        return inspect.signature(creator)
    except (TypeError, ValueError):  # Built in a language that has no signatures.
        return inspect.Signature()


def _takes(creator: Any, argument: str) -> bool:
    return argument in _signature(creator).parameters


def sync_vector(envs: Sequence[gymnasium.Env[Any, Any]]) -> Vector:
    """Return gymnasium's vector environment of these rows, which are reset from outside.

    Raises:
        EnvLoadError: If their spaces differ.
    """
    first, *others = envs
    for other in others:
        if (other.observation_space, other.action_space) != (first.observation_space, first.action_space):
            raise EnvLoadError(
                "the environments of one worker have different spaces", hint="give each worker environments of one kind"
            )
    return SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode.DISABLED)


class VectorRows:
    """A vector environment of n rows.

    Attributes:
        env: The vector environment.
        n_rows: n.
        mode: How it resets rows that ended.

    Args:
        env: The vector environment.

    Raises:
        EnvLoadError: If it does not tell its mode.
    """

    def __init__(self, env: Vector) -> None:
        self.env = env
        self.n_rows = int(env.num_envs)
        self.mode = _autoreset_mode(env)
        self._spaces = SpaceRows(env.single_observation_space)
        self._takes_list = True
        self._mask_is_proven = False

    @property
    def resets_itself(self) -> bool:
        """Return whether rows begin anew without being told, from no seed of their own."""
        return self.mode is not AutoresetMode.DISABLED

    def reset_all(self, seed: int) -> Reset:
        """Reset every row of an environment that resets itself, from one seed of 31 bits."""
        observations, infos = self.env.reset(seed=seed)
        return observations, infos

    def reset_rows(self, mask: Array, seeds: Array, before: Any) -> tuple[Any, dict[str, Any], Array]:
        """Reset the rows where `mask`, bool (n,), is true, of an environment that does not reset itself.

        Args:
            mask: The rows; all of them the first time.
            seeds: A seed in [0, 2**32) for each row, int64 (n,); those of other rows mean nothing.
            before: The last observations; None the first time.

        Returns:
            The observations, the infos, and the seeds that were really given, int64 (n,).

        Raises:
            EnvLoadError: If the environment resets rows that the mask leaves out.
        """
        # A new dictionary each time: gymnasium's own vector environments take the mask out of it.
        options = None if before is None else {"reset_mask": mask.copy()}
        observations, infos = self._reset_seeded(mask, seeds, options)
        if options is not None and not self._mask_is_proven and not mask.all():
            self._check_left_alone(~mask, before, observations)
        return observations, infos, seeds if self._takes_list else seeds >> 1

    def _reset_seeded(self, mask: Array, seeds: Array, options: dict[str, Any] | None) -> Reset:
        as_list, as_array = seeds.tolist(), seeds[mask] >> 1
        try:
            observations, infos = self.env.reset(seed=as_list if self._takes_list else as_array, options=options)
        except TypeError as error:
            if options is not None:
                raise
            # ALE takes an array of 31-bit seeds, of the rows that are reset alone.
            try:
                observations, infos = self.env.reset(seed=as_array)
            except Exception:  # noqa: BLE001  The first one says what its reset asks for.
                raise error from None
            self._takes_list = False
        return observations, infos

    def _check_left_alone(self, others: Array, before: Any, after: Any) -> None:
        pairs = zip(self._spaces.columns(before), self._spaces.columns(after), strict=True)
        for one, other in pairs:
            if np.asarray(one)[others].tobytes() != np.asarray(other)[others].tobytes():
                raise EnvLoadError(
                    f"{self.name} resets rows that options['reset_mask'] leaves out",
                    hint="let it leave them as they are, or let it reset itself and say so in its metadata",
                )
        self._mask_is_proven = True

    @property
    def name(self) -> str:
        """Return the id that it was made from, else its class."""
        spec = self.env.spec
        return repr(spec.id) if isinstance(spec, GymSpec) else type(self.env).__name__


def _autoreset_mode(env: Any) -> AutoresetMode:
    given = env.metadata.get(_MODE)
    try:
        return AutoresetMode(given)
    except ValueError as error:
        raise EnvLoadError(
            f"{type(env).__name__} does not say how it resets rows: metadata[{_MODE!r}] is {given!r}",
            hint="set it to one of gymnasium.vector.AutoresetMode: DISABLED, NEXT_STEP or SAME_STEP",
        ) from error
