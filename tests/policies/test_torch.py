"""TorchPolicy: modules of the real torch as policies; their inputs, outputs, draws and parameters."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies.adapt import adapt_policy, instantiate, policy_class
from rollout_cli.policies.networks import TorchPolicy
from rollout_cli.policies.source import policy_source
from rollout_cli.workers.kinds import VecWorker
from tests.helpers.batches import assert_same_batches
from tests.helpers.errors import raises
from tests.helpers.projects import project, run_python
from tests.policies.checking import check_policy

__all__ = ["project"]

torch: Any = pytest.importorskip("torch")

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,), np.float64)
DISCRETE = EnvSpec(OBSERVATIONS, spaces.Discrete(4, start=2))
BOX = EnvSpec(OBSERVATIONS, spaces.Box(-1.0, 1.0, (2,), np.float32))
ONE, TWO = np.zeros(3), np.zeros((2, 3))
BOTH = np.ones(2, bool)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """The same weights for each test, and no threads for batches of three."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


def module_of(forward: Callable[[Any], Any]) -> Any:
    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, observations: Any) -> Any:
            return forward(observations)

    return Module()


def words(*seeds: int) -> Any:
    return np.array(seeds, np.uint64)


def flat(x: Any) -> Any:
    """Equal logits for each of n rows."""
    return torch.zeros(len(x), 4)


def normal(x: Any) -> Any:
    return torch.distributions.Normal(torch.full((len(x), 2), 0.25), 0.1)


def tanh(x: Any) -> Any:
    known = torch.distributions
    return known.TransformedDistribution(known.Independent(normal(x), 1), [known.TanhTransform()])


# -- inputs ----------------------------------------------------------------------------------------------------------


def test_observations_become_tensors() -> None:
    """Box leaves come in the parameters' dtype, others as they are, in the space's tree, with a row axis."""
    space = spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "mode": spaces.Discrete(3)})
    seen: list[Any] = []

    def forward(observations: Any) -> Any:
        seen.append(observations)
        return flat(observations["mode"])

    module = module_of(forward)
    module.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float16))
    image = np.full((2, 2), 7, np.uint8)
    image.flags.writeable = False
    adapt_policy(module, EnvSpec(space, DISCRETE.action_space)).get_action(
        {"image": image, "mode": np.int64(2)}
    )
    assert (torch.float16, (1, 2, 2)) == (seen[0]["image"].dtype, tuple(seen[0]["image"].shape))
    assert (torch.int64, [2]) == (seen[0]["mode"].dtype, seen[0]["mode"].tolist())


def test_a_module_may_edit_its_input() -> None:
    """It gets a copy, also of a batch that is read-only; nothing has a gradient, and dropout is off."""
    module = torch.nn.Sequential(module_of(lambda x: x.zero_()[:, :2]), torch.nn.Dropout(0.5))
    policy = adapt_policy(module, BOX)
    observations = np.ones((2, 3), np.float32)
    policy.get_actions(observations)
    observations.flags.writeable = False
    assert (2, 2) == policy.get_actions(observations)[0].shape
    assert (6.0, False) == (observations.sum(), module.training)


# -- actions ---------------------------------------------------------------------------------------------------------


def test_logits_are_drawn_by_their_softmax() -> None:
    """Categories come as often as their softmax says, from the space's first action on; -inf never does."""
    shares = np.array([0.5, 0.3, 0.2, 0.0])
    logits = torch.log(torch.tensor(shares))
    policy: Any = adapt_policy(module_of(lambda x: logits.expand(len(x), 4)), DISCRETE)
    policy.seed_rows(np.ones(5000, bool), np.arange(5000, dtype=np.uint64))
    actions, infos = policy.get_actions(np.zeros((5000, 3)))
    assert ({}, np.int64) == (infos, actions.dtype)
    assert np.allclose(shares, [np.mean(actions == at) for at in (2, 3, 4, 5)], atol=0.02)
    check_policy(policy, DISCRETE, [OBSERVATIONS.sample() for _ in range(3)])


def test_deterministic_actions() -> None:
    """The argmax of logits, the mode of a distribution."""
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    for forward in (
        lambda x: logits.expand(len(x), 4),
        lambda x: torch.distributions.Categorical(logits=logits.expand(len(x), 4)),
    ):
        policy = adapt_policy(module_of(forward), DISCRETE, deterministic=True)
        assert {3} == {int(policy.get_action(ONE)[0]) for _ in range(20)}
    assert [0.25, 0.25] == adapt_policy(module_of(normal), BOX, deterministic=True).get_action(ONE)[
        0
    ].tolist()


