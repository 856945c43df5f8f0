"""Why an episode did not come out the same when it was run again: a guess from what differs first, and what helps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_cli.comparing import Difference

_INFOS = ("env_info", "agent_info", "episode_info")
_OBSERVED = ("observation", "last_observation", "reward", "env_info", "episode_info")
_NORMALISES = re.compile(r"normali[sz]e|running|whiten|standardi[sz]e", re.IGNORECASE)
_TIME = re.compile(r"^t$|time|elapsed|duration|seconds|fps|clock|date", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LikelyCause:
    """A guess.

    Attributes:
        reason: What probably makes the episode differ, as a clause.
        hint: What to do about it.
    """

    reason: str
    hint: str


def likely_cause(found: Sequence[Difference], env: Mapping[str, Any], policy_class: str | None) -> LikelyCause:
    """Return what probably makes two runs of one episode differ.

    Args:
        found: All fields that differ, at least one; the earliest first.
        env: What is recorded of the environment (`wrappers`, the outermost first; `class`).
        policy_class: The policy's class, where it is known.
    """
    told = [difference for difference in found if difference.group not in _INFOS]
    if not told:
        return _of_infos(found)
    first = told[0]
    if first.group == "seed":
        return LikelyCause(
            "the worker class did not begin the episode with its own seed",
            "begin episodes by their numbers, as a subclass of rollout_cli.DefaultWorker does",
        )
    if first.group == "action":
        return _of_policy(policy_class)
    return _of_env(first, env)


def _of_infos(found: Sequence[Difference]) -> LikelyCause:
    """Nothing differs but infos: they tell a time, or count over episodes."""
    keys = [difference.field.partition(".")[2] for difference in found]
    names = ", ".join(difference.field for difference in found)
    drops = " ".join(f"--drop-info {key}" for key in dict.fromkeys(keys))
    if all(_TIME.search(key.rpartition(".")[2]) for key in keys):
        source = " (RecordEpisodeStatistics puts it there)" if "episode.t" in keys else ""
        return LikelyCause(f"{names} tells how long things took{source}", f"leave it out: {drops}")
    return LikelyCause(
        f"{names} tells something that differs from run to run, such as a time or a count over episodes",
        f"leave it out: {drops}",
    )


def _of_policy(policy_class: str | None) -> LikelyCause:
    name = f" ({policy_class})" if policy_class else ""
    return LikelyCause(
        f"the policy{name} acted otherwise on the same observations: it has state that its reset does not clear, or "
        "draws from a generator that is not seeded",
        "clear in reset() what an episode leaves behind, and draw from generators that are attributes or set by seed()",
    )


def _of_env(first: Difference, env: Mapping[str, Any]) -> LikelyCause:
    wrappers = [str(name).rpartition(".")[2] for name in env.get("wrappers", ())]
    normalisers = [name for name in wrappers if _NORMALISES.search(name)]
    if normalisers and first.group in _OBSERVED:
        return LikelyCause(
            f"{', '.join(normalisers)} keeps running statistics, which every episode changes for those after it",
            "record what the environment gives and normalise what is read, or freeze the statistics "
            "(update_running_mean = False)",
        )
    name = str(env.get("class") or "the environment").rpartition(".")[2]
    what = f"{name} (in {', '.join(wrappers)})" if wrappers else name
    if first.step == 0 and first.group == "observation":
        reason = f"{what} begins the episode otherwise after other episodes, with the same seed"
    else:
        reason = f"{what} answered the same actions otherwise"
    return LikelyCause(
        f"{reason}: it carries state from one episode to the next, or draws from a generator that is not seeded",
        "let reset(seed=...) set all that an episode depends on, and draw from self.np_random",
    )
