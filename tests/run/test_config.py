"""Options are declared once, read from flags, variables and files, and refused with the name of their source."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.dataset.segments import MOST_SEGMENT_BYTES
from rollout_cli.errors import ConfigError
from rollout_cli.options.config import (
    DECISIVE,
    ENDS,
    OPTIONS,
    CollectConfig,
    config_to_dict,
    default_output,
    options_of,
)
from rollout_cli.options.option import CommandName
from rollout_cli.options.sources import resolve
from rollout_cli.options.types import EpisodeRange, Shard
from tests.helpers.errors import raises


def from_flags(flags: dict[str, object], command: CommandName = "collect") -> CollectConfig:
    return resolve(command, flags=flags, environ={})


def from_file(folder: Path, text: str) -> CollectConfig:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8", newline="")
    return resolve("collect", flags={}, environ={}, file=path)


def refusal(call: Callable[..., object], *args: Any, **kwargs: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        call(*args, **kwargs)
    return caught.value


def check(error: ConfigError, code: str, *values: object) -> None:
    """Check an error's code, and that its message names values."""
    assert code == error.code
    assert [] == [value for value in values if str(value) not in error.message], error.message


def test_a_policy_may_be_longer_than_a_name_of_a_file_can_be() -> None:
    """Whether it names a folder, which may name an environment, is asked of the system."""
    spec = f"constant:[{', '.join(100 * ['0.5'])}]"
    assert "CartPole-v1" == from_flags({"policy": spec, "timesteps": 1}).env


# -- declarations ------------------------------------------------------------------------------------------------------


def test_every_field_is_an_option() -> None:
    """Each field but the command declares an option, and its names follow from its own."""
    assert [field.name for field in fields(CollectConfig) if field.name != "command"] == list(OPTIONS)
    assert ("--env-kwargs", "ROLLOUT_ENV_KWARGS") == (
        OPTIONS["env_kwargs"].flag,
        OPTIONS["env_kwargs"].variable,
    )
    for command in ("collect", "exact"):  # No two options of a command have one short flag.
        short = [option.short for option in options_of(command) if option.short] + ["-c", "-q", "-v"]
        assert len(set(short)) == len(short)


def test_choices() -> None:
    """They follow from the type, for completion; other words for people are in the documents, which tests compare."""
    assert ("error", "clip", "warn") == OPTIONS["invalid_action"].choices
    assert () == OPTIONS["grace"].choices


# -- values ------------------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    """With an amount alone, the run is CartPole with random actions, in a folder of its own."""
    config = CollectConfig(timesteps=10)
    assert ("CartPole-v1", "random", "multiprocessing") == (config.env, config.policy, config.sampler)
    assert config.workers >= 1
    assert config.output.parts[0] == "rollouts"
    assert config.output == replace(config, seed=3).output
    assert Path() == CollectConfig(timesteps=10, output=Path()).output


