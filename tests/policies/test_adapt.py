"""adapt_policy: whatever a user has becomes a whole policy, or is refused clearly; what it returns is checked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies.adapt import adapt_policy, instantiate, policy_class
from rollout_cli.policies.networks import NetworkPolicy
from rollout_cli.policies.policy import AdaptedPolicy, is_policy_source
from rollout_cli.policies.random import RandomPolicy
from rollout_cli.policies.source import policy_source
from rollout_cli.seeding.generators import EpisodeSeeder
from tests.helpers.errors import raises
from tests.policies.checking import check_policy

ENV_SPEC = EnvSpec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(4))
OBSERVATION = np.array([0.1, 0.2, 0.3], np.float32)
BATCH = np.array([[0.1, 0.2, 0.3], [0.9, 0.0, 0.0]], np.float32)


class Lone:
    """Offers get_action alone."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        first = float(observation[0])
        return np.int64(first > 0.5), {"first": first}


class WithReset(Lone):
    """Has a state and a reset that knows no rows."""

    def __init__(self) -> None:
        self.n_resets = 0

    def reset(self) -> None:
        self.n_resets += 1


class Batched:
    """Offers get_actions alone."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return (observations[:, 0] > 0.5).astype(np.int64), {"deep": {"sum": observations.sum(axis=1)}}


class Whole(Lone):
    """Offers the whole protocol, and attributes that are its own business."""

    hands_off = row_wise = row_by_row = acts_within_space = resets = True
    seed = 7

    def __init__(self, env_spec: EnvSpec | None = None) -> None:
        self.params: Any = {"gain": 1.0}
        self.masks: list[Any] = []

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(len(observations), np.int64), {}

    def reset(self, do_resets: Any = None) -> None:
        self.masks.append(do_resets)

    def get_param_values(self) -> Any:
        return self.params

    def set_param_values(self, params: Any) -> None:
        self.params = params


class Predicting:
    """Its action depends on the steps since each row began; it notes what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any]] = []

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: Any = None
    ) -> Any:
        self.calls.append((state, episode_start, deterministic))
        counts = (
            np.zeros(len(episode_start), np.int64) if state is None else np.where(episode_start, 0, state)
        )
        action = counts % 4
        return (action if np.ndim(observation) == 2 else action[0]), counts + 1


def plain(observation: Any) -> Any:
    """A function of the observation that gives the bare action."""
    return int(observation[0] > 0.5)


# -- what is accepted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Lone, Batched, WithReset, Whole, Predicting, lambda: plain])
def test_whatever_is_adapted_keeps_the_protocol(make: Callable[[], Any]) -> None:
    """The adapted policy has all methods, satisfies the contract, and is recorded as the user's own."""
    candidate = make()
    policy = adapt_policy(candidate, ENV_SPEC)
    check_policy(policy, ENV_SPEC, list(BATCH))
    own = candidate if candidate is plain else type(candidate)
    assert (
        f"tests.policies.test_adapt.{own.__name__}"
        == policy_class(policy)
        == policy_class(adapt_policy(policy, ENV_SPEC))
    )


@pytest.mark.parametrize("candidate", [Lone(), WithReset(), plain])
def test_get_action_alone(candidate: Any) -> None:
    """There are no batches: such a policy acts on one episode at a time, and a worker takes one for each row."""
    policy = adapt_policy(candidate, ENV_SPEC)
    assert (True, False, 0) == (policy.row_by_row, policy.row_wise, policy.get_action(OBSERVATION)[0])
    with raises(PolicyError, "policy-not-batched", "get_actions"):
        policy.get_actions(BATCH)


def test_a_built_in_policy_is_named_where_it_has_no_batches() -> None:
    """It has no object of the user's behind it."""

    class Single(AdaptedPolicy):
        def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
            return 0, {}

    with raises(PolicyError, "policy-not-batched", "get_actions"):
        Single().get_actions(BATCH)


def test_get_actions_alone() -> None:
    """get_action calls it with one row, and gives the row's own info."""
    policy = adapt_policy(Batched(), ENV_SPEC)
    assert (False, False) == (policy.row_wise, policy.row_by_row)
    assert (1, {"deep": {"sum": np.float32(0.9)}}) == policy.get_action(BATCH[1])
    actions, infos = policy.get_actions(BATCH)
    assert ([0, 1], 2) == (actions.tolist(), len(infos["deep"]["sum"]))


