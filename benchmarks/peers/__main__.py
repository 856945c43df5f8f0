"""`python -m benchmarks.peers list | install NAME ... | install all | sweep NAME ...`.

Makes the environments of the peers, and finds how many environments each should step at once.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from benchmarks.pairs import Settings, Side, alternate
from benchmarks.peers.registry import PEERS, Environment, Peer, find_peers
from benchmarks.stats import Spread
from benchmarks.usage import CommandError

WIDTHS = (1, 2, 4, 8, 16, 64, 256)


def main() -> int:
    """Run one command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the peers and whether each can be run")
    install = commands.add_parser("install", help="install peers, each in an environment of its own")
    install.add_argument("names", nargs="+", metavar="NAME|all")
    sweep = commands.add_parser("sweep", help="measure peers with several numbers of environments at once")
    sweep.add_argument("names", nargs="+", metavar="NAME|all")
    sweep.add_argument("--seconds", type=float, default=3.0, help="length of a long run (default 3)")
    sweep.add_argument("--pairs", type=int, default=3, help="rounds (default 3)")
    sweep.add_argument("--widths", type=int, nargs="+", default=WIDTHS, metavar="N", help="how many environments")
    arguments = parser.parse_args()
    if arguments.command == "list":
        for peer in PEERS:
            print(f"{peer.name:16}  {peer.title}: {peer.missing or 'installed'}")
        return 0
    try:
        peers = find_peers(arguments.names)
    except ValueError as error:
        parser.error(str(error))
    if arguments.command == "sweep":
        for peer in peers:
            print(sweep_widths(peer, arguments.widths, arguments.pairs, arguments.seconds), flush=True)
        return 0
    environments = dict.fromkeys(peer.environment for peer in peers)
    # All are tried, whatever becomes of the first.
    installed = [install_environment(environment) for environment in environments]
    return int(not all(installed))


def sweep_widths(peer: Peer, widths: list[int], pairs: int, seconds: float) -> str:
    """Return a line with the peer's median steps a second for each number of environments."""
    if peer.missing:
        return f"{peer.name}: {peer.missing}"

    def side(width: int) -> Side:
        return Side(str(width), lambda steps, output: peer.command("random", steps, output, width), peer.granule)

    with tempfile.TemporaryDirectory() as scratch:
        settings = Settings(pairs, seconds, Path(scratch), lambda _: None)
        try:
            costs = alternate([side(width) for width in widths], settings)
        except CommandError as error:
            return f"{peer.name}: failed: {error}"
    rates = {width: Spread.of(cost.rate for cost in costs[str(width)]).median for width in widths}
    return f"{peer.name}: " + ", ".join(f"{width}: {rate:,.0f}" for width, rate in rates.items())


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
