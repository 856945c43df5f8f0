"""PolicyServer, which answers the workers of one or more runs over WebSockets; each client has its own policy copy.

On connection the server sends its description; then it answers each request with one message. All copies act
in the main thread, one call at a time, so sessions need no locks, and the model need not be thread-safe.
Each session has its own states of the global generators: its actions do not depend on the other sessions.
"""

from __future__ import annotations

import asyncio
import hmac
import http
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rollout_cli._version import __version__
from rollout_cli.errors import RolloutError, StorageError
from rollout_cli.keywords import Record
from rollout_cli.policies.policy import AdaptedPolicy, PolicySource
from rollout_cli.policies.serving.session import Session, share_weights
from rollout_cli.policies.serving.wire import (
    MAX_BYTES,
    PROTOCOL,
    BadMessageError,
    check_packages,
    pack,
    unpack,
)
from rollout_cli.seeding.seeds import SharedGenerators
from rollout_cli.sources.loading import loaded_modules
from rollout_cli.sources.pins import FileWatch, PinnedFile, hashed


class PolicyServer:
    """Serves a policy.

    Args:
        source: The source of the policy.
        record: The description of the policy for clients, a JSON object.
        watch: Records the files that the policy reads; started before the policy is loaded.
        token: Token that clients must send as `Authorization: Api-Key TOKEN`; empty for none.
    """

    def __init__(self, source: PolicySource, record: Record, watch: FileWatch, *, token: str = "") -> None:
        self._source = source
        self._record = record
        self._watch = watch
        self._token = token
        self._generators = SharedGenerators()
        self._first: AdaptedPolicy | None = None
        self._files: dict[tuple[Any, ...], PinnedFile] = {}

    def run(self, host: str, port: int, started: Callable[[str], None]) -> None:
        """Serve until Ctrl-C; call `started` with the URL once clients can connect. Port 0 takes a free port.

        Raises:
            UsageError: A package is missing.
            StorageError: The address cannot be used.
        """
        check_packages()
        try:
            asyncio.run(self._serve(host, port, started))
        except KeyboardInterrupt:
            pass  # The user ended it.
        except OSError as error:
            raise StorageError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                code="serve-address",
                hint="check --host, or pass another --port (0 for a free one)",
            ) from error

    async def _serve(self, host: str, port: int, started: Callable[[str], None]) -> None:
        from websockets.asyncio.server import serve  # noqa: PLC0415 - an optional package

        async with serve(
            self._handle,
            host,
            port,
            process_request=self._answer_http,
            compression=None,
            max_size=MAX_BYTES,
            ping_interval=None,  # A call of the policy may take longer than any time-out.
        ) as server:
            number = server.sockets[0].getsockname()[1]
            started(f"ws://{f'[{host}]' if ':' in host else host}:{number}")
            await server.serve_forever()

    def _answer_http(self, connection: Any, request: Any) -> Any:
        """Answer health checks, and refuse clients without the token."""
        if request.path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        sent = request.headers.get("Authorization", "").removeprefix("Api-Key ")
        if self._token and not hmac.compare_digest(sent.encode(), self._token.encode()):
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "a token is missing or wrong\n")
        return None

    async def _handle(self, connection: Any) -> None:
        """Answer the requests of one client, until it leaves."""
        from websockets.exceptions import ConnectionClosed  # noqa: PLC0415 - an optional package

        session = Session(self._source, self._shared)
        try:
            await connection.send(pack({"rollout": PROTOCOL, "version": __version__, "policy": self._record}))
            async for data in connection:
                await connection.send(self._answer(session, data))
        except ConnectionClosed:
            pass  # A worker was killed, for example.
        finally:
            self._generators.forget(session)

    def _answer(self, session: Session, data: Any) -> bytes:
        """Return the message that answers a request: its result, or its error."""
        self._generators.use(session)
        try:
            return pack({"result": self._result(session, unpack(data))})
        except RolloutError as error:
            failed = {"kind": type(error).__name__, "message": error.message, "code": error.code}
            return pack({"error": {**failed, "hint": error.marked_hint, "details": error.details}})
        except BadMessageError as error:
            failed = {"kind": "PolicyError", "message": str(error), "code": "served-message"}
            return pack({"error": {**failed, "hint": _OTHER_CLIENT, "details": ""}})

    def _result(self, session: Session, request: Any) -> Any:
        match request:
            case {"load": dict() as arguments}:
                result = session.load(arguments)
                self._report()  # Files that were read until now were read before any episode.
                return result
            case {"calls": calls}:
                return session.call(calls)
            case {"report": True}:
                return self._report()
            case _:
                raise BadMessageError(f"unknown request {request!r:.100}, expected load, calls or report")

    def _shared(self, policy: AdaptedPolicy) -> None:
        if self._first is None:
            self._first = policy
        else:
            share_weights(policy, self._first)

    def _report(self) -> dict[str, Any]:
        """Return the loaded modules, and the files that the policies have read, with their hashes."""
        files = []
        for file in self._watch.files():
            key = (file.path, file.state, file.at_load)
            if key not in self._files:
                self._files[key] = hashed(file)
            files.append(asdict(self._files[key]))
        return {"modules": list(loaded_modules()), "files": files}


_OTHER_CLIENT = "use a client of the same version of rollout-collect"
