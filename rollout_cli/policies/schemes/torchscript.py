"""The scheme `torchscript`: a module that `torch.jit.save` wrote, such as a `policy.pt` of rsl_rl or d3rlpy."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping
from typing import Any

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.loading import needing
from rollout_cli.policies.policy import own_method
from rollout_cli.policies.schemes.files import FileScheme, PolicyFiles
from rollout_cli.policies.torch import TorchPolicy


def _load(
    files: PolicyFiles,
    options: Mapping[str, Any],  # noqa: ARG001
    env_spec: EnvSpec,
    *,
    deterministic: bool,
) -> TorchPolicy:
    with needing("torch"):
        import torch  # noqa: PLC0415 - only workers with such a policy need it
    jit: Any = torch.jit  # It has no types.
    with warnings.catch_warnings():
        # The user has the file already: how to write others is no news for a run.
        warnings.filterwarnings("ignore", "`torch.jit.load` is deprecated", DeprecationWarning)
        module = jit.load(io.BytesIO(files.data), map_location="cpu")
    is_stateful = own_method(module, "reset") is not None
    return graph_policy(
        module, str(module.inlined_graph), env_spec, deterministic=deterministic, row_by_row=is_stateful
    )


def graph_policy(
    module: Any, graph: str, env_spec: EnvSpec, *, deterministic: bool, row_by_row: bool
) -> TorchPolicy:
    """Return the policy of a module with a fixed graph, which is given as text too.

    One that draws does so from torch's global generator, which follows from the episode for one row alone.

    Raises:
        PolicyLoadError: If it draws, and may not.
    """
    draws = re.search(r"\baten(::|\.)(rand|normal|multinomial|bernoulli|poisson)", graph) is not None
    if draws and deterministic:
        raise no_deterministic_graph()
    return TorchPolicy(module, env_spec, deterministic=deterministic, row_by_row=row_by_row or draws)


def no_deterministic_graph() -> PolicyLoadError:
    """Return the error for a graph that draws where that is not wanted."""
    return PolicyLoadError(
        "the graph of the policy draws random numbers by itself, and has no deterministic mode",
        hint="omit {deterministic}, or export the mean action or the logits",
    )


TORCHSCRIPT = FileScheme("torchscript", "a TorchScript module", _load)
