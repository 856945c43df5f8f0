"""The console script `rollout`.

A worker process that is spawned or comes from a fork server runs the console script again, under another
name, and so imports this module. It must therefore import nothing: the rest is loaded when `main` is called.
"""

import gc
import sys


def main() -> int:
    """Run the command line of this process and return its exit code."""
    gc.set_threshold(10_000)  # What is imported stays: to look for garbage in it takes 7 % of the start.
    try:
        from rollout_cli.cli.app import run  # noqa: PLC0415 - see above

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        # It came while modules were loaded, or while the error of another interruption was shown: nothing to
        # save.
        return 130
