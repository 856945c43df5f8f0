"""Policy SPECs: files by their content, `module:attr`, schemes such as `random`; Python objects; packing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import cloudpickle

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError, StorageError, UsageError, UserCodeError
from rollout_cli.keywords import parted
from rollout_cli.loading import (
    PICKLE_SUFFIXES,
    Source,
    did_you_mean,
    first_line,
    is_file,
    is_module_attribute,
    reporting,
)
from rollout_cli.pins import FileWatch, PinRules
from rollout_cli.policies.adapt import adapt_policy, instantiate, policy_class
from rollout_cli.policies.policy import AdaptedPolicy, PolicySource
from rollout_cli.policies.random import RandomSource
from rollout_cli.policies.schemes.constant import ConstantSource
from rollout_cli.policies.schemes.d3rlpy import D3RLPY
from rollout_cli.policies.schemes.files import FileScheme
from rollout_cli.policies.schemes.mix import MixSource
from rollout_cli.policies.schemes.onnx import ONNX
from rollout_cli.policies.schemes.recognise import ADVICE, recognise, recognise_folder
from rollout_cli.policies.schemes.rllib import RLLIB
from rollout_cli.policies.schemes.sb3 import SB3
from rollout_cli.policies.schemes.state_dict import SAFETENSORS
from rollout_cli.policies.schemes.torch import TORCH, TORCHSCRIPT
from rollout_cli.policies.schemes.zoo import ZOO

_FILE_SUFFIXES = (*PICKLE_SUFFIXES, ".zip", ".pt", ".pt2", ".pth", ".onnx", ".safetensors", ".d3")
"""A SPEC that ends so names a file, also one that is not there."""

MakeSource = Callable[[str, Mapping[str, Any]], PolicySource]
SCHEMES: dict[str, MakeSource] = {
    "random": RandomSource,
    "constant": ConstantSource.of,
    "mix": lambda rest, options: MixSource.of(rest, options, policy_source, recorded_spec),
    "d3rlpy": D3RLPY,
    "onnx": ONNX,
    "rllib": RLLIB,
    "safetensors": SAFETENSORS,
    "sb3": SB3,
    "torch": TORCH,
    "torchscript": TORCHSCRIPT,
    "zoo": ZOO,
}
"""From the scheme, before a SPEC's first colon, to what makes a source of the rest and of the options.

Packages add theirs by entry points of the group `rollout.policies`, such as a `FileScheme`.
"""


def _scheme(name: str) -> MakeSource | None:
    if name not in SCHEMES:
        for point in importlib.metadata.entry_points(group="rollout.policies", name=name):
            with reporting(PolicyLoadError, f"the policy scheme {name!r} of {point.value} cannot be loaded"):
                SCHEMES[name] = point.load()
    return SCHEMES.get(name)


@dataclass(frozen=True, slots=True)
class UserPolicySource:
    """A policy, class or factory of the user's: `module:attr`, or a pickle file."""

    source: Source

    @property
    def label(self) -> str:
        return self.source.spec if self.source.data is None else Path(self.source.spec).name

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
        policy = instantiate(self.source.load(PolicyLoadError), env_spec)
        return adapt_policy(policy, env_spec, deterministic=deterministic)

    def describe(self) -> dict[str, Any]:
        return {"scheme": None, "path": self.source.path, "sha256": self.source.sha256, "options": {}}


def policy_source(
    spec: str, options: Mapping[str, Any] | None = None, *, sha256: str | None = None
) -> PolicySource:
    """Return the source that a policy SPEC names: read files and look for modules, but load nothing.

    Args:
        spec: The SPEC. One that names a file, folder or module may end in further `options`, as in
            `ppo.zip?vecnormalize=stats.pkl`.
        options: Arguments for its scheme.
        sha256: What the bytes of its file must hash to, in hexadecimal digits; the source loads those very
            bytes.

    Raises:
        PolicyLoadError: If it names nothing, or a missing file or module, or a file with another hash.
        UsageError: If a hash is given and it names no file, or if SPEC and options differ about one option.
    """
    scheme, _, rest = spec.partition(":")
    make, options = _scheme(scheme), options or {}
    if isinstance(make, FileScheme):
        rest, options = _with_options(rest, options)
    elif make is None:
        spec, options = _with_options(spec, options)
    is_module = is_module_attribute(spec)
    source: PolicySource | None = None
    if make is not None:
        source = make(rest, options)
    elif not is_module and (is_file(spec, _FILE_SUFFIXES) or os.path.exists(spec)):  # noqa: PTH110 - as below
        source = _source_of_file(spec, options)
    elif options:
        raise _takes_no_options(spec)
    if sha256 is not None:
        _check_hash(spec, source.describe() if source is not None else {}, sha256.lower())
    if source is None and is_module:
        source = UserPolicySource(Source.find(spec, PolicyLoadError))
    if source is None:
        kinds = f"{', '.join(SCHEMES)}, a file that `rollout` recognises (docs/policies.md), or module:attr"
        raise PolicyLoadError(
            f"{spec!r} names no policy",
            hint=did_you_mean(spec) or f"use {kinds}",
        )
    return source


