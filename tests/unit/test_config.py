"""Options: read from each source, checked, merged, and written down."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.config import (
    OPTIONS,
    CollectConfig,
    EpisodeRange,
    config_to_dict,
    config_to_toml,
    default_output,
    options_of,
    resolve,
)
from rollout_cli.config.options import CommandName
from rollout_cli.errors import ConfigError


def from_flags(flags: Mapping[str, object], command: CommandName = "collect") -> CollectConfig:
    return resolve(command, flags=flags, environ={})


def from_text(tmp_path: Path, text: str, command: CommandName = "collect") -> CollectConfig:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return resolve(command, flags={}, environ={}, file=path)


def refusal(function: Any, *args: Any, **kwargs: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        function(*args, **kwargs)
    assert caught.value.exit_code == 2
    return caught.value


def test_every_field_is_an_option() -> None:
    """Each field but the command declares an option, in order, and its names follow from its own."""
    assert list(OPTIONS) == [field.name for field in fields(CollectConfig) if field.name != "command"]
    assert (OPTIONS["env_kwargs"].flag, OPTIONS["env_kwargs"].variable) == ("--env-kwargs", "ROLLOUT_ENV_KWARGS")


def test_short_flags_are_not_shared() -> None:
    """No two options of a command have one short flag, nor one that every command has for itself."""
    for command in ("collect", "exact"):
        short = [option.short for option in options_of(command) if option.short] + ["-c", "-q", "-v"]
        assert len(short) == len(set(short))


def test_defaults() -> None:
    """With an amount alone, the run is CartPole with random actions."""
    config = CollectConfig(timesteps=10)
    assert (config.env, config.policy, config.sampler, config.order) == (
        "CartPole-v1",
        "random",
        "multiprocessing",
        "index",
    )
    assert config.workers >= 1
    assert config.output.parts[0] == "rollouts"


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


def test_exact_has_its_own_amount() -> None:
    """`exact` needs its number of episodes and knows no other."""
    assert from_flags({"episodes_per_worker": "5"}, "exact").episodes_per_worker == 5
    assert "--episodes-per-worker is missing" in refusal(from_flags, {}, "exact").message
    error = refusal(CollectConfig, command="exact", timesteps=5, episodes_per_worker=5)
    assert error.message == "timesteps is no option of `rollout exact`"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"timesteps": 0}, "timesteps must be an integer of at least 1, got 0"),
        ({"timesteps": True}, "timesteps must be an integer of at least 1, got True"),
        ({"timesteps": 1, "workers": None}, "workers must be an integer of at least 1, got None"),
        ({"timesteps": 1, "output": "text"}, "output must be the path of a folder, got 'text'"),
        ({"timesteps": 1, "command": "run"}, "command must be 'collect' or 'exact', got 'run'"),
    ],
)
def test_the_value_checks_itself(kwargs: dict[str, Any], message: str) -> None:
    """A configuration built in Python is checked as one that was read, and calls its fields by their names."""
    assert refusal(CollectConfig, **kwargs).message == message


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


@pytest.mark.parametrize(
    ("env", "label"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("my.module:Env-v0", "my.module-Env-v0"),
        ("specs/deep/my env.json", "my-env"),
        ("../../etc.pkl", "etc"),
        ("..", "env"),
        ("\x1b[31mred", "31mred"),
        ("é" * 300 + "a", "a"),
        ("a" * 300, "a" * 80),
    ],
)
def test_default_output(env: str, label: str) -> None:
    """The default folder is a plain name below `rollouts`, whatever the environment is called."""
    now = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)
    assert Path("rollouts") / f"{label}-20260102T030405.678Z" == default_output(env, now)


plain_values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    env=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip),
    kwargs=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), plain_values, max_size=4),
    episodes=st.integers(1, 9).flatmap(lambda stop: st.tuples(st.integers(0, stop - 1), st.just(stop))),
    seed=st.none() | st.integers(0, 2**63 - 1),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, env: str, kwargs: Any, episodes: Any, seed: Any
) -> None:
    """The TOML of a configuration gives the same configuration, and its plain values are valid JSON."""
    config = CollectConfig(env=env, env_kwargs=kwargs, episodes=EpisodeRange(*episodes), seed=seed)
    path = tmp_path_factory.mktemp("toml") / "run.toml"
    path.write_text(config_to_toml(config), encoding="utf-8", newline="")
    assert config == resolve("collect", flags={}, environ={}, file=path)
    json.dumps(config_to_dict(config))


def test_not_a_number_is_read_back(tmp_path: Path) -> None:
    """TOML has words for numbers that are none."""
    config = CollectConfig(timesteps=1, env_kwargs={"x": math.nan, "y": -math.inf})
    again = from_text(tmp_path, config_to_toml(config))
    assert math.isnan(again.env_kwargs["x"])
    assert again.env_kwargs["y"] == -math.inf


def test_a_copy_keeps_its_output() -> None:
    """The default folder is decided once."""
    config = CollectConfig(timesteps=1)
    assert config.output == replace(config, seed=3).output


def test_imports_are_light() -> None:
    """The declarations load without numpy, gymnasium, pyarrow, rich and typer."""
    code = "import sys, rollout_cli.config; print([m for m in sys.modules if m.split('.')[0] in sys.argv[1:]])"
    heavy = ["numpy", "gymnasium", "pyarrow", "rich", "typer"]
    ran = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
