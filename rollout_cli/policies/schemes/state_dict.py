"""State dicts: tensors by name, without their network. A factory of the user's makes that.

The scheme `safetensors` is that of files with nothing else.
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
"""The entries of checkpoints that hold the state dict of a policy."""
_RSL_RL = (
    "a checkpoint of rsl_rl",
    "its own export, policy.pt or policy.onnx, needs no factory; else ",
)
_MAKERS = {
    "actor_state_dict": _RSL_RL,
    "infos": _RSL_RL,  # Of older versions.
    "q_funcs": ("what d3rlpy's save_model wrote", "export with save_policy('policy.pt'); else "),
    "actor_mean": (
        "a state dict like CleanRL's",
        (
            "the statistics of a NormalizeObservation are not in it, "
            "and the actions are of no use without them; "
        ),
    ),
}
"""By a key, or the beginning of one: what the file is, and a hint."""
_SHOWN = 6


def filled_module(loaded: Any, files: PolicyFiles, factory: str | None, env_spec: EnvSpec) -> Any:
    """Return the module that a factory makes, with the one state dict of a file that fits it in all shapes.

    Args:
        loaded: A state dict, a checkpoint with some, or a tuple of them. Names may have the prefixes of
            DistributedDataParallel and torch.compile.
        files: The files that it is from.
        factory: The user's `module:attr`.
        env_spec: What the factory is called with, where it takes it.

    Raises:
        PolicyLoadError: If there is no factory, or no state dict that fits its module, or several.
    """
    candidates = dict(_state_dicts(loaded))
    if factory is None:
        raise _missing_factory(loaded, candidates, files)
    module = instantiate(Source(factory, None, files.folder, None).load(PolicyLoadError), env_spec, {})
    if own_method(module, "state_dict") is None or own_method(module, "load_state_dict") is None:
        raise PolicyLoadError(
            f"{factory} made {named(module)}, which has no load_state_dict",
            code="network-type",
            hint="let it return the torch.nn.Module that was trained",
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
    """Yield the state dicts of a file by where they are, in plain names."""
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
    """Return tensors by name, without the prefixes of DistributedDataParallel and torch.compile."""
    names = [name.replace("_orig_mod.", "") for name in tensors]
    if all(name.startswith("module.") for name in names):
        names = [name.removeprefix("module.") for name in names]
    return dict(zip(names, tensors.values(), strict=True))


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(getattr(tensor, "shape", ())) for name, tensor in tensors.items()}


def _missing_factory(loaded: Any, candidates: Mapping[str, Tensors], files: PolicyFiles) -> PolicyLoadError:
    """Return the error that shows the first tensors, and who seems to have made the file."""
    shapes = _shapes(next(iter(candidates.values()), {}))
    names = [*shapes]
    if isinstance(loaded, Mapping):
        names = [*map(str, loaded), *names]
    description, hint = _maker(names)
    entries = [f"{name} {shape}" for name, shape in shapes.items()] or names
    if len(entries) > _SHOWN:
        entries = [*entries[:_SHOWN], "…"]
    return PolicyLoadError(
        f"{files.path} is {description}, without its network: {', '.join(entries)}",
        code="network-missing",
        hint=f"{hint}name what makes the network: {{policy_kwargs=factory=module:attr}}",
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
            hint="save the one that is meant into a file of its own",
        )
    details = ""
    for entry, tensors in shapes.items():
        details += f"{entry}:\n"
        details += "".join(f"  {name} {shape}\n" for name, shape in tensors.items())
    return PolicyLoadError(
        f"no state dict of {files.path} fits the module of {factory} in all names and shapes",
        code="state-dict-mismatch",
        hint="make the module as it was in training; both are listed below",
        details=details,
    )


def _load(
    files: PolicyFiles,
    options: Keywords,
    env_spec: EnvSpec,
    *,
    deterministic: bool,  # noqa: ARG001 - the module that is returned is adapted to it
) -> Any:
    from safetensors.torch import load  # noqa: PLC0415 - only workers with such a policy need it

    return filled_module(load(files.data), files, options.get("factory"), env_spec)


SAFETENSORS = FileScheme(
    "safetensors",
    "a file of safetensors",
    _load,
    {"factory": str},
    needs={"safetensors": "safetensors", "torch": "torch"},
)
