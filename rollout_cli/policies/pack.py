"""Packing: a policy that a module holds, as a pickle that loads where the module is missing."""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import cloudpickle

from rollout_cli.errors import PolicyLoadError, StorageError
from rollout_cli.loading import Source, first_line, is_module_attribute, reporting


@dataclass(frozen=True, slots=True)
class PackedPolicy:
    """The file that was written.

    Attributes:
        path: The file.
        n_bytes: Its size.
        sha256: Hash of its bytes.
        class_name: Dotted name of the packed object's class, or of the class or function itself.
    """

    path: Path
    n_bytes: int
    sha256: str
    class_name: str


def pack_policy(spec: str, output: Path, *, overwrite: bool = False) -> PackedPolicy:
    """Pickle what `module:attr` names, with the code of the user's own modules inside.

    A class or factory stays one: it is called with the environment's spaces where the file is loaded. The modules whose
    code goes into the file are the named one and those that lie below the working folder; installed packages are named
    in it, and must be installed where it is loaded.

    Args:
        spec: `module:attr`.
        output: The file to write; it appears whole or not at all.
        overwrite: Whether it may replace a file.

    Raises:
        PolicyLoadError: If `spec` names nothing, or what it names cannot be pickled.
        StorageError: If the file exists and may not be replaced, or cannot be written.
    """
    if not is_module_attribute(spec):
        raise PolicyLoadError(f"{spec!r} is not module:attr", hint="name what to pack as my_module:MyPolicy")
    if os.path.exists(output) and not overwrite:  # noqa: PTH110 - Path.exists raises where a name is too long
        raise StorageError(f"{str(output)!r} exists already", hint="give another --output, or --overwrite")
    source = Source.find(spec, PolicyLoadError)
    found = source.load(PolicyLoadError)
    what = f"an object of type {type(found).__name__} cannot be pickled"
    with (
        reporting(PolicyLoadError, what, hint="build what cannot be pickled in a factory, and pack the factory"),
        _by_value(_own_modules(source)),
    ):
        data = cloudpickle.dumps(found)
    hint = "an object's own __reduce__ or __setstate__ may be at fault"
    with reporting(PolicyLoadError, "the pickle that was made does not load", hint=hint):
        pickle.loads(data)  # noqa: S301 - the bytes were made just now
    _write_whole(output, data)
    named = found if inspect.isclass(found) or inspect.isroutine(found) else type(found)
    return PackedPolicy(output, len(data), sha256(data).hexdigest(), f"{named.__module__}.{named.__qualname__}")


def _own_modules(source: Source) -> list[ModuleType]:
    """Return the named module, and the loaded ones whose files lie below the working folder but in no environment."""
    named = sys.modules[source.spec.partition(":")[0]]
    folder = Path(source.folder or "").resolve()
    loaded = [module for name, module in list(sys.modules.items()) if name != "__main__"]
    below = [module for module in loaded if _lies_below(module, folder)]
    return list({id(module): module for module in [named, *below]}.values())


def _lies_below(module: ModuleType, folder: Path) -> bool:
    origin = getattr(module, "__file__", None)
    if not origin or module.__name__.split(".")[0] == "rollout_cli":
        return False
    # A virtual environment often lies below the working folder; its packages are not the user's own code.
    installed = [Path(prefix).resolve() for prefix in {sys.prefix, sys.base_prefix}]
    path = Path(origin).resolve()
    is_installed = {"site-packages", "dist-packages"} & {*path.parts} or any(map(path.is_relative_to, installed))
    return path.is_relative_to(folder) and not is_installed


@contextlib.contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    before = cloudpickle.list_registry_pickle_by_value()
    new = [module for module in modules if module.__name__ not in before]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)


def _write_whole(output: Path, data: bytes) -> None:
    """Write a file so that it appears whole or not at all.

    Raises:
        StorageError: If that fails.
    """
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=".rollout.", suffix=".tmp", dir=output.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner may read; the result gets the mode of any new file.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(output)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        hint = "check the free space, and that the folder exists and can be written to"
        raise StorageError(f"{str(output)!r} cannot be written: {first_line(error)}", hint=hint) from error


def _umask() -> int:
    # The only way to read it is to set it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
