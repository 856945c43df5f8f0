"""Draw the pictures of the README from what the commands really print: `python docs/images/draw.py`.

Each command runs in a terminal of its own (a pseudo-terminal of 92 columns), in a temporary folder, whose name is
written as /home/you. Of a line that is drawn over and over, such as a progress bar, the picture shows one frame of the
middle, and the last one.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
WIDTH = 92

PICTURES = {
    "collect": ["rollout collect --timesteps 1e6 --seed 0 --output cartpole"],
    "look": ["rollout plot cartpole returns"],
}
"""By the name of a picture, the commands that it shows; those before it have run."""

# The frame and the colours of rich's own template, without the fonts that it would fetch.
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def printed(command: str, folder: Path) -> str:
    """Return all that a command writes to a terminal; raise SystemExit where it fails."""
    words = [sys.executable, "-m", "rollout_cli", *shlex.split(command)[1:]]
    process, terminal = pty.fork()
    if not process:
        os.chdir(folder)
        os.environ |= {"COLUMNS": str(WIDTH), "TERM": "xterm-256color", "PYTHONPATH": str(HERE.parents[1])}
        os.execv(words[0], words)  # noqa: S606 - our own command
    output = b""
    while block := _read(terminal):
        output += block
    if os.waitpid(process, 0)[1]:
        raise SystemExit(f"{command} failed:\n{output.decode()}")
    return output.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # The other end is closed.
        return b""


def lines_of(output: str) -> list[str]:
    """Return the lines that stay on the screen; of one that was drawn again, the middle and the last frame."""
    lines = []
    for line in re.sub(r"\x1b\[\?25[lh]", "", output).rstrip().split("\r\n"):
        frames = [frame for frame in line.split("\r\x1b[2K") if frame.strip()]
        lines += [*frames[:-1][len(frames) * 2 // 3 :][:1], *frames[-1:]]
    return lines


def main() -> None:
    """Draw all pictures."""
    with tempfile.TemporaryDirectory() as folder:
        for name, commands in PICTURES.items():
            console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
            for command in commands:
                console.print(Text(f"$ {command}", style="bold"))
                for line in lines_of(printed(command, Path(folder)).replace(folder, "/home/you")):
                    console.print(Text.from_ansi(line))
            svg = console.export_svg(title="", code_format=_FORMAT, unique_id=name)
            (HERE / f"{name}.svg").write_text(svg)


if __name__ == "__main__":
    main()
