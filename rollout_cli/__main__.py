"""Run `rollout` as `python -m rollout_cli`."""

import sys

from rollout_cli.entry import main

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `python -m` puts the working folder first, and a user's file there may shadow a library.
        sys.path.append(sys.path.pop(0))
    sys.exit(main())
