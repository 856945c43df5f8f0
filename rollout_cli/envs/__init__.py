"""Environments: their sources, updates and records."""
