"""Packing: a policy that a module holds, as a pickle that loads where the module is missing."""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import sys
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
    """The file that was written, and the dotted name of the packed class or function, or of the object's class."""

    path: Path
    n_bytes: int
    sha256: str
    class_name: str


def pack_policy(spec: str, output: Path, *, overwrite: bool = False) -> PackedPolicy:
    """Pickle what `module:attr` names, with the code of the user's own modules inside.

    A class or factory is called where the file is loaded. The code of the named module and of those that lie below
    the working folder goes into the file; installed packages are named in it, and must be installed where it is loaded.
    The file appears whole or not at all.

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
    hint = "build what cannot be pickled in a factory, and pack the factory"
    with reporting(PolicyLoadError, what, hint=hint), _by_value(source):
        data = cloudpickle.dumps(found)
    hint = "an object's own __reduce__ or __setstate__ may be at fault"
    with reporting(PolicyLoadError, "the pickle that was made does not load", hint=hint):
        pickle.loads(data)  # noqa: S301 - the bytes were made just now
    _write_whole(output, data)
    named = found if inspect.isclass(found) or inspect.isroutine(found) else type(found)
    return PackedPolicy(output, len(data), sha256(data).hexdigest(), f"{named.__module__}.{named.__qualname__}")


@contextlib.contextmanager
def _by_value(source: Source) -> Iterator[None]:
    """Let cloudpickle write out the code of the named module, and of the loaded ones below the working folder."""
    folder = Path(source.folder or "").resolve()
    modules = [module for name, module in list(sys.modules.items()) if name != "__main__" and _is_own(module, folder)]
    named = sys.modules[source.spec.partition(":")[0]]
    before = cloudpickle.list_registry_pickle_by_value()
    new = {module.__name__: module for module in (named, *modules) if module.__name__ not in before}
    for module in new.values():
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new.values():
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: ModuleType, folder: Path) -> bool:
    # A virtual environment often lies below the working folder; its packages are not the user's own code.
    origin = getattr(module, "__file__", None)
    top = module.__name__.partition(".")[0]
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
        hint = "check the free space, and that the folder exists and can be written to"
        raise StorageError(f"{str(output)!r} cannot be written: {first_line(error)}", hint=hint) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
