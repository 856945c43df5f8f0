"""`python -m rollout_cli` is `rollout`."""

import sys

from rollout_cli.entry import main

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `python -m` puts the working folder first, where a file of the user's may have the name of a
        # library's module.
        sys.path.append(sys.path.pop(0))
    sys.exit(main())
