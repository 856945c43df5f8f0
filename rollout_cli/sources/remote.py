"""Folders by URI, such as `s3://bucket/folder?region=eu-west-1`: paths whose files pyarrow reads and writes.

`hf://datasets/OWNER/NAME` is only read.

A `RemotePath` has the complete URI in its parts, so it can be pickled, compared and joined like other paths.
It has no connection: each process connects on first use, which imports `pyarrow.fs`.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote

from rollout_cli.errors import StorageError, UsageError

_OPTIONS = {
    "s3": ("endpoint_override", "scheme", "region", "anonymous"),
    "gs": ("endpoint_override", "scheme", "anonymous"),
    "hdfs": ("user", "replication", "kerb_ticket"),
    "hf": (),
}
"""The schemes and the options of their URIs."""
_OBJECT_STORES = ("s3", "gs", "hf")
"""The schemes of object stores, where files appear atomically and cannot be renamed; others are file systems."""
_HINTS = {
    "s3": "check the bucket, its region, the endpoint, and the credentials (AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or a profile of ~/.aws)",
    "gs": "check the bucket, and the credentials (GOOGLE_APPLICATION_CREDENTIALS)",
    "hdfs": "check the name node, and HADOOP_HOME, JAVA_HOME and CLASSPATH",
    "hf": "check the name, the revision and the network; a private dataset needs HF_TOKEN, or `hf auth login`; "
    "HF_ENDPOINT is the address of another server",
}
_HUB_PARTS = 2  # OWNER and NAME.
_ATTEMPTS = 4
_CONNECT_SECONDS = 5.0
_SILENT_SECONDS = 15.0
_RETRY_SECONDS = 15
_PAUSE_SECONDS = 60.0  # No requests for this time after a server did not answer: each would wait.
_MAX_CHARACTERS = 400  # Of a server's error message.


def folder_of(value: Path | str) -> Path:
    """Return the folder of a path or a URI; a `file:` URI is a local path.

    Raises:
        UsageError: The URI has an unknown scheme or option, or contains credentials.
    """
    if isinstance(value, RemotePath):
        return value
    text = str(value)
    if isinstance(value, Path) and text.startswith(tuple(f"{scheme}:/" for scheme in _OPTIONS)):
        raise UsageError(
            f"{text} is a URI in a Path, expected a str", code="uri-as-path", hint="pass the URI as a string"
        )
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)([^?]*)\??(.*)", text, re.DOTALL)
    if match is None:
        return Path(value)
    scheme, place, rest, query = match.groups()
    scheme = scheme.lower()
    if "@" in place or "@" in unquote(query):
        # The message does not show the URI, which may contain a password.
        raise UsageError(
            f"the {scheme}:// URI contains a user name or credentials, which are not allowed",
            code="uri-credentials",
            hint=f"omit the part before the @; {_HINTS.get(scheme, 'configure the credentials elsewhere')}",
        )
    if scheme == "file" and place in ("", "localhost") and rest and not query:
        return Path(unquote(rest))
    if scheme not in _OPTIONS or (scheme in _OBJECT_STORES and not place):
        storages = ", ".join(f"{name}://" for name in ("file", *_OPTIONS))
        raise UsageError(
            f"unknown storage {scheme}://{place}",
            code="uri-unknown",
            hint=f"use a folder, or a URI with one of: {storages}",
        )
    names = PurePosixPath(rest.lstrip("/")).parts
    _check_hub(scheme, place, names)
    options = parse_qsl(query, keep_blank_values=True)
    for name, choice in options:
        if name not in _OPTIONS[scheme]:
            known = ", ".join(_OPTIONS[scheme])
            raise UsageError(
                f"a {scheme}:// URI has no option {name!r}",
                code="uri-option",
                hint=f"use one of: {known}; {_HINTS[scheme]}" if known else f"omit it; {_HINTS[scheme]}",
            )
        if name == "anonymous" and choice not in ("true", "false"):
            raise UsageError(
                f"anonymous is {choice!r} in {text}", code="uri-option", hint="use true or false"
            )
    query = "&".join(f"{name}={quote(value, safe=':')}" for name, value in options)
    return RemotePath(f"{scheme}:{place}?{query}", *names)


def _check_hub(scheme: str, place: str, names: Sequence[str]) -> None:
    """Raise UsageError for a URI of the Hugging Face Hub without the name of a dataset."""
    if scheme == "hf" and (place != "datasets" or len(names) < _HUB_PARTS):
        uri = "/".join((place, *names))
        raise UsageError(
            f"hf://{uri} is not a dataset of the Hugging Face Hub",
            code="uri-not-a-hub-dataset",
            hint="use hf://datasets/OWNER/NAME, or hf://datasets/OWNER/NAME@REVISION/FOLDER",
        )


class RemotePath(PosixPath):
    """A path in a remote folder, created by `folder_of`.

    The first part has scheme, bucket or host, and options. Errors of the server are raised as `StorageError`,
    and missing files as `FileNotFoundError`. Other methods of `Path` raise `TypeError`, because there is no
    local path.
    """

    __slots__ = ()

    def __str__(self) -> str:
        if ":" not in "".join(self.parts[:1]):
            return "/".join(self.parts) or "."  # A relative path.
        scheme, place, query = self._origin
        uri = f"{scheme}://{'/'.join((place, *self.parts[1:]))}"
        return f"{uri}?{query}" if query else uri

    def __fspath__(self) -> str:
        raise TypeError(f"{self} is not a local path")

    @property
    def _origin(self) -> tuple[str, str, str]:
        scheme, _, rest = self.parts[0].partition(":")
        place, _, query = rest.partition("?")
        return scheme, place, query

    @property
    def is_object(self) -> bool:
        """True in an object store, where files are written atomically and cannot be renamed."""
        return self._origin[0] in _OBJECT_STORES

    @property
    def hint(self) -> str:
        """What to check after an error of the server."""
        return _HINTS[self._origin[0]]

    @property
    def _key(self) -> str:
        """The path in the remote file system."""
        return "/".join((self._origin[1] if self.is_object else "", *self.parts[1:])) or "/"

    @contextmanager
    def _server(self) -> Iterator[Any]:
        """Yield the remote file system; raise its errors as `StorageError`."""
        started_at = time.monotonic()
        if started_at < _silent_until.get(self.parts[0], started_at):
            uri = str(self)
            raise StorageError(
                f"cannot access {uri}: the server does not answer", code="server-silent", hint=self.hint
            )
        try:
            yield _connect(*self._origin)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except _request_errors(self._origin[0]) as error:
            if time.monotonic() - started_at >= _SILENT_SECONDS:
                _silent_until[self.parts[0]] = time.monotonic() + _PAUSE_SECONDS
            text = " ".join(str(error).split())[:_MAX_CHARACTERS]
            uri = str(self)
            raise StorageError(
                f"cannot access {uri}: {text}", code="server-failed", hint=self.hint
            ) from error

    def check_server(self) -> None:
        """Raise `StorageError` unless the bucket, or the Hub's repository, exists and the server answers."""
        is_hub = self._origin[0] == "hf"
        top = RemotePath(*self.parts[: 1 + _HUB_PARTS if is_hub else 1])
        if not top.exists():
            hint = self.hint if is_hub else f"create it first, or {self.hint}"
            raise StorageError(f"{top} does not exist", code="bucket-missing", hint=hint)

    def check_writable(self) -> None:
        """Raise `UsageError` for a dataset of the Hub, which is written by `rollout push`."""
        if self._origin[0] == "hf":
            raise UsageError(
                f"cannot write to {self}: datasets of the Hub are read, and pushed as a whole",
                code="uri-read-only",
                hint="write to a local folder, then run `rollout push`",
            )

    # Methods of pathlib.Path, with their contracts.

    def _info(self) -> Any:
        with self._server() as server:
            return server.get_file_info(self._key)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002 - no symlinks
        info = self._info()
        if info.type.name == "NotFound":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        kind = stat.S_IFREG if info.is_file else stat.S_IFDIR
        return os.stat_result((kind, 0, 0, 0, 0, 0, info.size or 0, 0, 0, 0))

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as above
        return bool(self._info().type.name != "NotFound")

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return bool(self._info().is_file)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002
        return bool(self._info().type.name == "Directory")

    def is_symlink(self) -> bool:
        return False

    def absolute(self) -> Self:
        return self

    def resolve(self, strict: bool = False) -> Self:  # noqa: ARG002, FBT001, FBT002 - pathlib's
        return self

    def iterdir(self) -> Generator[Self, None, None]:
        # Arrow does not list gs folders that exist only as prefixes of file names.
        listed = self._entries(recursive=self._origin[0] == "gs")
        yield from map(self.joinpath, dict.fromkeys(path.parts[0] for path, _ in listed))

    def _entries(self, *, recursive: bool) -> Iterator[tuple[PurePosixPath, bool]]:
        """Yield the files and folders in this folder, as relative paths, and True for files."""
        from pyarrow.fs import FileSelector  # noqa: PLC0415 - not all processes need pyarrow

        try:
            with self._server() as server:
                listed = server.get_file_info(
                    FileSelector(self._key, allow_not_found=True, recursive=recursive)
                )
        except NotADirectoryError:
            return
        key = self._key.strip("/")
        for info in listed:
            yield PurePosixPath(info.path.strip("/")).relative_to(key), info.type.name == "File"

    def glob(self, pattern: str, **_: Any) -> Iterator[Self]:  # type: ignore[override]
        """Yield the files in this folder whose complete relative path matches."""
        depth = len(PurePosixPath(pattern).parts)
        for path, is_file in self._entries(recursive=depth > 1):
            if is_file and len(path.parts) == depth and path.match(pattern):
                yield self / path

    def rglob(self, pattern: str, **_: Any) -> Iterator[Self]:  # type: ignore[override]
        """Yield the files in this folder and its subfolders that match, without folders."""
        for path, is_file in self._entries(recursive=True):
            if is_file and path.match(pattern):
                yield self / path

    def open_input(self) -> io.RawIOBase:
        """Open a file for reading with random access."""
        return _Input(self)

    def read_bytes(self) -> bytes:
        with self._server() as server, server.open_input_stream(self._key, compression=None) as stream:
            return bytes(stream.read())

    def write_bytes(self, data: Any) -> int:
        """Write a complete file. In an object store, the write is atomic."""
        with self._server() as server:
            stream = server.open_output_stream(self._key, compression=None)
            # Not as a context manager, which would close the stream after an error and publish a part.
            stream.write(data)
            stream.close()
        return len(data)

    def mkdir(
        self,
        mode: int = 0o777,  # noqa: ARG002
        parents: bool = False,  # noqa: FBT001, FBT002
        exist_ok: bool = False,  # noqa: ARG002, FBT001, FBT002
    ) -> None:
        with self._server() as server:
            server.create_dir(self._key, recursive=parents)

    def replace(self, target: Any) -> Any:
        """Rename a file or folder; an object is copied and then deleted."""
        with self._server() as server:
            server.move(self._key, target._key)  # noqa: SLF001 - an object of this class
        return target

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: FBT001, FBT002
        try:
            with self._server() as server:
                server.delete_file(self._key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        if any(self.iterdir()):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(self))
        self.remove_tree()

    def remove_tree(self) -> None:
        """Delete a folder with its content; a missing folder is not an error."""
        with suppress(FileNotFoundError), self._server() as server:
            server.delete_dir(self._key)


