"""Env SPECs: what the text after `--env` names, and what the Python API is given.

A gymnasium id (`CartPole-v1`, `module:Env-v0`), an EnvSpec as JSON (`file.json`), a pickle (`file.pkl`), or
`module:attr`. An id after a colon has a version or a slash, and so never reads as the name of an attribute.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymSpec

from rollout_cli.envs.building import Env, build_env, copy_env, make_env, registered_spec
from rollout_cli.errors import EnvLoadError
from rollout_cli.file_trust import read_bytes
from rollout_cli.user_code import (
    ModuleAttribute,
    PickleFile,
    first_line,
    import_module,
    is_file,
    is_module_attribute,
    put_working_folder_first,
)

JSON_SUFFIXES = (".json",)


class EnvSource(abc.ABC):
    """Where environments come from: small, picklable, and built from in each worker."""

    made_by_gymnasium: ClassVar[bool] = False
    """Whether `gymnasium.make` builds it, so that its outer wrappers are known to be nobody's."""

    kwargs: dict[str, Any]
    """Arguments of the constructor, the factory, or `gymnasium.make`."""

    def named(self) -> Any:
        """Return what it names, with nothing built yet: a gymnasium EnvSpec, a class, a factory, or an environment.

        Raises:
            EnvLoadError: If that cannot be found or loaded.
        """
        raise EnvLoadError(f"{self.label} cannot tell what it builds", hint="name a gymnasium id or module:attr")

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """Return a short text for people."""

    @abc.abstractmethod
    def build(self) -> Env:
        """Build a new environment, which shares nothing with others that were built.

        Raises:
            EnvLoadError: If that fails, or what was built is no gymnasium.Env.
        """

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what a dataset records: `spec` (as given), `kwargs`, `path` and `sha256` (of a file or source)."""


def env_source(spec: str, kwargs: Mapping[str, Any] | None = None) -> EnvSource:
    """Return the source that an env SPEC names; files are read and modules looked for, but nothing is built.

    Args:
        spec: The SPEC.
        kwargs: Arguments of the environment's constructor, its factory, or `gymnasium.make`.

    Raises:
        EnvLoadError: If it names a file or module that is not there, or JSON that is no EnvSpec.
    """
    options = dict(kwargs or {})
    if is_file(spec, JSON_SUFFIXES):
        return JsonEnvSource.read(spec, options)
    if is_file(spec):
        return PickledEnvSource(PickleFile.read(spec, EnvLoadError), options)
    if is_module_attribute(spec):
        return ModuleEnvSource(ModuleAttribute.find(spec, EnvLoadError), options)
    if not spec:
        raise EnvLoadError("the environment's name is empty", hint="name a gymnasium id, a file, or module:attr")
    return IdEnvSource(spec, put_working_folder_first(), options)


def as_env_source(env: Any, kwargs: Mapping[str, Any] | None = None) -> EnvSource:
    """Return a source of what the Python API was given.

    Args:
        env: A source, a SPEC, a gymnasium EnvSpec, an environment class or factory, or an environment. An object is
            pickled now, so every worker gets a copy of what it is now, and the caller's own stays the caller's.
        kwargs: Arguments as for `env_source`; none for a source, which has its own.

    Raises:
        EnvLoadError: If it is none of these, or cannot be pickled.
    """
    if isinstance(env, EnvSource):
        if kwargs:
            raise EnvLoadError(f"{env.label} has its arguments already", hint="give them where the source is made")
        return env
    if isinstance(env, str):
        return env_source(env, kwargs)
    if not isinstance(env, GymSpec | gymnasium.Env) and not callable(env):
        raise EnvLoadError(
            f"an object of type {type(env).__name__} is no environment",
            hint="give a gymnasium id, EnvSpec, environment, its class, or a factory",
        )
    hint = "give a gymnasium id, or a factory that builds the environment in each worker"
    return PickledEnvSource(PickleFile.of(env, EnvLoadError, hint=hint), dict(kwargs or {}), _object_label(env))


def _object_label(env: Any) -> str:
    if isinstance(env, gymnasium.Env):
        return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    if isinstance(env, GymSpec):
        return env.id
    return str(getattr(env, "__name__", type(env).__name__))


@dataclass(frozen=True, slots=True)
class IdEnvSource(EnvSource):
    """A gymnasium id, with the module that registers it before a colon where that is not done at import."""

    env_id: str
    folder: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    made_by_gymnasium: ClassVar[bool] = True

    @property
    def label(self) -> str:
        """Return the id."""
        return self.env_id

    def build(self) -> Env:
        """Import the registering module and call `gymnasium.make`.

        Raises:
            EnvLoadError: If the id is unknown, a package is missing, or the environment raises.
        """
        self._import_module()
        return make_env(self.env_id, self.kwargs, self.env_id)

    def named(self) -> GymSpec:
        """Import the registering module and return the EnvSpec.

        Raises:
            EnvLoadError: If the id is unknown.
        """
        self._import_module()
        return registered_spec(self.env_id)

    def _import_module(self) -> None:
        put_working_folder_first(self.folder)
        module, colon, _ = self.env_id.rpartition(":")
        if colon:
            # Imported here, since gymnasium's own message for a missing module does not say where it was looked for.
            import_module(module, EnvLoadError, folder=self.folder)

    def describe(self) -> dict[str, Any]:
        """Return what a dataset records of it."""
        return {"spec": self.env_id, "kwargs": self.kwargs, "path": None, "sha256": None}


@dataclass(frozen=True, slots=True)
class JsonEnvSource(EnvSource):
    """A gymnasium EnvSpec, as `EnvSpec.to_json` writes it."""

    path: str
    text: str
    sha256: str
    folder: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    made_by_gymnasium: ClassVar[bool] = True

    @classmethod
    def read(cls, spec: str, kwargs: dict[str, Any]) -> JsonEnvSource:
        """Read and check the file.

        Raises:
            EnvLoadError: If it cannot be read or holds no EnvSpec.
        """
        data = read_bytes(spec, EnvLoadError)
        try:
            text = data.decode()
            _parse(text)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EnvLoadError(
                f"{spec!r} holds no EnvSpec as JSON: {first_line(error)}", hint="write it with `env.spec.to_json()`"
            ) from error
        return cls(spec, text, sha256(data).hexdigest(), put_working_folder_first(), kwargs)

    @property
    def label(self) -> str:
        """Return the id in the spec."""
        return _parse(self.text).id

    def build(self) -> Env:
        """Call `gymnasium.make` with the spec.

        Raises:
            EnvLoadError: If a package is missing, or the environment raises.
        """
        return make_env(self.named(), self.kwargs, self.path)

    def named(self) -> GymSpec:
        """Return the EnvSpec."""
        put_working_folder_first(self.folder)
        return _parse(self.text)

    def describe(self) -> dict[str, Any]:
        """Return what a dataset records of it."""
        path = str(Path(self.path).resolve())
        return {"spec": self.path, "kwargs": self.kwargs, "path": path, "sha256": self.sha256}


def _parse(text: str) -> GymSpec:
    """Return the spec in `text`; a hand-written one may leave the wrappers away."""
    return GymSpec.from_json(json.dumps({"additional_wrappers": []} | json.loads(text)))


@dataclass(frozen=True, slots=True)
class PickledEnvSource(EnvSource):
    """A pickled EnvSpec, environment, class or factory; every build unpickles it anew."""

    pickle: PickleFile
    kwargs: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    @property
    def label(self) -> str:
        """Return the file's name, or that of the object."""
        return self.name or Path(self.pickle.path).name

    def build(self) -> Env:
        """Unpickle and build.

        Raises:
            EnvLoadError: If the bytes cannot be unpickled, or what they hold builds no environment.
        """
        return build_env(self.named(), self.kwargs, self.name or self.pickle.path)

    def named(self) -> Any:
        """Unpickle and return the object.

        Raises:
            EnvLoadError: If the bytes cannot be unpickled.
        """
        return self.pickle.load(EnvLoadError)

    def describe(self) -> dict[str, Any]:
        """Return what a dataset records of it; an object has no hash, since a fresh pickle differs every time."""
        path = self.pickle.path
        if not path:
            return {"spec": self.name, "kwargs": self.kwargs, "path": None, "sha256": None}
        return {"spec": path, "kwargs": self.kwargs, "path": str(Path(path).resolve()), "sha256": self.pickle.sha256}


@dataclass(frozen=True, slots=True)
class ModuleEnvSource(EnvSource):
    """An environment class, factory, environment or EnvSpec that `module:attr` names."""

    attribute: ModuleAttribute
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return `module:attr`."""
        return self.attribute.spec

    def build(self) -> Env:
        """Import the module and build; an environment that the module holds is copied.

        Raises:
            EnvLoadError: If the import fails, the attribute is missing, or it builds no environment.
        """
        found = self.named()
        env = build_env(found, self.kwargs, self.label)
        return copy_env(env, self.label) if env is found else env

    def named(self) -> Any:
        """Import the module and return the attribute.

        Raises:
            EnvLoadError: If the import fails, or the attribute is missing.
        """
        return self.attribute.load(EnvLoadError)

    def describe(self) -> dict[str, Any]:
        """Return what a dataset records of it; the hash is that of the module's source."""
        return {"spec": self.label, "kwargs": self.kwargs, "path": None, "sha256": self.attribute.sha256}