@pytest.mark.parametrize(("forward", "env_spec"), [(flat, DISCRETE), (normal, BOX), (tanh, BOX)])
def test_draws_follow_from_the_rows_own_seed(forward: Any, env_spec: EnvSpec) -> None:
    """A row acts as get_action under its seed, whatever its neighbours do; torch's global generator is left alone."""
    policy: Any = adapt_policy(module_of(forward), env_spec)
    before = torch.get_rng_state()
    alone = {}
    for seed in (5, 2**64 - 1):
        policy.seed(seed)
        policy.reset()
        alone[seed] = [np.asarray(policy.get_action(ONE)[0]).tolist() for _ in range(30)]
    assert alone[5] != alone[2**64 - 1]
    policy.seed_rows(BOTH, words(5, 2**64 - 1))
    policy.reset(BOTH)
    batch = [policy.get_actions(TWO)[0].tolist() for _ in range(10)]
    policy.seed_rows(np.array([True, False]), words(2**64 - 1, 0))
    batch += [policy.get_actions(TWO)[0].tolist() for _ in range(20)]
    first, second = ([row[at] for row in batch] for at in (0, 1))
    assert alone[5][:10] + alone[2**64 - 1][:20] == first
    assert alone[2**64 - 1] == second
    assert torch.equal(before, torch.get_rng_state())


def test_normal_distributions_have_their_mean_and_deviation() -> None:
    """Drawn by row, they are the distributions that they say."""
    policy: Any = adapt_policy(module_of(normal), BOX)
    policy.seed_rows(np.ones(5000, bool), np.arange(5000, dtype=np.uint64))
    actions, _ = policy.get_actions(np.zeros((5000, 3)))
    assert np.allclose([[0.25] * 2, [0.1] * 2], [actions.mean(axis=0), actions.std(axis=0)], atol=0.01)


def by_row(x: Any) -> Any:
    """Logits that depend on the row: all but equal, as those of a kernel that sums in another order."""
    return flat(x) + 1e-7 * torch.arange(len(x))[:, None]


def refusing(x: Any) -> Any:
    raise ValueError(len(x))


@pytest.mark.parametrize(
    ("forward", "env_spec", "expected"),
    [
        (torch.nn.Linear(3, 4), DISCRETE, True),
        (lambda x: torch.distributions.Categorical(logits=flat(x)), DISCRETE, True),
        (normal, BOX, True),
        (tanh, BOX, True),
        (by_row, DISCRETE, False),
        (lambda x: torch.distributions.Normal(by_row(x)[:, :2], 1.0), BOX, False),
        (lambda x: torch.rand(len(x), 4), DISCRETE, False),
        (lambda x: flat(x)[0], DISCRETE, False),
        (refusing, DISCRETE, False),
    ],
)
def test_whether_rows_act_alike(forward: Any, env_spec: EnvSpec, expected: bool) -> None:
    """Equal observations have equal outputs in each row, to the last bit; what raises does so in its first step."""
    policy = adapt_policy(module_of(forward), env_spec)
    assert policy.acts_alike(16) is expected


def test_rows_are_compared_where_a_module_does_not_saturate() -> None:
    """Samples of a space without useful bounds would drive a tanh to 1.0 in each row, which hides a difference."""
    wide = EnvSpec(spaces.Box(-1e38, 1e38, (3,), np.float32), DISCRETE.action_space)

    def forward(x: Any) -> Any:
        return torch.tanh(0.1 * x.sum(1, keepdim=True) + by_row(x))

    assert not adapt_policy(module_of(forward), wide).acts_alike(16)


def test_free_rows_run_the_episodes_that_fixed_rows_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows act alike, a free one takes the lowest number: the same episodes, with fewer calls."""
    batches, calls = [], [0, 0]
    for fixed in (0, 1):
        if fixed:
            monkeypatch.setattr(TorchPolicy, "acts_alike", lambda *_: False)
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
        worker = VecWorker(seed=3, max_episode_length=None, worker_number=0, n_envs=8)
        worker.update_env(gymnasium.make("CartPole-v1"))
        worker.update_agent(module)

        def count(*_: Any, at: int = fixed) -> None:
            calls[at] += 1

        module.register_forward_hook(count)
        worker.assign([range(40)])
        batches.append(worker.rollout())
    assert_same_batches(*batches)
    assert calls[0] < 0.95 * calls[1]


def test_other_distributions_sample_themselves() -> None:
    """From torch's global generator, which follows from the episode; a subclass may sample in a way of its own."""

    class Shifted(torch.distributions.Normal):  # type: ignore[misc]
        def sample(self, *shape: Any) -> Any:
            return self.loc + 0.5

    policy = adapt_policy(module_of(lambda x: Shifted(torch.zeros(len(x), 2), 1.0)), BOX)
    assert [0.5, 0.5] == policy.get_action(ONE)[0].tolist()
    binary = EnvSpec(OBSERVATIONS, spaces.MultiBinary(2))
    bernoulli = module_of(
        lambda x: torch.distributions.Bernoulli(torch.tensor([[1.0, 0.0]]).expand(len(x), 2))
    )
    assert [1, 0] == adapt_policy(bernoulli, binary).get_action(ONE)[0].tolist()


