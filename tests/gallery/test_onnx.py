"""ONNX graphs: what a graph has decides how it is run, and its actions are those of a session of the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import rollout_cli
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies.source import policy_source
from tests.helpers.datasets import assert_same_data, source_of
from tests.helpers.errors import raises
from tests.helpers.processes import called, rollout

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
FLOAT = TensorProto.FLOAT
Info = tuple[str, Any, list[Any]]


def graph(nodes: list[Any], inputs: list[Info], outputs: list[Info], **weights: Any) -> bytes:
    """Return a model; weights are arrays."""
    seen, given = ([helper.make_tensor_value_info(*info) for info in group] for group in (inputs, outputs))
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    made = helper.make_graph(nodes, "g", seen, given, tensors)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def normal(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def logits(rows: Any) -> bytes:
    node = helper.make_node("MatMul", ["obs", "w"], ["logits"])
    return graph([node], [("obs", FLOAT, [rows, 4])], [("logits", FLOAT, [rows, 2])], w=20 * normal(4, 2))


def least(rows: Any) -> bytes:
    """Integers are actions: the least likely ones, as nobody would take them of logits."""
    nodes = [
        helper.make_node("MatMul", ["obs", "w"], ["logits"]),
        helper.make_node("ArgMin", ["logits"], ["action"], axis=1, keepdims=0),
    ]
    outputs: list[Info] = [("action", TensorProto.INT64, [rows])]
    return graph(nodes, [("obs", FLOAT, [rows, 4])], outputs, w=20 * normal(4, 2))


def bounded(rows: Any, *more: Any) -> bytes:
    """Actions in [-1, 1]."""
    nodes = [
        helper.make_node("MatMul", ["obs", "w"], ["x"]),
        *more,
        helper.make_node("Tanh", ["y" if more else "x"], ["actions"]),
    ]
    return graph(nodes, [("obs", FLOAT, [rows, 3])], [("actions", FLOAT, [rows, 1])], w=normal(3, 1))


def drawing(rows: Any, **options: Any) -> bytes:
    noise = helper.make_node("RandomNormalLike", ["x"], ["n"], **options)
    return bounded(rows, noise, helper.make_node("Add", ["x", "n"], ["y"]))


def recurrent(kind: str) -> bytes:
    """As IsaacLab exports them: the state first is zeros, (layers, 1, hidden)."""
    n_gates, names = {"LSTM": (4, ("h", "c")), "GRU": (3, ("h",))}[kind]
    states_in, states_out = [f"{name}_in" for name in names], [f"{name}_out" for name in names]
    nodes = [
        helper.make_node("Unsqueeze", ["obs", "axis"], ["x"]),
        helper.make_node(kind, ["x", "w", "r", "", "", *states_in], ["", *states_out], hidden_size=5),
        helper.make_node("Squeeze", ["h_out", "axis"], ["h"]),
        helper.make_node("MatMul", ["h", "head"], ["x2"]),
        helper.make_node("Tanh", ["x2"], ["actions"]),
    ]
    shape = [1, 1, 5]
    return graph(
        nodes,
        [*((name, FLOAT, shape) for name in states_in), ("obs", FLOAT, [1, 3])],
        [*((name, FLOAT, shape) for name in states_out), ("actions", FLOAT, [1, 1])],
        w=normal(1, n_gates * 5, 3),
        r=normal(1, n_gates * 5, 5),
        head=normal(5, 1),
        axis=np.array([0]),
    )


def session(data: bytes) -> Any:
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def collect(data: bytes, env_id: str, *words: str) -> Any:
    """Collect with a graph in this process, and return the batch."""
    Path("policy.onnx").write_bytes(data)
    options = (
        "--sampler",
        "local",
        "--episodes",
        "6",
        "--max-episode-length",
        "40",
        "--seed",
        "3",
        "--quiet",
    )
    called("collect", "--env", env_id, "--policy", "policy.onnx", *words, *options, "--output", "out")
    return rollout_cli.load("out").to_episode_batch()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


Rows = pytest.mark.parametrize("rows", ["1", "3"])


@Rows
@pytest.mark.parametrize("n_rows", [1, "batch"])
@pytest.mark.parametrize("make", [logits, least])
def test_discrete_actions(rows: str, n_rows: Any, make: Callable[[Any], bytes]) -> None:
    """Logits give their likeliest action, integers are actions; for one row, and for several."""
    batch = collect(make(n_rows), CARTPOLE, "--deterministic", "--envs-per-worker", rows)
    (output,) = session(make("batch")).run(None, {"obs": batch.observations})
    expected = output.argmax(axis=1) if make is logits else output
    assert np.array_equal(expected, batch.actions)
    assert {0, 1} == set(batch.actions.tolist())


@Rows
@pytest.mark.parametrize("is_scaled", [False, True])
def test_box_actions(rows: str, *, is_scaled: bool) -> None:
    """They are given as they are, or from [-1, 1] to the bounds of the space, here [-2, 2]."""
    scale = ("--policy-kwargs", "scale=true") if is_scaled else ()
    batch = collect(bounded("batch"), PENDULUM, *scale, "--envs-per-worker", rows)
    (output,) = session(bounded("batch")).run(None, {"obs": batch.observations})
    assert np.allclose(output * (2 if is_scaled else 1), batch.actions, atol=1e-6)


def test_scaled_actions_stay_within_the_bounds() -> None:
    """An output of 1 is the upper bound, also where low + (high - low) is rounded to above it."""
    low, high = np.array([[-1.38], [0.82]], np.float32)
    assert low + (high - low) > high
    Path("policy.onnx").write_bytes(
        graph(
            [helper.make_node("Identity", ["obs"], ["actions"])],
            [("obs", FLOAT, ["b", 1])],
            [("actions", FLOAT, ["b", 1])],
        )
    )
    spaces = gymnasium.spaces
    spec = EnvSpec(spaces.Box(-1.0, 1.0, (1,)), spaces.Box(low, high))
    policy = policy_source("policy.onnx", {"scale": True}).load(spec)
    actions, _ = policy.get_actions(np.array([[1], [-1]], np.float32))
    np.testing.assert_array_equal([high, low], actions)


@Rows
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_state_follows_its_episode(rows: str, kind: str) -> None:
    """Zeros at its beginning, then what the last step gave, whatever runs before it or beside it."""
    data = recurrent(kind)
    batch = collect(data, PENDULUM, "--envs-per-worker", rows)
    mine = session(data)
    names = [node.name for node in mine.get_inputs() if node.name != "obs"]
    for episode in batch.split():
        states = {name: np.zeros((1, 1, 5), np.float32) for name in names}
        for observation, action in zip(episode.observations, episode.actions, strict=True):
            *after, expected = mine.run(None, {"obs": observation[None], **states})
            states = dict(zip(names, after, strict=True))
            assert np.abs(expected[0] - action).max() < 1e-5


BYTES: dict[str, tuple[str, bytes]] = {
    "logits": (CARTPOLE, logits("batch")),
    "recurrent": (PENDULUM, recurrent("LSTM")),
    "drawing": (PENDULUM, drawing("batch")),
}


@pytest.mark.parametrize("name", BYTES)
def test_the_same_bytes(name: str, folder: Path) -> None:
    """With one and three workers; resumed and replayed from another folder; another file is refused."""
    env_id, data = BYTES[name]
    Path("policy.onnx").write_bytes(data)
    policy = ("--policy", "onnx:policy.onnx", "--envs-per-worker", "2")
    words = ("collect", "--env", env_id, "--max-episode-length", "30", "--seed", "3", "--quiet", *policy)
    rollout(*words, "--episodes", "9", "--workers", "3", "--output", "three")
    for episodes in ("9", "5"):
        called(*words, "--sampler", "local", "--episodes", episodes, "--output", episodes)
    assert_same_data(folder / "9", folder / "three")
    verdict = source_of(folder / "three")["reproducible"]
    assert "yes" == verdict["status"], verdict
    (folder / "elsewhere").mkdir()
    resume = ("collect", "--resume", "--sampler", "local", "--quiet", "--output", str(folder / "5"))
    called(*resume, "--episodes", "9", cwd=folder / "elsewhere")
    assert_same_data(folder / "9", folder / "5")
    ran = called("replay", folder / "9", "--episodes", "0:3", "--json", cwd=folder / "elsewhere")
    assert 3 == json.loads(ran.stdout)["identical"]
    Path("policy.onnx").write_bytes(data + b"\x32\0")  # An empty text in a further field.
    assert "[policy-hash]" in called("replay", folder / "9", "--all", code=3).stderr
    assert "[resume-differs]" in called(*resume, "--episodes", "12", code=2).stderr


def test_episodes_draw_differently() -> None:
    """A graph with random nodes gets a new seed for each."""
    batch = collect(drawing("batch"), PENDULUM)
    x = batch.observations @ normal(3, 1)
    firsts = [float(noise[0, 0]) for noise in np.split(np.arctanh(batch.actions) - x, 6)]
    assert 6 == len({round(first, 3) for first in firsts})


def test_weights_in_a_file_beside_it(folder: Path) -> None:
    """They are part of its hash, and shipped with it."""
    model = onnx.load_model_from_string(bounded("batch"))
    options: dict[str, Any] = {"save_as_external_data": True, "location": "w.onnx.data", "size_threshold": 0}
    onnx.save_model(model, "big.onnx", **options)
    spec = env_spec(PENDULUM)
    source = policy_source("big.onnx")
    digest = source.describe()["sha256"]
    weights = Path("w.onnx.data")
    data = weights.read_bytes()
    weights.unlink()
    observation = np.array([1.0, 0.5, 0.25], np.float32)
    action, _ = source.load(spec).get_action(observation)
    (expected,) = session(bounded("batch")).run(None, {"obs": observation[None]})
    assert np.array_equal(expected[0], action)
    with raises(PolicyLoadError, "spec-file-missing", "'w.onnx.data'"):
        policy_source("big.onnx")
    weights.write_bytes(data[:-1] + b"\0")
    with raises(PolicyLoadError, "policy-hash", digest):
        policy_source("big.onnx", sha256=digest)
    Path("big.onnx").write_bytes(Path("big.onnx").read_bytes().replace(b"w.onnx.data", b"../nnx.data"))
    with raises(PolicyLoadError, "onnx-weights", "../nnx.data"):
        policy_source("big.onnx")
    named = onnx.load("big.onnx", load_external_data=False)
    for entry in (each for tensor in named.graph.initializer for each in tensor.external_data):
        entry.value = "" if entry.key == "location" else entry.value
    Path("big.onnx").write_bytes(named.SerializeToString())
    with raises(PolicyLoadError, "onnx-weights", "''"):
        policy_source("big.onnx")


def env_spec(env_id: str) -> EnvSpec:
    env = gymnasium.make(env_id)
    return EnvSpec(env.observation_space, env.action_space)


def test_inputs_by_name() -> None:
    """Those of a Dict are named by its keys, and get its types."""
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=FLOAT),
        helper.make_node("Add", ["pixels", "speed"], ["logits"]),
    ]
    inputs: list[Info] = [("speed", FLOAT, ["b", 2]), ("image", TensorProto.UINT8, ["b", 2])]
    Path("policy.onnx").write_bytes(graph(nodes, inputs, [("logits", FLOAT, ["b", 2])]))
    spaces = gymnasium.spaces
    box: dict[str, Any] = {
        "image": spaces.Box(0, 255, (2,), np.uint8),
        "speed": spaces.Box(-1.0, 1.0, (2,), np.float64),
    }
    spec = EnvSpec(spaces.Dict({**box, "unused": spaces.Discrete(3)}), spaces.Discrete(2, start=5))
    policy = policy_source("policy.onnx").load(spec, deterministic=True)
    seen = {
        "image": np.array([[1, 0], [0, 0]], np.uint8),
        "speed": np.array([[0, 0], [0, 0.5]]),
        "unused": [0, 0],
    }
    assert [5, 6] == policy.get_actions(seen)[0].tolist()
    renamed = EnvSpec(spaces.Dict({"pixels": box["image"], "speed": box["speed"]}), spec.action_space)
    with raises(PolicyLoadError, "onnx-inputs", "speed, image", "pixels"):
        policy_source("policy.onnx").load(renamed)


REFUSED: dict[str, tuple[bytes, str, bool, dict[str, Any]]] = {
    "policy-not-deterministic": (drawing("batch"), PENDULUM, True, {}),
    "onnx-fixed-seed": (drawing("batch", seed=7.0), PENDULUM, False, {}),
    "onnx-scale": (logits("batch"), CARTPOLE, False, {"scale": True}),
}
"""By the code of the error."""


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_refused(code: str) -> None:
    """Each in words that name it."""
    data, env_id, deterministic, options = REFUSED[code]
    Path("policy.onnx").write_bytes(data)
    with raises(PolicyLoadError, code):
        policy_source("policy.onnx", options).load(env_spec(env_id), deterministic=deterministic)


def test_an_output_of_another_space() -> None:
    """It is an error of the policy."""
    Path("policy.onnx").write_bytes(bounded("batch"))
    spaces = gymnasium.spaces
    for space, value in (
        (spaces.Discrete(4), "(1, 4)"),
        (spaces.MultiBinary(1), "float32"),
        (spaces.Box(-1.0, 1.0, (2,)), "(1, 2)"),
    ):
        policy = policy_source("policy.onnx").load(EnvSpec(env_spec(PENDULUM).observation_space, space))
        with raises(PolicyError, "network-output", value):
            policy.get_action(np.zeros(3, np.float32))
