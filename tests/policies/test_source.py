"""Policy SPECs, objects of the Python API, and packing a policy by value."""

from __future__ import annotations

import pickle
from hashlib import sha256
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError, UsageError
from rollout_cli.policies.explore import ExploringSource
from rollout_cli.policies.random import RandomPolicy
from rollout_cli.policies.recorded import RecordedPolicy, RecordedSource
from rollout_cli.policies.source import loads_torch, pack_policy, policy_source
from tests.helpers.errors import raises
from tests.helpers.projects import project, run_python, write_module

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


class Constant:
    """A policy with one parameter."""

    def __init__(self, action: int = 0) -> None:
        self.action = action

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self.action, {}


def crossed(source: Any) -> Any:
    """What a worker gets of a source."""
    return pickle.loads(pickle.dumps(source))


def first_action(source: Any) -> Any:
    return crossed(source).load(ENV_SPEC).get_action(OBSERVATION)[0]


# -- SPECs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attribute", "action"), [("Go", 3), ("go", 2), ("nested.go", 1)])
def test_module_attribute(project: Path, attribute: str, action: int) -> None:
    """A class, a callable and a nested attribute load from a module in the working folder, and are recorded."""
    write_module(project, "mine", GOOD)
    source = policy_source(f"mine:{attribute}")
    assert action == first_action(source)
    digest = sha256((project / "mine.py").read_bytes()).hexdigest()
    assert {"scheme": None, "path": None, "sha256": digest, "options": {}} == source.describe()


TAKES = """
    class Go:
        def __init__(self, env_spec, config, scale=1):
            self.action = len(config) * scale
        def get_action(self, observation):
            return self.action, {}
    def make(config):
        return lambda observation: len(config)
    def acts(observation, scale=1):
        return 0
    ready = Go(None, "prod.yaml")
"""


def test_arguments_of_a_class_and_a_factory(project: Path) -> None:
    """They are passed by name, with the EnvSpec if that is taken too, and recorded; a pickled class takes them too."""
    write_module(project, "mine", TAKES)
    source = policy_source("mine:Go", {"config": "prod.yaml", "scale": 2})
    assert 18 == first_action(source)
    assert {"config": "prod.yaml", "scale": 2} == source.describe()["options"]
    assert 9 == first_action(policy_source("mine:make?config=prod.yaml"))
    (project / "policy.pkl").write_bytes(cloudpickle.dumps(Constant))
    assert 3 == first_action(policy_source("policy.pkl", {"action": 3}))


@pytest.mark.parametrize(
    ("attribute", "options", "code", "values"),
    [
        ("Go", {"confg": "x"}, "policy-factory", ["Go", "EnvSpec", "TypeError", "'confg'"]),
        ("Go", {"env_spec": 3, "config": ""}, "policy-factory", ["Go", "env_spec", "config", "EnvSpec"]),
        ("make", {"confg": "x"}, "policy-argument", ["make", "confg"]),
        ("acts", {"scale": 2}, "policy-argument", ["acts", "scale"]),
        ("ready", {"config": "x"}, "policy-argument", ["config"]),
    ],
)
def test_arguments_that_nothing_takes(
    project: Path, attribute: str, options: dict[str, Any], code: str, values: list[str]
) -> None:
    """An argument that would change nothing is an error of the policy."""
    write_module(project, "mine", TAKES)
    with raises(PolicyLoadError, code, *values):
        policy_source(f"mine:{attribute}", options).load(ENV_SPEC)


@pytest.mark.parametrize("name", ["policy.pkl", "sub/Policy.PICKLE"])
def test_a_pickle_file(project: Path, name: str) -> None:
    """An object, a class or a factory, new at each load; the record has the path and the hash of the very bytes."""
    (project / "sub").mkdir()
    for item, action in ((Constant(3), 3), (Constant, 0), (lambda: Constant(2), 2)):
        data = cloudpickle.dumps(item)
        (project / name).write_bytes(data)
        source = policy_source(name)
        (project / name).write_bytes(b"")
        assert action == first_action(source)
        digest = sha256(data).hexdigest()
        described: dict[str, Any] = {
            "scheme": None,
            "path": str(project / name),
            "sha256": digest,
            "options": {},
        }
        assert described == source.describe()
        first, second = source.load(ENV_SPEC), source.load(ENV_SPEC)
        assert first.wrapped is not second.wrapped


