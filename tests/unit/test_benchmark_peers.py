"""Peers of the benchmarks: finding, checking and sweeping them. None is run."""

import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks import usage
from benchmarks.cases.peers import PEER_CASES
from benchmarks.peers.__main__ import check_peer, sweep_settings
from benchmarks.peers.registry import PEERS, Environment, Peer, find_peers
from benchmarks.sides import Guess

ROOT = Path(__file__).resolve().parents[2]


def test_peers_are_found_by_name() -> None:
    """`all` is every peer; an unknown name is refused, with the names that there are."""
    assert list(PEERS) == find_peers(["all"])
    assert ["minari"] == [peer.name for peer in find_peers(["minari"])]
    with pytest.raises(ValueError, match="there is no peer garage; there are gymnasium-async"):
        find_peers(["garage"])


def test_every_peer_has_a_driver() -> None:
    """The module that each peer names is there."""
    drivers = ROOT / "benchmarks" / "peers"
    assert [] == [peer.name for peer in PEERS if not (drivers / f"{peer.module}.py").is_file()]


def test_sides_of_one_name_in_a_batch_are_one_side() -> None:
    """What is run once for several cases is the same command in all of them, and each peer is run by one case."""
    out = Path("out")
    for batch in {case.batch for case in PEER_CASES}:
        sides = [side for case in PEER_CASES if case.batch == batch for side in case.sides]
        commands = {(side.name, *side.command(1024, out)) for side in sides}
        assert len({side.name for side in sides}) == len(commands)
    assert len(PEER_CASES) == len({(case.batch, other.name) for case in PEER_CASES for other in case.others})


def _installed_peer(folder: Path, monkeypatch: pytest.MonkeyPatch, document: dict[str, object]) -> Peer:
    """Return a peer whose driver prints a document."""
    monkeypatch.setenv("ROLLOUT_BENCHMARKS_CACHE", str(folder))
    peer = Peer("fake", "Fake", Environment("fake", ()), "fake", "mode", "saves", guess=Guess())
    peer.environment.folder.mkdir()
    peer.environment.marker.touch()
    told = usage.Usage(1.0, 0.0, 0.0, 0, 0, json.dumps(document))
    monkeypatch.setattr("benchmarks.peers.__main__.run", lambda _command: told)
    return peer


_SAVED = {"steps": 3008, "version": "fake 1.0", "saved_bytes": 9}


@pytest.mark.parametrize(
    "rows", [None, {}, {"obs": 3008, "act": 3008}, {"obs": 3008, "act": 3008, "rew": 3007, "terminated": 3008}]
)
def test_a_peer_that_did_not_save_every_step_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: dict[str, int] | None
) -> None:
    """A column that is short, too few columns, or a file that is not read back fail the check."""
    peer = _installed_peer(tmp_path, monkeypatch, {**_SAVED, "rows": rows})
    with pytest.raises(usage.CommandError, match="3008 steps, but it saved 9 bytes with these rows"):
        check_peer(peer, "random")


def test_a_peer_that_saved_every_step_passes_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told names its version, steps and columns."""
    rows = {"obs": 3008, "act": 3008, "rew": 3008}
    peer = _installed_peer(tmp_path, monkeypatch, {**_SAVED, "rows": rows})
    assert "fake 1.0, 3008 steps, 9 bytes with obs, act, rew" == check_peer(peer, "random")


def test_a_sweep_names_the_fastest_settings_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings stand with their rates, beside what the driver is set to."""
    rates = [[{"envs": 1}, 1000.0], [{"envs": 8, "processes": 2}, 12_345.6]]
    peer = _installed_peer(tmp_path, monkeypatch, {"best": {"envs": 1}, "rates": rates})
    assert ("envs=8 processes=2: 12,346; envs=1: 1,000", "envs=1") == sweep_settings(peer, 1.0)


def test_a_peer_that_is_not_installed_is_neither_checked_nor_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both say how to install it."""
    monkeypatch.setenv("ROLLOUT_BENCHMARKS_CACHE", str(tmp_path))
    for action in (partial(check_peer, PEERS[0], "random"), partial(sweep_settings, PEERS[0], 1.0)):
        with pytest.raises(usage.CommandError, match=r"not installed: python -m benchmarks\.peers install"):
            action()


def test_torch_is_named_in_every_step_after_its_own() -> None:
    """No package may bring another build of it."""
    for environment in {peer.environment for peer in PEERS}:
        first, *later = environment.steps
        assert [] == [step for step in later if first[0] not in step]