def _with_options(name: str, options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return a name without its `?key=value&…`, and those options among the others."""
    if os.path.exists(name):  # noqa: PTH110 - never raises
        return name, options  # The question mark is part of it.
    file, further = parted(name, "the policy")
    for key, value in further.items():
        if key in options and _placed(options[key]) != _placed(value):
            raise UsageError(
                f"the policy {name!r} has {key}={value}, and the option {key} is {options[key]!r} too",
                hint=f"give it once: {{policy_kwargs={key}=…}}, or after the question mark",
            )
    return file, {**further, **options}


def _placed(value: Any) -> Any:
    """Return a text as the path that it is where it names a file: a record has absolute ones."""
    return str(Path.cwd() / value) if isinstance(value, str) else value


def _source_of_file(spec: str, options: Mapping[str, Any]) -> PolicySource | None:
    """Return the source of a file or folder, by its content; None where it is of no known kind."""
    if Path(spec).is_dir():
        kind = recognise_folder(Path(spec))
    else:
        source = Source.read(spec, PolicyLoadError)
        kind = recognise(source.data or b"", spec)
        if kind == "pickle":
            if options:
                raise _takes_no_options(spec)
            return UserPolicySource(source)
    make = _scheme(kind or "")
    if make is None and kind is not None:
        what, hint = ADVICE[kind]
        raise PolicyLoadError(f"{spec!r} is {what}", hint=hint)
    return make(spec, options) if make is not None else None


def _takes_no_options(spec: str) -> PolicyLoadError:
    return PolicyLoadError(f"the policy {spec!r} has no scheme, so it takes no options", hint="omit them")


def _check_hash(spec: str, record: Mapping[str, Any], sha256: str) -> None:
    if record.get("path") is None:
        raise UsageError(
            f"the policy {spec!r} is not a file, so --policy-sha256 cannot be checked",
            hint="omit it, or pack the policy into a file (`rollout policy pack`) and name that",
        )
    if record["sha256"] != sha256:
        raise PolicyLoadError(
            f"the policy {spec!r} has the SHA-256 {record['sha256']}, but should have {sha256}",
            hint="it is not the intended file, or has changed; nothing of it was loaded",
        )


def recorded_spec(record: Mapping[str, Any]) -> str:
    """Return the SPEC that a dataset's record means: a file by its absolute path, valid in any folder."""
    scheme, path = record.get("scheme"), record["path"]
    return str(record["spec"] if path is None else f"{scheme}:{path}" if scheme else path)


class PackedPolicy(NamedTuple):
    """The file that was written."""

    path: Path
    n_bytes: int
    sha256: str
    class_name: str  # The dotted name of the packed class or function, or of the object's class.
    # The files that it still reads where it is loaded; None where that is unknown.
    reads: tuple[str, ...] | None


def pack_policy(spec: str, output: Path, *, overwrite: bool = False) -> PackedPolicy:
    """Pickle what `module:attr` names; the file appears whole or not at all.

    The code of the named module, and of those below the working folder, goes into it; installed packages must
    be installed where it is loaded. There, a class or factory is called.

    Raises:
        PolicyLoadError: If `spec` names nothing, or what it names cannot be pickled.
        StorageError: If the file exists and may not be replaced, or cannot be written.
    """
    if not is_module_attribute(spec):
        raise PolicyLoadError(f"{spec!r} is not module:attr", hint="name what to pack as my_module:MyPolicy")
    if os.path.exists(output) and not overwrite:  # noqa: PTH110 - Path.exists raises where a name is too long
        raise StorageError(
            f"{str(output)!r} exists already", hint="give another {output}, or {overwrite=True}"
        )
    source = Source.find(spec, PolicyLoadError)
    item = source.load(PolicyLoadError)
    with (
        reporting(
            PolicyLoadError,
            f"an object of type {type(item).__name__} cannot be pickled",
            hint="build what cannot be pickled in a factory, and pack the factory",
        ),
        _by_value(source),
    ):
        data = cloudpickle.dumps(item)
    with reporting(
        PolicyLoadError,
        "the pickle that was made does not load",
        hint="an object's own __reduce__ or __setstate__ may be at fault",
    ):
        pickle.loads(data)  # noqa: S301 - the bytes were made just now
    _write_whole(output, data)
    return PackedPolicy(output, len(data), sha256(data).hexdigest(), policy_class(item), _reads(item))


def _reads(item: Any) -> tuple[str, ...] | None:
    """Return the files that a class or factory reads when called; None where it cannot be called here."""
    watch = FileWatch(PinRules())
    try:
        # One that takes the spaces is called with none: whatever it does then, what it has read is not all.
        instantiate(item, cast("EnvSpec", None))
    except UserCodeError:
        return None
    finally:
        watch.end()
    # Modules are in the pickle, or must be importable where it is loaded.
    return tuple(file.label for file in watch.files() if not file.path.endswith(".py"))


@contextlib.contextmanager
def _by_value(source: Source) -> Iterator[None]:
    """Let cloudpickle pickle by value the named module and the loaded ones below the working folder."""
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
    # A virtual environment often lies below the working folder; its packages are not the user's own code.
    origin, top = getattr(module, "__file__", None), module.__name__.partition(".")[0]
    if not origin or top == "rollout_cli" or top in sys.stdlib_module_names:
        return False
    path = Path(origin).resolve()
    return path.is_relative_to(folder) and not {"site-packages", "dist-packages"} & {*path.parts}


def _write_whole(output: Path, data: bytes) -> None:
    temporary = output.with_name(f".rollout.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(output)
    except OSError as error:
        raise StorageError(
            f"{str(output)!r} cannot be written: {first_line(error)}",
            hint="check the free space, and that the folder exists and can be written to",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
