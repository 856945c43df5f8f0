"""`rollout info` and `rollout policy pack`, on real datasets and policies."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Ran, run_command, run_process

Rollout = Callable[..., Ran]

POLICY = '''
import numpy as np

class Left:
    """Always pushes left."""
    def get_action(self, observation):
        return np.int64(0), {}
'''


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset."""
    path = tmp_path_factory.mktemp("info") / "data set"
    ran = run_command(
        "collect", "--episodes", "4", "--sampler", "local", "-w", "1", "--seed", "5", "-q", "-o", str(path)
    )
    assert ran.code == 0, ran.stderr
    return path


def test_info_tells_what_there_is(rollout: Rollout, dataset: Path) -> None:
    """The summary has names and values that are those of the dataset."""
    ran = rollout("info", str(dataset))
    rows = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines() if not line.startswith(("column", "root")))
    assert (ran.code, ran.stderr) == (0, "")
    assert rows["dataset"] == str(dataset)
    assert (rows["status"], rows["environment"], rows["policy"]) == ("complete", "CartPole-v1", "random")
    assert rows["episodes"] == "4"
    assert rows["return"].startswith("mean ")
    assert rows["ended"] == "4 terminated, 0 truncated"
    assert "root seed           5" in ran.stdout
    assert "column observation  float32 (4,)" in ran.stdout


def test_info_as_json(rollout: Rollout, dataset: Path) -> None:
    """--json prints meta/info.json and nothing else."""
    ran = rollout("info", str(dataset), "--json")
    assert (ran.code, ran.stderr) == (0, "")
    assert json.loads(ran.stdout) == json.loads((dataset / "meta/info.json").read_text())


def test_info_on_a_terminal(rollout: Rollout, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets a table of the same rows."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("rollout_cli.cli.info.is_rich_terminal", lambda *_: True)
    shown = rollout("info", str(dataset)).stdout
    assert "│" in shown
    assert "CartPole-v1" in shown


@pytest.mark.parametrize("name", ["nothing", "."])
def test_info_of_what_is_no_dataset(rollout: Rollout, name: str) -> None:
    """A folder that holds no dataset ends with 5."""
    ran = rollout("info", name)
    assert (ran.code, ran.stdout) == (5, "")
    assert "is not a dataset" in ran.stderr


def test_pack_and_use(rollout: Rollout, tmp_path: Path) -> None:
    """A packed policy runs in a folder that its module is not in; its hash is that of the file."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "left.py").write_text(POLICY)
    file = str(tmp_path / "left.pkl")
    packed = run_command("policy", "pack", "left:Left", "-o", file, "--json", cwd=tmp_path / "mine")
    assert packed.code == 0, packed.stderr
    document = json.loads(packed.stdout)
    data = (tmp_path / "left.pkl").read_bytes()
    assert (document["path"], document["n_bytes"]) == (file, len(data))
    assert document["sha256"] == hashlib.sha256(data).hexdigest()
    assert document["class"] == "left.Left"
    ran = run_command("collect", "--episodes", "4", "-w", "2", "-p", "left.pkl", "-o", "out", "--json", cwd=tmp_path)
    assert ran.code == 0, ran.stderr
    assert json.loads(ran.stdout)["mean_length"] < 12, "pushing left all the time falls over soon"


def test_pack_refuses(rollout: Rollout, tmp_path: Path) -> None:
    """What cannot be packed, or would replace a file, is refused with its exit code."""
    (tmp_path / "left_policy.py").write_text(POLICY)
    assert rollout("policy", "pack", "no_such_module:x", "-o", "a.pkl").code == 3
    assert rollout("policy", "pack", "left_policy:Right", "-o", "a.pkl").code == 3
    assert not (tmp_path / "a.pkl").exists()
    first = rollout("policy", "pack", "left_policy:Left", "-o", "a.pkl", "-q")
    assert (first.code, first.stdout) == (0, "a.pkl\n")
    assert rollout("policy", "pack", "left_policy:Left", "-o", "a.pkl").code == 5
    again = rollout("policy", "pack", "left_policy:Left", "-o", "a.pkl", "--overwrite")
    assert again.code == 0
    assert "sha256" in again.stdout
    sys.modules.pop("left_policy")


def test_a_pipe_that_ends_early(dataset: Path) -> None:
    """`rollout info … | head -1` shows its line and no complaint."""
    ran = run_process(["bash", "-o", "pipefail", "-c", f"{COMMAND} info '{dataset}' --json | head -1"])
    assert (ran.code, ran.stdout, ran.stderr) == (0, "{\n", "")
