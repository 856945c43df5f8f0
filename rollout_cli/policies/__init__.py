"""Policies: the protocol, adapters for what users have, and the sources that policies are loaded from."""

from rollout_cli.policies.adapters import adapt_policy, policy_class
from rollout_cli.policies.base import Policy, PolicySource, Shortcut, shortcut_of
from rollout_cli.policies.conformance import check_policy
from rollout_cli.policies.sources import as_policy_source, file_warnings, policy_source

__all__ = [
    "Policy",
    "PolicySource",
    "Shortcut",
    "adapt_policy",
    "as_policy_source",
    "check_policy",
    "file_warnings",
    "policy_class",
    "policy_source",
    "shortcut_of",
]