def test_masked_infos_of_one_row() -> None:
    """What a batch's infos mask in the row is missing, as it is where there are several rows."""

    class Choosing:
        def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
            passes, n = observations[:, 0] < 0.5, len(observations)
            value = np.ma.array(np.full(n, 7.5), mask=passes)
            pair = np.ma.array(np.full((n, 2), 3), mask=np.stack([passes, ~passes], axis=1))
            return np.zeros(n, np.int64), {"deep": {"value": value}, "pair": pair, "text": ["a"] * n}

    policy = adapt_policy(Choosing(), ENV_SPEC)
    passing, choosing = (policy.get_action(observation)[1] for observation in BATCH)
    assert ({}, {"value": 7.5}) == (passing["deep"], choosing["deep"])
    for info, pair in ((passing, [None, 3]), (choosing, [3, None])):
        assert ("a", pair) == (info["text"], info["pair"].tolist())


def test_a_whole_policy_is_called_as_it_is() -> None:
    """Masks and parameters reach it; attributes of its own change nothing."""
    whole = Whole()
    policy = adapt_policy(whole, ENV_SPEC)
    assert (False, False, False, None) == (
        policy.row_wise,
        policy.row_by_row,
        policy.acts_within_space,
        policy.seed,
    )
    mask = np.array([True, False])
    policy.reset()
    policy.reset(mask)
    assert [None, mask] == whole.masks
    policy.set_param_values({"gain": 2.0})
    assert {"gain": 2.0} == policy.get_param_values()


def test_a_reset_without_a_mask() -> None:
    """It begins all rows at once, so the policy acts on one row at a time, although it has get_actions."""

    class Stateful(WithReset, Batched):
        pass

    wrapped = Stateful()
    policy = adapt_policy(wrapped, ENV_SPEC)
    policy.reset()
    policy.reset(np.array([True]))
    assert (2, True, True) == (wrapped.n_resets, policy.resets, policy.row_by_row)


def test_own_seed_methods_are_offered() -> None:
    """`seed` and `seed_rows` that can be called with a seed; not an attribute, nor a method of another form."""

    class Seeded(Lone):
        def __init__(self) -> None:
            self.seeds: list[int] = []

        def seed(self, seed: int) -> None:
            self.seeds.append(seed)

        def seed_rows(self) -> None:
            raise AssertionError

    wrapped = Seeded()
    policy = adapt_policy(wrapped, ENV_SPEC)
    assert policy.seed is not None
    policy.seed(8)
    assert ([8], None) == (wrapped.seeds, policy.seed_rows)


