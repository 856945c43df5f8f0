"""Policies in another process: `--policy-process` for one run, and `rollout serve` for any client."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rollout_cli.envs.source import EnvSource
from rollout_cli.keywords import Record
from rollout_cli.options.config import CollectConfig
from rollout_cli.policies.explore import ExploringSource
from rollout_cli.policies.policy import PolicySource
from rollout_cli.policies.random import RandomSource
from rollout_cli.policies.schemes.serve import ServedSource
from rollout_cli.redact import without_secrets
from rollout_cli.run.request import pin_rules
from rollout_cli.sources.pins import PinRules

if TYPE_CHECKING:
    from rollout_cli.policies.serving.process import Address, PolicyProcess


@contextmanager
def policy_process(config: CollectConfig, policy: PolicySource, env: EnvSource) -> Iterator[PolicySource]:
    """Yield the policy of a run; with the option `policy_process`, it is loaded in another process."""
    # A random policy has nothing to load, and acts inside the program of a JAX environment.
    if not config.policy_process or isinstance(policy, RandomSource):
        yield policy
        return
    from rollout_cli.policies.serving.process import Address, PolicyProcess  # noqa: PLC0415 - imports asyncio

    inner = policy.source if isinstance(policy, ExploringSource) else policy
    record = served_record(config.policy, inner)
    # With a token, so that other users of the machine cannot use the policy.
    token = secrets.token_urlsafe()
    with PolicyProcess(inner, record, pin_rules(config, inner, env), Address(token=token)) as process:
        served = ServedSource(process.url, token, record, is_own=True)
        # The exploration stays in the workers.
        yield replace(policy, source=served) if isinstance(policy, ExploringSource) else served


def served_record(spec: str, source: PolicySource) -> Record:
    """Return the description of a policy for the clients of its server: SPEC and record, without secrets."""
    record: Record = without_secrets({"spec": spec, **source.describe()})
    return record


def serving(spec: str, source: PolicySource, address: Address) -> PolicyProcess:
    """Return the server of a policy at an address, a context manager that starts and ends it."""
    from rollout_cli.policies.serving.process import PolicyProcess  # noqa: PLC0415 - as above

    record = served_record(spec, source)
    path = record["path"]
    folders = (os.path.dirname(path),) if path else ()  # noqa: PTH120 - a string, as everywhere in pins
    return PolicyProcess(source, record, PinRules(folders=folders), address)
