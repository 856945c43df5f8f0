"""What the gallery needs: `ROLLOUT_TEST_GALLERY=1` asks for the rows whose packages the `test` extra leaves out.

Nothing is skipped: without the variable those rows do not exist; with it, a missing package is a failure.
"""

from __future__ import annotations

import os

WHOLE = os.environ.get("ROLLOUT_TEST_GALLERY") == "1"
"""Whether rows that need further packages are run."""

collect_ignore = [] if WHOLE else ["test_policies.py", "test_ray.py"]
