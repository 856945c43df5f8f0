"""The checks of `rollout check`: each is one function that yields findings, in a table by its name."""
