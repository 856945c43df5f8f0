"""How fast `rollout` collects, beside bare loops and beside other tools. Run `python -m benchmarks --help`."""
