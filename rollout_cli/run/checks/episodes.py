"""What `check` sees in recorded episodes: how they end, what they hold, and whether they can be repeated."""

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

_SEVERAL = 3  # Episodes that are alike are a sign, where there are so many.
# So are so many actions, and such a share of them.
_MANY = 20
_ALWAYS = 0.9
_LONG = 5_000  # Steps within which an episode may be expected to end.
_COURSE = ("observation", "last_observation", "action", "reward", "terminated", "truncated", "length")
"""The fields that make an episode; infos may differ, as the time does, whatever these do."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The first episodes of a run with one worker.

    Attributes:
        trial: What ran them.
        spec: The environment's spaces.
        report: What the worker knew.
        limit: Steps after which they were cut; None for no cut.
        wanted: The steps that were asked for.
        chunk: The episodes.
        summary: The dataset that they make.
        seconds: What they took.
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
        """Run episodes one after another in a new process, and return them."""
        with self.trial.running(limit=self.limit, **options) as sampler:
            return [EpisodeBatch.from_chunks(self.spec, [run_again(sampler, number)]) for number in numbers]


def _actions(recorded: Recorded) -> Findings:
    """Look whether actions use the range of their space, and no more."""
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
                "a policy that gives raw Gaussian actions has to squash or scale them",
            )
        is_narrow = (np.abs(values).max(axis=0) <= 1) & (np.ptp(values, axis=0) > 0)
        if np.any(is_narrow & np.isfinite(high - low) & (np.maximum(-low, high) > 1)):
            yield Finding(
                "warn",
                f"{name} stays in [-1, 1], and its space is wider",
                f"scale actions that are scaled, as exports of SAC and TD3 give them, to {leaf.space}",
            )


def _endings(recorded: Recorded) -> Findings:
    """Look whether episodes end, and whether a time limit is called an end."""
    lengths = recorded.chunk.lengths
    terminated = recorded.chunk.terminated
    if recorded.chunk.n_steps < recorded.wanted:
        yield Finding(
            "warn",
            f"episode {len(lengths)} did not end within {recorded.trial.seconds:g} s from the start",
            "find what blocks or is slow in it, or give more time: {seconds=…}",
        )
    has_limit = recorded.trial.config.max_episode_length or recorded.report.env["max_episode_length"]
    n_cut = 0 if has_limit else int((~terminated & (lengths == recorded.limit)).sum())
    if n_cut:
        is_long = n_cut == len(lengths) and (recorded.limit or 0) >= _LONG
        yield Finding(
            "fail" if is_long else "warn",
            f"{n_cut} of {len(lengths)} episodes did not end within {recorded.limit} steps, "
            "and no limit is known",
            "{max_episode_length=N} truncates them; a larger {seconds=…} looks further",
        )
    is_alike = len(lengths) >= _SEVERAL and lengths.min() == lengths.max() > 1
    if is_alike and terminated.all() and not recorded.chunk.truncated.any():
        yield Finding(
            "warn",
            f"all {len(lengths)} episodes are terminated at step {lengths[0]:,}: a time limit in disguise?",
            "let a time limit give truncated=True: values are learned otherwise then",
        )


def _values(recorded: Recorded) -> Findings:
    """Name values that are not finite, or outside of their space, at any step."""
    for anomaly in recorded.summary.anomalies:
        if anomaly.problem == "outside":
            yield Finding("warn", str(anomaly), "clip it in the environment, or let its space be wider")
        else:
            yield Finding("fail", str(anomaly), "find where it arises")


def _infos(recorded: Recorded) -> Findings:
    """Name infos that nothing can store."""
    patterns = recorded.trial.config.drop_info
    # What the user leaves out is counted too.
    dropped = [
        name for name in recorded.summary.dropped_infos if [*patterns] == unmatched_patterns(patterns, [name])
    ]
    if dropped:
        yield Finding(
            "warn",
            f"nothing can store the infos {', '.join(dropped[:_SEVERAL])}",
            "give numbers, texts or arrays, or leave them out: {drop_info=KEY}",
        )


def _seeds(recorded: Recorded) -> Findings:
    """Look whether seeds decide: other ones give other episodes, and the same ones the same.

    A few episodes run again in a new process, in falling order, so that each has another predecessor, and one
    follows itself: each may have a row of its own. One that differs is run alone in two more processes, which
    says why.
    """
    count = recorded.chunk.n_episodes
    chunk = recorded.chunk
    others = [recorded.batch(place) for place in range(min(count, _SEVERAL))]
    if count > 1 and not any(first_difference(others[0], other, only=_COURSE) for other in others[1:]):
        yield Finding(
            "warn",
            f"the first {len(others)} episodes are the same, whatever their seed",
            "let env.reset use its seed; where nothing is random, one episode is enough",
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
        yield Finding("warn", "there was no time to run episodes again", "give more: {seconds=…}")
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
        f"{len(set(places))} episodes of up to {chunk.lengths.max():,} steps are the same when run again",
    )


def _reason(recorded: Recorded, number: int, what: str, who: str, field: str) -> Finding:
    """Return the finding on an episode that differs in a field: by itself, or by what ran before it.

    Only this field is compared again: others may differ for another reason.
    """
    before = int(recorded.chunk.numbers[0] == number)
    differ = partial(first_difference, only=(field,))
    try:
        first, second = (recorded.again([number])[0] for _ in range(2))
        if differ(first, second) is not None:
            return Finding(
                "fail",
                f"{what}; so it is in fresh processes: the {who} draws from no seed",
                "draw from self.np_random, which env.reset(seed=) seeds; "
                "a policy from what its seed(seed) seeds",
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
                    f"{what}; the rows of a batch share what the policy draws from",
                    "give each row a generator of its own (seed_rows), or omit {envs_per_worker}",
                )
        again = recorded.again([before, number], fresh_env=True)[-1]
        is_fixed = not config.fresh_env and differ(first, again) is None
    except RolloutError as error:
        return Finding("fail", what, f"why is not known: {error.message}")
    change = f"let reset of the {who} clear what it keeps, and seed what a module draws from"
    if is_fixed:
        change = "{fresh_env=True} builds the environment for each episode, which makes this right"
    return Finding("fail", f"{what}; the {who} keeps state across resets", change)


ON_EPISODES: Mapping[str, Callable[[Recorded], Findings]] = {
    "range of actions": _actions,
    "endings": _endings,
    "values": _values,
    "infos": _infos,
    "seeds": _seeds,
}
"""The checks, by the names that the report shows; each yields what is to be said, nothing if all is well."""
