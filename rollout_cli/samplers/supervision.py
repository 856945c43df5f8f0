"""Supervision of workers: detects stuck workers, and decides about deaths and episodes that fail."""

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
"""Maximum deaths during one episode, reruns of a failed episode, and deaths of a worker that is starting."""

MOST_SKIPPED = 100
"""Number of consecutive skipped episodes after which a run is considered hopeless."""

_LOOK_SECONDS = 0.1  # Minimum time between two looks at a worker's notes.
_MOST_SECONDS = 0.5  # Maximum time that counts between two looks.

_CRASH_HINT = "check for a crash in the environment's or policy's native code, or a lack of memory"

# The Python line at which a fatal signal occurred, as the traceback in the crash box shows it.
_CRASHING = re.compile(
    r'^Stack \(most recent call first\):\n  File "([^"\n]+)", line (\d+) in (\S+)', re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """Rules for deaths of workers and failures of episodes.

    Attributes:
        max_worker_restarts: Maximum number of restarts, summed over all workers; 0 for none.
        on_worker_death: Whether an episode that killed its worker three times ends the call ("fail") or is
            skipped ("skip").
        on_env_error: Whether an error of the environment or policy ends the call ("fail"), reruns the episode
            up to three times in a rebuilt worker ("retry"), or skips the episode ("skip").
        step_timeout: Time limit of one step of a worker, in seconds; None for no limit.
        episode_timeout: Time limit of an episode, in seconds; None for no limit.

    Raises:
        ArgumentError: If a value is out of range (also a ValueError).

    Example:
        >>> import gymnasium
        >>> rules = rollout_cli.Supervision(on_worker_death="skip", step_timeout=10.0)
        >>> env = gymnasium.make("CartPole-v1")
        >>> with rollout_cli.MultiprocessingSampler("random", env, n_workers=1, supervision=rules) as sampler:
        ...     print(len(sampler.obtain_exact_episodes(2, agent_update=None)))
        2
    """

    max_worker_restarts: int = 10
    on_worker_death: OnWorkerDeath = "fail"
    on_env_error: OnEnvError = "fail"
    step_timeout: float | None = None
    episode_timeout: float | None = None

    def __post_init__(self) -> None:
        # Without this check a misspelled value would act as the last choice, e.g. skip episodes.
        deaths = get_args(OnWorkerDeath)
        errors = get_args(OnEnvError)
        seconds = "a positive number of seconds, or None"
        rules = {
            "max_worker_restarts": (self.max_worker_restarts >= 0, "at least 0"),
            "on_worker_death": (self.on_worker_death in deaths, f"one of: {', '.join(deaths)}"),
            "on_env_error": (self.on_env_error in errors, f"one of: {', '.join(errors)}"),
            "step_timeout": (self.step_timeout is None or self.step_timeout > 0, seconds),
            "episode_timeout": (self.episode_timeout is None or self.episode_timeout > 0, seconds),
        }
        for argument, (is_valid, expected) in rules.items():
            if not is_valid:
                value = getattr(self, argument)
                raise ArgumentError(f"{argument} is {value!r}, expected {expected}", code="limit-value")

    @property
    def has_time_out(self) -> bool:
        """Whether steps or episodes have a time limit."""
        return self.step_timeout is not None or self.episode_timeout is not None


class Decision(NamedTuple):
    """The supervisor's response to a death or failure."""

    error: RolloutError | None = None  # Ends the call.
    skipped: tuple[int, str] | None = None  # The number of a skipped episode, and the reason.
    isolated: tuple[int, ...] = ()  # The new worker runs these one at a time, to find the faulty episode.
    notice: str = ""  # A warning to the user, one line.


class Supervisor:
    """Counts deaths and failures since a sampler's workers started; the seed is used only in messages."""

    def __init__(self, rules: Supervision, seed: int) -> None:
        self._rules = rules
        self._seed = seed
        self.restarts = 0
        self.begin_call()

    def begin_call(self) -> None:
        """Reset all counts except restarts: earlier calls may have had another policy or environment."""
        self._false_starts: Counter[int] = Counter()  # Deaths of each worker before it was ready.
        self._n_skipped = 0  # Skipped episodes since the last episode that ended without error.
        self._kills: Counter[int] = Counter()
        self._failures: Counter[int] = Counter()

    def started(self, worker: int) -> None:
        """Forget the deaths of a worker before it was ready."""
        self._false_starts.pop(worker, None)

    def episode_ended(self) -> None:
        """Forget the skipped episodes, since an episode has ended without error."""
        self._n_skipped = 0

    # -- deaths ------------------------------------------------------------------------------------

    def died(self, death: Died, in_flight: Sequence[range], *, starting: bool) -> Decision:
        """Decide about the death of a worker that was starting or had these rising ranges in flight."""
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
            hint = "raise {episode_timeout=…}, or limit the steps of an episode by {max_episode_length=…}"
            error = EnvError(
                f"{self._episode(overdue[0])} took longer than {limit}",
                code="episode-timeout",
                hint=hint,
            )
            # A starting worker ran an episode of an older call, with another policy or environment.
            return Decision() if starting else self.failed(error, overdue, in_flight)
        if starting:
            self._false_starts[death.worker] += 1
            return self._restart(what, death)
        suspects = running
        if death.numbers is None:
            suspects = tuple(sorted(chain.from_iterable(in_flight)))
        self._kills.update(suspects)
        if len(suspects) != 1 or self._kills[suspects[0]] < MOST_TRIES:
            return self._restart(what, death, tuple(number for number in suspects if self._kills[number] > 1))
        message = f"{self._episode(suspects[0])} killed its worker {MOST_TRIES} times: {what}"
        hint = 'reproduce the crash with this seed, or pass {on_worker_death="skip"} to skip such episodes'
        fatal = WorkerError(message, code="episode-kills-worker", hint=hint, details=death.details)
        if self._rules.on_worker_death == "fail":
            return Decision(fatal)
        restart = self._restart(what, death)
        return restart if restart.error else self._skip(suspects[0], fatal)

    def _restart(self, what: str, death: Died, isolated: tuple[int, ...] = ()) -> Decision:
        most = self._rules.max_worker_restarts
        if self._false_starts[death.worker] >= MOST_TRIES:
            early = f"worker {death.worker} died {MOST_TRIES} times before it was ready: {what}"
            hint = death.hint or "check the constructors of the policy and environment for a crash"
            return Decision(WorkerError(early, code="worker-start", hint=hint, details=death.details))
        if self.restarts >= most:
            message = what
            if most:
                message = f"{what} after {most} {'restart' if most == 1 else 'restarts'}"
            hint = f"{death.hint or _CRASH_HINT}; raise {{max_worker_restarts=…}} to allow more restarts"
            return Decision(WorkerError(message, code="worker-died", hint=hint, details=death.details))
        self.restarts += 1
        if death.hint:
            what += f" ({death.hint})"
        notice = f"{what}; restarting it ({self.restarts} of {most})"
        return Decision(isolated=isolated, notice=notice)

    # -- failures ----------------------------------------------------------------------------------

    def failed(self, error: RolloutError, numbers: Sequence[int], in_flight: Sequence[range]) -> Decision:
        """Decide about an error in one of the episodes `numbers` (maybe none) of a worker.

        `in_flight` are the ranges of numbers leased to the worker.
        """
        rule = self._rules.on_env_error
        suspects = _numbers_within(in_flight, numbers)
        if numbers and not suspects:
            return Decision()  # The episodes were dropped, or ended just before their worker was killed.
        if rule == "fail" or not suspects:
            return Decision(error)
        number = suspects[0]
        if len(suspects) > 1:  # A step of several environments at once.
            notice = f"{error.message}: rerunning {_episode_list(suspects)} one at a time"
            return Decision(isolated=suspects, notice=notice)
        if rule == "skip":
            return self._skip(number, error)
        self._failures[number] += 1
        count = self._failures[number]
        if count > MOST_TRIES:
            advice = (
                f'episode {number} failed {count} times; pass {{on_env_error="skip"}} to skip such episodes'
            )
            return Decision(error.with_hint("; ".join(filter(None, [error.marked_hint, advice]))))
        notice = f"{error.message}; rerunning episode {number} ({count} of {MOST_TRIES})"
        return Decision(isolated=(number,), notice=notice)

    def _skip(self, number: int, error: RolloutError) -> Decision:
        self._n_skipped += 1
        if self._n_skipped >= MOST_SKIPPED:
            message = f"skipped {MOST_SKIPPED} consecutive episodes; the last error: {error.message}"
            return Decision(
                type(error)(
                    message,
                    code="too-many-skipped",
                    hint="fix this error first: nearly every episode fails",
                    details=error.details,
                )
            )
        return Decision(skipped=(number, error.message), notice=f"{error.message}; skipping episode {number}")

    def _episode(self, number: int) -> str:
        return f"episode {number} (seed {env_seed(self._seed, number)})"


def _numbers_within(runs: Sequence[range], numbers: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers that are in any of the ranges, in rising order."""
    return tuple(sorted({number for number in numbers for run in runs if number in run}))


def _episode_list(numbers: Sequence[int]) -> str:
    """Return "episode 3" or "episodes 3, 4, …"; a long list is cut."""
    names = shorten(", ".join(map(str, numbers)), 100, placeholder=" …")
    return f"episodes {names}" if len(numbers) > 1 else f"episode {names}"


class Notes(NamedTuple):
    """A snapshot of a worker's notes about its progress."""

    beats: int  # Number of turns and steps started so far.
    busy: bool  # Whether the worker was in a turn, rather than waiting or sending.
    # The running episodes; None if unknown.
    numbers: tuple[int, ...] | None


@dataclass(slots=True)
class Watch:
    """Detects from a worker's notes that it is stuck in a step (including the reset before it) or an episode.

    Only time within turns counts. `beat_seconds` is the longest time between beats while steps are fast.
    """

    rules: Supervision
    beat_seconds: float = 0.0
    _last_look: tuple[float, Notes] | None = None
    _stuck: float = 0.0
    _running: dict[int, float] = field(default_factory=dict)

    def look(self, notes: Notes, now: float) -> tuple[str, tuple[int, ...]] | None:
        """Return None, or the reason to kill the worker and its overdue episodes (empty for a step)."""
        last = self._last_look
        if last is not None and now - last[0] < _LOOK_SECONDS:
            return None
        self._last_look = now, notes
        if last is None or not (notes.busy and last[1].busy and notes.numbers != ()):
            self._stuck = 0.0
            return None
        last_time, last_notes = last
        # The sampler may not have looked for a long time, in which the worker's progress is unknown.
        elapsed = min(now - last_time, _MOST_SECONDS)
        self._stuck = self._stuck + elapsed if last_notes == notes else 0.0
        limit = self.rules.step_timeout
        if limit is not None and self._stuck > limit + self.beat_seconds:
            return f"was killed, because a step took longer than {limit:g} s,", ()
        running = dict.fromkeys(notes.numbers or (), 0.0)
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
        return f"was killed, because {episodes} took longer than {limit:g} s,", overdue
