"""A policy scheme that names a file, and wrappers: a dataset's record builds them again, from any folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import ConfigError, PolicyLoadError, UsageError
from rollout_cli.policies.schemes.files import FileScheme, PolicyFiles
from rollout_cli.policies.source import SCHEMES, policy_source
from tests.helpers.datasets import assert_same_data, source_of, steps_of
from tests.helpers.errors import raises
from tests.helpers.policies import push
from tests.helpers.processes import called

ENV = ("--env", "tests.helpers.envs:FaultyEnv", "--sampler", "local", "--seed", "3", "--quiet")


def load_weights(
    files: PolicyFiles, options: Mapping[str, Any], env_spec: EnvSpec, *, deterministic: bool
) -> Any:
    """A policy with the number that the file holds as JSON, plus that of the option `more`, times `scale`."""
    assert not deterministic
    weight = float(json.loads(files.data)) + float(json.loads(files.contents.get("more", b"0")))
    return lambda observation: push(observation, weight * options.get("scale", 1.0))


WEIGHTS = FileScheme("weights", "a number as JSON", load_weights, {"more": Path, "scale": float})
HDF5 = replace(WEIGHTS, name="hdf5")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with weights, which is not the working folder; the scheme is registered."""
    monkeypatch.setitem(SCHEMES, "weights", WEIGHTS)
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
    assert "[resume-differs]" in ran.stderr
    digest = sha256(b"0.5").hexdigest()
    given = ("--policy", "weights:w.json", "--policy-sha256", digest, "--episodes", "3")
    ran = called("collect", *given, *ENV, "--output", "other", cwd=folder, code=3)
    assert all(part in ran.stderr for part in (digest, "[policy-hash]"))
    ran = called("replay", "--trust", out, "--all", code=3)
    assert all(part in ran.stderr for part in (digest, "[policy-hash]"))


def test_another_scheme_of_the_same_file_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may read the file in another way."""
    monkeypatch.setitem(SCHEMES, "others", replace(WEIGHTS, name="others"))
    collected(folder, "out", "--episodes", "150")
    words = ("--resume", "--episodes", "300", "--policy", "others:w.json", "--quiet", "--output", "out")
    ran = called("collect", *words, cwd=folder, code=2)
    assert all(part in ran.stderr for part in ("policy", "others:w.json", "[resume-refused]"))


def test_a_scheme_with_a_file_is_replayed(folder: Path, tmp_path: Path) -> None:
    """From another folder, and from where the file is now."""
    out = collected(folder, "out", "--episodes", "5")
    ran = called("replay", "--trust", out, "--all", "--json", cwd=tmp_path)
    assert 5 == json.loads(ran.stdout)["identical"]
    (folder / "w.json").rename(tmp_path / "moved.json")
    assert "[spec-file-missing]" in called("replay", "--trust", out, "--all", code=3).stderr
    ran = called(
        "replay", "--trust", out, "--all", "--json", "--policy", f"weights:{tmp_path / 'moved.json'}"
    )
    assert 5 == json.loads(ran.stdout)["identical"]


def test_shards_of_a_scheme_are_merged(folder: Path, tmp_path: Path) -> None:
    """The file lies in another folder on each machine."""
    (tmp_path / "w.json").write_text("0.5")
    for number, cwd in ((1, folder), (2, tmp_path)):
        words = ("--policy", "weights:w.json", "--episodes", "150", "--shard", f"{number}/2")
        called("collect", *words, *ENV, "--output", tmp_path / f"part{number}", cwd=cwd)
    called("merge", tmp_path / "part1", tmp_path / "part2", "--output", tmp_path / "all", "--quiet")
    assert_same_data(collected(folder, "whole", "--episodes", "150"), tmp_path / "all")


def test_a_file_that_an_option_names(folder: Path, tmp_path: Path) -> None:
    """It is recorded by its absolute path and in the hash, so all that a SPEC's own file can is its too."""
    (folder / "more.json").write_text("0.25")
    words = ("--policy-kwargs", "more=more.json", "--policy-kwargs", "scale=0.5")
    out = collected(folder, "out", "--episodes", "150", *words)
    record = source_of(out)["policy"]
    assert {"more": str(folder / "more.json"), "scale": 0.5} == record["options"]
    digests = [sha256(text).hexdigest() for text in (b"0.5", b"0.25")]
    lines = f"{digests[0]}  \n{digests[1]}  more\n"
    assert sha256(lines.encode()).hexdigest() == record["sha256"]
    called("collect", "--resume", "--episodes", "300", "--quiet", "--output", out, cwd=tmp_path)
    whole = collected(folder, "whole", "--episodes", "300", *words, "--policy-sha256", record["sha256"])
    assert_same_data(whole, out)
    changed = ("--resume", "--episodes", "310", "--quiet", "--output", out, "--policy-kwargs", "scale=0.75")
    ran = called("collect", *changed, code=2)
    assert all(part in ran.stderr for part in ("policy_kwargs", "[resume-refused]"))
    (folder / "more.json").rename(tmp_path / "moved.json")
    assert "[spec-file-missing]" in called("replay", "--trust", out, "--all", code=3).stderr
    moved = ("--policy-kwargs", f"more={tmp_path / 'moved.json'}")
    assert (
        5
        == json.loads(called("replay", "--trust", out, "--episodes", "0:5", "--json", *moved).stdout)[
            "identical"
        ]
    )
    (tmp_path / "moved.json").write_text("0.75")
    assert "[policy-hash]" in called("replay", "--trust", out, "--episode", "0", *moved, code=3).stderr


