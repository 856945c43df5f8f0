"""A policy scheme that names a file, and wrappers: a dataset's record builds them again, from any folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.loading import Source
from rollout_cli.policies.adapt import adapt_policy
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.policies.source import SCHEMES, PolicySource, policy_source
from tests.helpers.datasets import assert_same_data, source_of, steps_of
from tests.helpers.policies import push
from tests.helpers.processes import called

ENV = ("--env", "tests.helpers.envs:FaultyEnv", "--sampler", "local", "--seed", "3", "--quiet")


@dataclass(frozen=True)
class WeightSource:
    """`weights:FILE`: a policy with the number that the file holds as JSON."""

    source: Source
    options: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"weights of {self.source.spec}"

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
        assert self.source.data is not None
        weight = float(json.loads(self.source.data))
        return adapt_policy(lambda observation: push(observation, weight), env_spec)

    def describe(self) -> dict[str, Any]:
        record = {"path": self.source.path, "sha256": self.source.sha256}
        return {"scheme": "weights", **record, "options": dict(self.options)}


def weights(rest: str, options: Mapping[str, Any]) -> PolicySource:
    return WeightSource(Source.read(rest, PolicyLoadError), options)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with weights, which is not the working folder; the scheme is registered."""
    monkeypatch.setitem(SCHEMES, "weights", weights)
    made = tmp_path / "made"
    made.mkdir()
    (made / "w.json").write_text("0.5")
    return made


def collected(folder: Path, name: str, *words: str) -> Path:
    called("collect", "--policy", "weights:w.json", *words, *ENV, "--output", name, cwd=folder)
    return folder / name


def test_the_record_of_a_scheme(folder: Path) -> None:
    """The SPEC as it was given, and all that it is built from again."""
    record = source_of(collected(folder, "out", "--episodes", "3"))["policy"]
    digest = sha256(b"0.5").hexdigest()
    path = str(folder / "w.json")
    expected = {"spec": "weights:w.json", "scheme": "weights", "path": path, "sha256": digest, "options": {}}
    assert expected == {name: value for name, value in record.items() if name != "class"}


def test_a_scheme_with_a_file_is_resumed_from_another_folder(folder: Path, tmp_path: Path) -> None:
    """The dataset is that of a run that was never interrupted; the hash is checked as that of other files."""
    digest = sha256(b"0.5").hexdigest()
    out = collected(folder, "out", "--episodes", "150", "--policy-sha256", digest, "--flush-every", "1e9")
    called("collect", "--resume", "--episodes", "300", "--quiet", "--output", out, cwd=tmp_path)
    assert_same_data(collected(folder, "whole", "--episodes", "300"), out)


def test_other_weights_are_refused(folder: Path) -> None:
    """On resume, in a replay, and where the hash is given."""
    out = collected(folder, "out", "--episodes", "150")
    (folder / "w.json").write_text("0.75")
    ran = called("collect", "--resume", "--episodes", "300", "--quiet", "--output", out, code=2)
    assert "the source of the policy has changed" in ran.stderr
    digest = sha256(b"0.5").hexdigest()
    given = ("--policy", "weights:w.json", "--policy-sha256", digest, "--episodes", "3")
    ran = called("collect", *given, *ENV, "--output", "other", cwd=folder, code=3)
    assert f"should have {digest}" in ran.stderr
    assert f"should have {digest}" in called("replay", out, "--all", code=3).stderr


@dataclass(frozen=True)
class OtherSource(WeightSource):
    """`others:FILE`: the same of the same file."""

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "scheme": "others"}


