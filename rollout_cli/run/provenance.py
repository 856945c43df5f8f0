"""Provenance: what info.json records of the run that made a dataset, and the run that it asks for.

The record is plain JSON (`episodes/plain.py`); strings under the names of secrets become `***`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from rollout_cli.dataset.layout import root_seed_of
from rollout_cli.dataset.record import DatasetInfo, RunFacts, RunRecord
from rollout_cli.envs.source import EnvSource
from rollout_cli.episodes.plain import from_plain, plain_json
from rollout_cli.errors import ConfigError, DatasetFormatError, EnvLoadError, UserCodeError
from rollout_cli.keywords import Record
from rollout_cli.options.config import OPTIONS, CollectConfig, Values, options_of, plain_value
from rollout_cli.policies.policy import PolicySource, recorded_spec
from rollout_cli.redact import CUT, HIDDEN_NAME, without_secrets
from rollout_cli.sources import pins
from rollout_cli.sources.loading import Source
from rollout_cli.sources.versions import distributions, version
from rollout_cli.workers.values import WorkerReport

SEEDING = 3
"""Version of the seed derivation: episodes with another version cannot be run again."""

_HAS_CUT = re.compile(rf'{HIDDEN_NAME}[^"]*": "\*\*\*"|=\s*["\'\\]*\*\*\*|://\*\*\*@')
"""Matches a cut secret in JSON: a member of an object, an argument in a string, or the user of a URL."""
SKIPPED_NOTE = (
    "the data lack these episodes, and are a biased sample if the actions of an episode decide "
    "whether it fails"
)


def sources_record(config: CollectConfig, policy: PolicySource, env: EnvSource) -> RunFacts:
    """Return the part of the record that is known before any worker runs, as plain JSON without secrets."""
    source = env.describe()
    worker = config.worker_class
    recorded = [option.name for option in options_of(config.command) if option.is_recorded]
    record = storable(
        {
            # Every data file has this part too, so it must not depend on the machine or the folder.
            "env": {"kwargs": source["kwargs"], "sha256": source["sha256"]},
            "env_source": {name: source[name] for name in ("spec", "path", "wrappers")},
            "policy": {"spec": config.policy, **policy.describe()},
            "collector": {name: plain_value(getattr(config, name)) for name in ("command", *recorded)},
            "worker": {"sha256": None if worker is None else Source.find(worker, UserCodeError).sha256},
            "seeding": SEEDING,
        }
    )
    return cast("RunFacts", record)


def run_record(sources: RunFacts, report: WorkerReport, surrounding: Record) -> RunFacts:
    """Return the record of a run, made of `sources_record`, its workers' report and `surroundings`."""
    names = {name for module in report.modules for name in distributions().get(module, ())}
    loaded = {re.sub(r"[-_.]+", "-", name).lower(): version(name) for name in names}
    record: Values = {
        **sources,
        "env": {**storable(report.env), **sources["env"]},
        "policy": {**sources["policy"], "class": report.policy_class},
        "files": pins.record(report.files),
        **surrounding,
        "versions": {**surrounding["versions"], **dict(sorted(loaded.items()))},
    }
    return cast("RunFacts", record)


def is_relabelled(info: DatasetInfo) -> bool:
    """Return whether `rollout relabel` replaced the rewards of a dataset."""
    return any("reward" in step["options"] for step in info["derived"])


def recorded_values(source: RunRecord) -> Values:
    """Return the command, options and root seed of the run that made a dataset, for `CollectConfig`.

    Policies and environments in files have absolute paths, so they do not depend on the working folder.

    Raises:
        DatasetFormatError: If the record lacks valid options, or has another version of the seed derivation.
    """
    root_seed = root_seed_of(source)
    version = source.get("seeding", 1)
    if version != SEEDING:
        raise DatasetFormatError(
            f"info.json has version {version} of the seed derivation, expected {SEEDING}: "
            "its episodes cannot be run again",
            code="seeding-version",
            hint="use the version of rollout-collect that made the dataset, or collect a new one",
        )
    try:
        recorded = from_plain(dict(source["collector"]))
        recorded |= {
            "policy": recorded_spec(source["policy"]),
            "env": recorded_spec(source["env_source"]),
        }
        recorded["policy_kwargs"] = source["policy"]["options"]
        command = recorded.pop("command")
        values = {
            name: OPTIONS[name].read(value, f"the dataset's {name}")
            for name, value in recorded.items()
            if value is not None
        }
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise DatasetFormatError(
            f"info.json does not record the options of a run: {error}",
            code="info-options",
            hint="use a dataset that this version of `rollout collect` or `rollout exact` made",
        ) from error
    return {"command": command, **values, "seed": root_seed}


def acceptance_of(next_number: int, kept: int, skipped: Iterable[int]) -> Record:
    """Return counts of the episodes below `next_number` that `keep` accepted and rejected, without `skipped`."""
    n_run = next_number - sum(number < next_number for number in skipped)
    rate = kept / n_run if n_run else 0.0
    return {"next_number": next_number, "run": n_run, "kept": kept, "rejected": n_run - kept, "rate": rate}


def skipped_facts(skipped: Mapping[int, str]) -> dict[str, Any]:
    """Return the facts of skipped episodes for info.json; empty if no episode was skipped."""
    episodes = [{"episode_number": number, "reason": reason} for number, reason in sorted(skipped.items())]
    note = {"count": len(episodes), "note": SKIPPED_NOTE, "episodes": episodes}
    return {"skipped": note} if episodes else {}


def check_env_file(source: RunFacts, env: EnvSource) -> None:
    """Raise `EnvLoadError` if the environment's file differs from the recorded one; do not load it."""
    before = source["env"]["sha256"]
    now = env.describe()["sha256"]
    if source["env_source"]["path"] and now != before:
        raise EnvLoadError(
            f"the environment's file {env.spec} has SHA-256 {now}, expected {before}, "
            "with which the episodes were made",
            code="env-hash",
            hint="restore the file that the run used",
        )


def check_nothing_cut(config: CollectConfig) -> None:
    """Raise `ConfigError` if an option has a secret that was cut from the record."""
    for option in options_of(config.command):
        value = getattr(config, option.name)
        for name, part in value.items() if isinstance(value, Mapping) else [("", value)]:
            if _HAS_CUT.search(json.dumps({name: part}, default=str)):
                raise ConfigError(
                    f"{option.flag} lacks {repr(name) if name else 'a secret'}: "
                    f"datasets and --dry-run replace secrets by {CUT}",
                    code="secret-missing",
                    hint=f"pass {{{option.name}={name and f'{name}='}…}} again; if the command lacks this "
                    "option, read the secret from an environment variable in your code",
                )


def storable(document: Record) -> dict[str, Any]:
    """Return a document as plain JSON without secrets; `from_plain` restores the numbers."""
    return dict(without_secrets(plain_json(document)))