def test_shards_whose_options_name_files_are_merged(folder: Path, tmp_path: Path) -> None:
    """The file lies in another folder on each machine, and a shard with another option is no part."""
    (tmp_path / "w.json").write_text("0.5")
    parts = [tmp_path / name for name in ("part1", "part2", "other")]
    scales = ("0.5", "0.5", "0.25")
    for number, cwd, part, scale in zip((1, 2, 2), (folder, tmp_path, tmp_path), parts, scales, strict=True):
        (cwd / "more.json").write_text("0.25")
        options = ("--policy-kwargs", "more=more.json", "--policy-kwargs", f"scale={scale}")
        words = ("--policy", "weights:w.json", "--episodes", "90", "--shard", f"{number}/2")
        called("collect", *words, *options, *ENV, "--output", part, cwd=cwd)
    called("merge", *parts[:2], "--output", tmp_path / "all", "--quiet")
    ran = called("merge", parts[0], parts[2], "--output", tmp_path / "both", code=2)
    assert all(part in ran.stderr for part in ("policy_kwargs", "[shards-of-other-runs]"))


def test_a_scheme_takes_only_its_options(folder: Path) -> None:
    """A scheme takes those that it knows, of their types."""
    path = folder / "w.json"
    assert {"scale": 3.0} == policy_source(f"weights:{path}", {"scale": 3.0}).describe()["options"]
    for options, code, value in (
        ({"scales": 3.0}, "policy-options", "'scales'"),
        ({"scale": "big"}, "policy-options", "'big'"),
        ({"more": 3}, "policy-options", "3"),
        ({"more": "absent.json"}, "spec-file-missing", "'absent.json'"),
    ):
        with raises(PolicyLoadError, code, value):
            policy_source(f"weights:{path}", options)
    for spec in ("weights:", f"weights:{folder}"):
        with raises(PolicyLoadError, "policy-spec"):
            policy_source(spec)
    with raises(PolicyLoadError, "policy-options"):
        policy_source("random", {"size": 3})


def test_options_in_a_spec(folder: Path, tmp_path: Path) -> None:
    """They are those of `--policy-kwargs`, in the data and in the record, which builds them again."""
    (folder / "more.json").write_text("0.25")
    given = ("--policy", "weights:w.json?more=more.json&scale=0.5")
    beside = ("--policy-kwargs", "more=more.json", "--policy-kwargs", "scale=0.5")
    out = collected(folder, "out", "--episodes", "100", *given)
    whole = collected(folder, "whole", "--episodes", "150", *beside)
    records = [{**source_of(path)["policy"], "spec": ""} for path in (out, whole)]
    assert records[0] == records[1]
    called("collect", "--resume", *given, "--episodes", "150", "--quiet", "--output", out, cwd=folder)
    assert_same_data(whole, out)
    ran = called("replay", "--trust", out, "--episodes", "0:3", "--json", cwd=tmp_path)
    assert 3 == json.loads(ran.stdout)["identical"]


