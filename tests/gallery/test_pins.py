"""Stories of real policies and environments whose files change: a run, a resume and a merge never mix two of them."""

from __future__ import annotations

import signal
from pathlib import Path
from textwrap import dedent

import pytest

from tests.helpers.datasets import assert_same_data, data_hashes, info_of, numbers_of, source_of
from tests.helpers.processes import called, executed, rollout, running

SB3 = """
    import gymnasium, sys
    from stable_baselines3 import PPO

    env = gymnasium.make("CartPole-v1")
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=1, seed=int(sys.argv[1]), device="cpu")
    model.learn(64).save("ppo.zip")
"""
LOAD_SB3 = """
    from stable_baselines3 import PPO

    def policy():
        return PPO.load("ppo.zip", device="cpu")
"""
TORCH = """
    import sys, torch
    from safetensors.torch import save_file

    torch.manual_seed(int(sys.argv[1]))
    net = torch.nn.Linear(4, 2)
    torch.save(net.state_dict(), "state.pt")
    save_file(net.state_dict(), "state.safetensors")
    torch.jit.script(net).save("net.torchscript")
"""
LOAD_STATE = """
    import torch

    def policy():
        net = torch.nn.Linear(4, 2)
        net.load_state_dict(torch.load("state.pt", weights_only=True))
        return lambda observation: int(net(torch.from_numpy(observation)).argmax())
"""
LOAD_LATE = """
    import torch

    class Policy:
        net = None

        def get_action(self, observation):
            if self.net is None:
                self.net = torch.nn.Linear(4, 2)
                self.net.load_state_dict(torch.load("state.pt", weights_only=True))
            return int(self.net(torch.from_numpy(observation)).argmax()), {}

    policy = Policy
"""
LOAD_SAFETENSORS = """
    import torch
    from safetensors.torch import load_file

    def policy():
        net = torch.nn.Linear(4, 2)
        net.load_state_dict(load_file("state.safetensors"))
        return lambda observation: int(net(torch.from_numpy(observation)).argmax())
"""
LOAD_TORCHSCRIPT = """
    import torch

    def policy():
        net = torch.jit.load("net.torchscript")
        return lambda observation: int(net(torch.from_numpy(observation)).argmax())
"""
NAMED = {"Stable-Baselines3": "ppo.zip", "a state dict": "state.pt", "a state dict, late": "state.pt"}
POLICIES = {
    "Stable-Baselines3": (SB3, LOAD_SB3),
    "a state dict": (TORCH, LOAD_STATE),
    "a state dict, late": (TORCH, LOAD_LATE),
    "safetensors": (TORCH, LOAD_SAFETENSORS),
    "TorchScript": (TORCH, LOAD_TORCHSCRIPT),
}
WORDS = ("-w", "1", "--quiet")
HERE = (*WORDS, "--sampler", "local")
"""One process, and no second one for the check: each takes seconds to load torch."""


