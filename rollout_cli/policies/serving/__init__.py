"""Policies in another process: messages, the server, and the client's connection."""
