"""Cases that compare steps a second: the product beside bare loops."""

from __future__ import annotations

from benchmarks.cases.comparison import Comparison
from benchmarks.product import WORKERS, bare, collect, module
from benchmarks.sides import Guess, Side


def policy(name: str) -> tuple[str, str]:
    """Return the options that choose a policy of `benchmarks.policies`."""
    return "--policy", f"benchmarks.policies:{name}"


def _batched_bare(n_envs: int, seeds: str) -> Side:
    def command(steps: int, _: object) -> list[str]:
        return [*module("bare_batched"), "CartPole-v1", seeds, str(n_envs), str(WORKERS), str(steps)]

    return Side(f"bare batched x{WORKERS}, {seeds}", command, n_envs * WORKERS, Guess(3.0, 100_000))


def _stepping(actions: str, n_envs: int) -> Side:
    def command(steps: int, _: object) -> list[str]:
        return [*module("bare_native"), "CartPole-v1", actions, str(n_envs), str(steps)]

    return Side("pure stepping", command, n_envs, Guess(0.4, 2_000_000))


NATIVE_ENVS = 1024
NATIVE = ("--vectorization", "native", "--envs-per-worker", str(NATIVE_ENVS))
NATIVE_GUESS = Guess(0.9, 1_000_000)
_NATIVE_OPTIONS = ("--vectorization", "--envs-per-worker")
_SLOTS = 16
_PONG = "ale_py:ALE/Pong-v5"

BARE_CASES: tuple[Comparison, ...] = (
    Comparison(
        "cartpole-linear",
        "CartPole, 500-step episodes, linear policy",
        collect(*policy("linear")),
        (bare("CartPole-v1", "linear", seeds="plain"),),
        ("0.95 / 1.00",),
    ),
    Comparison(
        "cartpole-mlp",
        "CartPole, 500-step episodes, numpy MLP",
        collect(*policy("mlp")),
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
        collect("--env", "HalfCheetah-v5", guess=Guess(1.5, 20_000)),
        (bare("HalfCheetah-v5", "random", seeds="plain", guess=Guess(1.0, 20_000)),),
        ("0.96 / 1.00",),
        modules=("mujoco",),
    ),
    Comparison(
        "vec-torch-mlp",
        f"VecWorker x{_SLOTS}, torch MLP 64x64, 22-step episodes",
        collect(*policy("torch_mlp"), "--envs-per-worker", str(_SLOTS), granule=_SLOTS, guess=Guess(3.0, 80_000)),
        (_batched_bare(_SLOTS, "seeded"), _batched_bare(_SLOTS, "plain")),
        ("0.90 / 0.97", "0.80 / 0.88"),
        options=("--envs-per-worker",),
        modules=("torch",),
    ),
    Comparison(
        "native-random",
        f"native CartPole, N = {NATIVE_ENVS}, one stepper, random policy",
        collect(*NATIVE, granule=NATIVE_ENVS, workers=1, guess=NATIVE_GUESS),
        (_stepping("random", NATIVE_ENVS),),
        ("0.62 / 0.80",),
        options=_NATIVE_OPTIONS,
    ),
    Comparison(
        "native-mlp",
        f"native CartPole, N = {NATIVE_ENVS}, one stepper, numpy MLP",
        collect(*policy("BatchedMlp"), *NATIVE, granule=NATIVE_ENVS, workers=1, guess=NATIVE_GUESS),
        (_stepping("mlp", NATIVE_ENVS),),
        ("0.90 / 0.97",),
        options=_NATIVE_OPTIONS,
    ),
    Comparison(
        "pong-frames",
        "ALE Pong, raw RGB frames, lossless, random policy",
        collect("--env", _PONG, guess=Guess(1.2, 3000)),
        (
            bare(_PONG, "random", seeds="seeded", guess=Guess(0.6, 3000)),
            bare(_PONG, "random", seeds="plain", guess=Guess(0.6, 3000)),
        ),
        ("0.85 / 0.95", ""),
        modules=("ale_py",),
    ),
)
