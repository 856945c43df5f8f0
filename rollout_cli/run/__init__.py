"""Collecting, resuming, checking, replaying, rendering and merging: one module for each use case."""
