"""Files that torch and its users save: `--policy FILE` acts as the library itself does on the same observations."""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import gymnasium
import numpy as np
import pytest
import safetensors.torch

import rollout_cli
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.policies.source import policy_source
from tests.helpers.datasets import assert_same_data, source_of
from tests.helpers.errors import raises
from tests.helpers.processes import called, rollout

torch: Any = pytest.importorskip("torch")

NETWORKS = """
    import torch

    class Network(torch.nn.Module):
        def __init__(self, env_spec):
            super().__init__()
            torch.manual_seed(0)
            n_inputs = env_spec.observation_space.shape[0]
            n_outputs = getattr(env_spec.action_space, "n", 1)
            self.net = torch.nn.Sequential(
                torch.nn.Linear(n_inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, int(n_outputs), bias=False)
            )

        def forward(self, observations):
            return self.net(20.0 * observations)

    class Recurrent(torch.nn.Module):
        "Keeps its state in buffers, as the exports of rsl_rl do."

        def __init__(self):
            super().__init__()
            self.memory = torch.nn.LSTM(3, 8)
            self.head = torch.nn.Linear(8, 1)
            self.register_buffer("hidden", torch.zeros(1, 1, 8))
            self.register_buffer("cell", torch.zeros(1, 1, 8))

        def forward(self, x):
            out, (hidden, cell) = self.memory(x.unsqueeze(0), (self.hidden, self.cell))
            self.hidden[:] = hidden
            self.cell[:] = cell
            return self.head(out.squeeze(0))

        @torch.jit.export
        def reset(self):
            self.hidden[:] = 0.0
            self.cell[:] = 0.0

    class Indices(torch.nn.Module):
        "Gives an integer a row, as the exports of d3rlpy do; not what anybody would take of logits."

        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x).argmin(dim=1)

    class Drawing(torch.nn.Module):
        "Draws from torch's global generator inside its graph."

        def forward(self, x):
            return torch.tanh(x[:, :1] + torch.randn_like(x[:, :1]))
"""
SPECS = {}
for _name in ("CartPole-v1", "Pendulum-v1"):
    _env = gymnasium.make(_name)
    SPECS[_name] = EnvSpec(_env.observation_space, _env.action_space)


def scripted(module: Any) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(module.eval()), file)
    return file.getvalue()


def exported(module: Any, n_rows: int, n_inputs: int) -> bytes:
    shapes = [{0: torch.export.Dim.AUTO}] if n_rows > 1 else None
    file = io.BytesIO()
    program = torch.export.export(module.eval(), (torch.zeros(n_rows, n_inputs),), dynamic_shapes=shapes)
    torch.export.save(program, file)
    return file.getvalue()


