"""The scheme `onnx`: a graph for onnxruntime, which may be recurrent or stochastic."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, SpaceRows, Tree
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.keywords import Keywords
from rollout_cli.policies.networks import NetworkPolicy, check_shape
from rollout_cli.policies.noise import RowNoise
from rollout_cli.policies.policy import ActionsAndInfos
from rollout_cli.policies.schemes.files import FileScheme, PolicyFiles
from rollout_cli.policies.schemes.torch import no_deterministic_graph

_RANDOM_NODES = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
_DTYPES = {"float": "float32", "double": "float64"}
"""The numpy names of input types that differ from the ONNX names."""


def _field(tag: bytes, string: str) -> bytes:
    """Return the bytes of a protobuf field with a short string."""
    return tag + bytes([len(string)]) + string.encode()


def _external_files(path: Path) -> Mapping[str, Path]:
    """Return the external weight files of a graph, by name; raise PolicyLoadError for a file in another folder.

    In the graph, each file is a map entry with the key `location`; key and value are fields 1 and 2.
    """
    data = path.read_bytes() if path.is_file() else b""
    entries = re.finditer(re.escape(_field(b"\x0a", "location")) + rb"\x12(.)", data, re.DOTALL)
    names = {data[match.end() : match.end() + match[1][0]].decode(errors="replace") for match in entries}
    for name in names:
        if not name or Path(name).name != name:
            raise PolicyLoadError(
                f"the weights of {path} are in {name!r}, which is not in the same folder",
                code="onnx-weights",
                hint="save the model again, with its weights inside or in the same folder",
            )
    return {name: path.with_name(name) for name in sorted(names)}


def _new_session(files: PolicyFiles, seed: int) -> Any:
    """Return a session whose random nodes use the seed."""
    import onnxruntime  # noqa: PLC0415 - only workers with such a policy need it

    onnxruntime.set_seed(seed % 2**31)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    make = partial(onnxruntime.InferenceSession, sess_options=options, providers=["CPUExecutionProvider"])
    if files.contents.keys() == {""}:
        return make(files.data)
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.contents.items():
            Path(folder, name or "graph.onnx").write_bytes(data)
        return make(str(Path(folder, "graph.onnx")))


class OnnxPolicy(NetworkPolicy):
    """A policy that runs an ONNX session; its first output is interpreted like the output of a torch module.

    An input `NAME_in` with an output `NAME_out` is a recurrent state: zeros at the start of an episode, then
    the output of the previous step. A graph with a state, with random nodes, or with a batch size of one acts
    row by row. A graph with random nodes gets a new session per episode, because only a new session reads
    the seed.

    Args:
        make_session: Creates a session whose random nodes use a seed.
        env_spec: The spaces.
        deterministic: Use the most likely action of logits.
        is_scaled: The actions of a Box are in [-1, 1], and are scaled to its bounds.
        draws: The graph has random nodes.
    """

    def __init__(
        self,
        make_session: Callable[[int], Any],
        env_spec: EnvSpec,
        *,
        deterministic: bool,
        is_scaled: bool,
        draws: bool,
    ) -> None:
        self._make_session = make_session
        self._draws = draws
        self._is_scaled = is_scaled
        super().__init__(make_session(0), env_spec, deterministic=deterministic)
        if is_scaled and not (self._action.kind == "box" and self._space.is_bounded()):
            raise PolicyLoadError(
                f"scale=true needs a bounded Box as action space, got {self._space}",
                code="onnx-scale",
                hint="omit scale",
            )
        outputs = [output.name for output in self.wrapped.get_outputs()]
        self._first_state = {}
        state_outputs = []
        inputs = {}
        for node in self.wrapped.get_inputs():
            output = f"{node.name[:-3]}_out"
            if node.name.endswith("_in") and output in outputs:
                self._first_state[node.name] = _zeros(node)
                state_outputs.append(output)
            else:
                inputs[node.name] = node
        self._state = self._first_state
        self._outputs = [next(name for name in outputs if name not in state_outputs), *state_outputs]
        places = _leaf_indices([*inputs], self._observations)
        self._inputs = [
            (name, place, _dtype(inputs[name])) for name, place in zip(inputs, places, strict=True)
        ]
        is_fixed = any(type(node.shape[0]) is int for node in inputs.values() if node.shape)
        self.resets = bool(state_outputs)
        self.row_by_row = self.resets or draws or is_fixed

    def seed(self, seed: int) -> None:
        super().seed(seed)
        if self._draws:
            self.wrapped = self._make_session(seed)

    def reset(self, do_resets: Array | None = None) -> None:  # noqa: ARG002
        self._state = self._first_state

    def _act(self, observations: Tree, numbers: RowNoise) -> ActionsAndInfos:
        columns = self._observations.columns(observations)
        feed = {name: np.asarray(columns[place], dtype) for name, place, dtype in self._inputs}
        output, *state = self.wrapped.run(self._outputs, {**feed, **self._state})
        self._state = dict(zip(self._first_state, state, strict=True))
        if self._action.kind == "discrete" and output.dtype.kind == "f":
            return self._choose(np.asarray(output, np.float64), numbers), {}
        if output.dtype.kind == "f" and self._action.kind != "box":
            raise PolicyError(
                f"the graph returned {output.dtype}, expected integers for {self._space}",
                code="network-output",
                hint="export a graph with integers as first output",
            )
        check_shape("actions", output, (len(numbers), *self._action.shape))
        if self._is_scaled:
            low, high = self._action.bounds or (0, 0)
            # Clipped, because rounding may exceed the bounds.
            output = np.clip(low + (output + 1.0) / 2.0 * (high - low), low, high)
        return self._typed(output, len(numbers)), {}


def _dtype(node: Any) -> str:
    """Return the numpy dtype of an input with a type such as `tensor(float)`."""
    name = str(node.type).removeprefix("tensor(").removesuffix(")")
    return _DTYPES.get(name, name)


def _zeros(node: Any) -> Array:
    """Return the initial state, with size 1 for dynamic dimensions."""
    shape = [*node.shape]
    for axis, size in enumerate(shape):
        if type(size) is not int:
            shape[axis] = 1
    return np.zeros(shape, _dtype(node))


def _leaf_indices(names: list[str], observations: SpaceRows) -> list[int]:
    """Return the index of each input's leaf in the observation space; several inputs are matched by name."""
    leaves = [leaf.name for leaf in observations.leaves]
    if len(names) == len(leaves) == 1:
        return [0]
    if not set(names) <= set(leaves):
        raise PolicyLoadError(
            f"the graph has the inputs {', '.join(names)}, "
            f"but observations have {', '.join(leaves) or 'one part'}",
            code="onnx-inputs",
            hint="use the names of the observation space for inputs, and names such as h_in and h_out for states",
        )
    return [leaves.index(name) for name in names]


def _load(files: PolicyFiles, options: Keywords, env_spec: EnvSpec, *, deterministic: bool) -> OnnxPolicy:
    # Field 4 of a node is the operator.
    draws = any(_field(b"\x22", operator) in files.data for operator in _RANDOM_NODES)
    if draws and deterministic:
        raise no_deterministic_graph()
    if draws and _field(b"\x0a", "seed") + b"\x15" in files.data:
        raise PolicyLoadError(
            f"{files.path} has random nodes with a fixed seed: all episodes would get the same numbers",
            code="onnx-fixed-seed",
            hint="export the graph without the attribute `seed`, or export the mean action or the logits",
        )
    return OnnxPolicy(
        partial(_new_session, files),
        env_spec,
        deterministic=deterministic,
        is_scaled=options.get("scale", False),
        draws=draws,
    )


ONNX = FileScheme(
    "onnx",
    "an ONNX model",
    _load,
    {"scale": bool},
    needs={"onnxruntime": "onnxruntime"},
    beside=_external_files,
)
