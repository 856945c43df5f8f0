"""Benchmarks: `rollout` beside the bare loop and beside its peers. `python -m benchmarks --list` tells what there is.

Nothing here is part of the wheel. The programs that are timed are processes of their own; what times them imports the
standard library alone, so that it neither disturbs them nor adds to their peak memory.
"""
