"""Run folders of rl_zoo3: the folder alone gives policy, statistics and environment; nothing in its files runs."""

from __future__ import annotations

import json
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import yaml
from gymnasium import spaces
from sb3_contrib.common.wrappers import TimeFeatureWrapper
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from rollout_cli import evaluate, load
from rollout_cli.envs.frames import StackedFrames
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError, RolloutError
from rollout_cli.options.config import CollectConfig
from rollout_cli.policies.source import policy_source
from rollout_cli.progress import Progress
from rollout_cli.run.checks.trial import Trial
from rollout_cli.run.request import completed, env_of
from tests.helpers.datasets import assert_same_data, source_of
from tests.helpers.errors import raises
from tests.helpers.processes import called, rollout

ENV, WRAPPER, STEPS = "Pendulum-v1", "sb3_contrib.common.wrappers.TimeFeatureWrapper", {"max_steps": 50}
SETTINGS = {"env_wrapper": [{WRAPPER: STEPS}], "normalize": "dict(norm_obs=True)", "policy": "MlpPolicy"}
FLAGS = (
    *("--env", ENV, "--env-kwargs", "g=9.0"),
    *("--wrapper", "sb3_contrib.common.wrappers:TimeFeatureWrapper?max_steps=50"),
)


def run_folder(parent: Path, settings: dict[str, Any], env: str | None = ENV, **arguments: Any) -> Path:
    """Write the files of a run as the zoo does, with an empty model."""
    folder = parent / f"{env}_1"
    inner = folder / str(env)
    inner.mkdir(parents=True)
    (folder / f"{env}.zip").touch()
    written = {"algo": "ppo", "env": env, "env_kwargs": None, "gym_packages": [], "seed": 3, **arguments}
    for name, document in (("args.yml", written), ("config.yml", settings)):
        (inner / name).write_text(yaml.dump(OrderedDict(sorted(document.items()))))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Give a model, trained for some steps in a VecNormalize of a wrapped environment, and its run folder."""

    def make() -> Any:
        return TimeFeatureWrapper(gymnasium.make(ENV, g=9.0), **STEPS)

    env = VecNormalize(DummyVecEnv([make]))
    model = stable_baselines3.PPO(
        "MlpPolicy", env, device="cpu", n_steps=32, batch_size=32, seed=0, policy_kwargs={"net_arch": [8]}
    )
    model.learn(64)
    folder = run_folder(tmp_path_factory.mktemp("ppo"), SETTINGS, env_kwargs={"g": 9.0})
    model.save(folder / f"{ENV}.zip")
    env.save(str(folder / ENV / "vecnormalize.pkl"))
    env.training = False
    return model, folder


def dry_run(*words: str | Path) -> dict[str, Any]:
    """Return the configuration that these words mean."""
    return dict(json.loads(called("collect", *words, "--episodes", "1", "--dry-run", "--json").stdout))


def test_the_folder_is_all_that_is_named(trained: tuple[Any, Path], tmp_path: Path) -> None:
    """The run is that of the flags that a notice names; it is resumed and replayed from another folder."""
    _, folder = trained
    words = ("--max-episode-length", "20", "--seed", "1", "--sampler", "local")
    first = ("collect", "--policy", folder.name, *words, "--episodes", "2", "--output", tmp_path / "out")
    said = called(*first, cwd=folder.parent).stderr
    assert f"using the training environment of {folder.name}: --env {ENV} --env-kwargs=g=9.0 " in said, said
    called("collect", "--policy", folder, *FLAGS, *words, "--episodes", "3", "--output", tmp_path / "named")
    called("collect", "--resume", "--episodes", "3", "--output", tmp_path / "out", cwd=Path("/"))
    assert_same_data(tmp_path / "named", tmp_path / "out")
    records = [source_of(tmp_path / name) for name in ("named", "out")]
    assert records[0]["env_source"] == records[1]["env_source"]
    assert records[0]["env"] == records[1]["env"]
    assert [{"max_steps": 50}] == [wrapper["kwargs"] for wrapper in records[1]["env_source"]["wrappers"]]
    called("replay", tmp_path / "out", "--all", cwd=Path("/"))
    assert 1.0 >= load(tmp_path / "out")[0].observations[0, -1] > 0  # It is the time that is left.


def test_an_evaluation_has_the_environment_of_the_folder(trained: tuple[Any, Path]) -> None:
    """Also where another policy is named before it."""
    _, folder = trained
    options: dict[str, Any] = {"episodes": 2, "seed": 1, "sampler": "local", "max_episode_length": 20}
    implied = evaluate(["random", str(folder)], **options)
    wrapper = ["sb3_contrib.common.wrappers:TimeFeatureWrapper?max_steps=50"]
    named = evaluate(["random", str(folder)], ENV, env_kwargs={"g": 9.0}, wrapper=wrapper, **options)
    assert ENV == implied.env
    np.testing.assert_array_equal(named.returns, implied.returns)
    words = ("--policy", "random", "--policy", folder, "--episodes", "2", "--seed", "1", "--json")
    ran = called("evaluate", *words, "--max-episode-length", "20", "--sampler", "local")
    assert implied.returns.tolist() == json.loads(ran.stdout)["episodes"]["returns"]


def test_it_acts_as_the_library_does(trained: tuple[Any, Path]) -> None:
    """Deterministic actions equal those of the model, on observations that its VecNormalize has normalised."""
    model, folder = trained
    config = completed(CollectConfig(policy=str(folder), timesteps=9), Progress())
    env = env_of(config).build()
    observations = np.stack([env.observation_space.sample() for _ in range(8)])
    policy = policy_source(str(folder)).load(
        EnvSpec(env.observation_space, env.action_space), deterministic=True
    )
    expected, _ = model.predict(model.get_env().normalize_obs(observations), deterministic=True)
    np.testing.assert_array_equal(expected, policy.get_actions(observations)[0])
    other = gymnasium.make("CartPole-v1")
    with raises(PolicyLoadError, "policy-space") as refused:
        policy_source(str(folder)).load(EnvSpec(other.observation_space, other.action_space))
    assert f"env={ENV}" in refused.value.marked_hint


def test_what_is_given_wins(trained: tuple[Any, Path]) -> None:
    """With --env nothing is taken; arguments are joined by name; wrappers are replaced. check and tune see the same."""
    _, folder = trained
    words: tuple[str | Path, ...] = ("--policy", folder)
    taken = dry_run(*words)
    assert [ENV, {"g": 9.0}, [FLAGS[-1]]] == [taken["env"], taken["env_kwargs"], taken["wrapper"]]
    assert taken["output"].startswith(f"rollouts/{ENV}-")
    assert not {"env_kwargs", "wrapper"} & dry_run(*words, "--env", "CartPole-v1").keys()
    more = dry_run(
        *words, "--env-kwargs", "g=8.0", "--env-kwargs", "render_mode=rgb_array", "--wrapper", "ClipAction"
    )
    assert {"g": 8.0, "render_mode": "rgb_array"} == more["env_kwargs"]
    assert ["ClipAction"] == more["wrapper"]
    trial = Trial.of(CollectConfig(policy=f"zoo:{folder}", timesteps=9), Progress(), 1.0)
    assert (ENV, {"g": 9.0}, 1) == (trial.env.spec, trial.env.kwargs, len(trial.env.wrappers))


def test_an_atari_folder(tmp_path: Path) -> None:
    """Its id needs no import by hand, and its four frames have the form that the model was trained on."""
    wrapper = "stable_baselines3.common.atari_wrappers.AtariWrapper"
    folder = run_folder(tmp_path, {"env_wrapper": [wrapper], "frame_stack": 4}, "PongNoFrameskip-v4")
    env = env_of(completed(CollectConfig(policy=str(folder), timesteps=9), Progress())).build()
    assert isinstance(env, gymnasium.Env)
    assert spaces.Box(0, 255, (84, 84, 4), np.uint8) == env.observation_space
    assert env.observation_space.contains(env.reset(seed=0)[0])


class _Counting(gymnasium.Env[Any, Any]):
    """Counts its steps in each number of its observations; an episode has six steps. It may reuse its array."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...], dtype: Any, *, reuses: bool) -> None:
        self.observation_space = spaces.Box(0, 255, shape, dtype)
        self._seen, self._reuses = np.zeros(shape, dtype), reuses

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._seen[:] = 1
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        self._seen += 1
        return self._observed(), 0.0, int(self._seen.flat[0]) == 7, False, {}

    def _observed(self) -> Any:
        return self._seen if self._reuses else self._seen.copy()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((3,), np.float32), ((5, 6, 3), np.uint8), ((3, 5, 6), np.uint8), ((2, 5, 6), np.float32)],
)
def test_stacked_frames_are_those_of_the_library(shape: tuple[int, ...], dtype: Any) -> None:
    """Of vectors and of images with the channels last or first, in two episodes; its rows reset by themselves."""
    ours, theirs = (
        StackedFrames(_Counting(shape, dtype, reuses=True), 4),
        VecFrameStack(DummyVecEnv([lambda: _Counting(shape, dtype, reuses=False)]), 4),
    )
    assert theirs.observation_space == ours.observation_space
    observation, expected = ours.reset()[0], theirs.reset()[0]
    for _ in range(9):
        np.testing.assert_array_equal(expected, observation)
        observation, _, over, _, _ = ours.step(0)
        batch, _, _, infos = theirs.step(np.zeros(1, int))
        expected = batch[0]
        if over:
            np.testing.assert_array_equal(infos[0]["terminal_observation"], observation)
            observation, _ = ours.reset()


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "a vec_env_wrapper": ({"vec_env_wrapper": "a.B"}, {}, "zoo-environment", "a.B"),
    "no class": ({"env_wrapper": "Wrapper"}, {}, "zoo-environment", "Wrapper"),
    "a table": ({"env_wrapper": {WRAPPER: {"a": {"b": 1}}}}, {}, "wrapper-arguments", "--wrapper"),
    "two modules": ({}, {"gym_packages": ["a", "b"]}, "zoo-environment", ""),
    "no id": ({}, {"env": None}, "zoo-environment", "args.yml"),
    "no mapping": ({}, {"env_kwargs": [1]}, "policy-file-damaged", "TypeError"),
    "no argument of an option": ({}, {"env_kwargs": {"a": None}}, "option-value", "env_kwargs"),
}
"""By name: settings, arguments, and the error's code and what it names."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_option_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    """In one line, and with --env the folder is still a policy."""
    settings, arguments, code, value = REFUSED[name]
    folder = str(run_folder(tmp_path, settings, **arguments))
    with raises(RolloutError, code, value) as refused:
        completed(CollectConfig(policy=folder, timesteps=9), Progress())
    assert "\n" not in refused.value.message
    assert (
        "CartPole-v1"
        == completed(CollectConfig(policy=folder, env="CartPole-v1", timesteps=9), Progress()).env
    )


def test_arguments_of_wrappers_are_texts_that_are_read_again(tmp_path: Path) -> None:
    """Whatever TOML holds comes back equal, whatever stands in it."""
    arguments = {"a": [1.5, True, 'x&y="?é'], "b": 1e-5, "c": "true"}
    folder = str(run_folder(tmp_path, {"env_wrapper": {WRAPPER: {**arguments, "d": (1, 2)}}}))
    (source,) = env_of(
        completed(CollectConfig(policy=f"{folder}?trust=true", timesteps=9), Progress())
    ).wrappers
    assert {**arguments, "d": [1, 2]} == source.kwargs


@pytest.mark.parametrize("key", ["policy_kwargs", "env_wrapper"])
def test_python_in_its_files_does_not_run(tmp_path: Path, key: str) -> None:
    """An object that would write a file is not made; where it is needed, it is refused by its place."""
    folder = run_folder(tmp_path, {"frame_stack": 2})
    with (folder / ENV / "config.yml").open("a") as file:
        file.write(f"  - - {key}\n    - !!python/object/apply:os.mkdir ['{tmp_path / 'ran'}']\n")
    config = CollectConfig(policy=str(folder), timesteps=9)
    if key == "env_wrapper":
        with raises(PolicyLoadError, "zoo-environment"):
            completed(config, Progress())
    else:
        assert ("rollout_cli.envs.frames:StackedFrames?n=2",) == completed(config, Progress()).wrapper
    assert not (tmp_path / "ran").exists()


def test_statistics_that_are_missing(tmp_path: Path) -> None:
    """A training with a VecNormalize needs them, which an off-policy model alone would not tell."""
    folder = run_folder(tmp_path, {"normalize": True})
    env = gymnasium.make(ENV)
    with raises(PolicyLoadError, "normalization-missing", "vecnormalize.pkl"):
        policy_source(str(folder)).load(EnvSpec(env.observation_space, env.action_space))
    (folder / f"{ENV}.zip").unlink()
    with raises(PolicyLoadError, "policy-folder", folder):
        policy_source(str(folder))


EVIL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a function": ({}, {"env": "subprocess:call", "env_kwargs": {"args": ["touch", "canary"]}}),
    "a pickle": ({}, {"env": "evil.pkl"}),
    "an EnvSpec": ({}, {"env": "evil.json"}),
    "a module": ({}, {"gym_packages": ["evil"]}),
    "a package": ({}, {"env": "evil/E-v0"}),
    "a wrapper": ({"env_wrapper": "evil.Wrapper"}, {}),
    "a wrapper of a library": ({"env_wrapper": [{"subprocess.call": {"shell": True}}]}, {}),
    "an argument": ({}, {"env_kwargs": {"config": {"other_vehicles_type": "evil.Vehicle"}}}),
    "a shadowed package": ({"env_wrapper": "minigrid.wrappers.FlatObsWrapper"}, {}),
}
"""By name: settings and arguments of a folder that names code. A module `evil` creates a canary when imported."""


@pytest.mark.parametrize("name", EVIL)
def test_a_folder_runs_no_code_that_it_names(tmp_path: Path, name: str) -> None:
    """It is refused by what it names, whatever lies in the folder; with `trust=true` it is the user's decision."""
    settings, arguments = EVIL[name]
    folder = run_folder(tmp_path, settings)
    written = {"env": ENV, "env_kwargs": None, "gym_packages": [], **arguments}
    (folder / ENV / "args.yml").write_text(yaml.dump(OrderedDict(written)))
    ran = "from pathlib import Path\nPath('canary').touch()\n"
    for module in ("evil.py", "minigrid.py"):
        (tmp_path / module).write_text(ran)
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(_Touch()))
    kwargs = {"args": ["touch", "canary"]}
    spec = {"id": "E-v0", "entry_point": "subprocess:call", "kwargs": kwargs}
    (tmp_path / "evil.json").write_text(json.dumps(spec))
    words = ("collect", "--policy", folder.name, "--episodes", "1", "--sampler", "local", "-o", "out")
    said = called(*words, cwd=tmp_path, code=3).stderr
    assert "[file-may-run-code]" in said
    assert "trust=true" in said
    assert not (tmp_path / "canary").exists()
    trusted = called(
        "collect", "--policy", f"{folder.name}?trust=true", *words[3:], "--dry-run", cwd=tmp_path
    )
    assert f'env = "{env_of_the_folder(folder)}"' in trusted.stdout


def env_of_the_folder(folder: Path) -> str:
    """The SPEC that its arguments mean."""
    arguments = yaml.unsafe_load((folder / ENV / "args.yml").read_text())
    return ":".join([*arguments["gym_packages"], arguments["env"]])


class _Touch:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("canary"),)


def test_the_libraries_are_not_taken_from_the_folder(trained: tuple[Any, Path], tmp_path: Path) -> None:
    """A module of the working folder is never imported in place of a library that a model names."""
    _, folder = trained
    for module in ("stable_baselines3.py", "sb3_contrib.py", "torch.py"):
        (tmp_path / module).write_text("from pathlib import Path\nPath('canary').touch()\n")
    words = ("--env", ENV, "--episodes", "1", "--sampler", "local", "-o", "out")
    statistics = f"vecnormalize={folder / ENV / 'vecnormalize.pkl'}"
    model = ("--policy", folder / f"{ENV}.zip", "--policy-kwargs", statistics)
    # In a process of its own: this one has loaded the libraries.
    said = rollout("collect", *model, *words, cwd=tmp_path, code=3).stderr
    assert "[policy-space]" in said  # It was loaded, and lacks its wrapper.
    assert not (tmp_path / "canary").exists()
