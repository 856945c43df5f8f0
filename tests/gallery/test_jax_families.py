"""The families of JAX environments: each collects a dataset that equals a plain loop of the family's functions.

A family is a row of `FAMILIES`. JAX warns at each fork of a process that uses it, so `.ci/matrix/libraries` runs
this module in an environment of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
import pytest

import rollout_cli
from rollout_cli.envs.source import as_env_source, env_source
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.errors import EnvLoadError
from rollout_cli.testing import check_functional_env
from rollout_cli.workers.functional.program import Program, random_act
from rollout_cli.workers.functional.types import check_step, reset_types
from tests.helpers.datasets import assert_same_data, has_commit, info_of
from tests.helpers.errors import raises
from tests.helpers.processes import called, running

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
"""XLA compiles for a minute; brax and others warn when they are imported."""

N_EPISODES = 100
ROWS_16 = ("--envs-per-worker", "16")
LOCAL = ("--sampler", "local")
"""In this process, which has loaded JAX."""

# -- the loops -------------------------------------------------------------------------------------------------


class Stepped(NamedTuple):
    """The results of a step, with observations and infos as in the dataset."""

    observation: Any
    state: Any
    reward: Any
    terminated: Any
    truncated: Any
    infos: dict[str, Any]


class Loop(NamedTuple):
    """The functions of an environment, made with the family's own interface; they are compiled one by one."""

    reset: Callable[[Any], tuple[Any, Any]]
    step: Callable[[Any, Any, Any], Stepped]


def gymnax_loop(limit: int) -> Loop:
    """CartPole."""
    import gymnax

    env, params = gymnax.make("CartPole-v1")
    params = params.replace(max_steps_in_episode=limit)

    def step(key: Any, state: Any, action: Any) -> Stepped:
        observation, state, reward, terminated, _ = env.step_env(key, state, action, params)
        return Stepped(observation, state, reward, terminated, state.time >= limit, {})

    return Loop(lambda key: env.reset_env(key, params), step)


def brax_loop(limit: int) -> Loop:
    """The inverted pendulum, in brax's own wrapper for the time limit."""
    from brax import envs
    from brax.envs.wrappers.training import EpisodeWrapper

    env = EpisodeWrapper(envs.get_environment("inverted_pendulum"), limit, action_repeat=1)

    def reset(key: Any) -> tuple[Any, Any]:
        state = env.reset(key)
        return state.obs, state

    def step(key: Any, state: Any, action: Any) -> Stepped:
        state = env.step(state, action)
        truncated = state.info["truncation"] > 0
        terminated = (state.done > 0) & ~truncated
        return Stepped(state.obs, state, state.reward, terminated, truncated, state.metrics)

    return Loop(reset, step)


def jumanji_loop(limit: int) -> Loop:
    """Snake without a limit: at its limit, jumanji itself terminates."""
    import jumanji

    env = jumanji.make("Snake-v1", num_rows=4, num_cols=4, time_limit=10_000)

    def reset(key: Any) -> tuple[Any, Any]:
        state, timestep = env.reset(jax.random.key_data(key))
        return timestep.observation._asdict(), state

    def step(key: Any, state: Any, action: Any) -> Stepped:
        state, timestep = env.step(state, action)
        observation = timestep.observation._asdict()
        return Stepped(
            observation,
            state,
            timestep.reward,
            timestep.last() & (timestep.discount == 0),
            state.step_count >= limit,
            timestep.extras,
        )

    return Loop(reset, step)


def playground_loop(limit: int) -> Loop:
    """Balancing a pole, which has no end but the time limit, in the wrapper for it."""
    from brax.envs.wrappers.training import EpisodeWrapper
    from mujoco_playground import registry

    raw: Any = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
    env = EpisodeWrapper(raw, limit, action_repeat=1)

    def reset(key: Any) -> tuple[Any, Any]:
        state = env.reset(key)
        return state.obs, state

    def step(key: Any, state: Any, action: Any) -> Stepped:
        state = env.step(state, action)
        truncated = state.info["truncation"] > 0
        terminated = (state.done > 0) & ~truncated
        return Stepped(state.obs, state, state.reward, terminated, truncated, state.metrics)

    return Loop(reset, step)


def craftax_loop(limit: int) -> Loop:
    """Craftax-Classic, where the player dies without health and in lava."""
    from craftax.craftax_classic.constants import BlockType
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False)
    params = env.default_params.replace(max_timesteps=limit)

    def step(key: Any, state: Any, action: Any) -> Stepped:
        observation, state, reward, done, infos = env.step(key, state, action, params)
        is_in_lava = state.map[tuple(state.player_position)] == BlockType.LAVA.value
        is_dead = (state.player_health <= 0) | is_in_lava
        del infos["discount"]
        return Stepped(observation, state, reward, is_dead, done & ~is_dead, infos)

    return Loop(lambda key: env.reset(key, params), step)


