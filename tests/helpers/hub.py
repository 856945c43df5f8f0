"""A server of the Hugging Face Hub's API, as far as `rollout push` and `hf://` use it: repositories with commits."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_of_the_tests"

Files = dict[str, bytes]
"""The files of a commit by their paths."""


@dataclass(slots=True)
class Repository:
    """A dataset's repository.

    Attributes:
        is_private: Whether reading it needs the token.
        commits: The files of each commit by its SHA.
        messages: The commits' messages, the first one first.
        branches: The SHA of each branch.
    """

    is_private: bool
    commits: dict[str, Files] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, message: str, files: Files) -> str:
        sha = hashlib.sha1(f"{len(self.commits)} {message}".encode()).hexdigest()
        self.commits[sha] = files
        self.messages.append(message)
        self.branches[branch] = sha
        return sha

    def files(self, revision: str) -> Files | None:
        return self.commits.get(self.branches.get(revision, revision))


class RefusedError(Exception):
    """An answer other than 200, with the header by which the library knows the cause."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status, self.code, self.message = status, code, message


class Hub:
    """The state of the server.

    Attributes:
        address: Its URL.
        repositories: The datasets by OWNER/NAME.
        requests: What was asked, such as `GET /api/datasets/me/d`.
        sent: The number of bytes that were sent of each path.
        answers: For tests of errors, the status with which requests are answered that match an expression.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.sent: Counter[str] = Counter()
        self.answers: dict[str, int] = {}
        self._objects: dict[str, bytes] = {}

    def variables(self, **more: str) -> dict[str, str]:
        """Return the environment of a client, which uploads large files by LFS: Xet needs a server of its own."""
        return {"HF_ENDPOINT": self.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", **more}

    def answer(self, method: str, target: str, token: str, body: bytes) -> Any:
        """Return the answer to a request: bytes of a file, or a document."""
        parts = urlsplit(target)
        asked = f"{method} {unquote(parts.path)}"
        self.requests.append(asked)
        for expression, status in self.answers.items():
            if re.search(expression, asked):
                raise RefusedError(status, "", "refused by the test")
        for expression, name in _ROUTES:
            if match := re.fullmatch(expression, f"{method} {parts.path}"):
                found = [unquote(group or "") for group in match.groups()]
                is_known = token == f"Bearer {TOKEN}"
                if method in {"POST", "PUT"} and not is_known and name not in {"lfs_put", "paths_info"}:
                    raise RefusedError(401, "", "Invalid username or password.")
                if name in {"info", "tree", "paths_info", "resolve"}:
                    self._files(found[0], found[1] or "main", is_known=is_known)
                return getattr(self, f"_{name}")(*found, parse_qs(parts.query), body)
        raise RefusedError(404)

    def _repository(self, name: str) -> Repository:
        if name not in self.repositories:
            raise RefusedError(404, "RepoNotFound", "Repository not found")
        return self.repositories[name]

    def _files(self, name: str, revision: str, *, is_known: bool = True) -> Files:
        if not is_known and (name not in self.repositories or self.repositories[name].is_private):
            raise RefusedError(401, "RepoNotFound", "Repository not found")
        if (files := self._repository(name).files(revision)) is None:
            raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return files

    def _create(self, query: Any, body: bytes) -> Any:
        wanted = json.loads(body)
        name = f"{wanted['organization']}/{wanted['name']}"
        assert wanted["type"] == "dataset"
        if wanted["organization"] == "others":
            raise RefusedError(
                403, "", 'You don\'t have the rights to create a dataset under the namespace "others".'
            )
        document = {"url": f"{self.address}/datasets/{name}"}
        if name in self.repositories:
            raise RefusedError(
                409, "", json.dumps({"error": "You already created this dataset repo", **document})
            )
        self.repositories[name] = Repository(wanted.get("private") or wanted.get("visibility") == "private")
        self.repositories[name].commit(
            "main", "initial commit", {".gitattributes": b"*.parquet filter=lfs\n"}
        )
        return document

    def _branch(self, name: str, branch: str, query: Any, body: bytes) -> Any:
        repository = self._repository(name)
        if branch in repository.branches:
            raise RefusedError(409, "", "Reference already exists")
        repository.branches[branch] = repository.branches["main"]
        return {}

    def _yaml(self, query: Any, body: bytes) -> Any:
        assert json.loads(body)["content"].startswith("---\n")
        return {"errors": [], "warnings": []}

    def _preupload(self, name: str, revision: str, query: Any, body: bytes) -> Any:
        files = self._files(name, revision)
        answers = []
        for file in json.loads(body)["files"]:
            path = file["path"]
            mode = "lfs" if path.endswith((".parquet", ".png")) else "regular"
            oid = _oid(path, files[path]) if path in files else None
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": answers}

    def _lfs_batch(self, name: str, query: Any, body: bytes) -> Any:
        objects = []
        for wanted in json.loads(body)["objects"]:
            entry: dict[str, Any] = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self._objects:
                entry["actions"] = {"upload": {"href": f"{self.address}/lfs/{wanted['oid']}"}}
            objects.append(entry)
        return {"transfer": "basic", "objects": objects}

    def _lfs_put(self, oid: str, query: Any, body: bytes) -> Any:
        assert hashlib.sha256(body).hexdigest() == oid
        self._objects[oid] = body
        return {}

    def _commit(self, name: str, branch: str, query: Any, body: bytes) -> Any:
        files = dict(self._files(name, branch))
        message = ""
        for line in body.splitlines():
            document = json.loads(line)
            value = document["value"]
            match document["key"]:
                case "header":
                    message = value["summary"]
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self._objects[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
                case other:
                    raise AssertionError(other)
        sha = self.repositories[name].commit(branch, message, files)
        return {"commitUrl": f"{self.address}/datasets/{name}/commit/{sha}", "commitOid": sha}

    def _info(self, name: str, revision: str, query: Any, body: bytes) -> Any:
        repository = self.repositories[name]
        sha = repository.branches.get(revision or "main", revision)
        siblings = [{"rfilename": path} for path in sorted(repository.commits[sha])]
        return {"id": name, "sha": sha, "private": repository.is_private, "siblings": siblings, "tags": []}

    def _tree(self, name: str, revision: str, folder: str, query: Any, body: bytes) -> Any:
        files = self._files(name, revision)
        prefix = f"{folder.strip('/')}/".lstrip("/")
        inside = sorted(path for path in files if path.startswith(prefix))
        if not inside:
            raise RefusedError(404, "EntryNotFound", f"{folder} does not exist on {revision}")
        found: dict[str, Any] = {}
        is_recursive = query.get("recursive", ["false"])[0].lower() == "true"
        for path in inside:
            steps = path.removeprefix(prefix).split("/")
            for depth in range(1, len(steps)):
                if is_recursive or depth == 1:
                    place = prefix + "/".join(steps[:depth])
                    found[place] = {"type": "directory", "path": place, "oid": "0" * 40, "size": 0}
            if is_recursive or len(steps) == 1:
                found[path] = _file(path, files[path])
        return list(found.values())

    def _paths_info(self, name: str, revision: str, query: Any, body: bytes) -> Any:
        files = self._files(name, revision)
        return [_file(path, files[path]) for path in parse_qs(body.decode())["paths"] if path in files]

    def _resolve(self, name: str, revision: str, path: str, query: Any, body: bytes) -> bytes:
        files = self._files(name, revision)
        if path not in files:
            raise RefusedError(404, "EntryNotFound", "Entry not found")
        return files[path]


_NAME = "([^/]+/[^/]+)"
_ROUTES: Sequence[tuple[str, str]] = (
    ("POST /api/repos/create", "create"),
    ("POST /api/validate-yaml", "yaml"),
    (rf"POST /api/datasets/{_NAME}/branch/([^/]+)", "branch"),
    (rf"POST /api/datasets/{_NAME}/preupload/([^/]+)", "preupload"),
    (rf"POST /api/datasets/{_NAME}/commit/([^/]+)", "commit"),
    (rf"POST /api/datasets/{_NAME}/paths-info/([^/]+)", "paths_info"),
    (rf"POST /datasets/{_NAME}\.git/info/lfs/objects/batch", "lfs_batch"),
    ("PUT /lfs/([0-9a-f]{64})", "lfs_put"),
    (rf"GET /api/datasets/{_NAME}(?:/revision/([^/]+))?", "info"),
    (rf"GET /api/datasets/{_NAME}/tree/([^/]+)/?(.*)", "tree"),
    (rf"(?:GET|HEAD) /datasets/{_NAME}/resolve/([^/]+)/(.*)", "resolve"),
)
"""The requests, and the methods of `Hub` that answer them."""


def _oid(path: str, data: bytes) -> str:
    """Return what identifies a file's content: its SHA-256 in LFS, else Git's SHA-1."""
    if path.endswith((".parquet", ".png")):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _file(path: str, data: bytes) -> Any:
    return {"type": "file", "path": path, "oid": _oid(path, data), "size": len(data)}


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Run a server in this process."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Print nothing."""

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {}
            try:
                answer = hub.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
            except RefusedError as refused:
                status = refused.status
                is_document = refused.message.startswith("{")
                data = (refused.message if is_document else json.dumps({"error": refused.message})).encode()
                headers = {"X-Error-Code": refused.code} if refused.code else {}
            else:
                status = 200
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                if (asked := self.headers.get("Range")) and isinstance(answer, bytes):
                    first, last = asked.removeprefix("bytes=").split("-")
                    data = data[int(first) : int(last) + 1 if last else None]
                    status = 206
            hub.sent[self.path] += len(data)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = respond  # noqa: N815 - the library's

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub = Hub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