def test_another_scheme_of_the_same_file_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may read the file in another way."""
    monkeypatch.setitem(
        SCHEMES, "others", lambda rest, options: OtherSource(Source.read(rest, PolicyLoadError), options)
    )
    collected(folder, "out", "--episodes", "150")
    words = ("--resume", "--episodes", "300", "--policy", "others:w.json", "--quiet", "--output", "out")
    assert "policy was" in called("collect", *words, cwd=folder, code=2).stderr


def test_a_scheme_with_a_file_is_replayed(folder: Path, tmp_path: Path) -> None:
    """From another folder, and from where the file is now."""
    out = collected(folder, "out", "--episodes", "5")
    ran = called("replay", out, "--all", "--json", cwd=tmp_path)
    assert 5 == json.loads(ran.stdout)["identical"]
    (folder / "w.json").rename(tmp_path / "moved.json")
    assert "there is no file" in called("replay", out, "--all", code=3).stderr
    ran = called("replay", out, "--all", "--json", "--policy", f"weights:{tmp_path / 'moved.json'}")
    assert 5 == json.loads(ran.stdout)["identical"]


def test_shards_of_a_scheme_are_merged(folder: Path, tmp_path: Path) -> None:
    """The file lies in another folder on each machine."""
    (tmp_path / "w.json").write_text("0.5")
    for number, cwd in ((1, folder), (2, tmp_path)):
        words = ("--policy", "weights:w.json", "--episodes", "150", "--shard", f"{number}/2")
        called("collect", *words, *ENV, "--output", tmp_path / f"part{number}", cwd=cwd)
    called("merge", tmp_path / "part1", tmp_path / "part2", "--output", tmp_path / "all", "--quiet")
    assert_same_data(collected(folder, "whole", "--episodes", "150"), tmp_path / "all")


def test_only_schemes_take_options(folder: Path) -> None:
    """A source gets them as they are; those of a file or module would change nothing."""
    assert {"size": 3} == policy_source(f"weights:{folder / 'w.json'}", {"size": 3}).describe()["options"]
    with pytest.raises(PolicyLoadError, match="has no scheme, so it takes no options"):
        policy_source("mine:Go", {"size": 3})
    with pytest.raises(PolicyLoadError, match="takes nothing after its name"):
        policy_source("random", {"size": 3})


WRAPPED = (
    "--wrapper",
    "FrameStackObservation?stack_size=3",
    "--wrapper",
    "TimeAwareObservation?flatten=false",
)


def test_wrappers_are_built_again(tmp_path: Path) -> None:
    """In order, with their arguments: on resume, in a replay, and in the check at the end."""
    env = ("--env", "CartPole-v1", "--env-kwargs", "max_episode_steps=30")
    words = ("collect", *env, "--sampler", "local", "--seed", "3", "--quiet")
    called(*words, *WRAPPED, "--episodes", "100", "--output", tmp_path / "out")
    observations = steps_of(tmp_path / "out")
    assert any("time" in name for name in observations.column_names)
    info = source_of(tmp_path / "out")
    assert "yes" == info["reproducible"]["status"]
    expected = [("FrameStackObservation", {"stack_size": 3}), ("TimeAwareObservation", {"flatten": False})]
    assert expected == [(wrapper["spec"], wrapper["kwargs"]) for wrapper in info["env_source"]["wrappers"]]
    called("collect", "--resume", "--episodes", "200", "--quiet", "--output", tmp_path / "out")
    called(*words, *WRAPPED, "--episodes", "200", "--output", tmp_path / "whole")
    assert_same_data(tmp_path / "whole", tmp_path / "out")
    ran = called("replay", tmp_path / "out", "--episodes", "0:5", "--json")
    assert 5 == json.loads(ran.stdout)["identical"]
    ran = called(*words, *WRAPPED[:2], "--resume", "--episodes", "300", "--output", tmp_path / "out", code=2)
    assert "wrapper was" in ran.stderr


def test_shards_with_wrappers_are_merged(tmp_path: Path) -> None:
    """The whole is the single run, and replays; a shard in other wrappers is no part of it."""
    words = (
        "collect",
        "--env",
        "CartPole-v1",
        "--episodes",
        "90",
        "--sampler",
        "local",
        "--seed",
        "3",
        "--quiet",
    )
    for number in (1, 2):
        called(*words, *WRAPPED, "--shard", f"{number}/2", "--output", tmp_path / f"part{number}")
    called("merge", tmp_path / "part1", tmp_path / "part2", "--output", tmp_path / "all", "--quiet")
    called(*words, *WRAPPED, "--output", tmp_path / "whole")
    assert_same_data(tmp_path / "whole", tmp_path / "all")
    ran = called("replay", tmp_path / "all", "--episodes", "60:63", "--json")
    assert 3 == json.loads(ran.stdout)["identical"]
    called(*words, *WRAPPED[:2], "--shard", "2/2", "--output", tmp_path / "other")
    ran = called("merge", tmp_path / "part1", tmp_path / "other", "--output", tmp_path / "both", code=2)
    assert "wrapper" in ran.stderr


REFUSED = {
    "FrameStackObservaton": (3, "did you mean FrameStackObservation?"),
    "absent:Wrapper": (3, "there is no module 'absent'"),
    "FrameStackObservation?stack": (2, "an argument of --wrapper FrameStackObservation must be key=value"),
    "FrameStackObservation?size=3": (3, "takes no argument 'size'"),
    "builtins:repr": (3, "is no gymnasium.Env"),
}


@pytest.mark.parametrize("spec", REFUSED)
def test_wrappers_that_cannot_be_used(spec: str, tmp_path: Path) -> None:
    """Each is refused in words that name it."""
    code, message = REFUSED[spec]
    words = (
        "collect",
        "--episodes",
        "3",
        "--wrapper",
        spec,
        "--sampler",
        "local",
        "--output",
        tmp_path / "out",
    )
    assert message in called(*words, code=code).stderr


def test_a_time_limit_counts_the_steps_inside_wrappers(tmp_path: Path) -> None:
    """One that repeats actions has fewer steps than the environment."""
    words = (
        "collect",
        "--env",
        "Pendulum-v1",
        "--wrapper",
        "MaxAndSkipObservation?skip=4",
        "--episodes",
        "2",
    )
    called(*words, "--sampler", "local", "--quiet", "--output", tmp_path / "out")
    assert 100 == len(steps_of(tmp_path / "out"))