class CalledWithHooks:
    """A callable with a state of its own."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, observation: Any) -> Any:
        return 0

    def reset(self) -> None:
        self.calls.append("reset")

    def seed(self, seed: int) -> None:
        self.calls.append(seed)


class PredictsWithHooks(CalledWithHooks):
    def predict(self, observation: Any) -> Any:
        return 0, None


class PredictsByMask(PredictsWithHooks):
    def reset(self, do_resets: Any = None) -> None:
        self.calls.append("reset")


@pytest.mark.parametrize("kind", [CalledWithHooks, PredictsWithHooks, PredictsByMask])
def test_a_callable_and_predict_are_seeded_and_reset_as_others_are(kind: type[CalledWithHooks]) -> None:
    """Else its state would go on into the next episode."""
    wrapped = kind()
    policy = adapt_policy(wrapped, ENV_SPEC)
    assert policy.resets
    assert policy.row_by_row == (kind is not PredictsByMask)
    assert policy.seed is not None
    policy.seed(3)
    policy.reset()
    assert [3, "reset"] == wrapped.calls


@pytest.mark.parametrize("make", [Lone, Predicting, lambda: RandomPolicy(ENV_SPEC.action_space)])
def test_parameters_of_a_policy_without_any(make: Callable[[], Any]) -> None:
    """Only an empty set is taken."""
    policy = adapt_policy(make(), ENV_SPEC)
    assert {} == policy.get_param_values()
    policy.set_param_values({})
    with raises(PolicyError, "policy-no-parameters", "get_param_values", "set_param_values"):
        policy.set_param_values({"gain": 2.0})


# -- plain callables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [2, (1, {"x": 0}), np.zeros(2, np.float32)])
def test_a_callable_gives_the_bare_action(action: Any) -> None:
    """Whatever it returns is the action, and there is no info."""
    policy = adapt_policy(lambda observation: action, ENV_SPEC)
    assert action is policy.get_action(OBSERVATION)[0]
    assert {} == policy.get_action(OBSERVATION)[1]


# -- predict ---------------------------------------------------------------------------------------------------------


def test_the_state_of_predict_is_kept_and_reset_clears_it() -> None:
    """The second episode repeats the first; `episode_start` is true in the first step alone, and never edited."""
    model = Predicting()
    policy = adapt_policy(model, ENV_SPEC)
    episodes = []
    for _ in range(2):
        policy.reset()
        episodes.append([policy.get_action(OBSERVATION)[0] for _ in range(3)])
    assert [[0, 1, 2]] * 2 == episodes
    assert all(type(action) is np.int64 for action in episodes[0])
    assert [[True], [False], [False]] * 2 == [start.tolist() for _, start, _ in model.calls]
    assert [True, False] == [model.calls[at][0] is None for at in (3, 4)]


def test_rows_of_predict_are_reset_by_mask() -> None:
    """In a batch, only the rows of the mask begin anew."""
    policy = adapt_policy(Predicting(), ENV_SPEC)
    policy.reset(np.ones(2, bool))
    seen = [policy.get_actions(BATCH)[0].tolist()]
    policy.reset(np.array([False, True]))
    seen += [policy.get_actions(BATCH)[0].tolist() for _ in range(2)]
    assert [[0, 0], [1, 0], [2, 1]] == seen


class Giving(NetworkPolicy):
    """A network that gives the same numbers for each row."""

    def _act(self, observations: Any, numbers: Any) -> tuple[Any, dict[str, Any]]:
        return self._typed(np.array([self.wrapped] * len(numbers)), len(numbers)), {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([2, 7], np.uint8),
        ([2.0, 7.0], np.uint8),
        ([2.9, 7.0], float),
        ([256, 7], int),
        ([np.nan, 7.0], float),
    ],
)
def test_a_networks_numbers_become_integers_unless_that_changes_them(given: list[Any], expected: Any) -> None:
    """Else the recorder would get a sound action in place of the one that it must refuse, or clip."""
    space = spaces.Box(0, 255, (2,), np.uint8)
    policy = Giving(given, EnvSpec(ENV_SPEC.observation_space, space), deterministic=False)
    action, _ = policy.get_action(OBSERVATION)
    assert np.array_equal(action, given, equal_nan=True)
    assert action.dtype == expected


class Echo(NetworkPolicy):
    """A network that gives an action's numbers to each row."""

    def _act(self, observations: Any, numbers: Any) -> tuple[Any, dict[str, Any]]:
        return self._typed(self.wrapped, len(numbers)), {}


@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_number_without_room_leaves_the_actions_of_other_rows_as_they_are(shape: tuple[int, ...]) -> None:
    """Else the recorder would refuse that of the first row, whose episode would be blamed, and skipped."""
    space, given = spaces.Box(0, 255, shape, np.uint8), np.full((3, *shape), 7.0)
    given[1] = 300.0
    policy = Echo(given, EnvSpec(ENV_SPEC.observation_space, space), deterministic=False)
    rows = SpaceRows(space).split(policy.get_actions(np.array([OBSERVATION] * 3))[0])
    assert [np.uint8, float, np.uint8] == [row.dtype for row in rows]
    assert [given[0].tolist(), given[1].tolist()] == [row.tolist() for row in rows[:2]]