@pytest.mark.parametrize(
    ("kwargs", "code", "values"),
    [
        ({"timesteps": 0}, "option-value", ["timesteps ", 1, 0]),
        ({"timesteps": True}, "option-value", ["timesteps ", "True"]),
        ({"timesteps": "5"}, "option-value", ["timesteps ", "'5'"]),
        ({"timesteps": 1, "workers": None}, "option-value", ["workers ", "None"]),
        ({"timesteps": 1, "workers": 3000}, "option-value", ["workers ", 1024, 3000]),
        ({"timesteps": 1, "grace": math.nan}, "option-value", ["grace ", "nan"]),
        ({"timesteps": 1, "output": 3}, "option-value", ["output ", 3]),
        ({"timesteps": 1, "env": "\ud800"}, "option-value", ["env "]),
        ({"timesteps": 1, "env_kwargs": {"x": "\ud800"}}, "option-value", ["env_kwargs ", "key=value"]),
        ({"timesteps": 1, "env_kwargs": {"x": object()}}, "option-value", ["env_kwargs ", "key=value"]),
        ({"timesteps": 1, "command": "run"}, "option-value", ["'collect'", "'exact'", "'run'"]),
        (
            {"timesteps": 1, "episodes_per_worker": 2},
            "amount-option",
            ["`rollout collect`", "--timesteps", "--episodes", "--max-time", "--episodes-per-worker"],
        ),
        (
            {"command": "exact", "timesteps": 5},
            "amount-option",
            ["`rollout exact`", "--episodes-per-worker", "--timesteps"],
        ),
        ({"command": "exact"}, "amount-option", ["`rollout exact`", "--episodes-per-worker"]),
        ({}, "amount-option", ["`rollout collect`", "--timesteps", "--episodes", "--max-time"]),
        (
            {"command": "exact", "episodes_per_worker": 5, "max_time": 1.0},
            "amount-option",
            ["`rollout exact`", "--max-time", "--episodes-per-worker"],
        ),
        ({"max_time": math.inf}, "option-value", ["max_time ", "inf"]),
        ({"timesteps": 5, "worker_args": {"seed": 1}}, "worker-args-option", ["--worker-args", "seed"]),
    ],
)
def test_the_value_checks_itself(kwargs: dict[str, Any], code: str, values: list[object]) -> None:
    """A configuration built in Python is checked strictly, and calls its fields by their names."""
    error = refusal(CollectConfig, **kwargs)
    check(error, code, *values)
    assert ("--" in error.message) == (code != "option-value")


EXCLUDED, NEEDED = "options-exclude-each-other", "option-needs-another"
SHARD = {"shard": Shard(1, 3), "seed": 1}


@pytest.mark.parametrize(
    ("kwargs", "code", "flags"),
    [
        ({"episodes": EpisodeRange(0, 9), "max_time": 1.0, **SHARD}, EXCLUDED, ("--shard", "--max-time")),
        ({"timesteps": 5, **SHARD}, EXCLUDED, ("--shard", "--timesteps")),
        ({"timesteps": 5, "resume": True, "overwrite": True}, EXCLUDED, ("--overwrite", "--resume")),
        ({"timesteps": 5, "sampler": "local", "step_timeout": 1.0}, EXCLUDED, ("--step-timeout", "local")),
        (
            {"timesteps": 5, "sampler": "local", "episode_timeout": 1.0},
            EXCLUDED,
            ("--episode-timeout", "local"),
        ),
        (
            {"timesteps": 5, "worker_class": "a:B", "vectorization": "native"},
            EXCLUDED,
            ("--worker-class", "native"),
        ),
        ({"timesteps": 5, "fresh_env": True, "vectorization": "native"}, EXCLUDED, ("--fresh-env", "native")),
        ({"timesteps": 5, "wrapper": ("a:B",), "vectorization": "native"}, EXCLUDED, ("--wrapper", "native")),
        ({"timesteps": 5, "tasks": ({"a": 1},), "vectorization": "native"}, EXCLUDED, ("--tasks", "native")),
        (
            {"timesteps": 5, "reset_options": {"a": 1}, "vectorization": "native"},
            EXCLUDED,
            ("--reset-options", "native"),
        ),
        ({"episodes": EpisodeRange(0, 9), "keep": "return > 1", **SHARD}, EXCLUDED, ("--keep", "--shard")),
        ({"episodes": EpisodeRange(3, 9), "keep": "return > 1"}, EXCLUDED, ("--keep", "--episodes")),
        ({"timesteps": 5, "accept_changes": True}, NEEDED, ("--accept-changes", "--resume")),
        ({"timesteps": 5, "keep_cap": 3}, NEEDED, ("--keep-cap", "--keep")),
        ({"timesteps": 5, "ray_address": "auto"}, NEEDED, ("--ray-address", "--sampler ray")),
        ({"episodes": EpisodeRange(0, 9), "shard": Shard(1, 3)}, NEEDED, ("--shard", "--seed")),
        ({"command": "exact", "episodes_per_worker": 5, "keep": "return > 1"}, "option-unknown", ("--keep",)),
    ],
)
def test_options_that_need_or_exclude_others(
    kwargs: dict[str, Any], code: str, flags: tuple[str, ...]
) -> None:
    """What an option declares of others is checked, and both are named."""
    with raises(ConfigError, code, *flags):
        CollectConfig(**kwargs)