def navix_loop(limit: int) -> Loop:
    """A room with moving obstacles, which resets in the step after an end."""
    import navix

    env = navix.make("Navix-Dynamic-Obstacles-5x5-v0", max_steps=limit)

    def reset(key: Any) -> tuple[Any, Any]:
        timestep = env.reset(key)
        return timestep.observation, timestep

    def step(key: Any, state: Any, action: Any) -> Stepped:
        timestep = env.step(state, action)
        terminated = timestep.step_type == 2
        truncated = timestep.step_type == 1
        return Stepped(timestep.observation, timestep, timestep.reward, terminated, truncated, timestep.info)

    return Loop(reset, step)


def xminigrid_loop(limit: int) -> Loop:
    """A room with a goal."""
    import xminigrid

    env, params = xminigrid.make("MiniGrid-EmptyRandom-5x5", max_steps=limit)

    def reset(key: Any) -> tuple[Any, Any]:
        timestep = env.reset(params, key)
        return timestep.observation, timestep

    def step(key: Any, state: Any, action: Any) -> Stepped:
        timestep = env.step(params, state, action)
        terminated = timestep.last() & (timestep.discount == 0)
        truncated = timestep.last() & (timestep.discount == 1)
        return Stepped(timestep.observation, timestep, timestep.reward, terminated, truncated, {})

    return Loop(reset, step)


@dataclass(frozen=True)
class Family:
    """A row of the table.

    Attributes:
        spec: An environment that compiles fast, in which random episodes end in both ways.
        kwargs: Its arguments, with a small time limit.
        limit: The time limit.
        loop: Called with the time limit; returns the functions of the same environment.
        rtol, atol: How far numbers may be from those of the loop, whose functions XLA compiles one by one.
        both_ends: Whether some random episodes end before the time limit.
    """

    spec: str
    kwargs: dict[str, Any]
    limit: int
    loop: Callable[[int], Loop]
    rtol: float = 1e-4
    atol: float = 1e-5
    both_ends: bool = True
    misspelt: tuple[str, str] = field(default=("", ""))


FAMILIES = {
    "gymnax": Family(
        "gymnax:CartPole-v1",
        {"max_steps_in_episode": 20},
        20,
        gymnax_loop,
        misspelt=("CartPole-v9", "did you mean CartPole-v1?"),
    ),
    "brax": Family(
        "brax:inverted_pendulum",
        {"episode_length": 6},
        6,
        brax_loop,
        misspelt=("inverted_pendulun", "did you mean inverted_pendulum?"),
    ),
    "jumanji": Family(
        "jumanji:Snake-v1",
        {"num_rows": 4, "num_cols": 4, "time_limit": 6},
        6,
        jumanji_loop,
        misspelt=("Snakes-v1", "did you mean Snake-v1?"),
    ),
    # Not with Warp, the default: its kernels compile for a minute, and step slower on a CPU.
    "playground": Family(
        "playground:CartpoleBalance",
        {"episode_length": 10, "impl": "jax"},
        10,
        playground_loop,
        both_ends=False,
        misspelt=("CartpoleBalanc", "did you mean CartpoleBalance?"),
    ),
    "craftax": Family(
        "craftax:Craftax-Classic-Symbolic-v1",
        {"max_timesteps": 80},
        80,
        craftax_loop,
        misspelt=("Craftax-Clasic-Symbolic-v1", "did you mean Craftax-Classic-Symbolic-v1?"),
    ),
    "navix": Family(
        "navix:Navix-Dynamic-Obstacles-5x5-v0",
        {"max_steps": 20},
        20,
        navix_loop,
        misspelt=("Navix-Empty-5x5", "did you mean Navix-Empty-5x5-v0?"),
    ),
    "xminigrid": Family(
        "xminigrid:MiniGrid-EmptyRandom-5x5",
        {"max_steps": 50},
        50,
        xminigrid_loop,
        misspelt=("MiniGrid-Empty5x5", "did you mean MiniGrid-Empty-5x5?"),
    ),
}

# -- the dataset of each family --------------------------------------------------------------------------------


