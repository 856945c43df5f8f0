"""NativeStepper: steps all rows of a native vector environment, and tells whose episodes end and begin.

There are three ways in which a row begins anew. DISABLED: it is reset here, from its next number's seed. NEXT_STEP: the
environment resets it in the step after its last one, which is no step of any episode. SAME_STEP: the environment resets
it in the last step itself, and hands the last observation and info on beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rollout_cli.envs.vector_rows import VectorRows
from rollout_cli.errors import EnvError, PolicyError, UserCodeError
from rollout_cli.policies.rows import stack_samples
from rollout_cli.seeding import SETUP, derive_seed
from rollout_cli.spaces import flatten, space_leaves, unflatten
from rollout_cli.workers.batch_actors import BatchActors
from rollout_cli.workers.block_recorder import BlockRecorder
from rollout_cli.workers.leaf_columns import BadSampleError
from rollout_cli.workers.native_errors import NativeErrors
from rollout_cli.workers.next_step_episodes import NextStepEpisodes
from rollout_cli.workers.row_episodes import RowEpisodes
from rollout_cli.workers.row_numbers import NONE, RowNumbers
from rollout_cli.workers.vector_infos import batch_columns, frozen_column

Array = npt.NDArray[Any]
Infos = Mapping[Any, Any]
_FINAL_OBSERVATIONS = ("final_obs", "final_observation")
_FINAL_INFO = "final_info"
_FINAL = {mask + key for key in (*_FINAL_OBSERVATIONS, _FINAL_INFO) for mask in ("", "_")}
_ENV, _AGENT = 0, 1
_NOTHING: Infos = {}


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
    ) -> None:
        self._begin_anew = begin_anew
        self._rows, self._actors, self._recorder, self._queue = rows, actors, recorder, queue
        self._root, self._limit = root_seed, max_episode_length
        self._errors = NativeErrors(worker_number, rows.n_rows, self._whereabouts)
        self._pending = NextStepEpisodes(rows.n_rows) if rows.mode is AutoresetMode.NEXT_STEP else None
        self.episodes = RowEpisodes(rows.n_rows) if self._pending is None else self._pending
        self.highest = NONE
        self._observations: Sequence[Any] = ()
        leaves, action_leaves = space_leaves(rows.env_spec.observation_space), space_leaves(rows.env_spec.action_space)
        self._n_leaves, self._n_action_leaves = len(leaves), len(action_leaves)
        self._is_leaf = len(leaves) == 1 and not leaves[0].path
        self._acts_on_leaf = len(action_leaves) == 1 and not action_leaves[0].path
        after: dict[AutoresetMode, Callable[..., None]] = {
            AutoresetMode.DISABLED: self._after_step_of_disabled,
            AutoresetMode.NEXT_STEP: self._after_next_step,
            AutoresetMode.SAME_STEP: self._after_same_step,
        }
        self._after = after[rows.mode]
        self._resets_itself = rows.mode is not AutoresetMode.DISABLED

    # -- beginning -------------------------------------------------------------------------------------------------

    def begin_waiting(self) -> None:
        """Begin the numbers that need not wait for a row to end: all, where no row has begun or none runs any."""
        if not len(self._queue) or self.episodes.count == self._rows.n_rows:
            return
        if self._resets_itself:
            if self._nobody_runs():
                self._begin_all()
            return
        if not self._observations:
            self._draw_apart()
            self._reset(np.arange(self._rows.n_rows))  # Also those without a number: none may be left from before.
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
        self._observations = self._leaves(observations)
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
        self._observations = self._leaves(observations)
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
        """Take one step in every row; `begin_waiting` comes before, and `settle` when there was the last."""
        block = self._recorder.block
        if block.is_full:
            self.settle()
            self._recorder.make_room(self.episodes)
        block.put_typed(0, self._observations)
        acts, agent_infos = self._errors.called(
            PolicyError, "policy.get_actions", lambda: self._actors.act(self._seen())
        )
        acts = self._typed(PolicyError, "the action", self._n_leaves, acts)
        block.put_typed(self._n_leaves, acts)
        actions = self._given(acts)
        observations, rewards, terminated, truncated, infos = self._errors.called(
            EnvError, "env.step", lambda: self._rows.env.step(actions)
        )
        self._put_rewards(rewards)
        for column in batch_columns(agent_infos, self._rows.n_rows) if agent_infos else ():
            block.put_info(_AGENT, frozen_column(column))
        self._observations = self._leaves(observations)
        self._after(terminated, truncated, infos)

    def settle(self, infos: Infos = _NOTHING) -> None:
        """Finish and begin what ended and began since the last time; only where the environment was not asked at once.

        Args:
            infos: What the last step told.
        """
        if self._pending is None or not self._pending.pending:
            return
        begun = self._pending.settle(self._queue, infos, self._recorder, self._observations)
        if len(begun[0]):
            self._tell_actors(*begun)

    def _seen(self) -> Any:
        leaves: Any = self._observations
        if not self._actors.hands_off:
            # A copy, for a policy may edit what it sees, and the environment may keep it for itself.
            leaves = [np.array(leaf) for leaf in leaves]
        return leaves[0] if self._is_leaf else unflatten(self._rows.env_spec.observation_space, leaves)

    def _given(self, leaves: list[Any]) -> Any:
        if not self._actors.hands_off:
            # A copy, for an environment may keep its action, and the policy may fill the same buffer next time.
            leaves = [leaf.copy() for leaf in leaves]
        return leaves[0] if self._acts_on_leaf else unflatten(self._rows.env_spec.action_space, leaves)

    def _after_step_of_disabled(self, terminated: Array, truncated: Array, infos: Infos) -> None:
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        self._put_infos(infos)
        self._recorder.block.stepped()
        if self._limit < np.inf:
            truncated = truncated | (self._recorder.step - self.episodes.starts >= self._limit)
        ended = (terminated | truncated).nonzero()[0]
        if len(ended):
            self._finish(ended, terminated, truncated, tuple(leaf[ended] for leaf in self._observations))
            self._reset(ended)

    def _after_next_step(self, terminated: Array, truncated: Array, infos: Infos) -> None:
        assert self._pending is not None
        self._put_infos(infos)
        self._recorder.block.stepped()
        # Infos and policies that care belong to the step at hand; without them, nothing is urgent.
        if self._pending.stepped(terminated, truncated) or infos or self._actors.hears_of_each:
            self.settle(infos)

    def _after_same_step(self, terminated: Array, truncated: Array, infos: Infos) -> None:
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        over = terminated | truncated
        ended = over.nonzero()[0]
        if not len(ended):
            self._put_infos(infos)
            self._recorder.block.stepped()
            return
        begun_infos = {key: value for key, value in infos.items() if key not in _FINAL}
        self._put_infos(begun_infos, within=~over)
        self._put_infos(infos.get(_FINAL_INFO) or {}, within=over)
        self._recorder.block.stepped()
        self._finish(ended, terminated, truncated, self._final(ended, infos))
        self._begin(ended, begun_infos)

    def _finish(self, rows: Array, terminated: Array, truncated: Array, last: tuple[Array, ...]) -> None:
        self.episodes.finish(
            rows, terminated=terminated[rows], truncated=truncated[rows], last=last, recorder=self._recorder
        )

    def _final(self, rows: Array, infos: Infos) -> tuple[Array, ...]:
        """Return the last observations that the environment hands on beside those of the next episodes."""
        space = self._rows.env_spec.observation_space
        found = next((infos[key] for key in _FINAL_OBSERVATIONS if key in infos), None)
        if found is None:
            raise self._errors.error(EnvError, "env.step", KeyError("infos has no 'final_obs' though episodes ended"))
        if isinstance(found, np.ndarray) and found.dtype == object:
            leaves = flatten(space, stack_samples(space, [found[row] for row in rows.tolist()]))
            return tuple(np.asarray(leaf) for leaf in leaves)
        return tuple(leaf[rows] for leaf in self._leaves(found))

    # -- recording -------------------------------------------------------------------------------------------------

    def _put_rewards(self, rewards: Any) -> None:
        try:
            self._recorder.block.put(self._n_leaves + self._n_action_leaves, rewards)
        except BadSampleError as error:
            raise self._errors.error(EnvError, "the reward", error) from error

    def _put_infos(self, infos: Infos, within: Array | None = None) -> None:
        for column in batch_columns(infos, self._rows.n_rows) if infos else ():
            has = column.has
            if within is not None:
                has = within if has is None else has & within
            self._recorder.block.put_info(_ENV, frozen_column(column._replace(has=has)))

    def _leaves(self, observations: Any) -> list[Any]:
        """Return the observations' leaves in their space's types, as policy and dataset see them."""
        try:
            leaves = (observations,) if self._is_leaf else self._rows.leaves(observations)
        except (KeyError, IndexError, TypeError) as error:
            raise self._errors.error(EnvError, "the observation", error) from error
        return self._typed(EnvError, "the observation", 0, leaves)

    def _typed(self, kind: type[UserCodeError], what: str, at: int, leaves: Any) -> list[Any]:
        """Return leaves of a space, counted from `at`, in its types."""
        try:
            return [self._recorder.block.typed(number, leaf) for number, leaf in enumerate(leaves, at)]
        except (BadSampleError, TypeError) as error:
            raise self._errors.error(kind, what, error) from error

    def _whereabouts(self) -> tuple[Array, int]:
        """Return the numbers that run, and how many steps were taken."""
        self.settle()
        return self.episodes.numbers[self.episodes.running], self._recorder.step