def test_what_options_mean() -> None:
    """Old datasets are resumed and replayed by these: an option leaves or joins them with a reason."""
    assert {
        *(
            "command",
            "env_kwargs",
            "wrapper",
            "reset_options",
            "tasks",
            "max_episode_length",
            "deterministic",
        ),
        *(
            "invalid_action",
            "vectorization",
            "envs_per_worker",
            "worker_class",
            "worker_args",
            "segment_bytes",
        ),
        *(
            "next_observation",
            "drop_info",
            "shard",
            "fresh_env",
            "epsilon",
            "action_noise",
            "keep",
            "store_state",
            "device",
        ),
    } == {*DECISIVE}
    unrecorded = {option.name for option in OPTIONS.values() if not option.is_recorded}
    assert {"output", "overwrite", "resume", "seed", "accept_changes"} == unrecorded
    assert {"timesteps", "episodes", "episodes_per_worker", "max_time"} == ENDS


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


# -- flags -------------------------------------------------------------------------------------------------------------


def test_flags() -> None:
    """Every flag's text becomes a value of its field's type."""
    config = from_flags(
        {
            "episodes": "3:8",
            "max_episode_length": "1_000",
            "env_kwargs": [
                "g=9.5",
                "name=a b",
                "deep={x = [1, inf]}",
                "on=true",
                "quoted='7'",
                "day=2020-01-01",
            ],
            "workers": "3",
            "worker_class": "my.pkg:Worker",
            "seed": "0",
            "output": "some/where",
            "overwrite": True,
            "drop_info": ["a.b", "c"],
            "grace": "2.5",
            "policy_sha256": "aB" * 32,
        }
    )
    expected = CollectConfig(
        episodes=EpisodeRange(3, 8), max_episode_length=1000,
        env_kwargs={"g": 9.5, "name": "a b", "deep": {"x": [1, math.inf]}, "on": True, "quoted": "7",
                    "day": "2020-01-01"},
        workers=3, worker_class="my.pkg:Worker", seed=0, output=Path("some/where"), overwrite=True,
        drop_info=("a.b", "c"), grace=2.5, policy_sha256="aB" * 32,
    )  # fmt: skip
    assert expected == config


