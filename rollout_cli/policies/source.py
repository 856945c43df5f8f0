"""Policy SPECs (files, `module:attr`, schemes such as `random`), and packing a policy into a file."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import cloudpickle

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError, UsageError, UserCodeError
from rollout_cli.keywords import Keywords, Record, parted
from rollout_cli.policies.adapt import adapt_policy, instantiate, policy_class
from rollout_cli.policies.explore import ExploringSource
from rollout_cli.policies.policy import AdaptedPolicy, PolicySource
from rollout_cli.policies.random import RandomSource
from rollout_cli.policies.schemes.constant import ConstantSource
from rollout_cli.policies.schemes.d3rlpy import D3RLPY
from rollout_cli.policies.schemes.files import FilePolicySource, FileScheme
from rollout_cli.policies.schemes.lerobot import LerobotSource
from rollout_cli.policies.schemes.mix import MixSource
from rollout_cli.policies.schemes.onnx import ONNX
from rollout_cli.policies.schemes.openpi import OpenpiSource
from rollout_cli.policies.schemes.recognise import ADVICE, recognise, recognise_folder
from rollout_cli.policies.schemes.rllib import RLLIB
from rollout_cli.policies.schemes.sb3 import SB3
from rollout_cli.policies.schemes.serve import ServedSource
from rollout_cli.policies.schemes.state_dict import SAFETENSORS
from rollout_cli.policies.schemes.torch import TORCH, TORCHSCRIPT
from rollout_cli.policies.schemes.zoo import ZOO
from rollout_cli.sources.loading import (
    PICKLE_SUFFIXES,
    Source,
    did_you_mean,
    is_file,
    is_module_attribute,
    reporting,
)
from rollout_cli.sources.pins import FileWatch, PinRules

_FILE_SUFFIXES = (*PICKLE_SUFFIXES, ".zip", ".pt", ".pt2", ".pth", ".onnx", ".safetensors", ".d3")
"""A SPEC with one of these suffixes names a file, even if the file does not exist."""

_IMPORTS_TORCH = re.compile(rb"^\s*(import|from)\s+(torch|stable_baselines3|sb3_contrib)\b", re.MULTILINE)

MakeSource = Callable[[str, Keywords], PolicySource]
SCHEMES: dict[str, MakeSource] = {
    "random": RandomSource,
    "constant": ConstantSource.of,
    "mix": lambda argument, options: MixSource.of(argument, options, policy_source),
    "d3rlpy": D3RLPY,
    "lerobot": LerobotSource.of,
    "onnx": ONNX,
    "openpi": OpenpiSource.of,
    "rllib": RLLIB,
    "safetensors": SAFETENSORS,
    "sb3": SB3,
    "serve": ServedSource.of,
    "torch": TORCH,
    "torchscript": TORCHSCRIPT,
    "zoo": ZOO,
}
"""By scheme, the function that creates a source from the argument after the SPEC's first colon, and options.

Packages add schemes, such as a `FileScheme`, by entry points of the group `rollout.policies`.
"""


def _scheme(name: str) -> MakeSource | None:
    if name not in SCHEMES:
        for point in importlib.metadata.entry_points(group="rollout.policies", name=name):
            with reporting(
                PolicyLoadError,
                f"cannot load the policy scheme {name!r} from {point.value}",
                code="policy-scheme",
            ):
                SCHEMES[name] = point.load()
    return SCHEMES.get(name)


@dataclass(frozen=True, slots=True)
class UserPolicySource:
    """The user's policy, policy class or factory (`module:attr` or a pickle file), with its arguments."""

    source: Source
    options: Keywords = field(default_factory=dict)

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
        policy = instantiate(self.source.load(PolicyLoadError), env_spec, self.options)
        return adapt_policy(policy, env_spec, deterministic=deterministic)

    def describe(self) -> Record:
        return {
            "scheme": None,
            "path": self.source.path,
            "sha256": self.source.sha256,
            "options": dict(self.options),
        }


