"""The scheme `onnx`: a graph that onnxruntime runs, recurrent ones too; what it has decides how it is run."""

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
"""Of the types of inputs, where numpy has other names."""


def _field(tag: bytes, string: str) -> bytes:
    """Return a field of a protobuf that holds a short string."""
    return tag + bytes([len(string)]) + string.encode()


def _external_files(path: Path) -> Mapping[str, Path]:
    """Return the files of weights that a graph names, by name; PolicyLoadError for one in another folder.

    In the graph they are entries `location` of a map, whose key and value are fields 1 and 2.
    """
    data = path.read_bytes() if path.is_file() else b""
    entries = re.finditer(re.escape(_field(b"\x0a", "location")) + rb"\x12(.)", data, re.DOTALL)
    names = {data[match.end() : match.end() + match[1][0]].decode(errors="replace") for match in entries}
    for name in names:
        if not name or Path(name).name != name:
            raise PolicyLoadError(
                f"{path} has its weights in {name!r}, which is not a file beside it",
                code="onnx-weights",
                hint="save it again, with its weights inside or in the same folder",
            )
    return {name: path.with_name(name) for name in sorted(names)}


def _new_session(files: PolicyFiles, seed: int) -> Any:
    """Return a session, whose random nodes follow from the seed."""
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
    """Runs a session with a batch of observations; its first output decides, as that of a torch module does.

    An input `NAME_in` with an output `NAME_out` is a state: zeros at the beginning of an episode, then what
    the last step gave. A graph with a state, with random nodes, or for one row acts on one row at a time. One
    with random nodes gets a new session for each episode, since its seed is read where a session is made.

    Args:
        make_session: Makes a session whose random nodes follow from a seed.
        env_spec: The spaces.
        deterministic: Whether logits give their likeliest action.
        is_scaled: Whether the actions of a Box are in [-1, 1], for its bounds.
        draws: Whether the graph has random nodes.
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
                f"scale=true needs the bounds of a Box, not {self._space}",
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
                f"the graph gave {output.dtype}, which is no action of {self._space}",
                code="network-output",
                hint="export a graph whose first output is integers",
            )
        check_shape("actions", output, (len(numbers), *self._action.shape))
        if self._is_scaled:
            low, high = self._action.bounds or (0, 0)
            # Rounded, it may lie outside.
            output = np.clip(low + (output + 1.0) / 2.0 * (high - low), low, high)
        return self._typed(output, len(numbers)), {}


def _dtype(node: Any) -> str:
    """Return the dtype of an input whose type is such as `tensor(float)`."""
    name = str(node.type).removeprefix("tensor(").removesuffix(")")
    return _DTYPES.get(name, name)


def _zeros(node: Any) -> Array:
    """Return the first state, whose free dimensions are of one row."""
    shape = [*node.shape]
    for axis, size in enumerate(shape):
        if type(size) is not int:
            shape[axis] = 1
    return np.zeros(shape, _dtype(node))


def _leaf_indices(names: list[str], observations: SpaceRows) -> list[int]:
    """Return the place of each input's leaf in the observation space: by its name, if there are several."""
    leaves = [leaf.name for leaf in observations.leaves]
    if len(names) == len(leaves) == 1:
        return [0]
    if not set(names) <= set(leaves):
        raise PolicyLoadError(
            f"the graph has the inputs {', '.join(names)}, "
            f"and observations have {', '.join(leaves) or 'one part'}",
            code="onnx-inputs",
            hint="name the inputs as the observation space does, and states h_in and h_out",
        )
    return [leaves.index(name) for name in names]


def _load(files: PolicyFiles, options: Keywords, env_spec: EnvSpec, *, deterministic: bool) -> OnnxPolicy:
    # Field 4 of a node is its operator.
    draws = any(_field(b"\x22", operator) in files.data for operator in _RANDOM_NODES)
    if draws and deterministic:
        raise no_deterministic_graph()
    if draws and _field(b"\x0a", "seed") + b"\x15" in files.data:
        raise PolicyLoadError(
            f"{files.path} fixes the seed of its random nodes, so all its episodes would draw the same",
            code="onnx-fixed-seed",
            hint="export it without the attribute `seed`, or export the mean action or the logits",
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
