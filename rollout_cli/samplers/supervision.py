"""Supervision: decides what becomes of a worker's death, and of an episode that fails."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from rollout_cli.errors import EnvError, RolloutError, WorkerError
from rollout_cli.samplers.messages import Failed
from rollout_cli.samplers.pool import Died
from rollout_cli.seeding.seeds import env_seed

OnWorkerDeath = Literal["fail", "skip"]
OnEnvError = Literal["fail", "retry", "skip"]

MOST_TRIES = 3
"""So many deaths under an episode, reruns of one that failed, or deaths before a worker was ready are enough."""

MOST_SKIPPED = 100
"""After so many skipped episodes in a row, none of which ended, a run would never end."""

_MOST_NAMED = 16
"""So many episode numbers are still read in a message."""

_CRASH_HINT = "a crash in the environment's or policy's native code, or no memory left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """What a sampler does about deaths and failures.

    Attributes:
        max_worker_restarts: How many workers may be started again, of all workers together; 0 for none.
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
class Verdict:
    """What to do now.

    Attributes:
        error: What ends the call; None where it continues.
        skipped: The number of an episode that is left out, and why.
        isolated: Episodes to be run one at a time by the worker that is brought up again, to see which one it was.
        notice: What to warn the user of, one line.
    """

    error: RolloutError | None = None
    skipped: tuple[int, str] | None = None
    isolated: tuple[int, ...] = ()
    notice: str = ""


