"""Servers of object stores, as processes of their own on a free port: moto's for S3, an emulator of Google's."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pyarrow import fs

from rollout_cli.remote import folder_of
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
