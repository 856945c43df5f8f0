"""The record of a run is plain JSON, holds no secret, and gives the run back."""

from __future__ import annotations

import json
import math
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.envs.source import env_source
from rollout_cli.episodes.plain import NUMBERS, from_plain
from rollout_cli.errors import ConfigError, DatasetFormatError, UserCodeError
from rollout_cli.options.config import CollectConfig
from rollout_cli.options.types import EpisodeRange
from rollout_cli.policies.source import policy_source
from rollout_cli.run import provenance
from rollout_cli.run.provenance import recorded_values, run_record, sources_record, storable
from rollout_cli.sources.untrusted import printable
from rollout_cli.sources.versions import surroundings
from rollout_cli.workers.values import WorkerReport
from tests.helpers.errors import raises
from tests.helpers.projects import project, write_module

__all__ = ["project"]


def recorded(config: CollectConfig) -> Any:
    """Return the record as info.json gives it back."""
    record = sources_record(
        config, policy_source(config.policy), env_source(str(config.env), config.env_kwargs)
    )
    return dict(json.loads(json.dumps({**record, "root_seed": 7}, allow_nan=False)))


texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.floats(width=64) | st.integers() | st.booleans()
values = st.recursive(
    numbers | texts.filter(lambda text: not text.startswith("{") and text not in NUMBERS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(document=st.dictionaries(texts.filter(lambda key: key != "secret"), values, max_size=3))
def test_every_document_is_json_and_comes_back(document: dict[str, Any]) -> None:
    """JSON has no inf and no nan; the record does."""
    text = json.dumps(storable(document), allow_nan=False)
    assert repr(document) == repr(from_plain(json.loads(text)))


def test_the_options_come_back(project: Path) -> None:
    """Amount, ranges, tuples, and numbers that JSON does not have; output and seed are no part of them."""
    write_module(project, "mine", "class Env:\n    pass\n")
    config = CollectConfig(
        episodes=EpisodeRange(3, 8),
        env="mine:Env",
        env_kwargs={"x": [0.7, math.inf], "deep": {"y": -math.inf}},
        drop_info=("a", "b"),
        grace=1.5,
        output=Path("here"),
        seed=3,
    )
    values = recorded_values(recorded(config))
    assert 7 == values.pop("seed")
    assert config == CollectConfig(**values, output=Path("here"), seed=3)


def test_files_are_named_by_their_absolute_paths(project: Path) -> None:
    """So the working folder of whoever replays does not matter."""
    (project / "spec.json").write_text(gymnasium.spec("CartPole-v1").to_json())
    values = recorded_values(recorded(CollectConfig(timesteps=1, env="spec.json")))
    assert str(project / "spec.json") == values["env"]


SECRETS = {"password": "hunter2", "api_key": "k", "deep": {"access_token": "t", "list": [{"secret": "s"}]}}
NO_SECRETS = {
    "size": 1,
    "has_token": True,
    "password": "",
    "auth": "x",
    "note": "size=1&module:token",
    "place": "s3://bucket/a@b",
    "access_token": None,
}
MORE_SECRETS = {
    "PASSWORD": 123456,
    "wandb-api-key": "k",
    "hf_token": ["a", ["b"]],
    "aws_credentials": {"user": "u"},
    "privateKey": 1.5,
    "passwd": "p",
}
CUT_TEXTS = {
    "https://me:tok@host/x?size=1": "https://***@host/x?size=1",
    "mine:Logged?api_token=123&size=3": "mine:Logged?api_token=***&size=3",
    "{ password = 'a b', size = 3 }": "{ password = '***', size = 3 }",
    "mix:0.5*a?secret=x+y&n=1": "mix:0.5*a?secret=***&n=1",
    '{"secret": 1': '{"secret": ***',
    "got {'api_key': 'k'}, expected 3": "got {'api_key': '***'}, expected 3",
    "--env-kwargs password=x failed": "--env-kwargs password=*** failed",
}


def test_values_under_the_names_of_secrets_are_cut() -> None:
    """Numbers too, and all that is nested; flags, empty values and values under other names stay."""
    expected = {
        "password": "***",
        "api_key": "***",
        "deep": {"access_token": "***", "list": [{"secret": "***"}]},
    }
    assert expected == storable(SECRETS)
    assert NO_SECRETS == storable(NO_SECRETS)
    assert dict.fromkeys(MORE_SECRETS, "***") == storable(MORE_SECRETS)


@pytest.mark.parametrize("text", CUT_TEXTS)
def test_secrets_are_cut_from_strings(text: str) -> None:
    """The arguments of a SPEC, TOML, messages, and the users of URLs."""
    assert CUT_TEXTS[text] == storable({"text": [[text]]})["text"][0][0]
    assert CUT_TEXTS[text] == printable(text)


def test_secrets_are_cut_inside_of_json_texts() -> None:
    """Gymnasium's EnvSpec is recorded as one."""
    spec = json.dumps({"id": "x", "kwargs": {"api_key": "k", "size": 3}})
    assert {"id": "x", "kwargs": {"api_key": "***", "size": 3}} == json.loads(
        storable({"spec_json": spec})["spec_json"]
    )
    for text in ("{", '"secret"', "[" * 100_000 + "secret"):
        assert {"spec_json": text} == storable({"spec_json": text})


def test_secrets_are_cut_from_arguments_of_a_spec() -> None:
    """A wrapper has its arguments behind its name."""
    config = CollectConfig(
        timesteps=1, wrapper=("mine:Logged?api_key=hunter2&size=3", "mine:Logged?size=3&password=hunter2")
    )
    record = recorded(config)
    assert ["mine:Logged?api_key=***&size=3", "mine:Logged?size=3&password=***"] == record["collector"][
        "wrapper"
    ]
    assert "hunter2" not in json.dumps(record)


@pytest.mark.parametrize(
    ("options", "flag", "key"),
    [
        ({"env_kwargs": {"deep": {"password": "***"}}}, "--env-kwargs", "'deep'"),
        ({"policy_kwargs": {"api_key": "***"}}, "--policy-kwargs", "'api_key'"),
        ({"reset_options": {"list": [{"secret": "***"}]}}, "--reset-options", "'list'"),
        ({"tasks": [{"size": 1}, {"access_token": "***"}]}, "--tasks", ""),
        ({"wrapper": ("FlattenObservation", "mine:Logged?size=3&api_key=***")}, "--wrapper", ""),
    ],
)
def test_a_secret_must_be_given_again(options: dict[str, Any], flag: str, key: str) -> None:
    """The error names the option and the key."""
    with raises(ConfigError, "secret-missing", flag, key) as caught:
        provenance.check_nothing_cut(CollectConfig(timesteps=1, **options))
    assert f"{flag[2:].replace('-', '_')}=" in caught.value.hint


def test_a_secret_that_is_given_again_is_enough() -> None:
    """So are three stars under another name."""
    provenance.check_nothing_cut(CollectConfig(timesteps=1, env_kwargs={"password": "x", "name": "***"}))


@pytest.mark.parametrize(
    "change",
    [
        {"collector": {}},
        {"collector": None},
        {"collector": {"command": "collect", "policy": "p", "env": "e", "unknown": 3}},
        {"collector": {"command": "collect", "policy": "p", "env": "e", "timesteps": "many"}},
        {"policy": {}},
        {"seeding": 1},
        {"seeding": None},
    ],
)
def test_records_that_ask_for_no_run(change: dict[str, Any]) -> None:
    """Those of other versions, and of writers that were used without `collect`."""
    record = recorded(CollectConfig(timesteps=1)) | change
    with pytest.raises(DatasetFormatError):
        recorded_values(record)


def test_a_worker_class_is_recorded_by_its_source(project: Path) -> None:
    """A missing one is an error of the user's code."""
    write_module(project, "mine", "class Own:\n    pass\n")
    hashed = recorded(CollectConfig(timesteps=1, worker_class="mine:Own"))["worker"]["sha256"]
    write_module(project, "mine", "class Own:\n    x = 1\n")
    assert hashed != recorded(CollectConfig(timesteps=1, worker_class="mine:Own"))["worker"]["sha256"]
    with raises(UserCodeError, "module-missing"):
        recorded(CollectConfig(timesteps=1, worker_class="nomod:Own"))


def test_versions() -> None:
    """Those of this process, and those that a worker's process has loaded."""
    report = WorkerReport(
        env={"id": "X"}, policy_class="p.P", modules=("_pytest", "no_distribution", "xdist")
    )
    record = run_record(recorded(CollectConfig(timesteps=1)), report, surroundings())
    for name in ("python", "platform", "rollout-collect", "gymnasium", "numpy", "pyarrow", "cloudpickle"):
        assert record["versions"][name]
    assert version("pytest-xdist") == record["versions"]["pytest-xdist"]
    assert "hypothesis" not in record["versions"]
    assert ("X", "p.P") == (record["env"]["id"], record["policy"]["class"])


def test_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit of the working folder, and whether its files differ from it; None outside of a repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert surroundings()["git"] is None

    def git(*words: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        ran = subprocess.run(["git", *identity, *words], capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--no-verify", "--message", "one")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "untracked").touch()
    assert {"commit": commit, "dirty": False} == surroundings()["git"]
    (tmp_path / "file").write_text("two")
    assert {"commit": commit, "dirty": True} == surroundings()["git"]
    monkeypatch.setenv("PATH", "")
    assert surroundings()["git"] is None