@pytest.mark.parametrize("text", ["2020-01-01", "07:32:00", "1\nother = 2", "[1", "", "1 2", "[" * 100_000])
def test_keyword_values_that_are_no_plain_literal_are_text(text: str) -> None:
    """A value that is no TOML literal of a plain type stays the text that was given."""
    assert {"key": text} == from_flags({"timesteps": "1", "env_kwargs": [f"key={text}"]}).env_kwargs


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        ({"timesteps": "0"}, ["--timesteps", 1, "'0'"]),
        ({"timesteps": "1.5"}, ["--timesteps", "'1.5'"]),
        ({"timesteps": "1.25e1"}, ["--timesteps", "'12.5'"]),
        ({"timesteps": "1e-3"}, ["--timesteps", "'1e-3'"]),
        ({"timesteps": "1e99"}, ["--timesteps", 2**63 - 1]),
        ({"timesteps": str(2**63)}, ["--timesteps", f"'{2**63}'"]),
        ({"timesteps": "9" * 5000}, ["--timesteps"]),
        ({"timesteps": "1", "workers": "100000"}, ["--workers", 1024]),
        ({"timesteps": "1", "envs_per_worker": "100000000"}, ["--envs-per-worker", 65536]),
        ({"timesteps": "1", "seed": "-1"}, ["--seed", 0, "'-1'"]),
        *(
            ({"episodes": text}, ["--episodes", f"'{text}'"])
            for text in ("0", "5:5", "5:2", "-1:2", "1:2:3", ":2", "x")
        ),
        *(
            ({"max_time": text}, ["--max-time", "1h30m", f"'{text}'"])
            for text in ("0", "-1", "1h30", "m", "1d", "1m1h", "nan", "1:30", "0h")
        ),
        ({"timesteps": "1", "env_kwargs": ["size"]}, ["--env-kwargs", "key=value"]),
        ({"timesteps": "1", "env_kwargs": ["a-b=1"]}, ["--env-kwargs", "key=value"]),
        ({"timesteps": "1", "worker_args": ["size"]}, ["--worker-args", "key=value"]),
        ({"timesteps": "1", "sampler": "dask"}, ["--sampler", "'local'", "'ray'", "'dask'"]),
        ({"timesteps": "1", "worker_class": "Worker"}, ["--worker-class", "'Worker'"]),
        ({"timesteps": "1", "policy": ""}, ["--policy", "''"]),
        ({"timesteps": "1", "output": ""}, ["--output", "''"]),
        ({"timesteps": "1", "drop_info": [" "]}, ["--drop-info", "' '"]),
        ({"timesteps": "1", "step_timeout": "0"}, ["--step-timeout", "'0'"]),
        ({"timesteps": "1", "segment_bytes": str(2 << 30)}, ["--segment-bytes", 1 << 30]),
    ],
)
def test_flags_that_are_refused(flags: dict[str, object], values: list[object]) -> None:
    """A refusal names the flag, what it must be and its value, and gives a hint."""
    error = refusal(from_flags, flags)
    check(error, "option-value", *values)
    assert error.hint
    assert error.hint not in {option.help for option in OPTIONS.values()}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e5", 100_000),
        ("2.5e4", 25_000),
        ("1_000", 1_000),
        ("2_0E+3", 20_000),
        ("9.007199254740993e15", 2**53 + 1),
    ],
)
def test_large_numbers(text: str, number: int) -> None:
    """A flag takes a whole number in any form; its value is exact."""
    assert number == from_flags({"timesteps": text}).timesteps
    assert number == from_flags({"timesteps": "1", "seed": text}).seed
    assert EpisodeRange(0, number) == from_flags({"episodes": text}).episodes


@pytest.mark.parametrize(
    ("flags", "examples"),
    [
        ({"timesteps": "0"}, ["16", "100_000"]),
        ({"timesteps": "1", "cpus_per_worker": "x"}, ["0.5", "2"]),
        ({"timesteps": "1", "sampler": "dask"}, ["multiprocessing", "local", "ray"]),
    ],
)
def test_the_hint_of_a_refusal(flags: dict[str, object], examples: list[str]) -> None:
    """It says what is allowed, and not what the option is for."""
    hint = refusal(from_flags, flags).hint
    assert all(example in hint for example in examples), hint


def test_the_largest_segment_is_what_the_writer_takes() -> None:
    """Neither refuses a size that the other one allows."""
    assert MOST_SEGMENT_BYTES == from_flags({"timesteps": "1", "segment_bytes": str(1 << 30)}).segment_bytes
    error = refusal(CollectConfig, timesteps=1, segment_bytes=MOST_SEGMENT_BYTES + 1)
    check(error, "option-value", "segment_bytes")


def test_kinds_of_options() -> None:
    """They follow from the types of the fields, whatever the placeholders say."""
    kinds = {
        kind: {name for name, option in OPTIONS.items() if option.kind == kind}
        for kind in ("list", "mapping")
    }
    assert {
        "list": {"wrapper", "pin", "drop_info"},
        "mapping": {"policy_kwargs", "env_kwargs", "reset_options", "worker_args"},
    } == kinds
    assert {"overwrite", "resume"} < {name for name, option in OPTIONS.items() if option.kind == "switch"}
    relabelled = replace(OPTIONS["pin"], metavar="ANYTHING")
    assert ("a", "b") == relabelled.read(["a", "b"], "--pin", text=True)


def test_every_option_has_a_hint() -> None:
    """It says what a value may be."""
    for option in OPTIONS.values():
        hint = refusal(option.read, object(), option.name).hint
        assert re.match(r"use \w", hint)
        assert option.help != hint