def loads_torch(source: PolicySource) -> bool:
    """Return True if loading the policy imports torch, judged by its file."""
    match source:
        case ExploringSource(inner):
            return loads_torch(inner)
        case MixSource(sources):
            return any(map(loads_torch, sources))
        case FilePolicySource(scheme):
            return "torch" in scheme.needs
        case UserPolicySource(Source(data=None, file=Path() as file)):
            return _IMPORTS_TORCH.search(file.read_bytes()) is not None
        case UserPolicySource(Source(data=bytes() as pickled)):
            return b"torch" in pickled
    return isinstance(source, LerobotSource)


def policy_source(spec: str, options: Keywords | None = None, *, sha256: str | None = None) -> PolicySource:
    """Return the source of a policy SPEC. Files are read and modules are located, but nothing is loaded.

    Args:
        spec: The SPEC. The SPEC of a file, folder or module may end in further `options`, as in
            `ppo.zip?vecnormalize=stats.pkl`.
        options: Arguments for the scheme, or for the class or factory that the SPEC names.
        sha256: The expected hash of the file, in hexadecimal digits. The source loads the bytes that were
            hashed.

    Raises:
        PolicyLoadError: The SPEC is unknown, its file or module is missing, or the file has another hash.
        UsageError: A hash is given for a SPEC without a file, or SPEC and options conflict.
    """
    scheme, _, argument = spec.partition(":")
    options = options or {}
    make = _scheme(scheme)
    if make is None:
        spec, options = _with_options(spec, options)
        source = _source_without_scheme(spec, options)
    else:
        if isinstance(make, FileScheme) or scheme == "lerobot":
            argument, options = _with_options(argument, options)
        source = make(argument, options)
    if sha256 is not None:
        _check_hash(spec, source.describe(), sha256.lower())
    return source


def _with_options(name: str, options: Keywords) -> tuple[str, Keywords]:
    """Return a name without its `?key=value&…`, and the options including those pairs."""
    if os.path.exists(name):  # noqa: PTH110 - never raises
        return name, options  # The question mark is part of the name.
    file, further = parted(name, "the policy")
    for key, value in further.items():
        if key in options and _as_path(options[key]) != _as_path(value):
            raise UsageError(
                f"the policy {name!r} has {key}={value}, but its option {key} is {options[key]!r}",
                code="policy-options-conflict",
                hint=f"pass it once: {{policy_kwargs={key}=…}}, or after the question mark",
            )
    return file, {**further, **options}


def _as_path(value: Any) -> Any:
    """Return a string as an absolute path, because records have absolute paths; return other values unchanged."""
    return str(Path.cwd() / value) if isinstance(value, str) else value


def _source_without_scheme(spec: str, options: Keywords) -> PolicySource:
    """Return the source of `module:attr`, or of a file or folder, which is recognized by its content."""
    kind: str | None = None
    if is_module_attribute(spec):
        return UserPolicySource(Source.find(spec, PolicyLoadError), options)
    if os.path.isdir(spec):  # noqa: PTH112 - never raises
        kind = recognise_folder(Path(spec))
    elif is_file(spec, _FILE_SUFFIXES) or os.path.exists(spec):  # noqa: PTH110 - as above
        file = Source.read(spec, PolicyLoadError)
        kind = recognise(file.data or b"", spec)
        if kind == "pickle" and not is_file(spec):
            raise PolicyLoadError(
                f"{spec!r} is a pickle, which can run any code when it is loaded; expected a .pkl suffix",
                code="file-may-run-code",
                hint="rename it to end in .pkl if you trust it",
            )
        if kind == "pickle":
            return UserPolicySource(file, options)
    if kind is None:
        kinds = f"{', '.join(SCHEMES)}, a policy file of a known kind (docs/policies.md), or module:attr"
        raise PolicyLoadError(
            f"unknown policy {spec!r}", code="policy-unknown", hint=did_you_mean(spec) or f"use {kinds}"
        )
    make = _scheme(kind)
    if make is None:
        description, hint = ADVICE[kind]
        raise PolicyLoadError(f"{spec!r} is {description}", code="policy-unknown", hint=hint)
    return make(spec, options)


