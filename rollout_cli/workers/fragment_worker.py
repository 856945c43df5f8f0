"""FragmentWorker: parts of episodes, after a fixed number of steps; for learners that do not wait for an end."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EpisodeBatch
from rollout_cli.errors import InternalError
from rollout_cli.seeding import derive_seed, seed_global_generators
from rollout_cli.workers.agent import is_parameters
from rollout_cli.workers.env_slot import EnvSlot
from rollout_cli.workers.recorder import EpisodeStore
from rollout_cli.workers.vec_worker import DEFAULT_N_ENVS, VecWorker


class FragmentWorker(VecWorker):
    """A VecWorker that gives what it has after `timesteps_per_call` steps, whether episodes have ended or not.

    Each call goes on where the one before stopped. A fragment has its episode's number and seed, and `first_steps` of
    the batch says where in the episode it begins; its last observation is what the next fragment begins with.

    A new policy or new parameters may come while episodes run, which go on under it. What it draws from is then seeded
    anew, from the episodes that run and their steps; a whole new policy is reset in all rows, since it has seen nothing
    of them. A new environment begins new episodes.

    It numbers its episodes by itself: number i runs in row i % n_envs, as in a VecWorker.

    Args:
        seed: The root seed of the run.
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        worker_number: Which of the run's workers this is, from 0.
        n_envs: How many environments.
        timesteps_per_call: Steps that `rollout` takes in each of them.
        deterministic: Whether a policy that has a deterministic mode uses it.
    """

    whole_episodes: ClassVar[bool] = False

    def __init__(
        self,
        *,
        seed: int,
        max_episode_length: float | None,
        worker_number: int,
        n_envs: int = DEFAULT_N_ENVS,
        timesteps_per_call: int = 1,
        deterministic: bool = False,
    ) -> None:
        super().__init__(
            seed=seed,
            max_episode_length=max_episode_length,
            worker_number=worker_number,
            n_envs=n_envs,
            deterministic=deterministic,
        )
        if timesteps_per_call < 1:
            raise ValueError(f"timesteps_per_call is {timesteps_per_call}, must be at least 1")
        self._timesteps_per_call = timesteps_per_call
        self._next_of_row: dict[int, int] = {}
        self._first_steps: dict[int, int] = {}
        self._is_tried = False

    # -- updates ----------------------------------------------------------------------------------------------------

    def update_env(self, env_update: Any) -> None:
        """Take new environments or apply updates, as a VecWorker does; what runs is given up.

        Raises:
            EnvLoadError: If one cannot be built or recorded, or they have different spaces.
        """
        super().update_env(env_update)
        if env_update is not None:
            self._is_tried = False

    def update_agent(self, agent_update: Any) -> None:
        """Take a new policy, or new parameters for the one there is; what runs goes on.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised.
        """
        running = {row: slot for row, slot in enumerate(self._slots) if slot.number is not None}
        if agent_update is None:
            return
        if not running:
            super().update_agent(agent_update)
            self._is_tried = self._is_tried and is_parameters(agent_update)
            return
        self._agent.update(agent_update)
        if not is_parameters(agent_update):
            self._make_ready()
        self._seed_again(running)
        if not is_parameters(agent_update):
            self._begin_policy(running)

    def _seed_again(self, running: dict[int, EnvSlot]) -> None:
        """Seed what the policy draws from: an update leaves it in one state, so that every call would draw alike."""
        first, *_ = running.values()
        seed_global_generators(self._seed, _moment(first))
        if not self._acting.row_by_row:
            self._seeder.begin(_moment(first))
            return
        for slot in running.values():
            with slot.turn:
                slot.seeder.begin(_moment(slot))

    def _begin_policy(self, running: dict[int, EnvSlot]) -> None:
        actors = self._the_rows().actors
        for row, slot in running.items():
            actors.seed(row, derive_seed(self._seed, _moment(slot), "policy"))
            actors.begin(row)
        actors.begun(min(running))

    # -- steps ------------------------------------------------------------------------------------------------------

    def go_on_from(self, number: int) -> None:
        """Let every row begin with its own lowest number that is not below `number`."""
        for row in range(len(self._slots)):
            self._next_of_row[row] = self._own_number(row, number)

    def start_episode(self) -> None:
        """Begin an episode in each free row; what runs goes on."""
        if not self._is_tried:
            self._try_one_step()
        self._begin_rows()

    def _try_one_step(self) -> None:
        """Take a step and begin anew, so that generators which show only when they are drawn from are known.

        A worker of whole episodes runs such an episode again; here a part of it may have been handed on by then.
        """
        for slot in self._slots:
            slot.record_into(EpisodeStore(self.env_spec, worker_number=self._worker_number, rules=self.rules))
        self._share_out()
        self._begin_rows()
        numbers = {row: slot.number for row, slot in enumerate(self._slots) if slot.number is not None}
        self._step_rows()
        self._must_run_again(self._slots)
        self._is_tried = True
        for slot in self._slots:
            slot.forget()
            slot.record_into(self._the_store())
        self._share_out()
        self._begin_rows(numbers)

    def step_episode(self) -> bool:
        """Take one step in every row, beginning episodes in those that are free; return whether an episode ended."""
        self.start_episode()
        return super().step_episode()

    def rollout(self) -> EpisodeBatch:
        """Take `timesteps_per_call` steps in every row and return them, as fragments."""
        for _ in range(self._timesteps_per_call):
            self.step_episode()
        return self.collect_episode()

    def collect_episode(self) -> EpisodeBatch:
        """Return all steps since the last call: episodes that ended, and fragments of those that go on.

        Raises:
            InternalError: If no step was taken.
        """
        for slot in self._slots:
            if slot.number is not None and slot.recorder.rewards:
                slot.cut()
        chunk = self.take()
        if chunk is None:
            raise InternalError("collect_episode was called with no step taken")
        first_steps = self._pop_first_steps(chunk)
        return EpisodeBatch.from_chunks(self.env_spec, [chunk], first_steps=first_steps)

    def _pop_first_steps(self, chunk: Chunk) -> Any:
        known = [self._first_steps.pop(number, 0) for number in chunk.numbers.tolist()]
        self._first_steps = {slot.number: slot.first_step for slot in self._slots if slot.number is not None}
        return np.array(known, np.int64)

    def _must_run_again(self, slots: list[EnvSlot]) -> bool:
        again = super()._must_run_again(slots)
        if again and self._is_tried:
            # A part may have been handed on. From the next episode on, the generator is seeded.
            self._share_out()
            return False
        return again

    def _next_of(self, row: int) -> int:
        queue = self._queues[row]
        number = queue[0] if queue else self._next_of_row.get(row, self._own_number(row, 0))
        if queue:
            self._waiting.remove(queue.popleft())
        self._next_of_row[row] = number + len(self._slots) * self.number_stride
        return number

    def _own_number(self, row: int, least: int) -> int:
        """Return the row's lowest number that is at least `least`."""
        first = row * self.number_stride + self._worker_number % self.number_stride
        step = len(self._slots) * self.number_stride
        return first + max(0, -(-(least - first) // step)) * step


def _moment(slot: EnvSlot) -> str:
    """Return a name for where a running episode stands, to seed from."""
    return f"{slot.number}+{slot.first_step}"
