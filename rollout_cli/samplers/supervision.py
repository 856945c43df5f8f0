"""Supervision: finds workers that are stuck, and decides about deaths and about episodes that fail."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from textwrap import shorten
from typing import Literal, NamedTuple, get_args

from rollout_cli.errors import ArgumentError, EnvError, RolloutError, WorkerError
from rollout_cli.samplers.pool import Died
from rollout_cli.seeding.seeds import env_seed

OnWorkerDeath = Literal["fail", "skip"]
OnEnvError = Literal["fail", "retry", "skip"]

MOST_TRIES = 3
"""So many deaths under an episode, reruns of one that failed, or deaths of a starting worker are enough."""

MOST_SKIPPED = 100
"""After so many skipped episodes in a row, none of which ended, a run would never end."""

_LOOK_SECONDS = 0.1  # Between two looks at what a worker notes.
_MOST_SECONDS = 0.5  # So many count of those between two looks.

_CRASH_HINT = "a crash in the environment's or policy's native code, or no memory left"

# Where in Python a fatal signal struck, as the traceback in the crash box shows it.
_CRASHING = re.compile(
    r'^Stack \(most recent call first\):\n  File "([^"\n]+)", line (\d+) in (\S+)', re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """What a sampler does about deaths and failures.

    Attributes:
        max_worker_restarts: How many workers may be started again, of all workers together; 0 for none.
        on_worker_death: What becomes of an episode that killed its worker three times: it ends the call, or
            is skipped.
        on_env_error: What becomes of an episode in which the environment or policy raised: it ends the call,
            is run again up to three times in a worker that is built anew, or is skipped.
        step_timeout: Seconds that one step of a worker may take; None for no limit.
        episode_timeout: Seconds that an episode may take; None for no limit.

    Raises:
        ArgumentError: If one is out of range (a ValueError, too).
    """

    max_worker_restarts: int = 10
    on_worker_death: OnWorkerDeath = "fail"
    on_env_error: OnEnvError = "fail"
    step_timeout: float | None = None
    episode_timeout: float | None = None

    def __post_init__(self) -> None:
        # A word that is misspelt would be the last one of its list: skipped episodes, for example.
        ranges = {
            "max_worker_restarts": self.max_worker_restarts >= 0,
            "on_worker_death": self.on_worker_death in get_args(OnWorkerDeath),
            "on_env_error": self.on_env_error in get_args(OnEnvError),
            "step_timeout": self.step_timeout is None or self.step_timeout > 0,
            "episode_timeout": self.episode_timeout is None or self.episode_timeout > 0,
        }
        if wrong := [name for name, is_in_range in ranges.items() if not is_in_range]:
            raise ArgumentError(
                f"{wrong[0]} is {getattr(self, wrong[0])!r}, which is out of range", code="limit-value"
            )

    @property
    def has_time_out(self) -> bool:
        """Whether workers are to be watched."""
        return self.step_timeout is not None or self.episode_timeout is not None


class Decision(NamedTuple):
    """What to do now."""

    error: RolloutError | None = None  # Ends the call.
    skipped: tuple[int, str] | None = None  # The number of an episode that is left out, and why.
    isolated: tuple[int, ...] = ()  # To be run one at a time by the new worker, to see which it was.
    notice: str = ""  # What to warn the user of, one line.


class Supervisor:
    """Keeps account of deaths and failures since a sampler's workers started; the seed is for messages."""

    def __init__(self, rules: Supervision, seed: int) -> None:
        self._rules = rules
        self._seed = seed
        self.restarts = 0
        self.begin_call()

    def begin_call(self) -> None:
        """Forget the episodes and starts of earlier calls: these had another policy or environment."""
        self.false_starts: Counter[int] = Counter()  # By worker, how often it died before it was ready.
        self.n_skipped = 0  # Since the last episode that ended well.
        self._kills: Counter[int] = Counter()
        self._failures: Counter[int] = Counter()

    # -- deaths ------------------------------------------------------------------------------------

    def died(self, death: Died, in_flight: Sequence[range], *, starting: bool) -> Decision:
        """Take a worker's death, with these episodes in flight (rising ranges), or before it was ready."""
        running = _numbers_within(in_flight, death.numbers or ())
        what = f"worker {death.worker} {death.reason}"
        if place := _CRASHING.search(death.details):
            what += f" in {place[3]} ({place[1]}, line {place[2]})"
        if starting:
            what += " while it was starting"
        elif running:
            what += f" while it ran {_episode_list(running)}"
        if death.late:
            overdue = _numbers_within(in_flight, death.late) or death.late
            limit = f"{self._rules.episode_timeout:g} s in worker {death.worker}"
            hint = (
                "{episode_timeout=…} says how long an episode may take, {max_episode_length=…} how many steps"
            )
            error = EnvError(
                f"{self._episode(overdue[0])} took longer than {limit}",
                code="episode-timeout",
                hint=hint,
            )
            # One that is starting was in an episode of an older call, of another policy or environment.
            return Decision() if starting else self.failed(error, overdue, in_flight)
        if starting:
            self.false_starts[death.worker] += 1
            return self._restart(what, death)
        suspects = running
        if death.numbers is None:
            suspects = tuple(sorted(chain.from_iterable(in_flight)))
        self._kills.update(suspects)
        if len(suspects) != 1 or self._kills[suspects[0]] < MOST_TRIES:
            return self._restart(what, death, tuple(number for number in suspects if self._kills[number] > 1))
        message = f"{self._episode(suspects[0])} killed its worker {MOST_TRIES} times: {what}"
        hint = 'the seed repeats it; {on_worker_death="skip"} leaves such an episode out'
        fatal = WorkerError(message, code="episode-kills-worker", hint=hint, details=death.details)
        if self._rules.on_worker_death == "fail":
            return Decision(fatal)
        restart = self._restart(what, death)
        return restart if restart.error else self._skip(suspects[0], fatal)

    def _restart(self, what: str, death: Died, isolated: tuple[int, ...] = ()) -> Decision:
        most = self._rules.max_worker_restarts
        if self.false_starts[death.worker] >= MOST_TRIES:
            what = f"worker {death.worker} died {MOST_TRIES} times before it was ready: {what}"
            hint = death.hint or "its policy or environment crashes while it is built"
            return Decision(WorkerError(what, code="worker-start", hint=hint, details=death.details))
        if self.restarts >= most:
            if most:
                what += f" after {most} {'restart' if most == 1 else 'restarts'}"
            hint = f"{death.hint or _CRASH_HINT}; {{max_worker_restarts=…}} allows more restarts"
            return Decision(WorkerError(what, code="worker-died", hint=hint, details=death.details))
        self.restarts += 1
        if death.hint:
            what += f" ({death.hint})"
        notice = f"{what}; it is started again ({self.restarts} of {most})"
        return Decision(isolated=isolated, notice=notice)

    # -- failures ----------------------------------------------------------------------------------

    def failed(self, error: RolloutError, numbers: Sequence[int], in_flight: Sequence[range]) -> Decision:
        """Take an error of one of these episodes, or of none, in a worker that had these ranges in flight."""
        rule = self._rules.on_env_error
        suspects = _numbers_within(in_flight, numbers)
        if numbers and not suspects:
            return Decision()  # They were dropped meanwhile, or ended just before their worker was killed.
        if rule == "fail" or not suspects:
            return Decision(error)
        number = suspects[0]
        if len(suspects) > 1:  # A step of several environments at once.
            notice = f"{error.message}: {_episode_list(suspects)} are run again, each alone"
            return Decision(isolated=suspects, notice=notice)
        if rule == "skip":
            return self._skip(number, error)
        self._failures[number] += 1
        count = self._failures[number]
        if count > MOST_TRIES:
            advice = (
                f'episode {number} failed {count} times; {{on_env_error="skip"}} leaves such an episode out'
            )
            return Decision(error.with_hint("; ".join(filter(None, [error.marked_hint, advice]))))
        notice = f"{error.message}; episode {number} is run again ({count} of {MOST_TRIES})"
        return Decision(isolated=(number,), notice=notice)

    def _skip(self, number: int, error: RolloutError) -> Decision:
        self.n_skipped += 1
        if self.n_skipped >= MOST_SKIPPED:
            message = f"{MOST_SKIPPED} episodes in a row had to be skipped; the last one: {error.message}"
            return Decision(
                type(error)(
                    message,
                    code="too-many-skipped",
                    hint="hardly any episode can be run like this",
                    details=error.details,
                )
            )
        return Decision(
            skipped=(number, error.message), notice=f"{error.message}; episode {number} is skipped"
        )

    def _episode(self, number: int) -> str:
        return f"episode {number} (seed {env_seed(self._seed, number)})"


