"""Datasets in the formats of other tools, read as episodes and written as datasets of `rollout`."""
