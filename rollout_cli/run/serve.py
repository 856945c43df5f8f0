"""Policies in another process: `--policy-process` for one run, and `rollout serve` for any client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rollout_cli.keywords import Record
from rollout_cli.policies.explore import ExploringSource
from rollout_cli.policies.policy import PolicySource
from rollout_cli.policies.schemes.serve import ServedSource
from rollout_cli.redact import without_secrets
from rollout_cli.run.request import Request, pin_rules
from rollout_cli.sources.pins import PinRules

if TYPE_CHECKING:
    from rollout_cli.policies.serving.process import Address, PolicyProcess


@contextmanager
def policy_process(request: Request) -> Iterator[Request]:
    """Yield the request of a run; with `policy_process`, its policy is in another process."""
    config = request.config
    if not config.policy_process:
        yield request
        return
    from rollout_cli.policies.serving.process import Address, PolicyProcess  # noqa: PLC0415 - imports asyncio

    inner = request.policy.source if isinstance(request.policy, ExploringSource) else request.policy
    record = served_record(config.policy, inner)
    rules = pin_rules(config, inner, request.env)
    with PolicyProcess(inner, record, rules, Address()) as process:
        # The exploration stays in the workers.
        policy: PolicySource = ServedSource(process.url, "", record, is_own=True)
        if isinstance(request.policy, ExploringSource):
            policy = replace(request.policy, source=policy)
        yield replace(request, policy=policy)


def served_record(spec: str, source: PolicySource) -> Record:
    """Return the description of a policy for the clients of its server: SPEC and record, without secrets."""
    record: Record = without_secrets({"spec": spec, **source.describe()})
    return record


@contextmanager
def serving(spec: str, source: PolicySource, address: Address) -> Iterator[PolicyProcess]:
    """Serve a policy at an address; the process ends when the context is left.

    Raises:
        RolloutError: The server cannot be started.
    """
    from rollout_cli.policies.serving.process import PolicyProcess  # noqa: PLC0415 - as above

    record = served_record(spec, source)
    path = record["path"]
    folders = (os.path.dirname(path),) if path else ()  # noqa: PTH120 - a string, as everywhere in pins
    with PolicyProcess(source, record, PinRules(folders=folders), address) as process:
        yield process
