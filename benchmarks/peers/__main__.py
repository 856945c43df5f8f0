"""`python -m benchmarks.peers list | install NAME ... | check NAME ... | sweep NAME ...`; `all` is every peer.

Makes the environments of the peers, checks that each saves what it collects, and finds its best settings.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.registry import PEERS, Environment, Peer, find_peers
from benchmarks.sides import read_document
from benchmarks.usage import CommandError, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the peers and whether each can be run")
    install = commands.add_parser("install", help="install peers, each in an environment of its own")
    check = commands.add_parser("check", help="let peers collect a little, and read back what they saved")
    sweep = commands.add_parser("sweep", help="measure the settings of peers; about four minutes for all")
    for command in (install, check, sweep):
        command.add_argument("names", nargs="+", metavar="NAME|all")
    sweep.add_argument("--seconds", type=float, default=1.0, help="length of a run (default 1)")
    options = parser.parse_args(arguments)
    if options.command == "list":
        for peer in PEERS:
            print(f"{peer.name:16}  {peer.title}: {peer.missing or 'installed'}")
        return 0
    try:
        peers = find_peers(options.names)
    except ValueError as error:
        parser.error(str(error))
    if options.command == "sweep":
        return _print_sweeps(peers, options.seconds)
    if options.command == "check":
        # All are tried, whatever becomes of the first; and so below.
        checked = [_print_checks(peer) for peer in peers]
        return int(not all(checked))
    environments = dict.fromkeys(peer.environment for peer in peers)
    installed = [install_environment(environment) for environment in environments]
    return int(not all(installed))


def _print_sweeps(peers: Sequence[Peer], seconds: float) -> int:
    """Print a Markdown table of the steps a second with each setting; return 1 where a peer could not be run."""
    print("| peer | steps a second with each setting | set to |\n| --- | --- | --- |")
    fine = True
    for peer in peers:
        print(f"{peer.name}: sweeping", file=sys.stderr)
        try:
            told, best = sweep_settings(peer, seconds)
        except CommandError as error:
            fine = False
            told, best = f"failed: {error}".replace("\n", "; "), ""
        print(f"| {peer.title}, {peer.saves} | {told} | {best} |", flush=True)
    return int(not fine)


def sweep_settings(peer: Peer, seconds: float) -> tuple[str, str]:
    """Return the steps a second of a peer with each of its settings, fastest first, and what its driver is set to.

    Raises:
        CommandError: If it cannot be run, or fails.
    """
    if peer.missing:
        raise CommandError(peer.missing)
    document = read_document(run(peer.driver("--sweep", str(seconds))).output, "rates")
    rates = sorted(document["rates"], key=lambda pair: -pair[1])
    told = "; ".join(f"{_named(settings)}: {rate:,.0f}" for settings, rate in rates)
    return told or "one environment, nothing to set", _named(document["best"])


def _named(settings: dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


CHECKED_STEPS = 3000
FEWEST_COLUMNS = 3


def _print_checks(peer: Peer) -> bool:
    fine = True
    for policy in peer.policies:
        try:
            told = check_peer(peer, policy)
        except CommandError as error:
            fine = False
            told = f"failed: {error}"
        print(f"{peer.name} {policy}: {told}", flush=True)
    return fine


def check_peer(peer: Peer, policy: str) -> str:
    """Let a peer collect a little, and return what it saved.

    Raises:
        CommandError: If it cannot be run, fails, or its columns do not hold each step once.
    """
    if peer.missing:
        raise CommandError(peer.missing)
    with tempfile.TemporaryDirectory() as folder:
        used = run([*peer.command(policy, CHECKED_STEPS, Path(folder) / "out"), "--check"])
    document = read_document(used.output)
    steps, rows = document["steps"], document["rows"]
    told = f"{document['version']}, {steps} steps, "
    if rows is None and document["saved_bytes"] == 0:
        return f"{told}kept in memory"
    if steps < CHECKED_STEPS or len(rows or ()) < FEWEST_COLUMNS or {*rows.values()} != {steps}:
        raise CommandError(f"{told}but it saved {document['saved_bytes']} bytes with these rows: {rows}")
    return f"{told}{document['saved_bytes']} bytes with {', '.join(rows)}"


def install_environment(environment: Environment) -> bool:
    """Make an environment anew and install into it; on failure keep pip's reason and return False."""
    if environment.marker.exists():
        print(f"{environment.name}: installed already, in {environment.folder}")
        return True
    print(f"{environment.name}: installing into {environment.folder}", flush=True)
    shutil.rmtree(environment.folder, ignore_errors=True)
    venv.create(environment.folder, with_pip=True)
    for requirements in environment.steps:
        reason = _pip(environment, *requirements)
        if reason:
            environment.failure.write_text(f"pip install {' '.join(requirements)}: {reason}\n", encoding="utf-8")
            print(f"{environment.name}: could not be installed: {reason}", file=sys.stderr)
            return False
    environment.failure.unlink(missing_ok=True)
    environment.marker.write_text("\n".join(" ".join(step) for step in environment.steps) + "\n", encoding="utf-8")
    return True


def _pip(environment: Environment, *requirements: str) -> str | None:
    command = [str(environment.python), "-m", "pip", "install", "--quiet", *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    # pip closes with advice; the error itself stands before it.
    raised = [line for line in lines if re.match(r"[\w.]*(Error|ERROR):", line)]
    return (raised or lines or ["pip said nothing"])[-1]


if __name__ == "__main__":
    sys.exit(main())
