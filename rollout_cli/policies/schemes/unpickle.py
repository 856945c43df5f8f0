"""Unpickling with a strict allow-list, so that nothing in a model's file runs: see `restricted_loads`."""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

import cloudpickle

from rollout_cli.errors import PolicyLoadError

_NAMES = {
    "collections": {"OrderedDict"},
    "numpy": {
        *("dtype", "ndarray", "_frombuffer", "_reconstruct", "scalar", "PCG64", "SeedSequence"),
        *("__generator_ctor", "__bit_generator_ctor", "__pyx_unpickle_SeedSequence"),
    },
}
"""By top-level package, names that only make values."""
_CLASSES = ("gymnasium.spaces.", "torch.optim.", "torch.nn.modules.")
"""Modules whose own classes may be named; what they import may not."""
_MODELS = ("stable_baselines3.", "sb3_contrib.")
_MODEL_CLASSES = re.compile(r"\w+Policy|NatureCNN|CombinedExtractor|FlattenExtractor|RMSpropTFLike")
_STATISTICS = {
    ("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize"),
    ("stable_baselines3.common.running_mean_std", "RunningMeanStd"),
}


class Statistics:
    """Stands for a VecNormalize and its parts: it has their attributes, and none of their code."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _STATISTICS:
            return Statistics
        if "." not in name:
            if name in _NAMES.get(module.partition(".")[0], ()):
                return super().find_class(module, name)
            is_model = module.startswith(_MODELS) and _MODEL_CLASSES.fullmatch(name)
            if is_model or module.startswith(_CLASSES):
                found = super().find_class(module, name)
                # A module also holds what it imports: `torch.nn.modules.module` has `torch`, and that has `os`.
                if isinstance(found, type) and (is_model or found.__module__ == module):
                    return found
        raise PolicyLoadError(
            f"the model is made of {module}.{name}, which is no part of Stable-Baselines3",
            hint="if you trust the file, which may then run any code: {policy_kwargs=trust=true}",
        )


def restricted_loads(data: bytes, *, trust: bool) -> Any:
    """Unpickle values, spaces, and names of classes of torch and Stable-Baselines3.

    Args:
        data: The pickle.
        trust: Whether it may name anything, and so run any code.

    Raises:
        PolicyLoadError: If it names anything else, and may not.
    """
    return cloudpickle.loads(data) if trust else _Restricted(io.BytesIO(data)).load()