class Bare:
    """Its predict knows none of the keywords."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def predict(self, observation: Any) -> Any:
        return self.result


class Maskable(Predicting):
    def predict(self, observation: Any, *given: Any, action_masks: Any = None) -> Any:
        return np.argmax(action_masks, axis=-1), None


def test_masks_go_to_a_predict_that_names_them() -> None:
    """Those that the worker passes; one that takes any keyword is not given them."""

    class Anything:
        def predict(self, observation: Any, **given: Any) -> Any:
            assert "action_masks" not in given
            return np.int64(0), None

    policy = adapt_policy(Maskable(), ENV_SPEC)
    masks = np.array([[False, True, False, False], [True, False, False, False]])
    assert (True, 1) == (policy.takes_masks, policy.act(OBSERVATION, masks[0])[0])
    assert [1, 0] == policy.act_batch(BATCH, masks)[0].tolist()
    other = adapt_policy(Anything(), ENV_SPEC)
    assert (False, 0) == (other.takes_masks, other.act(OBSERVATION, masks[0])[0])


class Exploring(Predicting):
    """A model of Stable-Baselines3 that explores by gSDE, where its policy or its actor says so."""

    def __init__(self, *, use_sde: bool = False, actor: bool = False) -> None:
        super().__init__()
        self.draws = 0
        self.policy = SimpleNamespace(use_sde=use_sde, reset_noise=self._reset_noise)
        if actor:
            self.policy = SimpleNamespace(actor=SimpleNamespace(use_sde=True), reset_noise=self._reset_noise)

    def _reset_noise(self) -> None:
        self.draws += 1


@pytest.mark.parametrize("options", [{"use_sde": True}, {"actor": True}])
def test_noise_that_is_kept_is_drawn_with_the_seed_of_each_episode(options: dict[str, bool]) -> None:
    """Such a model acts row by row; its policy alone will do; a deterministic one draws none."""
    model = Exploring(**options)
    for candidate in (model, SimpleNamespace(predict=model.predict, **vars(model.policy))):
        policy = adapt_policy(candidate, ENV_SPEC)
        assert policy.row_by_row
        assert policy.seed is not None
        policy.seed(3)
    assert 2 == model.draws
    others = adapt_policy(model, ENV_SPEC, deterministic=True), adapt_policy(Exploring(), ENV_SPEC)
    assert [(False, None)] * 2 == [(other.row_by_row, other.seed) for other in others]


# -- deterministic ---------------------------------------------------------------------------------------------------


def test_deterministic_modes() -> None:
    """By a keyword of the methods, of the callable or of predict, or by a boolean attribute."""

    class Keyword(Lone):
        def get_action(self, observation: Any, *, deterministic: bool = False) -> tuple[Any, dict[str, Any]]:
            return np.int64(deterministic), {}

    class Attribute(Lone):
        deterministic = False

    def called(observation: Any, deterministic: bool = False) -> int:
        return int(deterministic)

    for candidate in (Keyword(), called):
        policy = adapt_policy(candidate, ENV_SPEC, deterministic=True)
        assert 1 == policy.get_action(OBSERVATION)[0]
    model, attribute = Predicting(), Attribute()
    adapt_policy(model, ENV_SPEC, deterministic=True).get_action(OBSERVATION)
    adapt_policy(attribute, ENV_SPEC, deterministic=True)
    assert (True, True) == (model.calls[0][2], attribute.deterministic)


@pytest.mark.parametrize("candidate", [Whole(), Lone(), plain, Bare((0, None))])
def test_deterministic_is_refused_where_there_is_no_such_mode(candidate: Any) -> None:
    """A policy that cannot be deterministic is not run as if it were."""
    with raises(PolicyLoadError, "policy-not-deterministic") as caught:
        adapt_policy(candidate, ENV_SPEC, deterministic=True)
    assert "deterministic" in caught.value.hint


# -- refusals --------------------------------------------------------------------------------------------------------


class Odd:
    def act(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("candidate", "code", "value"),
    [
        (Odd(), "policy-type", "Odd"),
        (Whole, "policy-type", "Whole"),
        (None, "policy-type", "NoneType"),
        (3, "policy-type", "int"),
        (lambda a, b: 0, "policy-signature", "(a, b)"),
    ],
)
def test_what_is_not_a_policy(candidate: Any, code: str, value: str) -> None:
    """The error names the type, and the hint what is accepted."""
    with raises(PolicyLoadError, code, value) as caught:
        adapt_policy(candidate, ENV_SPEC)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("result", "types"),
    [
        (3, ["int"]),
        (None, ["NoneType"]),
        (np.zeros(2), ["ndarray"]),
        ([3, {}], ["list"]),
        ((3, {}, 1), ["int", "dict"]),
        ((3, None), ["int", "NoneType"]),
        ((3, [{}]), ["int", "list"]),
    ],
)
@pytest.mark.parametrize("base", [Lone, Whole])
def test_get_action_must_give_a_pair(base: type[Any], result: Any, types: list[str]) -> None:
    """A bare action, which a plain callable may give, is an error that says what to return."""

    class Wrong(base):  # type: ignore[misc]
        def get_action(self, observation: Any) -> Any:
            return result

    with raises(PolicyError, "policy-result", "Wrong.get_action", *types) as caught:
        adapt_policy(Wrong(), ENV_SPEC).get_action(OBSERVATION)
    assert "(action, {})" in caught.value.hint


BATCHES: list[tuple[Any, str, list[object]]] = [
    (np.zeros(2, np.int64), "policy-result", ["ndarray"]),
    ((np.zeros(2, np.int64), [{}, {}]), "policy-result", ["ndarray", "list"]),
    ((np.zeros(3, np.int64), {}), "policy-row-count", [3, 2]),
    ((5, {}), "policy-row-count", ["int", 2]),
    ((np.zeros(2, np.int64), {"x": np.zeros(4)}), "policy-row-count", [4, "'x'", 2]),
    ((np.zeros(2, np.int64), {"x": {"y": [1]}}), "policy-row-count", [1, "'x.y'", 2]),
    ((np.zeros(2, np.int64), {"x": 1.0}), "policy-row-count", ["float", "'x'", 2]),
]


@pytest.mark.parametrize(("result", "code", "values"), BATCHES)
def test_get_actions_must_give_one_row_an_observation(result: Any, code: str, values: list[object]) -> None:
    """Also where it is called for a single observation, so that a run with `-m 1` finds the same fault."""

    class Wrong:
        def get_actions(self, observations: Any) -> Any:
            return result

    policy = adapt_policy(Wrong(), ENV_SPEC)
    with raises(PolicyError, code, "Wrong.get_actions", *values) as caught:
        policy.get_actions(BATCH)
    assert caught.value.hint
    with raises(PolicyError, code, "Wrong.get_actions"):
        policy.get_action(OBSERVATION)


def test_actions_of_another_structure() -> None:
    """A batch for a Dict space must be a dict of arrays."""
    spec = EnvSpec(ENV_SPEC.observation_space, spaces.Dict({"a": spaces.Discrete(2)}))
    wrong: dict[str, Any] = {"get_actions": lambda self, observations: (np.zeros(2), {})}
    with raises(PolicyError, "policy-action-structure"):
        adapt_policy(type("Wrong", (), wrong)(), spec).get_actions(BATCH)


@pytest.mark.parametrize("result", [2, None, (2,), np.zeros((2, 2))])
def test_predict_must_give_a_pair(result: Any) -> None:
    """What is not (action, state) is an error that says so; so is another number of rows."""
    policy = adapt_policy(Bare(result), ENV_SPEC)
    with raises(PolicyError, "policy-result"):
        policy.get_action(OBSERVATION)
    with raises(PolicyError, "policy-row-count"):
        adapt_policy(Bare((np.zeros(1), None)), ENV_SPEC).get_actions(BATCH)


def test_the_bits_of_predict_may_be_floats() -> None:
    """Stable-Baselines3 draws the actions of a MultiBinary space as float32; others than 0 and 1 stay as they are."""
    spec = EnvSpec(ENV_SPEC.observation_space, spaces.MultiBinary(2))
    rows = np.array([[1, 0], [0, 1]], np.float32)
    assert np.int8 == adapt_policy(Bare((rows[0], None)), spec).get_action(OBSERVATION)[0].dtype
    actions, _ = adapt_policy(Bare((rows, None)), spec).get_actions(BATCH)
    assert (np.int8, rows.tolist()) == (actions.dtype, actions.tolist())
    assert np.float32 == adapt_policy(Bare((rows[0] / 2, None)), spec).get_action(OBSERVATION)[0].dtype


# -- classes and factories -------------------------------------------------------------------------------------------


def test_instantiate() -> None:
    """Classes and factories are called, with the spaces where they want them; policies are left alone."""

    class Optional(Lone):
        def __init__(self, gain: float = 1.0, env_spec: EnvSpec | None = None) -> None:
            self.env_spec = env_spec

    class Called(Lone):
        def __call__(self) -> None:
            raise AssertionError

    def factory() -> Any:
        return plain

    def wanting(env_spec: EnvSpec) -> Any:
        return Whole(env_spec)

    whole, both = Whole(), Called()
    assert isinstance(instantiate(Whole, ENV_SPEC, {}), Whole)
    assert isinstance(instantiate(wanting, ENV_SPEC, {}), Whole)
    assert isinstance(instantiate(Lone, ENV_SPEC, {}), Lone)
    assert [plain, plain, whole, both] == [
        instantiate(item, ENV_SPEC, {}) for item in (factory, plain, whole, both)
    ]
    assert instantiate(Optional, ENV_SPEC, {}).env_spec is ENV_SPEC


def _raising(error: BaseException) -> Any:
    def factory() -> None:
        raise error

    return factory


class Greedy:
    def __init__(self, env_spec: EnvSpec, size: int) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("factory", "values"),
    [
        (_raising(RuntimeError("no weights")), ["RuntimeError: no weights"]),
        (_raising(SystemExit(2)), ["SystemExit: 2"]),
        (_raising(GeneratorExit()), ["GeneratorExit"]),
        (Greedy, ["EnvSpec", "TypeError: Greedy.__init__()"]),
    ],
)
def test_a_factory_that_raises(factory: Any, values: list[str]) -> None:
    """Whatever it raises is a clear error with the user's traceback."""
    with raises(PolicyLoadError, "policy-factory", *values) as caught:
        instantiate(factory, ENV_SPEC, {})
    assert "Traceback" in caught.value.details


