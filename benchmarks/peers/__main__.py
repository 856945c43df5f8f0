"""`python -m benchmarks.peers install|check [NAMES]`: the peers' environments."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from benchmarks.measure import CommandError, run
from benchmarks.peers import PEERS, READERS, Peer, command_of, environment_of, requirements_of


def install(peer: Peer) -> None:
    """Create the peer's virtual environment; install packages one at a time, to keep the installed torch build."""
    folder = environment_of(peer)
    if (folder / "installed").exists():
        return
    venv.create(folder, with_pip=True, clear=True)
    wanted: list[str] = []
    for requirement in requirements_of(peer):
        wanted.append(requirement)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", *wanted], check=True)
    (folder / "installed").touch()


def check(peer: Peer) -> None:
    """Collect a little."""
    with tempfile.TemporaryDirectory() as output:
        document = run(command_of(peer, peer.policies[-1], 2000, Path(output))).document
    print(f"{peer.name}: {document['version']}, {document['steps']} steps in {document['seconds']:.2f} s")


def main(action: str, names: list[str]) -> int:
    """Install or check the named peers, or all peers."""
    failed = False
    for peer in (*PEERS, *READERS):
        if names and peer.name not in names:
            continue
        try:
            {"install": install, "check": check}[action](peer)
        except (subprocess.CalledProcessError, CommandError) as error:
            failed = True
            print(f"{peer.name}: {error}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
