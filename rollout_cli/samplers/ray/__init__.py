"""Workers as actors of a Ray cluster. Ray is imported where it is used: who samples without it needs none."""

from __future__ import annotations

import importlib
import os
from typing import Any

from rollout_cli.cores import WORKER_VARIABLES
from rollout_cli.errors import UsageError

INSTALL_HINT = "each node needs rollout-collect, and the packages of the policy and the environment"


def load_ray() -> Any:
    """Return the module; UsageError where it is not installed."""
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError:
        ray = None
    # A folder called `ray`, which Ray itself makes in /tmp, is a package of that name.
    if not hasattr(ray, "init"):
        raise UsageError(
            "RaySampler needs Ray, which is not installed",
            code="package-missing",
            hint='pip install "ray>=2.40"',
        )
    return ray


def worker_variables(ray: Any) -> dict[str, dict[str, str]]:
    """Return the option of an actor that gives it the environment variables of worker processes.

    What this process or its connection to the cluster sets counts, as there.
    """
    chosen = {**WORKER_VARIABLES, **os.environ, **ray.get_runtime_context().runtime_env.env_vars()}
    return {"env_vars": {name: chosen[name] for name in WORKER_VARIABLES}}
