"""DefaultWorker: one policy in one environment."""

from __future__ import annotations

import time
from itertools import islice
from sys import getrefcount
from typing import Any

from numpy import ndarray

from rollout_cli.envs import env_record
from rollout_cli.errors import EnvError, InternalError, PolicyError
from rollout_cli.policies import policy_class
from rollout_cli.sleepers import GlobalSeeder
from rollout_cli.workers.agent import AgentHolder
from rollout_cli.workers.env_slot import EnvSlot, called
from rollout_cli.workers.leaf_columns import BadSampleError
from rollout_cli.workers.recorder import frozen_copy
from rollout_cli.workers.recording_worker import RecordingWorker
from rollout_cli.workers.step_values import as_reward

_clock = time.perf_counter
_OURS_ALONE = 2
"""What `getrefcount` tells of an object that one variable holds: that variable, and the argument of the call."""

_MOST_STEPS, _SHORT_SECONDS = 16, 0.0002
"""At most so many steps between two looks at the clock, and one only where they took longer than this."""

_PREPARED_AT_ONCE = 255

_NOW = -1.0
"""A deadline that has passed."""


class DefaultWorker(RecordingWorker):
    """Runs one policy in one environment, one episode after another.

    A subclass may override the verbs, or one of three smaller places: `follows`, where an episode depends on the one
    before; `reset_options`, for what an environment must be told; `begin_policy`, for what a policy keeps.

    Args:
        seed: The root seed of the run.
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        worker_number: Which of the run's workers this is, from 0.
        deterministic: Whether a policy that has a deterministic mode uses it.
    """

    def __init__(
        self, *, seed: int, max_episode_length: float | None, worker_number: int, deterministic: bool = False
    ) -> None:
        super().__init__(seed=seed, max_episode_length=max_episode_length, worker_number=worker_number)
        self._slot = EnvSlot(seed, GlobalSeeder(seed), worker_number)
        self._agent = AgentHolder(self._slot.seeder, deterministic=deterministic)
        self._steps_by_verb = type(self).step_episode is not DefaultWorker.step_episode
        self._wanted = 0
        self._prepared: set[int] = set()
        self._lead: list[int] = []
        self._ended: int | None = None

    # -- updates ----------------------------------------------------------------------------------------------------

    def update_env(self, env_update: Any) -> None:
        """Take a new environment (an env, an EnvSource) or apply an EnvUpdate; None changes nothing.

        Raises:
            EnvLoadError: If it cannot be built, or has a space that cannot be recorded.
        """
        if env_update is None:
            return
        self._ended = None
        if self._take_spec(self._slot.update_env(env_update)):
            self._slot.record_into(self._the_store())
            self._agent.forget_policy()
        self._make_ready()

    def update_agent(self, agent_update: Any) -> None:
        """Take a new policy (any kind that `adapt_policy` knows, or a PolicySource) or new parameters for it.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised.
        """
        if agent_update is None:
            return
        self._slot.forget()
        self._ended = None
        self._agent.update(agent_update)
        self._make_ready()

    def _make_ready(self) -> None:
        """Adapt the policy once both it and the spaces are known, and find what both draw from."""
        if self._store is not None:
            self._agent.adapt(self.env_spec)
        if self._agent.is_ready:
            self._slot.seeder.watch(policy=self._agent.policy, env=self._slot.env)

    # -- one episode ------------------------------------------------------------------------------------------------

    def start_episode(self) -> None:
        """Begin the lowest assigned number; the next one after the last where none is assigned."""
        if self._slot.number is not None:
            self._slot.forget()
        self._wanted = self._next_number()
        if self._wanted not in self._prepared:
            self._prepare()
        self._lead = self._leading_to(self._wanted)
        self._begin(self._lead.pop())

    def _prepare(self) -> None:
        """Do at once, for the numbers that come next, what their beginnings have in common."""
        numbers = [self._wanted, *islice(self._waiting, _PREPARED_AT_ONCE)]
        self._slot.seeder.prepare(numbers)
        self._agent.prepare(numbers)
        self._prepared = set(numbers)

    def _leading_to(self, number: int) -> list[int]:
        """Return the numbers to run, last one first: `number`, and what it depends on and has not just ended here."""
        lead = [number]
        while (before := self.follows(lead[-1])) is not None and before != self._ended:
            lead.append(before)
        return lead

    def follows(self, number: int) -> int | None:
        """Return the number whose episode must end in this worker just before `number` begins; None for no such.

        A sampler gives such numbers to one worker one after another, in blocks of `numbers_at_once`. Where the one
        before was not run here (the worker is new, or the plan begins between the two) it is run and not recorded, so
        an episode is still a function of its number.
        """
        del number
        return None

    def reset_options(self, number: int) -> dict[str, Any] | None:
        """Return the `options` for `env.reset` at the beginning of an episode."""
        del number
        return None

    def begin_policy(self, number: int) -> None:
        """Let the policy begin an episode, after the environment's reset; here by its `reset`."""
        del number
        self._agent.policy.reset()

    def _begin(self, number: int) -> None:
        slot = self._slot
        self._ended = None
        slot.prepare(number)
        seed_policy = getattr(self._agent.policy, "seed", None)
        if callable(seed_policy):
            called(slot, PolicyError, "policy.seed", lambda: seed_policy(slot.seeder.policy_seed(number)))
        slot.reset(self.reset_options(number))
        called(slot, PolicyError, "policy.reset", lambda: self.begin_policy(number))

    def step_episode(self) -> bool:
        """Take one step; return whether the episode ended."""
        if self._slot.number is None:
            raise InternalError("step_episode was called with no episode under way: call start_episode first")
        return self._step_until(_NOW)

    def advance(self, deadline: float) -> None:
        """Run assigned numbers until `time.perf_counter()` passes `deadline`, or none is left; at least one step."""
        while self.has_work:
            if self._slot.number is None:
                self.start_episode()
            if self._steps_by_verb:
                self.step_episode()
            else:
                self._step_until(deadline)
            if _clock() >= deadline:
                return

    def _step_until(self, deadline: float) -> bool:  # noqa: C901, PLR0912, PLR0915  One loop: a call costs a hundredth.
        """Step until the episode ends (True) or the deadline passed: the loop that all the time is spent in.

        An observation that is an array of its space's dtype is recorded here, without a call. The policy gets it as it
        is where nobody else holds it (no reference but ours, no memory but its own), else a copy: so neither a policy
        that edits what it sees nor an environment that uses its buffer again changes anything for the other.

        An episode's first and last observation are checked in full, as is the first one of each call, and at least one
        of 2 * `_MOST_STEPS`; the others by type and bytes. So an observation that changes its shape alone, (4,) to
        (2, 2), is found unless it changes back before one is checked.
        """
        slot, agent = self._slot, self._agent
        recorder, observation, slot.observation = slot.recorder, slot.observation, None
        record_observation = recorder.keep_observation if agent.hands_off else recorder.record_observation
        # Not their `append`: CPython calls a list's own method for less than one that was taken from it before.
        observation_rows, action_rows, rewards = recorder.observation_rows, recorder.action_rows, recorder.rewards
        record_action, env_step = recorder.record_action, slot.stepped.step
        act, pair, shortcut_type = agent.act, agent.pair, recorder.int_type if agent.pair else None
        row_bytes, int_type, numbers = recorder.row_bytes, recorder.int_type, recorder.numbers
        step, limit = len(rewards), slot.last_step(self._max_episode_length)
        last_step = min(limit, recorder.most_steps)
        # While it is None, observations are checked in full.
        dtype = None
        # The clock is looked at every few steps, as long as these take next to no time.
        stride, looked_at = 1, _clock()
        while True:
            for step in range(step, min(step + stride, last_step)):  # noqa: B020  It goes on where it was.
                if (
                    type(observation) is ndarray
                    and observation.dtype is dtype
                    and len(row := observation.tobytes()) == row_bytes
                ):
                    observation_rows.append(row)
                    if getrefcount(observation) != _OURS_ALONE or observation.base is not None:
                        observation = observation.copy()
                else:
                    try:
                        observation = record_observation(observation)
                    except BadSampleError as error:
                        raise slot.error(EnvError, "the observation", error) from error
                    dtype = recorder.plain_dtype
                try:
                    action = act(observation)
                    if type(action) is shortcut_type:
                        action_rows.append(action)
                        action = numbers[action]
                    else:
                        action, agent_info = pair(action) if pair else action
                        if type(action) is int_type:
                            action_rows.append(action)
                            action = numbers[action]
                        else:
                            action = record_action(action)
                        if agent_info:
                            recorder.agent_infos[step] = frozen_copy(agent_info)
                except Exception as error:
                    raise slot.error(PolicyError, "policy.get_action", error) from error
                try:
                    observation, reward, terminated, truncated, env_info = env_step(action)
                    if env_info:
                        recorder.env_infos[step] = frozen_copy(env_info)
                    if type(reward) is float:
                        rewards.append(reward)
                    else:
                        rewards.append(as_reward(reward))
                    if terminated or truncated:
                        break
                except Exception as error:
                    raise slot.error(EnvError, "env.step", error) from error
            step += 1
            if terminated or truncated or step >= last_step:
                slot.observation = observation
                flags = slot.ending(terminated, truncated, at_limit=step >= limit)
                return self._finish(terminated=flags[0], truncated=flags[1])
            now = _clock()
            if now >= deadline:
                slot.observation = observation
                return False
            if now - looked_at >= _SHORT_SECONDS:
                stride, dtype = 1, None
            elif stride < _MOST_STEPS:
                stride *= 2
            else:
                dtype = None
            looked_at = now

    def _finish(self, *, terminated: bool, truncated: bool) -> bool:
        slot = self._slot
        assert slot.number is not None
        if slot.seeder.must_run_again():
            self._waiting.appendleft(self._wanted)
            self.start_episode()
            return False
        self._ended = slot.number
        if self._lead:
            # It was run for the sake of the one that follows it.
            slot.forget()
            self._begin(self._lead.pop())
            return False
        slot.finish(terminated=terminated, truncated=truncated)
        return True

    # -- what a sampler asks ----------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Return whether an episode is under way."""
        return self._slot.number is not None

    def retract(self, *, above: int | None = None) -> None:
        """Give up the numbers that are higher than `above`, waiting or running; all of them where it is None."""
        super().retract(above=above)
        if self._slot.number is not None and (above is None or self._wanted > above):
            self._slot.forget()

    def facts(self) -> dict[str, Any]:
        """Return the policy's class, and the record of the environment."""
        return {"policy_class": policy_class(self._agent.policy), "env": env_record(self._slot.env)}

    def shutdown(self) -> None:
        """Close the environment."""
        self._slot.close()
