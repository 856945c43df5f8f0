"""Modules of the real torch as policies: which are taken, what they are given and how called; skipped without torch."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.generators import GeneratorSet
from rollout_cli.policies import adapt_policy, policy_class, policy_source
from rollout_cli.policies.adapters import instantiate
from rollout_cli.policies.torch_forward import forward_of
from tests.peers.real_torch import BOX, DISCRETE, OBSERVATIONS, module_of, needs_torch, samples, sequential, torch
from tests.support.projects import project, run_python

__all__ = ["project", "torch"]

pytestmark = needs_torch


def test_observations_become_tensors(torch: Any) -> None:
    """Box leaves come in the parameters' dtype, others as they are, in the space's tree, with a row axis."""
    space = spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "mode": spaces.Discrete(3)})
    seen: list[Any] = []

    def forward(observations: Any) -> Any:
        seen.append(observations)
        return torch.zeros(len(observations["mode"]), 4)

    module = module_of(torch, forward)
    module.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float16))
    policy = adapt_policy(module, EnvSpec(space, DISCRETE.action_space))
    image = np.full((2, 2), 7, np.uint8)
    image.flags.writeable = False
    policy.get_action({"image": image, "mode": np.int64(2)})
    assert (torch.float16, (1, 2, 2)) == (seen[0]["image"].dtype, tuple(seen[0]["image"].shape))
    assert (torch.int64, [2]) == (seen[0]["mode"].dtype, seen[0]["mode"].tolist())


def test_a_module_may_edit_its_input(torch: Any) -> None:
    """The module gets copies: a batch that is read-only is taken, and one that is edited stays as it was."""
    policy = adapt_policy(module_of(torch, lambda x: x.zero_()[:, :2]), BOX)
    observations = np.ones((2, 3), np.float32)
    policy.get_actions(observations)
    assert 6.0 == observations.sum()
    observations.flags.writeable = False
    assert (2, 2) == policy.get_actions(observations)[0].shape


def test_parameters_are_a_copy(torch: Any) -> None:
    """Parameters taken from one module and given to another make them act alike; later training does not leak."""
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    source, target = adapt_policy(first, BOX), adapt_policy(second, BOX)
    params = pickle.loads(pickle.dumps(source.get_param_values()))
    held = source.get_param_values()
    target.set_param_values(params)
    observation = samples(OBSERVATIONS, 1)[0]
    assert np.array_equal(source.get_action(observation)[0], target.get_action(observation)[0])
    with torch.no_grad():
        first.weight.zero_()
    assert held["weight"].abs().sum() > 0


def test_modules_that_are_refused(torch: Any) -> None:
    """Spaces that tensors cannot stand for, and modules that keep a state, are refused when they are loaded."""
    text = EnvSpec(spaces.Text(3), DISCRETE.action_space)
    with pytest.raises(PolicyLoadError, match="cannot take text"):
        adapt_policy(torch.nn.Linear(3, 4), text)
    trees = EnvSpec(OBSERVATIONS, spaces.Tuple((spaces.Discrete(2),)))
    with pytest.raises(PolicyLoadError, match="cannot choose an action of Tuple"):
        adapt_policy(torch.nn.Linear(3, 4), trees)
    recurrent = torch.nn.Linear(3, 4)
    recurrent.reset = lambda: None
    with pytest.raises(PolicyLoadError, match="keeps a state"):
        adapt_policy(recurrent, DISCRETE)


def test_a_module_with_get_action_is_a_policy_of_that_kind(torch: Any) -> None:
    """What a module offers by name comes before what it is; a module is never called as a factory."""

    class Acting(torch.nn.Module):  # type: ignore[misc]
        def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
            return 2, {"own": True}

    assert (2, {"own": True}) == adapt_policy(Acting(), DISCRETE).get_action(np.zeros(3))
    linear = torch.nn.Linear(3, 4)
    assert instantiate(linear, DISCRETE) is linear
    assert "torch.nn.modules.linear.Linear" == policy_class(adapt_policy(linear, DISCRETE))


def test_a_pickled_module_loads_where_torch_is_not_loaded_yet(torch: Any, project: Path) -> None:
    """Unpickling loads torch, and the module is recognised as one."""
    (project / "policy.pkl").write_bytes(cloudpickle.dumps(torch.nn.Linear(3, 2)))
    assert "TorchPolicy" == type(policy_source("policy.pkl").load(BOX)).__name__
    text = """
        import sys
        from gymnasium import spaces
        from rollout_cli.episode_batch import EnvSpec
        from rollout_cli.policies import policy_source
        source = policy_source("policy.pkl")
        before = "torch" in sys.modules
        policy = source.load(EnvSpec(spaces.Box(-1.0, 1.0, (3,)), spaces.Box(-9.0, 9.0, (2,))))
        print(before, type(policy).__name__, policy.get_action([0.0, 0.0, 0.0])[0].shape)
    """
    assert "False TorchPolicy (2,)\n" == run_python(project, text)


def test_the_environments_spaces_are_not_the_policys(torch: Any) -> None:
    """The search for generators finds the adapter's own, and no space of the environment."""
    seeded = EnvSpec(spaces.Box(-1.0, 1.0, (3,), seed=0), spaces.Discrete(4, seed=0))
    assert [] == GeneratorSet({"policy": adapt_policy(torch.nn.Linear(3, 4), seeded)}).paths
    seeded = EnvSpec(spaces.Box(-1.0, 1.0, (3,), seed=0), spaces.Box(-1.0, 1.0, (2,), seed=0))
    policy = adapt_policy(torch.nn.Linear(3, 2), seeded)
    assert ["policy._draws._generators.0"] == GeneratorSet({"policy": policy}).paths


