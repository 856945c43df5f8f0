"""VerbsAdapter: lets a worker class that knows nothing of episode numbers work under the samplers.

Such a class has garage's verbs alone. The adapter hands numbers out in the order in which its episodes end, so an
episode is no function of its number, and a dataset says so.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import gymnasium

from rollout_cli.black_box import black_box
from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.envs import describe_env, env_record
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.errors import EnvError, InternalError, RolloutError, UserCodeError
from rollout_cli.policies import policy_class
from rollout_cli.seeding import SETUP, seed_global_generators
from rollout_cli.sleepers import GlobalSeeder
from rollout_cli.spaces import space_leaves
from rollout_cli.user_code import failure
from rollout_cli.workers.agent import AgentHolder, is_parameters
from rollout_cli.workers.env_slot import updated_env
from rollout_cli.workers.foreign_batches import check_batch, chunk_of
from rollout_cli.workers.rules import ENDLESS_HINT, endless
from rollout_cli.workers.seeder import EpisodeSeeder
from rollout_cli.workers.worker import NumberedWorker, Worker

VERBS = ("update_agent", "update_env", "start_episode", "step_episode", "collect_episode", "rollout", "shutdown")

_clock = time.perf_counter


def has_verbs(found: Any) -> bool:
    """Return whether `found` is a class with all of garage's verbs."""
    return isinstance(found, type) and all(callable(getattr(found, verb, None)) for verb in VERBS)


