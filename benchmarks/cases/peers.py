"""Cases that compare steps a second with those of other tools: with one environment a worker, and natively vectorised.

Both sides of the product do the same work as a peer: the same environment and policy, every step recorded and saved.
"""

from __future__ import annotations

from functools import partial

from benchmarks.cases.comparison import Comparison
from benchmarks.cases.throughput import NATIVE, NATIVE_ENVS, NATIVE_GUESS, policy
from benchmarks.peers.registry import PEERS, Peer
from benchmarks.product import WORKERS, collect
from benchmarks.sides import Side

TOGETHER = 6
"""Peers in one batch: few enough for the product's run of a round to lie near that of each peer."""

_POLICIES = {"random": ((), ()), "linear": (policy("linear"), policy("BatchedLinear"))}
"""Options for one environment, and for many."""


def _peer_case(peer: Peer, name: str, batch: str) -> Comparison:
    one, many = _POLICIES[name]
    native = collect(
        *many,
        *NATIVE,
        name=f"rollout, native x{NATIVE_ENVS}, {WORKERS} workers",
        granule=NATIVE_ENVS,
        guess=NATIVE_GUESS,
    )
    return Comparison(
        f"peer-{peer.name}" if name == "random" else f"peer-{peer.name}-{name}",
        f"CartPole, {name} policy, collected and saved",
        collect(*one, name=f"rollout, {WORKERS} workers"),
        (Side(f"{peer.title}, {peer.saves}", partial(peer.command, name), 1, peer.guess, self_timed=True),),
        ("ahead / 5",),
        also=(native,) if peer.vector else (),
        obstacle=lambda: peer.missing,
        batch=batch,
    )


def _cases(name: str, peers: list[Peer]) -> list[Comparison]:
    return [_peer_case(peer, name, f"peers-{name}-{at // TOGETHER + 1}") for at, peer in enumerate(peers)]


PEER_CASES: tuple[Comparison, ...] = (
    *_cases("random", list(PEERS)),
    *_cases("linear", [peer for peer in PEERS if peer.also_linear]),
)
