"""Policies: the protocol, adapters for objects that users have, and the sources that load policies."""
