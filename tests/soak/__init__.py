"""The long tests: `python -m tests.soak` runs all of them, `--tenth` a tenth, drawn from a fixed seed."""
