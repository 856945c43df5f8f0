"""VecWorker: one policy in several copies of an environment, with one batched policy call a step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

from rollout_cli.envs import each_its_own, env_record
from rollout_cli.errors import EnvLoadError, InternalError
from rollout_cli.policies import policy_class
from rollout_cli.sleepers import GlobalSeeder
from rollout_cli.workers.acting import Actors
from rollout_cli.workers.agent import AgentHolder
from rollout_cli.workers.env_slot import EnvSlot
from rollout_cli.workers.episode_seeds import EpisodeSeeds
from rollout_cli.workers.recording_worker import RecordingWorker
from rollout_cli.workers.row_acting import RowActing
from rollout_cli.workers.row_steps import RowSteps
from rollout_cli.workers.seeder import EpisodeSeeder

DEFAULT_N_ENVS = 8

_PREPARED_AT_ONCE, _FEWEST_A_ROW = 256, 4
"""So many episodes are prepared in one pass, but at least so many a row, for each row runs ahead by itself."""

_clock = time.perf_counter


class VecWorker(RecordingWorker):
    """Runs one policy in `n_envs` environments at once. Each row takes its own next number when its episode ends.

    Number i always runs in row i % n_envs (of this worker's own numbers, where it owns every m-th), so an episode is a
    function of (number, n_envs) alone; for policies that act row by row, in any row, and bit-equal to DefaultWorker.

    Args:
        seed: The root seed of the run.
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        worker_number: Which of the run's workers this is, from 0.
        n_envs: How many environments.
        deterministic: Whether a policy that has a deterministic mode uses it.
    """

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
        global_seeder = GlobalSeeder(seed)
        self._seeds = seeds = EpisodeSeeds(seed)
        self._seeder = EpisodeSeeder(seed, global_seeder, seeds)
        self._agent = AgentHolder(self._seeder, deterministic=deterministic)
        self._slots = [EnvSlot(seed, global_seeder, worker_number, seeds=seeds) for _ in range(n_envs)]
        self._may_begin = True
        self._queues: list[deque[int]] = [deque() for _ in range(n_envs)]
        self._rows: RowSteps | None = None
        self._acting = RowActing(self._slots, self._seeder, global_seeder)
        self._steps_by_verb = type(self).step_episode is not VecWorker.step_episode

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        """Return `n_envs`: as many numbers run at the same time."""
        return int(worker_args.get("n_envs", DEFAULT_N_ENVS))

    # -- updates ----------------------------------------------------------------------------------------------------

    def update_env(self, env_update: Any) -> None:
        """Take new environments or apply updates: one for all rows, or a list with one a row; None changes nothing.

        Raises:
            EnvLoadError: If one cannot be built or recorded, or they have different spaces.
        """
        if env_update is None:
            return
        updates = env_update if isinstance(env_update, list) else [env_update] * len(self._slots)
        if len(updates) != len(self._slots):
            raise EnvLoadError(f"a list with one environment a row has {len(self._slots)} entries, not {len(updates)}")
        pairs = zip(self._slots, each_its_own(updates), strict=True)
        first, *others = [slot.update_env(update) for slot, update in pairs]
        if any(other != first for other in others):
            raise EnvLoadError("the environments of one worker have different spaces or limits")
        if self._take_spec(first):
            for slot in self._slots:
                slot.record_into(self._the_store())
            self._agent.forget_policy()
        self._make_ready()

    def update_agent(self, agent_update: Any) -> None:
        """Take a new policy (any kind that `adapt_policy` knows, or a PolicySource) or new parameters for it.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised.
        """
        if agent_update is None:
            return
        for slot in self._slots:
            slot.forget()
        self._agent.update(agent_update)
        self._make_ready()

    def _make_ready(self) -> None:
        """Adapt the policy once both it and the spaces are known, and find what it and the environments draw from."""
        if self._store is not None:
            self._agent.adapt(*(slot.spec for slot in self._slots if slot.spec is not None))
        if not self._agent.is_ready:
            return
        self._seeds.forget()
        self._share_out(self._acting.actors(self._agent.policies, self.env_spec))

    def _share_out(self, actors: Actors | None = None) -> None:
        """Let rows that share generators take turns with them from now on; they may have other actors, too."""
        self._rows = RowSteps(
            self._slots,
            actors or self._the_rows().actors,
            max_episode_length=self._max_episode_length,
            in_turn=self._acting.share_out(),
        )

    # -- episodes ---------------------------------------------------------------------------------------------------

    def assign(self, numbers: Iterable[int]) -> None:
        """Add episode numbers to run; each row runs its lowest first."""
        super().assign(numbers)
        self._may_begin = True
        for queue in self._queues:
            queue.clear()
        for number in self._waiting:
            self._queues[number // self.number_stride % len(self._queues)].append(number)

    def retract(self, *, above: int | None = None) -> None:
        """Give up the numbers that are higher than `above`, waiting or running; all of them where it is None."""
        super().retract(above=above)
        self.assign(())
        self._seeds.forget()
        for slot in self._slots:
            if slot.number is not None and (above is None or slot.number > above):
                slot.forget()
        if self._rows is not None:
            self._rows.look_again()
        if self._store is not None and above is not None:
            self._store.drop_held(above)
        elif self._store is not None:
            self._store.release(None, _clock())

    def start_episode(self) -> None:
        """Begin an episode in each free row that has a number; the next number where none is assigned and none runs.

        What runs goes on, so that no assigned number is lost.
        """
        if not self.has_work:
            self.assign([self._own_next])
        self._begin_rows()

    def step_episode(self) -> bool:
        """Take one step in every row; return whether an episode ended."""
        if not self.running:
            raise InternalError("step_episode was called with no episode under way: call start_episode first")
        before = len(self.finished_numbers)
        self._step_rows()
        return len(self.finished_numbers) > before

    def advance(self, deadline: float) -> None:
        """Run assigned numbers until `time.perf_counter()` passes `deadline`, or none is left; at least one step.

        An episode that ends before a lower number does is held back for a while, as if it were still running.
        """
        store = self._the_store()
        store.holding = True
        try:
            self._advance(deadline)
        except BaseException:
            store.release(None, _clock())
            raise
        finally:
            store.holding = False
        store.release(self._lowest_open(), _clock())

    def _advance(self, deadline: float) -> None:
        while self.has_work:
            if not self.running:
                self.start_episode()
            elif self._may_begin and self._waiting:
                self._begin_rows()
            if self._steps_by_verb:
                self.step_episode()
            else:
                self._step_rows()
            if _clock() >= deadline:
                return

    def _lowest_open(self) -> int | None:
        running = [slot.number for slot in self._slots if slot.number is not None]
        return min([*running, *islice(self._waiting, 1)], default=None)

    def _begin_rows(self, again: dict[int, int] | None = None) -> None:
        """Begin episodes in the rows that have none; `again` gives rows and the numbers that they begin once more."""
        numbers = dict(again or {})
        for row, slot in enumerate(self._slots):
            if slot.number is None and row not in numbers and (number := self._next_of(row)) is not None:
                numbers[row] = number
        self._may_begin = False
        if numbers:
            self._prepare(numbers.values())
            self._the_rows().begin(numbers)

    def _prepare(self, numbers: Collection[int]) -> None:
        """Do at once, for these numbers and those that come next, what their beginnings have in common."""
        # A few are prepared faster one by one, as they begin.
        if len(self._waiting) < len(self._slots) or all(map(self._seeds.is_prepared, numbers)):
            return
        queues = [self._waiting] if self._acting.row_wise else self._queues
        each = max(_FEWEST_A_ROW, _PREPARED_AT_ONCE // len(queues))
        ahead = [*numbers, *(number for queue in queues for number in islice(queue, each))]
        new = [number for number in ahead if not self._seeds.is_prepared(number)]
        self._seeds.prepare(new)
        self._agent.prepare_rows(new)

    def _next_of(self, row: int) -> int | None:
        queue = self._waiting if self._acting.row_wise else self._queues[row]
        if not queue:
            return None
        number = queue[0]
        self._waiting.remove(number)
        if not self._acting.row_wise:
            queue.popleft()
        self._own_next = max(self._own_next, number + 1)
        return number

    def _step_rows(self) -> None:
        ended = self._the_rows().step()
        if not ended:
            return
        if self._must_run_again([slot for slot, _, _ in ended]):
            self._run_again()
            return
        self._may_begin = True
        for slot, terminated, truncated in ended:
            slot.finish(terminated=terminated, truncated=truncated)

    def _must_run_again(self, slots: list[EnvSlot]) -> bool:
        return self._acting.must_run_again(slots)

    def _run_again(self) -> None:
        """Begin all running episodes once more: they may have drawn from a generator that nobody knew, too."""
        self._seeder.before_build()
        self._share_out()
        numbers = {row: slot.number for row, slot in enumerate(self._slots) if slot.number is not None}
        for row in numbers:
            self._slots[row].recorder.discard()
        self._begin_rows(numbers)

    def _the_rows(self) -> RowSteps:
        if self._rows is None:
            raise InternalError("the worker needs both a policy and an environment: update_agent and update_env")
        return self._rows

    # -- what a sampler asks ----------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Return whether an episode is under way."""
        for slot in self._slots:  # noqa: SIM110  Mostly the first one is; making a generator takes ten times as long.
            if slot.number is not None:
                return True
        return False

    def facts(self) -> dict[str, Any]:
        """Return the policy's class, the record of the environment, and how far the episodes can be reproduced."""
        facts = {"policy_class": policy_class(self._agent.policy), "env": env_record(self._slots[0].env)}
        if not self._acting.row_wise:
            facts["scope"] = "n_envs"
        if self.not_reproducible is not None:
            facts["not_reproducible"] = self.not_reproducible
        return facts

    @property
    def not_reproducible(self) -> str | None:
        """Return why the episodes cannot be reproduced, as far as it is known by now."""
        return self._acting.not_reproducible(self._agent.policy) if self._agent.is_ready else None

    def shutdown(self) -> None:
        """Close the environments."""
        for slot in self._slots:
            slot.close()
