"""JAX environments in the commands: options that work or are refused by name, checks, policies and interrupts.

`ROLLOUT_TEST_LIBRARY=functional` runs this module too; the tests of Stable-Baselines3, torch, optax and Ray need
these packages next to JAX.
"""

from __future__ import annotations

import json
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import rollout_cli
from rollout_cli.run import tune as tuning
from rollout_cli.seeding.seeds import env_seed
from tests.helpers.datasets import assert_same_data, has_commit, source_of
from tests.helpers.processes import ROOT, Ran, called, rollout, running

CARTPOLE = ("--env", "gymnax:CartPole-v1")
COMMON = ("--seed", "5", "--envs-per-worker", "16", "--workers", "1", "--quiet")
LOCAL = ("--sampler", "local")
"""In this process, which has loaded JAX."""

SLOW = pytest.mark.timeout(400)
"""For tests that compile several programs."""

MODULE = '''
import time
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import rollout_cli
from gymnasium import spaces


class Walk:
    """Ends after as many steps as its seed says, 4 to 8; draws its cell."""

    observation_space = spaces.Box(0, 99, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    max_episode_steps = None

    def __init__(self, **kwargs):
        self.kwargs = kwargs

    def reset(self, key):
        state = jnp.int32(0), jax.random.randint(key, (), 4, 9)
        return self.observe(state), state

    def step(self, key, state, action):
        state = state[0] + 1, state[1]
        return self.observe(state), state, action[0], state[0] >= state[1], jnp.bool_(False), {}

    def observe(self, state):
        return state[0][None].astype(jnp.float32)


class Drawn(Walk):
    def render(self, state):
        return jnp.zeros((16, 12, 3), jnp.uint8).at[state[0]].set(255)


class Leaking(Walk):
    """Returns another observation whenever it is traced."""

    def observe(self, state):
        self.kwargs["traces"] = self.kwargs.get("traces", 0) + 1
        return super().observe(state) + self.kwargs["traces"]


class Compiling(Walk):
    """Takes its time to compile: in `seconds` whenever it is traced."""

    def step(self, key, state, action):
        time.sleep(self.kwargs["seconds"])
        return super().step(key, state, action)


class Hanging(Walk):
    """Hangs in a step of a compiled program."""

    def step(self, key, state, action):
        waited = jax.pure_callback(self.wait, jax.ShapeDtypeStruct((), jnp.int32), state[0], vmap_method="sequential")
        return super().step(key, (state[0] + waited, state[1]), action)

    def wait(self, position):
        time.sleep(100.0 if position == 3 else 0.0)
        return np.int32(0)


class Endless(Walk):
    def reset(self, key):
        return self.observe((jnp.int32(0),)), (jnp.int32(0), jnp.int32(1 << 30))


class Constant:
    """A policy of the host with a deterministic mode."""

    deterministic = False

    def get_actions(self, observations):
        return np.full((len(observations), 1), 0.5 if self.deterministic else 0.25, np.float32), {}


class Inside:
    def jax_act(self, key, observation, params):
        return jnp.zeros(1)


class Own(rollout_cli.VecWorker):
    def step_env(self, env, action):
        return env.step(action)
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with the module `worlds`."""
    (tmp_path / "worlds.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "worlds", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def walk(*words: str, env: str = "Walk", code: int = 0) -> Ran:
    """Collect 20 episodes of an environment of the module, in this process, to the folder `out`."""
    more = () if "--episodes" in words else ("--episodes", "20")
    return called(
        "collect", "--env", f"worlds:{env}", *more, *COMMON, *LOCAL, "--output", "out", *words, code=code
    )


def loaded(name: str = "out") -> Any:
    return rollout_cli.load(name).to_episode_batch()


# -- commands --------------------------------------------------------------------------------------------------


def test_exact() -> None:
    """Two workers run their own episodes; the dataset is valid and replays bit for bit."""
    words = ("exact", *CARTPOLE, "--episodes-per-worker", "3", *COMMON, "--workers", "2", "--output", "out")
    called(*words)
    called("verify", "out")
    called("replay", "out", "--all")
    assert 6 == len(loaded().lengths)


@SLOW
def test_check() -> None:
    """It runs the check of JAX environments, and the rate leaves out the compiler; a fault is named."""
    ran = called(
        "check", *CARTPOLE, "--timesteps", "3000", "--envs-per-worker", "64", "--seconds", "90", "--json"
    )
    report = json.loads(ran.stdout)
    assert report["passed"]
    assert "JAX environment" in {one["check"] for one in report["checks"]}
    assert report["costs"]["steps_per_second"] > 5_000
    ran = called(
        "check", "--env", "worlds:Leaking", "--timesteps", "3000", "--seconds", "90", "--json", code=3
    )
    faults = [one for one in json.loads(ran.stdout)["checks"] if one["status"] == "fail"]
    assert any("two runs with the same keys differ" in one["what"] for one in faults)
    called(
        "check", "--env", "worlds:Walk", "--policy", "worlds:Inside", "--timesteps", "300", "--seconds", "90"
    )
    # Its observation has the last reward, which may be below the bounds.
    ran = called(
        "check", "--env", "gymnax:GaussianBandit-misc", "--timesteps", "300", "--seconds", "90", "--json"
    )
    warnings = [one["what"] for one in json.loads(ran.stdout)["checks"] if one["status"] == "warn"]
    assert any("outside Box" in warning for warning in warnings)


@SLOW
def test_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries numbers of rows with one worker."""
    monkeypatch.setattr(tuning, "_JAX", (16, 32))
    monkeypatch.setattr(tuning, "_FINALISTS", 1)
    monkeypatch.setattr(tuning, "_ROUNDS", 1)
    words = ("tune", *CARTPOLE, *LOCAL, "--envs-per-worker", "16", "--seconds", "0.2", "--json")
    result = json.loads(called(*words).stdout)
    assert [16, 32] == [row["options"]["envs_per_worker"] for row in result["rows"]]
    assert {1} == {row["options"]["workers"] for row in result["rows"]}
    assert all(row["rate"] for row in result["rows"])


def test_render() -> None:
    """By `render(state)` of the environment, which repeats the episode; gymnax has none."""
    walk(env="Drawn")
    ran = called("render", "out", "--episode", "3", "--output", "frames", "--trust", "--json")
    shown = json.loads(ran.stdout)
    length = int(loaded().lengths[3])
    assert length + 1 == len(list(Path("frames").glob("*.png"))) == shown["frames"]
    called("collect", *CARTPOLE, "--episodes", "2", *COMMON, *LOCAL, "--output", "gymnax")
    ran = called("render", "gymnax", "--episode", "0", "--output", "other", code=3)
    assert "render(state)" in ran.stderr


# -- options ---------------------------------------------------------------------------------------------------

REFUSED = {
    "wrapper": ("TimeAwareObservation",),
    "fresh-env": (),
    "reset-options": ("a=1",),
    "tasks": ("tasks.json",),
    "store-state": (),
    "worker-class": ("worlds:Own",),
    "vectorization": ("native",),
}


@pytest.mark.parametrize("option", REFUSED)
def test_an_option_without_meaning_is_refused_by_name(option: str) -> None:
    """With the exit code of usage, and before anything runs."""
    Path("tasks.json").write_text('[{"a": 1}]')
    ran = walk(f"--{option}", *REFUSED[option], code=2)
    assert f"--{option}" in ran.stderr
    assert "JAX environment" in ran.stderr
    assert not Path("out").exists()


@pytest.mark.parametrize("option", ["epsilon", "action-noise"])
def test_noise_needs_a_policy_of_the_host(option: str) -> None:
    """For which it works as in every environment; a policy in the program is refused."""
    walk("--policy", "worlds:Constant", f"--{option}", "0.5")
    values = loaded().actions
    assert not (values == 0.25).all()
    assert (np.abs(values) <= 1).all()
    if option == "epsilon":
        assert 0.3 < (values == 0.25).mean() < 0.7
    ran = walk("--policy", "worlds:Inside", f"--{option}", "0.5", "--overwrite", code=2)
    assert f"--{option}" in ran.stderr
    assert "jax_act" in ran.stderr


def test_options_that_work_as_everywhere() -> None:
    """Of policies, episodes and columns."""
    walk()
    whole = loaded()
    walk("--policy", "worlds:Constant", "--deterministic", "--next-observation", "--overwrite")
    assert {0.5} == set(loaded().actions.flat)
    assert whole.lengths.tolist() == loaded().lengths.tolist()
    walk("--keep", "length >= 7", "--overwrite", "--episodes", "4")
    kept = loaded()
    assert [length for length in whole.lengths if length >= 7][:4] == kept.lengths.tolist()
    walk("--max-episode-length", "5", "--overwrite")
    short = loaded()
    assert np.minimum(whole.lengths, 5).tolist() == short.lengths.tolist()
    ran = walk("--require-reproducible", "--episode-step-guard", "99", "--overwrite")
    assert "not reproducible" not in ran.stderr
    walk("--episodes", "1", "--episode-step-guard", "99", "--overwrite", env="Endless", code=3)


def test_a_policy_process() -> None:
    """Its workers ask it for actions of all rows."""
    words = ("collect", "--env", "worlds:Walk", "--policy", "worlds:Constant", "--episodes", "20", *COMMON)
    called(*words, "--output", "plain")
    called(*words, "--policy-process", "--output", "served")
    assert_same_data(Path("plain"), Path("served"))


def test_a_dataset_of_a_module_needs_trust() -> None:
    """To be replayed, as any module; gymnax does not."""
    walk()
    assert "--trust" in called("replay", "out", "--all", code=3).stderr
    called("replay", "out", "--all", "--trust")


@SLOW
def test_time_limits_leave_out_the_compiler() -> None:
    """A step that hangs is found, for policies in the program and on the host."""
    limits = ("--step-timeout", "1", "--episode-timeout", "1.5", "--max-worker-restarts", "0")
    words = ("collect", "--episodes", "20", *COMMON, *limits, "--overwrite", "--output", "out")
    for policy in ("random", "worlds:Constant"):
        chosen = ("--policy", policy)
        ran = rollout(*words, *chosen, "--env", "worlds:Compiling", "--env-kwargs", "seconds=3")
        assert "killed" not in ran.stderr
        ran = rollout(*words, *chosen, "--env", "worlds:Hanging", code=4)
        assert "a step took longer than 1 s" in ran.stderr
    ran = rollout(*words, "--sampler", "ray", "--env", "worlds:Compiling", "--env-kwargs", "seconds=3")
    assert "killed" not in ran.stderr


def test_a_random_policy_needs_no_process() -> None:
    """With `--policy-process` it acts inside the program, too."""
    words = ("collect", *CARTPOLE, *COMMON, "--episodes", "20", "--output")
    rollout(*words, "direct")
    rollout(*words, "served", "--policy-process")
    assert_same_data(Path("direct"), Path("served"))
    ran = walk("--policy", "worlds:Inside", "--policy-process", code=2)
    assert "--policy-process" in ran.stderr


def test_device() -> None:
    """The CPU is there; a GPU that is not, and an environment of gymnasium, are refused in a clear line."""
    walk("--device", "cpu")
    assert "cpu" == source_of(Path("out"))["collector"]["device"]
    if jax.default_backend() == "cpu":
        ran = walk("--device", "gpu", "--overwrite", code=2)
        assert "JAX has no device 'gpu'" in ran.stderr
    words = ("collect", "--env", "CartPole-v1", "--episodes", "2", *COMMON, *LOCAL, "--output", "plain")
    assert "--device" in called(*words, "--device", "cpu", code=2).stderr


# -- faults and endings ----------------------------------------------------------------------------------------


def test_a_signal_while_it_compiles() -> None:
    """A notice reports compiling, and Ctrl-C ends it."""
    words = (
        "collect",
        "--env",
        "worlds:Compiling",
        "--env-kwargs",
        "seconds=60",
        "--episodes",
        "9",
        "--workers",
        "1",
    )
    with running([*words, "--output", "out"]) as run:
        said = run.wait_to_say("compiling")
        run.process.send_signal(signal.SIGINT)
        ran = run.end()
    assert "worlds:Compiling" in said
    assert 130 == ran.code, ran.said
    assert not ran.left


def test_a_signal_while_it_runs() -> None:
    """What is complete is committed, and the run resumes to the bytes of a whole one."""
    words = ("collect", "--env", "worlds:Walk", *COMMON, "--output")
    with running([*words, "out", "--episodes", "100000000", "--flush-every", "0.05"]) as run:
        run.wait_until(lambda: has_commit(Path("out")))
        run.process.send_signal(signal.SIGINT)
        ran = run.end()
    assert 130 == ran.code, ran.said
    called("verify", "out")
    done = len(rollout_cli.load("out"))
    called("collect", "--resume", *LOCAL, "--episodes", str(done + 1_000), "--quiet", "--output", "out")
    called(*words, "whole", "--episodes", str(done + 1_000), *LOCAL)
    assert_same_data(Path("whole"), Path("out"))


def test_other_versions_are_reported() -> None:
    """By replay and resume."""
    called("collect", *CARTPOLE, "--timesteps", "3000", *COMMON, *LOCAL, "--output", "out")
    path = Path("out/meta/info.json")
    info = json.loads(path.read_text())
    versions = info["sources"][0]["versions"]
    assert {"jax", "jaxlib", "gymnax"} <= versions.keys()
    versions["jax"] = "0.0.1"
    path.write_text(json.dumps(info))
    assert "jax was 0.0.1" in called("replay", "out", "--episode", "3").stderr
    words = ("collect", "--resume", "--output", "out", "--timesteps", "4000", *LOCAL)
    assert "jax was 0.0.1" in called(*words).stderr


def test_the_files_of_a_policy_are_pinned() -> None:
    """A changed module of a policy in the program is refused when the run is resumed."""
    text = "import jax.numpy as jnp\nclass Fixed:\n    def jax_act(self, key, observation, params):\n"
    Path("fixed.py").write_text(f"{text}        return jnp.zeros(1)\n")
    words = ("--policy", "fixed:Fixed", "--env", "worlds:Walk", *COMMON, "--output", "out")
    rollout("collect", *words, "--episodes", "4")
    Path("fixed.py").write_text(f"{text}        return jnp.ones(1)\n")
    ran = rollout("collect", "--resume", "--output", "out", "--episodes", "8", code=None)
    assert ran.code != 0
    assert "fixed.py" in ran.stderr


def test_without_jax() -> None:
    """The line says what to install."""
    program = (
        "import sys; sys.modules[{name!r}] = None; from rollout_cli.cli.app import run; "
        "sys.exit(run(['collect', '--env', 'gymnax:CartPole-v1', '--episodes', '1', '--sampler', 'local']))"
    )
    for name in ("jax", "gymnax"):
        ran = subprocess.run(
            [sys.executable, "-c", program.format(name=name)], capture_output=True, text=True, check=False
        )
        assert 2 == ran.returncode, ran.stderr
        assert f"pip install {name}" in ran.stderr


# -- samplers and policies -------------------------------------------------------------------------------------


def factory(n_envs: int = 16) -> rollout_cli.WorkerFactory:
    return rollout_cli.WorkerFactory(
        worker_class=rollout_cli.VecWorker, worker_args={"n_envs": n_envs}, n_workers=1, seed=5
    )


class Network(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two layers."""

    @nn.compact  # type: ignore[untyped-decorator, unused-ignore]
    def __call__(self, observation: Any) -> Any:
        return nn.Dense(2)(nn.tanh(nn.Dense(8)(observation)))


class Flax:
    """A flax network that samples actions."""

    traces = 0

    def __init__(self, params: Any) -> None:
        self.params = params

    def get_param_values(self) -> Any:
        return self.params

    def set_param_values(self, params: Any) -> None:
        self.params = params

    def jax_act(self, key: Any, observation: Any, params: Any) -> Any:
        Flax.traces += 1
        return jax.random.categorical(key, Network().apply(params, observation))


def test_a_flax_policy_compiles_once() -> None:
    """In fifty updates, of which each decides the actions of the next episodes."""
    params: Any = Network().init(jax.random.key(0), jnp.zeros(4))
    means = []
    with rollout_cli.LocalSampler(Flax(params), CARTPOLE[1], worker_factory=factory()) as sampler:
        sampler.obtain_samples(0, 100, agent_update=None)
        traces = Flax.traces
        for update in range(50):
            params = jax.tree.map(lambda leaf: leaf, params)
            params["params"]["Dense_0"]["bias"] = jnp.array([10.0, -10.0] if update % 2 else [-10.0, 10.0])
            means.append(float(sampler.obtain_samples(0, 100, agent_update=params).actions.mean()))
    assert traces == Flax.traces
    assert [1.0, 0.0] * 25 == pytest.approx(means, abs=0.05)


@pytest.mark.parametrize("name", ["MultiprocessingSampler", "RaySampler"])
def test_samplers_of_processes(name: str, tmp_path: Path) -> None:
    """They return the episodes of the sampler of this process; they run in another, since JAX warns at a fork."""
    with rollout_cli.LocalSampler("random", CARTPOLE[1], worker_factory=factory()) as sampler:
        expected = sampler.obtain_exact_episodes(20, None)
    program = f"""
import numpy as np
import rollout_cli

if __name__ == "__main__":
    arguments = {{"n_envs": 16}}
    factory = rollout_cli.WorkerFactory(
        worker_class=rollout_cli.VecWorker, worker_args=arguments, n_workers=1, seed=5
    )
    with rollout_cli.{name}("random", "{CARTPOLE[1]}", worker_factory=factory) as sampler:
        batch = sampler.obtain_exact_episodes(20, None)
    np.savez("batch.npz", observations=batch.observations, actions=batch.actions)
"""
    with running(["-c", program], cwd=tmp_path, program=[sys.executable]) as process:
        ran = process.end()
    assert ran.code == 0, ran.said
    actual = np.load(tmp_path / "batch.npz")
    assert np.array_equal(expected.observations, actual["observations"])
    assert np.array_equal(expected.actions, actual["actions"])


def host_loop(act: Callable[[Any], Any], seeds: Any, lengths: Any) -> list[int]:
    """Return the actions of a policy in a loop of gymnax's functions with the documented keys."""
    env, params = gymnax.make("CartPole-v1")
    reset = jax.jit(jax.vmap(lambda key: env.reset_env(key, params)))
    step = jax.jit(jax.vmap(lambda key, state, action: env.step_env(key, state, action, params)))
    actions = []
    for seed, length in zip(seeds, lengths, strict=True):
        key, reset_key = jax.random.split(jax.random.key(np.uint32(seed)))
        observation, state = reset(reset_key[None])
        for _ in range(length):
            key, _, step_key = jax.random.split(key, 3)
            action = act(np.asarray(observation))
            actions.append(int(action[0]))
            observation, state, _, terminated, _ = step(step_key[None], state, np.asarray(action))
        assert bool(terminated[0]) or length == 500
    return actions


def test_a_model_of_stable_baselines3() -> None:
    """Its zip acts as in a loop of gymnax's functions."""
    import stable_baselines3 as sb3

    model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=1, device="cpu")
    model.save("ppo.zip")
    words = ("--policy", "ppo.zip", "--deterministic", *COMMON, *LOCAL, "--output", "out")
    called("collect", *CARTPOLE, "--episodes", "20", *words)
    batch = loaded()
    seeds = rollout_cli.load("out").episodes["seed"].to_pylist()
    expected = host_loop(
        lambda rows: model.predict(rows, deterministic=True)[0], seeds, batch.lengths.tolist()
    )
    assert expected == batch.actions.tolist()
    called("replay", "out", "--all", "--trust")


def test_a_module_of_torch() -> None:
    """It acts as in a loop of gymnax's functions."""
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).eval()

    class Greedy(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, observations: Any) -> Any:
            return self.module(observations).argmax(dim=1)

    with rollout_cli.LocalSampler(Greedy(), CARTPOLE[1], worker_factory=factory()) as sampler:
        batch = sampler.obtain_exact_episodes(20, None)

    def act(rows: Any) -> Any:
        with torch.no_grad():
            return Greedy()(torch.as_tensor(rows.copy())).numpy()

    seeds = [env_seed(5, number) for number in range(20)]
    assert host_loop(act, seeds, batch.lengths.tolist()) == batch.actions.tolist()


@SLOW
def test_the_example_learns(folder: Path) -> None:
    """REINFORCE of docs/jax.md reaches a mean return of 400, and its checkpoint is a policy."""
    page = (ROOT / "docs/jax.md").read_text()
    for name in ("reinforce", "trained"):
        match = re.search(rf"```python\n(# {name}\.py\n.*?)```", page, re.DOTALL)
        assert match
        assert match[1].count("\n") <= 100
        (folder / f"{name}.py").write_text(match[1])
    trained = runpy.run_path("reinforce.py")["train"]()
    assert trained[0] < 100
    words = ("--policy", "trained:load", "--policy-kwargs", "checkpoint=params.msgpack", "--deterministic")
    called("collect", *CARTPOLE, *COMMON, *words, "--episodes", "20", "--output", "out")
    assert np.mean([len(episode.rewards) for episode in rollout_cli.load("out")]) > 400


def test_sample_config(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The sample runs, and says how."""
    monkeypatch.chdir(ROOT)
    ran = called("collect", "--config", "sample_configs/jax.toml", "--output", folder / "out", "--json")
    result = json.loads(ran.stdout)
    assert result["steps"] >= 50_000
    assert "gymnax:Breakout-MinAtar" == source_of(folder / "out")["env_source"]["spec"]
    assert (
        "rollout collect --config sample_configs/jax.toml" in (ROOT / "sample_configs/jax.toml").read_text()
    )
