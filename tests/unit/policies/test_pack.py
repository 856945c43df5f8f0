"""Packing a policy by value."""

from __future__ import annotations

import stat
from hashlib import sha256
from pathlib import Path

import cloudpickle
import pytest

from rollout_cli.errors import PolicyLoadError, StorageError
from rollout_cli.policies.pack import pack_policy
from tests.support.projects import project, run_python, write_module

__all__ = ["project"]

HELPER = "def double(number): return 2 * number"
POLICY = """
    from helping_module import double

    class Go:
        def get_action(self, observation):
            return double(1), {"constant": CONSTANT}

    CONSTANT = 7
    ready = Go()
    unpicklable = (number for number in range(3))
"""
LOADING = """
    from gymnasium import spaces
    from rollout_cli.episode_batch import EnvSpec
    from rollout_cli.policies import policy_source, policy_class
    policy = policy_source("policy.pkl").load(EnvSpec(spaces.Discrete(3), spaces.Discrete(3)))
    print(policy.get_action(0), policy_class(policy))
"""


@pytest.fixture
def packing(project: Path) -> Path:
    """Give a working folder with a policy's module and a module of the user's that it needs."""
    write_module(project, "helping_module", HELPER)
    write_module(project, "packed_module", POLICY)
    return project


@pytest.mark.parametrize("attribute", ["Go", "ready"])
def test_a_packed_policy_loads_without_its_modules(packing: Path, attribute: str) -> None:
    """In another process and folder, where neither module can be imported, it loads and acts."""
    elsewhere = packing / "elsewhere"
    elsewhere.mkdir()
    packed = pack_policy(f"packed_module:{attribute}", elsewhere / "policy.pkl")
    (packing / "packed_module.py").unlink()
    (packing / "helping_module.py").unlink()
    assert "(2, {'constant': 7}) packed_module.Go\n" == run_python(elsewhere, LOADING)
    assert "packed_module.Go" == packed.class_name


def test_what_is_returned_is_what_was_written(packing: Path) -> None:
    """Size and hash are those of the file; it is readable as new files are, and nothing else is left behind."""
    packed = pack_policy("packed_module:ready", packing / "policy.pkl")
    data = (packing / "policy.pkl").read_bytes()
    assert packing / "policy.pkl" == packed.path
    assert (len(data), sha256(data).hexdigest()) == (packed.n_bytes, packed.sha256)
    (packing / "plain").touch()
    assert stat.S_IMODE((packing / "plain").stat().st_mode) == stat.S_IMODE(packed.path.stat().st_mode)
    assert [] == list(packing.glob(".*"))


def test_the_registry_of_cloudpickle_is_restored(packing: Path) -> None:
    """Pickling by value is for the packing alone."""
    pack_policy("packed_module:ready", packing / "policy.pkl")
    assert set() == cloudpickle.list_registry_pickle_by_value()


def test_an_existing_file_stays(packing: Path) -> None:
    """A file is replaced only where that is asked for."""
    output = packing / "policy.pkl"
    output.write_bytes(b"precious")
    with pytest.raises(StorageError, match="exists already") as caught:
        pack_policy("packed_module:ready", output)
    assert "--overwrite" in caught.value.hint
    assert b"precious" == output.read_bytes()
    pack_policy("packed_module:ready", output, overwrite=True)
    assert b"precious" != output.read_bytes()


def test_a_failed_write_leaves_nothing(packing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where writing fails, the old file stays and no temporary one is left."""
    output = packing / "policy.pkl"
    output.write_bytes(b"precious")

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(StorageError, match="No space left"):
        pack_policy("packed_module:ready", output, overwrite=True)
    assert b"precious" == output.read_bytes()
    assert [] == list(packing.glob(".*"))


def test_what_cannot_be_packed(packing: Path) -> None:
    """Each failure is one clear line."""
    with pytest.raises(StorageError, match="cannot be written: FileNotFoundError"):
        pack_policy("packed_module:ready", packing / "absent" / "policy.pkl")
    with pytest.raises(PolicyLoadError, match=r"'policy\.pkl' is not module:attr"):
        pack_policy("policy.pkl", packing / "other.pkl")
    with pytest.raises(PolicyLoadError, match="of type generator cannot be pickled"):
        pack_policy("packed_module:unpicklable", packing / "policy.pkl")
    with pytest.raises(PolicyLoadError, match="no attribute 'Absent'"):
        pack_policy("packed_module:Absent", packing / "policy.pkl")
    assert not (packing / "policy.pkl").exists()


def test_a_pickle_that_does_not_load_is_not_written(packing: Path) -> None:
    """What was made is loaded once before it is kept."""
    text = """
        class Broken:
            def __call__(self, observation): return 0
            def __setstate__(self, state): raise RuntimeError("no way back")
            def __init__(self): self.x = 1
        broken = Broken()
    """
    write_module(packing, "broken_module", text)
    with pytest.raises(PolicyLoadError, match="does not load: RuntimeError: no way back"):
        pack_policy("broken_module:broken", packing / "policy.pkl")
    assert not (packing / "policy.pkl").exists()
