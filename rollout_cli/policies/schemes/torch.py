"""The schemes `torchscript`, for files of `torch.jit.save`, and `torch`, for other files of torch.

The latter are exported programs, state dicts, and complete modules.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.keywords import Keywords
from rollout_cli.policies.networks import TorchPolicy, is_torch_module
from rollout_cli.policies.schemes.files import FileScheme, PolicyFiles
from rollout_cli.policies.schemes.state_dict import filled_module
from rollout_cli.sources.loading import first_line


def _load(files: PolicyFiles, options: Keywords, env_spec: EnvSpec, *, deterministic: bool) -> Any:
    import torch  # noqa: PLC0415 - only workers with such a policy need it

    if _is_exported(files.data):
        with tensors_alone():
            program = torch.export.load(io.BytesIO(files.data))
        # The first dimension is the batch. Without a dynamic dimension, the program is for one row.
        is_fixed = not program.range_constraints
        return _graph_policy(
            program.module(), str(program.graph), env_spec, deterministic=deterministic, row_by_row=is_fixed
        )
    is_trusted = options.get("trust", False)
    try:
        loaded = torch.load(io.BytesIO(files.data), map_location="cpu", weights_only=not is_trusted)
    except pickle.UnpicklingError as error:
        if is_trusted:
            raise
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))  # From torch's message.
        name = refused[1] if refused else first_line(error)
        raise PolicyLoadError(
            f"{files.path} contains {name}, which may run any code when it is loaded; expected only tensors",
            code="file-may-run-code",
            hint="save the module's state_dict() and add {policy_kwargs=factory=module:attr}, "
            "or add {policy_kwargs=trust=true} if you trust the file",
        ) from error
    factory = options.get("factory")
    if not is_torch_module(loaded):
        return filled_module(loaded, files, factory, env_spec)
    if factory is not None:
        raise PolicyLoadError(
            f"{files.path} is a complete module, which does not take a factory",
            code="policy-options",
            hint="omit factory",
        )
    return loaded


def _graph_policy(
    module: Any, graph: str, env_spec: EnvSpec, *, deterministic: bool, row_by_row: bool = False
) -> TorchPolicy:
    """Return the policy of a module with a fixed graph; `graph` is the graph as a string.

    A stochastic graph samples from torch's global generator, which is seeded per episode, so it acts row by
    row.

    Raises:
        PolicyLoadError: The graph is stochastic, and `deterministic` is true.
    """
    draws = re.search(r"\baten(::|\.)(rand|normal|multinomial|bernoulli|poisson)", graph) is not None
    if draws and deterministic:
        raise no_deterministic_graph()
    return TorchPolicy(module, env_spec, deterministic=deterministic, row_by_row=row_by_row or draws)


def no_deterministic_graph() -> PolicyLoadError:
    """Return the error for a stochastic graph in deterministic mode."""
    return PolicyLoadError(
        "the graph of the policy samples random numbers and has no deterministic mode",
        code="policy-not-deterministic",
        hint="omit {deterministic}, or export the mean action or the logits",
    )


@contextlib.contextmanager
def tensors_alone() -> Iterator[None]:
    """Restrict calls of `torch.load` in libraries to tensors (`weights_only`)."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    previous = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if previous is not None:
            os.environ[name] = previous


def _is_exported(data: bytes) -> bool:
    """Return True if `torch.export.save` wrote the file."""
    if not data.startswith(b"PK\3\4"):
        return False
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return any(name.endswith("/models/model.json") for name in file.namelist())


def _load_torchscript(
    files: PolicyFiles,
    options: Keywords,  # noqa: ARG001
    env_spec: EnvSpec,
    *,
    deterministic: bool,
) -> TorchPolicy:
    import torch  # noqa: PLC0415 - only workers with such a policy need it

    jit: Any = torch.jit  # Its functions are not annotated.
    with warnings.catch_warnings():
        # The warning is about saving models, and the user has already saved this one.
        warnings.filterwarnings("ignore", "`torch.jit.load` is deprecated", DeprecationWarning)
        module = jit.load(io.BytesIO(files.data), map_location="cpu")
    return _graph_policy(module, str(module.inlined_graph), env_spec, deterministic=deterministic)


_NEEDS = {"torch": "torch"}
TORCH = FileScheme("torch", "a torch file", _load, {"factory": str, "trust": bool}, needs=_NEEDS)
TORCHSCRIPT = FileScheme("torchscript", "a TorchScript module", _load_torchscript, needs=_NEEDS)
