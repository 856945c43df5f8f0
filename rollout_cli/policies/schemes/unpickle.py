"""Unpickling with a strict allow-list, which prevents a model's file from running code: `restricted_loads`."""

from __future__ import annotations

import io
import pickle
import re
from dataclasses import dataclass
from typing import Any

import cloudpickle

from rollout_cli.errors import PolicyLoadError

_NAMES = re.compile(
    r"collections\.OrderedDict|torch\.device|numpy\.(dtype|ndarray)|"
    r"numpy\._?core\.multiarray\.(_reconstruct|scalar)|numpy\._?core\.numeric\._frombuffer|"
    r"numpy\.random\._pickle\.__(bit_)?generator_ctor|numpy\.random\._pcg64\.PCG64|"
    r"numpy\.random\.bit_generator\.(SeedSequence|__pyx_unpickle_SeedSequence)"
)
"""Names that only create values. Unpickling imports the named module, so the patterns match full names."""
_CLASSES = re.compile(r"(gymnasium\.spaces|torch\.optim|torch\.nn\.modules)\.[a-z]\w*")
"""Modules whose classes are allowed if they are defined there, not imported there."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The classes of a library that its files may contain.

    Attributes:
        library: The name of the library, for messages.
        modules: A pattern for the full names of modules.
        classes: A pattern for the full names of classes.
        what: The content of the file, for messages.
        hint: The hint for a file with other classes.
    """

    library: str
    modules: str = ""
    classes: str = ""
    what: str = "the model"
    hint: str = "pass {policy_kwargs=trust=true} if you trust the file, which may then run any code"


SB3_CLASSES = Allowed(
    "Stable-Baselines3",
    r"(stable_baselines3|sb3_contrib)(\.[a-z]\w*){0,2}\.policies|stable_baselines3\.common\."
    r"(torch_layers|running_mean_std|vec_env\.vec_normalize|sb2_compat\.rmsprop_tf_like)",
    r"\w+Policy|NatureCNN|CombinedExtractor|FlattenExtractor|RMSpropTFLike|VecNormalize|RunningMeanStd",
)


class _Restricted(pickle.Unpickler):
    def __init__(self, data: bytes, allowed: Allowed) -> None:
        super().__init__(io.BytesIO(data))
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        allowed = self._allowed
        if "." not in name:
            if _NAMES.fullmatch(f"{module}.{name}"):
                return super().find_class(module, name)
            is_model = re.fullmatch(allowed.modules, module) and re.fullmatch(allowed.classes, name)
            if is_model or _CLASSES.fullmatch(module):
                item = super().find_class(module, name)
                # A module also has its imports as attributes: `torch.nn.modules.module` has `torch`.
                if isinstance(item, type) and (is_model or item.__module__ == module):
                    return item
        raise PolicyLoadError(
            f"{allowed.what} contains {module}.{name}, which is not a part of {allowed.library}",
            code="file-may-run-code",
            hint=allowed.hint,
        )


def restricted_loads(data: bytes, *, trust: bool, allowed: Allowed = SB3_CLASSES) -> Any:
    """Unpickle values, spaces, and classes of torch and of one library.

    Args:
        data: The pickle.
        allowed: The classes of the library.
        trust: Allow all classes and functions, and so any code.

    Raises:
        PolicyLoadError: The pickle contains another class or function, and `trust` is false.
    """
    return cloudpickle.loads(data) if trust else _Restricted(data, allowed).load()
