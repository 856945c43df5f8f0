"""Policies: the protocol, adapters for the objects that users have, and the sources that policies are loaded from."""
