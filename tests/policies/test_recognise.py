"""Policy files are recognised by their content; the suffix is looked at last, and nothing is loaded."""

from __future__ import annotations

import collections
import io
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError, UsageError
from rollout_cli.policies.schemes.recognise import ADVICE, recognise, recognise_folder
from rollout_cli.policies.source import SCHEMES, policy_source
from tests.helpers.errors import raises


def zipped(*names: str) -> bytes:
    """A zip file with empty members of these names."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for name in names:
            opened.writestr(name, b"")
    return file.getvalue()


def of_class(module: str, name: str, protocol: int = 4) -> bytes:
    """A pickle of an object of a class that is not installed."""
    if protocol == 2:
        return f"\x80\x02c{module}\n{name}\n)\x81.".encode("latin-1")
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() + b"\x94" for text in (module, name))
    return b"\x80\x04" + texts + b"\x93\x94)\x81."


def safetensors(n_bytes: int) -> bytes:
    """A file of no tensors whose header, padded as the library does, has this length."""
    return n_bytes.to_bytes(8, "little") + b"{}".ljust(n_bytes)


STATE = {"torch": {}, "config": "{}", "version": "2.8.1"}
FILES: dict[str, tuple[str | None, bytes]] = {
    "a model of Stable-Baselines3": ("sb3", zipped("data", "policy.pth", "system_info.txt")),
    "TorchScript": ("torchscript", zipped("net/data.pkl", "net/code/net.py", "net/constants.pkl")),
    "an exported program": ("torch", zipped("net/models/model.json", "net/archive_format")),
    "torch.save": ("torch", zipped("archive/data.pkl", "archive/data/0")),
    "torch.save of before 1.6": ("torch", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."),
    "Keras 3": ("keras", zipped("metadata.json", "config.json", "model.weights.h5")),
    "arrays of numpy": (None, zipped("a.npy", "b.npy")),
    "HDF5": ("hdf5", b"\x89HDF\r\n\x1a\n\0\0"),
    "safetensors": ("safetensors", safetensors(2)),
    **{f"safetensors, a header of {n} bytes": ("safetensors", safetensors(n)) for n in (640, 1408)},
    "ONNX": ("onnx", b"\x08\x0a\x12\x07pytorch"),
    "flax": ("flax", b"\x81\xa6params\x80"),
    "flax, a large map": ("flax", b"\xde\x00\x11\xa6params\x80"),
    "VecNormalize": (
        "vecnormalize",
        of_class("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize"),
    ),
    "VecNormalize, protocol 2": (
        "vecnormalize",
        of_class("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize", 2),
    ),
    "Brax": ("brax", of_class("brax.training.acme.running_statistics", "RunningStatisticsState")),
    "d3rlpy": ("d3rlpy", pickle.dumps(STATE)),
    "garage": ("garage", pickle.dumps({"setup_args": 1, "algo": 2, "env": 3, "n_itr": 4})),
    "a pickle": ("pickle", pickle.dumps(collections.OrderedDict(a=np.zeros(3)))),
    "a text": (None, b"actions\n"),
    "nothing": (None, b""),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str) -> None:
    """Each kind, whatever the file is called."""
    kind, data = FILES[name]
    assert kind == recognise(data, "policy.bin") == recognise(data, "policy")
    assert kind in {*ADVICE, *SCHEMES, "pickle", None}


def test_the_suffix_comes_last() -> None:
    """It is looked at where the content says nothing."""
    assert "sb3" == recognise(FILES["a model of Stable-Baselines3"][1], "policy.pkl")
    assert "onnx" == recognise(b"?", "policy.ONNX")
    assert "pickle" == recognise(b"(lp0\n.", "policy.pkl")


def test_a_damaged_zip() -> None:
    """It is no unknown kind of file, but one to copy again."""
    with raises(PolicyLoadError, "policy-file-damaged"):
        recognise(FILES["a model of Stable-Baselines3"][1][:40], "ppo.zip")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("rllib", ["rllib_checkpoint.json"]),
        ("rllib", ["metadata.json", "class_and_ctor_args.pkl"]),
        ("zoo", ["Pendulum-v1/config.yml", "Pendulum-v1/args.yml"]),
        ("savedmodel", ["saved_model.pb", "variables/x"]),
        ("orbax", ["_CHECKPOINT_METADATA", "manifest.ocdbt"]),
        (None, ["Pendulum-v1/config.yml"]),
    ],
)
def test_folders(tmp_path: Path, kind: str | None, names: list[str]) -> None:
    """By the files that are in them."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert kind == recognise_folder(tmp_path)


class _Hostile:
    def __reduce__(self) -> Any:
        return (print, ("loaded",))


def test_a_pickle_is_not_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    """Its texts are read, also of one that is cut short; no code in it runs."""
    for protocol in range(2, 6):
        hostile = pickle.dumps([_Hostile(), b"x" * 300], protocol)
        assert "pickle" == recognise(hostile, "policy.pkl") == recognise(hostile[:-3], "policy.pkl")
    assert "" == capsys.readouterr().out


def test_a_library_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says how to install it; that the file is of that library needs none of it."""
    (tmp_path / "model.d3").write_bytes(FILES["d3rlpy"][1])
    for name in ("class_and_ctor_args.pkl", "module_state.pkl"):
        (tmp_path / name).write_bytes(pickle.dumps({}))
    (tmp_path / "metadata.json").write_text('{"ray_version": "2.60.0"}')
    for name in ("d3rlpy", "torch"):
        monkeypatch.setitem(sys.modules, name, None)
    for path, scheme, package in ((tmp_path / "model.d3", "d3rlpy", "d3rlpy"), (tmp_path, "rllib", "torch")):
        source = policy_source(str(path))
        assert scheme == source.describe()["scheme"]
        with raises(UsageError, "package-missing", package):
            source.load(EnvSpec(spaces.Discrete(2), spaces.Discrete(2)))


@pytest.mark.parametrize("scheme", ["d3rlpy", "sb3"])
def test_a_file_of_another_kind(tmp_path: Path, scheme: str) -> None:
    """A scheme that reads a file for its record says so too."""
    (tmp_path / "notes.txt").write_text("actions")
    with raises(PolicyLoadError, "policy-file-damaged"):
        policy_source(f"{scheme}:{tmp_path / 'notes.txt'}").describe()


def test_what_is_only_recognised(tmp_path: Path) -> None:
    """One line says what the file is, and the hint what to do."""
    (tmp_path / "model.zip").write_bytes(FILES["VecNormalize"][1])
    with raises(PolicyLoadError, "policy-unknown", "VecNormalize") as caught:
        policy_source(str(tmp_path / "model.zip"))
    assert "vecnormalize" in caught.value.hint
