"""Folders by URI, such as `s3://bucket/folder?region=eu-west-1`: a path whose files pyarrow reads and writes.

A `RemotePath` has all of its URI in its parts, so it can be pickled, compared and joined as any path. It
holds no connection: each process makes its own when it first needs one, which loads `pyarrow.fs`.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import time
from collections.abc import Generator, Iterator
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
}
"""The schemes, and the options that their URIs may have."""
_OBJECT_STORES = ("s3", "gs")
"""An object appears whole or not at all, and cannot be renamed. The others are file systems."""
_HINTS = {
    "s3": "check the bucket, its region, the endpoint, and the credentials (AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or a profile of ~/.aws)",
    "gs": "check the bucket, and the credentials (GOOGLE_APPLICATION_CREDENTIALS)",
    "hdfs": "check the name node, and HADOOP_HOME, JAVA_HOME and CLASSPATH",
}
_ATTEMPTS = 4
_CONNECT_SECONDS = 5.0
_SILENT_SECONDS = 15.0
_RETRY_SECONDS = 15
_PAUSE_SECONDS = 60.0  # A server that did not answer is not asked again so long: each request would wait.
_MAX_CHARACTERS = 400  # Of a server's error.


def folder_of(value: Path | str) -> Path:
    """Return the folder that a path or a URI names; a `file:` URI is a local path.

    Raises:
        UsageError: For a URI of another scheme, or one with unknown options, or with credentials.
    """
    if isinstance(value, RemotePath):
        return value
    text = str(value)
    if isinstance(value, Path) and text.startswith(tuple(f"{scheme}:/" for scheme in _OPTIONS)):
        raise UsageError(
            f"{text} was a URI before it became a Path", code="uri-as-path", hint="give the URI as a text"
        )
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)([^?]*)\??(.*)", text, re.DOTALL)
    if match is None:
        return Path(value)
    scheme, place, rest, query = match.groups()
    scheme = scheme.lower()
    if "@" in place or "@" in unquote(query):
        # Nothing of it is shown: it may be a password.
        raise UsageError(
            f"the {scheme}:// URI holds a user name or credentials, which are not taken",
            code="uri-credentials",
            hint=f"leave out what stands before the @; {_HINTS.get(scheme, 'give them elsewhere')}",
        )
    if scheme == "file" and place in ("", "localhost") and rest and not query:
        return Path(unquote(rest))
    if scheme not in _OPTIONS or (scheme in _OBJECT_STORES and not place):
        storages = ", ".join(f"{name}://" for name in ("file", *_OPTIONS))
        raise UsageError(
            f"there is no storage at {scheme}://{place}",
            code="uri-unknown",
            hint=f"give a folder, or a URI of {storages}",
        )
    options = parse_qsl(query, keep_blank_values=True)
    for name, choice in options:
        if name not in _OPTIONS[scheme]:
            names = ", ".join(_OPTIONS[scheme])
            raise UsageError(
                f"a {scheme}:// URI has no option {name!r}",
                code="uri-option",
                hint=f"the options are {names}; {_HINTS[scheme]}",
            )
        if name == "anonymous" and choice not in ("true", "false"):
            raise UsageError(
                f"anonymous is {choice!r} in {text}", code="uri-option", hint="give true or false"
            )
    query = "&".join(f"{name}={quote(value, safe=':')}" for name, value in options)
    return RemotePath(f"{scheme}:{place}?{query}", *PurePosixPath(rest.lstrip("/")).parts)


class RemotePath(PosixPath):
    """A path below a URI; `folder_of` makes the first one.

    The first part is scheme, bucket or host, and options. Errors of the server are `StorageError`; a name
    that does not exist is `FileNotFoundError`, as on a disk. What is not defined here raises `TypeError`,
    since it has no local path.
    """

    __slots__ = ()

    def __str__(self) -> str:
        if ":" not in "".join(self.parts[:1]):
            return "/".join(self.parts) or "."  # It is relative to another one.
        scheme, place, query = self._origin
        uri = f"{scheme}://{'/'.join((place, *self.parts[1:]))}"
        return f"{uri}?{query}" if query else uri

    def __fspath__(self) -> str:
        raise TypeError(f"{self} is not a path of this machine")

    @property
    def _origin(self) -> tuple[str, str, str]:
        scheme, _, rest = self.parts[0].partition(":")
        place, _, query = rest.partition("?")
        return scheme, place, query

    @property
    def is_object(self) -> bool:
        """Whether it is in an object store, where a file is put whole under its name, and never renamed."""
        return self._origin[0] in _OBJECT_STORES

    @property
    def hint(self) -> str:
        """What to check where its server gives an error."""
        return _HINTS[self._origin[0]]

    @property
    def _key(self) -> str:
        """Its name within its file system."""
        return "/".join((self._origin[1] if self.is_object else "", *self.parts[1:])) or "/"

    @contextmanager
    def _server(self) -> Iterator[Any]:
        """Give its file system; let its errors leave as `StorageError`."""
        started_at = time.monotonic()
        if started_at < _silent_until.get(self.parts[0], started_at):
            raise StorageError(
                f"{self} cannot be used: its server does not answer", code="server-silent", hint=self.hint
            )
        try:
            yield _connect(*self._origin)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except (OSError, ValueError) as error:  # Arguments that Arrow does not take are a ValueError.
            if time.monotonic() - started_at >= _SILENT_SECONDS:
                _silent_until[self.parts[0]] = time.monotonic() + _PAUSE_SECONDS
            text = " ".join(str(error).split())[:_MAX_CHARACTERS]
            raise StorageError(
                f"{self} cannot be used: {text}", code="server-failed", hint=self.hint
            ) from error

    def check_server(self) -> None:
        """Raise `StorageError` unless its bucket exists, and the server answers."""
        top = RemotePath(self.parts[0])
        if not top.exists():
            raise StorageError(
                f"{top} does not exist", code="bucket-missing", hint=f"make it first, or {self.hint}"
            )

    # What pathlib has, by its contracts.

    def _info(self) -> Any:
        with self._server() as server:
            return server.get_file_info(self._key)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002 - there are none
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
        # Arrow does not list the folders of gs that are only a part of the names of files.
        listed = self._entries(recursive=self._origin[0] == "gs")
        yield from map(self.joinpath, dict.fromkeys(path.parts[0] for path, _ in listed))

    def _entries(self, *, recursive: bool) -> Iterator[tuple[PurePosixPath, bool]]:
        """Yield what is below it, as relative paths, and whether each is a file."""
        from pyarrow.fs import FileSelector  # noqa: PLC0415 - pyarrow is loaded where it is needed

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
        """Yield the files below it whose whole relative path matches."""
        depth = len(PurePosixPath(pattern).parts)
        for path, is_file in self._entries(recursive=depth > 1):
            if is_file and len(path.parts) == depth and path.match(pattern):
                yield self / path

    def rglob(self, pattern: str, **_: Any) -> Iterator[Self]:  # type: ignore[override]
        """Yield the files below it whose relative path ends in a match; a folder here is only its files."""
        for path, is_file in self._entries(recursive=True):
            if is_file and path.match(pattern):
                yield self / path

    def open_input(self) -> io.RawIOBase:
        """Open a file for reading at any place."""
        return _Input(self)

    def read_bytes(self) -> bytes:
        with self._server() as server, server.open_input_stream(self._key, compression=None) as stream:
            return bytes(stream.read())

    def write_bytes(self, data: Any) -> int:
        """Write a file whole. In an object store, it then is there whole, or as it was before."""
        with self._server() as server:
            stream = server.open_output_stream(self._key, compression=None)
            # Not as a context, which would also close it after an error, and so publish a part.
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
        """Rename a file or folder; an object is copied, and then removed."""
        with self._server() as server:
            server.move(self._key, target._key)  # noqa: SLF001 - it is one of this class
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
        """Remove a folder and everything in it; that it is gone already is no error."""
        with suppress(FileNotFoundError), self._server() as server:
            server.delete_dir(self._key)


class _Input(io.RawIOBase):
    """A remote file whose server's errors are `StorageError`: Parquet's reader would take them for damage."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        with path._server() as server:  # noqa: SLF001 - one class in two parts
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
"""By the first part of a path, the time on the monotonic clock before which its server is not asked."""


@cache
def _connect(scheme: str, place: str, query: str) -> Any:
    """Return the file system of a path's first part, which gives up after some attempts or a minute."""
    from pyarrow import __version__, fs  # noqa: PLC0415 - it takes a while

    options: dict[str, Any] = dict(parse_qsl(query))
    if "anonymous" in options:
        options["anonymous"] = options["anonymous"] == "true"
    if scheme == "s3":
        is_amazon = not any(name.startswith("AWS_ENDPOINT_URL") for name in os.environ)
        if is_amazon and not {"region", "endpoint_override"} & options.keys():
            options["region"] = fs.resolve_s3_region(place)  # Requests to another region would be refused.
        # A small file is one request if its writing may be delayed, which pyarrow up to 20 cannot.
        if int(__version__.partition(".")[0]) > 20:  # noqa: PLR2004
            options["allow_delayed_open"] = True
        return fs.S3FileSystem(
            connect_timeout=_CONNECT_SECONDS,
            request_timeout=_SILENT_SECONDS,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
            **options,
        )
    if scheme == "gs":
        return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=_RETRY_SECONDS), **options)
    return fs.HadoopFileSystem.from_uri(f"hdfs://{place}/" + (f"?{query}" if query else ""))