def test_what_a_question_mark_means(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins options of files and of components, each given once; a file may have one in its name."""
    monkeypatch.chdir(folder)
    Path("w?scale=2.0").write_text("0.25")
    assert {} == policy_source("weights:w?scale=2.0").describe()["options"]
    assert {"scale": 2.0} == policy_source("weights:w.json?scale=2.0", {"scale": 2.0}).describe()["options"]
    mixture = policy_source("mix:0.5*weights:w.json?scale=2.0+0.5*random").describe()
    assert {"component0": {"scale": 2.0}} == mixture["options"]
    with raises(UsageError, "policy-options-conflict"):
        policy_source("weights:w.json?scale=0.5", {"scale": 0.25})
    with raises(ConfigError, "option-value", "w.json") as caught:
        policy_source("weights:w.json?scale")
    assert "w.json?key=value" in caught.value.hint
    assert {"size": 3} == policy_source("json:loads?size=3").describe()["options"]


def test_a_scheme_of_another_package(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point registers it, and it also loads what is otherwise only recognised."""
    info = tmp_path / "site" / "more_policies-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: more-policies\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rollout.policies]\nhdf5 = tests.e2e.test_schemes:HDF5\n")
    monkeypatch.setattr("rollout_cli.policies.source.SCHEMES", {"weights": WEIGHTS})
    (folder / "model.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    with raises(PolicyLoadError, "policy-unknown", "HDF5"):
        policy_source(str(folder / "model.h5"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert "hdf5" == policy_source(str(folder / "model.h5")).describe()["scheme"]


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
    ran = called("replay", "--trust", tmp_path / "out", "--episodes", "0:5", "--json")
    assert 5 == json.loads(ran.stdout)["identical"]
    ran = called(*words, *WRAPPED[:2], "--resume", "--episodes", "300", "--output", tmp_path / "out", code=2)
    assert all(part in ran.stderr for part in ("wrapper", "[resume-refused]"))


@pytest.mark.thorough
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
    ran = called("replay", "--trust", tmp_path / "all", "--episodes", "60:63", "--json")
    assert 3 == json.loads(ran.stdout)["identical"]
    called(*words, *WRAPPED[:2], "--shard", "2/2", "--output", tmp_path / "other")
    ran = called("merge", tmp_path / "part1", tmp_path / "other", "--output", tmp_path / "both", code=2)
    assert all(part in ran.stderr for part in ("wrapper", "[shards-of-other-runs]"))


REFUSED: dict[str, tuple[int, tuple[str, ...]]] = {
    "FrameStackObservaton": (3, ("FrameStackObservation", "[wrapper-unknown]")),
    "absent:Wrapper": (3, ("'absent'", "[module-missing]")),
    "FrameStackObservation?stack_size=2&stack_size=3": (2, ("stack_size", "[argument-repeated]")),
    "FrameStackObservation?stack": (2, ("--wrapper FrameStackObservation", "key=value", "[option-value]")),
    "FrameStackObservation?size=3": (3, ("'size'", "[env-argument]")),
    "builtins:repr": (3, ("builtins:repr", "[env-not-gymnasium]")),
}


@pytest.mark.parametrize("spec", REFUSED)
def test_wrappers_that_cannot_be_used(spec: str, tmp_path: Path) -> None:
    """Each is refused in words that name it."""
    code, parts = REFUSED[spec]
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
    ran = called(*words, code=code)
    assert all(part in ran.stderr for part in parts), ran.stderr


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


@pytest.mark.thorough
def test_arguments_of_a_class_of_the_user(folder: Path) -> None:
    """They are recorded, repeated by resume and replay, and compared by resume and merge: paths by their names too."""
    (folder / "tuned.py").write_text(
        "from tests.helpers.policies import push\n"
        "class Go:\n"
        "    def __init__(self, weight, note=''): self.weight = weight\n"
        "    def __call__(self, observation): return push(observation, self.weight)\n"
    )
    words = ("--policy", "tuned:Go", "--policy-kwargs", "note=/a/prod.yaml", *ENV)
    half, other = (*words, "--policy-kwargs", "weight=0.5"), (*words, "--policy-kwargs", "weight=0.25")
    called("collect", *half, "--episodes", "150", "--output", "out", cwd=folder)
    assert {"note": "/a/prod.yaml", "weight": 0.5} == source_of(folder / "out")["policy"]["options"]
    resume = ("collect", "--resume", "--output", "out", "--episodes", "300", "--quiet")
    for changed in ("weight=0.75", "note=/b/prod.yaml"):
        ran = called(*resume, "--policy-kwargs", changed, cwd=folder, code=2)
        assert all(part in ran.stderr for part in ("policy_kwargs", "[resume-refused]"))
    called(*resume, cwd=folder)
    assert (
        5
        == json.loads(called("replay", "--trust", "out", "--episodes", "0:5", "--json", cwd=folder).stdout)[
            "identical"
        ]
    )
    for number, name, shard in ((1, "part1", half), (2, "part2", half), (2, "other", other)):
        called("collect", *shard, "--episodes", "300", "--shard", f"{number}/2", "--output", name, cwd=folder)
    called("merge", "part1", "part2", "--output", "all", "--quiet", cwd=folder)
    assert_same_data(folder / "out", folder / "all")
    ran = called("merge", "part1", "other", "--output", "b", cwd=folder, code=2)
    assert all(part in ran.stderr for part in ("policy_kwargs", "[shards-of-other-runs]"))