@pytest.mark.parametrize(
    ("env_spec", "output", "values"),
    [
        (DISCRETE, lambda n: torch.zeros(n, 3), [(1, 3), (1, 4)]),
        (DISCRETE, lambda n: torch.full((n, 4), np.nan), ["nan"]),
        (DISCRETE, lambda n: torch.tensor([[0.0, np.inf, 1.0, 2.0]]).expand(n, 4), ["inf"]),
        (DISCRETE, lambda n: torch.full((n, 4), -np.inf), ["-inf"]),
        (DISCRETE, lambda n: [0], ["list", "Discrete"]),
        (BOX, lambda n: torch.distributions.Normal(torch.zeros(n, 3), 1.0), [(1, 3), (1, 2)]),
        (BOX, lambda n: torch.zeros(n, 3), [(1, 3), (1, 2)]),
        (BOX, lambda n: (torch.zeros(n, 2), None), ["tuple", "Box"]),
        (EnvSpec(OBSERVATIONS, spaces.MultiDiscrete([2, 2])), lambda n: torch.zeros(n, 4), ["MultiDiscrete"]),
    ],
)
def test_outputs_that_do_not_fit(env_spec: EnvSpec, output: Any, values: list[object]) -> None:
    """An output of the wrong form is an error that shows both shapes, never a guess."""
    policy = adapt_policy(module_of(lambda x: output(len(x))), env_spec)
    with raises(PolicyError, "network-output", *values):
        policy.get_action(ONE)


# -- modules ---------------------------------------------------------------------------------------------------------


def test_parameters_are_a_copy() -> None:
    """Parameters of one module given to another make them act alike; later training does not leak."""
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    source, target = adapt_policy(first, BOX), adapt_policy(second, BOX)
    held = source.get_param_values()
    target.set_param_values(pickle.loads(pickle.dumps(held)))
    observation = OBSERVATIONS.sample()
    assert np.array_equal(source.get_action(observation)[0], target.get_action(observation)[0])
    with torch.no_grad():
        first.weight.zero_()
    assert held["weight"].abs().sum() > 0


def test_modules_that_are_refused() -> None:
    """Spaces that tensors cannot stand for are refused when a module is loaded."""
    with raises(PolicyLoadError, "network-space"):
        adapt_policy(torch.nn.Linear(3, 4), EnvSpec(spaces.Text(3), DISCRETE.action_space))
    for space in (spaces.Tuple((spaces.Discrete(2),)), spaces.Text(3)):
        with raises(PolicyLoadError, "network-space"):
            adapt_policy(torch.nn.Linear(3, 4), EnvSpec(OBSERVATIONS, space))


def test_a_module_with_a_reset_acts_on_one_row_at_a_time() -> None:
    """It keeps a state, which its reset begins anew for each episode."""
    recurrent = torch.nn.Linear(3, 4)
    calls: list[int] = []
    recurrent.reset = lambda: calls.append(0)
    policy = adapt_policy(recurrent, DISCRETE)
    policy.reset()
    assert (True, True, [0]) == (policy.resets, policy.row_by_row, calls)


def test_a_module_with_get_action_is_a_policy_of_that_kind() -> None:
    """What a module offers by name comes before what it is; a module is never called as a factory."""

    class Acting(torch.nn.Module):  # type: ignore[misc]
        def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
            return 2, {"own": True}

    assert (2, {"own": True}) == adapt_policy(Acting(), DISCRETE).get_action(ONE)
    linear = torch.nn.Linear(3, 4)
    assert instantiate(linear, DISCRETE, {}) is linear
    assert "torch.nn.modules.linear.Linear" == policy_class(adapt_policy(linear, DISCRETE))


def test_a_pickled_module_loads_where_torch_is_not_loaded_yet(project: Path) -> None:
    """Unpickling loads torch, and the module is recognised as one; before that nothing needs torch."""
    (project / "policy.pkl").write_bytes(cloudpickle.dumps(torch.nn.Linear(3, 2)))
    assert isinstance(policy_source("policy.pkl").load(BOX), TorchPolicy)
    text = """
        import sys
        from gymnasium import spaces
        from rollout_cli.episodes.batch import EnvSpec
        from rollout_cli.policies.source import policy_source
        source = policy_source("policy.pkl")
        before = "torch" in sys.modules
        policy = source.load(EnvSpec(spaces.Box(-1.0, 1.0, (3,)), spaces.Box(-9.0, 9.0, (2,))))
        print(before, type(policy).__name__, policy.get_action([0.0, 0.0, 0.0])[0].shape)
    """
    assert "False TorchPolicy (2,)\n" == run_python(project, text)


