"""What the gallery needs: `ROLLOUT_TEST_GALLERY=1` and its like ask for the rows that need more packages.

Nothing is skipped: without the variable those rows do not exist; with it, a missing package is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

WHOLE = os.environ.get("ROLLOUT_TEST_GALLERY") == "1"
"""Whether rows that need further packages are run."""

FURTHER = (
    "buffers",
    "check",
    "evaluate",
    "films",
    "hub",
    "learning",
    "loaders",
    "object_store",
    "onnx",
    "pins",
    "policies",
    "sb3",
    "stacks",
    "states",
    "torch_files",
    "training",
    "zoo",
)

# Ray has a process of its own: Box2D crashes where Ray was loaded before it.
collect_ignore = [] if WHOLE else [f"test_{name}.py" for name in FURTHER]
if os.environ.get("ROLLOUT_TEST_RAY") != "1":
    collect_ignore.append("test_ray.py")
# So has JAX, which warns at each fork of a process that uses it.
if os.environ.get("ROLLOUT_TEST_JAX") != "1":
    collect_ignore.append("test_arrays.py")
if os.environ.get("ROLLOUT_TEST_PACKAGES") != "1":  # Set by `.ci/matrix/environments`.
    collect_ignore.append("test_packages.py")
# Each of these has an environment of its own, since their pins clash: `.ci/matrix/libraries`.
LIBRARIES = (
    "d3rlpy",
    "d4rl",
    "functional",
    "functional_commands",
    "functional_workers",
    "jax_families",
    "lerobot",
    "lerobot_export",
    "lerobot_policies",
    "minari",
    "offline_project",
    "ogbench",
    "openpi",
    "rllib",
    "robomimic",
)
LIBRARY = os.environ.get("ROLLOUT_TEST_LIBRARY", "")
collect_ignore += [f"test_{name}.py" for name in LIBRARIES if name != LIBRARY]


@pytest.fixture(scope="session", autouse=True)
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The credentials of the S3 servers of these tests, and where Stable-Baselines3 writes its logs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SB3_LOGDIR", str(tmp_path_factory.mktemp("logs")))
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        yield