def test_a_plain_sequential_is_called_layer_by_layer(torch: Any) -> None:
    """It gives the same bits, also with parameters that were replaced, and the modules' own calls are spared."""
    net, tensor = sequential(torch), torch.randn(7, 3)
    forward = forward_of(net)
    assert forward is not net
    assert torch.equal(net(tensor), forward(tensor))
    net[0].weight = torch.nn.Parameter(torch.randn(5, 3))
    net[2][0].load_state_dict({"weight": torch.randn(5, 5)})
    assert torch.equal(net(tensor), forward(tensor))


def test_hooks_are_called(torch: Any) -> None:
    """Hooks on a layer, on the network or on all modules are called, whenever they were added."""
    net, tensor = sequential(torch), torch.ones(1, 3)
    forward = forward_of(net)
    seen: list[str] = []
    adders = {
        "layer": net[2][1].register_forward_hook,
        "before": net[0].register_forward_pre_hook,
        "inner": net[2].register_forward_hook,
        "whole": net.register_forward_hook,
        "all": torch.nn.modules.module.register_module_forward_pre_hook,
    }
    for name, add in adders.items():
        added = add(lambda *_, name=name: seen.append(name))
        forward(tensor)
        added.remove()
        assert name in seen
        seen.clear()
        forward(tensor)
    assert [] == seen


def test_other_modules_are_called_themselves(torch: Any) -> None:
    """A subclass, a module of another kind, and a layer with a `forward` of its own keep their own calls."""

    class Twice(torch.nn.Sequential):  # type: ignore[misc]
        def forward(self, tensor: Any) -> Any:
            return 2 * super().forward(tensor)

    changed = sequential(torch)
    changed[1].forward = torch.relu
    parametrized = sequential(torch)
    torch.nn.utils.parametrizations.weight_norm(parametrized[0])
    own = torch.nn.Sequential(torch.nn.Linear(3, 4), module_of(torch, torch.neg))
    for net in (Twice(torch.nn.Linear(3, 4)), torch.nn.Linear(3, 4), changed, parametrized, own):
        assert net is forward_of(net)
