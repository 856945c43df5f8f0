"""Policies: the protocol, adapters for the objects that users have, and the sources that policies are loaded from."""

from rollout_cli.policies.adapt import adapt_policy, policy_class
from rollout_cli.policies.policy import AdaptedPolicy, Policy
from rollout_cli.policies.source import PolicySource, as_policy_source, policy_source

__all__ = [
    "AdaptedPolicy",
    "Policy",
    "PolicySource",
    "adapt_policy",
    "as_policy_source",
    "policy_class",
    "policy_source",
]
