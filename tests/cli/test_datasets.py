"""`info`, `verify`, `repair`, `replay` and `policy pack`: lines for people, documents for programs."""

from __future__ import annotations

import json
import os
import re
import shlex
from hashlib import sha256
from pathlib import Path

import pytest

from tests.cli.calling import Caller
from tests.helpers.breaks import data_files
from tests.helpers.datasets import info_of, numbers_of
from tests.helpers.processes import rollout as as_process
from tests.helpers.projects import project, write_module

__all__ = ["project"]

MAKE = (
    "collect",
    "--sampler",
    "local",
    "--workers",
    "1",
    "--seed",
    "7",
    "--env",
    "tests.helpers.envs:FaultyEnv",
    "-q",
)


@pytest.fixture
def dataset(rollout: Caller, tmp_path: Path) -> Path:
    """Give a dataset of two segments, and another working folder."""
    rollout(*MAKE, "--timesteps", "1500", "--segment-bytes", "60000", "-o", "made")
    return tmp_path / "made"


def test_info(rollout: Caller, dataset: Path) -> None:
    """Names and values; with --json the dataset's own info.json."""
    lines = rollout("info", dataset).stdout.splitlines()
    rows = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in lines}
    names = ("status", "environment", "policy", "root seed", "reproducible", "workers")
    assert ("complete", "tests.helpers.envs:FaultyEnv", "random", "7", "yes", "1 (local)") == tuple(
        rows[name] for name in names
    )
    assert "float32 (4,)" == rows["observation"]
    assert len(lines) <= 24
    assert f"{len(numbers_of(dataset)):,}" == rows["episodes"]
    assert info_of(dataset) == json.loads(rollout("info", dataset, "--json").stdout)


def test_a_run_that_was_killed(rollout: Caller, dataset: Path) -> None:
    """Its info.json has no totals yet: they are counted from the commits."""
    info = info_of(dataset)
    totals = {name: info[name] for name in ("episodes", "steps", "bytes", "segments")}
    killed = {**info, **dict.fromkeys(totals, 0), "status": "collecting"}
    (dataset / "meta" / "info.json").write_text(json.dumps(killed))
    assert killed | totals == json.loads(rollout("info", dataset, "--json").stdout)
    assert re.search(rf"^steps +{totals['steps']:,}$", rollout("info", dataset).stdout, re.MULTILINE)


def test_a_dataset_of_another_writer(rollout: Caller, dataset: Path) -> None:
    """One that recorded neither policy nor environment can be shown."""
    info = info_of(dataset)
    for key in ("policy", "env_source", "reproducible"):
        del info["sources"][0][key]
    (dataset / "meta" / "info.json").write_text(json.dumps(info))
    assert 3 == rollout("info", dataset).stdout.count("not recorded")


@pytest.mark.parametrize(
    "words", [("info",), ("verify",), ("repair",), ("replay", "--all"), ("collect", "--resume", "--output")]
)
def test_a_folder_without_a_dataset(rollout: Caller, words: tuple[str, ...], tmp_path: Path) -> None:
    """Exit code 5, in a line that names it."""
    ran = rollout(*words, tmp_path / "none", code=5)
    assert str(tmp_path / "none") in ran.stderr.splitlines()[0]
    document = json.loads(rollout(*words, tmp_path / "none", "--json", code=5).stdout)
    assert 5 == document["error"]["exit_code"]


def test_info_of_a_folder_of_datasets(rollout: Caller, dataset: Path) -> None:
    """They are listed; a dataset that lies in another one's folder hides nothing."""
    ran = rollout("info", dataset.parent, code=5)
    assert "[not-a-dataset]" in ran.stderr
    assert str(dataset) in ran.stderr.splitlines()[1]
    rollout(*MAKE, "--episodes", "1", "-o", dataset / "inner")
    assert str(dataset) in rollout("info", dataset).stdout.splitlines()[0]


def test_a_finished_run_that_is_resumed(rollout: Caller, dataset: Path) -> None:
    """Nothing was sampled, so there is no pace."""
    ran = rollout("collect", "--resume", "-o", dataset)
    assert re.search(r"^time +\d+\.\d s$", ran.stdout, re.MULTILINE)
    assert "nothing to do" in ran.stderr


def test_verify(rollout: Caller, dataset: Path) -> None:
    """A whole dataset: what was looked at; --quiet says nothing."""
    ran = rollout("verify", dataset)
    assert "verified  everything" in ran.stdout
    assert "metadata and footers" in rollout("verify", dataset, "--quick").stdout
    assert "" == rollout("verify", dataset, "--quiet").stdout
    assert json.loads(rollout("verify", dataset, "--json").stdout)["ok"]