def saved(item: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(item, file, **options)
    return file.getvalue()


@pytest.fixture(autouse=True)
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a module with networks in the working folder."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    Path("networks.py").write_text(dedent(NETWORKS))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("networks", None)
    yield __import__("networks")
    sys.modules.pop("networks", None)


FACTORY = ("--policy-kwargs", "factory=networks:Network")
CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
Make = Callable[[Any], bytes]
FILES: dict[str, tuple[str, Make, tuple[str, ...]]] = {
    "policy.pt": (CARTPOLE, scripted, ()),
    "continuous.pt": (PENDULUM, scripted, ()),
    "program.pt2": (CARTPOLE, lambda net: exported(net, 2, 4), ()),
    "fixed.pt2": (PENDULUM, lambda net: exported(net, 1, 3), ()),
    "weights.pth": (CARTPOLE, lambda net: saved(net.state_dict()), FACTORY),
    "old.pth": (
        CARTPOLE,
        lambda net: saved(net.state_dict(), _use_new_zipfile_serialization=False),
        FACTORY,
    ),
    "checkpoint.pt": (
        PENDULUM,
        lambda net: saved(
            {
                "iter": 3,
                "model": {f"module._orig_mod.{key}": value for key, value in net.state_dict().items()},
                "target": net.state_dict(),
            }
        ),
        FACTORY,
    ),
    "tuple.cleanrl_model": (
        PENDULUM,
        lambda net: saved((net.state_dict(), torch.nn.Linear(4, 1).state_dict())),
        FACTORY,
    ),
    "whole.pt": (CARTPOLE, saved, ("--policy-kwargs", "trust=true")),
    "weights.safetensors": (CARTPOLE, lambda net: safetensors.torch.save(net.state_dict()), FACTORY),
}


def collect(output: str, env_id: str, *words: str, env_words: tuple[str, ...] = ()) -> Any:
    """Collect in this process, and return the batch."""
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
    called("collect", "--env", env_id, *words, *env_words, *options, "--output", output)
    return rollout_cli.load(output).to_episode_batch()


@pytest.mark.parametrize("rows", ["1", "3"])
@pytest.mark.parametrize("name", FILES)
def test_actions_are_those_of_the_network(name: str, rows: str, networks: Any) -> None:
    """For each kind of file, with one and with several rows."""
    env_id, make, options = FILES[name]
    net = networks.Network(SPECS[env_id]).eval()
    Path(name).write_bytes(make(net))
    words = ("--policy", name, *options, "--deterministic", "--envs-per-worker", rows)
    batch = collect("out", env_id, *words)
    with torch.no_grad():
        output = net(torch.from_numpy(batch.observations)).numpy()
    if env_id == CARTPOLE:
        assert np.array_equal(output.argmax(axis=1), batch.actions)
    else:
        assert np.allclose(output.clip(-2, 2), batch.actions, atol=1e-6, rtol=0)
    assert len({*np.asarray(batch.actions).flatten().tolist()}) > 1


@pytest.mark.parametrize("rows", ["1", "3"])
def test_a_recurrent_module_is_reset(rows: str, networks: Any) -> None:
    """Each episode begins with its zero state, whatever runs before it, or beside it."""
    module = networks.Recurrent()
    Path("policy.pt").write_bytes(scripted(module))
    batch = collect("out", PENDULUM, "--policy", "policy.pt", "--envs-per-worker", rows)
    for episode in batch.split():
        module.reset()
        with torch.no_grad():
            expected = [module(torch.from_numpy(seen[None])).numpy()[0] for seen in episode.observations]
        assert np.abs(np.array(expected) - episode.actions).max() < 1e-5


def test_a_module_may_give_actions(networks: Any) -> None:
    """Integers, one a row, are actions and no logits."""
    net = networks.Network(SPECS[CARTPOLE])
    Path("policy.pt").write_bytes(scripted(networks.Indices(net)))
    batch = collect("out", CARTPOLE, "--policy", "torchscript:policy.pt", "--envs-per-worker", "3")
    with torch.no_grad():
        expected = net(torch.from_numpy(batch.observations)).numpy().argmin(axis=1)
    assert np.array_equal(expected, batch.actions)


BYTES: dict[str, tuple[str, Callable[[Any], bytes], tuple[str, ...]]] = {
    "recurrent.pt": (PENDULUM, lambda networks: scripted(networks.Recurrent()), ("--envs-per-worker", "2")),
    "drawing.pt": (PENDULUM, lambda networks: scripted(networks.Drawing()), ("--envs-per-worker", "2")),
    "weights.safetensors": (
        CARTPOLE,
        lambda networks: safetensors.torch.save(networks.Network(SPECS[CARTPOLE]).state_dict()),
        (*FACTORY, "--envs-per-worker", "2"),
    ),
}


@pytest.mark.parametrize("name", BYTES)
def test_the_same_bytes(name: str, networks: Any, tmp_path: Path) -> None:
    """With one and three workers, sampled; resumed and replayed from another folder; another file is refused."""
    env_id, make, options = BYTES[name]
    data = make(networks)
    Path(name).write_bytes(data)
    words = (
        "collect",
        "--env",
        env_id,
        "--max-episode-length",
        "30",
        "--seed",
        "3",
        "--quiet",
        "--policy",
        name,
    )
    rollout(*words, *options, "--episodes", "9", "--workers", "3", "--output", "three")
    for episodes in ("9", "5"):
        called(*words, *options, "--sampler", "local", "--episodes", episodes, "--output", episodes)
    assert_same_data(tmp_path / "9", tmp_path / "three")
    verdict = source_of(tmp_path / "three")["reproducible"]
    assert "yes" == verdict["status"], verdict
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "networks.py").write_bytes(Path("networks.py").read_bytes())
    resume = ("collect", "--resume", "--sampler", "local", "--quiet", "--output", str(tmp_path / "5"))
    called(*resume, "--episodes", "9", cwd=elsewhere)
    assert_same_data(tmp_path / "9", tmp_path / "5")
    ran = called("replay", "--trust", tmp_path / "9", "--episodes", "0:3", "--json", cwd=elsewhere)
    assert 3 == json.loads(ran.stdout)["identical"]
    Path(name).write_bytes(data + b"\0")
    assert "[policy-hash]" in called("replay", "--trust", tmp_path / "9", "--all", code=3).stderr
    assert "[resume-differs]" in called(*resume, "--episodes", "12", code=2).stderr


# -- what is refused -------------------------------------------------------------------------------------------------


