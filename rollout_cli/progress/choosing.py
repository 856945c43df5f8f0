"""Which progress suits a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from rollout_cli.progress.bar import RichProgress
from rollout_cli.progress.lines import LineProgress, MessageProgress
from rollout_cli.progress.protocol import NullProgress
from rollout_cli.progress.streams import forgiving, is_rich_terminal


def choose_progress(
    stream: TextIO | None, *, wanted: bool | None, quiet: bool, environ: Mapping[str, str]
) -> NullProgress | RichProgress:
    """Return what suits the stream: a bar on a terminal, lines elsewhere.

    Args:
        stream: Where it is shown, as far as it can be written to; None for nowhere.
        wanted: True and False decide; None shows progress.
        quiet: Show warnings only, whatever is wanted.
        environ: `TERM=dumb` makes a terminal one without bars. (`NO_COLOR` is honoured by rich itself.)
    """
    if stream is None:
        return NullProgress()
    shown = forgiving(stream)
    if quiet:
        return MessageProgress(shown, notices=False)
    if wanted is False:
        return MessageProgress(shown)
    return RichProgress(shown) if is_rich_terminal(stream, environ) else LineProgress(shown)