def _check_hash(spec: str, record: Record, sha256: str) -> None:
    if record.get("path") is None:
        raise UsageError(
            f"--policy-sha256 needs a policy file, got {spec!r}",
            code="policy-not-a-file",
            hint="omit {policy_sha256}, or pack the policy into a file with `rollout policy pack`",
        )
    if (found := record["sha256"]) != sha256:
        raise PolicyLoadError(
            f"the policy {spec!r} has the SHA-256 {found}, expected {sha256}",
            code="policy-hash",
            hint="check that it is the intended file; it was not loaded",
        )


class PackedPolicy(NamedTuple):
    """A policy as one pickle."""

    data: bytes
    class_name: str  # The dotted name of the packed class or function, or of the object's class.
    # The files that the policy still reads when it is loaded; None if they are unknown.
    reads: tuple[str, ...] | None


def pack_policy(spec: str) -> PackedPolicy:
    """Pickle the policy, class or factory `module:attr`; loading the pickle calls a class or factory.

    The pickle contains the code of the named module and of loaded modules in the working folder. Installed
    packages must also be installed on the machine that loads it.

    Raises:
        PolicyLoadError: `spec` is unknown, or the object cannot be pickled.
    """
    if not is_module_attribute(spec):
        raise PolicyLoadError(
            f"{spec!r} is not module:attr", code="policy-spec", hint="pass the policy as my_module:MyPolicy"
        )
    source = Source.find(spec, PolicyLoadError)
    item = source.load(PolicyLoadError)
    with (
        reporting(
            PolicyLoadError,
            f"an object of type {type(item).__name__} cannot be pickled",
            code="pickle-failed",
            hint="pack a factory that builds the object",
        ),
        _pickling_by_value(source),
    ):
        data = cloudpickle.dumps(item)
    with reporting(
        PolicyLoadError,
        "the packed policy cannot be unpickled",
        code="pickle-failed",
        hint="check the __reduce__ and __setstate__ methods of its objects",
    ):
        pickle.loads(data)  # noqa: S301 - the bytes were made just now
    return PackedPolicy(data, policy_class(item), _files_read_by(item))


def _files_read_by(item: Any) -> tuple[str, ...] | None:
    """Return the files that a class or factory reads when called; None if the call fails."""
    watch = FileWatch(PinRules())
    try:
        # A class or factory that takes the spaces gets None and fails: the files are then unknown.
        instantiate(item, cast("EnvSpec", None), {})
    except UserCodeError:
        return None
    finally:
        watch.end()
    # Modules are either in the pickle or imported when it is loaded.
    return tuple(file.label for file in watch.files() if not file.path.endswith(".py"))


@contextlib.contextmanager
def _pickling_by_value(source: Source) -> Iterator[None]:
    """Make cloudpickle pickle by value the named module and the loaded modules in the working folder."""
    folder = Path(source.folder or "").resolve()
    modules = [
        module for name, module in list(sys.modules.items()) if name != "__main__" and _is_own(module, folder)
    ]
    with contextlib.ExitStack() as stack:
        for module in (sys.modules[source.spec.partition(":")[0]], *modules):
            if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
                cloudpickle.register_pickle_by_value(module)
                stack.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def _is_own(module: ModuleType, folder: Path) -> bool:
    # A virtual environment is often inside the working folder; its packages are not the user's code.
    origin = getattr(module, "__file__", None)
    package = module.__name__.partition(".")[0]
    if not origin or package == "rollout_cli" or package in sys.stdlib_module_names:
        return False
    path = Path(origin).resolve()
    return path.is_relative_to(folder) and not {"site-packages", "dist-packages"} & {*path.parts}