class Hostile:
    """Makes a folder when it is loaded."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("ran",))


def refused(
    code: str,
    name: str,
    data: bytes,
    env_id: str = CARTPOLE,
    *,
    deterministic: bool = False,
    **options: Any,
) -> Any:
    Path(name).write_bytes(data)
    with raises(PolicyLoadError, code) as caught:
        policy_source(name, options).load(SPECS[env_id], deterministic=deterministic)
    return caught.value


def test_a_hostile_file_runs_nothing(networks: Any) -> None:
    """Neither beside tensors, nor in the old format, nor among the weights of an exported program."""
    hostile = {"model": networks.Network(SPECS[CARTPOLE]).state_dict(), "x": Hostile()}
    options: dict[str, Any] = {"factory": "networks:Network"}
    for data in (saved(hostile), saved(hostile, _use_new_zipfile_serialization=False)):
        refused("file-may-run-code", "policy.pth", data, **options)
        assert not Path("ran").exists()
    program = exported(networks.Network(SPECS[CARTPOLE]), 1, 4)
    refused("policy-file-damaged", "policy.pt2", replaced(program, "sample_inputs", saved(Hostile())))
    assert not Path("ran").exists()
    with Path("policy.pth").open("wb") as file:
        file.write(saved(hostile))
    policy_source("policy.pth", {**options, "trust": True}).load(SPECS[CARTPOLE])
    assert Path("ran").exists()


def replaced(data: bytes, part: str, content: bytes) -> bytes:
    """Return a zip file in which the members whose names have this part have another content."""
    file = io.BytesIO()
    count = 0
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            count += part in name
            new.writestr(name, content if part in name else old.read(name))
    assert count
    return file.getvalue()


def test_a_whole_module_names_its_class(networks: Any) -> None:
    """It is loaded where the file is trusted."""
    error = refused("file-may-run-code", "policy.pt", saved(networks.Network(SPECS[CARTPOLE])))
    assert "networks.Network" in error.message
    assert "trust=true" in error.marked_hint
    error = refused("file-may-run-code", "policy.pt", saved(torch.nn.Linear(4, 2)))
    assert "torch.nn.modules.linear.Linear" in error.message
    data = saved(torch.nn.Linear(4, 2))
    refused("policy-options", "policy.pt", data, trust=True, factory="networks:Network")


def test_a_state_dict_needs_a_factory(networks: Any) -> None:
    """One line shows the first tensors, and says whose file it seems to be."""
    tensors = networks.Network(SPECS[CARTPOLE]).state_dict()
    error = refused("network-missing", "policy.pth", saved(tensors))
    assert "net.0.weight (16, 4), net.0.bias (16,)" in error.message
    assert "factory=module:attr" in error.marked_hint
    error = refused("network-missing", "policy.safetensors", safetensors.torch.save(tensors))
    assert "net.0.bias (16,)" in error.message
    makers: list[tuple[str, dict[str, Any]]] = [
        ("rsl_rl", {"actor_state_dict": tensors, "critic_state_dict": tensors, "iter": 3}),
        ("rsl_rl", {"model_state_dict": tensors, "iter": 3, "infos": None}),
        ("save_model", {"policy": tensors, "q_funcs": tensors, "targ_q_funcs": tensors}),
        ("CleanRL", {"actor_mean.0.weight": torch.zeros(1), "critic.0.weight": torch.zeros(1)}),
    ]
    for maker, checkpoint in makers:
        error = refused("network-missing", "policy.pth", saved(checkpoint))
        assert maker in error.message
        assert (maker == "CleanRL") == ("NormalizeObservation" in error.marked_hint)


def test_weights_that_do_not_fit(networks: Any) -> None:
    """Both lists are shown; of two that fit, none is taken."""
    wide = torch.nn.Sequential(torch.nn.Linear(4, 32)).state_dict()
    error = refused("state-dict-mismatch", "policy.pth", saved({"model": wide}), factory="networks:Network")
    assert "networks:Network" in error.message
    assert "net.0.weight (16, 4)\n" in error.details
    assert "0.weight (32, 4)\n" in error.details
    tensors = networks.Network(SPECS[CARTPOLE]).state_dict()
    twice = {"model": tensors, "policy": tensors}
    refused("state-dict-ambiguous", "policy.pth", saved(twice), factory="networks:Network")
    refused("network-type", "policy.pth", saved(tensors), factory="networks:torch.Size")
    error = refused("module-missing", "policy.pth", saved(tensors), factory="absent:Network")
    assert "'absent'" in error.message


@pytest.mark.parametrize("name", ["policy.pt", "policy.pt2"])
def test_a_graph_that_draws_has_no_deterministic_mode(name: str, networks: Any) -> None:
    """It would draw all the same."""
    data = scripted(networks.Drawing()) if name == "policy.pt" else exported(networks.Drawing(), 2, 3)
    refused("policy-not-deterministic", name, data, PENDULUM, deterministic=True)
