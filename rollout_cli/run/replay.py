"""Replaying: episodes of a dataset are run again from their seeds, and compared with the stored ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_cli import pins
from rollout_cli.config import CollectConfig, Values
from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.schema import INFO_PREFIXES, SpaceSchema
from rollout_cli.dataset.tables import stored_form
from rollout_cli.errors import EnvLoadError, NotReproducibleError
from rollout_cli.policies.source import policy_source
from rollout_cli.run import provenance
from rollout_cli.run.compare import Difference, first_difference
from rollout_cli.run.provenance import changed_sources
from rollout_cli.run.reproduce import run_again
from rollout_cli.run.request import env_of, exploring, sampler_of

_ALL_BUT_REWARDS = (
    *("episode_number", "seed", "observation", "last_observation", "action"),
    *("terminated", "truncated", "length"),
    *INFO_PREFIXES,
)


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
        for name, given in (("policy_kwargs", policy_kwargs or {}), ("env_kwargs", env_kwargs)):
            values[name] = {**values.get(name, {}), **given}
        again, changed = _replay_source(dataset, dataset.info["sources"][number], chosen, values)
        replayed += again
        notices += changed
    return replayed, notices


def _replay_source(
    dataset: Dataset,
    source: Mapping[str, Any],
    places: Iterable[int],
    values: Values,
) -> tuple[list[Replayed], list[str]]:
    """Replay episodes of the run that `source` records, with the options that it had."""
    edits = [step["options"] for step in dataset.info["derived"]]
    dropped = [key for options in edits for key in options.get("drop_info", ())]
    relabelled = any("reward" in options for options in edits)
    values |= {
        "sampler": "local",
        "workers": 1,
        "require_reproducible": False,
        "policy_sha256": None,
        "step_timeout": None,
        "episode_timeout": None,
        "on_env_error": "fail",
        "on_worker_death": "fail",
        "drop_info": (*values.get("drop_info", ()), *dropped),
    }
    config = CollectConfig(**values)
    provenance.check_nothing_cut(config)
    policies = policy_source(
        config.policy,
        config.policy_kwargs,
        sha256=source["policy"]["sha256"] if source["policy"]["path"] else None,
    )
    policies = exploring(policies, config)
    envs = env_of(config)
    sources = provenance.sources_record(config, policies, envs)
    provenance.check_env_file(source, envs)
    with sampler_of(config, policies, envs) as sampler:
        sampler.start_worker()
        surrounding = provenance.surroundings()
        spec = sampler.wait_until_started()
        assert sampler.report is not None
        record = provenance.run_record(sources, sampler.report, surrounding)
        # A source may have changed in a comment only, so this is no error.
        changed, _ = pins.changes(source["files"], record["files"], is_whole=False)
        changed = [
            f"{change} since the dataset was made" for change in [*changed, *changed_sources(source, record)]
        ]
        notices = changed + [
            f"since the dataset was made, {version}"
            for version in provenance.changed_versions(source, record)
        ]
        if SpaceSchema.of(spec).describe() != dataset.info["spaces"]:
            raise EnvLoadError(
                "the environment has other spaces than those of the dataset",
                hint="; ".join(notices) or "its code, or a package that it uses, has changed",
            )
        if sampler.report.not_reproducible is not None:
            raise NotReproducibleError(
                f"these episodes cannot be run again: {sampler.report.not_reproducible}"
            )
        replayed = []
        for episode in (dataset[place] for place in places):
            rerun = stored_form(
                run_again(sampler, episode.number), dataset.env_spec, dataset.info["features"]
            )
            facts = {"episode_id": episode.id, "episode_number": episode.number, "seed": episode.seed}
            difference = first_difference(episode.batch, rerun, only=_ALL_BUT_REWARDS if relabelled else ())
            replayed.append(Replayed({**facts, "steps": len(episode)}, difference))
        # What is read in an episode is known by now.
        late, _ = pins.changes(source["files"], pins.record(sampler.report.files))
        late = [f"{change} since the dataset was made" for change in late]
        notices += ["the rewards were relabelled, so they are not compared"] if relabelled else []
        notices += [
            f"from episode {min(change['from_numbers'])} on, {change['what']}" for change in source["changes"]
        ]
        return replayed, [*(change for change in late if change not in changed), *notices]
