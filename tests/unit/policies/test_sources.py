"""Policy SPECs."""

from __future__ import annotations

import pickle
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.policies import as_policy_source, policy_source
from tests.support.policies import LinearPolicy, plain_policy
from tests.support.projects import project, write_module

__all__ = ["project"]

ENV_SPEC = EnvSpec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(4))
OBSERVATION = np.array([0.1, 0.2, 0.3], np.float32)
GOOD = """
    class Go:
        def __init__(self, env_spec):
            self.n = int(env_spec.action_space.n)
        def get_action(self, observation):
            return self.n - 1, {}
    go = lambda observation: 2
    class nested:
        go = staticmethod(lambda observation: 1)
"""


def crossed(source: Any) -> Any:
    """What a worker gets of a source."""
    return pickle.loads(pickle.dumps(source))


@pytest.mark.parametrize(("attribute", "action"), [("Go", 3), ("go", 2), ("nested.go", 1)])
def test_module_attribute(project: Path, attribute: str, action: int) -> None:
    """A class, a callable and a nested attribute load from a module in the working folder, and are recorded."""
    write_module(project, "mine", GOOD)
    source = crossed(policy_source(f"mine:{attribute}"))
    assert action == source.load(ENV_SPEC).get_action(OBSERVATION)[0]
    assert f"mine:{attribute}" == source.label
    digest = sha256((project / "mine.py").read_bytes()).hexdigest()
    assert {"spec": f"mine:{attribute}", "path": None, "sha256": digest} == source.describe()


def test_looking_for_a_module_does_not_import_it(project: Path) -> None:
    """The parent only looks: the module's code runs where it is loaded."""
    write_module(project, "heavy", "raise RuntimeError('imported')")
    source = policy_source("heavy:Policy")
    assert "heavy" not in sys.modules
    with pytest.raises(PolicyLoadError, match="importing 'heavy' failed: RuntimeError: imported") as caught:
        source.load(ENV_SPEC)
    assert "Traceback" in caught.value.details


def test_the_working_folder_is_first_on_the_path(project: Path) -> None:
    """The working folder is in front of all others, once, however often it is put there."""
    write_module(project, "this_folder", "def go(observation): return 1")
    sys.path.append(str(project))
    for _ in range(2):
        policy_source("this_folder:go")
    assert str(project) == sys.path[0]
    assert 1 == sys.path.count(str(project))
    sys.path.insert(0, "elsewhere")
    policy_source("this_folder:go")
    assert [str(project), "elsewhere"] == sys.path[:2]


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("absent:Policy", "there is no module 'absent'", "working folder"),
        ("absent.inner:Policy", "there is no module 'absent'", "working folder"),
        ("needy:Policy", "importing 'needy' failed: ModuleNotFoundError", "install what provides 'not_installed'"),
        ("leaving:Policy", "importing 'leaving' failed: SystemExit", "__main__"),
        ("mine:Absent", "'mine' has no attribute 'Absent'", "it has: Go, go, nested"),
        ("mine:nested.absent", "no attribute 'nested.absent'", "it has: go"),
        ("absent.pkl", "there is no file 'absent.pkl'", "relative to the working folder"),
        ("folder.pkl", "'folder.pkl' cannot be read: Is a directory", "readable file"),
        ("garbage.pkl", "'garbage.pkl' cannot be unpickled", "cloudpickle.dump"),
        ("cut.pkl", "'cut.pkl' cannot be unpickled", "cloudpickle.dump"),
        ("empty.pkl", "'empty.pkl' cannot be unpickled: EOFError", "cloudpickle.dump"),
        ("moved.pkl", "'moved.pkl' needs a module that is missing: ModuleNotFoundError", "install 'gone_module'"),
        ("renamed.pkl", "'renamed.pkl' needs a name that is missing: AttributeError", "by value"),
        ("number.pkl", "type int is no policy|type int, which offers", "get_action"),
        ("weights.zip", "'weights.zip' names no policy", "it is a file, but of no known kind"),
        ("rnadom", "'rnadom' names no policy", "use random, a pickle (.pkl or .pickle), or module:attr"),
        ("", "'' names no policy", "use random"),
    ],
)
def test_what_cannot_be_loaded(project: Path, spec: str, message: str, hint: str) -> None:
    """Every way to fail is one clear line of the policy kind, with what to do next."""
    write_module(project, "mine", GOOD)
    write_module(project, "needy", "import not_installed")
    write_module(project, "leaving", "import sys; sys.exit(3)")
    (project / "folder.pkl").mkdir()
    (project / "garbage.pkl").write_bytes(b"no pickle at all")
    (project / "cut.pkl").write_bytes(pickle.dumps(list(range(1000)))[:500])
    (project / "empty.pkl").write_bytes(b"")
    (project / "moved.pkl").write_bytes(b"cgone_module\nPolicy\n.")
    (project / "renamed.pkl").write_bytes(b"ctests.support.policies\nGoneAway\n.")
    (project / "number.pkl").write_bytes(pickle.dumps(3))
    (project / "weights.zip").write_bytes(b"PK")
    with pytest.raises(PolicyLoadError, match=message) as caught:
        policy_source(spec).load(ENV_SPEC)
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message
    assert 3 == caught.value.exit_code