# -- objects that are no policies -----------------------------------------------------------------------------------


class Endless:
    """Looks up what it lacks in an attribute that it lacks, as VecNormalize does once it is unpickled."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Broken:
    """Can be called, and has a `get_action` that cannot be read."""

    @property
    def get_action(self) -> Any:
        raise ValueError("no weights")

    def __call__(self, observation: Any) -> Any:
        return 0


@pytest.mark.parametrize(
    ("candidate", "raised"), [(Endless, "RecursionError: "), (Broken, "ValueError: no weights")]
)
def test_an_attribute_that_cannot_be_read(candidate: type[Any], raised: str) -> None:
    """The object is refused in one line, and is not taken for a policy of another kind."""
    for call in (adapt_policy, partial(instantiate, options={})):
        with raises(PolicyLoadError, "policy-type", candidate.__name__, "reading its", raised) as caught:
            call(candidate(), ENV_SPEC)
        assert (raised == "RecursionError: ") == (caught.value.details == "")


async def act_later(observation: Any) -> Any:
    return 0


class ActsLater:
    async def get_action(self, observation: Any) -> Any:
        return 0, {}


class CalledLater:
    async def __call__(self, observation: Any) -> Any:
        return 0


@pytest.mark.parametrize("candidate", [act_later, ActsLater(), CalledLater()])
def test_an_async_function_is_no_policy(candidate: Any) -> None:
    """Nobody would await its action."""
    with raises(PolicyLoadError, "policy-async") as caught:
        adapt_policy(candidate, ENV_SPEC)
    assert "async def" in caught.value.hint


# -- seeding --------------------------------------------------------------------------------------------------------


def test_spaces_that_policy_and_environment_share_are_the_environments() -> None:
    """A worker that runs the environment under another policy seeds its spaces alike."""
    space = spaces.Discrete(1000)

    class Env:
        action_space = space

    drawn = []
    for policy in (None, adapt_policy(plain, EnvSpec(space, space))):
        seeder = EpisodeSeeder(1)
        seeder.watch(policy=policy, env=Env())
        seeder.begin(3)
        drawn.append([int(space.sample()) for _ in range(5)])
    assert drawn[0] == drawn[1]


class Raising:
    """A policy each of whose further attributes raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def test_what_is_a_source() -> None:
    """Its class decides: to look at a policy's own attributes may raise anything."""
    assert is_policy_source(policy_source("random"))
    assert not is_policy_source(Raising())
    assert not is_policy_source(lambda observation: 0)
