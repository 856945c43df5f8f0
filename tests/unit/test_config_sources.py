"""Options are read from flags, variables and a file; the stronger source wins, and a refusal names the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_cli.config import CollectConfig, EpisodeRange, resolve
from tests.unit.configs import from_flags, from_text, refusal


def test_all_flags() -> None:
    """Every flag's text becomes a value of its field's type."""
    config = from_flags(
        {
            "episodes": "3:8",
            "max_episode_length": "1_000",
            "policy": "p.pkl",
            "env": "Pendulum-v1",
            "env_kwargs": ["g=9.5", "name=a b", "deep={x = [1, 2]}", "on=true", "quoted='7'"],
            "deterministic": True,
            "workers": "3",
            "sampler": "local",
            "start_method": "spawn",
            "worker_class": "my.pkg:Worker",
            "worker_args": ["trial=4", "task=left", "rates=[0.5, 1]"],
            "seed": "0",
            "output": "some/where",
            "overwrite": True,
            "order": "arrival",
            "next_observation": True,
        }
    )
    assert config == CollectConfig(
        episodes=EpisodeRange(3, 8),
        max_episode_length=1000,
        policy="p.pkl",
        env="Pendulum-v1",
        env_kwargs={"g": 9.5, "name": "a b", "deep": {"x": [1, 2]}, "on": True, "quoted": "7"},
        deterministic=True,
        workers=3,
        sampler="local",
        start_method="spawn",
        worker_class="my.pkg:Worker",
        worker_args={"trial": 4, "task": "left", "rates": [0.5, 1]},
        seed=0,
        output=Path("some/where"),
        overwrite=True,
        order="arrival",
        next_observation=True,
    )


@pytest.mark.parametrize("text", ["2020-01-01", "07:32:00", "1\nother = 2", "[1", "", "1 2"])
def test_keyword_values_that_are_no_plain_literal_are_text(text: str) -> None:
    """What is no TOML literal of a plain type stays the text that was given."""
    assert from_flags({"timesteps": "1", "env_kwargs": [f"key={text}"]}).env_kwargs == {"key": text}


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ({"timesteps": "0"}, "--timesteps must be an integer of at least 1, got '0'"),
        ({"timesteps": "1e6"}, "got '1e6'"),
        ({"timesteps": str(2**63)}, "got '9223372036854775808'"),
        ({"timesteps": "1", "workers": "0"}, "--workers must be an integer of at least 1, got '0'"),
        ({"timesteps": "1", "seed": "-1"}, "--seed must be an integer from 0 to 2^63 - 1, got '-1'"),
        ({"episodes": "0"}, "--episodes must be"),
        ({"episodes": "5:5"}, "--episodes must be"),
        ({"episodes": "5:2"}, "--episodes must be"),
        ({"episodes": "-1:2"}, "--episodes must be"),
        ({"episodes": "1:2:3"}, "--episodes must be"),
        ({"episodes": ":2"}, "--episodes must be"),
        ({"timesteps": "1", "env_kwargs": ["size"]}, "--env-kwargs must be key=value"),
        ({"timesteps": "1", "env_kwargs": ["a-b=1"]}, "--env-kwargs must be key=value"),
        ({"timesteps": "1", "worker_args": ["size"]}, "--worker-args must be key=value"),
        ({"timesteps": "1", "sampler": "ray"}, "--sampler must be 'multiprocessing' or 'local', got 'ray'"),
        ({"timesteps": "1", "order": "random"}, "--order must be 'index' or 'arrival'"),
        ({"timesteps": "1", "worker_class": "Worker"}, "--worker-class must be a class as package.module:Class"),
        ({"timesteps": "1", "policy": " "}, "--policy must be a policy spec"),
        ({"timesteps": "1", "output": ""}, "--output must be the path of a folder, got ''"),
        ({"timesteps": "1", "env": "x" * 500, "policy": ""}, "--policy must be"),
        ({}, "neither --timesteps nor --episodes"),
        ({"timesteps": "1", "episodes": "1"}, "--timesteps and --episodes are two ways"),
    ],
)
def test_flags_that_are_refused(flags: dict[str, object], part: str) -> None:
    """A refusal names the flag, what it must be, and what it is, and gives a hint."""
    error = refusal(from_flags, flags)
    assert part in error.message
    assert error.hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("timestep = 5", "there is no option 'timestep'", "did you mean 'timesteps'?"),
        ("max-episode-length = 5", "there is no option 'max-episode-length'", "did you mean 'max_episode_length'?"),
        ("qqqq = 5", "there is no option 'qqqq'", "the options are: timesteps, episodes"),
        ("workers = 'two'", "workers must be an integer of at least 1, got 'two'", "workers"),
        ("workers = 2.0", "workers must be an integer of at least 1, got 2.0", "workers"),
        ("timesteps = true", "timesteps must be an integer of at least 1, got True", "steps"),
        ("overwrite = 1", "overwrite must be true or false, got 1", "Replace"),
        ("output = 5", "output must be the path of a folder, got 5", "folder"),
        ("episodes = true", "episodes must be", "episodes"),
        ("env_kwargs = 3", "env_kwargs must be key=value", "keyword"),
        ("[env_kwargs]\nday = 2020-01-01", "env_kwargs must be key=value", "keyword"),
        ("episodes_per_worker = 5", "episodes_per_worker is no option of `rollout collect`", "`rollout exact`"),
        ("command = 'exact'", "is written for `rollout exact`, not for `rollout collect`", "rollout exact --config"),
        ("command = 'run'", "command must be 'collect' or 'exact', got 'run'", ""),
        ("timesteps = 5\nworkers = \nseed = 1", "is not valid TOML: Invalid value (at line 2, column 11)", "toml.io"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, message: str, hint: str) -> None:
    """A refusal names the file, the key, what it must be, and what it is; a syntax error its line."""
    error = refusal(from_text, tmp_path, text)
    assert message in error.message
    assert error.message.startswith(str(tmp_path / "run.toml"))
    assert hint in error.hint


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A file that is missing, a folder, or no text, is a configuration error that names it."""
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for name, part in (("none.toml", "No such file"), ("", "Is a directory"), ("binary.toml", "not valid TOML")):
        error = refusal(resolve, "collect", flags={}, environ={}, file=tmp_path / name)
        assert part in error.message
        assert str(tmp_path) in error.message


