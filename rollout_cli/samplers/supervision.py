"""Supervision: what becomes of a worker's death, and of an episode that fails.

Accounts and decisions only, with no process: the sampler's machine tells what happened and which episodes are suspects,
and gets a verdict.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from rollout_cli.errors import EnvError, RolloutError, WorkerError
from rollout_cli.samplers.messages import Failed
from rollout_cli.samplers.reports import unpack_error
from rollout_cli.seeding import derive_seed

OnWorkerDeath = Literal["fail", "skip"]
OnEnvError = Literal["fail", "retry", "skip"]

MOST_KILLS = 3
"""An episode that was running at so many deaths is not run again."""

MOST_RETRIES = 3
"""How often an episode that failed is run again, where that is asked for."""

MOST_FALSE_STARTS = 3
"""A worker that dies so often in a row before it was ready is not started again."""

MOST_SKIPPED = 100
"""After so many skipped episodes in a row, none of which ended, a run would go on for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """What a sampler does about deaths and failures.

    Attributes:
        max_worker_restarts: How many worker processes may be started again, of all workers together; 0 for none.
        on_worker_death: What becomes of an episode that killed its worker three times: it ends the call, or is skipped.
        on_env_error: What becomes of an episode in which the environment or policy raised: it ends the call, is run
            again up to three times in a worker that is built anew, or is skipped.
        step_timeout: Seconds that one step of a worker may take; None for no limit.
        episode_timeout: Seconds that an episode may take; None for no limit.
    """

    max_worker_restarts: int = 10
    on_worker_death: OnWorkerDeath = "fail"
    on_env_error: OnEnvError = "fail"
    step_timeout: float | None = None
    episode_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Died:
    """A worker's process ended; all that it had sent was read before.

    Attributes:
        worker: Who.
        reason: How it ended, in words.
        begun: The episodes that were running; None where it did not tell.
        busy: Whether it was running episodes, rather than starting, waiting or sending.
        last_words: The traceback that it left.
        late: The episodes that took too long, where it was killed for that.
    """

    worker: int
    reason: str
    begun: tuple[int, ...] | None = ()
    busy: bool = False
    last_words: str = ""
    late: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do now.

    Attributes:
        error: What ends the call; None where it goes on.
        skipped: An episode that is left out.
        reason: Why.
        alone: Episodes to be run one at a time by the worker that is brought up again, to see which one it was.
        notice: What to tell the user.
    """

    error: RolloutError | None = None
    skipped: int | None = None
    reason: str = ""
    alone: tuple[int, ...] = ()
    notice: str = ""


class Supervisor:
    """Keeps account of deaths and failures from the start of a sampler's workers on.

    Args:
        rules: What to do about them.
        seed: The run's root seed, for messages.
    """

    def __init__(self, rules: Supervision, seed: int) -> None:
        self._rules, self._seed = rules, seed
        self._story: list[str] = []
        self._restarts = 0
        self.begin_call()

    def begin_call(self) -> None:
        """Forget what was known of episodes and of starts: under another policy or environment they are others."""
        self._false_starts: Counter[int] = Counter()
        self._kills: Counter[int] = Counter()
        self._failures: Counter[int] = Counter()
        self._skipped_in_a_row = 0

    def started(self, worker: int) -> None:
        """Note that a worker is ready."""
        self._false_starts[worker] = 0

    def progressed(self) -> None:
        """Note that episodes ended well."""
        self._skipped_in_a_row = 0

    # -- deaths ----------------------------------------------------------------------------------------------------

    def died(self, death: Died, open_numbers: Collection[int], *, starting: bool) -> Verdict:
        """Take a death.

        Args:
            death: What is known of it.
            open_numbers: The episodes that the worker was leased and had not delivered.
            starting: Whether it had not been ready yet.
        """
        running = sorted(set(death.begun or ()).intersection(open_numbers))
        told = f"worker {death.worker} {death.reason}{_place(death)}{_where(death, running, starting=starting)}"
        self._story.append(f"{told}\n{death.last_words}" if death.last_words else told)
        if death.late:
            return self._after_delay(death, [number for number in death.late if number in open_numbers])
        suspects = self._suspects(death, running, open_numbers, starting=starting)
        self._kills.update(suspects)
        self._false_starts[death.worker] += starting
        if len(suspects) == 1 and self._kills[suspects[0]] >= MOST_KILLS:
            return self._after_killer(suspects[0], told)
        return self._restart(told, tuple(number for number in suspects if self._kills[number] > 1), death.worker)

    def _suspects(
        self, death: Died, running: list[int], open_numbers: Iterable[int], *, starting: bool
    ) -> tuple[int, ...]:
        if starting or not death.busy:
            return ()
        return tuple(sorted(open_numbers) if death.begun is None else running)

    def _after_killer(self, number: int, told: str) -> Verdict:
        what = f"{self._episode(number)} killed its worker {MOST_KILLS} times"
        if self._rules.on_worker_death == "fail":
            hint = "the seed repeats it; --on-worker-death skip leaves such an episode out"
            return Verdict(WorkerError(f"{what}: {told}", hint=hint, details=self._details()))
        restart = self._restart(told, ())
        return restart if restart.error else self._skip(number, f"{what}: {told}")

    def _restart(self, told: str, alone: tuple[int, ...], worker: int | None = None) -> Verdict:
        most = self._rules.max_worker_restarts
        if worker is not None and self._false_starts[worker] >= MOST_FALSE_STARTS:
            message = f"worker {worker} died {MOST_FALSE_STARTS} times before it was ready: {told}"
            hint = "its policy or environment crashes while it is built; --sampler local shows more"
            return Verdict(WorkerError(message, hint=hint, details=self._details()))
        if self._restarts >= most:
            after = f" after {most} {'restart' if most == 1 else 'restarts'}" if most else ""
            hint = (
                "out of memory, or a crash in the environment's or policy's native code; --sampler local shows more, "
                "--max-worker-restarts allows more"
            )
            return Verdict(WorkerError(f"{told}{after}", hint=hint, details=self._details()))
        self._restarts += 1
        last_words = self._story[-1].removeprefix(told)
        return Verdict(alone=alone, notice=f"{told}; it is started again ({self._restarts} of {most}){last_words}")

    def _details(self) -> str:
        """Return how each death happened; empty where the message says it all."""
        return "" if len(self._story) == 1 and "\n" not in self._story[0] else "\n".join(self._story)

    # -- failures --------------------------------------------------------------------------------------------------

    def failed(self, event: Failed, open_numbers: Collection[int]) -> Verdict:
        """Take an error that user code raised.

        Args:
            event: What the worker told.
            open_numbers: The episodes that the worker was leased and had not delivered.
        """
        if not event.numbers:
            return Verdict(unpack_error(event.error))
        numbers = tuple(number for number in event.numbers if number in open_numbers)
        if not numbers:
            return Verdict()  # It lies above the end that the run turned out to have.
        error = unpack_error(event.error)
        if len(numbers) > 1 and self._rules.on_env_error != "fail":
            return Verdict(alone=numbers, notice=f"{error.message}: each of its episodes is run again, alone")
        return self._after_failure(numbers[0], error)

    def _after_failure(self, number: int, error: RolloutError) -> Verdict:
        match self._rules.on_env_error:
            case "fail":
                return Verdict(error)
            case "skip":
                return self._skip(number, error.message, error)
            case "retry":
                return self._retry(number, error)

    def _retry(self, number: int, error: RolloutError) -> Verdict:
        self._failures[number] += 1
        count = self._failures[number]
        if count > MOST_RETRIES:
            told = f"episode {number} failed {count} times; --on-env-error skip leaves such an episode out"
            error.hint = f"{error.hint}; {told}" if error.hint else told
            return Verdict(error)
        again = f"episode {number} is run again ({count} of {MOST_RETRIES})"
        return Verdict(alone=(number,), notice=f"{error.message}; {again}")

    def _skip(self, number: int, reason: str, error: RolloutError | None = None) -> Verdict:
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= MOST_SKIPPED:
            kind = type(error) if error is not None else WorkerError
            message = f"{MOST_SKIPPED} episodes in a row had to be skipped; the last one: {reason}"
            hint = "hardly any episode can be run like this"
            return Verdict(kind(message, hint=hint, details=error.details if error is not None else self._details()))
        return Verdict(skipped=number, reason=reason, notice=f"{reason}; episode {number} is skipped")

    def _after_delay(self, death: Died, late: list[int]) -> Verdict:
        if not late:
            return Verdict()  # They ended just before their worker was killed.
        error = self._late(death, late[0])
        if len(late) > 1 and self._rules.on_env_error != "fail":
            # One step of all rows may have taken all the time.
            return Verdict(
                alone=tuple(late), notice=f"{error.message}, and {len(late) - 1} more: each is run again, alone"
            )
        return self._after_failure(late[0], error)

    def _late(self, death: Died, number: int) -> EnvError:
        return EnvError(
            f"{self._episode(number)} took longer than {self._rules.episode_timeout:g} s in worker {death.worker}",
            hint="--episode-timeout says how long an episode may take, --max-episode-length how many steps",
        )

    def _episode(self, number: int) -> str:
        return f"episode {number} (seed {derive_seed(self._seed, number, 'env')})"


_CRASHING = re.compile(r'^Stack \(most recent call first\):\n  File "([^"\n]+)", line (\d+) in (\S+)', re.MULTILINE)


def _place(death: Died) -> str:
    """Return where in Python a fatal signal struck, as far as the traceback says it."""
    found = _CRASHING.search(death.last_words)
    return f" in {found[3]} ({found[1]}, line {found[2]})" if found else ""


def _where(death: Died, running: list[int], *, starting: bool) -> str:
    if starting:
        return " while it was starting"
    if not running or not death.busy:
        return ""
    if len(running) == 1:
        return f" while it ran episode {running[0]}"
    if len(running) <= 16:  # noqa: PLR2004  So many are still read.
        return f" while it ran episodes {', '.join(map(str, running))}"
    return f" while it ran {len(running)} episodes from {running[0]} to {running[-1]}"
