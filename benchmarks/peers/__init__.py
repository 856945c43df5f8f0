"""Peers: other tools that step an environment with a policy, each installed in an environment of its own."""
