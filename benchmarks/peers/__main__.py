"""`python -m benchmarks.peers list | install NAME ... | install all`: makes the environments of the peers."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv

from benchmarks.peers.registry import PEERS, Environment, find_peers


def main() -> int:
    """Run one command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the peers and whether each can be run")
    install = commands.add_parser("install", help="install peers, each in an environment of its own")
    install.add_argument("names", nargs="+", metavar="NAME|all")
    arguments = parser.parse_args()
    if arguments.command == "list":
        for peer in PEERS:
            print(f"{peer.name:16}  {peer.title}: {peer.missing or 'installed'}")
        return 0
    try:
        peers = find_peers(arguments.names)
    except ValueError as error:
        parser.error(str(error))
    environments = dict.fromkeys(peer.environment for peer in peers)
    # All are tried, whatever becomes of the first.
    return int(not all([install_environment(environment) for environment in environments]))


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
    errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    return (errors or done.stderr.splitlines() or ["pip said nothing"])[-1].strip()


if __name__ == "__main__":
    sys.exit(main())