def test_whether_it_loads_torch_is_known_beforehand(project: Path) -> None:
    """By the scheme, by the imports of a module, or by a pickle's names; also within other sources."""
    write_module(project, "plain", "# With torch, or without.\nimport numpy\nact = lambda o: 0\n")
    write_module(project, "deep", "def act(o):\n    from torch import nn\n    return 0\n")
    write_module(project, "trained", "import stable_baselines3.ppo as ppo\nact = lambda o: 0\n")
    (project / "plain.pkl").write_bytes(cloudpickle.dumps(Constant(3)))
    (project / "net.pkl").write_bytes(b"\x80\x04\x8c\x08torch.nn\x8c\x06Linear\x93.")
    (project / "net.zip").touch()
    for spec in ("random", "plain:act", "plain.pkl", "mix:0.5*plain:act+0.5*random"):
        assert not loads_torch(policy_source(spec)), spec
    for spec in ("deep:act", "trained:act", "net.pkl", "sb3:net.zip", "mix:0.5*random+0.5*deep:act"):
        assert loads_torch(policy_source(spec)), spec
        assert loads_torch(ExploringSource(policy_source(spec), 0.5, None)), spec


def test_a_hash_that_must_hold(project: Path) -> None:
    """It is compared before anything is loaded, in either case of letters; only a file has one."""
    data = cloudpickle.dumps(Constant(3))
    (project / "policy.pkl").write_bytes(data)
    write_module(project, "mine", GOOD)
    digest = sha256(data).hexdigest()
    assert 3 == first_action(policy_source("policy.pkl", sha256=digest.upper()))
    with raises(PolicyLoadError, "policy-hash", digest, "0" * 64):
        policy_source("policy.pkl", sha256="0" * 64)
    for spec in ("random", "mine:Go"):
        with raises(UsageError, "policy-not-a-file") as caught:
            policy_source(spec, sha256=digest)
        assert "policy pack" in caught.value.hint


def test_the_built_in_policy() -> None:
    """`random` takes nothing more, and has no deterministic mode."""
    source = crossed(policy_source("random"))
    assert isinstance(source.load(ENV_SPEC), RandomPolicy)
    described: dict[str, Any] = {"scheme": "random", "path": None, "sha256": None, "options": {}}
    assert described == source.describe()
    with raises(PolicyLoadError, "policy-options", "3"):
        policy_source("random:3")
    with raises(PolicyLoadError, "policy-not-deterministic"):
        source.load(ENV_SPEC, deterministic=True)


@pytest.mark.parametrize(
    ("spec", "code", "value", "hint"),
    [
        ("absent:Policy", "module-missing", "'absent'", ""),
        ("absent.pkl", "spec-file-missing", "'absent.pkl'", ""),
        ("number.pkl", "policy-type", "int", "get_action"),
        ("weights.zip", "policy-unknown", "'weights.zip'", "docs/policies.md"),
        ("lean", "policy-unknown", "'lean'", "lean:Lean or lean:make"),
        ("lean.py", "policy-unknown", "'lean.py'", "lean:Lean or lean:make"),
        ("./deep/lean.py", "policy-unknown", "lean.py", "deep.lean:Deep"),
        ("halved.py", "policy-unknown", "'halved.py'", "random"),
        ("empty.py", "policy-unknown", "'empty.py'", "random"),
        ("rnadom", "policy-unknown", "'rnadom'", "random, constant, "),
        ("", "policy-unknown", "''", "random"),
        ("a" * 300, "policy-unknown", "aaa", "random"),
        ("a\0b", "policy-unknown", "a", "random"),
    ],
)
def test_what_cannot_be_loaded(project: Path, spec: str, code: str, value: str, hint: str) -> None:
    """Every way to fail is one clear line of the policy kind, with what to do next."""
    (project / "number.pkl").write_bytes(pickle.dumps(3))
    (project / "weights.zip").write_bytes(b"PK")
    # To import it would raise.
    write_module(
        project, "lean", "import absent\nclass Lean: pass\ndef make(): pass\ndef _own(): pass\nx = 1\n"
    )
    write_module(project, "deep.lean", "class Deep: pass\n")
    write_module(project, "halved", "class Halved(")
    write_module(project, "empty", "")
    with raises(PolicyLoadError, code, value) as caught:
        policy_source(spec).load(ENV_SPEC)
    assert caught.value.hint
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message


