"""How a run tells that it gets on, behind a small protocol: nothing, messages only, lines, or a bar on a terminal.

The use case speaks to a `Progress` and knows no stream; clocks and streams are given, so that tests need neither time
nor a terminal. rich is imported only where a bar is drawn, and not before.
"""

from rollout_cli.escaping import printable
from rollout_cli.progress.bar import RichProgress
from rollout_cli.progress.choosing import choose_progress
from rollout_cli.progress.lines import LineProgress, MessageProgress
from rollout_cli.progress.protocol import NullProgress, Progress
from rollout_cli.progress.streams import is_rich_terminal

__all__ = [
    "LineProgress",
    "MessageProgress",
    "NullProgress",
    "Progress",
    "RichProgress",
    "choose_progress",
    "is_rich_terminal",
    "printable",
]
