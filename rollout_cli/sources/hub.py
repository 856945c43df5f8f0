"""Datasets of the Hugging Face Hub by URI, `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`, which are only read."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from pyarrow.fs import FileSelector, FileType, FSSpecHandler, PyFileSystem

from rollout_cli.sources.loading import needing

_LISTED_SECONDS = (
    10.0  # The Hub may get a new version of a dataset, which a listing of this age does not have.
)


def hub(module: str = "huggingface_hub") -> Any:
    """Return a module of `huggingface_hub`; raise UsageError if the package is not installed."""
    with needing("huggingface_hub"):
        return import_module(module)


def http_errors() -> tuple[type[Exception], ...]:
    """Return the errors of requests: also those of the HTTP client, and of the library's threads."""
    return OSError, ValueError, RuntimeError, hub("huggingface_hub.errors").HTTPError


def file_system() -> Any:
    """Return the file system of the Hub, whose paths are `datasets/OWNER/NAME[@REVISION][/…]`."""
    hub()
    return PyFileSystem(_Handler())


class _Handler(FSSpecHandler):  # type: ignore[misc]
    """What pyarrow asks of the Hub. Unlike its base class, it never takes an error of the server for a missing file."""

    def __init__(self) -> None:
        self._fs: Any = None
        self._expires_at = 0.0

    @property
    def fs(self) -> Any:
        """The file system of `huggingface_hub`, which keeps listings; a new one after some seconds."""
        if time.monotonic() >= self._expires_at:
            self._fs = hub().HfFileSystem(skip_instance_cache=True)
            self._expires_at = time.monotonic() + _LISTED_SECONDS
        return self._fs

    def get_file_info_selector(self, selector: FileSelector) -> list[Any]:
        (info,) = self.get_file_info([selector.base_dir])
        if info.type == FileType.NotFound and selector.allow_not_found:
            return []
        if info.type != FileType.Directory:
            raise NotADirectoryError(selector.base_dir)
        depth = None if selector.recursive else 1
        found = self.fs.find(selector.base_dir, maxdepth=depth, withdirs=True, detail=True)
        return [
            self._create_file_info(path, entry) for path, entry in found.items() if path != selector.base_dir
        ]

    def open_input_stream(self, path: str) -> Any:
        return self._opened(path, block_size=0)  # One request; a size that was listed before may be outdated.

    def open_input_file(self, path: str) -> Any:
        return self._opened(path, cache_type="none")  # Parquet's reader knows which ranges it needs.

    def _opened(self, path: str, **options: Any) -> Any:
        from pyarrow import PythonFile  # noqa: PLC0415 - pyarrow.fs was imported first

        if self.fs.info(path)["type"] != "file":
            raise FileNotFoundError(path)
        return PythonFile(self.fs.open(path, "rb", **options), mode="r")