# -- packing ---------------------------------------------------------------------------------------------------------

PACKED = """
    from helping_module import double

    class Go:
        def get_action(self, observation):
            return double(1), {"constant": CONSTANT}

    CONSTANT = 7
    ready = Go()
    unpicklable = (number for number in range(3))

    class Broken:
        def __call__(self, observation): return 0
        def __setstate__(self, state): raise RuntimeError("no way back")
        def __init__(self): self.x = 1

    broken = Broken()
"""
LOADING = """
    from gymnasium import spaces
    from rollout_cli.episodes.batch import EnvSpec
    from rollout_cli.policies.adapt import policy_class
    from rollout_cli.policies.source import policy_source
    policy = policy_source("policy.pkl").load(EnvSpec(spaces.Discrete(3), spaces.Discrete(3)))
    print(policy.get_action(0), policy_class(policy))
"""


@pytest.fixture
def packing(project: Path) -> Path:
    """Give a working folder with a policy's module and a module of the user's that it needs."""
    write_module(project, "helping_module", "def double(number): return 2 * number")
    write_module(project, "packed_module", PACKED)
    return project


@pytest.mark.parametrize("attribute", ["Go", "ready"])
def test_a_packed_policy_loads_without_its_modules(packing: Path, attribute: str) -> None:
    """In another process and folder, where neither module can be imported, it loads and acts."""
    elsewhere = packing / "elsewhere"
    elsewhere.mkdir()
    packed = pack_policy(f"packed_module:{attribute}")
    (elsewhere / "policy.pkl").write_bytes(packed.data)
    for name in ("packed_module.py", "helping_module.py"):
        (packing / name).unlink()
    assert "(2, {'constant': 7}) packed_module.Go\n" == run_python(elsewhere, LOADING)
    assert "packed_module.Go" == packed.class_name
    assert set() == cloudpickle.list_registry_pickle_by_value()


@pytest.mark.usefixtures("packing")
@pytest.mark.parametrize(
    ("spec", "code", "value"),
    [
        ("policy.pkl", "policy-spec", "'policy.pkl'"),
        ("packed_module:unpicklable", "pickle-failed", "generator"),
        ("packed_module:Absent", "attribute-missing", "'Absent'"),
        ("packed_module:broken", "pickle-failed", "RuntimeError: no way back"),
    ],
)
def test_what_cannot_be_packed(spec: str, code: str, value: str) -> None:
    """Each failure is one clear line."""
    with raises(PolicyLoadError, code, value):
        pack_policy(spec)


def test_recorded_actions_are_played_in_the_environment_that_they_are_of() -> None:
    """A dataset gives MultiBinary((2,)) back as MultiBinary(2), which is another one to gymnasium."""
    source = RecordedSource("made", spaces.MultiBinary(2), (0,), {}, (np.zeros((0, 2), np.int8),))
    assert isinstance(
        source.load(EnvSpec(ENV_SPEC.observation_space, spaces.MultiBinary((2,)))), RecordedPolicy
    )
    with raises(PolicyLoadError, "policy-space"):
        source.load(EnvSpec(ENV_SPEC.observation_space, spaces.MultiBinary(3)))
