"""Replaying: episodes of a dataset are run again from their seeds, and compared with the stored ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_cli import pins
from rollout_cli.config import CollectConfig, Values
from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.schema import SpaceSchema
from rollout_cli.dataset.tables import stored_form
from rollout_cli.episodes.infos import INFO_GROUPS
from rollout_cli.errors import EnvLoadError, NotReproducibleError
from rollout_cli.policies.source import policy_source
from rollout_cli.run import provenance
from rollout_cli.run.compare import Difference, first_difference
from rollout_cli.run.reproduce import run_again
from rollout_cli.run.request import env_of, exploring, sampler_of
from rollout_cli.samplers.sampler import Sampler

_ALL_BUT_REWARDS = (
    *("episode_number", "seed", "observation", "last_observation", "action"),
    *("terminated", "truncated", "length"),
    *INFO_GROUPS,
)

_HERE: Values = {
    "sampler": "local",
    "workers": 1,
    "require_reproducible": False,
    "policy_sha256": None,
    "step_timeout": None,
    "episode_timeout": None,
    "on_env_error": "fail",
    "on_worker_death": "fail",
}
"""The options in place of the run's own: episodes run in this process, and nothing is tried again."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One episode that was run again."""

    facts: Mapping[str, int]  # Its `episode_id`, `episode_number`, `seed` and `steps`, as stored.
    difference: Difference | None  # The first one; None where it is identical.


def replay(
    dataset: Dataset,
    places: Sequence[int],
    *,
    policy: str | None,
    policy_kwargs: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any],
) -> tuple[list[Replayed], list[str]]:
    """Build the policy and the environment of a dataset in this process, and run episodes of it again.

    `policy` and `policy_kwargs` say where the policy is now, and `env_kwargs` are secret arguments, which the
    dataset does not record. A file must still be the one that was used, or nothing of it is loaded. It also
    returns what has changed since the dataset was made, and may make episodes differ.

    Raises:
        RolloutError: If the dataset does not record what made it, that is not there any more, or it raises.
    """
    numbers, replayed, notices = dataset.episodes["source"].to_pylist(), list[Replayed](), list[str]()
    for number in sorted({numbers[place] for place in places}):
        chosen = [place for place in places if numbers[place] == number]
        values = provenance.recorded_values(dataset.info["sources"][number])
        values["policy"] = policy or values["policy"]
        for name, kwargs in (("policy_kwargs", policy_kwargs or {}), ("env_kwargs", env_kwargs)):
            values[name] = {**values.get(name, {}), **kwargs}
        again, changed = _replay_source(dataset, dataset.info["sources"][number], chosen, values)
        replayed += again
        notices += changed
    return replayed, notices


def _replay_source(
    dataset: Dataset, source: Mapping[str, Any], places: Iterable[int], values: Values
) -> tuple[list[Replayed], list[str]]:
    """Replay episodes of the run that `source` records, with the options that it had."""
    dropped = [key for step in dataset.info["derived"] for key in step["options"].get("drop_info", ())]
    config = CollectConfig(**{**values, **_HERE, "drop_info": (*values.get("drop_info", ()), *dropped)})
    provenance.check_nothing_cut(config)
    sha256 = source["policy"]["sha256"] if source["policy"]["path"] else None
    policies = exploring(policy_source(config.policy, config.policy_kwargs, sha256=sha256), config)
    envs = env_of(config)
    sources = provenance.sources_record(config, policies, envs)
    provenance.check_env_file(source, envs)
    is_relabelled = provenance.is_relabelled(dataset.info)
    with sampler_of(config, policies, envs) as sampler:
        changed, versions = _start(sampler, dataset, source, sources)
        replayed = [
            _run_again(sampler, dataset, place, _ALL_BUT_REWARDS if is_relabelled else ()) for place in places
        ]
        # What is read in an episode is known by now.
        late, _ = pins.changes(source["files"], pins.record(sampler.report.files))
    notices = [*(change for change in _since(late) if change not in changed), *changed, *versions]
    notices += ["the rewards were relabelled, so they are not compared"] if is_relabelled else []
    notices += [
        f"from episode {min(change['from_numbers'])} on, {change['what']}" for change in source["changes"]
    ]
    return replayed, notices


def _start(
    sampler: Sampler, dataset: Dataset, source: Mapping[str, Any], sources: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Build policy and environment; return which sources have changed since the run, and which versions."""
    sampler.start_worker()
    surrounding = provenance.surroundings()
    spec, report = sampler.wait_until_started(), sampler.report
    record = provenance.run_record(sources, report, surrounding)
    # A source may have changed in a comment only, so this is no error.
    files, _ = pins.changes(source["files"], record["files"], is_whole=False)
    changed = _since([*files, *provenance.changed_sources(source, record)])
    was, now = source["policy"], record["policy"]
    if was["spec"] != now["spec"] and not (was["path"] and now["path"]):  # A file may lie elsewhere.
        changed.append(f"the policy is {now['spec']}, and that of the dataset is {was['spec']}")
    versions = [
        f"since the dataset was made, {version}" for version in provenance.changed_versions(source, record)
    ]
    if SpaceSchema.of(spec).describe() != dataset.info["spaces"]:
        raise EnvLoadError(
            "the environment has other spaces than those of the dataset",
            hint="; ".join([*changed, *versions]) or "its code, or a package that it uses, has changed",
        )
    if report.not_reproducible is not None:
        raise NotReproducibleError(f"these episodes cannot be run again: {report.not_reproducible}")
    return changed, versions


def _since(changes: Iterable[str]) -> list[str]:
    return [f"{change} since the dataset was made" for change in changes]


def _run_again(sampler: Sampler, dataset: Dataset, place: int, only: Collection[str]) -> Replayed:
    """Run one episode again, and compare these fields of it, or all where none is named."""
    episode = dataset[place]
    rerun = stored_form(run_again(sampler, episode.number), dataset.env_spec, dataset.info["features"])
    facts = {"episode_id": episode.id, "episode_number": episode.number, "seed": episode.seed}
    return Replayed({**facts, "steps": len(episode)}, first_difference(episode.batch, rerun, only=only))