class Collected(NamedTuple):
    """A dataset of a family with 16 rows."""

    family: Family
    words: tuple[str, ...]
    path: Path


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep compiled programs, for this process and the workers."""
    folder = str(tmp_path_factory.mktemp("compiled"))
    config: Any = jax.config
    config.update("jax_compilation_cache_dir", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", folder)
        yield
    config.update("jax_compilation_cache_dir", None)


@pytest.fixture(scope="module", params=FAMILIES)
def collected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """Return the dataset of a family, from one worker with 16 rows."""
    family = FAMILIES[request.param]
    out = tmp_path_factory.mktemp("collected") / "data"
    kwargs = [f"{name}={json.dumps(value)}" for name, value in family.kwargs.items()]
    options = [word for option in kwargs for word in ("--env-kwargs", option)]
    words = ("collect", "--env", family.spec, *options, "--seed", "5", "--quiet")
    called(*words, *LOCAL, *ROWS_16, "--episodes", str(N_EPISODES), "--output", out)
    return Collected(family, words, out)


def test_collects_and_verifies(collected: Collected) -> None:
    """The record names the family, its package and JAX, and the run is reproducible with 16 rows."""
    called("verify", collected.path)
    source = info_of(collected.path)["sources"][0]
    package = collected.family.spec.partition(":")[0]
    assert collected.family.limit == source["env"]["max_episode_length"]
    assert source["env"]["class"].startswith("rollout_cli.envs.functional.")
    assert collected.family.spec == source["env_source"]["spec"]
    assert {package, "jax"} <= source["versions"].keys()
    assert ("yes", "n_envs") == (source["reproducible"]["status"], source["reproducible"]["scope"])


def test_replays(collected: Collected) -> None:
    """Bit for bit, from the seeds."""
    called("replay", collected.path, "--episodes", "0:5")


def test_two_workers_write_the_same_data(collected: Collected, tmp_path: Path) -> None:
    """As one worker does."""
    out = tmp_path / "data"
    called(*collected.words, *ROWS_16, "--workers", "2", "--episodes", str(N_EPISODES), "--output", out)
    assert_same_data(collected.path, out)


def test_a_killed_run_is_resumed(collected: Collected, tmp_path: Path) -> None:
    """With the same data at its end."""
    out = tmp_path / "data"
    words = (*collected.words, *ROWS_16, "--workers", "1", "--output", str(out), "--flush-every", "0.05")
    with running([*words, "--episodes", "100000000"]) as process:
        process.wait_until(lambda: has_commit(out))
        process.kill()
    n_episodes = str(len(rollout_cli.load(out)) + 50)
    called("collect", "--resume", *LOCAL, "--episodes", n_episodes, "--quiet", "--output", out)
    whole = tmp_path / "whole"
    called(*collected.words, *LOCAL, *ROWS_16, "--episodes", n_episodes, "--output", whole)
    assert_same_data(whole, out)


def test_64_rows(collected: Collected, tmp_path: Path) -> None:
    """They write the same data."""
    out = tmp_path / "data"
    called(
        *collected.words, *LOCAL, "--envs-per-worker", "64", "--episodes", str(N_EPISODES), "--output", out
    )
    assert_same_data(collected.path, out)


def episodes_of(path: Path) -> list[EpisodeBatch]:
    """Return the episodes of a dataset."""
    return rollout_cli.load(path).to_episode_batch().split()


# -- next to a plain loop --------------------------------------------------------------------------------------


def test_episodes_equal_a_plain_loop(collected: Collected) -> None:
    """A hundred episodes, every field, with the keys of docs/jax.md; the time limit alone does not terminate."""
    family = collected.family
    loop = family.loop(family.limit)
    reset, step = jax.jit(loop.reset), jax.jit(loop.step)
    episodes = episodes_of(collected.path)
    spec = episodes[0].env_spec
    sample = random_act(SpaceRows(spec.action_space))
    assert sample is not None
    sample = jax.jit(sample)
    assert N_EPISODES == len(episodes)
    for episode in episodes:
        key, reset_key = jax.random.split(jax.random.key(np.uint32(episode.seeds[0])))
        observation, state = reset(reset_key)
        is_over = False
        for at in range(len(episode.rewards)):
            assert_close(family, observation, row(episode.observations, at))
            assert not is_over
            key, action_key, step_key = jax.random.split(key, 3)
            action = row(episode.actions, at)
            assert_close(family, sample(action_key, observation, None), action)
            stepped = step(step_key, state, action)
            observation, state = stepped.observation, stepped.state
            is_over = stepped.terminated or stepped.truncated
            assert_close(family, stepped.reward, episode.rewards[at])
            assert stepped.infos.keys() == episode.env_infos.keys()
            for name, values in episode.env_infos.items():
                assert_close(family, stepped.infos[name], values[at])
        assert_close(family, observation, row(episode.last_observations, 0))
        assert bool(stepped.terminated) == episode.terminated[0]
        assert (len(episode.rewards) == family.limit) == episode.truncated[0]
        assert bool(stepped.truncated) == episode.truncated[0] or episode.terminated[0]
    limited = [episode for episode in episodes if len(episode.rewards) == family.limit]
    assert any(not episode.terminated[0] for episode in limited)
    assert family.both_ends == (len(limited) < N_EPISODES)


def row(tree: Any, at: int) -> Any:
    """Return one row of a tree of columns."""
    return jax.tree.map(lambda values: values[at], tree)


def assert_close(family: Family, expected: Any, actual: Any) -> None:
    """Check that two trees have one structure and close numbers; integers are equal."""
    structures: list[Any] = [jax.tree.structure(tree) for tree in (expected, actual)]
    assert structures[0] == structures[1]
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        if np.issubdtype(np.asarray(other).dtype, np.floating):
            np.testing.assert_allclose(other, one, family.rtol, family.atol)
        else:
            assert np.array_equal(one, other)


# -- the adapters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_the_adapter(name: str) -> None:
    """It keeps the protocol; an unknown id gives the closest; an unknown argument is refused."""
    family = FAMILIES[name]
    env: Any = env_source(family.spec, family.kwargs).build()
    check_functional_env(env)
    package = family.spec.partition(":")[0]
    wrong, hint = family.misspelt
    with raises(EnvLoadError, "env-unknown", f"{package} has no environment {wrong!r}") as caught:
        env_source(f"{package}:{wrong}").build()
    assert hint == caught.value.hint
    with raises(EnvLoadError, "env-argument", f"{family.spec!r} has no argument 'wheels'"):
        env_source(family.spec, {"wheels": 4}).build()


def ids_of_navix() -> Iterable[str]:
    """All."""
    import navix

    return list(navix.registry())


def ids_of_xminigrid() -> Iterable[str]:
    """All."""
    import xminigrid

    return list(xminigrid.registered_environments())


def ids_of_craftax() -> Iterable[str]:
    """Those without images: Craftax makes the textures of the others once, which takes minutes."""
    from rollout_cli.envs.functional.craftax import NAMES

    return [name for name in NAMES if "Pixels" not in name]


@pytest.mark.parametrize("ids", [ids_of_craftax, ids_of_navix, ids_of_xminigrid])
def test_types_of_all_ids(ids: Callable[[], Iterable[str]]) -> None:
    """Observations, states, flags and infos have the types of the protocol and of the spaces."""
    family = ids.__name__.removeprefix("ids_of_")
    for name in ids():
        env: Any = as_env_source(f"{family}:{name}").build()
        actions = SpaceRows(env.action_space)
        act = random_act(actions)
        assert act is not None
        program = Program(env, act, actions, limit=env.max_episode_steps, rule=None, n_steps=1)
        check_step(program, {}, reset_types(program, SpaceRows(env.observation_space)))


def test_observations_of_navix() -> None:
    """An image or another function of `navix.observations`, by its name."""
    for function, shape, dtype in (
        ("rgb", (40, 40, 3), np.uint8),
        ("categorical", (5, 5), np.int32),
        ("symbolic_first_person", (7, 7, 3), np.uint8),
    ):
        env: Any = env_source("navix:Navix-Empty-5x5-v0", {"observation_fn": function}).build()
        assert (shape, dtype) == (env.observation_space.shape, env.observation_space.dtype)
        check_functional_env(env)


# -- Python environments ---------------------------------------------------------------------------------------


def wrapped_cartpole() -> gymnasium.Env[Any, Any]:
    """Return CartPole of gymnax in gymnax's own wrapper."""
    import gymnax
    from gymnax.wrappers import GymnaxToGymWrapper

    env: gymnasium.Env[Any, Any] = GymnaxToGymWrapper(*gymnax.make("CartPole-v1"))
    return env


