"""The long tests: `python -m tests.soak` runs all of them, `--tenth` a tenth; the seed that it prints repeats a run."""