def models(folder: Path) -> dict[str, bytes]:
    """Return the saved models; a zip of one training has other bytes than that of the same training again."""
    files = (
        path for suffix in ("zip", "pt", "safetensors", "torchscript") for path in folder.glob(f"*.{suffix}")
    )
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture(params=POLICIES)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Write a model and the module that loads it."""
    make, load = POLICIES[request.param]
    executed(make, tmp_path, "0")
    (tmp_path / "champion.py").write_text(dedent(load))
    return str(request.param)


def test_a_model_that_was_trained_again_is_not_mixed_in(kind: str, tmp_path: Path) -> None:
    """A resume is refused, and the data are as they were; a hook sees the file, or the stored episode differs."""
    rollout(
        "collect",
        "--policy",
        "champion:policy",
        "-n",
        "1100",
        "--seed",
        "1",
        *WORDS,
        "-o",
        "out",
        cwd=tmp_path,
    )
    files = {file["path"] for file in source_of(tmp_path / "out")["files"]}
    assert {"champion.py", *filter(None, [NAMED.get(kind)])} == files
    before, model = data_hashes(tmp_path / "out"), models(tmp_path)
    executed(POLICIES[kind][0], tmp_path, "1")
    refused = rollout("collect", "--resume", "-n", "2000", *HERE, "-o", "out", cwd=tmp_path, code=2)
    assert "[resume-differs]" in refused.stderr
    assert NAMED.get(kind, "episode 0") in refused.stderr
    assert before == data_hashes(tmp_path / "out")
    for name, content in model.items():
        (tmp_path / name).write_bytes(content)
    rollout("collect", "--resume", "-n", "2000", *HERE, "-o", "out", cwd=tmp_path)
    assert "yes" == source_of(tmp_path / "out")["reproducible"]["status"]


def test_shards_of_two_models_are_not_merged(kind: str, tmp_path: Path) -> None:
    """Two folders with equal files give the single run's bytes; with another model in one of them they are refused."""
    words = ("--policy", "champion:policy", "--episodes", "60", "--seed", "1", *HERE)
    rollout("collect", *words, "-o", "whole", cwd=tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    for name, content in models(tmp_path).items():
        (other / name).write_bytes(content)
    (other / "champion.py").write_text(dedent(POLICIES[kind][1]))
    rollout("collect", *words, "--shard", "1/2", "-o", "first", cwd=tmp_path)
    rollout("collect", *words, "--shard", "2/2", "-o", "second", cwd=other)
    called("merge", "first", "other/second", "-o", "merged", cwd=tmp_path)
    assert_same_data(tmp_path / "whole", tmp_path / "merged")
    executed(POLICIES[kind][0], other, "1")
    rollout("collect", *words, "--shard", "2/2", "--overwrite", "-o", "second", cwd=other)
    refused = called("merge", "first", "other/second", "-o", "again", cwd=tmp_path, code=2)
    assert "[shards-of-other-files]" in refused.stderr
    assert NAMED.get(kind, "") in refused.stderr


def test_a_worker_whose_model_was_replaced_ends_the_run(tmp_path: Path) -> None:
    """By the name of the file, with what was committed safe."""
    executed(SB3, tmp_path, "0")
    (tmp_path / "champion.py").write_text(dedent(LOAD_SB3))
    out = tmp_path / "out"
    words = [
        "collect",
        "--policy",
        "champion:policy",
        "-n",
        "10000000",
        "--flush-every",
        "0.1",
        "-w",
        "1",
        "-o",
        str(out),
    ]
    with running(words, cwd=tmp_path) as run:
        # A dataset with the decided columns replaces the one before: in between there is none.
        run.wait_until(lambda: info_of(out).get("info_columns") == "decided" and bool(committed(out)))
        executed(SB3, tmp_path, "1")
        run.workers()[0].send_signal(signal.SIGKILL)
        ran = run.end()
    assert 3 == ran.code, ran.said
    assert all(part in ran.stderr for part in ("ppo.zip", "[files-changed]"))
    called("verify", out)


def committed(out: Path) -> list[int]:
    try:
        return numbers_of(out)
    except (OSError, ValueError):
        return []


def test_an_xml_of_mujoco_is_found(tmp_path: Path) -> None:
    """MuJoCo reads it in C: the stored episode differs; named by an argument, the file is named too."""
    executed(
        """
        import pathlib, gymnasium.envs.mujoco as mujoco

        text = (pathlib.Path(mujoco.__file__).parent / "assets" / "half_cheetah.xml").read_text()
        pathlib.Path("cheetah.xml").write_text(text)
        """,
        tmp_path,
    )
    xml = tmp_path / "cheetah.xml"
    (tmp_path / "world.py").write_text(
        dedent(
            """
            from pathlib import Path
            from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

            def make():
                return HalfCheetahEnv(xml_file=str(Path("cheetah.xml").absolute()))
            """
        )
    )
    words = ("-n", "1100", "--seed", "1", "--max-episode-length", "200", *WORDS)
    rollout("collect", "-e", "world:make", *words, "-o", "hidden", cwd=tmp_path)
    rollout(
        "collect",
        "-e",
        "HalfCheetah-v5",
        "--env-kwargs",
        f"xml_file={xml}",
        *words,
        "-o",
        "named",
        cwd=tmp_path,
    )
    assert {"world.py"} == {file["path"] for file in source_of(tmp_path / "hidden")["files"]}
    assert {"cheetah.xml"} == {file["path"] for file in source_of(tmp_path / "named")["files"]}
    text = xml.read_text()
    xml.write_text(text.replace('gravity="0 0 -9.81"', 'gravity="0 0 -5"'))
    assert text != xml.read_text()
    for name, named in (("hidden", "episode 0"), ("named", "cheetah.xml")):
        refused = rollout("collect", "--resume", "-n", "2000", *WORDS, "-o", name, cwd=tmp_path, code=2)
        assert all(part in refused.stderr for part in (named, "[resume-differs]"))


def test_bipedal_walker_goes_on_and_is_not_reproducible(tmp_path: Path) -> None:
    """Its physics keep state: a resume is not refused, and the verdict is `no`."""
    words = ("-e", "BipedalWalker-v3", "--seed", "3", *WORDS, "-o", "out")
    rollout("collect", *words, "--episodes", "12", cwd=tmp_path)
    rollout("collect", *words, "--episodes", "16", "--resume", cwd=tmp_path)
    assert "no" == source_of(tmp_path / "out")["reproducible"]["status"]


@pytest.mark.parametrize("rows", ["1", "3"])
def test_bipedal_walker_is_reproducible_in_a_fresh_environment(tmp_path: Path, rows: str) -> None:
    """The same bytes for 1 and 3 workers, and an identical replay."""
    words = (
        "-e",
        "BipedalWalker-v3",
        "--fresh-env",
        "--episodes",
        "12",
        "--seed",
        "3",
        "-m",
        rows,
        "--quiet",
    )
    for n_workers in ("1", "3"):
        rollout("collect", *words, "-w", n_workers, "-o", n_workers, cwd=tmp_path)
        assert "yes" == source_of(tmp_path / n_workers)["reproducible"]["status"]
    assert_same_data(tmp_path / "1", tmp_path / "3")
    rollout("replay", "--trust", "1", "--all", cwd=tmp_path)
