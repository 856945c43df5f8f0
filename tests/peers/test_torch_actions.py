"""Actions from what modules of the real torch give: which they are, and how they are drawn; skipped without torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError
from rollout_cli.policies import adapt_policy, check_policy
from tests.peers.real_torch import BOX, DISCRETE, OBSERVATIONS, module_of, needs_torch, samples, sequential, torch

__all__ = ["torch"]

pytestmark = needs_torch


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