@pytest.mark.parametrize(
    "spec",
    [
        "phys2d/CartPole-v1",
        "phys2d/Pendulum-v0",
        "tabular/Blackjack-v0",
        "tabular/CliffWalking-v0",
        f"{__name__}:wrapped_cartpole",
    ],
)
def test_python_environments_that_use_jax(spec: str, tmp_path: Path) -> None:
    """Those of gymnasium and gymnax's own wrapper run one by one in worker processes."""
    out = tmp_path / "data"
    words = ("--episodes", "6", "--max-episode-length", "20", "--workers", "2", "--seed", "5", "--quiet")
    called("collect", "--env", spec, *words, "--output", out)
    called("verify", out)
    source = info_of(out)["sources"][0]
    assert ("yes", "any") == (source["reproducible"]["status"], source["reproducible"]["scope"])
    env = wrapped_cartpole() if "wrapped" in spec else gymnasium.make(spec)
    for episode in episodes_of(out):
        observation, _ = env.reset(seed=int(episode.seeds[0]))
        for at, action in enumerate(episode.actions):
            assert np.array_equal(np.asarray(observation), np.asarray(row(episode.observations, at)))
            observation, reward, terminated, _, _ = env.step(action)
            assert float(reward) == episode.rewards[at]
        assert bool(terminated) == episode.terminated[0]
        assert (at == 19) == episode.truncated[0]
