"""What is trusted and what is not: policy files, names that drive terminals, secrets, and folders to be replaced."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from rollout_cli.dataset import load
from rollout_cli.errors import PolicyLoadError, UsageError
from rollout_cli.policies import policy_source
from tests.cli.conftest import Ran, run_command
from tests.support.policies import plain_policy

Rollout = Callable[..., Ran]

TWO = ["--episodes", "2", "-w", "1", "--sampler", "local", "-o", "out"]
TELLTALE = """
from pathlib import Path
Path("imported").touch()
import gymnasium
make = lambda: gymnasium.make("CartPole-v1")
"""


class Telltale:
    """Leaves a file where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("unpickled"),)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy file of one's own."""
    path = tmp_path / "p.pkl"
    path.write_bytes(cloudpickle.dumps(plain_policy))
    path.chmod(0o644)
    return path


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("workers", [["--sampler", "local", "-w", "1"], ["-w", "2"]])
def test_the_right_hash(policy: Path, tmp_path: Path, workers: list[str]) -> None:
    """A file with the hash that is asked for runs, in capitals too, and the hash is recorded."""
    words = ["-p", "p.pkl", "--policy-sha256", digest(policy).upper(), *workers]
    ran = run_command("collect", "--episodes", "2", "-o", "out", *words, cwd=tmp_path)
    assert ran.code == 0, ran.stderr
    assert digest(policy) == load(tmp_path / "out").info["policy"]["sha256"]


def test_the_wrong_hash(rollout: Rollout, tmp_path: Path) -> None:
    """Both hashes are told, and nothing was unpickled or imported, nor any dataset begun."""
    (tmp_path / "p.pkl").write_bytes(cloudpickle.dumps(Telltale()))
    (tmp_path / "telltale.py").write_text(TELLTALE)
    ran = rollout("collect", *TWO, "-p", "p.pkl", "-e", "telltale:make", "--policy-sha256", "0" * 64)
    assert 3 == ran.code
    assert digest(tmp_path / "p.pkl") in ran.stderr
    assert "0" * 64 in ran.stderr
    assert "hint: it is not the file that was meant" in ran.stderr
    assert ["p.pkl", "telltale.py"] == sorted(path.name for path in tmp_path.iterdir())


def test_the_hash_from_a_file_of_options(rollout: Rollout, policy: Path, tmp_path: Path) -> None:
    """It is an option like any other."""
    (tmp_path / "run.toml").write_text(f'policy = "p.pkl"\npolicy_sha256 = "{"0" * 64}"\n')
    assert 3 == rollout("collect", *TWO, "-c", "run.toml").code
    assert 0 == rollout("collect", *TWO, "-c", "run.toml", "--policy-sha256", digest(policy)).code


@pytest.mark.parametrize("spec", ["random", "missing_module:policy"])
def test_a_hash_of_what_is_no_file(rollout: Rollout, spec: str) -> None:
    """It could not be checked, so it is refused, before a module is looked for."""
    ran = rollout("collect", *TWO, "-p", spec, "--policy-sha256", "0" * 64)
    assert 2 == ran.code
    assert "is no file" in ran.stderr
    assert "policy pack" in ran.stderr


@pytest.mark.parametrize("text", ["abc", "0" * 63, "g" * 64])
def test_what_is_no_hash(rollout: Rollout, text: str) -> None:
    """A text that can be no SHA-256 is a usage error."""
    ran = rollout("collect", *TWO, "-p", "p.pkl", "--policy-sha256", text)
    assert 2 == ran.code
    assert "64 hexadecimal digits" in ran.stderr


def test_what_is_checked_is_what_is_loaded(policy: Path) -> None:
    """A file that is replaced after the check changes nothing: the source holds the bytes that were hashed."""
    source = policy_source(str(policy), sha256=digest(policy))
    loadable = cloudpickle.loads(cloudpickle.dumps(source))
    policy.write_bytes(cloudpickle.dumps(Telltale()))
    assert cloudpickle.dumps(plain_policy) == loadable.pickle.data
    with pytest.raises(PolicyLoadError, match="has the SHA-256"):
        policy_source(str(policy), sha256=source.describe()["sha256"])
    with pytest.raises(UsageError):
        policy_source("random", sha256="0" * 64)


