"""The benchmark cases, one per row of the table: what is measured, the other side, and the target."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.measure import Cost, Side, Spread, rounds, run, take
from benchmarks.peers import PEERS, Peer, command_of
from benchmarks.probes import NOTE

WORKERS = 2
N_NATIVE, N_ROWS = 1024, 16
PONG = "ale_py:ALE/Pong-v5"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table."""

    what: str
    against: str
    spread: Spread
    unit: str = ""
    bound: str = ""
    detail: str = ""


Measure = Callable[[int, float, Say], list[Figure]]
"""Measures in N rounds of a length in seconds, and reports progress; returns the figures."""


@dataclass(frozen=True, slots=True)
class Case:
    """A named measurement."""

    name: str
    measure: Measure
    tags: Sequence[str] = field(default=())


def executable() -> str:
    """Return the installed `rollout` of this interpreter."""
    return str(Path(sys.executable).with_name("rollout"))


def collect(*options: str, name: str = "rollout", granule: int = 1, workers: int = WORKERS) -> Side:
    """Return a side that runs `rollout collect` with these options, including progress output."""

    def command(steps: int, output: Path) -> list[str]:
        amount = ["--timesteps", str(steps), "--output", str(output), "--workers", str(workers)]
        return [executable(), "collect", *amount, "--seed", "0", "--json", "--progress", *options]

    return Side(name, command, granule)


def loop(kind: str, env: str, policy: str, seeds: str, *, n_envs: int = 1, processes: int = WORKERS) -> Side:
    """Return a bare loop of `benchmarks.loops`."""
    arguments = [
        sys.executable,
        "-m",
        "benchmarks.loops",
        kind,
        env,
        policy,
        seeds,
        str(n_envs),
        str(processes),
    ]
    return Side(f"bare {kind} loop, {seeds}", lambda steps, _: [*arguments, str(steps)], n_envs * processes)


def policy(name: str) -> tuple[str, str]:
    """Return the options that choose a policy of `benchmarks.policies`."""
    return "--policy", f"benchmarks.policies:{name}"


def ratio(name: str, what: str, ours: Side, others: Mapping[Side, str] | Sequence[Side]) -> Case:
    """Return a case: the ratio of our rate to the rate of each other side, with an optional bound."""
    bounds = dict(others) if isinstance(others, Mapping) else dict.fromkeys(others, "")

    def measure(pairs: int, seconds: float, say: Say) -> list[Figure]:
        costs = rounds([ours, *bounds], pairs=pairs, seconds=seconds, say=say)
        return [
            ratio_of(what, costs[ours.name], side.name, costs[side.name], bound)
            for side, bound in bounds.items()
        ]

    return Case(name, measure)


def ratio_of(what: str, ours: Sequence[Cost], name: str, theirs: Sequence[Cost], bound: str) -> Figure:
    """Return the ratios of our rates to theirs, round by round."""
    spread = Spread.of(our.rate / their.rate for our, their in zip(ours, theirs, strict=True))
    rates = " against ".join(
        f"{Spread.of(cost.rate for cost in side).median:,.0f}" for side in (ours, theirs)
    )
    return Figure(what, name, spread, bound=bound, detail=f"{rates} steps/s")


def parent_share(name: str, what: str, side: Side, bound: str) -> Case:
    """Return a case: the fraction of a core that the parent uses while its workers run at full rate."""

    def measure(pairs: int, seconds: float, say: Say) -> list[Figure]:
        costs = rounds([side], pairs=pairs, seconds=seconds, say=say)[side.name]
        return [Figure(what, "", Spread.of(cost.parent_share for cost in costs), "core", bound)]

    return Case(name, measure)


def duration(name: str, what: str, seconds_of: Callable[[], float], bound: str) -> Case:
    """Return a case: the time of a short command, after one warm-up run that fills the file caches."""

    def measure(pairs: int, seconds: float, say: Say) -> list[Figure]:
        del seconds
        times = [seconds_of() for _ in range(pairs + 1)][1:]
        say(f"  {name}: {Spread.of(times)} s")
        return [Figure(what, "", Spread.of(times), "s", bound)]

    return Case(name, measure)


def _until_first_episode() -> float:
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "note"
        command = collect("--env", "benchmarks.probes:first_episode").command(1000, Path(folder) / "out")
        started = time.monotonic_ns()
        run(command, environment={NOTE: str(note)})
        return (int(note.read_text(encoding="ascii")) - started) / 1e9


def memory(name: str, what: str, side: Side) -> Case:
    """Return a case: the largest process's peak memory after 10^5, 10^6 and 10^7 steps."""

    def measure(pairs: int, seconds: float, say: Say) -> list[Figure]:
        del pairs, seconds
        usages = {steps: take(side, steps) for steps in (10**5, 10**6, 10**7)}
        found = [usage.peak / 2**20 for usage in usages.values()]
        text = f"{found[0]:.0f}, {found[1]:.0f}, {found[2]:.0f} MB after 10^5, 10^6, 10^7 steps"
        say(f"  {name}: {text}")
        return [Figure(f"{what}: peak of the largest process", "", Spread.of(found[-1:]), "MB", "flat", text)]

    return Case(name, measure)


def ingest(name: str, what: str, kind: str, length: int) -> Case:
    """Return a case: episodes per second that the parent receives and writes, from workers with ready-made episodes."""
    side = collect("--worker-class", f"benchmarks.synthetic:{kind}", granule=length)

    def measure(pairs: int, seconds: float, say: Say) -> list[Figure]:
        costs = rounds([side], pairs=pairs, seconds=seconds, say=say)[side.name]
        busy = Spread.of(cost.parent_share for cost in costs).median
        return [
            Figure(
                what,
                "",
                Spread.of(cost.rate / length for cost in costs),
                "episodes/s",
                detail=f"parent {busy:.2f} core",
            )
        ]

    return Case(name, measure)