@pytest.mark.parametrize("verb", ["get_action_and_value", "act"])
def test_a_module_without_forward(verb: str) -> None:
    """It is refused when it is loaded; CleanRL's own method is named where it has that."""
    module = type("Agent", (torch.nn.Module,), {verb: lambda self, x: x})()
    with raises(PolicyLoadError, "network-no-forward") as caught:
        adapt_policy(module, DISCRETE)
    assert (verb == "get_action_and_value") == ("get_action_and_value" in caught.value.hint)
    module.forward = flat
    assert isinstance(adapt_policy(module, DISCRETE), TorchPolicy)


def test_an_exported_program() -> None:
    """It refuses a mode, for it has that of its export; it acts as the module does, in one row and in many."""
    module = torch.nn.Linear(3, 4, dtype=torch.float64)
    batch = torch.export.Dim.AUTO
    exported = torch.export.export(
        module, (torch.zeros(2, 3, dtype=torch.float64),), dynamic_shapes=[{0: batch}]
    )
    own, other = (adapt_policy(held, DISCRETE, deterministic=True) for held in (module, exported.module()))
    observations = np.random.default_rng(0).normal(size=(5, 3))
    assert own.get_actions(observations)[0].tolist() == other.get_actions(observations)[0].tolist()
    assert own.get_action(ONE)[0] == other.get_action(ONE)[0]


def test_what_is_drawn_at_load_follows_from_the_root_seed(project: Path) -> None:
    """Also where torch is imported by the policy alone, so that nobody could seed its generator before."""
    (project / "mine.py").write_text(
        "class Policy:\n"
        "    def __init__(self):\n"
        "        import torch\n"
        "        self.weights = torch.rand(3)\n"
        "    def get_action(self, observation):\n"
        "        return 0, {}\n"
    )
    text = """
        import gymnasium
        from rollout_cli import DefaultWorker
        from rollout_cli.policies.source import policy_source

        worker = DefaultWorker(seed=5, max_episode_length=None, worker_number=0)
        worker.update_env(gymnasium.make("CartPole-v1"))
        for _ in range(2):
            worker.update_agent(policy_source("mine:Policy"))
            print(worker.agent.weights.tolist())
    """
    runs = [run_python(project, text), run_python(project, f"import torch\n{dedent(text)}")]
    assert 1 == len({line for run in runs for line in run.splitlines()}), runs


# -- Stable-Baselines3 -----------------------------------------------------------------------------------------------


def test_a_saved_sb3_model(project: Path) -> None:
    """A PPO that was saved and loaded acts as its own `predict`, in one row and in many, and takes its parameters."""
    sb3: Any = pytest.importorskip("stable_baselines3")
    gymnasium: Any = pytest.importorskip("gymnasium")
    sb3.PPO("MlpPolicy", gymnasium.make("CartPole-v1"), device="cpu", seed=0).save("ppo")
    model = sb3.PPO.load("ppo", device="cpu")
    env_spec = EnvSpec(model.observation_space, model.action_space)
    observations = np.stack([env_spec.observation_space.sample() for _ in range(4)]).clip(-1, 1)
    for candidate in (model, model.policy):
        policy = adapt_policy(candidate, env_spec, deterministic=True)
        expected = [int(candidate.predict(one, deterministic=True)[0]) for one in observations]
        assert expected == [policy.get_action(one)[0] for one in observations]
        assert expected == policy.get_actions(observations)[0].tolist()
        check_policy(policy, env_spec, list(observations))
        assert all(isinstance(policy.get_action(one)[0], np.integer) for one in observations)
    torch.manual_seed(3)
    drawn = [adapt_policy(model, env_spec).get_action(one)[0] for one in observations]
    torch.manual_seed(3)
    assert drawn == [int(model.predict(one)[0]) for one in observations]


def test_a_saved_vecnormalize(project: Path) -> None:
    """Its statistics are no policy: the line says which option takes them."""
    vec_env: Any = pytest.importorskip("stable_baselines3.common.vec_env")
    gymnasium: Any = pytest.importorskip("gymnasium")
    vec_env.VecNormalize(vec_env.DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])).save("stats.pkl")
    with raises(PolicyLoadError, "policy-unknown", "VecNormalize") as refused:
        policy_source("stats.pkl").load(DISCRETE)
    assert "vecnormalize=FILE" in refused.value.marked_hint
