"""The schemes of what torch saves: `torchscript` for what `torch.jit.save` wrote, and `torch` for all else.

That is exported programs, state dicts, and whole modules.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.loading import first_line, needing
from rollout_cli.policies.networks import TorchPolicy, is_torch_module
from rollout_cli.policies.policy import own_method
from rollout_cli.policies.schemes.files import FileScheme, PolicyFiles
from rollout_cli.policies.schemes.recognise import pickled_texts
from rollout_cli.policies.schemes.state_dict import filled_module

_PLAIN = ("collections ", "torch ", "torch._utils ")
"""The modules of what a state dict is made of."""


def _load(files: PolicyFiles, options: Mapping[str, Any], env_spec: EnvSpec, *, deterministic: bool) -> Any:
    with needing("torch"):
        import torch  # noqa: PLC0415 - only workers with such a policy need it
    if _member(files.data, "/models/model.json") is not None:
        return _exported_program(torch, files.data, env_spec, deterministic=deterministic)
    is_trusted = options.get("trust", False)
    try:
        loaded = torch.load(io.BytesIO(files.data), map_location="cpu", weights_only=not is_trusted)
    except pickle.UnpicklingError as error:
        if is_trusted:
            raise
        name = next(_classes(files.data), first_line(error))
        raise PolicyLoadError(
            f"{files.path} is more than tensors: it names {name}, and to load that may run any code",
            hint="save the module's state_dict(), and add {policy_kwargs=factory=module:attr}; "
            "for a file that you trust, {policy_kwargs=trust=true}",
        ) from error
    factory = options.get("factory")
    if not is_torch_module(loaded):
        return filled_module(loaded, files, factory, env_spec)
    if factory is not None:
        raise PolicyLoadError(f"{files.path} is a whole module, and needs no factory", hint="omit factory")
    return loaded


def _exported_program(torch: Any, data: bytes, env_spec: EnvSpec, *, deterministic: bool) -> TorchPolicy:
    with tensors_alone():
        program = torch.export.load(io.BytesIO(data))
    # Its first dimension is the rows. Without a dimension that may vary, it was exported for one.
    is_fixed = not program.range_constraints
    return _graph_policy(
        program.module(), str(program.graph), env_spec, deterministic=deterministic, row_by_row=is_fixed
    )


def _graph_policy(
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


@contextlib.contextmanager
def tensors_alone() -> Iterator[None]:
    """Let what calls `torch.load`, and has no such argument, unpickle tensors alone."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ.update({name: before} if before is not None else {})


def _member(data: bytes, ending: str) -> bytes | None:
    """Return the member of a zip file whose name ends so; None where there is none, or no zip file."""
    if not data.startswith(b"PK\3\4"):
        return None
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        names = [name for name in file.namelist() if name.endswith(ending)]
        return file.read(names[0]) if names else None


def _classes(data: bytes) -> Iterator[str]:
    """Yield, as `module:attr`, what the file's pickle names besides what tensors are made of."""
    for text in pickled_texts(_member(data, "/data.pkl") or data):
        if re.fullmatch(r"[\w.]+ [\w.]+", text) and not text.startswith(_PLAIN):
            yield text.replace(" ", ":")


def _load_torchscript(
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
    return _graph_policy(
        module, str(module.inlined_graph), env_spec, deterministic=deterministic, row_by_row=is_stateful
    )


TORCH = FileScheme("torch", "a file of torch", _load, {"factory": str, "trust": bool})
TORCHSCRIPT = FileScheme("torchscript", "a TorchScript module", _load_torchscript)
