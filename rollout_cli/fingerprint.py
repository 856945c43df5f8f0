"""The fingerprint of a run: everything that decides the bytes of `data/`, so that two runs can be told apart by it.

Not in it: how many workers a `collect` has, which sampler, how much is collected in the end, and versions of packages
(a run that goes on with others is warned of them).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rollout_cli.config import CollectConfig, recorded_options
from rollout_cli.dataset.cuts import CutLimits
from rollout_cli.dataset.schema import FORMAT_VERSION
from rollout_cli.dataset.space_json import space_to_json
from rollout_cli.dataset.window import WINDOW_STEPS
from rollout_cli.envs import EnvSource
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import UserCodeError
from rollout_cli.policies import PolicySource
from rollout_cli.redaction import without_secrets
from rollout_cli.user_code import ModuleAttribute

ENCODING = 1
"""Counts the changes of how rows become bytes: row groups written by another version cannot be gone on with."""

_ENDINGS = ("on_env_error", "on_worker_death")
_OPTIONS = (
    "command",
    "max_episode_length",
    "deterministic",
    "order",
    "vectorization",
    "envs_per_worker",
    "worker_class",
    "worker_args",
    "next_observation",
    "drop_info",
    "shard_bytes",
    "invalid_action",
    *_ENDINGS,
)
_OPTIONS_OF_EXACT = ("episodes_per_worker", "workers")
_LONGEST_SHOWN = 60

Fingerprint = dict[str, Any]


def asked(config: CollectConfig, policy: PolicySource, env: EnvSource) -> Fingerprint:
    """Return the part that is known before any worker runs."""
    options = recorded_options(config)
    names = (*_OPTIONS, *(_OPTIONS_OF_EXACT if config.command == "exact" else ()))
    source = env.describe()
    return _plain(
        {
            **{name: options.get(name) for name in names},
            "first": config.episodes.first if config.episodes is not None else 0,
            "seed": config.seed,
            "policy": _identity(policy.describe()),
            "env": _identity(source),
            "env_kwargs": source["kwargs"],
            "worker_source": _source_hash(config.worker_class),
            "window": WINDOW_STEPS,
            "limits": asdict(CutLimits()),
            "format": [FORMAT_VERSION, ENCODING],
        }
    )


def built(facts: Mapping[str, Any], spec: EnvSpec) -> Fingerprint:
    """Return the part that a worker tells, once it has built policy and environment."""
    return _plain(
        {
            "policy_class": facts.get("policy_class"),
            "env_record": facts.get("env"),
            "observation_space": space_to_json(spec.observation_space),
            "action_space": space_to_json(spec.action_space),
            "limit": spec.max_episode_length,
        }
    )


def differences(before: Mapping[str, Any], now: Fingerprint) -> list[str]:
    """Return what differs, in words; parts that are only `before` are not looked at.

    An episode at which a run would have failed is not in its dataset, so the next run may get over it in any way.
    """
    free = [name for name in _ENDINGS if before.get(name) == "fail"]
    return [
        f"{name} was {_shown(before.get(name))}, is {_shown(value)}"
        for name, value in now.items()
        if name not in free and (name not in before or before[name] != value)
    ]


def _plain(values: Mapping[str, Any]) -> Fingerprint:
    """Return values as info.json gives them back, where secrets are cut."""
    plain: Fingerprint = json.loads(json.dumps(without_secrets(dict(values))[0]))
    return plain


def _identity(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a policy or environment is; a file may lie elsewhere now, with the same bytes."""
    return {"spec": None if source["path"] else source["spec"], "sha256": source["sha256"]}


def _source_hash(worker_class: str | None) -> str | None:
    return None if worker_class is None else ModuleAttribute.find(worker_class, UserCodeError).sha256


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
