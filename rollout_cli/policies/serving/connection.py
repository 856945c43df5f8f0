"""Connection, a client's WebSocket to a policy server; each failure becomes one error that names the server."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies.serving.wire import MAX_BYTES, BadMessageError, check_packages, pack, unpack

CONNECT_SECONDS = 120.0
"""Maximum time for connecting; a server that loads a model for another client does not answer meanwhile."""

_START = "start the server, and check host and port"


def split_token(url: str) -> tuple[str, str]:
    """Return a URL without its token, and the token of `ws://TOKEN@host:port` or an empty string.

    Raises:
        PolicyLoadError: It is not the URL of a WebSocket.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"ws", "wss"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # Of a port that is not a number.
        is_valid = False
    if not is_valid:
        raise PolicyLoadError(
            f"{url!r} is not the URL of a policy server",
            code="policy-spec",
            hint="pass host and port, for example: ws://127.0.0.1:8000",
        )
    token, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=place)), token


class Connection:
    """A connection to a policy server.

    Attributes:
        url: The URL, without the token.
        metadata: The message that the server sends first.

    Raises:
        PolicyLoadError: The server cannot be reached, refuses the token, or is not a policy server.
    """

    def __init__(self, url: str, token: str = "") -> None:
        check_packages()
        from websockets.sync.client import connect  # noqa: PLC0415 - an optional package

        self.url = url
        headers = {"Authorization": f"Api-Key {token}"} if token else None
        with self._connecting():
            # Entered by hand, since the connection lasts as long as a policy; `close` ends it.
            self._socket = ExitStack().enter_context(
                connect(
                    url,
                    additional_headers=headers,
                    compression=None,
                    max_size=MAX_BYTES,
                    open_timeout=CONNECT_SECONDS,
                    ping_interval=None,  # A call of the policy may take longer than any time-out.
                    close_timeout=1.0,
                    proxy=None,
                )
            )
        with self._connecting():
            metadata = unpack(self._socket.recv(timeout=CONNECT_SECONDS))
        if not isinstance(metadata, Mapping):
            raise self._not_a_server(f"it sent {metadata!r:.60}")
        self.metadata = metadata

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        from websockets.exceptions import InvalidStatus, WebSocketException  # noqa: PLC0415 - as above

        try:
            yield
        except TimeoutError as error:
            raise PolicyLoadError(
                f"the policy server {self.url} did not answer within {CONNECT_SECONDS:g} seconds",
                code="server-unreachable",
                hint=_START,
            ) from error
        except OSError as error:
            raise PolicyLoadError(
                f"cannot connect to the policy server {self.url}: {error.strerror or error}",
                code="server-unreachable",
                hint=_START,
            ) from error
        except InvalidStatus as error:
            if error.response.status_code != 401:  # noqa: PLR2004 - Unauthorized
                raise self._not_a_server(str(error)) from error
            raise PolicyLoadError(
                f"the policy server {self.url} refused the connection: the token is missing or wrong",
                code="server-token",
                hint="pass the server's token or API key in the URL: ws://TOKEN@host:port",
            ) from error
        except (WebSocketException, BadMessageError) as error:
            if _has_ended(error):
                raise PolicyLoadError(
                    f"the policy server {self.url} closed the connection before its first message",
                    code="server-lost",
                    hint="see the server's output for the cause, and check host and port",
                ) from error
            raise self._not_a_server(str(error)) from error

    def _not_a_server(self, reason: str) -> PolicyLoadError:
        return PolicyLoadError(
            f"{self.url} is not a policy server: {reason}",
            code="server-protocol",
            hint="check host and port, and the scheme: serve: for `rollout serve`, openpi: for other servers",
        )

    def ask(self, request: Any) -> Any:
        """Send a request, wait for the answer, and return it; a string frame is the error of an openpi server.

        Raises:
            PolicyError: The connection was lost, or the server reported an error or sent an invalid message.
        """
        self.send(request)
        return self.receive()

    def send(self, request: Any) -> None:
        """Send a request; see `ask`."""
        data = pack(request)
        with self._using():
            self._socket.send(data)

    def receive(self) -> Any:
        """Wait for the answer to a request and return it; see `ask`."""
        with self._using():
            data = self._socket.recv()
            if not isinstance(data, str):
                return unpack(data)
        raise PolicyError(
            f"the policy server {self.url} reported: {_last_line(data)}",
            code="policy-raised",
            hint="see the server's traceback below",
            details=data[:20_000],
        )

    @contextmanager
    def _using(self) -> Iterator[None]:
        from websockets.exceptions import ConnectionClosed  # noqa: PLC0415 - as above

        try:
            yield
        except (ConnectionClosed, OSError) as error:
            raise PolicyError(
                f"lost the connection to the policy server {self.url}: {error}",
                code="server-lost",
                hint="see the server's output for the cause; start it again, and pass {resume=True} to continue",
            ) from error
        except BadMessageError as error:
            raise PolicyError(
                f"the policy server {self.url} sent an invalid message: {error}",
                code="server-protocol",
                hint="check that server and client speak the same protocol",
            ) from error

    def close(self) -> None:
        """Close the connection without waiting for the server."""
        with suppress(OSError):  # The server was faster.
            self._socket.socket.shutdown(
                socket.SHUT_RDWR
            )  # It wakes the thread that receives, which closes it.


def _has_ended(error: Exception) -> bool:
    """Return True for an error of a connection that ended without a word: the server was killed, for example."""
    from websockets.exceptions import ConnectionClosed  # noqa: PLC0415 - as above

    if isinstance(error, ConnectionClosed):
        return error.rcvd is None
    return isinstance(error.__cause__, EOFError)  # In the handshake.


def _last_line(text: str) -> str:
    """Return the last line of a traceback, which names the error, with at most 300 characters."""
    lines = text.strip().splitlines() or ["an error without a message"]
    return lines[-1][:300]
