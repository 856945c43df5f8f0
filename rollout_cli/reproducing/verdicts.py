"""Verdicts: what info.json says of a run's being reproduced.

`status` is `checked`, `failed` or `unchecked`, `scope` says for which settings it holds (`n_envs`: for this number of
environments a worker; `any`), and `reason` why it is not `checked`. Where a check failed, there is where it did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollout_cli.comparing import Difference
from rollout_cli.config import CollectConfig
from rollout_cli.reproducing.causes import likely_cause

Verdict = dict[str, Any]


def scope_of(facts: Mapping[str, Any]) -> str:
    """Return for which settings episodes are the same, from what a worker told."""
    return str(facts.get("scope", "any"))


def known_verdict(config: CollectConfig, facts: Mapping[str, Any]) -> Verdict | None:
    """Return what speaks against a run's being reproduced that needs no check; None where nothing does.

    Args:
        config: The run's configuration.
        facts: What a worker told of its policy and environment.
    """
    if config.order == "arrival":
        reason = "episodes were kept as they ended: short ones are favoured, and another run keeps others"
    elif "not_reproducible" in facts:
        reason = facts["not_reproducible"]
    else:
        return None
    return {"status": "failed", "scope": scope_of(facts), "reason": reason}


def unchecked(config: CollectConfig, facts: Mapping[str, Any], reason: str) -> Verdict:
    """Return the verdict on a run that was not checked: what is known, or that it was not checked for a reason."""
    return known_verdict(config, facts) or {"status": "unchecked", "scope": scope_of(facts), "reason": reason}


def failed(number: int, found: Sequence[Difference], env: Mapping[str, Any], facts: Mapping[str, Any]) -> Verdict:
    """Return the verdict on an episode that differs when it is run again: where first, and probably why.

    Args:
        number: The episode's number.
        found: All fields that differ, the earliest first.
        env: What is recorded of the environment.
        facts: What a worker told of its policy and environment.
    """
    first, cause = found[0], likely_cause(found, env, facts.get("policy_class"))
    return {
        "status": "failed",
        "scope": scope_of(facts),
        "reason": cause.reason,
        "hint": cause.hint,
        "episode": number,
        "field": first.field,
        "step": first.step,
        "index": list(first.index),
        "values": {"first": first.values[0], "again": first.values[1]},
        "also": sorted({difference.field for difference in found[1:]}),
    }


def failed_to_run(number: int, message: str, facts: Mapping[str, Any]) -> Verdict:
    """Return the verdict on an episode that raised an error when it was run again.

    Args:
        number: The episode's number.
        message: The error's message.
        facts: What a worker told of its policy and environment.
    """
    reason = f"episode {number} raised an error when it was run again: {message}"
    return {"status": "failed", "scope": scope_of(facts), "reason": reason, "episode": number}


def describe(verdict: Mapping[str, Any]) -> str:
    """Return a verdict that is not `checked` as a sentence."""
    if verdict["status"] == "unchecked":
        return f"it was not checked whether these episodes can be reproduced: {verdict['reason']}"
    if "field" not in verdict:
        return f"these episodes cannot be reproduced: {verdict['reason']}"
    index = f"[{', '.join(map(str, verdict['index']))}]" if verdict["index"] else ""
    values = f"{verdict['values']['first']}, then {verdict['values']['again']}"
    return (
        f"episode {verdict['episode']} came out otherwise when it was run again ({verdict['field']}{index} at step "
        f"{verdict['step']}: {values}): {verdict['reason']}"
    )
