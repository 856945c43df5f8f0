"""Recognising policy files by their content: the first bytes, members of a zip, names in a pickle.

Nothing is loaded or run. The suffix is looked at last.
"""

from __future__ import annotations

import contextlib
import io
import pickletools
import re
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePath

from rollout_cli.errors import PolicyLoadError

_WRAP = "load it in a function, and name that as module:attr: docs/policies.md shows how"
_REBUILD = "rebuild the network in a function, and name that as module:attr: docs/policies.md shows how"
ADVICE = {
    "keras": ("a Keras model", _WRAP),
    "hdf5": ("an HDF5 file, a Keras model or a dataset, and no policy", _WRAP),
    "savedmodel": ("a SavedModel of TensorFlow", _WRAP),
    "orbax": ("an orbax checkpoint, arrays without their network", _REBUILD),
    "flax": ("a msgpack file of flax, arrays without their network", _REBUILD),
    "brax": ("a parameter file of Brax, arrays without their network", _REBUILD),
    "garage": ("a snapshot of garage", "load it there, and export its policy as TorchScript or ONNX"),
    "vecnormalize": (
        "the statistics of a VecNormalize, and no policy",
        "name the model's zip, and add {policy_kwargs=vecnormalize=FILE}",
    ),
}
"""What a recognised file is, and what to do where no scheme of that name loads it."""

_MAX_STRINGS = 20_000
"""Number of strings of a pickle that are read; the names that decide come first."""
_BEGINNINGS = (
    (rb"\x89HDF\r\n\x1a\n", "hdf5"),
    (rb"\x80\x02\x8a\nl\xfc\x9cF\xf9 j", "torch"),  # Of before version 1.6.
    # A protobuf has no magic number: this is a version, and the tag of a further field of ModelProto.
    (rb"\x08[\x01-\x7f][\x12\x1a\x22\x2a\x32\x3a\x42]", "onnx"),
    # A map of msgpack, whose first key is a short text.
    (rb"(?s)([\x81-\x8f]|\xde..)[\xa1-\xbf]", "flax"),
)
_FOLDERS = {
    "rllib_checkpoint.json": "rllib",
    "class_and_ctor_args.pkl": "rllib",
    "saved_model.pb": "savedmodel",
    "_CHECKPOINT_METADATA": "orbax",
    "manifest.ocdbt": "orbax",
}
_SUFFIXES = {".onnx": "onnx", ".safetensors": "safetensors", ".pkl": "pickle", ".pickle": "pickle"}


def recognise_folder(folder: Path) -> str | None:
    """Return the kind of a folder, a scheme's name or a key of `ADVICE`; None where it is none of them."""
    for name, kind in _FOLDERS.items():
        if (folder / name).exists():
            return kind
    for config in folder.glob("*/config.yml"):
        if (config.parent / "args.yml").is_file():
            return "zoo"
    return None


def recognise(data: bytes, path: str) -> str | None:
    """Return the kind of a file of these bytes: a scheme's name, `pickle`, or a key of `ADVICE`.

    Raises:
        PolicyLoadError: If it is a zip file that is cut short.
    """
    if data.startswith(b"PK\3\4"):
        return _recognise_zip(data, path)
    # It begins with the length of its header, which may look like the first bytes of a pickle.
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data) - 8:
        return "safetensors"
    for beginning, kind in _BEGINNINGS:
        if re.match(beginning, data):
            return kind
    if re.match(rb"\x80[\x02-\x05]", data):
        return _recognise_pickle(data)
    return _SUFFIXES.get(PurePath(path).suffix.lower())


def _recognise_zip(data: bytes, path: str) -> str | None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            names = file.namelist()
    except zipfile.BadZipFile as error:
        raise PolicyLoadError(
            f"{path!r} is a zip file that is damaged or cut short: {error}",
            code="policy-file-damaged",
            hint="copy or save it again",
        ) from error
    if {"data", "policy.pth"} <= set(names):
        return "sb3"
    if {"config.json", "model.weights.h5"} <= set(names):
        return "keras"
    inner = {name.partition("/")[2] for name in names}
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return "torchscript"
    return "torch" if inner & {"data.pkl", "models/model.json"} else None


def _recognise_pickle(data: bytes) -> str:
    strings = list(islice(_pickled_strings(data), _MAX_STRINGS))
    if any("vec_env.vec_normalize" in string for string in strings[:2]):
        return "vecnormalize"
    if any(string.startswith("brax.") for string in strings):
        return "brax"
    if {"torch", "config", "version"} <= set(strings):
        return "d3rlpy"
    if {"algo", "env"} <= set(strings) and {"n_itr", "setup_args"} & set(strings):
        return "garage"
    return "pickle"


def _pickled_strings(data: bytes) -> Iterator[str]:
    """Yield the strings in a pickle, including names of modules and classes; nothing is loaded."""
    with contextlib.suppress(ValueError):  # It is cut short, or not a pickle: loading it reports that.
        for _, argument, _ in pickletools.genops(data):
            if isinstance(argument, str):
                yield argument
