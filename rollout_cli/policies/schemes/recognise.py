"""Recognition of policy files by content: the first bytes, members of a zip, names in a pickle.

No file is loaded and no code runs. The suffix decides only if the content does not.
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
from rollout_cli.policies.schemes.lerobot import is_lerobot

_WRAP = "load it in a function, and pass the function as module:attr (see docs/policies.md)"
_REBUILD = "rebuild the network in a function, and pass the function as module:attr (see docs/policies.md)"
ADVICE = {
    "keras": ("a Keras model", _WRAP),
    "hdf5": ("an HDF5 file (a Keras model or a dataset), not a policy", _WRAP),
    "savedmodel": ("a TensorFlow SavedModel", _WRAP),
    "orbax": ("an orbax checkpoint, which does not contain the network", _REBUILD),
    "flax": ("a flax msgpack file, which does not contain the network", _REBUILD),
    "brax": ("a Brax parameter file, which does not contain the network", _REBUILD),
    "garage": ("a garage snapshot", "load it with garage, and export its policy as TorchScript or ONNX"),
    "vecnormalize": (
        "a VecNormalize statistics file, not a policy",
        "pass the model's zip as policy, and add {policy_kwargs=vecnormalize=FILE}",
    ),
}
"""By kind of file, its description and a hint, for kinds that no scheme loads."""

_MAX_STRINGS = 20_000
"""The number of strings of a pickle that are read; the deciding names are at the start."""
_FIRST_BYTES = (
    (rb"\x89HDF\r\n\x1a\n", "hdf5"),
    (rb"\x80\x02\x8a\nl\xfc\x9cF\xf9 j", "torch"),  # Before version 1.6.
    # A protobuf has no magic number: this is a version, and the tag of another field of ModelProto.
    (rb"\x08[\x01-\x7f][\x12\x1a\x22\x2a\x32\x3a\x42]", "onnx"),
    # A msgpack map whose first key is a short string.
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
    """Return the kind of a folder: the name of a scheme, a key of `ADVICE`, or None if it is unknown."""
    for name, kind in _FOLDERS.items():
        if (folder / name).exists():
            return kind
    if is_lerobot(folder):
        return "lerobot"
    for config in folder.glob("*/config.yml"):
        if (config.parent / "args.yml").is_file():
            return "zoo"
    return None


def recognise(data: bytes, path: str) -> str | None:
    """Return the kind of a file: the name of a scheme, `pickle`, a key of `ADVICE`, or None if it is unknown.

    Raises:
        PolicyLoadError: The file is a truncated zip.
    """
    if data.startswith(b"PK\3\4"):
        return _recognise_zip(data, path)
    # Checked first: a safetensors file starts with the length of its header, which may look like a pickle.
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data) - 8:
        return "safetensors"
    for pattern, kind in _FIRST_BYTES:
        if re.match(pattern, data):
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
            f"{path!r} is a damaged or truncated zip file: {error}",
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
    """Yield the strings in a pickle, including names of modules and classes, without loading it."""
    with contextlib.suppress(ValueError):  # Loading the file reports that it is truncated or not a pickle.
        for _, argument, _ in pickletools.genops(data):
            if isinstance(argument, str):
                yield argument
