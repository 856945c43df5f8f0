"""Protection against untrusted files: strings are escaped for display, and claimed sizes are checked."""

from __future__ import annotations

import os
import shlex

from rollout_cli.errors import DatasetFormatError
from rollout_cli.redact import without_secrets


def printable(text: str, *, keep: str = "") -> str:
    """Return `text` without secrets, and with non-printable characters escaped, except the characters `keep`."""
    text = without_secrets(text)
    for char in set(text).difference(keep):
        if not char.isprintable():
            text = text.replace(char, char.encode("unicode_escape").decode())
    return text


def one_line(text: str) -> str:
    """Return `text` on one line, with spaces for line breaks, escaped like `printable`."""
    return printable(" ".join(text.splitlines()))


def shell_word(path: object) -> str:
    """Return a path quoted for a shell; a leading dash gets the prefix `./`, or it would be an option."""
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
            hint=f"set ROLLOUT_MEMORY_LIMIT={n_bytes} if you trust the dataset",
        )
