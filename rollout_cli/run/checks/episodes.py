"""Checks of recorded episodes: actions, endings, values, infos and reproducibility."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.chunk import Chunk, unmatched_patterns
from rollout_cli.episodes.spaces import space_leaves
from rollout_cli.errors import InterruptedRunError, RolloutError
from rollout_cli.run.checks.objects import Finding, Findings
from rollout_cli.run.checks.trial import Trial
from rollout_cli.run.compare import advice, first_difference
from rollout_cli.run.reproduce import run_again
from rollout_cli.workers.values import WorkerReport

if TYPE_CHECKING:
    from rollout_cli.dataset.metadata import DatasetSummary

_SEVERAL = 3  # Minimum number of episodes for a finding about equal episodes.
_MANY = 20  # Minimum number of actions for a finding about their range.
_ALWAYS = 0.9  # Minimum share of actions at a bound for a finding.
_LONG = 5_000  # Steps within which an episode is expected to end.
_COURSE = ("observation", "last_observation", "action", "reward", "terminated", "truncated", "length")
"""The fields that decide whether episodes are equal; infos may differ, for example in the time."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The first episodes of a run with one worker.

    Attributes:
        trial: The trial that ran them.
        spec: The environment's spaces.
        report: The worker's report.
        limit: Steps after which episodes were truncated; None for no limit.
        wanted: The requested number of steps.
        chunk: The episodes.
        summary: The summary of a dataset of these episodes.
        seconds: Their wall time.
    """

    trial: Trial
    spec: EnvSpec
    report: WorkerReport
    limit: int | None
    wanted: int
    chunk: Chunk
    summary: DatasetSummary
    seconds: float

    def batch(self, place: int) -> EpisodeBatch:
        """Return one episode."""
        return EpisodeBatch.from_chunks(self.spec, [self.chunk.episodes(place, place + 1)])

    def again(self, numbers: Sequence[int], **options: Any) -> list[EpisodeBatch]:
        """Run episodes sequentially in a fresh process, and return them."""
        with self.trial.running(limit=self.limit, **options) as sampler:
            return [EpisodeBatch.from_chunks(self.spec, [run_again(sampler, number)]) for number in numbers]


def _actions(recorded: Recorded) -> Findings:
    """Check whether actions use the range of their space."""
    for leaf, values in zip(space_leaves(recorded.spec.action_space), recorded.chunk.actions, strict=True):
        if leaf.kind != "box" or leaf.dtype.kind != "f" or len(values) < _MANY or leaf.bounds is None:
            continue
        (low, high) = leaf.bounds
        name = f"action {leaf.name}".rstrip()
        share = np.max(((values <= low) | (values >= high)).mean(axis=0))
        if share >= _ALWAYS:
            yield Finding(
                "warn",
                f"{name} is at a bound in {share:.0%} of the steps",
                "squash or scale the raw Gaussian actions of the policy",
            )
        is_narrow = (np.abs(values).max(axis=0) <= 1) & (np.ptp(values, axis=0) > 0)
        if np.any(is_narrow & np.isfinite(high - low) & (np.maximum(-low, high) > 1)):
            yield Finding(
                "warn",
                f"{name} stays in [-1, 1], but its space is wider",
                f"scale normalized actions, such as those from exported SAC or TD3 policies, to {leaf.space}",
            )


def _endings(recorded: Recorded) -> Findings:
    """Check whether episodes end, and whether a time limit is reported as termination."""
    lengths = recorded.chunk.lengths
    terminated = recorded.chunk.terminated
    if recorded.chunk.n_steps < recorded.wanted:
        yield Finding(
            "warn",
            f"episode {len(lengths)} did not end within {recorded.trial.seconds:g} s from the start",
            "find what blocks or is slow, or allow more time: {seconds=…}",
        )
    has_limit = recorded.trial.config.max_episode_length or recorded.report.env["max_episode_length"]
    n_cut = 0 if has_limit else int((~terminated & (lengths == recorded.limit)).sum())
    if n_cut:
        is_long = n_cut == len(lengths) and (recorded.limit or 0) >= _LONG
        yield Finding(
            "fail" if is_long else "warn",
            f"{n_cut} of {len(lengths)} episodes did not end within {recorded.limit} steps, "
            "and the environment has no time limit",
            "truncate them with {max_episode_length=N}, or check longer episodes with {seconds=…}",
        )
    is_alike = len(lengths) >= _SEVERAL and lengths.min() == lengths.max() > 1
    if is_alike and terminated.all() and not recorded.chunk.truncated.any():
        yield Finding(
            "warn",
            f"all {len(lengths)} episodes are terminated at step {lengths[0]:,}: a time limit in disguise?",
            "return truncated=True at a time limit, so that learners bootstrap the value",
        )


def _values(recorded: Recorded) -> Findings:
    """Report values that are not finite or outside their space."""
    for anomaly in recorded.summary.anomalies:
        if anomaly.problem == "outside":
            yield Finding("warn", str(anomaly), "clip it in the environment, or widen its space")
        else:
            yield Finding("fail", str(anomaly), "find where the value is computed")


def _infos(recorded: Recorded) -> Findings:
    """Report infos that cannot be stored."""
    patterns = recorded.trial.config.drop_info
    # The summary also has infos that the user dropped.
    dropped = [
        name for name in recorded.summary.dropped_infos if [*patterns] == unmatched_patterns(patterns, [name])
    ]
    if dropped:
        yield Finding(
            "warn",
            f"these infos cannot be stored: {', '.join(dropped[:_SEVERAL])}",
            "use numbers, strings or arrays, or drop the infos: {drop_info=KEY}",
        )


def _seeds(recorded: Recorded) -> Findings:
    """Check that different seeds give different episodes, and equal seeds equal episodes.

    A few episodes run again in a fresh process, in falling order, so that each has another predecessor; one
    runs twice, because each may have its own row. An episode that differs runs alone in two more processes,
    which shows the reason.
    """
    count = recorded.chunk.n_episodes
    chunk = recorded.chunk
    others = [recorded.batch(place) for place in range(min(count, _SEVERAL))]
    if count > 1 and not any(first_difference(others[0], other, only=_COURSE) for other in others[1:]):
        yield Finding(
            "warn",
            f"the first {len(others)} episodes are equal, but have different seeds",
            "use the seed in env.reset; if nothing is random, collect one episode only",
        )
    if recorded.report.not_reproducible is not None:
        yield Finding("warn", f"episodes cannot be repeated: {recorded.report.not_reproducible}")
        return
    places = sorted({0, min(1, count - 1), int(np.argmax(chunk.lengths)), count - 1}, reverse=True)
    places.append(places[-1])
    numbers = chunk.numbers[places].tolist()
    try:
        repeated = recorded.again(numbers)
    except InterruptedRunError:
        yield Finding("warn", "no time was left to run episodes again", "allow more: {seconds=…}")
        return
    for place, number, again in zip(places, numbers, repeated, strict=True):
        first = recorded.batch(place)
        difference = first_difference(first, again, only=_COURSE) or first_difference(first, again)
        if difference is not None:
            what = f"episode {number}: {difference}"
            if difference.infos:
                yield Finding("warn", what, advice(difference))
            else:
                who = "policy" if difference.field.startswith("action") else "environment"
                yield _reason(recorded, number, what, who, difference.field)
            return
    yield Finding(
        "ok",
        f"{len(set(places))} episodes of up to {chunk.lengths.max():,} steps are identical when run again",
    )


def _reason(recorded: Recorded, number: int, what: str, who: str, field: str) -> Finding:
    """Return the finding about an episode that differs in a field, with the reason.

    Only this field is compared, because other fields may differ for another reason.
    """
    before = int(recorded.chunk.numbers[0] == number)
    differ = partial(first_difference, only=(field,))
    try:
        first, second = (recorded.again([number])[0] for _ in range(2))
        if differ(first, second) is not None:
            return Finding(
                "fail",
                f"{what}; it also differs between fresh processes: the {who} uses an unseeded generator",
                "use self.np_random in the environment, which env.reset(seed=) seeds; "
                "in a policy, a generator that its seed(seed) seeds",
            )
        config = recorded.trial.config
        if who == "policy" and config.envs_per_worker > 1:
            alone = (
                recorded.again([number], envs_per_worker=1),
                recorded.again([before, number], envs_per_worker=1),
            )
            if differ(alone[0][-1], alone[1][-1]) is None:
                return Finding(
                    "fail",
                    f"{what}; the rows of a batch share a generator of the policy",
                    "use a separate generator for each row (seed_rows), or omit {envs_per_worker}",
                )
        again = recorded.again([before, number], fresh_env=True)[-1]
        is_fixed = not config.fresh_env and differ(first, again) is None
    except RolloutError as error:
        return Finding("fail", what, f"find the reason; the check for it failed: {error.message}")
    change = f"clear the state of the {who} in reset, and seed the generators of its modules"
    if is_fixed:
        change = "pass {fresh_env=True}, which rebuilds the environment for every episode and fixes this"
    return Finding("fail", f"{what}; the {who} keeps state across resets", change)


ON_EPISODES: Mapping[str, Callable[[Recorded], Findings]] = {
    "range of actions": _actions,
    "endings": _endings,
    "values": _values,
    "infos": _infos,
    "seeds": _seeds,
}
"""The checks of episodes by their name in the report; a check that yields no finding has passed."""
