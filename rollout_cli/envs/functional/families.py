"""The families of JAX environments that a SPEC names, such as `gymnax:CartPole-v1`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from rollout_cli.errors import EnvLoadError, misspelt
from rollout_cli.sources.loading import needing, reporting

FAMILIES = {
    "brax": "make",
    "craftax": "CraftaxEnv",
    "gymnax": "GymnaxEnv",
    "jumanji": "JumanjiEnv",
    "navix": "NavixEnv",
    "playground": "make",
    "xminigrid": "XminigridEnv",
}
"""The class or function, in the module of each family, that makes an environment from its name."""

MODULES = {"playground": "mujoco_playground"}
"""The module of a package, if the name differs."""


def is_family(spec: str) -> bool:
    """Return True if an env SPEC names an environment of a family."""
    family, colon, name = spec.partition(":")
    return bool(colon and name) and family in FAMILIES


def family_factory(spec: str) -> Callable[..., Any]:
    """Return the function from keyword arguments to the FunctionalEnv that a SPEC names.

    Raises:
        UsageError: The package of the family or JAX is not installed.
        EnvLoadError: Importing it fails.
    """
    family, _, name = spec.partition(":")
    problem = f"importing {family!r}, the package of {spec!r}, failed"
    needs = needing(family, MODULES.get(family, ""))
    # gymnax 1.0 imports six without requiring it.
    with reporting(EnvLoadError, problem, code="import-failed"), needing("jax"), needing("six"), needs:
        module = importlib.import_module(f"rollout_cli.envs.functional.{family}")
    return partial(getattr(module, FAMILIES[family]), name)


def check_name(family: str, name: str, names: Collection[str]) -> None:
    """Raise EnvLoadError unless a family has an environment of this name."""
    if name not in names:
        raise EnvLoadError(
            f"{family} has no environment {name!r}",
            code="env-unknown",
            hint=misspelt(name, names) or f"use one of: {', '.join(names)}",
        )