# -- variables, files, and which source wins ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "values", "hint"),
    [
        ("timestep = 5", "option-unknown", ["'timestep'"], "timesteps"),
        ("max-episode-length = 5", "option-unknown", ["'max-episode-length'"], "max_episode_length"),
        ("qqqq = 5", "option-unknown", ["'qqqq'"], "timesteps, episodes"),
        ("workers = 'two'", "option-value", ["workers", "'two'"], "16"),
        ("workers = 2.0", "option-value", ["workers", "2.0"], "16"),
        ("timesteps = 1e5", "option-value", ["timesteps", "100000.0"], "16"),
        ("timesteps = true", "option-value", ["timesteps", "True"], "16"),
        ("overwrite = 1", "option-value", ["overwrite", "1"], "true or false"),
        ("output = 5", "option-value", ["output", "5"], ""),
        ("episodes = true", "option-value", ["episodes", "True"], ""),
        ("drop_info = 'a'", "option-value", ["drop_info", "'a'"], ""),
        ("env_kwargs = 3", "option-value", ["env_kwargs", "key=value"], ""),
        ("[env_kwargs]\nday = 2020-01-01", "option-value", ["env_kwargs", "key=value"], ""),
        (
            "episodes_per_worker = 5",
            "option-unknown",
            ["`rollout collect`", "episodes_per_worker"],
            "`rollout exact`",
        ),
        ("command = 'exact'", "config-command", ["`rollout exact`", "`rollout collect`"], "`command`"),
        (
            "timesteps = 5\nworkers = \nseed = 1",
            "config-not-toml",
            ["Invalid value (at line 2, column 11)"],
            "https://toml.io",
        ),
        ("x = " + "[" * 10_000, "config-not-toml", [], "https://toml.io"),
    ],
)
def test_files_that_are_refused(
    tmp_path: Path, text: str, code: str, values: list[object], hint: str
) -> None:
    """A refusal names the file, the key, what it must be and its value; a syntax error its line."""
    error = refusal(from_file, tmp_path, text)
    check(error, code, tmp_path / "run.toml", *values)
    assert error.hint
    assert hint in error.hint


@pytest.mark.timeout(20)  # A pipe and /dev/zero never end.
@pytest.mark.parametrize(
    ("name", "code", "value"),
    [
        ("none.toml", "spec-file-missing", ""),
        ("", "spec-file-unreadable", "Is a directory"),
        ("binary.toml", "config-not-toml", ""),
        ("pipe", "spec-file-not-regular", ""),
        ("/dev/zero", "spec-file-not-regular", ""),
        ("large.toml", "spec-file-too-large", "1,048,576"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, code: str, value: str) -> None:
    """A missing file, a folder, a pipe, a device, or bytes that are no text are errors that name them."""
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "large.toml").write_text("timesteps = 1 #" + "x" * (1 << 20))
    os.mkfifo(tmp_path / "pipe")
    error = refusal(resolve, "collect", flags={}, environ={}, file=tmp_path / name)
    check(error, code, tmp_path / name, value)
    assert error.hint


def test_the_stronger_source_wins(tmp_path: Path) -> None:
    """A flag is stronger than a variable, a variable than the file, the file than the dataset to be resumed."""
    path = tmp_path / "run.toml"
    path.write_text(
        "timesteps = 5\nseed = 1\nworkers = 1\npolicy = 'a:b'\ndeterministic = true\nresume = true"
    )
    config = resolve(
        "collect",
        flags={"seed": "3", "deterministic": False},
        environ={"ROLLOUT_SEED": "2", "ROLLOUT_WORKERS": "2", "ROLLOUT_POLICY": ""},
        file=path,
        recorded=lambda _, given: {"seed": 9, "env": "e", "policy": "p", "timesteps": given["timesteps"] + 1},
    )
    names = ("seed", "workers", "policy", "deterministic", "env", "timesteps")
    assert [3, 2, "a:b", False, "e", 5] == [getattr(config, name) for name in names]


def test_a_stronger_amount_overrides_the_other_kind(tmp_path: Path) -> None:
    """`--episodes 5` beside a file's timesteps means five episodes; two amounts of one source both hold.

    A limit of time stays beside them: it is about the run, and not about the data.
    """
    path = tmp_path / "run.toml"
    path.write_text("timesteps = 1000\nmax_time = '1h30m'")
    config = resolve("collect", flags={"episodes": "5"}, environ={}, file=path)
    assert (None, EpisodeRange(0, 5), 5400.0) == (config.timesteps, config.episodes, config.max_time)
    limited = resolve("collect", flags={"max_time": "90"}, environ={}, file=path)
    assert (1000, None, 90.0) == (limited.timesteps, limited.episodes, limited.max_time)
    both = from_file(tmp_path, "timesteps = 5\nepisodes = 6")
    assert (5, EpisodeRange(0, 6)) == (both.timesteps, both.episodes)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("0.5s", 0.5), ("1h30m", 5400.0), ("2m1.5s", 121.5), ("1h", 3600.0), ("1e3", 1000.0)],
)
def test_times(text: str, seconds: float) -> None:
    """A time is a number of seconds, or hours, minutes and seconds; a file takes both."""
    assert seconds == from_flags({"max_time": text}).max_time
    assert seconds == CollectConfig(max_time=text).max_time == CollectConfig(max_time=seconds).max_time  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["env_kwargs", "worker_args"])
