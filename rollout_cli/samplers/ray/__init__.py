"""Workers as actors of a Ray cluster. Ray is imported only when used, since it is an optional dependency."""

from __future__ import annotations

import importlib
import os
from typing import Any

from rollout_cli.cores import WORKER_VARIABLES
from rollout_cli.errors import UsageError

INSTALL_HINT = "install rollout-collect and the packages of the policy and environment on each node"


def load_ray() -> Any:
    """Return the `ray` module; raise UsageError if Ray is not installed."""
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError:
        ray = None
    # A folder named `ray` in the working folder imports as a namespace package; Ray makes one in /tmp.
    if not hasattr(ray, "init"):
        raise UsageError(
            "RaySampler needs Ray, which is not installed",
            code="package-missing",
            hint='pip install "ray>=2.40"',
        )
    return ray


def worker_variables(ray: Any) -> dict[str, dict[str, str]]:
    """Return the `runtime_env` that sets the environment variables of worker processes in an actor.

    Values set in this process or by its connection to the cluster take precedence.
    """
    chosen = {**WORKER_VARIABLES, **os.environ, **ray.get_runtime_context().runtime_env.env_vars()}
    return {"env_vars": {name: chosen[name] for name in WORKER_VARIABLES}}
