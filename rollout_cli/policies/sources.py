"""Policy SPECs: what the text after `--policy` names.

`random` and every other `scheme:...` is a line in `SCHEMES` and a module with a function `policy_source(rest)`,
imported only when it is named. Beside them there are `file.pkl` and `module:attr`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyLoadError, UsageError
from rollout_cli.file_trust import others_who_may_write
from rollout_cli.policies.adapters import adapt_policy, instantiate
from rollout_cli.policies.base import Policy, PolicySource
from rollout_cli.user_code import PICKLE_SUFFIXES, ModuleAttribute, PickleFile, is_file, is_module_attribute

SCHEMES = {"random": "rollout_cli.policies.random"}
"""From the text before the first colon to the module whose `policy_source` gets what follows it."""


def policy_source(spec: str, *, sha256: str | None = None) -> PolicySource:
    """Return the source that a policy SPEC names; files are read and modules looked for, but nothing is loaded.

    Args:
        spec: The SPEC.
        sha256: What the file's bytes must hash to, in hexadecimal digits; None accepts any. The source loads the very
            bytes that were hashed, in whichever process.

    Raises:
        PolicyLoadError: If it names nothing, or a file or module that is not there, or a file with another hash.
        UsageError: If a hash is given and it names no file.
    """
    if sha256 is not None and not is_policy_file(spec):
        raise UsageError(
            f"the policy {spec!r} is no file, so --policy-sha256 cannot be checked",
            hint="leave it away, or pack the policy into a file (`rollout policy pack`) and name that",
        )
    source = _source(spec)
    if sha256 is not None:
        _check_sha256(spec, source, sha256.lower())
    return source


def is_policy_file(spec: str) -> bool:
    """Return whether a policy SPEC names a file: by how it reads, whether or not there is one."""
    return spec.partition(":")[0] not in SCHEMES and is_file(spec)


def file_warnings(spec: str) -> Iterator[str]:
    """Yield what a user should know who has a policy's file run on their own account."""
    others = others_who_may_write(Path(spec)) if is_policy_file(spec) else None
    if others is not None:
        yield f"the policy {spec} can run any code, but {others} (--policy-sha256 HEX tells what it must be)"


def _check_sha256(spec: str, source: PolicySource, wanted: str) -> None:
    found = source.describe()["sha256"]
    if found != wanted:
        raise PolicyLoadError(
            f"the policy {spec!r} has the SHA-256 {found}, but --policy-sha256 says {wanted}",
            hint="it is not the file that was meant, or has changed; nothing of it was loaded",
        )


def _source(spec: str) -> PolicySource:
    scheme, _, rest = spec.partition(":")
    if scheme in SCHEMES:
        source: PolicySource = importlib.import_module(SCHEMES[scheme]).policy_source(rest)
        return source
    if is_file(spec):
        return PickledPolicySource(PickleFile.read(spec, PolicyLoadError))
    if is_module_attribute(spec):
        return ModulePolicySource(ModuleAttribute.find(spec, PolicyLoadError))
    raise PolicyLoadError(f"{spec!r} names no policy", hint=_accepted(spec))


def _accepted(spec: str) -> str:
    forms = f"use {', '.join(SCHEMES)}, a pickle ({' or '.join(PICKLE_SUFFIXES)}), or module:attr"
    return f"it is a file, but of no known kind: {forms}" if Path(spec).exists() else forms


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
    return PickledPolicySource(PickleFile.of(policy, PolicyLoadError, hint=hint))


@dataclass(frozen=True, slots=True)
class PickledPolicySource(PolicySource):
    """A pickled policy, class or factory."""

    pickle: PickleFile

    @property
    def label(self) -> str:
        """Return the file's name."""
        return Path(self.pickle.path).name or "a policy object"

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> Policy:
        """Unpickle a new copy and adapt it; the bytes are those that were hashed.

        Raises:
            PolicyLoadError: If they cannot be unpickled, or what they hold is no policy.
        """
        found = instantiate(self.pickle.load(PolicyLoadError), env_spec)
        return adapt_policy(found, env_spec, deterministic=deterministic)

    def describe(self) -> dict[str, Any]:
        """Return what a dataset records of it; an object has no hash, since a fresh pickle differs every time."""
        path = self.pickle.path or None
        return {"spec": path, "path": path and str(Path(path).resolve()), "sha256": path and self.pickle.sha256}


@dataclass(frozen=True, slots=True)
class ModulePolicySource(PolicySource):
    """A policy, class or factory that `module:attr` names."""

    attribute: ModuleAttribute

    @property
    def label(self) -> str:
        """Return `module:attr`."""
        return self.attribute.spec

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> Policy:
        """Import the module and adapt what the attribute stands for.

        Raises:
            PolicyLoadError: If the import fails, the attribute is missing, or it is no policy.
        """
        found = instantiate(self.attribute.load(PolicyLoadError), env_spec)
        return adapt_policy(found, env_spec, deterministic=deterministic)

    def describe(self) -> dict[str, Any]:
        """Return what a dataset records of it; the hash is that of the module's source."""
        return {"spec": self.attribute.spec, "path": None, "sha256": self.attribute.sha256}
