"""Other tools that collect: each has a driver script with dependencies (PEP 723) and a separate virtual environment.

`python -m benchmarks.peers install [NAMES]` creates the virtual environments in `~/.cache/rollout-peers`, or in
`$ROLLOUT_BENCHMARKS_CACHE`; `python -m benchmarks.peers check [NAMES]` runs each driver briefly.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
_BLOCK = re.compile(r"^# /// script$\s(?P<body>(^#(| .*)$\s)+)^# ///$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Peer:
    """One way of another tool to collect steps.

    Attributes:
        name: Its name on the command line.
        title: Its name in the table.
        script: Its driver, a module of this folder.
        mode: The driver's first argument.
        saves: How it saves the collected steps; tools without a recorder keep them in memory.
        policies: The policies that it is measured with.
        vector: True if it steps several environments at once.
    """

    name: str
    title: str
    script: str
    mode: str
    saves: str
    policies: tuple[str, ...] = ("random", "linear")
    vector: bool = True


PEERS = (
    Peer("gymnasium-sync", "gymnasium SyncVectorEnv", "gymnasium_vector", "sync", "saves nothing"),
    Peer(
        "gymnasium-async",
        "gymnasium AsyncVectorEnv",
        "gymnasium_vector",
        "async",
        "saves nothing",
        ("random",),
    ),
    Peer("sb3-dummy", "Stable-Baselines3 DummyVecEnv", "sb3", "dummy", "saves a ReplayBuffer"),
    Peer(
        "sb3-subproc",
        "Stable-Baselines3 SubprocVecEnv",
        "sb3",
        "subproc",
        "saves a ReplayBuffer",
        ("random",),
    ),
    Peer("pufferlib", "PufferLib vector x2", "puffer", "multiprocessing", "saves nothing"),
    Peer("imitation", "imitation rollout", "imitation_rollout", "rollout", "saves a Hugging Face dataset"),
    Peer("tianshou", "tianshou Collector", "tianshou_collector", "collector", "saves HDF5", ("random",)),
    Peer("torchrl", "TorchRL Collector", "torchrl_collector", "single", "saves a memory map", ("random",)),
    Peer(
        "torchrl-multi",
        "TorchRL MultiSync x2",
        "torchrl_collector",
        "multi",
        "saves a memory map",
        ("random",),
    ),
    Peer("rllib", "RLlib env runners x2", "rllib_runners", "recording", "saves Parquet", ("random",)),
    Peer("minari", "Minari DataCollector", "minari_collector", "hdf5", "saves HDF5", vector=False),
)

READERS = (
    Peer("minari-episodes", "Minari, HDF5", "minari_reading", "episodes", "", ("pong", "cartpole")),
    Peer(
        "hf-episodes",
        "Hugging Face datasets, arrow format",
        "hf_reading",
        "episodes",
        "",
        ("pong", "cartpole"),
    ),
    Peer("torchrl-transitions", "TorchRL", "torchrl_reading", "transitions", "", ("cartpole",)),
    Peer("torchrl-windows", "TorchRL", "torchrl_reading", "windows", "", ("cartpole",)),
    Peer("tianshou-transitions", "tianshou", "tianshou_reading", "transitions", "", ("cartpole",)),
    Peer("tianshou-windows", "tianshou", "tianshou_reading", "windows", "", ("cartpole",)),
)
"""Other tools that read; `policies` are kinds of episodes (`benchmarks.arrays`)."""


def environment_of(peer: Peer) -> Path:
    """Return the folder of the peer's virtual environment; peers that share a driver share it."""
    given = os.environ.get("ROLLOUT_BENCHMARKS_CACHE")
    return (Path(given) if given else Path.home() / ".cache" / "rollout-peers") / peer.script


def requirements_of(peer: Peer) -> list[str]:
    """Return the dependencies of the peer's driver, in the order of installation."""
    found = _BLOCK.search((FOLDER / f"{peer.script}.py").read_text(encoding="utf-8"))
    assert found is not None, f"{peer.script}.py names no packages"
    body = "".join(
        line.removeprefix("#").removeprefix(" ") for line in found["body"].splitlines(keepends=True)
    )
    return [str(name) for name in tomllib.loads(body)["dependencies"]]


def command_of(peer: Peer, policy: str, steps: int, output: Path) -> list[str]:
    """Return the command that collects at least `steps` steps and saves them in a folder."""
    python = environment_of(peer) / "bin" / "python"
    return [str(python), "-m", f"benchmarks.peers.{peer.script}", peer.mode, policy, str(steps), str(output)]
