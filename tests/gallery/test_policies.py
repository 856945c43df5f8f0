"""Real policies: `--policy` takes what their libraries save, and the actions are those of the library."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.helpers.datasets import assert_same_data, source_of
from tests.helpers.processes import called, executed, rollout
from tests.helpers.projects import project

__all__ = ["project"]

MAKE_SB3 = """
    import cloudpickle, gymnasium
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), n_steps=64, batch_size=32, n_epochs=1, seed=0, device="cpu")
    model.learn(64)
    model.save("ppo.zip")
    with open("ppo.pkl", "wb") as file:
        cloudpickle.dump(model.policy, file)
"""
LOAD_SB3 = """
    from stable_baselines3 import PPO

    def policy():
        return PPO.load("ppo.zip", device="cpu")
"""
MAKE_TORCH = """
    import cloudpickle, torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    with open("net.pkl", "wb") as file:
        cloudpickle.dump(net, file)
"""
MAKE_EXPORTED = """
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    exported = torch.export.export(net, (torch.zeros(2, 4),), dynamic_shapes=[{0: torch.export.Dim.AUTO}])
    torch.export.save(exported, "net.pt2")
"""
LOAD_EXPORTED = """
    def policy():
        import torch

        return torch.export.load("net.pt2").module()
"""
MAKE_ONNX = """
    import numpy as np, onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32), "weight")
    seen = helper.make_tensor_value_info("seen", TensorProto.FLOAT, [None, 4])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [None, 2])
    node = helper.make_node("MatMul", ["seen", "weight"], ["logits"])
    graph = helper.make_graph([node], "g", [seen], [logits], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, "net.onnx")
"""
LOAD_ONNX = """
    import numpy as np
    import onnxruntime

    class Policy:
        def __init__(self):
            self.session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])

        def get_action(self, observation):
            return np.int64(self.session.run(None, {"seen": observation[None]})[0].argmax()), {}
"""

POLICIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "Stable-Baselines3, a saved model": (MAKE_SB3, LOAD_SB3, ("mine:policy",)),
    "Stable-Baselines3, deterministic": (MAKE_SB3, LOAD_SB3, ("mine:policy", "--deterministic")),
    "Stable-Baselines3, a pickled policy": (MAKE_SB3, "", ("ppo.pkl",)),
    "a torch module": (MAKE_TORCH, "", ("net.pkl",)),
    "an exported program": (MAKE_EXPORTED, LOAD_EXPORTED, ("mine:policy",)),
    "an ONNX session": (MAKE_ONNX, LOAD_ONNX, ("mine:Policy",)),
}
"""How the library saves it, the module that a user writes, and the spec with options."""
HERE = ("--sampler", "local")
"""A run inside of the test's process, which has loaded torch."""
DRAW_FOR_ALL = ("Stable-Baselines3, a saved model", "Stable-Baselines3, a pickled policy")
"""They draw the actions of all rows from torch's global generator: with several rows no episode can be repeated."""


@pytest.mark.parametrize("rows", ["1", "4"])
@pytest.mark.parametrize("name", POLICIES)
def test_policies(project: Path, name: str, rows: str) -> None:
    """The same bytes here and by two processes, and replay agrees, or the dataset says why it cannot be so."""
    make, load, spec = POLICIES[name]
    executed(make, project)
    (project / "mine.py").write_text(dedent(load))
    words = (
        "collect",
        "--policy",
        *spec,
        "--timesteps",
        "600",
        "--seed",
        "3",
        "--envs-per-worker",
        rows,
        "--quiet",
    )
    called(*words, *HERE, "--output", "1")
    rollout(*words, "--workers", "2", "--output", "2", cwd=project)
    called("verify", "2")
    verdict = source_of(project / "2")["reproducible"]
    if rows == "4" and name in DRAW_FOR_ALL:
        assert "no" == verdict["status"]
        return
    assert "no" != verdict["status"], verdict
    assert_same_data(project / "1", project / "2")
    called("replay", "--trust", "2", "--all")


MAKE_GSDE = """
    import cloudpickle, gymnasium
    from stable_baselines3 import {name}

    model = {name}("MlpPolicy", gymnasium.make("Pendulum-v1"), use_sde=True, device="cpu")
    model.save("model.zip")
    with open("policy.pkl", "wb") as file:
        cloudpickle.dump(model.policy, file)
"""
LOAD_GSDE = """
    def policy():
        from stable_baselines3 import {name}

        return {name}.load("model.zip", device="cpu")
"""