def test_a_pickle_is_read_once(project: Path) -> None:
    """What is hashed is what is loaded, even if the file changes before the worker loads it."""
    data = cloudpickle.dumps(LinearPolicy(ENV_SPEC))
    (project / "policy.pkl").write_bytes(data)
    source = crossed(policy_source("policy.pkl"))
    (project / "policy.pkl").write_bytes(b"")
    assert isinstance(source.load(ENV_SPEC), LinearPolicy)
    assert "policy.pkl" == source.label
    described = {"spec": "policy.pkl", "path": str(project / "policy.pkl"), "sha256": sha256(data).hexdigest()}
    assert described == source.describe()
    assert data[:30].hex() not in repr(source)


def test_a_pickled_class_is_called(project: Path) -> None:
    """A pickle may hold a class or a factory, as module:attr may name one."""
    (project / "policy.pkl").write_bytes(cloudpickle.dumps(LinearPolicy))
    assert isinstance(policy_source("policy.pkl").load(ENV_SPEC), LinearPolicy)


def test_deterministic_reaches_the_adapter(project: Path) -> None:
    """A source's load refuses to be deterministic where the policy cannot be."""
    write_module(project, "mine", GOOD)
    (project / "policy.pkl").write_bytes(cloudpickle.dumps(LinearPolicy))
    for spec in ("mine:go", "policy.pkl"):
        with pytest.raises(PolicyLoadError, match="no deterministic mode"):
            policy_source(spec).load(ENV_SPEC, deterministic=True)


def test_objects_of_the_python_api() -> None:
    """An object is pickled at once, each load is a copy of it then; sources and SPECs stay what they are."""
    policy = LinearPolicy(ENV_SPEC)
    source = crossed(as_policy_source(policy))
    policy.gain = 5.0
    first, second = source.load(ENV_SPEC), source.load(ENV_SPEC)
    assert first is not second
    assert {"gain": 1.0} == first.get_param_values()
    assert {"spec": None, "path": None, "sha256": None} == source.describe()
    assert as_policy_source(source) is source
    assert "random" == as_policy_source("random").label
    assert 1 == as_policy_source(plain_policy).load(ENV_SPEC).get_action(OBSERVATION)[0]
    with pytest.raises(PolicyLoadError, match="of type generator cannot be pickled") as caught:
        as_policy_source(number for number in range(3))
    assert "factory" in caught.value.hint


def test_a_pickle_of_an_object_leaves_the_path_alone(project: Path) -> None:
    """The caller's own sys.path is not touched where nothing was named by text."""
    before = list(sys.path)
    as_policy_source(LinearPolicy(ENV_SPEC)).load(ENV_SPEC)
    assert before == sys.path
