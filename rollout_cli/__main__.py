"""`python -m rollout_cli` is `rollout`."""

import sys

from rollout_cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
