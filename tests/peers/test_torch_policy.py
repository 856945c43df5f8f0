"""The torch adapter with the real torch; skipped where torch is not installed."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.generators import GeneratorSet
from rollout_cli.policies import adapt_policy, check_policy, policy_class, policy_source
from rollout_cli.policies.adapters import instantiate
from rollout_cli.policies.torch_forward import forward_of
from tests.support.projects import project, run_python

__all__ = ["project"]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install torch to run these"
)

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,), np.float64)
DISCRETE = EnvSpec(OBSERVATIONS, spaces.Discrete(4, start=2))
BOX = EnvSpec(OBSERVATIONS, spaces.Box(-1.0, 1.0, (2,), np.float32))


@pytest.fixture
def torch() -> Any:
    """Give torch, on one thread, with the same weights for each test."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch


def module_of(torch: Any, forward: Callable[[Any], Any]) -> Any:
    """Return a module whose forward is `forward`."""

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, observations: Any) -> Any:
            return forward(observations)

    return Module()


def samples(space: spaces.Space[Any], count: int) -> list[Any]:
    space.seed(0)
    return [space.sample() for _ in range(count)]


def test_box_output_is_the_action(torch: Any) -> None:
    """For a Box the output is the action, in the space's dtype, in eval mode and without gradients."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.9), torch.nn.Tanh()).double()
    policy = adapt_policy(module, BOX)
    observation = samples(OBSERVATIONS, 1)[0]
    expected = torch.tanh(module[0](torch.from_numpy(observation))).detach().numpy().astype(np.float32)
    action, info = policy.get_action(observation)
    assert np.allclose(expected, action)
    assert (np.float32, (2,), {}) == (action.dtype, action.shape, info)
    assert not module.training


def test_a_box_module_satisfies_the_protocol_also_when_deterministic(torch: Any) -> None:
    """The adapted module keeps the contract; with a plain output it is deterministic as it is."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
    check_policy(adapt_policy(module, BOX, deterministic=True), BOX, samples(OBSERVATIONS, 3))


def test_logits_are_sampled_by_their_softmax(torch: Any) -> None:
    """For a Discrete space actions come as often as the softmax of the logits says, counted from its start."""
    logits = torch.tensor([0.0, 1.0, -np.inf, 2.0])
    policy: Any = adapt_policy(module_of(torch, lambda x: logits.expand(len(x), 4)), DISCRETE)
    policy.seed(0)
    actions = [policy.get_action(np.zeros(3))[0] for _ in range(10_000)]
    shares = [actions.count(action) / len(actions) for action in range(2, 6)]
    assert np.allclose(torch.softmax(logits, 0).numpy(), shares, atol=0.02)
    assert type(actions[0]) is int
    check_policy(policy, DISCRETE, samples(OBSERVATIONS, 3))


def test_logits_whose_sum_overflows_are_finite(torch: Any) -> None:
    """Logits near the end of what a float64 holds are no error."""
    module = module_of(torch, lambda x: torch.tensor([[0.0, 1.0, 1.6e308, 2.0]], dtype=torch.float64).expand(len(x), 4))
    policy: Any = adapt_policy(module, DISCRETE)
    assert [4, 4, 4] == policy.get_actions(np.zeros((3, 3)))[0].tolist()


def test_logits_deterministic(torch: Any) -> None:
    """Deterministic is the argmax."""
    module = module_of(torch, lambda x: torch.tensor([[0.0, 3.0, 1.0, 2.0]]).expand(len(x), 4))
    policy = adapt_policy(module, DISCRETE, deterministic=True)
    assert {3} == {int(policy.get_action(np.zeros(3))[0]) for _ in range(20)}


def test_actions_follow_from_the_seed_alone_and_by_row(torch: Any) -> None:
    """Draws come from the row's own generator: a row acts as get_action under its seed, whatever its neighbours do."""
    policy: Any = adapt_policy(module_of(torch, lambda x: torch.zeros(len(x), 4)), DISCRETE)
    episodes = []
    for seed in (5, 6, 5):
        policy.seed(seed)
        policy.reset()
        episodes.append([int(policy.get_action(np.zeros(3))[0]) for _ in range(30)])
    assert episodes[0] == episodes[2]
    assert episodes[0] != episodes[1]
    policy.seed_rows(np.ones(2, bool), [5, 6])
    policy.reset(np.ones(2, bool))
    batch = np.array([policy.get_actions(np.zeros((2, 3)))[0] for _ in range(10)])
    policy.seed_rows(np.array([True, False]), [6, 0])
    batch = np.concatenate([batch, [policy.get_actions(np.zeros((2, 3)))[0] for _ in range(20)]])
    assert episodes[0][:10] + episodes[1][:20] == batch[:, 0].tolist()
    assert episodes[1] == batch[:, 1].tolist()


def test_global_generator_is_left_alone_by_logits(torch: Any) -> None:
    """Drawing from logits does not touch torch's global generator."""
    policy = adapt_policy(module_of(torch, lambda x: torch.zeros(len(x), 4)), DISCRETE)
    before = torch.get_rng_state()
    policy.get_action(np.zeros(3))
    assert torch.equal(before, torch.get_rng_state())


def normal_module(torch: Any) -> Any:
    """Return a module that gives a Normal distribution for two numbers."""
    return module_of(torch, lambda x: torch.distributions.Normal(torch.full((len(x), 2), 0.25), 0.1))


def tanh_module(torch: Any) -> Any:
    """Return a module that gives an Independent Normal distribution under a tanh."""
    known = torch.distributions

    def forward(x: Any) -> Any:
        base = known.Independent(known.Normal(torch.full((len(x), 2), 0.25), 0.1), 1)
        return known.TransformedDistribution(base, [known.TanhTransform()])

    return module_of(torch, forward)


