"""DefaultWorker: runs episodes of one policy in one environment, for a sampler or a script.

The verbs are garage's. Beside them a sampler gives a worker episode numbers and takes finished episodes as chunks.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import gymnasium

from rollout_cli.envs import describe_env, env_spec_of
from rollout_cli.envs.describe import loaded_modules
from rollout_cli.envs.updates import check_env, check_makes_new, close_env, updated_env
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import EnvLoadError, InternalError, UserCodeError
from rollout_cli.loading import reporting
from rollout_cli.policies import policy_class
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.seeding.seeds import SETUP, derive_seed, env_seed, seed_globals
from rollout_cli.workers import checks
from rollout_cli.workers.checks import RESET, STEP, as_flag, as_reward, blame, frozen_copy
from rollout_cli.workers.policy_holder import PolicyHolder, masks_of
from rollout_cli.workers.recording import EpisodeRecorder
from rollout_cli.workers.worker import NO_NUMBER, CrashBox, EpisodeRules, WorkerReport

Env = gymnasium.Env[Any, Any]

VERBS = ("start_episode", "step_episode", "collect_episode", "rollout")
PLACES = "reset_env, reset_agent, step_env, predecessors"
"""What garage's workers override, and the smaller places of ours."""

OWN_EPISODES = 1 << 24
"""How many numbers lie between those that two workers run by their own verbs."""

NOT_READY = "the worker needs both a policy and an environment: update_agent and update_env"

_clock = time.perf_counter