class _Input(io.RawIOBase):
    """A remote file that raises errors of the server as `StorageError`, so that they do not look like damage."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        with path._server() as server:  # noqa: SLF001 - a helper class of RemotePath
            self._file = server.open_input_file(path._key)  # noqa: SLF001

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int = -1) -> bytes:
        with self._path._server():  # noqa: SLF001
            return bytes(self._file.read(None if size < 0 else size))


_silent_until: dict[str, float] = {}
"""By the first part of a path, the monotonic time until which its server gets no requests."""


def _request_errors(scheme: str) -> tuple[type[Exception], ...]:
    """Return the errors of requests to a server; Arrow raises ValueError for invalid arguments."""
    if scheme != "hf":
        return OSError, ValueError
    from rollout_cli.sources.hub import http_errors  # noqa: PLC0415 - imports pyarrow

    return http_errors()


@cache
def _connect(scheme: str, place: str, query: str) -> Any:
    """Return the file system of a path's first part; requests fail after several attempts or a minute."""
    from pyarrow import __version__, fs  # noqa: PLC0415 - slow import

    options: dict[str, Any] = dict(parse_qsl(query))
    if "anonymous" in options:
        options["anonymous"] = options["anonymous"] == "true"
    if scheme == "s3":
        is_amazon = not any(name.startswith("AWS_ENDPOINT_URL") for name in os.environ)
        if is_amazon and not {"region", "endpoint_override"} & options.keys():
            options["region"] = fs.resolve_s3_region(place)  # Requests to another region fail.
        # With delayed open, which pyarrow has since version 21, a small file is one request.
        if int(__version__.partition(".")[0]) > 20:  # noqa: PLR2004
            options["allow_delayed_open"] = True
        return fs.S3FileSystem(
            connect_timeout=_CONNECT_SECONDS,
            request_timeout=_SILENT_SECONDS,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
            **options,
        )
    if scheme == "hf":
        from rollout_cli.sources.hub import file_system  # noqa: PLC0415 - imports pyarrow

        return file_system()
    if scheme == "gs":
        return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=_RETRY_SECONDS), **options)
    return fs.HadoopFileSystem.from_uri(f"hdfs://{place}/" + (f"?{query}" if query else ""))
