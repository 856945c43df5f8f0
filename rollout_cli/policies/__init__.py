"""Policies: the protocol, adapters for objects that users have, and the sources that load policies."""

from rollout_cli.policies.adapt import adapt_policy as adapt_policy
from rollout_cli.policies.adapt import policy_class as policy_class
from rollout_cli.policies.policy import AdaptedPolicy as AdaptedPolicy
from rollout_cli.policies.policy import Policy as Policy
from rollout_cli.policies.source import PolicySource as PolicySource
from rollout_cli.policies.source import is_policy_source as is_policy_source
from rollout_cli.policies.source import policy_source as policy_source
