"""Which peers there are, what each needs, and where its environment lives."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.sides import USUAL, Guess

TORCH = "torch==2.13.0"


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment that one or more peers share.

    Attributes:
        name: The folder's name.
        steps: What is given to `pip install`, one call after the other. Torch comes first and is named again in each
            later call, so that no package brings another build of it.
    """

    name: str
    steps: tuple[tuple[str, ...], ...]

    @property
    def folder(self) -> Path:
        """Return where it lives, or would."""
        return cache_folder() / self.name

    @property
    def python(self) -> Path:
        """Return its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def marker(self) -> Path:
        """Return the file that says that everything was installed."""
        return self.folder / "installed.txt"

    @property
    def failure(self) -> Path:
        """Return the file that says why it could not be."""
        return cache_folder() / f"{self.name}.failed.txt"


@dataclass(frozen=True, slots=True)
class Peer:
    """One way of another tool to collect steps.

    Attributes:
        name: What it is called on the command line.
        title: What it is called in the table.
        environment: Where it is installed.
        module: Its driver, run as `python -m benchmarks.peers.<module>`.
        mode: The driver's `--mode`.
        policies: The policies that it runs.
        saves: How it saves what it collected, or that it saves nothing; rows are then kept in memory.
        vector: Whether it steps several environments at once.
        also_linear: Whether it is measured with the linear policy too. Those that take long to start are not.
        guess: Roughly how it fares.
    """

    name: str
    title: str
    environment: Environment
    module: str
    mode: str
    saves: str
    policies: tuple[str, ...] = ("random", "linear")
    vector: bool = True
    also_linear: bool = False
    guess: Guess = USUAL

    @property
    def missing(self) -> str | None:
        """Return why it cannot be run now; None where it can."""
        if self.environment.marker.exists():
            return None
        if self.environment.failure.exists():
            return f"could not be installed: {self.environment.failure.read_text(encoding='utf-8').strip()}"
        return f"not installed: python -m benchmarks.peers install {self.name}"

    def driver(self, *arguments: str) -> list[str]:
        """Return the command that runs its driver with these arguments."""
        return [str(self.environment.python), "-m", f"benchmarks.peers.{self.module}", "--mode", self.mode, *arguments]

    def command(self, policy: str, steps: int, output: Path) -> list[str]:
        """Return the command that collects at least `steps` steps and saves them in the folder `output`."""
        return self.driver("--policy", policy, "--steps", str(steps), "--output", str(output))


def cache_folder() -> Path:
    """Return the folder of all environments: `$ROLLOUT_BENCHMARKS_CACHE`, else one in the user's cache."""
    given = os.environ.get("ROLLOUT_BENCHMARKS_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollout-peers"


GYMNASIUM = Environment("gymnasium", (("gymnasium>=1.2", "numpy"),))
SB3 = Environment("sb3", ((TORCH,), (TORCH, "stable-baselines3")))
IMITATION = Environment("imitation", ((TORCH,), (TORCH, "imitation")))
TIANSHOU = Environment("tianshou", ((TORCH,), (TORCH, "tianshou")))
TORCHRL = Environment("torchrl", ((TORCH,), (TORCH, "torchrl", "gymnasium")))
RLLIB = Environment("rllib", ((TORCH,), (TORCH, "ray[rllib]", "msgpack-numpy")))
MINARI = Environment("minari", (("minari[create,hdf5,arrow]", "pillow"),))
PUFFERLIB = Environment("pufferlib", ((TORCH,), (TORCH, "pufferlib-core")))

_NOTHING = "saves nothing"
_REPLAY_BUFFER = "saves a pickled ReplayBuffer"
_MEMMAP = "saves to memory-mapped files"

PEERS: tuple[Peer, ...] = (
    Peer(
        "gymnasium-async",
        "gymnasium AsyncVectorEnv",
        GYMNASIUM,
        "gymnasium_vector",
        "async",
        _NOTHING,
        also_linear=True,
        guess=Guess(0.5, 15_000),
    ),
    Peer(
        "gymnasium-sync",
        "gymnasium SyncVectorEnv",
        GYMNASIUM,
        "gymnasium_vector",
        "sync",
        _NOTHING,
        also_linear=True,
        guess=Guess(0.3, 100_000),
    ),
    Peer(
        "sb3-dummy",
        "Stable-Baselines3 DummyVecEnv",
        SB3,
        "sb3",
        "dummy",
        _REPLAY_BUFFER,
        also_linear=True,
        guess=Guess(1.8, 60_000),
    ),
    Peer(
        "sb3-subproc",
        "Stable-Baselines3 SubprocVecEnv",
        SB3,
        "sb3",
        "subproc",
        _REPLAY_BUFFER,
        guess=Guess(8.0, 10_000),
    ),
    Peer(
        "pufferlib",
        "PufferLib vector x2",
        PUFFERLIB,
        "pufferlib",
        "multiprocessing",
        _NOTHING,
        also_linear=True,
        guess=Guess(2.0, 60_000),
    ),
    Peer(
        "imitation",
        "imitation rollout",
        IMITATION,
        "imitation",
        "rollout",
        "saves a Hugging Face dataset",
        also_linear=True,
        guess=Guess(4.0, 30_000),
    ),
    Peer(
        "tianshou",
        "tianshou Collector",
        TIANSHOU,
        "tianshou",
        "collector",
        "saves its buffer as HDF5",
        guess=Guess(9.0, 10_000),
    ),
    Peer("torchrl", "TorchRL Collector", TORCHRL, "torchrl", "single", _MEMMAP, guess=Guess(4.0, 4000)),
    Peer(
        "torchrl-multi",
        "TorchRL MultiSyncCollector x2",
        TORCHRL,
        "torchrl",
        "multi",
        _MEMMAP,
        guess=Guess(10.0, 6000),
    ),
    Peer(
        "rllib",
        "RLlib env runners x2",
        RLLIB,
        "rllib",
        "recording",
        "saves packed episodes as Parquet",
        policies=("random",),
        guess=Guess(14.0, 2000),
    ),
    Peer(
        "minari",
        "Minari DataCollector",
        MINARI,
        "minari",
        "hdf5",
        "saves a dataset in HDF5",
        vector=False,
        also_linear=True,
        guess=Guess(1.0, 4000),
    ),
    Peer(
        "minari-arrow",
        "Minari DataCollector",
        MINARI,
        "minari",
        "arrow",
        "saves a dataset in Arrow",
        vector=False,
        guess=Guess(1.5, 400),
    ),
)


def find_peers(names: list[str]) -> list[Peer]:
    """Return the peers of these names; all for `all`.

    Raises:
        ValueError: If there is no such peer.
    """
    if names == ["all"]:
        return list(PEERS)
    known = {peer.name: peer for peer in PEERS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"there is no peer {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names]
