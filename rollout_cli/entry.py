"""The console script `rollout`.

Worker processes, both spawned and forked by the fork server, run the console script again under another name
and import this module. Its imports are therefore minimal; `main` imports the rest.
"""

import gc
import sys


def main() -> int:
    """Run the command line of this process and return its exit code."""
    # Imported modules stay in memory; searching them for garbage takes 7 % of the start.
    gc.set_threshold(10_000)
    try:
        from rollout_cli.cli.app import run  # noqa: PLC0415 - see above

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        # Raised while modules were imported, or while an earlier interruption was reported: nothing to save.
        return 130
