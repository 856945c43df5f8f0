"""Provenance: what info.json records of the run that made a dataset, and the run that it asks for.

The record is plain JSON (`episodes/plain.py`); texts under the names of secrets become `***`.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast

from rollout_cli._version import __version__
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
from rollout_cli.workers.values import WorkerReport

SEEDING = 3
"""Counts the changes of how seeds follow from the root seed: episodes of another one cannot be run again."""

_HAS_CUT = re.compile(rf'{HIDDEN_NAME}[^"]*": "\*\*\*"|=\s*["\'\\]*\*\*\*|://\*\*\*@')
"""A secret that was cut, in JSON: a member of an object, an argument in a string, or the user of a URL."""
_PACKAGES = ("gymnasium", "numpy", "pyarrow", "cloudpickle")
"""Loaded in each run, here or in its workers."""
_GIT_SECONDS = 5
SKIPPED_NOTE = (
    "these episodes are missing in the data: where the course of an episode decides whether it fails, "
    "the remaining ones are a biased sample"
)


def surroundings() -> Record:
    """Return what a run records of the place where it runs; it takes a while, and needs nothing of the run.

    `versions` are those of Python, the platform, this package, and the packages that each run uses; `git` is
    the commit of the working folder, and whether it is dirty, None outside of a repository.
    """
    versions = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "rollout-collect": __version__,
        **{name: _version(name) for name in _PACKAGES},
    }
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no") if commit else None
    git = {"commit": commit, "dirty": None if changes is None else bool(changes)} if commit else None
    _distributions()  # `run_record` asks for them.
    return {"versions": versions, "git": git}


# They read the files of distributions: once a process is enough.
_distributions = cache(importlib.metadata.packages_distributions)
_version = cache(importlib.metadata.version)


def _git(*words: str) -> str | None:
    try:
        ran = subprocess.run(  # noqa: S603 - our words
            ["git", *words],  # noqa: S607
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # There is no git, for example.
    return ran.stdout.decode(errors="replace").strip() if ran.returncode == 0 else None


def sources_record(config: CollectConfig, policy: PolicySource, env: EnvSource) -> RunFacts:
    """Return the part of the record that is known before any worker runs, as plain JSON, secrets cut."""
    source = env.describe()
    worker = config.worker_class
    recorded = [option.name for option in options_of(config.command) if option.is_recorded]
    record = storable(
        {
            # This part goes into every data file too, so it holds nothing that depends on where the run took
            # place.
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
    """Return the whole record of a run: `sources_record`, what its workers reported, and where it runs."""
    names = {name for module in report.modules for name in _distributions().get(module, ())}
    loaded = {re.sub(r"[-_.]+", "-", name).lower(): _version(name) for name in names}
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
    """Return whether the rewards of a dataset are others than those of its runs."""
    return any("reward" in step["options"] for step in info["derived"])


def recorded_values(source: RunRecord) -> Values:
    """Return the command, options and root seed of the run that made a dataset, for `CollectConfig`.

    Policies and environments in files are named by their absolute paths, so that the working folder does not
    matter.

    Raises:
        DatasetFormatError: If it records no options, or its seeds are those of another version.
    """
    if source.get("seeding") != SEEDING:
        raise DatasetFormatError(
            f"info.json records seeding rule {source.get('seeding', 1)}, expected rule {SEEDING} of this version",
            code="seeding-version",
            hint="use the version of rollout-collect that made it, or collect it again",
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
        return {"command": command, **values, "seed": source["root_seed"]}
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise DatasetFormatError(
            f"info.json does not record the options of a run: {error}",
            code="info-options",
            hint="it was made by another version, or not by `rollout collect` or `rollout exact`",
        ) from error


def acceptance_of(next_number: int, kept: int, skipped: Iterable[int]) -> Record:
    """Return what `keep` made of the episodes below `next_number`; those `skipped` did not end, or count."""
    n_run = next_number - sum(number < next_number for number in skipped)
    rate = kept / n_run if n_run else 0.0
    return {"next_number": next_number, "run": n_run, "kept": kept, "rejected": n_run - kept, "rate": rate}


def skipped_facts(skipped: Mapping[int, str]) -> dict[str, Any]:
    """Return the facts of skipped episodes for info.json; empty if no episode was skipped."""
    episodes = [{"episode_number": number, "reason": reason} for number, reason in sorted(skipped.items())]
    note = {"count": len(episodes), "note": SKIPPED_NOTE, "episodes": episodes}
    return {"skipped": note} if episodes else {}


def check_env_file(source: RunFacts, env: EnvSource) -> None:
    """Raise `EnvLoadError` if the environment's file is not the recorded one; nothing of it is loaded."""
    before = source["env"]["sha256"]
    now = env.describe()["sha256"]
    if source["env_source"]["path"] and now != before:
        raise EnvLoadError(
            f"the environment's file {env.spec} is not the one that made these episodes: "
            f"its SHA-256 is {now}, and was {before}",
            code="env-hash",
            hint="put back the file that was used",
        )


def check_nothing_cut(config: CollectConfig) -> None:
    """Raise `ConfigError` if an option holds a secret that was cut from the record."""
    for option in options_of(config.command):
        value = getattr(config, option.name)
        for name, part in value.items() if isinstance(value, Mapping) else [("", value)]:
            if _HAS_CUT.search(json.dumps({name: part}, default=str)):
                raise ConfigError(
                    f"{option.flag} lacks {repr(name) if name else 'a secret'}, "
                    f"since secrets are {CUT} in datasets and in what --dry-run prints",
                    code="secret-missing",
                    hint=f"give it again: {{{option.name}={name and f'{name}='}…}}; where a command "
                    "has no such option, let the code read the secret from an environment variable",
                )


def storable(document: Record) -> dict[str, Any]:
    """Return a document as plain JSON, with secrets cut; `from_plain` gives the numbers back."""
    return dict(without_secrets(plain_json(document)))