class DefaultWorker:
    """Runs one policy in one environment, one episode after another; built where it runs, and never pickled.

    The legal order of the verbs: `update_agent` and `update_env` at least once each; then any number of episodes, each
    by `start_episode`, `step_episode` until it returns True, and `collect_episode`; `rollout` does these three. A
    sampler calls `assign`, `advance` and `take` in place of these, and may call both updates again between them.

    A worker takes the numbers of its own episodes from `worker_number * 2**24` on, so that no two workers run the same.

    A subclass may override `worker_init`, `start_episode`, `step_episode`, and smaller places: `reset_env` and
    `reset_agent` for what happens at an episode's start, `step_env` for what happens in a step, and `predecessors` for
    episodes that build on others. Samplers do not call `rollout` and `collect_episode`, and refuse a class that
    overrides them.

    Args:
        seed: The root seed of the run; every episode's seeds come from it and the episode's number.
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        worker_number: Which of the run's workers this is, from 0.
        deterministic: Whether a policy that has a deterministic mode uses it.
        fresh_env: Whether the environment is closed and built anew for each episode.

    Attributes:
        rules: What it does about user code that nearly keeps its contract; set before its first update.
        crash_box: Where it notes which episodes run; set before its first update.
        number_stride: The step from one of its numbers to the next, where it owns every m-th number.
        salt: Differs from one start of this worker to the next. The seed of a native vector environment follows from
            it; set before an update of the environment.
    """

    def __init__(
        self,
        *,
        seed: int,
        max_episode_length: float | None,
        worker_number: int,
        deterministic: bool = False,
        fresh_env: bool = False,
    ) -> None:
        self.worker_number = worker_number
        self.rules = EpisodeRules()
        self.crash_box = CrashBox()
        self.number_stride = 1
        self.salt: tuple[int, ...] = ()
        self._seed = seed
        self._max_episode_length = math.inf if max_episode_length is None else max_episode_length
        self._holder = PolicyHolder(seed, deterministic=deterministic)
        self._seeder = EpisodeSeeder(seed)
        self._env: Any = None
        self._fresh_env = fresh_env
        self._env_update: Any = None  # The last one: with `fresh_env` it builds each environment.
        self._is_used = False  # Whether an episode began in the environment.
        self._env_spec: EnvSpec | None = None
        self._recorder: EpisodeRecorder | None = None
        self._most_steps = 0  # Then an episode ends or fails.
        self._waiting: deque[int] = deque()
        self._next_own = worker_number * OWN_EPISODES
        self._last_run = NO_NUMBER  # The episode that ended last, if nothing came after it.
        self._is_recorded = True
        self._met_first_reset = False
        # Of the episode that runs: its number, seed, the time of its beginning, and the observation to act on.
        self._number = NO_NUMBER
        self._episode_seed = 0
        self._began = 0.0
        self._observation: Any = None
        self.worker_init()

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        """Return how many numbers a worker with these arguments runs at once: it wants its work in such blocks."""
        del worker_args
        return 1

    @classmethod
    def places(cls, worker_args: dict[str, Any]) -> set[str]:
        """Return the methods to override that a sampler calls of a worker with these arguments."""
        del worker_args
        return {"start_episode", "step_episode", *PLACES.split(", ")}

    def worker_init(self) -> None:
        """Prepare the process; called once, before the first update."""

    def update_env(self, env_update: Any) -> None:
        """Take a new environment, or an EnvUpdate to apply to the present one; None changes nothing.

        Raises:
            EnvTypeError: If it is none of these (a TypeError, too).
            EnvLoadError: If it cannot be built, or has a space that cannot be recorded.
        """
        if env_update is None:
            return
        check_env(env_update, gymnasium.Env, hint="VecWorker takes vector environments and lists", or_update=True)
        if self._fresh_env:
            check_makes_new(env_update)
        self._forget()
        seed_globals(self._seed, SETUP)
        self._env = updated_env(self._env, env_update, gymnasium.Env)
        self._env_update, self._is_used = env_update, False
        self._take_spec(env_spec_of(self._env, self._max_episode_length))
        self._make_ready()

    def update_agent(self, agent_update: Any) -> None:
        """Take a new policy, or new parameters (a dict, tuple or array) for the present one; None changes nothing.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised.
        """
        if agent_update is None:
            return
        self._forget()
        with self._holder.restored_on_error():
            self._holder.update(agent_update)
            self._make_ready()

    def _take_spec(self, spec: EnvSpec) -> None:
        if spec != self._env_spec:
            if self.finished_rows:
                raise InternalError("the environment was replaced before the finished episodes were taken")
            self._holder.policies = []
        self._env_spec = spec

    def _make_ready(self) -> None:
        """Adapt the policy once both it and the spaces are known, and find the generators that both draw from."""
        if self._env_spec is not None:
            self._holder.adapt([self._env_spec], [self._env])
        if not self._holder.policies:
            return
        self._seeder.watch(policy=self._holder.policy, env=self._env)
        self._met_first_reset = False
        if not self.finished_rows:
            rule = self._holder.action_rule(self.rules)
            self._recorder = EpisodeRecorder(self.env_spec, self.worker_number, rule)
        guard = self.rules.most_steps(self._the_recorder().observations.row_bytes)
        self._most_steps = self.env_spec.max_episode_length or guard

    def start_episode(self) -> None:
        """Begin the lowest assigned number; where none is assigned, the one after the last."""
        self._discard()
        number = self._waiting.popleft() if self._waiting else self._next_own
        self._next_own = number + 1
        before = self.predecessors(number)
        if before and before[-1] != self._last_run:
            self._run_unrecorded(before, number)
        self._begin(number)

    def _run_unrecorded(self, before: Sequence[int], number: int) -> None:
        """Run the episodes that `number` builds on; where one fails, that is a failure of `number`."""
        self._is_recorded = False
        try:
            for one in before:
                self._begin(one, on_behalf_of=number)
                while not self.step_episode():
                    self.crash_box.step()
        finally:
            self._is_recorded = True

    def _begin(self, number: int, *, on_behalf_of: int | None = None) -> None:
        if self._fresh_env and self._is_used:
            self._renew_env()
        self._is_used = True
        recorder, policy, where = self._the_recorder(), self._holder.policy, "policy.seed"
        self._number, self._last_run = number if on_behalf_of is None else on_behalf_of, NO_NUMBER
        self._episode_seed, self._began = env_seed(self._seed, number), _clock()
        self.crash_box.begin(0, self._number)
        self.crash_box.step()
        self._seeder.begin(number)
        try:
            if policy.seed is not None:
                policy.seed(derive_seed(self._seed, number, "policy"))
            where = RESET
            self._observation, info = self.reset_env(self._env, number, self._episode_seed)
            recorder.reset_info = frozen_copy(info)
            where = "policy.reset"
            self.reset_agent(self.agent, number)
        except BaseException as error:
            self._give_up(where, error)
            raise
        if not self._met_first_reset:
            self._met_first_reset = True
            self._seeder.watch(policy=policy, env=self._env)

    def _renew_env(self) -> None:
        seed_globals(self._seed, SETUP)
        self._env = updated_env(self._env, self._env_update, gymnasium.Env)
        check_same_spec(env_spec_of(self._env, self._max_episode_length), self.env_spec)
        self._seeder.watch(env=self._env)
        self._met_first_reset = False

    def reset_env(self, env: Env, number: int, seed: int) -> tuple[Any, dict[str, Any]]:
        """Reset the environment for episode `number`; return its first observation and info."""
        del number
        return env.reset(seed=seed)

    def reset_agent(self, agent: Any, number: int) -> None:
        """Reset the policy for episode `number`, after the environment was reset; `agent` is the user's own object."""
        del agent, number
        self._holder.policy.reset()

    def step_env(self, env: Env, action: Any) -> Any:
        """Take one step of the environment; return what `env.step` does. It is recorded."""
        return env.step(action)

    def predecessors(self, number: int) -> Sequence[int]:
        """Return the episodes on which `number` builds: they come right before it, in this order.

        Where they have not just been run by this worker (another one ran them, or an update came between), they are run
        again before it, and not recorded: so the episode is a function of its number.
        """
        del number
        return ()

    def step_episode(self) -> bool:
        """Take one step; return whether an episode ended."""
        if self._number == NO_NUMBER:
            raise InternalError("step_episode was called with no episode under way: call start_episode first")
        return self._run(-math.inf)

    def advance(self, deadline: float) -> None:
        """Run assigned numbers until `time.perf_counter()` passes `deadline`, or none is left; at least one step.

        Raises:
            UserCodeError: If the policy or the environment fails; its `episodes` are the numbers where it may be.
        """
        kind, ours = type(self), DefaultWorker
        # A subclass that counts or changes steps is asked for each of them.
        by_verb = kind.step_episode is not ours.step_episode
        if by_verb or kind.start_episode is not ours.start_episode or kind.predecessors is not ours.predecessors:
            with reporting(UserCodeError, f"{kind.__name__} raised"):
                self._advance(deadline, by_verb=by_verb)
        else:
            self._advance(deadline, by_verb=False)

    def _advance(self, deadline: float, *, by_verb: bool) -> None:
        while self.has_work:
            if self._number == NO_NUMBER:
                self.start_episode()
                self._expect(self._number != NO_NUMBER, "start_episode")
            if by_verb:
                number, step = self._number, self._the_recorder().step
                self.step_episode()
                self._expect((number, step) != (self._number, self._the_recorder().step), "step_episode")
            else:
                self._run(deadline)
            if _clock() >= deadline:
                return

    def _expect(self, is_done: bool, verb: str) -> None:  # noqa: FBT001
        if not is_done:
            message = f"{type(self).__name__}.{verb} did nothing that a sampler could record"
            raise UserCodeError(message, hint=f"let it call super().{verb}(), or override a smaller place: {PLACES}")

    def _stepper(self, env: Env) -> Callable[[Any], Any]:
        """Return what takes a step of an environment: its own `step`, unless a subclass has a `step_env`."""
        return env.step if type(self).step_env is DefaultWorker.step_env else partial(self.step_env, env)

    def _run(self, deadline: float) -> bool:
        """Step until the episode ends (True) or the deadline has passed (False); at least one step.

        An observation is recorded before the policy sees it, and an action before the environment does.
        """
        policy, recorder, step = self._holder.policy, self._the_recorder(), self._stepper(self._env)
        act = self._act_masked if policy.takes_masks else policy.get_action
        acting = f"policy.{policy.methods[0]}"
        record_observation, record_action = recorder.observations.record, recorder.actions.record
        agent_infos, env_infos, rewards = recorder.agent_infos, recorder.env_infos, recorder.rewards
        observation, where = self._observation, STEP if recorder.step else RESET
        last_row = recorder.first_row + self._most_steps
        try:
            while True:
                observation = record_observation(observation)
                where = acting
                action, info = act(observation)
                action = record_action(action)
                if info or type(info) is not dict:
                    agent_infos[len(rewards)] = frozen_copy(info)
                where = STEP
                observation, reward, terminated, truncated, info = step(action)
                if info or type(info) is not dict:
                    env_infos[len(rewards)] = frozen_copy(info)
                rewards.append(reward if type(reward) is float else as_reward(reward))
                if terminated or truncated or len(rewards) >= last_row:
                    self._finish(observation, terminated, truncated)
                    return True
                if _clock() >= deadline:
                    self._observation = observation
                    return False
        except BaseException as error:
            self._give_up(where, error)
            raise

    def _act_masked(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        self._holder.policy.masks = masks_of(self._env)
        return self._holder.policy.get_action(observation)

    def _finish(self, observation: Any, terminated: Any, truncated: Any) -> None:
        recorder = self._the_recorder()
        at_limit = recorder.step == self.env_spec.max_episode_length
        terminated, truncated = as_flag("terminated", terminated), as_flag("truncated", truncated) or at_limit
        if not (terminated or truncated):
            hint = checks.ENDLESS_HINT
            raise checks.BadValueError(f"the episode has no end: it is {recorder.step:,} steps long", hint)
        if not self._is_recorded:
            self._discard()
            return
        self._last_run = self._number
        facts = (self._number, self._episode_seed, recorder.step, terminated, truncated, _clock() - self._began)
        recorder.finish(facts, observation)
        self._number = NO_NUMBER
        self.crash_box.begin(0, NO_NUMBER)

    def _give_up(self, where: str, error: BaseException) -> None:
        """Give up the running episode; raise the error of the user's code that `error` is, if it is one."""
        number, step = self._number, self._the_recorder().step
        self._forget()
        place = checks.episode_place(self.worker_number, number, self._episode_seed, step)
        blame(where, error, place, (number,))

    def _forget(self) -> None:
        """Give up the episode that runs, and what was carried over from the last one."""
        self._last_run = NO_NUMBER
        self._discard()

    def _discard(self) -> None:
        """Give up the episode that runs."""
        self._observation = None
        if self._number != NO_NUMBER:
            self._the_recorder().discard()
            self._number = NO_NUMBER
            self.crash_box.begin(0, NO_NUMBER)

    def collect_episode(self) -> EpisodeBatch:
        """Return the finished episodes that were not collected yet; InternalError where there are none."""
        chunk = self.take(everything=True)
        if chunk is None:
            raise InternalError("collect_episode was called with no finished episode")
        return EpisodeBatch.from_chunks(self.env_spec, [chunk])

    def rollout(self) -> EpisodeBatch:
        """Run one episode and return it."""
        self.start_episode()
        while not self.step_episode():
            pass
        return self.collect_episode()

    # -- a sampler's questions ---------------------------------------------------------------------------------------

    @property
    def agent(self) -> Any:
        """The policy, as the user made it; None before the first update."""
        return self._holder.users_own

    @property
    def env(self) -> Any:
        """The environment; of several rows the first one's, or the vector environment. None before the first update."""
        return self._env

    @property
    def env_spec(self) -> EnvSpec:
        """Spaces of its environment, and the limit in force: the lower one of the environment's and its own."""
        if self._env_spec is None:
            raise InternalError("the worker has no environment yet: call update_env first")
        return self._env_spec

    def assign(self, numbers: Iterable[range]) -> None:
        """Add episode numbers to run; the lowest is run first."""
        self._waiting = deque(sorted(chain(self._waiting, *numbers)))

    def take(self, *, everything: bool = False) -> Chunk | None:
        """Remove finished episodes and return them in the order of their numbers; None where there are none.

        Where not `everything` is asked for, one that a lower number of this worker's holds up is kept back for up to a
        quarter of a second, so that a chunk has few gaps.
        """
        del everything  # Numbers are run in rising order, so no lower one holds the finished ones up.
        return self._recorder.take() if self._recorder is not None else None

    def retract(self, *, above: int | None) -> None:
        """Drop the waiting and running numbers above `above`; where it is None, all of them, and the finished ones."""
        self._waiting = deque(number for number in self._waiting if above is not None and number <= above)
        if above is None or self._number > above:
            self._forget()
        if above is None:
            self.take(everything=True)

    @property
    def has_work(self) -> bool:
        """Whether an episode runs or a number waits."""
        return self._number != NO_NUMBER or bool(self._waiting)

    @property
    def running_numbers(self) -> tuple[int, ...]:
        """The numbers of the episodes that run."""
        return () if self._number == NO_NUMBER else (self._number,)

    @property
    def finished_rows(self) -> int:
        """How many rows `take(everything=True)` would give."""
        return self._recorder.first_row if self._recorder is not None else 0

    @property
    def finished_bytes(self) -> int:
        """About how many bytes it would give."""
        return self._recorder.first_row * self._recorder.row_bytes if self._recorder is not None else 0

    def report(self) -> WorkerReport:
        """Return what only a worker knows of the policy and the environment; the files are not its business."""
        return WorkerReport(
            env=describe_env(self._env),
            policy_class=policy_class(self._holder.policy),
            modules=loaded_modules(),
        )

    def shutdown(self) -> None:
        """Close the environment, and give up the episode that runs; EnvError if that fails."""
        self._forget()
        env, self._env = self._env, None
        close_env(env)

    def __getstate__(self) -> NoReturn:
        hint = "pickle its WorkerFactory, and build the worker from it"
        raise InternalError(f"a {type(self).__name__} cannot be pickled", hint=hint)

    def _the_recorder(self) -> EpisodeRecorder:
        if self._recorder is None or self._env is None:
            raise InternalError(NOT_READY)
        return self._recorder


def check_same_spec(spec: EnvSpec, before: EnvSpec) -> None:
    """Raise EnvLoadError where an environment that was built anew is another one than before."""
    if spec != before:
        message = "the environment that was built anew for an episode has other spaces, or another limit, than before"
        raise EnvLoadError(message, hint="build the same environment each time, or omit {fresh_env=True}")


Worker = DefaultWorker
"""What garage calls the base of all workers."""
