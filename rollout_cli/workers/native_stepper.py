"""NativeStepper: steps all rows of a native vector environment, and tells whose episodes end and begin.

There are three ways in which a row begins anew. DISABLED: it is reset here, from its next number's seed. NEXT_STEP: the
environment resets it in the step after its last one, which is no step of any episode. SAME_STEP: the environment resets
it in the last step itself, and hands the last observation and info on beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rollout_cli.envs.vector_rows import VectorRows
from rollout_cli.errors import EnvError, PolicyError
from rollout_cli.seeding import SETUP, derive_seed
from rollout_cli.spaces import space_leaves
from rollout_cli.workers.batch_actors import BatchActors
from rollout_cli.workers.block_recorder import BlockRecorder
from rollout_cli.workers.handover import Handover
from rollout_cli.workers.native_errors import NativeErrors
from rollout_cli.workers.native_intake import NativeIntake
from rollout_cli.workers.native_rules import EndlessGuard, RowClipping
from rollout_cli.workers.next_step_episodes import NextStepEpisodes
from rollout_cli.workers.row_episodes import RowEpisodes
from rollout_cli.workers.row_numbers import NONE, RowNumbers
from rollout_cli.workers.rules import EpisodeRules

Array = npt.NDArray[Any]
Infos = Mapping[Any, Any]
_FINAL_OBSERVATIONS = ("final_obs", "final_observation")
_FINAL_INFO = "final_info"
_FINAL = {mask + key for key in (*_FINAL_OBSERVATIONS, _FINAL_INFO) for mask in ("", "_")}
_NOTHING: Infos = {}
_clock = time.perf_counter


class NativeStepper:
    """The loop of a NativeVecWorker.

    Attributes:
        episodes: What runs in each row.
        highest: The highest number that was begun.

    Args:
        rows: The vector environment.
        actors: How its rows act.
        recorder: Where steps and finished episodes go.
        queue: The numbers that wait.
        begin_anew: Seeds the global generators from an episode number.
        root_seed: The run's root seed.
        worker_number: Which worker this is, for messages.
        max_episode_length: Steps after which an episode is truncated; only for an environment that does not reset
            itself.
        rules: What is done about actions outside of their space, and about episodes that do not end.
    """

    def __init__(
        self,
        rows: VectorRows,
        actors: BatchActors,
        recorder: BlockRecorder,
        queue: RowNumbers,
        *,
        begin_anew: Callable[[int], None],
        root_seed: int,
        worker_number: int,
        max_episode_length: float,
        rules: EpisodeRules,
    ) -> None:
        self._begin_anew = begin_anew
        self._rows, self._actors, self._recorder, self._queue = rows, actors, recorder, queue
        self._root, self._limit = root_seed, max_episode_length
        self._errors = NativeErrors(worker_number, rows.n_rows, self._whereabouts)
        self._pending = NextStepEpisodes(rows.n_rows) if rows.mode is AutoresetMode.NEXT_STEP else None
        self.episodes = RowEpisodes(rows.n_rows) if self._pending is None else self._pending
        self.highest = NONE
        self._observations: Sequence[Any] = ()
        self._has_begun = False
        # Nearly all observations have one leaf, and what is called in each step is looked up once.
        self._has_one_leaf, self._put_leaf = recorder.n_observation_leaves == 1, recorder.block.recorded[0].put
        self._handover = Handover(rows.env_spec, hands_off=actors.hands_off)
        after: dict[AutoresetMode, Callable[..., None]] = {
            AutoresetMode.DISABLED: self._after_step_of_disabled,
            AutoresetMode.NEXT_STEP: self._after_next_step,
            AutoresetMode.SAME_STEP: self._after_same_step,
        }
        self._after = after[rows.mode]
        self._resets_itself = rows.mode is not AutoresetMode.DISABLED
        clipping = RowClipping(rows.env_spec.action_space, rows.n_rows) if rules.invalid_action == "clip" else None
        self._intake = NativeIntake(rows, recorder.block, self._errors, clipping=clipping)
        self._guard = EndlessGuard(
            rules,
            row_bytes=sum(leaf.row_bytes for leaf in space_leaves(rows.env_spec.observation_space)),
            step=recorder.step,
            resets_itself=self._resets_itself,
            worker_number=worker_number,
        )

    # -- beginning -------------------------------------------------------------------------------------------------

    def begin_waiting(self) -> None:
        """Begin the numbers that need not wait for a row to end: all, where no row has begun or none runs any."""
        if not len(self._queue) or self.episodes.count == self._rows.n_rows:
            return
        if self._resets_itself:
            if self._nobody_runs():
                self._begin_all()
            return
        if not self._has_begun:
            self._draw_apart()
            self._reset(np.arange(self._rows.n_rows))  # Also those without a number: none may be left from before.
            self._has_begun = True
            return
        idle = np.flatnonzero(self.episodes.numbers == NONE)
        numbers = self._queue.take(idle)
        has = numbers != NONE
        if has.any():
            self._reset(idle[has], numbers[has])

    def _nobody_runs(self) -> bool:
        """Return whether no row runs a number, or will from the next step on."""
        if not self.episodes.count:
            self.settle()
        return not self.episodes.count and (self._pending is None or not self._pending.all_begin)

    def _begin_all(self) -> None:
        """Reset the whole environment, from the seed of the lowest number."""
        seed = derive_seed(self._root, self._draw_apart(), "env") >> 32
        observations, infos = self._errors.called(EnvError, "env.reset", lambda: self._rows.reset_all(seed))
        self._intake.check_infos(infos)
        self._observations = self._intake.observations(observations)
        if self._pending is not None:
            self._pending.revive()
        self._begin(np.arange(self._rows.n_rows), infos, anew=True)

    def _draw_apart(self) -> int:
        """Seed the global generators from the lowest number that waits: no two workers may begin alike."""
        number = self._queue.lowest
        assert number is not None
        self._begin_anew(number)
        return number

    def _reset(self, rows: Array, numbers: Array | None = None) -> None:
        """Reset rows of an environment that does not do so itself, and begin an episode in those that have a number."""
        numbers = self._queue.take(rows) if numbers is None else numbers
        mask, seeds = np.zeros(self._rows.n_rows, bool), np.zeros(self._rows.n_rows, np.int64)
        mask[rows] = True
        seeds[rows] = [derive_seed(self._root, SETUP if n == NONE else n, "env") for n in numbers.tolist()]
        observations, infos = self._errors.called(EnvError, "env.reset", lambda: self._rows.reset_rows(mask, seeds))
        self._intake.check_infos(infos)
        self._observations = self._intake.observations(observations)
        self._begin(rows, infos, numbers, self._rows.given_seeds(seeds[rows]))

    def _begin(
        self,
        rows: Array,
        infos: Infos,
        numbers: Array | None = None,
        seeds: Array | None = None,
        *,
        anew: bool = False,
    ) -> None:
        numbers = self._queue.take(rows) if numbers is None else numbers
        if numbers.min() == NONE:
            has = numbers != NONE
            rows, numbers = rows[has], numbers[has]
            seeds = None if seeds is None else seeds[has]
        if not len(rows):
            return
        self.episodes.begin(rows, numbers, seeds, infos, step=self._recorder.step)
        self._tell_actors(rows, numbers, anew=anew)

    def _tell_actors(self, rows: Array, numbers: Array, *, anew: bool = False) -> None:
        """Let the policy begin episodes, where it cares, or where all rows begin."""
        self.highest = max(self.highest, int(numbers[-1]), int(numbers[0]))
        if anew or self._actors.hears_of_each:
            self._errors.called(PolicyError, "policy.reset", lambda: self._actors.begin(rows, numbers))

    # -- one step --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Take one step in every row; `begin_waiting` comes before, and `settle` when there was the last.

        Raises:
            RolloutError: If policy or environment fail, or give what is not of its space or of its interface, or if an
                episode has no end.
        """
        block = self._recorder.block
        if block.step == block.full_at:  # Written out, as below: a property would take longer.
            self.settle()
            self._recorder.make_room(self.episodes)
        if self._has_one_leaf:
            self._put_leaf(block.slot, self._observations[0])
        else:
            block.put_typed(0, self._observations)
        intake = self._intake
        seen = self._handover.to_policy(self._observations)
        self._observations = ()  # The policy may edit them; who asks from now on looks where they are recorded.
        # Written out, for a call by `NativeErrors.called` takes as long as what is done around it.
        try:
            acts, agent_infos = self._actors.act(seen)
        except Exception as error:
            raise self._errors.error(PolicyError, "policy.get_actions", error) from error
        actions = self._handover.to_env(intake.actions(acts))
        try:
            result = self._rows.env.step(actions)
        except Exception as error:
            raise self._errors.error(EnvError, "env.step", error) from error
        self._observations, terminated, truncated, infos = intake.stepped(result)
        if agent_infos:
            intake.put_agent_infos(agent_infos)
        self._after(terminated, truncated, infos)
        if block.step >= self._guard.look_at:
            self.settle()
            self._guard.look(self.episodes, block.step)

    def advance(self, deadline: float) -> None:
        """Take steps, at least one, while nothing can begin, until `time.perf_counter()` passes `deadline`."""
        self.step()
        pending = self._pending
        # What ends in such an environment is seen when it is settled; until then nobody needs to look whether it did.
        while pending is not None and pending.pending and pending.count and _clock() < deadline:
            self.step()

    def settle(self, infos: Infos = _NOTHING) -> None:
        """Finish and begin what ended and began since the last time; only where the environment was not asked at once.

        Args:
            infos: What the last step told.
        """
        if self._pending is None or not self._pending.pending:
            return
        observations = self._observations or self._recorder.observations_under_way
        begun = self._pending.settle(self._queue, infos, self._recorder, observations)
        if len(begun[0]):
            self._tell_actors(*begun)

    def _after_step_of_disabled(self, terminated: Array, truncated: Array, infos: Infos) -> None:
        self._intake.put_env_infos(infos)
        self._recorder.block.stepped()
        if self._limit < np.inf:
            truncated = truncated | (self._recorder.step - self.episodes.starts >= self._limit)
        ended = (terminated | truncated).nonzero()[0]
        if len(ended):
            self._finish(ended, terminated, truncated, tuple(leaf[ended] for leaf in self._observations))
            self._reset(ended)

    def _after_next_step(self, terminated: Array, truncated: Array, infos: Infos) -> None:
        assert self._pending is not None
        if infos:
            self._intake.put_env_infos(infos)
        self._recorder.block.stepped()
        # Infos and policies that care belong to the step at hand; without them, nothing is urgent.
        if self._pending.stepped(terminated, truncated) or infos or self._actors.hears_of_each:
            self.settle(infos)

    def _after_same_step(self, terminated: Array, truncated: Array, infos: Infos) -> None:
        over = terminated | truncated
        ended = over.nonzero()[0]
        if not len(ended):
            self._intake.put_env_infos(infos)
            self._recorder.block.stepped()
            return
        begun_infos = {key: value for key, value in infos.items() if key not in _FINAL}
        self._intake.put_env_infos(begun_infos, within=~over)
        self._intake.put_env_infos(infos.get(_FINAL_INFO) or {}, within=over)
        self._recorder.block.stepped()
        self._finish(ended, terminated, truncated, self._final(ended, infos))
        self._begin(ended, begun_infos)

    def _finish(self, rows: Array, terminated: Array, truncated: Array, last: tuple[Array, ...]) -> None:
        self.episodes.finish(
            rows, terminated=terminated[rows], truncated=truncated[rows], last=last, recorder=self._recorder
        )

    def _final(self, rows: Array, infos: Infos) -> tuple[Array, ...]:
        """Return the last observations that the environment hands on beside those of the next episodes."""
        found = next((infos[key] for key in _FINAL_OBSERVATIONS if key in infos), None)
        if found is None:
            raise self._errors.error(EnvError, "env.step", KeyError("infos has no 'final_obs' though episodes ended"))
        return self._intake.last_observations(found, rows)

    def _whereabouts(self) -> tuple[Array, int]:
        """Return the numbers that run, and how many steps were taken."""
        self.settle()
        return self.episodes.numbers[self.episodes.running], self._recorder.step