class VerbsAdapter(NumberedWorker):
    """A NumberedWorker around a worker that has garage's verbs alone.

    `update_env` of the worker gets a built environment (a list of them where a list was given), and `update_agent` a
    policy with the whole protocol, or parameters. Before each episode the global generators are seeded, and nothing
    else. A class with a `rollout` of its own is run by that alone, so commands are noticed only after it.

    Of the EpisodeRules, those hold that concern what is handed on: actions outside of their space and rewards that are
    nan are found when an episode is taken, and its spaces when it is collected. An episode that goes on and on is found
    where the class is run step by step, by the steps since the class collected last. What cannot hold: `clip`, for
    the class gives actions to its environment itself, so one outside of its space is an error under that rule as well;
    the guard within a `rollout` of the class's own; and whatever the class reads from `env.step` before it records it.

    Args:
        worker: The worker.
        seed: The root seed of the run.
        max_episode_length: What the worker got.
        worker_number: Which of the run's workers this is.
        deterministic: Whether a policy that has a deterministic mode uses it.
    """

    def __init__(
        self,
        worker: Any,
        *,
        seed: int,
        max_episode_length: float | None,
        worker_number: int,
        deterministic: bool = False,
    ) -> None:
        super().__init__(seed=seed, max_episode_length=max_episode_length, worker_number=worker_number)
        self._worker = worker
        self._name = type(worker).__name__
        self._by_step = type(worker).rollout is Worker.rollout
        self._agent = AgentHolder(EpisodeSeeder(seed, GlobalSeeder(seed)), deterministic=deterministic)
        self._envs: list[gymnasium.Env[Any, Any]] = []
        self._spec: EnvSpec | None = None
        self._number: int | None = None
        self._steps, self._most_steps = 0, self.rules.step_guard
        self._note_running, self._began_at = black_box().new_row(), 0.0
        self._finished: list[Chunk] = []
        self._unnumbered: deque[Chunk] = deque()

    # -- updates ----------------------------------------------------------------------------------------------------

    def update_env(self, env_update: Any) -> None:
        """Build or change the environment and give it to the worker.

        Raises:
            EnvLoadError: If it cannot be built.
            UserCodeError: If the worker refuses it.
        """
        if env_update is None:
            return
        self.retract()
        updates = env_update if isinstance(env_update, list) else [env_update]
        before = self._envs if len(self._envs) == len(updates) else [None] * len(updates)
        seed_global_generators(self._seed, SETUP)
        self._envs = [updated_env(old, update) for old, update in zip(before, updates, strict=True)]
        spec = describe_env(self._envs[0])
        if spec != self._spec:
            self._spec = spec
            row_bytes = sum(leaf.row_bytes for leaf in space_leaves(spec.observation_space))
            self._most_steps = self.rules.most_steps(row_bytes)
            self._agent.forget_policy()
        self._call("update_env", self._envs if isinstance(env_update, list) else self._envs[0])
        self._give_policy()

    def update_agent(self, agent_update: Any) -> None:
        """Give the worker a policy, adapted to the environment's spaces, or parameters.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised.
            UserCodeError: If the worker refuses it.
        """
        if agent_update is None:
            return
        self.retract()
        if is_parameters(agent_update):
            self._call("update_agent", agent_update)
            return
        self._agent.update(agent_update)
        self._give_policy()

    def _give_policy(self) -> None:
        """Give the worker a new policy, once both it and the spaces are there."""
        is_old = self._agent.is_ready
        if self._spec is None or is_old:
            return
        self._agent.adapt(self._spec)
        if self._agent.is_ready:
            self._call("update_agent", self._agent.policy)

    # -- episodes ---------------------------------------------------------------------------------------------------

    def start_episode(self) -> None:
        """Begin an episode with the lowest assigned number."""
        self._begin()
        self._call("start_episode")

    def step_episode(self) -> bool:
        """Take one step; return whether an episode ended."""
        return bool(self._call("step_episode"))

    def collect_episode(self) -> EpisodeBatch:
        """Return what the worker collected, numbered."""
        return self._numbered(self._call("collect_episode"))

    def rollout(self) -> EpisodeBatch:
        """Let the worker run an episode, and return it."""
        if self._by_step:
            return super().rollout()
        self._begin()
        return self._numbered(self._call("rollout"))

    def _numbered(self, batch: Any) -> EpisodeBatch:
        self._take_in(batch)
        for episode in self._unnumbered:
            self._finish(episode, self._next_number())
        self._unnumbered.clear()
        chunk = self.take()
        assert chunk is not None
        return EpisodeBatch.from_chunks(self.env_spec, [chunk])

    def advance(self, deadline: float) -> None:
        """Run assigned numbers until `time.perf_counter()` passes `deadline`, or none is left; at least one step."""
        self._number_the_rest()
        while self.has_work:
            if self._number is None:
                self._begin()
                if self._by_step:
                    self._call("start_episode")
            if not self._by_step:
                self._take_in(self._call("rollout"))
            elif self._call("step_episode"):
                self._take_in(self._call("collect_episode"))
            else:
                self._count_step()
            self._number_the_rest()
            if _clock() >= deadline:
                return

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps >= self._most_steps:
            place = f"worker {self._worker_number}, episode {self._number}"
            error = EnvError(f"{endless(self._steps)} ({place})", hint=ENDLESS_HINT)
            error.episode = self._number
            raise error

    def _begin(self) -> None:
        self._number, self._began_at, self._steps = self._next_number(), _clock(), 0
        self._note_running(self._number)
        seed_global_generators(self._seed, self._number)

    def _take_in(self, batch: Any) -> None:
        """Give the first episode of a batch the number that ran; the others wait for theirs."""
        check_batch(batch, self.env_spec, self._name)
        if self._number is None:
            raise InternalError("collect_episode was called with no episode under way")
        seconds = (_clock() - self._began_at) / len(batch)
        number, spec = self._worker_number, self.env_spec
        first, *others = [chunk_of(one, spec, worker_number=number, seconds=seconds) for one in batch.split()]
        self._finish(first, self._number)
        self._number = None
        self._unnumbered.extend(others)

    def _number_the_rest(self) -> None:
        while self._unnumbered and self._waiting:
            self._finish(self._unnumbered.popleft(), self._next_number())

    def _finish(self, chunk: Chunk, number: int) -> None:
        chunk.numbers[0] = number
        self._finished.append(chunk)

    def _call(self, verb: str, *arguments: Any) -> Any:
        try:
            return getattr(self._worker, verb)(*arguments)
        except RolloutError:
            raise
        except Exception as error:
            at = f"(worker {self._worker_number}, episode {self._number})"
            hint = "the traceback below shows where in the worker class"
            raise failure(UserCodeError, f"{self._name}.{verb} raised an error {at}", error, hint=hint) from error

    # -- what a sampler asks ----------------------------------------------------------------------------------------

    def retract(self, *, above: int | None = None) -> None:
        """Give up the numbers that are higher than `above`, waiting or running; all of them where it is None."""
        super().retract(above=above)
        if above is None:
            self._unnumbered.clear()
        if self._number is not None and (above is None or self._number > above):
            self._number = None

    def take(self) -> Chunk | None:
        """Remove the finished episodes and return them; None where there are none."""
        finished, self._finished = self._finished, []
        if not finished:
            return None
        return concatenate(sorted(finished, key=lambda chunk: int(chunk.numbers[0])))

    @property
    def env_spec(self) -> EnvSpec:
        """Return spaces and limit of its environment."""
        if self._spec is None:
            raise InternalError("the worker has no environment yet: call update_env first")
        return self._spec

    @property
    def finished_numbers(self) -> list[int]:
        """Return the numbers of the finished episodes that wait to be taken."""
        return [int(chunk.numbers[0]) for chunk in self._finished]

    @property
    def finished_lengths(self) -> list[int]:
        """Return their lengths, in the same order."""
        return [chunk.n_steps for chunk in self._finished]

    @property
    def finished_rows(self) -> int:
        """Return how many rows wait to be taken."""
        return sum(self.finished_lengths)

    @property
    def running(self) -> bool:
        """Return whether an episode is under way."""
        return self._number is not None

    def facts(self) -> dict[str, Any]:
        """Return the policy's class, the record of the environment, and why the episodes cannot be reproduced."""
        return {
            "policy_class": policy_class(self._agent.policy),
            "env": env_record(self._envs[0]),
            "not_reproducible": self.not_reproducible,
        }

    @property
    def not_reproducible(self) -> str:
        """Return why the episodes cannot be reproduced."""
        return (
            f"the worker class {self._name} takes no episode numbers: an episode depends on those that its worker ran "
            "before"
        )

    def shutdown(self) -> None:
        """Let the worker close what it has."""
        self._call("shutdown")