def test_a_policy_that_others_may_write(rollout: Rollout, policy: Path) -> None:
    """A notice tells who, and the run goes on."""
    assert "may be written" not in rollout("collect", *TWO, "-p", "p.pkl").stderr
    policy.chmod(0o666)
    ran = rollout("collect", *TWO, "-p", "p.pkl", "--overwrite")
    assert 0 == ran.code, ran.stderr
    assert "notice: the policy p.pkl" in ran.stderr
    assert "it may be written by everybody" in ran.stderr


SECRETIVE = """
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Secretive(CartPoleEnv):
    def __init__(self, url="", api_key="", level=0):
        assert api_key == "open sesame" and url == "http://me:pass@host/"
        super().__init__()

gymnasium.register("Secretive-v0", "secretive:Secretive")
"""


def test_secrets_are_not_recorded(tmp_path: Path) -> None:
    """The environment gets them, and no file of the dataset has them; info.json says which values were cut."""
    (tmp_path / "secretive.py").write_text(SECRETIVE)
    pairs = ["api_key=open sesame", "url=http://me:pass@host/", "level=3"]
    words = [word for pair in pairs for word in ("--env-kwargs", pair)]
    ran = run_command("collect", *TWO, "-e", "secretive:Secretive-v0", *words, cwd=tmp_path)
    assert ran.code == 0, ran.stderr
    info = load(tmp_path / "out").info
    kept = {"api_key": "***", "url": "http://***@host/", "level": 3}
    assert kept == info["env"]["kwargs"] == info["collector"]["env_kwargs"]
    assert kept == json.loads(info["env"]["spec_json"])["kwargs"]
    assert ["--env-kwargs", "api_key=***", "--env-kwargs", "url=***"] == info["collector"]["argv"][-6:-2]
    assert {"env.kwargs.api_key", "env.kwargs.url", "collector.env_kwargs.api_key"} < set(info["redacted"])
    assert "collector.argv[12]" in info["redacted"]
    for path in (tmp_path / "out").rglob("*"):
        found = path.read_bytes() if path.is_file() else b""
        assert b"sesame" not in found, path
        assert b"me:pass" not in found, path


def test_the_command_line_is_recorded(rollout: Rollout, tmp_path: Path) -> None:
    """As it was given, where it holds no secret."""
    assert 0 == rollout("collect", *TWO, "-q").code
    info = load(tmp_path / "out").info
    assert (["collect", *TWO, "-q"], []) == (info["collector"]["argv"], info["redacted"])


def test_inspect(rollout: Rollout, tmp_path: Path) -> None:
    """What a file would import, its facts and what this is not; nothing of it is run."""
    (tmp_path / "p.pkl").write_bytes(cloudpickle.dumps(Telltale()))
    ran = rollout("policy", "inspect", "p.pkl")
    assert (0, "") == (ran.code, ran.stderr)
    rows = [line.split(maxsplit=1) for line in ran.stdout.splitlines() if line]
    assert ["sha256", digest(tmp_path / "p.pkl")] in rows
    assert ["imports", "pathlib.Path.touch"] in rows
    assert "It is no security check" in ran.stdout
    assert not (tmp_path / "unpickled").exists()


def test_inspect_as_json(rollout: Rollout, policy: Path) -> None:
    """One document with the same facts, and an error is one too."""
    document = json.loads(rollout("policy", "inspect", "p.pkl", "--json").stdout)
    assert digest(policy) == document["sha256"]
    assert policy.stat().st_size == document["n_bytes"]
    assert {"module": "tests.support.policies", "attribute": "plain_policy", "is_module": False} in document["imports"]
    assert "no security check" in document["note"]
    policy.write_bytes(policy.read_bytes()[:-1])
    ran = rollout("policy", "inspect", "p.pkl", "--json")
    assert 3 == ran.code
    assert "tests.support.policies.plain_policy" in json.loads(ran.stdout)["error"]["details"]