def test_faults_and_their_repair(rollout: Caller, dataset: Path) -> None:
    """Exit code 6 and the file; a repair keeps the first segment, and its dry run changes nothing."""
    last = data_files(dataset)[-1]
    last.write_bytes(last.read_bytes()[:-9])
    ran = rollout("verify", dataset, code=6)
    assert "[dataset-invalid]" in ran.stderr
    assert last.name in ran.stderr
    assert f"rollout repair {shlex.quote(str(dataset))}" in ran.stderr
    document = json.loads(rollout("verify", dataset, "--json", code=6).stdout)
    assert (False, 6) == (document["ok"], document["error"]["exit_code"])
    tried = rollout("repair", dataset, "--dry-run").stdout
    assert "not done (--dry-run)" in tried
    rollout("verify", dataset, code=6)
    done = json.loads(rollout("repair", dataset, "--json").stdout)
    assert (True, False, "interrupted") == (done["changed"], done["dry_run"], done["status"])
    rollout("verify", dataset)
    assert "nothing to do" in rollout("repair", dataset).stdout


def test_replay(rollout: Caller, dataset: Path) -> None:
    """One episode, a range, all of them."""
    assert "episode   3 (number 3, seed " in rollout("replay", "--trust", dataset, "--episode", "3").stdout
    assert (
        "episodes  2\nreplayed  identical"
        in rollout("replay", "--trust", dataset, "--episodes", "4:6").stdout
    )
    document = json.loads(rollout("replay", "--trust", dataset, "--all", "--json").stdout)
    count = len(numbers_of(dataset))
    assert (count, count, []) == (document["replayed"], document["identical"], document["different"])
    refused = rollout("replay", "--trust", dataset, "--episode", "100000", code=2).stderr
    assert all(part in refused for part in (f"{count - 1}", "[episode-missing]"))


def test_episodes_that_differ(rollout: Caller, project: Path) -> None:
    """Exit code 6: field, step and both values; a source that has changed is named as the cause."""
    write_module(
        project, "mine", "from tests.helpers.envs import FaultyEnv\n\n\nclass Mine(FaultyEnv):\n    pass\n"
    )
    rollout(*MAKE, "--env", "mine:Mine", "--episodes", "3", "-o", "out")
    write_module(
        project,
        "mine",
        """
        from tests.helpers.envs import FaultyEnv

        class Mine(FaultyEnv):
            def step(self, action):
                seen, reward, *rest = super().step(action)
                return seen, reward + 1, *rest
        """,
    )
    # In another process, since this one has the module.
    document = json.loads(
        as_process("replay", "--trust", "out", "--all", "--json", cwd=project, code=6).stdout
    )
    assert "data-not-repeated" == document["error"]["code"]
    assert all(part in document["error"]["message"] for part in ("3", "episode 0", "reward at step 0"))
    assert "mine.py" in document["error"]["hint"]
    assert "reward" == document["different"][0]["difference"]["field"]


def test_policy_pack(rollout: Caller, project: Path) -> None:
    """The file runs without its module; it is not replaced unless that is asked for."""
    write_module(
        project, "mine", "class Own:\n    def get_action(self, observation):\n        return 0, {}\n"
    )
    ran = rollout("policy", "pack", "mine:Own", "-o", "own.pkl")
    assert "class        mine.Own" in ran.stdout
    document = json.loads(rollout("policy", "pack", "mine:Own", "-o", "two.pkl", "--json").stdout)
    assert sha256(Path("two.pkl").read_bytes()).hexdigest() == document["sha256"]
    refused = rollout("policy", "pack", "mine:Own", "-o", "own.pkl", code=5).stderr
    assert all(part in refused for part in ("own.pkl", "[output-exists]"))
    assert "[write-failed]" in rollout("policy", "pack", "mine:Own", "-o", "a" * 300, code=5).stderr
    assert "own.pkl\n" == rollout("policy", "pack", "mine:Own", "-o", "own.pkl", "--overwrite", "-q").stdout
    (project / "mine.py").unlink()
    rollout("collect", "--sampler", "local", "--episodes", "2", "--policy", "own.pkl", "-q", "-o", "out")


def test_replay_says_what_was_given(rollout: Caller, dataset: Path) -> None:
    """Another policy than the dataset's is named first; so is a range with episodes that there are not."""
    refused = rollout(
        "replay", "--trust", dataset, "--episode", "0", "--policy", "constant:[0.0, 0.0]", code=6
    ).stderr
    assert 'policy was "random", is "constant:[0.0, 0.0]"' in refused
    ran = rollout("replay", "--trust", dataset, "--episodes", "0:5000")
    assert "of the 5,000 requested episodes" in ran.stderr


@pytest.mark.parametrize("command", ["replay", "collect"])
def test_what_runs_in_this_process_computes_with_one_thread(
    rollout: Caller, dataset: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """As workers do, and with as many as the user says: the last bits of a network depend on it."""
    for name, said in (("OMP_NUM_THREADS", None), ("MKL_NUM_THREADS", "3")):
        monkeypatch.setenv(name, "2")  # So that what was set before comes back.
        monkeypatch.delenv(name) if said is None else monkeypatch.setenv(name, said)
    if command == "replay":
        rollout("replay", "--trust", dataset, "--episode", "0")
    else:
        rollout("collect", "--sampler", "local", "--episodes", "1", "-q", "-o", "more")
    assert ("1", "3") == (os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"])
