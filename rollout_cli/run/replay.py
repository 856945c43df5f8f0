"""Replaying: run episodes of a dataset again from their seeds, and compare them with the stored ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.record import RunFacts
from rollout_cli.dataset.run_changes import Effect, compare_runs, joined_files
from rollout_cli.dataset.schema import SpaceSchema
from rollout_cli.dataset.tables import stored_form
from rollout_cli.episodes.chunk import unmatched_patterns, without_infos
from rollout_cli.episodes.infos import INFO_GROUPS
from rollout_cli.errors import EnvLoadError, NotReproducibleError
from rollout_cli.keywords import Keywords
from rollout_cli.options.config import WHEN_RERUN, CollectConfig, Values
from rollout_cli.policies.source import policy_source
from rollout_cli.run import provenance
from rollout_cli.run.compare import Difference, first_difference
from rollout_cli.run.reproduce import run_again
from rollout_cli.run.request import env_of, exploring, sampler_of
from rollout_cli.run.trust import check_local, check_trusted
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.sources import versions
from rollout_cli.sources.pins import FileRecord

_ALL_BUT_REWARDS = (
    *("episode_number", "seed", "observation", "last_observation", "action"),
    *("terminated", "truncated", "length"),
    *INFO_GROUPS,
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One episode that was run again."""

    facts: Mapping[str, int]  # Its `episode_id`, `episode_number`, `seed` and `steps`, as stored.
    difference: Difference | None  # The first difference; None if the episode is identical.


def replay(
    dataset: Dataset,
    places: Sequence[int] | None = None,
    *,
    policy: str | None = None,
    policy_kwargs: Keywords | None = None,
    env_kwargs: Keywords | None = None,
    trust: bool = False,
) -> tuple[list[Replayed], list[str]]:
    """Build the policy and the environment of a dataset in this process, and run episodes again.

    Args:
        dataset: The dataset.
        places: Indices of the episodes in the dataset; None for all.
        policy: SPEC of the policy, if its file was moved; None for the recorded one.
        policy_kwargs: Policy arguments to replace, for files that were moved.
        env_kwargs: Secret arguments of the environment, which the dataset does not record.
        trust: Whether the dataset may name arbitrary code.

    Returns:
        The replayed episodes, each with its `difference` (None if it is identical, bit by bit), and notices
        about changes since the dataset was made.

    Raises:
        RolloutError: If the dataset does not record a run or names untrusted code, a recorded file is missing
            or has other content (it is then not loaded), or the policy or environment raises.

    Example:
        >>> replayed, notices = rollout_cli.replay(rollout_cli.load("data"), [0, 2])
        >>> [episode.difference for episode in replayed]
        [None, None]
    """
    places = range(len(dataset)) if places is None else places
    numbers = dataset.episodes["source"].to_pylist()
    replayed = list[Replayed]()
    notices = list[str]()
    seen: list[FileRecord] = []
    for number in sorted({numbers[place] for place in places}):
        chosen = [place for place in places if numbers[place] == number]
        values = provenance.recorded_values(dataset.info["sources"][number])
        values["policy"] = policy or values["policy"]
        for name, kwargs in (("policy_kwargs", policy_kwargs or {}), ("env_kwargs", env_kwargs or {})):
            values[name] = {**values.get(name, {}), **kwargs}
        again, changed = _replay_source(
            dataset, dataset.info["sources"][number], chosen, values, seen, trust=trust
        )
        replayed += again
        notices += [notice for notice in changed if notice not in notices]
    return replayed, notices


def _replay_source(
    dataset: Dataset,
    source: RunFacts,
    places: Sequence[int],
    values: Values,
    seen: list[FileRecord],
    *,
    trust: bool,
) -> tuple[list[Replayed], list[str]]:
    """Replay episodes of the run that `source` records, with the options of that run.

    `seen` has the files that earlier calls loaded, and is extended: a process reads a module only once.
    """
    config = CollectConfig(**{**values, **WHEN_RERUN})
    provenance.check_nothing_cut(config)
    if not trust:
        check_local(dataset.path, config.policy)
    sha256 = source["policy"]["sha256"] if source["policy"]["path"] else None
    policies = exploring(policy_source(config.policy, config.policy_kwargs, sha256=sha256), config)
    if not trust:
        check_trusted(dataset.path, config, policies)
    envs = env_of(config)
    sources = provenance.sources_record(config, policies, envs)
    provenance.check_env_file(source, envs)
    is_relabelled = provenance.is_relabelled(dataset.info)
    with sampler_of(config, policies, envs) as sampler:
        sampler.start_worker()
        surrounding = versions.surroundings()
        if SpaceSchema.of(sampler.wait_until_started()).describe() != dataset.info["spaces"]:
            record = provenance.run_record(sources, sampler.report, surrounding)
            raise EnvLoadError(
                f"the spaces of the environment differ from those of {dataset.path}",
                code="env-spaces",
                hint="; ".join(_changed(source, record, has_read_files=False))
                or "restore the environment's code and packages that the run used",
            )
        if (reason := sampler.report.not_reproducible) is not None:
            raise NotReproducibleError(f"these episodes cannot be run again: {reason}")
        only = _ALL_BUT_REWARDS if is_relabelled else ()
        # In reverse order: in the order of the run, state kept across episodes would repeat unnoticed.
        replayed = [_run_again(sampler, dataset, place, only) for place in reversed(places)]
        # The report now has the files that were read during episodes.
        record = provenance.run_record(sources, sampler.report, surrounding)
    record["files"] = joined_files(seen, record["files"])
    seen[:] = [file for file in record["files"] if file["read"] == "load"]
    notices = _changed(source, record, has_read_files=True)
    notices += ["rewards are not compared, because they were relabeled"] if is_relabelled else []
    notices += [
        f"from episode {min(change['from_numbers'])} on, {change['what']}" for change in source["changes"]
    ]
    return replayed[::-1], notices


def _changed(source: RunFacts, record: RunFacts, *, has_read_files: bool) -> list[str]:
    """Return notices about changes since a run; they are not errors, as a changed file may only be reformatted."""
    changes = compare_runs(source, record, (), has_read_files=has_read_files)
    return [
        f"since the dataset was made: {change}" for change in changes if change.effect is not Effect.NOTICE
    ]


def _run_again(sampler: Sampler, dataset: Dataset, place: int, only: Collection[str]) -> Replayed:
    """Run one episode again, and compare the fields `only`, or all fields if it is empty."""
    episode = dataset[place]
    chunk = run_again(sampler, episode.number)
    # After a merge, an info that was dropped from one dataset may still be stored for episodes of another.
    dropped = [key for step in dataset.info["derived"] for key in step["options"].get("drop_info", ())]
    infos = [f"{group}.{key}" for group in INFO_GROUPS for key in getattr(episode.batch, f"{group}s")]
    chunk = without_infos(chunk, unmatched_patterns(dropped, infos))
    rerun = stored_form(chunk, dataset.env_spec, dataset.info["features"])
    facts = {"episode_id": episode.id, "episode_number": episode.number, "seed": episode.seed}
    return Replayed({**facts, "steps": len(episode)}, first_difference(episode.batch, rerun, only=only))