def test_keywords_are_merged_by_key(name: str, tmp_path: Path) -> None:
    """A stronger source replaces single keywords, not the table."""
    path = tmp_path / "run.toml"
    path.write_text(f"timesteps = 5\n[{name}]\na = 1\nb = 1\nc = 1")
    variables = {f"ROLLOUT_{name.upper()}": "b=2 c=2 d='x y'"}
    config = resolve("collect", flags={name: ["c=3"]}, environ=variables, file=path)
    assert {"a": 1, "b": 2, "c": 3, "d": "x y"} == getattr(config, name)


def test_words_of_switches() -> None:
    """A variable may spell a switch in the usual words."""
    for value, words in {True: ("1", "TRUE", "yes", "on"), False: ("0", "no", "off")}.items():
        for word in words:
            config = resolve("collect", flags={"timesteps": "1"}, environ={"ROLLOUT_OVERWRITE": word})
            assert value == config.overwrite


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("WORKERS", "x", "option-value"),
        ("OVERWRITE", "maybe", "option-value"),
        ("ENV_KWARGS", "a='", "config-variable"),
    ],
)
def test_a_bad_variable_is_named(name: str, text: str, code: str) -> None:
    """A refusal of an environment variable calls it by its name."""
    variable = f"ROLLOUT_{name}"
    error = refusal(resolve, "collect", flags={"timesteps": "1"}, environ={variable: text})
    check(error, code, variable)


# -- writing -----------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]))
plain_values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(
    env=texts.filter(bool),
    kwargs=st.dictionaries(texts, plain_values, max_size=4),
    episodes=st.integers(1, 9).flatmap(lambda stop: st.tuples(st.integers(0, stop - 1), st.just(stop))),
    drop_info=st.lists(texts.filter(str.strip), max_size=2),
)
def test_a_written_configuration_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, env: str, kwargs: Any, episodes: Any, drop_info: list[str]
) -> None:
    """The TOML of a configuration gives the same configuration, and its plain values are JSON."""
    config = CollectConfig(
        env=env, env_kwargs=kwargs, episodes=EpisodeRange(*episodes), drop_info=tuple(drop_info)
    )
    assert config == from_file(tmp_path_factory.mktemp("toml"), tomli_w.dumps(config_to_dict(config)))
    json.dumps(config_to_dict(config))


def test_a_summary_is_one_short_sentence() -> None:
    """At most 12 words, so that a help page is read at a glance."""
    for option in OPTIONS.values():
        assert len(option.summary.split()) <= 12, option.summary
        assert option.help.startswith(option.summary)
