"""Cases that compare steps a second: the product beside bare loops, and beside its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.pairs import Settings, Side, alternate
from benchmarks.peers.registry import PEERS, Peer
from benchmarks.product import WORKERS, bare, collect, missing, module
from benchmarks.report import number
from benchmarks.results import Result, Row
from benchmarks.stats import Cost, Spread, paired_ratios


@dataclass(frozen=True, slots=True)
class Comparison:
    """The product's rate over that of one or more other sides.

    Attributes:
        name: Its name.
        title: What the table calls the work.
        ours: The product's side.
        others: The sides that it is compared with.
        goals: What each ratio should be.
        options: Options of the product that it needs.
        modules: Importable modules that it needs.
        obstacle: Gives a further reason why it cannot be run, if there is one.
    """

    name: str
    title: str
    ours: Side
    others: tuple[Side, ...]
    goals: tuple[str, ...]
    options: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    obstacle: Callable[[], str | None] = field(default=lambda: None)

    def missing(self) -> str | None:
        """Return why it cannot be run here."""
        return self.obstacle() or missing(self.options, self.modules)

    def measure(self, settings: Settings) -> Result:
        """Run all sides in turn."""
        costs = alternate((self.ours, *self.others), settings)
        ours = costs[self.ours.name]
        rows = tuple(
            Row(
                what=self.title,
                against=other.name,
                figure=Spread.of(paired_ratios(_rates(ours), _rates(costs[other.name]))),
                detail=f"{describe(ours)} against {describe(costs[other.name])}",
                goal=goal,
            )
            for other, goal in zip(self.others, self.goals, strict=True)
        )
        raw = {name: [asdict(cost) for cost in side] for name, side in costs.items()}
        return Result(self.name, rows, raw=raw)


def _rates(costs: Sequence[Cost]) -> list[float]:
    return [cost.rate for cost in costs]


def describe(costs: Sequence[Cost]) -> str:
    """Return the medians of a side: rate, wall and CPU a step."""
    rate, wall, main, others = (
        number(Spread.of(getattr(cost, name) for cost in costs).median)
        for name in ("rate", "wall_us", "main_us", "others_us")
    )
    return f"{rate} steps/s ({wall} µs wall, {main} + {others} µs CPU a step)"


def _policy(name: str) -> tuple[str, str]:
    return "--policy", f"benchmarks.policies:{name}"


def _batched_bare(n_envs: int, seeds: str) -> Side:
    def command(steps: int, _: object) -> list[str]:
        return [*module("bare_batched"), "CartPole-v1", seeds, str(n_envs), str(WORKERS), str(steps)]

    return Side(f"bare batched x{WORKERS}, {seeds}", command, n_envs * WORKERS)


def _stepping(policy: str, n_envs: int) -> Side:
    def command(steps: int, _: object) -> list[str]:
        return [*module("bare_native"), "CartPole-v1", policy, str(n_envs), str(steps)]

    return Side("pure stepping", command, n_envs)


_NATIVE_ENVS = 1024
_NATIVE = ("--vectorization", "native", "--envs-per-worker", str(_NATIVE_ENVS))
_NATIVE_OPTIONS = ("--vectorization", "--envs-per-worker")
_SLOTS = 16
_PONG = "ale_py:ALE/Pong-v5"

BARE_CASES: tuple[Comparison, ...] = (
    Comparison(
        "cartpole-linear",
        "CartPole, 500-step episodes, linear policy",
        collect(*_policy("linear")),
        (bare("CartPole-v1", "linear", seeds="plain"),),
        ("0.95 / 1.00",),
    ),
    Comparison(
        "cartpole-mlp",
        "CartPole, 500-step episodes, numpy MLP",
        collect(*_policy("mlp")),
        (bare("CartPole-v1", "mlp", seeds="plain"),),
        ("0.95 / 1.00",),
    ),
    Comparison(
        "cartpole-random",
        "CartPole, 22-step episodes, random policy",
        collect(),
        (bare("CartPole-v1", "random", seeds="seeded"), bare("CartPole-v1", "random", seeds="plain")),
        ("0.92 / 1.00", "0.82 / 0.90"),
    ),
    Comparison(
        "halfcheetah-random",
        "HalfCheetah-v5 (mujoco), random policy",
        collect("--env", "HalfCheetah-v5"),
        (bare("HalfCheetah-v5", "random", seeds="plain"),),
        ("0.96 / 1.00",),
        modules=("mujoco",),
    ),
    Comparison(
        "vec-torch-mlp",
        f"VecWorker x{_SLOTS}, torch MLP 64x64, 22-step episodes",
        collect(*_policy("torch_mlp"), "--envs-per-worker", str(_SLOTS), granule=_SLOTS),
        (_batched_bare(_SLOTS, "seeded"), _batched_bare(_SLOTS, "plain")),
        ("0.90 / 0.97", "0.80 / 0.88"),
        options=("--envs-per-worker",),
        modules=("torch",),
    ),
    Comparison(
        "native-random",
        f"native CartPole, N = {_NATIVE_ENVS}, one stepper, random policy",
        collect(*_NATIVE, granule=_NATIVE_ENVS, workers=1),
        (_stepping("random", _NATIVE_ENVS),),
        ("0.62 / 0.80",),
        options=_NATIVE_OPTIONS,
    ),
    Comparison(
        "native-mlp",
        f"native CartPole, N = {_NATIVE_ENVS}, one stepper, numpy MLP",
        collect(*_policy("BatchedMlp"), *_NATIVE, granule=_NATIVE_ENVS, workers=1),
        (_stepping("mlp", _NATIVE_ENVS),),
        ("0.90 / 0.97",),
        options=_NATIVE_OPTIONS,
    ),
    Comparison(
        "pong-frames",
        "ALE Pong, raw RGB frames, lossless, random policy",
        collect("--env", _PONG),
        (bare(_PONG, "random", seeds="plain"),),
        ("0.85 / 0.95",),
        modules=("ale_py",),
    ),
)


def _peer_case(peer: Peer, policy: str) -> Comparison:
    def command(steps: int, output: Path) -> list[str]:
        return peer.command(policy, steps, output)

    return Comparison(
        f"peer-{peer.name}" if policy == "random" else f"peer-{peer.name}-{policy}",
        f"CartPole, {policy} policy, collected and saved",
        collect(*(() if policy == "random" else _policy(policy))),
        (Side(f"{peer.title}, {peer.saves}", command, peer.granule),),
        ("ahead / 5",),
        obstacle=lambda: peer.missing,
    )


PEER_CASES: tuple[Comparison, ...] = tuple(_peer_case(peer, policy) for peer in PEERS for policy in peer.policies)
