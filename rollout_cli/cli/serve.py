"""The command `rollout serve`."""

from __future__ import annotations

import functools
import secrets
import signal
import sys
import threading
from json import dumps
from typing import Annotated, Any

from rollout_cli.cli.options import JsonFlag, flag
from rollout_cli.cli.output import print_message, print_text
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.errors import WorkerError
from rollout_cli.sources.untrusted import printable

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_policy = functools.partial(flag, rich_help_panel="Policy")
_server = functools.partial(flag, rich_help_panel="Server")


def serve(
    policy: Annotated[
        str, _policy("--policy", "-p", metavar="SPEC", help="Policy file, module:attr, or random.")
    ],
    *,
    policy_kwargs: Annotated[
        list[str] | None,
        _policy("--policy-kwargs", metavar="KEY=VALUE", help="Keyword argument for the policy; repeatable."),
    ] = None,
    policy_sha256: Annotated[
        str | None, _policy("--policy-sha256", metavar="HEX", help="Expected SHA-256 of the policy file.")
    ] = None,
    host: Annotated[
        str, _server("--host", metavar="HOST", help="Address to listen on. (default: 127.0.0.1)")
    ] = "127.0.0.1",
    port: Annotated[
        int, _server("--port", min=0, max=65535, metavar="N", help="Port; 0 for a free one. (default: 8000)")
    ] = 8000,
    token: Annotated[
        str | None,
        _server(
            "--token",
            metavar="TOKEN",
            help="Token of clients. (default: none on localhost)",
        ),
    ] = None,
    end_with_stdin: Annotated[
        bool,
        _server("--end-with-stdin", help="Also stop when stdin closes, e.g. if the parent ends."),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Serve a policy to workers of other processes and machines, until Ctrl-C.

    Workers use it as `--policy serve:URL`, with the same actions as without a server.
    """
    from rollout_cli.options.config import OPTIONS  # noqa: PLC0415 - imports pydantic

    arguments = OPTIONS["policy_kwargs"].read(policy_kwargs or [], "--policy-kwargs", text=True)
    sha256 = None
    if policy_sha256 is not None:
        sha256 = OPTIONS["policy_sha256"].read(policy_sha256, "--policy-sha256", text=True)
    if token is None:
        token = "" if host in _LOOPBACK else secrets.token_urlsafe()
    from rollout_cli.policies.serving.process import Address  # noqa: PLC0415 - imports numpy
    from rollout_cli.policies.source import policy_source  # noqa: PLC0415 - as above
    from rollout_cli.run.serve import served_record, serving  # noqa: PLC0415 - as above

    with user_output_on_stderr():
        source = policy_source(policy, arguments, sha256=sha256)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with serving(policy, source, Address(host, port, token)) as process:
            url = process.url.replace("://", f"://{token}@") if token else process.url
            if end_with_stdin:
                threading.Thread(target=_end_with_stdin, args=[process], daemon=True).start()
            _announce(url, served_record(policy, source), as_json=json)
            code = process.wait()
    except KeyboardInterrupt:
        return  # The user ended it.
    if not end_with_stdin:
        raise WorkerError(
            f"the policy server ended with exit code {code}", code="server-ended", hint="see its output above"
        )


def _end_with_stdin(process: Any) -> None:
    sys.stdin.buffer.read()
    process.end()


def _announce(url: str, record: Any, *, as_json: bool) -> None:
    if as_json:
        print_text(dumps({"url": url, "policy": record}))  # In one line, for programs that read lines.
    else:
        print_text(printable(f"serve:{url}"))
        print_message(
            f"serving {record['spec']}; pass --policy serve:{url} to `rollout collect`, or press Ctrl-C to stop"
        )
    sys.stdout.flush()