@pytest.mark.parametrize(
    ("name", "spec"), [("PPO", "mine:policy"), ("SAC", "mine:policy"), ("PPO", "policy.pkl")]
)
def test_gsde_follows_from_the_number(project: Path, name: str, spec: str) -> None:
    """Its noise is drawn when it is loaded, and kept; here anew for each episode, in any worker, process and row."""
    executed(MAKE_GSDE.format(name=name), project)
    (project / "mine.py").write_text(dedent(LOAD_GSDE.format(name=name)))
    words = (
        "collect",
        "--env",
        "Pendulum-v1",
        "--max-episode-length",
        "40",
        "--episodes",
        "8",
        "--seed",
        "3",
        "--quiet",
    )
    rollout(*words, "--policy", spec, "--workers", "2", "--output", "two", cwd=project)
    for output, options in {"one": (), "rows": ("--envs-per-worker", "3")}.items():
        called(*words, "--policy", spec, *HERE, *options, "--output", output)
    for output in ("two", "one", "rows"):
        verdict = source_of(project / output)["reproducible"]
        assert "yes" == verdict["status"], verdict
        assert_same_data(project / "two", project / output)
    called("replay", "--trust", "two", "--all")
    check = """
        import rollout_cli

        # Many actions are cut at a bound, but not all.
        batch = rollout_cli.load("one").to_episode_batch()
        assert len(set(batch.actions[:, 0].tolist())) > 8
    """
    executed(check, project)


MAKE_MASKABLE = """
    from sb3_contrib import MaskablePPO
    from tests.gallery.worlds import masked_line

    model = MaskablePPO("MlpPolicy", masked_line(), n_steps=64, batch_size=32, n_epochs=1, seed=0, device="cpu")
    model.save("model.zip")
"""
LOAD_MASKABLE = """
    def policy():
        from sb3_contrib import MaskablePPO

        return MaskablePPO.load("model.zip", device="cpu")
"""


# The first one draws from numpy's global generator, which rows would share.
@pytest.mark.parametrize(
    ("env", "rows"), [("invalid_actions", "1"), ("masked_line", "1"), ("masked_line", "3")]
)
def test_a_maskable_model_takes_valid_actions_alone(project: Path, env: str, rows: str) -> None:
    """By the masks of its environment, or of sb3_contrib's ActionMasker around it."""
    executed(MAKE_MASKABLE.replace("masked_line", env), project)
    (project / "mine.py").write_text(dedent(LOAD_MASKABLE))
    words = (
        "collect",
        "--policy",
        "mine:policy",
        "--episodes",
        "12",
        "--seed",
        "3",
        "--envs-per-worker",
        rows,
    )
    asked = (*words, "--env", f"tests.gallery.worlds:{env}")
    called(*asked, *HERE, "--output", "1")
    rollout(*asked, "--workers", "2", "--output", "2", cwd=project)
    check = """
        import rollout_cli

        infos = rollout_cli.load("2").to_episode_batch().env_infos
        assert len(infos["is_valid"]) > 100 and infos["is_valid"].all()
    """
    executed(check, project)
    if rows == "1":
        assert_same_data(project / "1", project / "2")
        called("replay", "--trust", "2", "--all")


def test_a_maskable_model_needs_masks(project: Path) -> None:
    """In an environment that has none it is refused when it is loaded, and the hint names both ways to give it some."""
    executed(MAKE_MASKABLE, project)
    (project / "mine.py").write_text(dedent(LOAD_MASKABLE))
    words = ("collect", "--policy", "mine:policy", "--episodes", "2", *HERE, "--output", "out")
    ran = called(*words, code=3)
    assert all(part in ran.stderr for part in ("MaskablePPO", "[policy-masks]"))
    assert all(part in ran.stderr for part in ("action_masks()", "ActionMasker"))


def test_sb3_gives_its_own_actions(project: Path) -> None:
    """With --deterministic, every stored action is what the model's own `predict` gives for the stored observation."""
    executed(MAKE_SB3, project)
    (project / "mine.py").write_text(dedent(LOAD_SB3))
    words = (
        "--policy",
        "mine:policy",
        "--deterministic",
        "--timesteps",
        "300",
        "--seed",
        "1",
        *HERE,
    )
    called("collect", *words, "--output", "out")
    check = """
        import numpy as np, rollout_cli
        from stable_baselines3 import PPO

        batch = rollout_cli.load("out").to_episode_batch()
        actions, _ = PPO.load("ppo.zip", device="cpu").predict(batch.observations, deterministic=True)
        assert np.array_equal(actions, batch.actions) and len(actions) >= 300
    """
    executed(check, project)
