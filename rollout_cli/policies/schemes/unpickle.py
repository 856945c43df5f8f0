"""Unpickling with a strict allow-list, so that nothing in a model's file runs: see `restricted_loads`."""

from __future__ import annotations

import io
import pickle
import re
from dataclasses import dataclass
from typing import Any

import cloudpickle

from rollout_cli.errors import PolicyLoadError

_NAMES = {
    "collections": {"OrderedDict"},
    "numpy": {
        *("dtype", "ndarray", "_frombuffer", "_reconstruct", "scalar", "PCG64", "SeedSequence"),
        *("__generator_ctor", "__bit_generator_ctor", "__pyx_unpickle_SeedSequence"),
    },
    "torch": {"device"},
}
"""By top-level package, names that only make values."""
_CLASSES = ("gymnasium.spaces.", "torch.optim.", "torch.nn.modules.")
"""Modules whose own classes may be named; what they import may not."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The classes of a library that its files may name.

    Attributes:
        library: Its name, for messages.
        modules: The beginnings of its modules' names.
        classes: What the whole name of a class matches.
        what: What the file holds, for messages.
        hint: What to do about a file that names another one.
    """

    library: str
    modules: tuple[str, ...] = ()
    classes: str = ""
    what: str = "the model"
    hint: str = "if you trust the file, which may then run any code: {policy_kwargs=trust=true}"


SB3_CLASSES = Allowed(
    "Stable-Baselines3",
    ("stable_baselines3.", "sb3_contrib."),
    r"\w+Policy|NatureCNN|CombinedExtractor|FlattenExtractor|RMSpropTFLike|VecNormalize|RunningMeanStd",
)


class _Restricted(pickle.Unpickler):
    def __init__(self, data: bytes, allowed: Allowed) -> None:
        super().__init__(io.BytesIO(data))
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        allowed = self._allowed
        if "." not in name:
            if name in _NAMES.get(module.partition(".")[0], ()):
                return super().find_class(module, name)
            is_model = module.startswith(allowed.modules) and re.fullmatch(allowed.classes, name)
            if is_model or module.startswith(_CLASSES):
                item = super().find_class(module, name)
                # A module also holds what it imports: `torch.nn.modules.module` has `torch`, that has `os`.
                if isinstance(item, type) and (is_model or item.__module__ == module):
                    return item
        raise PolicyLoadError(
            f"{allowed.what} is made of {module}.{name}, which is no part of {allowed.library}",
            hint=allowed.hint,
        )


def restricted_loads(data: bytes, *, trust: bool, allowed: Allowed = SB3_CLASSES) -> Any:
    """Unpickle values, spaces, and names of classes of torch and of a library.

    Args:
        data: The pickle.
        allowed: The classes of the library.
        trust: Whether it may name anything, and so run any code.

    Raises:
        PolicyLoadError: If it names anything else, and may not.
    """
    return cloudpickle.loads(data) if trust else _Restricted(data, allowed).load()
