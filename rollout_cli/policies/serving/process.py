"""PolicyProcess, a process with a policy server, which ends with the process that started it."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import IO, Any, Self

import setproctitle

from rollout_cli.cores import WORKER_VARIABLES
from rollout_cli.errors import PolicyLoadError, RolloutError, WorkerError
from rollout_cli.keywords import Record
from rollout_cli.policies.policy import PolicySource
from rollout_cli.policies.serving.server import PolicyServer
from rollout_cli.policies.serving.wire import check_packages
from rollout_cli.sources.loading import reporting
from rollout_cli.sources.pins import FileWatch, PinRules

_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from rollout_cli.policies.serving.process import main
main()
"""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and the token that its clients must send (empty for none)."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""


class PolicyProcess:
    """Starts a server in a process, and ends it when the context is left or this process ends.

    Args:
        source: The source of the policy.
        record: The description of the policy for clients, a JSON object.
        rules: Files of the policy to pin.
        address: The address.

    Attributes:
        url: The URL of the server, without a token.

    Raises:
        RolloutError: A package is missing, the address cannot be used, or the process cannot be started.
    """

    def __init__(self, source: PolicySource, record: Record, rules: PinRules, address: Address) -> None:
        check_packages()
        self.url = ""
        self._request = pickle.dumps((list(sys.argv), rules, dict(record), address, pickle.dumps(source)))
        folders = [entry or os.curdir for entry in sys.path]
        try:
            self._process = subprocess.Popen(  # noqa: S603  This Python, with our own arguments.
                [sys.executable, "-P", "-c", _PROGRAM, *folders],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**WORKER_VARIABLES, **os.environ},
                # Ctrl-C in a terminal must not end the server before the episodes that use it.
                start_new_session=True,
            )
        except OSError as error:
            raise WorkerError(
                f"cannot start the policy server: {error}", code="worker-start", hint="use fewer processes"
            ) from error

    def __enter__(self) -> Self:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # It has ended: the answer is empty.
                self._process.stdin.write(len(self._request).to_bytes(8, "little") + self._request)
                self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline() or b"{}")
        except BaseException:
            self.end()
            raise
        if "url" not in answer:
            self.end()
            error = answer.get("error")
            if error is None:
                raise WorkerError(
                    f"the policy server ended with exit code {self._process.returncode} before it was ready",
                    code="worker-start",
                    hint="see its output above",
                )
            raise pickle.loads(bytes.fromhex(error))  # noqa: S301 - by this package, in its own process
        self.url = answer["url"]
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def wait(self) -> int:
        """Wait until the server ends, end the processes that its policy started, and return its exit code."""
        code = self._process.wait()
        _kill(self._process)
        return code

    def end(self) -> None:
        """End the server, and the processes that its policy started."""
        if self._process.returncode is None:  # Otherwise its process id may belong to another process.
            _kill(self._process)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the server and all processes of its group; on Windows, which does not have groups, the server alone."""
    if not hasattr(os, "killpg"):
        process.terminate()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


# -- in the server's process -----------------------------------------------------------------------


def main() -> None:
    """Serve the policy that the parent sends, and report the URL or an error to it on stdout."""
    setproctitle.setproctitle("rollout-policy-server")
    # The policy gets an empty stdin, and what it prints must not mix with the answer.
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    watch = FileWatch(PinRules())

    def answer(**document: str) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.close()

    try:
        size = int.from_bytes(requests.read(8), "little")
        argv, rules, record, address, pickled = pickle.loads(requests.read(size))  # noqa: S301 - as above
        threading.Thread(target=_end_with_parent, args=[requests], daemon=True).start()
        sys.argv[:] = argv
        with reporting(
            PolicyLoadError,
            "the policy cannot be unpickled in the policy server",
            code="unpickle-failed",
            hint="make its modules importable in the server",
        ):
            source = pickle.loads(pickled)  # noqa: S301 - as above
        watch.follow(rules)
        server = PolicyServer(source, record, watch, token=address.token)
        server.run(address.host, address.port, lambda url: answer(url=url))
    except RolloutError as error:
        answer(error=pickle.dumps(error).hex())


def _end_with_parent(requests: IO[bytes]) -> None:
    """Wait until the parent closes its pipe or is killed; then end at once, even in a call of the policy."""
    requests.read()
    if hasattr(os, "killpg"):
        os.killpg(os.getpgid(0), signal.SIGKILL)  # Also the processes that the policy started.
    os._exit(1)
