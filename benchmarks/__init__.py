"""Benchmarks of `rollout` against bare loops and other tools. Run `python -m benchmarks --help`."""
