"""Policy SPECs: what the text after `--policy` names, and what the Python API is given.

`random` and every other `scheme:...` is a line in `SCHEMES` and a module with a function `policy_source(rest)`. Beside
them there are `file.pkl` and `module:attr`.
"""

from __future__ import annotations

import abc
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError, UsageError
from rollout_cli.loading import PICKLE_SUFFIXES, Source, is_file, is_module_attribute
from rollout_cli.policies.adapt import adapt_policy, instantiate
from rollout_cli.policies.policy import AdaptedPolicy

SCHEMES = {"random": "rollout_cli.policies.random"}
"""From the text before the first colon to the module whose `policy_source` gets what follows it."""


class PolicySource(abc.ABC):
    """Where a policy comes from: small, picklable, and loaded in each worker."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """Return a short text for people."""

    @abc.abstractmethod
    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
        """Load a new copy of the policy and adapt it; where `deterministic`, to one that does not explore.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised, or cannot be deterministic where it should.
        """

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what a dataset records: `spec` (as given), `path` and `sha256` (of a file or source, else None)."""


@dataclass(frozen=True, slots=True)
class UserPolicySource(PolicySource):
    """A policy, class or factory of the user's: `module:attr`, a pickle file, or a pickled object."""

    source: Source

    @property
    def label(self) -> str:
        if self.source.is_module:
            return self.source.spec
        return Path(self.source.spec).name or "a policy object"

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
        found = instantiate(self.source.load(PolicyLoadError), env_spec)
        return adapt_policy(found, env_spec, deterministic=deterministic)

    def describe(self) -> dict[str, Any]:
        # An object has no hash, since a fresh pickle differs every time.
        spec = self.source.spec or None
        path = None if spec is None or self.source.is_module else str(Path(self.source.folder or "", spec))
        return {"spec": spec, "path": path, "sha256": spec and self.source.sha256}


def policy_source(spec: str, *, sha256: str | None = None) -> PolicySource:
    """Return the source that a policy SPEC names; files are read and modules looked for, but nothing is loaded.

    Args:
        spec: The SPEC.
        sha256: What the file's bytes must hash to, in hexadecimal digits; None accepts any. The source loads the very
            bytes that were hashed, in whichever process.

    Raises:
        PolicyLoadError: If it names nothing, or a missing file or module, or a file with another hash.
        UsageError: If a hash is given and it names no file.
    """
    scheme, _, rest = spec.partition(":")
    is_policy_file = scheme not in SCHEMES and is_file(spec)
    if sha256 is not None and not is_policy_file:
        raise UsageError(
            f"the policy {spec!r} is not a file, so --policy-sha256 cannot be checked",
            hint="omit it, or pack the policy into a file (`rollout policy pack`) and name that",
        )
    if scheme in SCHEMES:
        built_in: PolicySource = importlib.import_module(SCHEMES[scheme]).policy_source(rest)
        return built_in
    if is_policy_file:
        source = Source.read(spec, PolicyLoadError)
        if sha256 is not None and source.sha256 != sha256.lower():
            raise PolicyLoadError(
                f"the policy {spec!r} has the SHA-256 {source.sha256}, but should have {sha256.lower()}",
                hint="it is not the intended file, or has changed; nothing of it was loaded",
            )
        return UserPolicySource(source)
    if is_module_attribute(spec):
        return UserPolicySource(Source.find(spec, PolicyLoadError))
    hint = f"use {', '.join(SCHEMES)}, a pickle ({' or '.join(PICKLE_SUFFIXES)}), or module:attr"
    raise PolicyLoadError(f"{spec!r} names no policy", hint=hint)


def as_policy_source(policy: Any) -> PolicySource:
    """Return a source of what the Python API was given: a source, a SPEC, or a policy object, which is pickled now.

    Raises:
        PolicyLoadError: If the SPEC names nothing, or the object cannot be pickled.
    """
    if isinstance(policy, PolicySource):
        return policy
    if isinstance(policy, str):
        return policy_source(policy)
    hint = "a policy crosses process borders: build what cannot be pickled in a factory, and name it as module:attr"
    return UserPolicySource(Source.of(policy, PolicyLoadError, hint=hint))
