"""A configuration has an option for each field, checks itself, and is written so that it reads back the same."""

from __future__ import annotations

import json
import math
import subprocess
import sys
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
from tests.unit.configs import from_flags, from_text, refusal


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
