"""Real environments: collect, verify, replay bit for bit, resume after a kill; the same bytes for 1 and 3 workers."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollout_cli import load
from tests.gallery.conftest import WHOLE
from tests.helpers.datasets import assert_same_data, has_commit, info_of, source_of
from tests.helpers.processes import called, rollout, running


@dataclass(frozen=True, slots=True)
class World:
    """An environment.

    Attributes:
        env: Its spec.
        amount: How much is collected.
        options: Further options.
        replayed: How many episodes are replayed, from the first on.
        repeats: Whether its episodes depend on their seeds alone.
    """

    env: str
    amount: tuple[str, ...] = ("--episodes", "12")
    options: tuple[str, ...] = ()
    replayed: int = 12
    repeats: bool = True


SHORT = ("--max-episode-length", "60")
FEW = {
    "CartPole, four rows": World("CartPole-v1", options=("--envs-per-worker", "4")),
    "Pendulum": World("Pendulum-v1", options=SHORT),
    "FrozenLake": World("FrozenLake-v1"),
}
"""They need gymnasium alone, and are run with all other slow tests."""
OTHERS = {
    "CartPole": World("CartPole-v1"),
    "MountainCar": World("MountainCarContinuous-v0", options=SHORT),
    "Acrobot": World("Acrobot-v1", options=SHORT),
    "Blackjack": World("Blackjack-v1"),
    "Taxi": World("Taxi-v4", options=SHORT),
    "LunarLander": World("LunarLander-v3", options=SHORT),
    "LunarLander, continuous": World("LunarLander-v3", options=(*SHORT, "--env-kwargs", "continuous=true")),
    "LunarLander, four rows": World("LunarLander-v3", options=(*SHORT, "--envs-per-worker", "4")),
    # Its Box2D world lives on from one episode to the next.
    "BipedalWalker": World("BipedalWalker-v3", options=SHORT, repeats=False),
    "CarRacing": World("CarRacing-v3", ("--episodes", "4"), ("--max-episode-length", "20"), 4),
    "HalfCheetah": World("HalfCheetah-v5", options=SHORT),
    "HalfCheetah, four rows": World("HalfCheetah-v5", options=(*SHORT, "--envs-per-worker", "4")),
    "Humanoid": World("Humanoid-v5", options=SHORT),
    "Pong": World("tests.gallery.worlds:pong", ("--episodes", "6"), SHORT, 6),
    "MiniGrid": World("tests.gallery.worlds:minigrid", options=SHORT),
    "dm_control": World("tests.gallery.worlds:cartpole_swingup", options=SHORT),
}
"""Most of them need packages that `.ci/run` installs for the gallery."""
WORLDS = OTHERS if WHOLE else FEW


@pytest.mark.thorough
@pytest.mark.parametrize("name", WORLDS)
def test_worlds(tmp_path: Path, name: str) -> None:
    """Three workers, killed and resumed, give the bytes of one; the dataset verifies, and its episodes repeat.

    Or the dataset says that they do not.
    """
    check_world(WORLDS[name], tmp_path)


def check_world(world: World, folder: Path) -> None:
    """See `test_worlds`."""
    one, three = folder / "one", folder / "three"
    words = ["collect", "--env", world.env, *world.amount, *world.options, "--seed", "3", "--quiet"]
    # Where the verdict is required, the check takes its time, however slow the machine is.
    required = () if world.repeats else ("--require-reproducible",)
    rollout(*words, *required, "--workers", "1", "--output", one, code=3 if required else 0)
    often = [*words, "--workers", "3", "--flush-every", "0.01", "--output", str(three)]
    with running(often) as run:
        while run.process.poll() is None and not has_commit(three):
            time.sleep(0.002)
        # Of a run that is over by now nothing is left to resume: also good.
        run.process.send_signal(signal.SIGKILL)
        run.end()
    rollout(*words, "--resume", "--workers", "3", "--output", three)
    called("verify", three)
    verdict = source_of(one)["reproducible"]
    if not world.repeats:
        assert "no" == verdict["status"], verdict
        return
    assert verdict["status"] in ("yes", "unknown"), verdict
    assert_same_data(one, three)
    # It runs in its own process, whose texts must have the hashes that those of workers have.
    rollout("replay", "--trust", three, "--episodes", f"0:{world.replayed}", env={"PYTHONHASHSEED": "0"})


if WHOLE:

    @pytest.mark.parametrize("policy", ["random", "tests.gallery.worlds:AlwaysLeft"])
    def test_no_two_workers_of_envpool_run_the_same_episodes(tmp_path: Path, policy: str) -> None:
        """Its rows draw from the seed that it was built with alone, and each worker builds it with another one."""
        env = (
            "--env",
            "tests.gallery.worlds:cartpole_pool",
            "--vectorization",
            "native",
            "--envs-per-worker",
            "8",
        )
        words = ("exact", *env, "--policy", policy, "--episodes-per-worker", "60", "--seed", "3", "--quiet")
        rollout(*words, "--workers", "2", "--output", tmp_path / "out")
        called("verify", tmp_path / "out")
        batch = load(tmp_path / "out").to_episode_batch()
        episodes = {(one.observations.tobytes(), one.actions.tobytes()) for one in batch.split()}
        assert 120 == len(batch) == len(episodes)
        assert "no" == source_of(tmp_path / "out")["reproducible"]["status"]


VECTORS = {"CartPole": ("CartPole-v1", ())} | (
    {"Pong": ("tests.gallery.worlds:pong_vector", ())} if WHOLE else {}
)


@pytest.mark.parametrize("name", VECTORS)
def test_native_vector_environments(tmp_path: Path, name: str) -> None:
    """They reset their rows themselves: episodes are whole, and the dataset says that they cannot be repeated."""
    env, options = VECTORS[name]
    native = ("--vectorization", "native", "--envs-per-worker", "4")
    output = tmp_path / "out"
    rollout(
        "collect",
        "--env",
        env,
        "--timesteps",
        "1000",
        *native,
        *options,
        "--workers",
        "2",
        "--output",
        output,
    )
    called("verify", output)
    assert 1000 <= info_of(output)["steps"]
    assert "no" == source_of(output)["reproducible"]["status"]
