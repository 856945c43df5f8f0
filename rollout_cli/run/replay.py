"""Replaying: episodes of a dataset are run again from their seeds, and compared with the stored ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rollout_cli.config import CollectConfig
from rollout_cli.dataset.reader import Dataset, Episode
from rollout_cli.dataset.schema import SpaceSchema
from rollout_cli.dataset.tables import stored_form
from rollout_cli.envs.source import env_source
from rollout_cli.errors import EnvLoadError, NotReproducibleError
from rollout_cli.policies.source import policy_source
from rollout_cli.run import provenance
from rollout_cli.run.collect import sampler_of
from rollout_cli.run.reproduce import HINT, Difference, differences, run_again
from rollout_cli.samplers.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Replayed:
    """One episode that was run again."""

    facts: Mapping[str, int]  # Its `episode_id`, `episode_number`, `seed` and `steps`, as stored.
    found: tuple[Difference, ...]  # The first difference of each field, the earliest first; none where it is identical.
    cause: str  # What probably makes it differ.

    def document(self) -> dict[str, Any]:
        """Return an episode that differs as JSON has it."""
        places = [one.document("stored", "replayed") for one in self.found]
        return {**self.facts, "differences": places, "cause": self.cause}


@dataclass(frozen=True, slots=True)
class Replayer:
    """Runs episodes of one dataset again; `replaying` makes it."""

    dataset: Dataset
    sampler: Sampler
    notices: tuple[str, ...]  # What has changed since the dataset was made, and may make episodes differ.

    def replay(self, episode: Episode) -> Replayed:
        """Run an episode again and compare it.

        Raises:
            RolloutError: If the policy or the environment raises, or the dataset cannot be read.
        """
        now = stored_form(run_again(self.sampler, episode.number), self.dataset.env_spec, self.dataset.info["features"])
        cause = "; ".join(self.notices) or f"the episode depends on more than its seeds: {HINT}"
        facts = {"episode_id": episode.id, "episode_number": episode.number, "seed": episode.seed}
        return Replayed({**facts, "steps": len(episode)}, tuple(differences(episode.batch, now)), cause)


@contextmanager
def replaying(dataset: Dataset, *, policy: str | None, env_kwargs: Mapping[str, Any]) -> Iterator[Replayer]:
    """Build the policy and the environment that made a dataset, as its info.json names them, in this process.

    `policy` says where the policy is now, and `env_kwargs` are secret arguments, which the dataset does not record. A
    file must still be the one that was used, or nothing of it is loaded.

    Raises:
        DatasetFormatError: If the dataset does not record what made it.
        ConfigError: If it does not record all of it.
        UserCodeError: If policy or environment cannot be loaded, or are not those that were used.
        NotReproducibleError: If no episode of these can be run again.
    """
    info = dataset.info
    values = provenance.recorded_values(info)
    values |= {"sampler": "local", "workers": 1, "require_reproducible": False, "policy_sha256": None}
    values |= {"step_timeout": None, "episode_timeout": None, "on_env_error": "fail", "on_worker_death": "fail"}
    values["env_kwargs"] = {**values.get("env_kwargs", {}), **env_kwargs}
    values["policy"] = policy or values["policy"]
    config = CollectConfig(**values)
    provenance.check_nothing_cut(config)
    policies = policy_source(config.policy, sha256=info["policy"]["sha256"] if info["policy"]["path"] else None)
    envs = env_source(config.env, config.env_kwargs)
    sources = provenance.sources_record(config, policies, envs)
    if info["env_source"]["path"] and sources["env"]["sha256"] != info["env"]["sha256"]:
        raise EnvLoadError(
            f"the environment's file {config.env} is not the one that made these episodes: its SHA-256 is "
            f"{sources['env']['sha256']}, and was {info['env']['sha256']}",
            hint="put back the file that was used",
        )
    with sampler_of(config, policies, envs) as sampler:
        sampler.start_worker()
        surrounding = provenance.surroundings()
        spec = sampler.wait_until_started()
        record = provenance.run_record(sources, sampler.worker_info, surrounding)
        # A source may have changed in a comment only, so this is no error.
        notices = [f"{one} has changed since the dataset was made" for one in provenance.changed_sources(info, record)]
        notices += [f"since the dataset was made, {one}" for one in provenance.changed_versions(info, record)]
        if SpaceSchema.of(spec).describe() != info["spaces"]:
            raise EnvLoadError(
                "the environment has other spaces than those of the dataset",
                hint="; ".join(notices) or "its code, or a package that it uses, has changed",
            )
        if "not_reproducible" in sampler.worker_info:
            raise NotReproducibleError(f"these episodes cannot be run again: {sampler.worker_info['not_reproducible']}")
        yield Replayer(dataset, sampler, tuple(notices))
