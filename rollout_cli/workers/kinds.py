"""DefaultWorker, which has one environment, and VecWorker, which has several; both choose the engine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import gymnasium
from gymnasium.vector import VectorEnv

from rollout_cli.envs.describe import env_spec_of
from rollout_cli.envs.functional.protocol import FunctionalEnv, is_functional
from rollout_cli.envs.source import build_native, one_for_each
from rollout_cli.envs.updates import EnvUpdate, check_env, check_makes_new, close_env, updated_env
from rollout_cli.errors import ArgumentError, EnvLoadError, UsageError
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.seeding.seeds import SETUP, derive_seed, seed_globals
from rollout_cli.workers.native.engine import NativeEngine
from rollout_cli.workers.native.rows import NativeRows
from rollout_cli.workers.rows.lockstep import LockstepRows
from rollout_cli.workers.rows.sequential import SequentialRows, TrialRows
from rollout_cli.workers.values import WorkerReport
from rollout_cli.workers.worker import OVERRIDABLE, Engine, Setting, Worker, reporting_failures


class DefaultWorker(Worker):
    """Runs one policy in one environment, one episode at a time; `Worker` documents arguments and errors.

    Example:
        >>> import gymnasium
        >>> worker = rollout_cli.DefaultWorker(seed=0, max_episode_length=5, worker_number=0)
        >>> worker.update_agent(lambda observation: 0)
        >>> worker.update_env(gymnasium.make("CartPole-v1"))
        >>> worker.rollout().actions.tolist()
        [0, 0, 0, 0, 0]
        >>> worker.shutdown()
    """

    _env_updates: Sequence[Any] = ()  # The last updates; with `fresh_env` they build each environment.
    functional: FunctionalEnv | None = None  # The JAX environment of all rows.
    _compile: Callable[[], None]  # Compiles its program, unless that is done.

    def update_env(self, env_update: Any) -> None:
        if env_update is None:
            return
        if not is_functional(env_update):
            check_env(
                env_update,
                gymnasium.Env,
                hint="use VecWorker for vector environments and lists",
                or_update=True,
            )
        self._update_rows([env_update])

    def _update_rows(self, updates: Sequence[Any]) -> None:
        """Apply one update per row."""
        for update in updates:
            if self._fresh_env:
                check_makes_new(update)
            elif self.functional is not None and isinstance(update, EnvUpdate) and not update.replaces_env:
                raise _not_for_jax(
                    "an update that changes an environment", "use NewEnvUpdate to build another"
                )
        self._forget()
        envs = []
        n_rows = len(updates)
        old_envs = self._envs if len(self._envs) == n_rows else [None] * n_rows
        for old, update in zip(old_envs, updates, strict=True):
            # Every row has the same seed: an episode must not depend on its row.
            seed_globals(self._seed, SETUP)
            env = updated_env(old, update, gymnasium.Env)
            if not isinstance(env, gymnasium.Env):
                if any(other is not update for other in updates):
                    raise _not_for_jax("a list of environments", "pass one JAX environment for all rows")
                self._use_functional(env, old_envs[1:])
                return
            envs.append(env)
        if self.rules.device is not None:
            raise UsageError(
                "device is for JAX environments, but this is a gymnasium environment",
                code="env-device",
                hint="omit {device}",
            )
        spec, *others = [env_spec_of(env, self._limit) for env in envs]
        for row, other in enumerate(others, 1):
            if other != spec:
                difference = other.difference(spec)
                raise EnvLoadError(
                    f"environment {row} of worker {self.worker_number} has the {difference} "
                    "as in environment 0",
                    code="worker-spaces",
                    hint="build environments with the same spaces and time limit for all rows",
                )
        self.functional = None
        self._envs = envs
        self._env_updates = updates
        # A policy may sample from the spaces: its draws must not depend on when the environment was rebuilt.
        self._use_spec(copy.deepcopy(spec) if self._fresh_env else spec)

    def _use_functional(self, env: FunctionalEnv, old_envs: Sequence[Any]) -> None:
        """Use a JAX environment for all rows, and close the old environments."""
        from rollout_cli.envs.functional.vector import FunctionalVectorEnv, use_device  # noqa: PLC0415 - it loads JAX

        vector = FunctionalVectorEnv(env, self._n_envs)
        rules = self.rules
        overridden = [name for name in OVERRIDABLE if getattr(type(self), name) is not getattr(Worker, name)]
        for option, value in (
            ("fresh_env", self._fresh_env),
            ("reset_options", rules.reset_options),
            ("tasks", rules.tasks),
            ("store_state", rules.store_state),
            ("worker_class", overridden),
        ):
            if value:
                raise _not_for_jax(
                    option, f"omit {{{option}}}, or wrap the JAX environment as a gymnasium.Env"
                )
        if rules.device is not None:
            use_device(rules.device)
        for old in old_envs:
            close_env(old)
        self.functional = env
        self._envs = [vector]
        self._use_spec(env_spec_of(vector, self._limit))

    def prepare(self) -> None:
        if self.functional is not None:
            with reporting_failures(self._ready()):
                self._compile()

    def report(self) -> WorkerReport:
        return replace(super().report(), compiles=self.functional is not None)

    def _n_queues(self, policy: AdaptedPolicy) -> int:
        is_alike = self.functional is not None and policy.acts_alike(self._n_envs)
        return 1 if is_alike else self._n_envs

    def _new_engine(self, setting: Setting) -> Engine:
        if self.functional is not None:
            from rollout_cli.workers.functional.choice import functional_engine  # noqa: PLC0415 - it loads JAX

            engine, self._compile = functional_engine(setting, self._envs[0], self._seed)
            return engine
        kind: type[SequentialRows | LockstepRows] = LockstepRows
        if self._n_envs == 1 or setting.policy.row_by_row:
            kind = SequentialRows if type(self).predecessors is Worker.predecessors else TrialRows
        return kind(setting, self._envs, self._env_updates if self._fresh_env else None)


class VecWorker(DefaultWorker):
    """Runs one policy in `n_envs` rows (environments) at once.

    Episode i runs in row i % n_envs, or in any free row if the policy acts the same in every row. If the
    worker resets the rows, an episode is a function of its number and `n_envs`; if the policy also acts on
    each row independently, it is the same episode that a DefaultWorker runs. With `sync` and a policy that
    acts on one observation at a time, the rows alternate: one episode runs at a time.

    With `sync`, a subclass may override `reset_env` and `step_env`; samplers reject a subclass that overrides
    another method in `OVERRIDABLE`.

    Args:
        n_envs: Number of rows.
        vectorization: `sync` steps n_envs copies of the environment sequentially; `native` steps the vector
            form of the environment: its vector entry point, or a factory that accepts `num_envs`.
        common: Arguments of every worker; `fresh_env` needs `sync`.

    Raises:
        ArgumentError: If `n_envs` or `vectorization` is invalid (also a ValueError).

    Example:
        >>> import gymnasium
        >>> worker = rollout_cli.VecWorker(n_envs=2, seed=0, max_episode_length=5, worker_number=0)
        >>> worker.update_agent(lambda observation: 0)
        >>> worker.update_env(gymnasium.make("CartPole-v1"))
        >>> worker.rollout().lengths.tolist()
        [5, 5]
        >>> worker.shutdown()
    """

    DEFAULT_N_ENVS: ClassVar[int] = 8

    def __init__(
        self,
        *,
        n_envs: int = DEFAULT_N_ENVS,
        vectorization: Literal["sync", "native"] = "sync",
        fresh_env: bool = False,
        **common: Any,
    ) -> None:
        check_n_envs(n_envs)
        if vectorization not in ("sync", "native"):
            raise ArgumentError(
                f"vectorization is {vectorization!r}, expected 'sync' or 'native'", code="factory-argument"
            )
        if fresh_env and vectorization == "native":
            raise ArgumentError(
                "fresh_env=True cannot be used with vectorization='native'",
                code="factory-argument",
                hint="omit one of them: fresh_env=True rebuilds single environments",
            )
        self._n_envs = n_envs
        self._is_native = vectorization == "native"
        self._native: NativeRows | None = None
        self._rows_differ = False  # True once rows were given different environments.
        super().__init__(fresh_env=fresh_env, **common)

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        return check_n_envs(int(worker_args.get("n_envs", cls.DEFAULT_N_ENVS)))

    @classmethod
    def overridable(cls, worker_args: dict[str, Any]) -> tuple[str, ...]:
        if worker_args.get("vectorization") == "native":
            return ()
        return "reset_env", "step_env"

    def update_env(self, env_update: Any) -> None:
        """Use new environments or apply updates: one for all rows, or a list with one per row (`sync` only).

        Raises:
            EnvTypeError: If an object is neither an environment nor an update (also a TypeError).
            ArgumentError: If the length of the list is not `n_envs` (also a ValueError).
            EnvLoadError: If an environment cannot be built or recorded, has no vector form, has different
                spaces than another row, or cannot truncate its episodes at the limit of the run.
        """
        if env_update is None:
            return
        if self._is_native:
            check_env(env_update, VectorEnv, hint="omit vectorization='native'", or_update=True)
            self._update_native(env_update)
            return
        updates = env_update if isinstance(env_update, list) else [env_update]
        for update in updates:
            if not is_functional(update):
                check_env(
                    update,
                    gymnasium.Env,
                    hint="vector environments need vectorization='native'",
                    or_update=True,
                )
        self._rows_differ = self._rows_differ or updates is env_update
        self._update_rows(one_for_each(env_update, self._n_envs))

    def _update_native(self, env_update: Any) -> None:
        self._forget()
        seed_globals(self._seed, SETUP)
        # Each start of each worker has its own seed: no two run the same episodes. The seed has 31 bits.
        seed = derive_seed(self._seed, SETUP, f"native env {self.worker_number} {self._context.salt}") >> 33
        env = updated_env(
            self.env, env_update, VectorEnv, lambda source: build_native(source, self._n_envs, seed)
        )
        rows = NativeRows(env, self._n_envs, self._seed)
        self._envs = [env]
        self._native = rows
        rows.check_limit(self._limit)
        self._use_spec(env_spec_of(env, self._limit))

    def _n_queues(self, policy: AdaptedPolicy) -> int:
        if self.functional is not None:
            return super()._n_queues(policy)
        if self._native is not None:
            are_alike = self._native.resets_itself
        else:
            are_alike = not (self._rows_differ or policy.row_by_row) and policy.acts_alike(self._n_envs)
        return 1 if are_alike else self._n_envs

    def _new_engine(self, setting: Setting) -> Engine:
        if self._native is None:
            return super()._new_engine(setting)
        return NativeEngine(setting, self._native)


def _not_for_jax(subject: str, hint: str) -> UsageError:
    message = f"{subject} is for gymnasium environments, but this is a JAX environment"
    return UsageError(message, code="jax-option", hint=hint)


def check_n_envs(n_envs: int) -> int:
    """Return `n_envs`; ArgumentError if it is less than 1."""
    if n_envs < 1:
        raise ArgumentError(f"n_envs is {n_envs}, expected at least 1", code="factory-argument")
    return n_envs
