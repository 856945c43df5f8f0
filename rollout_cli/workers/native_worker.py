"""NativeVecWorker: one policy in a native vector environment, which steps all its rows itself."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rollout_cli.chunk import Chunk
from rollout_cli.envs import EnvSource, EnvUpdate
from rollout_cli.envs.vector_record import vector_name, vector_record
from rollout_cli.envs.vector_rows import VectorRows
from rollout_cli.envs.vector_sources import build_vector_env
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import EnvLoadError, InternalError
from rollout_cli.policies import policy_class
from rollout_cli.seeding import SETUP, derive_seed
from rollout_cli.workers.agent import AgentHolder
from rollout_cli.workers.block_recorder import BlockRecorder
from rollout_cli.workers.native_stepper import NativeStepper
from rollout_cli.workers.recording_worker import StoringWorker
from rollout_cli.workers.row_numbers import OwnNumbers, RowNumbers, SharedNumbers
from rollout_cli.workers.row_policy import RowPolicy
from rollout_cli.workers.vec_worker import DEFAULT_N_ENVS

Array = npt.NDArray[Any]
_clock = time.perf_counter

RELEASE_SECONDS = 0.03
RELEASE_STEPS = 384
"""How often finished episodes are looked through for those that nothing holds up: whichever comes first.

