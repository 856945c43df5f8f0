"""Replaying: episodes of a dataset are run again from their seeds, and compared with what is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollout_cli.assembling import sampler_of
from rollout_cli.comparing import Difference, differences
from rollout_cli.config import CollectConfig
from rollout_cli.config.recorded import recorded_config, recorded_values
from rollout_cli.dataset import Dataset, Episode
from rollout_cli.dataset.schema import SpaceSchema
from rollout_cli.dataset.stored_form import as_stored
from rollout_cli.envs import EnvSource, env_source
from rollout_cli.errors import EnvLoadError, InternalError, NotReproducibleError, PolicyLoadError, RolloutError
from rollout_cli.header import versions
from rollout_cli.policies import PolicySource, policy_source
from rollout_cli.reproducing.causes import likely_cause
from rollout_cli.reproducing.check import run_again
from rollout_cli.samplers import Sampler
from rollout_cli.user_code import put_working_folder_first


@dataclass(frozen=True, slots=True)
class Replayed:
    """One episode that was run again.

    Attributes:
        episode_id: Its place in the dataset.
        number: Its number.
        seed: What its reset was seeded with.
        steps: Its stored steps.
        found: All fields that differ, the earliest first; none where it is identical.
        reason: Why it probably differs; empty where it does not.
        hint: What helps.
    """

    episode_id: int
    number: int
    seed: int
    steps: int
    found: tuple[Difference, ...] = ()
    reason: str = ""
    hint: str = ""

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        known: dict[str, Any] = {
            "episode_id": self.episode_id,
            "episode_number": self.number,
            "seed": self.seed,
            "steps": self.steps,
            "identical": not self.found,
        }
        if not self.found:
            return known
        told = [
            {"field": one.field, "step": one.step, "index": list(one.index)}
            | dict(zip(("stored", "replayed"), one.values, strict=True))
            for one in self.found
        ]
        return known | {"differences": told, "reason": self.reason, "hint": self.hint}


@dataclass(frozen=True, slots=True)
class Replayer:
    """Runs episodes of one dataset again; `replaying` makes it.

    Attributes:
        notices: What is not as it was when the dataset was made, and may make episodes differ.
    """

    _dataset: Dataset
    _sampler: Sampler
    notices: tuple[str, ...] = field(default=())

    def replay(self, episode: Episode) -> Replayed:
        """Run an episode again and compare it.

        Raises:
            RolloutError: If the policy or the environment raises, or the dataset cannot be read.
        """
        again = run_again(self._sampler, episode.number)
        if again is None:
            raise InternalError(f"episode number {episode.number} was not run again")
        info = self._dataset.info
        found = differences(episode.batch, as_stored(again, self._dataset.env_spec, info["features"]))
        known = Replayed(episode.id, episode.number, episode.seed, len(episode))
        if not found:
            return known
        cause = likely_cause(found, info["env"], info["policy"].get("class"))
        return replace(known, found=tuple(found), reason=cause.reason, hint=cause.hint)


@contextmanager
def replaying(
    dataset: Dataset, *, policy: str | None = None, env_kwargs: Mapping[str, Any] | None = None
) -> Iterator[Replayer]:
    """Build the policy and the environment that made a dataset, as its info.json tells, in this process.

    Args:
        dataset: The dataset.
        policy: Where the policy is now; its file must still be the one that was used.
        env_kwargs: Arguments of the environment that the dataset does not record, as they looked like secrets.

    Raises:
        DatasetFormatError: If the dataset does not tell what made it.
        ConfigError: If it does not tell all of it, for something looked like a secret.
        UserCodeError: If policy or environment cannot be loaded, or are not those that were used.
        NotReproducibleError: If no episode of these can be run again.
    """
    put_working_folder_first()
    info = dataset.info
    config = _config(info, policy, env_kwargs)
    policies, envs = _policy(config.policy, info), _env(config.env, config.env_kwargs, info)
    notices = [*_other_versions(info), *_other_modules(policies, envs, info)]
    with sampler_of(config, policies, envs) as sampler:
        _check_replayable(sampler, info, notices)
        yield Replayer(dataset, sampler, tuple(notices))


def _config(info: Mapping[str, Any], policy: str | None, env_kwargs: Mapping[str, Any] | None) -> CollectConfig:
    """Return the configuration that made a dataset, for one worker in this process."""
    changes: dict[str, Any] = {"sampler": "local", "workers": 1, "require_reproducible": False, "policy_sha256": None}
    if env_kwargs:
        changes["env_kwargs"] = {**recorded_values(info)["env_kwargs"], **env_kwargs}
    if policy is not None:
        changes["policy"] = policy
    return recorded_config(info, **changes)


def _check_replayable(sampler: Sampler, info: Mapping[str, Any], notices: Sequence[str]) -> None:
    """Raise where no episode of these could be what is stored."""
    if SpaceSchema.of(sampler.wait_until_started()).describe() != info["spaces"]:
        raise EnvLoadError(
            "the environment has other spaces than those of the dataset",
            hint="; ".join(notices) or "its code, or a package that it uses, is another one than it was",
        )
    if "not_reproducible" in sampler.facts:
        raise NotReproducibleError(f"these episodes cannot be run again: {sampler.facts['not_reproducible']}")


def _policy(spec: str, info: Mapping[str, Any]) -> PolicySource:
    recorded = info["policy"]
    _check_there(PolicyLoadError, "policy", spec, recorded)
    source = policy_source(spec)
    _check_same(PolicyLoadError, "policy", spec, recorded, source.describe())
    return source


def _env(spec: str, kwargs: Mapping[str, Any], info: Mapping[str, Any]) -> EnvSource:
    recorded = {**info["env_source"], "sha256": info["env"]["sha256"]}
    _check_there(EnvLoadError, "environment", spec, recorded)
    source = env_source(spec, kwargs)
    _check_same(EnvLoadError, "environment", spec, recorded, source.describe())
    return source


def _check_there(kind: type[RolloutError], what: str, spec: str, recorded: Mapping[str, Any]) -> None:
    if recorded["path"] is not None and not Path(spec).exists():
        raise kind(
            f"the {what}'s file is not there any more: {spec}",
            hint=f"put back the file whose SHA-256 is {recorded['sha256']}"
            + (", or name it with --policy" if what == "policy" else ""),
        )


def _check_same(
    kind: type[RolloutError], what: str, spec: str, recorded: Mapping[str, Any], found: Mapping[str, Any]
) -> None:
    """Raise where a file is another one than it was; nothing of it was loaded."""
    if recorded["path"] is not None and found["sha256"] != recorded["sha256"]:
        raise kind(
            f"the {what}'s file {spec} is not the one that made these episodes: its SHA-256 is {found['sha256']}, and "
            f"was {recorded['sha256']}",
            hint="put back the file that was used",
        )


def _other_versions(info: Mapping[str, Any]) -> Iterator[str]:
    then, now = info.get("versions", {}), versions()
    for name, version in now.items():
        if name in then and then[name] != version:
            yield f"the dataset was made with {name} {then[name]}, and this is {version}"


def _other_modules(policy: PolicySource, env: EnvSource, info: Mapping[str, Any]) -> Iterator[str]:
    """Tell whose source has changed; perhaps only in a comment, so this alone is no error."""
    found = {
        "policy": (policy.describe(), info["policy"]["sha256"]),
        "environment": (env.describe(), info["env"]["sha256"]),
    }
    for what, (described, before) in found.items():
        if described["sha256"] != before:
            yield f"the module of the {what} {described['spec']} has changed since the dataset was made"
