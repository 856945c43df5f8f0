"""Replaying: episodes of a dataset are run again from their seeds, and compared with the stored ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rollout_cli.config import CollectConfig
from rollout_cli.dataset.reader import Dataset, Episode
from rollout_cli.dataset.schema import SpaceSchema
from rollout_cli.dataset.tables import stored_form
from rollout_cli.envs.source import EnvSource, env_source
from rollout_cli.errors import EnvLoadError, NotReproducibleError, PolicyLoadError, UserCodeError
from rollout_cli.policies.source import PolicySource, policy_source
from rollout_cli.run.collect import sampler_of
from rollout_cli.run.provenance import check_nothing_cut, recorded_values, run_record, sources_record, surroundings
from rollout_cli.run.reproduce import HINT, Difference, differences, run_again
from rollout_cli.samplers.sampler import Sampler

_Source = TypeVar("_Source", PolicySource, EnvSource)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One episode that was run again.

    Attributes:
        episode_id: Its place in the dataset.
        number: Its number.
        seed: The seed of its reset.
        steps: Its stored steps.
        found: The first difference of each field, the earliest first; none where it is identical.
        cause: What probably makes it differ.
    """

    episode_id: int
    number: int
    seed: int
    steps: int
    found: tuple[Difference, ...]
    cause: str

    def document(self) -> dict[str, Any]:
        """Return an episode that differs as JSON has it."""
        places = [one.document("stored", "replayed") for one in self.found]
        known = {"episode_id": self.episode_id, "episode_number": self.number, "seed": self.seed, "steps": self.steps}
        return {**known, "differences": places, "cause": self.cause}


@dataclass(frozen=True, slots=True)
class Replayer:
    """Runs episodes of one dataset again; `replaying` makes it.

    Attributes:
        notices: What has changed since the dataset was made, and may make episodes differ.
    """

    _dataset: Dataset
    _sampler: Sampler
    notices: tuple[str, ...]

    def replay(self, episode: Episode) -> Replayed:
        """Run an episode again and compare it.

        Raises:
            RolloutError: If the policy or the environment raises, or the dataset cannot be read.
        """
        again = run_again(self._sampler, episode.number)
        if again is None:
            raise NotReproducibleError(f"episode number {episode.number} was stopped before its end")
        now = stored_form(again, self._dataset.env_spec, self._dataset.info["features"])
        found = tuple(differences(episode.batch, now))
        cause = "; ".join(self.notices) or f"the episode depends on more than its seeds: {HINT}"
        return Replayed(episode.id, episode.number, episode.seed, len(episode), found, cause if found else "")


@contextmanager
def replaying(
    dataset: Dataset, *, policy: str | None = None, env_kwargs: Mapping[str, Any] | None = None
) -> Iterator[Replayer]:
    """Build the policy and the environment that made a dataset, as its info.json names them, in this process.

    Args:
        dataset: The dataset.
        policy: Where the policy is now; its file must still be the one that was used.
        env_kwargs: Secret arguments of the environment, which the dataset does not record.

    Raises:
        DatasetFormatError: If the dataset does not record what made it.
        ConfigError: If it does not record all of it.
        UserCodeError: If policy or environment cannot be loaded, or are not those that were used.
        NotReproducibleError: If no episode of these can be run again.
    """
    info = dataset.info
    config = _config(info, policy, env_kwargs or {})
    policies = _unchanged(
        PolicyLoadError, "policy", config.policy, info["policy"], lambda: policy_source(config.policy)
    )
    recorded_env = {**info["env_source"], "sha256": info["env"]["sha256"]}
    envs = _unchanged(
        EnvLoadError, "environment", config.env, recorded_env, lambda: env_source(config.env, config.env_kwargs)
    )
    sources = sources_record(config, policies, envs)
    with sampler_of(config, policies, envs) as sampler:
        sampler.start_worker()
        surrounding = surroundings()
        spec = sampler.wait_until_started()
        record = run_record(sources, sampler.worker_info, surrounding)
        notices = tuple(_changes(info, record))
        if SpaceSchema.of(spec).describe() != info["spaces"]:
            raise EnvLoadError(
                "the environment has other spaces than those of the dataset",
                hint="; ".join(notices) or "its code, or a package that it uses, has changed",
            )
        if "not_reproducible" in sampler.worker_info:
            raise NotReproducibleError(f"these episodes cannot be run again: {sampler.worker_info['not_reproducible']}")
        yield Replayer(dataset, sampler, notices)


def _config(info: Mapping[str, Any], policy: str | None, env_kwargs: Mapping[str, Any]) -> CollectConfig:
    """Return the configuration that made a dataset, for one worker in this process."""
    values = recorded_values(info)
    values |= {"sampler": "local", "workers": 1, "require_reproducible": False, "policy_sha256": None}
    values |= {"step_timeout": None, "episode_timeout": None, "on_env_error": "fail", "on_worker_death": "fail"}
    values["env_kwargs"] = {**values.get("env_kwargs", {}), **env_kwargs}
    if policy is not None:
        values["policy"] = policy
    config = CollectConfig(**values)
    check_nothing_cut(config)
    return config


def _unchanged(
    kind: type[UserCodeError], what: str, spec: str, recorded: Mapping[str, Any], find: Callable[[], _Source]
) -> _Source:
    """Find a policy or an environment; a file that is missing, or is not the one that was used, is refused unloaded."""
    if recorded["path"] is not None and not Path(spec).exists():
        hint = f"put back the file whose SHA-256 is {recorded['sha256']}"
        hint += ", or name it with --policy" if what == "policy" else ""
        raise kind(f"the {what}'s file does not exist any more: {spec}", hint=hint)
    source = find()
    found = source.describe()
    if recorded["path"] is not None and found["sha256"] != recorded["sha256"]:
        raise kind(
            f"the {what}'s file {found['spec']} is not the one that made these episodes: its SHA-256 is "
            f"{found['sha256']}, and was {recorded['sha256']}",
            hint="put back the file that was used",
        )
    return source


def _changes(info: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[str]:
    """Report sources and versions that have changed; a source perhaps only in a comment, so this is no error."""
    for name, what in (("policy", "policy"), ("env", "environment"), ("worker", "worker class")):
        if info.get(name, {}).get("sha256") != record[name]["sha256"]:
            yield f"the source of the {what} has changed since the dataset was made"
    before = info.get("versions", {})
    for name, version in record["versions"].items():
        if name in before and before[name] != version:
            yield f"the dataset was made with {name} {before[name]}, and this is {version}"