def _numbers_within(runs: Sequence[range], numbers: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers that lie in one of the ranges, rising."""
    return tuple(sorted({number for number in numbers for run in runs if number in run}))


def _episode_list(numbers: Sequence[int]) -> str:
    """Return one or more episodes in words; of very many, the first ones."""
    names = shorten(", ".join(map(str, numbers)), 100, placeholder=" …")
    return f"episodes {names}" if len(numbers) > 1 else f"episode {names}"


class Notes(NamedTuple):
    """A snapshot of what a worker has noted of itself."""

    beats: int  # Turns and steps that were begun.
    busy: bool  # Whether the worker was in a turn, rather than waiting or sending.
    # The episodes that had begun and not ended; None where the box cannot say.
    numbers: tuple[int, ...] | None


@dataclass(slots=True)
class Watch:
    """Finds a worker that is stuck in a step (with the reset before it) or an episode, by what it notes.

    Only time within its turns counts. `beat_seconds` is how long it may run quick steps without a beat.
    """

    rules: Supervision
    beat_seconds: float = 0.0
    _last_look: tuple[float, Notes] | None = None
    _stuck: float = 0.0
    _running: dict[int, float] = field(default_factory=dict)

    def look(self, notes: Notes, now: float) -> tuple[str, tuple[int, ...]] | None:
        """Return None, or why the worker is to be killed, and its overdue episodes (none for a step)."""
        last = self._last_look
        if last is not None and now - last[0] < _LOOK_SECONDS:
            return None
        self._last_look = now, notes
        if last is None or not (notes.busy and last[1].busy and notes.numbers):
            self._stuck = 0.0
            return None
        last_time, last_notes = last
        # The sampler may have been away for long; nobody knows what the worker did meanwhile.
        elapsed = min(now - last_time, _MOST_SECONDS)
        self._stuck = self._stuck + elapsed if last_notes == notes else 0.0
        limit = self.rules.step_timeout
        if limit is not None and self._stuck > limit + self.beat_seconds:
            return f"was killed, since a step took longer than {limit:g} s,", ()
        running = dict.fromkeys(notes.numbers, 0.0)
        for number in running.keys() & (last_notes.numbers or ()):
            running[number] = self._running.get(number, 0.0) + elapsed
        self._running = running
        limit = self.rules.episode_timeout
        if limit is None:
            return None
        overdue = tuple(number for number, seconds in running.items() if seconds > limit)
        if not overdue:
            return None
        episodes = f"episode {overdue[0]}" if len(overdue) == 1 else f"each of {len(overdue)} episodes"
        return f"was killed, since {episodes} took longer than {limit:g} s,", overdue