@pytest.mark.parametrize("make", [normal_module, tanh_module])
def test_normal_distributions_are_drawn_by_row(torch: Any, make: Any) -> None:
    """Row j of a batch draws from row j's generator, as get_action does under its seed; torch's own is left alone."""
    policy: Any = adapt_policy(make(torch), BOX)
    before = torch.get_rng_state()
    alone = []
    for seed in (5, 6):
        policy.seed(seed)
        alone.append([policy.get_action(np.zeros(3))[0].tolist() for _ in range(3)])
    policy.seed_rows(np.ones(2, bool), [5, 6])
    batch = np.stack([policy.get_actions(np.zeros((2, 3)))[0] for _ in range(3)], axis=1)
    assert alone == batch.tolist()
    assert torch.equal(before, torch.get_rng_state())


def test_normal_distributions_have_their_mean_and_deviation(torch: Any) -> None:
    """Drawn by row, they are the distributions that they say."""
    policy: Any = adapt_policy(normal_module(torch), BOX)
    policy.seed_rows(np.ones(5000, bool), np.arange(5000))
    actions, _ = policy.get_actions(np.zeros((5000, 3)))
    assert np.allclose([0.25, 0.25], actions.mean(axis=0), atol=0.01)
    assert np.allclose([0.1, 0.1], actions.std(axis=0), atol=0.01)


def test_a_distribution_of_the_users_own_samples_itself(torch: Any) -> None:
    """A subclass of Normal may sample in a way of its own, so it is asked."""

    class Shifted(torch.distributions.Normal):  # type: ignore[misc]
        def sample(self, *shape: Any) -> Any:
            return self.loc + 0.5

    policy = adapt_policy(module_of(torch, lambda x: Shifted(torch.zeros(len(x), 2), 1.0)), BOX)
    assert [0.5, 0.5] == policy.get_action(np.zeros(3))[0].tolist()


def test_distributions(torch: Any) -> None:
    """A distribution gives its mode where that is asked for, or samples itself; a Categorical counts as logits."""
    assert [0.25, 0.25] == adapt_policy(normal_module(torch), BOX, deterministic=True).get_action(np.zeros(3))[
        0
    ].tolist()
    logits = torch.tensor([[0.0, 0.0, 9.0, 0.0]])
    categorical = module_of(torch, lambda x: torch.distributions.Categorical(logits=logits.expand(len(x), 4)))
    assert 4 == adapt_policy(categorical, DISCRETE, deterministic=True).get_action(np.zeros(3))[0]
    binary = EnvSpec(OBSERVATIONS, spaces.MultiBinary(2))
    bernoulli = module_of(torch, lambda x: torch.distributions.Bernoulli(torch.tensor([[1.0, 0.0]]).expand(len(x), 2)))
    assert [1, 0] == adapt_policy(bernoulli, binary).get_action(np.zeros(3))[0].tolist()


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


@pytest.mark.parametrize(
    ("env_spec", "output", "message"),
    [
        (DISCRETE, lambda t, n: t.zeros(n, 3), r"logits of shape \(1, 3\), expected \(1, 4\)"),
        (DISCRETE, lambda t, n: t.full((n, 4), np.nan), "gave logits"),
        (DISCRETE, lambda t, n: t.tensor([[0.0, np.nan, 1.0, 2.0]]).expand(n, 4), "gave logits"),
        (DISCRETE, lambda t, n: t.tensor([[0.0, np.inf, 1.0, 2.0]]).expand(n, 4), "gave logits"),
        (DISCRETE, lambda t, n: t.full((n, 4), -np.inf), "gave logits"),
        (BOX, lambda t, n: t.distributions.Normal(t.zeros(n, 3), 1.0), r"actions of shape \(1, 3\), expected \(1, 2\)"),
        (BOX, lambda t, n: t.zeros(n, 3), r"actions of shape \(1, 3\), expected \(1, 2\)"),
        (EnvSpec(OBSERVATIONS, spaces.MultiDiscrete([2, 2])), lambda t, n: t.zeros(n, 4), "no action of MultiDiscrete"),
    ],
)
def test_outputs_that_do_not_fit(torch: Any, env_spec: EnvSpec, output: Any, message: str) -> None:
    """An output of the wrong form is an error that shows both shapes, never a guess."""
    policy = adapt_policy(module_of(torch, lambda x: output(torch, len(x))), env_spec)
    with pytest.raises(PolicyError, match=message):
        policy.get_action(np.zeros(3))


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


def sequential(torch: Any) -> Any:
    """Return a network of nested Sequentials, in eval mode."""
    inner = torch.nn.Sequential(torch.nn.Linear(5, 5, bias=False), torch.nn.LayerNorm(5), torch.nn.Dropout(0.5))
    tanh = torch.nn.Tanh()
    return torch.nn.Sequential(torch.nn.Linear(3, 5), tanh, inner, tanh, torch.nn.Linear(5, 4)).eval()


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


def test_prepared_seeds_draw_the_same(torch: Any) -> None:
    """Seeds that were prepared give the same actions as seeds that were not, in one row and in many."""
    net = sequential(torch)
    first, second = adapt_policy(net, DISCRETE), adapt_policy(net, DISCRETE)
    getattr(first, "prepare_seeds")([3, 4, 5])  # noqa: B009  No part of the protocol.
    observations = np.zeros((2, 3))
    drawn = []
    for policy in (first, second):
        policy.seed_rows(np.ones(2, bool), np.array([3, 4]))  # type: ignore[attr-defined]
        policy.seed(5)  # type: ignore[attr-defined]
        drawn.append(
            [(policy.get_actions(observations)[0].tolist(), policy.get_action(observations[0])[0]) for _ in range(90)]
        )
    assert drawn[0] == drawn[1]