class Supervisor:
    """Keeps account of deaths and failures from the start of a sampler's workers on; the root seed is for messages."""

    def __init__(self, rules: Supervision, seed: int) -> None:
        self._rules, self._seed = rules, seed
        self._deaths: list[str] = []
        self.restarts = 0
        self.begin_call()

    def begin_call(self) -> None:
        """Forget the episodes and starts of earlier calls: under another policy or environment they are others."""
        self._false_starts: Counter[int] = Counter()
        self._kills: Counter[int] = Counter()
        self._failures: Counter[int] = Counter()
        self._skipped_in_a_row = self._failures_between = 0

    def started(self, worker: int) -> None:
        """Note that a worker is ready."""
        self._false_starts[worker] = 0

    def progressed(self) -> None:
        """Note that episodes ended well."""
        self._skipped_in_a_row = self._failures_between = 0

    # -- deaths ----------------------------------------------------------------------------------------------------

    def died(self, death: Died, in_flight: Sequence[range], *, starting: bool) -> Verdict:
        """Take a death of a worker that had these episodes in flight (rising ranges), or was not ready yet."""
        running = _those_in(in_flight, death.numbers or ())
        what = f"worker {death.worker} {death.reason}{_place(death)}{_where(running, starting=starting)}"
        self._deaths.append(what)
        if death.late:
            return self._after_delay(death, _those_in(in_flight, death.late))
        if starting:
            self._false_starts[death.worker] += 1
            return self._restart(what, death)
        suspects = running if death.numbers is not None else tuple(sorted(chain.from_iterable(in_flight)))
        self._kills.update(suspects)
        if len(suspects) != 1 or self._kills[suspects[0]] < MOST_TRIES:
            return self._restart(what, death, tuple(number for number in suspects if self._kills[number] > 1))
        message = f"{self._episode(suspects[0])} killed its worker {MOST_TRIES} times: {what}"
        hint = "the seed repeats it; --on-worker-death skip leaves such an episode out"
        error = self._fatal(message, hint, death)
        if self._rules.on_worker_death == "fail":
            return Verdict(error)
        restart = self._restart(what, death)
        return restart if restart.error else self._skip(suspects[0], error)

    def _restart(self, what: str, death: Died, isolated: tuple[int, ...] = ()) -> Verdict:
        most = self._rules.max_worker_restarts
        if self._false_starts[death.worker] >= MOST_TRIES:
            what = f"worker {death.worker} died {MOST_TRIES} times before it was ready: {what}"
            hint = death.hint or "its policy or environment crashes while it is built"
            return Verdict(self._fatal(what, hint, death))
        if self.restarts >= most:
            after = f" after {most} {'restart' if most == 1 else 'restarts'}" if most else ""
            hint = f"{death.hint or _CRASH_HINT}; --max-worker-restarts allows more restarts"
            return Verdict(self._fatal(f"{what}{after}", hint, death))
        self.restarts += 1
        likely = f" ({death.hint})" if death.hint else ""
        return Verdict(isolated=isolated, notice=f"{what}{likely}; it is started again ({self.restarts} of {most})")

    def _fatal(self, message: str, hint: str, death: Died) -> WorkerError:
        """Return the error of a death, with a line for each death before it, and the traceback of the last one."""
        before = self._deaths if len(self._deaths) > 1 else []
        return WorkerError(message, hint=hint, details="\n".join([*before, death.details]).rstrip())

    # -- failures --------------------------------------------------------------------------------------------------

    def failed(self, event: Failed, in_flight: Sequence[range]) -> Verdict:
        """Take an error that was raised in a worker that had these episodes in flight."""
        if not event.numbers:
            return self._after_failure_between(event.error)
        numbers = _those_in(in_flight, event.numbers)
        if not numbers:
            return Verdict()  # It lies above the end that the run turned out to have.
        if len(numbers) > 1 and self._rules.on_env_error != "fail":
            return Verdict(isolated=numbers, notice=f"{event.error.message}: each of its episodes is run again, alone")
        return self._after_failure(numbers[0], event.error)

    def _after_failure_between(self, error: RolloutError) -> Verdict:
        """Take an error of no episode: a vector environment may raise in a step that only resets rows."""
        self._failures_between += 1
        is_final = self._rules.on_env_error == "fail" or self._failures_between > MOST_TRIES
        if is_final or not isinstance(error, EnvError):
            return Verdict(error)
        return Verdict(notice=f"{error.message}; the worker builds its environment anew")

    def _after_failure(self, number: int, error: RolloutError) -> Verdict:
        if self._rules.on_env_error == "fail":
            return Verdict(error)
        if self._rules.on_env_error == "skip":
            return self._skip(number, error)
        self._failures[number] += 1
        count = self._failures[number]
        if count > MOST_TRIES:
            advice = f"episode {number} failed {count} times; --on-env-error skip leaves such an episode out"
            error.hint = f"{error.hint}; {advice}" if error.hint else advice
            return Verdict(error)
        notice = f"{error.message}; episode {number} is run again ({count} of {MOST_TRIES})"
        return Verdict(isolated=(number,), notice=notice)

    def _skip(self, number: int, error: RolloutError) -> Verdict:
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= MOST_SKIPPED:
            message = f"{MOST_SKIPPED} episodes in a row had to be skipped; the last one: {error.message}"
            hint = "hardly any episode can be run like this"
            return Verdict(type(error)(message, hint=hint, details=error.details))
        return Verdict(skipped=(number, error.message), notice=f"{error.message}; episode {number} is skipped")

    def _after_delay(self, death: Died, late: tuple[int, ...]) -> Verdict:
        if not late:
            return Verdict()  # They ended just before their worker was killed.
        error = EnvError(
            f"{self._episode(late[0])} took longer than {self._rules.episode_timeout:g} s in worker {death.worker}",
            hint="--episode-timeout says how long an episode may take, --max-episode-length how many steps",
        )
        if len(late) > 1 and self._rules.on_env_error != "fail":  # One step of all rows may have taken all the time.
            return Verdict(isolated=late, notice=f"{error.message}, and {len(late) - 1} more: each is run again, alone")
        return self._after_failure(late[0], error)

    def _episode(self, number: int) -> str:
        return f"episode {number} (seed {env_seed(self._seed, number)})"


def _those_in(runs: Sequence[range], numbers: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers that lie in one of the ranges, rising."""
    return tuple(number for number in sorted(set(numbers)) if any(number in run for run in runs))


_CRASHING = re.compile(r'^Stack \(most recent call first\):\n  File "([^"\n]+)", line (\d+) in (\S+)', re.MULTILINE)


def _place(death: Died) -> str:
    """Return where in Python a fatal signal struck, as far as the traceback shows it."""
    found = _CRASHING.search(death.details)
    return f" in {found[3]} ({found[1]}, line {found[2]})" if found else ""


def _where(running: Sequence[int], *, starting: bool) -> str:
    if starting:
        return " while it was starting"
    if len(running) > _MOST_NAMED:
        return f" while it ran {len(running)} episodes from {running[0]} to {running[-1]}"
    plural = "s" if len(running) > 1 else ""
    return f" while it ran episode{plural} {', '.join(map(str, running))}" if running else ""