NATIVE = ("--vectorization", "native", "--envs-per-worker", str(N_NATIVE))


def _peer_case(peer: Peer, name: str) -> Case:
    one, many = {"random": ((), ()), "linear": (policy("linear"), policy("BatchedLinear"))}[name]
    sides = [collect(*one, name=f"rollout, {WORKERS} workers")]
    if peer.vector:
        sides.append(collect(*many, *NATIVE, name=f"rollout, native x{N_NATIVE}", granule=N_NATIVE))
    theirs = Side(peer.title, lambda steps, output: command_of(peer, name, steps, output), 1, self_timed=True)

    def measure(pairs: int, seconds: float, say: Say) -> list[Figure]:
        costs = rounds([*sides, theirs], pairs=pairs, seconds=seconds, say=say)
        title = f"{peer.title}, {peer.saves}"
        return [
            ratio_of(
                f"CartPole, {name}, saved: {side.name}", costs[side.name], title, costs[theirs.name], "ahead"
            )
            for side in sides
        ]

    return Case(f"peer-{peer.name}-{name}", measure, tags=("peers",))


CASES: tuple[Case, ...] = (
    ratio(
        "cartpole-linear",
        "CartPole, 500-step episodes, linear policy",
        collect(*policy("linear")),
        {loop("single", "CartPole-v1", "linear", "plain"): ">= 0.95"},
    ),
    ratio(
        "cartpole-mlp",
        "CartPole, 500-step episodes, numpy MLP",
        collect(*policy("mlp")),
        {loop("single", "CartPole-v1", "mlp", "plain"): ">= 0.95"},
    ),
    ratio(
        "cartpole-random",
        "CartPole, 22-step episodes, random actions",
        collect(),
        {
            loop("single", "CartPole-v1", "random", "seeded"): ">= 0.90",
            loop("single", "CartPole-v1", "random", "plain"): ">= 0.80",
        },
    ),
    ratio(
        "halfcheetah-random",
        "HalfCheetah-v5, random actions",
        collect("--env", "HalfCheetah-v5"),
        {loop("single", "HalfCheetah-v5", "random", "plain"): ">= 0.95"},
    ),
    ratio(
        "vec-torch-mlp",
        f"VecWorker x{N_ROWS}, torch MLP, 22-step episodes",
        collect(*policy("torch_mlp"), "--envs-per-worker", str(N_ROWS), granule=N_ROWS),
        {
            loop("batched", "CartPole-v1", "torch_mlp", "seeded", n_envs=N_ROWS): ">= 0.85",
            loop("batched", "CartPole-v1", "torch_mlp", "plain", n_envs=N_ROWS): "",
        },
    ),
    ratio(
        "native-random",
        f"native CartPole x{N_NATIVE}, one worker, random actions",
        collect(*NATIVE, granule=N_NATIVE, workers=1),
        {loop("native", "CartPole-v1", "random", "plain", n_envs=N_NATIVE, processes=1): ">= 0.45"},
    ),
    ratio(
        "native-mlp",
        f"native CartPole x{N_NATIVE}, one worker, numpy MLP",
        collect(*policy("BatchedMlp"), *NATIVE, granule=N_NATIVE, workers=1),
        {loop("native", "CartPole-v1", "BatchedMlp", "plain", n_envs=N_NATIVE, processes=1): ">= 0.80"},
    ),
    ratio(
        "pong-frames",
        "ALE Pong, RGB frames, random actions",
        collect("--env", PONG),
        {loop("single", PONG, "random", "seeded"): ">= 0.85", loop("single", PONG, "random", "plain"): ""},
    ),
    parent_share(
        "parent-cpu-linear",
        "parent's CPU, 2 workers, CartPole, linear",
        collect(*policy("linear")),
        "<= 0.12",
    ),
    parent_share("parent-cpu-random", "parent's CPU, 2 workers, CartPole, random", collect(), "<= 0.12"),
    parent_share(
        "parent-waits",
        "parent's CPU, 4 workers whose steps sleep 10 ms",
        collect("--env", "benchmarks.probes:Sleeping", workers=4),
        "<= 0.02",
    ),
    duration(
        "first-episode",
        "start of `rollout collect` to the first finished episode",
        _until_first_episode,
        "<= 0.6",
    ),
    duration("help", "rollout --help", lambda: run([executable(), "--help"]).wall, "<= 0.3"),
    memory("memory", "CartPole, random, 2 workers", collect()),
    memory(
        "memory-native", f"native CartPole x{N_NATIVE}, random", collect(*NATIVE, granule=N_NATIVE, workers=1)
    ),
    ingest("ingest-short", "ingest: 22-step episodes of 4 floats", "ShortEpisodes", 22),
    ingest("ingest-long", "ingest: 500-step episodes of 4 floats", "LongEpisodes", 500),
    ingest("ingest-images", "ingest: 250-frame episodes of 100 kB frames", "ImageEpisodes", 250),
    *(_peer_case(peer, name) for peer in PEERS for name in peer.policies),
)


def chosen(cases: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """Return the cases whose name matches a glob or whose tag is in `names`; without names, all but peers and JAX."""
    if not names:
        return [case for case in cases if not {"peers", "jax"} & {*case.tags}]
    return [
        case for case in cases if any(name in case.tags or fnmatchcase(case.name, name) for name in names)
    ]


def as_json(figure: Figure) -> dict[str, Any]:
    """Return a figure as a JSON object."""
    return {"what": figure.what, "against": figure.against, **asdict(figure.spread)} | {
        "unit": figure.unit,
        "bound": figure.bound,
        "detail": figure.detail,
    }