They are gathered from steps that may still be in the processor's caches then, and before room for others must be made.
"""


class NativeVecWorker(StoringWorker):
    """Runs one policy in the `n_envs` rows of a native vector environment.

    Where the environment lets single rows be reset from seeds (autoreset mode DISABLED), number i runs in row
    i % n_envs, and is the same episode whichever worker runs it. One that resets its rows itself cannot repeat an
    episode by its number; a row that begins an episode then takes the lowest number that waits, and what it does
    without a number is dropped.

    Args:
        seed: The root seed of the run.
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        worker_number: Which of the run's workers this is, from 0.
        n_envs: How many rows.
        deterministic: Whether a policy that has a deterministic mode uses it.
    """

    _store: BlockRecorder | None = None

    def __init__(
        self,
        *,
        seed: int,
        max_episode_length: float | None,
        worker_number: int,
        n_envs: int = DEFAULT_N_ENVS,
        deterministic: bool = False,
    ) -> None:
        super().__init__(seed=seed, max_episode_length=max_episode_length, worker_number=worker_number)
        if n_envs < 1:
            raise ValueError(f"n_envs is {n_envs}, must be at least 1")
        self._n_envs = n_envs
        self._policy = RowPolicy(seed, n_envs)
        self._seeder = self._policy.seeder
        self._agent = AgentHolder(self._seeder, deterministic=deterministic)
        self._rows: VectorRows | None = None
        self._stepper: NativeStepper | None = None
        self._queue: RowNumbers = SharedNumbers()
        self._released_at, self._released_step = 0.0, 0

    def _new_store(self, spec: EnvSpec) -> BlockRecorder:
        return BlockRecorder(spec, n_envs=self._n_envs, worker_number=self._worker_number)

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        """Return `n_envs`: as many numbers run at the same time."""
        return int(worker_args.get("n_envs", DEFAULT_N_ENVS))

    # -- updates ----------------------------------------------------------------------------------------------------

    def update_env(self, env_update: Any) -> None:
        """Take a new vector environment (one, or an EnvSource) or apply an EnvUpdate; None changes nothing.

        Raises:
            EnvLoadError: If it has no vector form, cannot be built or recorded, or its episodes cannot be limited.
        """
        if env_update is None:
            return
        self._seeder.before_build()
        env = self._built(env_update)
        if self._rows is not None and self._rows.env is not env:
            self._rows.env.close()
        self._rows = VectorRows(env, seed=self._own_seed("first reset"))
        if self._rows.n_rows != self._n_envs:
            raise EnvLoadError(f"the vector environment has {self._rows.n_rows} rows, not {self._n_envs}")
        self._check_limit(self._rows)
        if self._take_spec(self._rows.env_spec):
            self._agent.forget_policy()
        self._make_ready()

    def _built(self, env_update: Any) -> Any:
        if isinstance(env_update, EnvSource):
            return build_vector_env(env_update, self._n_envs, seed=self._own_seed("vector env"))
        if isinstance(env_update, EnvUpdate):
            return env_update(None if self._rows is None else self._rows.env)
        return env_update

    def _own_seed(self, stream: str) -> int:
        """Return 31 bits that no other worker has: environments that seed themselves must not do alike."""
        return derive_seed(self._seed, SETUP, f"{stream} {self._worker_number}") >> 32

    def _check_limit(self, rows: VectorRows) -> None:
        limit, own = self._max_episode_length, rows.env_spec.max_episode_length
        if rows.mode is AutoresetMode.DISABLED or limit == float("inf") or (own is not None and own <= limit):
            return
        what = "no limit that is known" if own is None else f"a limit of {own} steps"
        raise EnvLoadError(
            f"{vector_name(rows.env)} resets its rows itself and has {what}, so none can be cut at {limit:g} steps",
            hint="give the limit to the environment, as in --env-kwargs max_episode_steps=N, or leave it away",
        )

    def update_agent(self, agent_update: Any) -> None:
        """Take a new policy (any kind that `adapt_policy` knows, or a PolicySource) or new parameters for it.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised.
        """
        if agent_update is None:
            return
        self._agent.update(agent_update)
        self._make_ready()

    def _make_ready(self) -> None:
        self._stepper = None
        if self._store is None or self._rows is None:
            return
        self._store.drop_above(None)
        if not self._agent.is_ready:
            # Each row has its own spaces, for a policy of its own may draw from them.
            self._agent.adapt(self.env_spec, *(copy.deepcopy(self.env_spec) for _ in range(self._n_envs - 1)))
        if not self._agent.is_ready:
            return
        if self._rows.mode is AutoresetMode.DISABLED:
            self._queue = OwnNumbers(self._n_envs)
        else:
            self._queue = SharedNumbers()
        self._stepper = NativeStepper(
            self._rows,
            self._policy.actors(self._agent, self.env_spec, self._queue),
            self._store,
            self._queue,
            begin_anew=self._policy.begin_anew,
            root_seed=self._seed,
            worker_number=self._worker_number,
            max_episode_length=self._max_episode_length,
            rules=self.rules,
        )

    # -- episodes ---------------------------------------------------------------------------------------------------

    def assign(self, numbers: Iterable[int]) -> None:
        """Add episode numbers to run."""
        if isinstance(self._queue, OwnNumbers):
            self._queue.stride = self.number_stride
        self._queue.add(numbers)

    def retract(self, *, above: int | None = None) -> None:
        """Give up the numbers that are higher than `above`, waiting, running, or finished and nobody told of them."""
        if self._stepper is not None:
            self._stepper.settle()
        self._queue.drop_above(above)
        if self._stepper is not None:
            self._stepper.episodes.forget_above(above)
        if self._store is not None:
            self._store.drop_above(above)

    def start_episode(self) -> None:
        """Begin an episode in each row that has a number; the next number where none is assigned."""
        self._the_stepper().episodes.forget_above(None)
        if not len(self._queue):
            self.assign([self._own_next])
        self._begin()

    def _begin(self) -> None:
        stepper = self._the_stepper()
        stepper.begin_waiting()
        self._own_next = max(self._own_next, stepper.highest + 1)

    def step_episode(self) -> bool:
        """Take one step in every row; return whether an episode ended that can be collected."""
        if not self.running:
            raise InternalError("step_episode was called with no episode under way: call start_episode first")
        store = self._the_recorder()
        before = store.n_episodes
        self._the_stepper().step()
        self._release()
        return store.n_episodes > before

    def advance(self, deadline: float) -> None:
        """Run assigned numbers until `time.perf_counter()` passes `deadline`, or none is left; at least one step."""
        stepper = self._the_stepper()
        while self.has_work:
            self._begin()
            stepper.advance(deadline)
            if _clock() >= deadline:
                break
        if not self.has_work or self._release_is_due():
            self._release()

    def _release_is_due(self) -> bool:
        steps = self._the_recorder().step - self._released_step
        return steps >= RELEASE_STEPS or _clock() - self._released_at >= RELEASE_SECONDS

    def _release(self) -> None:
        # Not after each stretch of steps: looking through some costs as much as looking through many.
        self._the_stepper().settle()
        self._released_at, self._released_step = _clock(), self._the_recorder().step
        self._policy.look_at_generators()
        lowest = [number for number in (self._the_stepper().episodes.lowest, self._queue.lowest) if number is not None]
        self._the_recorder().release(min(lowest, default=None), _clock())

    # -- what a sampler asks ----------------------------------------------------------------------------------------

    def take(self) -> Chunk | None:
        """Remove the finished episodes and return them; None where there are none."""
        return self._store.take(self.lend) if self._store else None

    def finished_since(self, count: int) -> Array:
        """Return the numbers of the finished episodes that came after the first `count`, int64 (k,)."""
        return np.empty(0, np.int64) if self._store is None else self._store.numbers_since(count)

    @property
    def running(self) -> bool:
        """Return whether an episode is under way."""
        return self._stepper is not None and self._stepper.episodes.count > 0

    @property
    def has_work(self) -> bool:
        """Return whether an episode runs or a number waits."""
        return self.running or len(self._queue) > 0

    def facts(self) -> dict[str, Any]:
        """Return the policy's class, the record of the environment, and how far the episodes can be reproduced."""
        assert self._rows is not None
        facts: dict[str, Any] = {
            "policy_class": policy_class(self._agent.policy),
            "env": vector_record(self._rows.env),
            "scope": "n_envs",
        }
        return facts | ({"not_reproducible": self.not_reproducible} if self.not_reproducible else {})

    @property
    def not_reproducible(self) -> str | None:
        """Return why the episodes cannot be reproduced, as far as it is known by now."""
        reasons = [self._rows.not_reproducible] if self._rows is not None and self._rows.not_reproducible else []
        if self._policy.shared:
            reasons.append(
                f"all rows draw from one generator ({', '.join(self._policy.shared)}): a policy that draws needs "
                "seed_rows(mask, seeds) and a generator a row"
            )
        return "; ".join(reasons) or None

    def shutdown(self) -> None:
        """Close the environment."""
        if self._rows is not None:
            self._rows.env.close()
            self._rows = self._stepper = None

    def _the_recorder(self) -> BlockRecorder:
        if self._store is None:
            raise InternalError("the worker has no environment yet: call update_env first")
        return self._store

    def _the_stepper(self) -> NativeStepper:
        if self._stepper is None:
            raise InternalError("the worker needs both a policy and an environment: update_agent and update_env")
        return self._stepper
