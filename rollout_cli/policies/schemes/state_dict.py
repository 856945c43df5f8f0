"""State dicts, which are tensors by name; the user's factory builds the network.

The scheme `safetensors` loads files that contain only a state dict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.keywords import Keywords
from rollout_cli.policies.adapt import instantiate
from rollout_cli.policies.policy import named, own_method
from rollout_cli.policies.schemes.files import FileScheme, PolicyFiles
from rollout_cli.sources.loading import Source

Tensors = Mapping[str, Any]
"""Tensors, or their shapes, by name."""
_ENTRIES = (
    "model",
    "state_dict",
    "model_state_dict",
    "model_weights",
    "actor",
    "actor_state_dict",
    "policy",
    "policy_state_dict",
)
"""The keys of checkpoints whose values are the state dict of a policy."""
_RSL_RL = (
    "an rsl_rl checkpoint",
    "use the export of rsl_rl, policy.pt or policy.onnx, which needs no factory; or ",
)
_MAKERS = {
    "actor_state_dict": _RSL_RL,
    "infos": _RSL_RL,  # Of older versions.
    "q_funcs": ("a file of d3rlpy's save_model", "export with save_policy('policy.pt'); or "),
    "actor_mean": (
        "a CleanRL state dict",
        (
            "add the statistics of NormalizeObservation, which the file lacks, "
            "if the training used that wrapper; "
        ),
    ),
}
"""By the prefix of a key: the kind of the file, and the start of a hint."""
_SHOWN = 6


def filled_module(loaded: Any, files: PolicyFiles, factory: str | None, env_spec: EnvSpec) -> Any:
    """Return the module of a factory, filled with the state dict of a file whose names and shapes match.

    Args:
        loaded: A state dict, a checkpoint with state dicts, or a tuple of them. Names may have the prefixes of
            DistributedDataParallel and torch.compile.
        files: The files of the policy.
        factory: The user's `module:attr`.
        env_spec: The argument of the factory, if it has an argument `env_spec`.

    Raises:
        PolicyLoadError: The factory is missing, or not exactly one state dict fits its module.
    """
    candidates = dict(_state_dicts(loaded))
    if factory is None:
        raise _missing_factory(loaded, candidates, files)
    module = instantiate(Source(factory, None, files.folder, None).load(PolicyLoadError), env_spec, {})
    if own_method(module, "state_dict") is None or own_method(module, "load_state_dict") is None:
        raise PolicyLoadError(
            f"{factory} returned {named(module)}, expected a torch.nn.Module",
            code="network-type",
            hint="return the torch.nn.Module that was trained",
        )
    own_tensors = module.state_dict()
    expected = _shapes(_with_plain_names(own_tensors))
    shapes = {entry: _shapes(tensors) for entry, tensors in candidates.items()}
    fitting = [entry for entry in shapes if shapes[entry] == expected]
    if len(fitting) != 1:
        raise _mismatch(files, factory, fitting, {"the module": expected, **shapes})
    tensors = candidates[fitting[0]]
    module.load_state_dict({name: tensors[plain] for name, plain in zip(own_tensors, expected, strict=True)})
    return module


def _state_dicts(loaded: Any) -> Iterator[tuple[str, Tensors]]:
    """Yield the place in the file and the content of each state dict, with plain names."""
    entries: dict[str, Any] = {"the file": loaded}
    if isinstance(loaded, Mapping):
        entries |= {f"its {key!r}": loaded[key] for key in _ENTRIES if key in loaded}
    elif isinstance(loaded, tuple | list):
        entries = {f"its item {place}": item for place, item in enumerate(loaded)}
    for entry, tensors in entries.items():
        if (
            isinstance(tensors, Mapping)
            and tensors
            and all(hasattr(item, "shape") for item in tensors.values())
        ):
            yield entry, _with_plain_names(tensors)


def _with_plain_names(tensors: Tensors) -> Tensors:
    """Return the tensors with names without the prefixes of DistributedDataParallel and torch.compile."""
    names = [name.replace("_orig_mod.", "") for name in tensors]
    if all(name.startswith("module.") for name in names):
        names = [name.removeprefix("module.") for name in names]
    return dict(zip(names, tensors.values(), strict=True))


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(getattr(tensor, "shape", ())) for name, tensor in tensors.items()}


def _missing_factory(loaded: Any, candidates: Mapping[str, Tensors], files: PolicyFiles) -> PolicyLoadError:
    """Return the error for a state dict without factory: it lists the first tensors and the likely library."""
    shapes = _shapes(next(iter(candidates.values()), {}))
    names = [*shapes]
    if isinstance(loaded, Mapping):
        names = [*map(str, loaded), *names]
    description, hint = _maker(names)
    entries = [f"{name} {shape}" for name, shape in shapes.items()] or names
    if len(entries) > _SHOWN:
        entries = [*entries[:_SHOWN], "…"]
    return PolicyLoadError(
        f"{files.path} is {description} without a network: {', '.join(entries)}",
        code="network-missing",
        hint=f"{hint}pass a factory of the network: {{policy_kwargs=factory=module:attr}}",
    )


def _maker(names: list[str]) -> tuple[str, str]:
    for key, maker in _MAKERS.items():
        if any(name.startswith(key) for name in names):
            return maker
    return "tensors", ""


def _mismatch(
    files: PolicyFiles, factory: str, fitting: list[str], shapes: Mapping[str, Tensors]
) -> PolicyLoadError:
    if fitting:
        return PolicyLoadError(
            f"several state dicts of {files.path} fit the module of {factory}: {', '.join(fitting)}",
            code="state-dict-ambiguous",
            hint="save the state dict of the policy to a separate file",
        )
    details = ""
    for entry, tensors in shapes.items():
        details += f"{entry}:\n"
        details += "".join(f"  {name} {shape}\n" for name, shape in tensors.items())
    return PolicyLoadError(
        f"no state dict of {files.path} has the names and shapes of the module of {factory}",
        code="state-dict-mismatch",
        hint="build the module as in training; names and shapes are listed below",
        details=details,
    )


def _load(
    files: PolicyFiles,
    options: Keywords,
    env_spec: EnvSpec,
    *,
    deterministic: bool,  # noqa: ARG001 - `adapt_policy` handles it
) -> Any:
    from safetensors.torch import load  # noqa: PLC0415 - only workers with such a policy need it

    return filled_module(load(files.data), files, options.get("factory"), env_spec)


SAFETENSORS = FileScheme(
    "safetensors",
    "a safetensors file",
    _load,
    {"factory": str},
    needs={"safetensors": "safetensors", "torch": "torch"},
)