def test_the_stronger_source_wins(tmp_path: Path) -> None:
    """A flag is stronger than a variable, a variable than the file, the file than the default."""
    path = tmp_path / "run.toml"
    path.write_text("timesteps = 5\nseed = 1\nworkers = 1\npolicy = 'a:b'\ndeterministic = true")
    config = resolve(
        "collect",
        flags={"seed": "3", "deterministic": False},
        environ={"ROLLOUT_SEED": "2", "ROLLOUT_WORKERS": "2", "ROLLOUT_POLICY": ""},
        file=path,
    )
    assert (3, 2, "a:b", False, "CartPole-v1") == (
        config.seed,
        config.workers,
        config.policy,
        config.deterministic,
        config.env,
    )


def test_a_stronger_amount_overrules_the_other_kind(tmp_path: Path) -> None:
    """`--episodes 5` beside a file's timesteps means five episodes; two amounts in one source are refused."""
    path = tmp_path / "run.toml"
    path.write_text("timesteps = 1000")
    config = resolve("collect", flags={"episodes": "5"}, environ={}, file=path)
    assert (None, EpisodeRange(0, 5)) == (config.timesteps, config.episodes)
    assert "two ways" in refusal(from_text, tmp_path, "timesteps = 5\nepisodes = 5").message


@pytest.mark.parametrize("name", ["env_kwargs", "worker_args"])
def test_keywords_are_merged_by_key(name: str, tmp_path: Path) -> None:
    """A stronger source replaces single keywords of the environment or worker, not the table."""
    path = tmp_path / "run.toml"
    path.write_text(f"timesteps = 5\n[{name}]\na = 1\nb = 1\nc = 1")
    config = resolve(
        "collect",
        flags={name: ["c=3"]},
        environ={f"ROLLOUT_{name.upper()}": "b=2 c=2 d='x y'"},
        file=path,
    )
    assert {"a": 1, "b": 2, "c": 3, "d": "x y"} == getattr(config, name)


@pytest.mark.parametrize("name", ["seed", "max_episode_length", "n_envs", "deterministic", "worker_number"])
def test_arguments_that_every_worker_has_are_refused(name: str) -> None:
    """They have options of their own, or are no one's to choose."""
    error = refusal(from_flags, {"timesteps": "1", "worker_args": [f"{name}=1"]})
    assert f"--worker-args cannot give {name}" == error.message
    assert error.hint


@pytest.mark.parametrize(("word", "value"), [("1", True), ("TRUE", True), ("on", True), ("no", False), ("0", False)])
def test_words_of_switches(word: str, value: bool) -> None:
    """A variable may spell a switch in the usual words."""
    config = resolve("collect", flags={"timesteps": "1"}, environ={"ROLLOUT_OVERWRITE": word})
    assert value == config.overwrite


def test_a_bad_variable_is_named() -> None:
    """A refusal of an environment variable calls it by its name."""
    error = refusal(resolve, "collect", flags={"timesteps": "1"}, environ={"ROLLOUT_OVERWRITE": "maybe"})
    assert error.message == "ROLLOUT_OVERWRITE must be true or false, got 'maybe'"
