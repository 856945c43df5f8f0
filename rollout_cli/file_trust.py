"""Files that code is loaded from: reading them, and who but their user may change them."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from rollout_cli.errors import UserCodeError


def read_bytes(path: str, kind: type[UserCodeError], *, most: int | None = None) -> bytes:
    """Return a file's bytes.

    Pipes and devices are refused: opening or reading one may never end.

    Args:
        path: The file.
        kind: The class of the errors.
        most: How many bytes it may have; None for any number.

    Raises:
        UserCodeError: Of `kind`, if it cannot be read, is no regular file, or is too large.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise kind(f"{path!r} is not a regular file", hint="copy what it gives into a file, and name that")
            if most is not None and status.st_size > most:
                hint = f"at most {most:,} bytes are read"
                raise kind(f"{path!r} is too large: it has {status.st_size:,} bytes", hint=hint)
            return file.read()
    except FileNotFoundError as error:
        hint = f"paths are relative to the working folder, {Path.cwd()}"
        raise kind(f"there is no file {path!r}", hint=hint) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise kind(f"{path!r} cannot be read: {reason}", hint="check that it is a readable file") from error


def _open_at_once(path: str, flags: int) -> int:
    # Opening a pipe would else wait for somebody to write into it.
    return os.open(path, flags | os.O_NONBLOCK)


def others_who_may_write(path: Path) -> str | None:
    """Return who but its user may change a file, or put another in its place, as the end of a sentence.

    Looked at are the file, the folder that it lies in, and that of a symbolic link to it. Root may write anything
    anyway, and a folder with the sticky bit (`/tmp`) lets nobody replace another's file. None where all is well, and
    for a file that is not there.
    """
    places = [("it", path)] + [(f"its folder {folder}", folder) for folder in _folders(path)]
    for what, place in places:
        try:
            status = place.stat()
        except OSError:
            return None
        who = _who(status)
        if who is not None:
            return f"{what} {who}"
    return None


def _folders(path: Path) -> list[Path]:
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a link is not followed here: its own folder counts too
    return list(dict.fromkeys([absolute.parent, absolute.resolve().parent]))


def _who(status: os.stat_result) -> str | None:
    if status.st_uid not in {os.geteuid(), 0}:
        return f"belongs to {_user_name(status.st_uid)}"
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "may be written by everybody"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status):
        return f"may be written by the group {_group_name(status.st_gid)}"
    return None


def _is_own_group(status: os.stat_result) -> bool:
    """Return whether nobody but the owner and root is in the file's group, as where each user has one of his own."""
    try:
        owner, group = pwd.getpwuid(status.st_uid).pw_name, grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return group.gr_name in {owner, "root"} and set(group.gr_mem) <= {owner, "root"}


def _user_name(number: int) -> str:
    try:
        return f"the user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"the user with number {number}"


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return f"with number {number}"
