"""Servers of object stores, as processes of their own on a free port: moto's for S3, an emulator of Google's."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase, BytesIO
from pathlib import Path

from pyarrow import fs

from rollout_cli.sources.remote import folder_of
from tests.helpers.processes import Running, running

Places = Callable[[str], str]
"""Returns the URI of a folder in the server's bucket."""

# Nobody reads what a server logs, and a full pipe would stop it.
_MOTO = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import main
main(["-H", "127.0.0.1", "-p", sys.argv[1]])
"""

# Its own server would wait for the next request of one connection while others stand in line.
_EMULATOR = """
import http.server, sys
http.server.HTTPServer = http.server.ThreadingHTTPServer
from gcp_storage_emulator.server import create_server
create_server("127.0.0.1", int(sys.argv[1]), True, "bucket").run()
"""


@contextmanager
def _serving(program: str) -> Iterator[tuple[str, Running]]:
    """Run a Python program with a port, as a process of its own; give its address once it answers."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])

    def answers() -> bool:
        with closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with running(["-c", program, str(port)], program=[sys.executable]) as server:
        server.wait_until(answers)
        yield f"127.0.0.1:{port}", server


@contextmanager
def s3_server() -> Iterator[tuple[Places, Running]]:
    """Run moto's server, with a bucket."""
    with _serving(_MOTO) as (at, server):
        options = f"endpoint_override={at}&scheme=http&region=us-east-1"
        fs.FileSystem.from_uri(f"s3://bucket?{options}&allow_bucket_creation=true")[0].create_dir("bucket")
        yield lambda name: f"s3://bucket/{name}?{options}", server


@contextmanager
def gs_server() -> Iterator[Places]:
    """Run the emulator, with a bucket."""
    with _serving(_EMULATOR) as (at, _):
        yield lambda name: f"gs://bucket/{name}?scheme=http&endpoint_override={at}&anonymous=true"


def fetched(uri: str, to: Path) -> Path:
    """Copy all objects below a URI to a folder."""
    root = folder_of(uri)
    for path in root.rglob("*"):
        target = to / path.relative_to(root).as_posix()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return to


_EMPTY = (
    b"<ListBucketResult><Name>bucket</Name><KeyCount>0</KeyCount>"
    b"<IsTruncated>false</IsTruncated></ListBucketResult>"
)


def _unchunked(stream: BufferedIOBase) -> bytes:
    """Read a body in chunks: each begins with its size, and after one of size zero come fields and an empty line."""
    data = b""
    while size := int(stream.readline(), 16):
        data += stream.read(size)
        stream.readline()
    while stream.readline().strip():
        pass
    return data


class SilentStore:
    """An S3 server in this process that takes objects, lists none, and answers nothing from `fall_silent` on.

    Attributes:
        unanswered: The requests that came since then.
    """

    def __init__(self) -> None:
        self.unanswered: list[str] = []
        self._is_silent, self._is_over = threading.Event(), threading.Event()
        store, objects = self, dict[str, bytes]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Print nothing."""

            def read_body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                data = _unchunked(self.rfile)
                is_chunked_twice = self.headers.get("Content-Encoding") == "aws-chunked"
                return _unchunked(BytesIO(data)) if is_chunked_twice else data

            def answer(self) -> None:
                data = self.read_body()
                if store._is_silent.is_set():
                    store.unanswered.append(f"{self.command} {self.path}")
                    store._is_over.wait()
                    return
                name = self.path.partition("?")[0]
                if self.command == "PUT":
                    objects[name], body = data, b""
                else:
                    body = objects.get(name, _EMPTY if self.command == "GET" else b"")
                is_missing = self.command == "HEAD" and name != "/bucket" and name not in objects
                self.send_response(404 if is_missing else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_DELETE = answer  # noqa: N815 - the library's

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        options = f"endpoint_override=127.0.0.1:{self._server.server_port}&scheme=http&region=us-east-1&anonymous=true"
        self.uri = f"s3://bucket/d?{options}"

    def fall_silent(self) -> None:
        self._is_silent.set()

    def close(self) -> None:
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()
