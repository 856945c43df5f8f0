"""The checks of `rollout check`: functions that yield findings, in tables by name."""
