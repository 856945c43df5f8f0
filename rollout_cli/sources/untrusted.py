"""What strangers' files hold: strings made safe to show, claims of size checked."""

from __future__ import annotations

import os
import shlex

from rollout_cli.errors import DatasetFormatError
from rollout_cli.redact import without_secrets


def printable(text: str, *, keep: str = "") -> str:
    """Return `text` without secrets, and with control characters and the like as escapes, except `keep`."""
    text = without_secrets(text)
    for char in set(text).difference(keep):
        if not char.isprintable():
            text = text.replace(char, char.encode("unicode_escape").decode())
    return text


def one_line(text: str) -> str:
    """Return `text` on one line, its line breaks as spaces, otherwise as `printable` gives it."""
    return printable(" ".join(text.splitlines()))


def shell_word(path: object) -> str:
    """Return a path as a shell takes it; one that begins with a dash is no option."""
    text = printable(str(path))
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def check_size(name: object, n_bytes: int) -> None:
    """Raise DatasetFormatError if a file claims more than `ROLLOUT_MEMORY_LIMIT` bytes, or 1 GiB."""
    text = os.environ.get("ROLLOUT_MEMORY_LIMIT", "")
    limit = int(text) if text.isdecimal() else 1 << 30
    if n_bytes > limit:
        raise DatasetFormatError(
            f"{name} unpacks to {n_bytes:,} bytes; expected at most {limit:,}",
            code="unpacked-size",
            hint=f"if you trust the dataset, set ROLLOUT_MEMORY_LIMIT={n_bytes}",
        )
