"""Files that code is loaded from: what is read, and whom else they belong to."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from rollout_cli.errors import PolicyLoadError
from rollout_cli.file_trust import others_who_may_write, read_bytes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that only its owner may write, in a folder of the same kind."""
    (tmp_path / "mine").mkdir(mode=0o755)
    path = tmp_path / "mine" / "p.pkl"
    path.write_bytes(b"N.")
    path.chmod(0o644)
    return path


def test_a_file_of_ones_own(file: Path) -> None:
    """Nobody else may write it; one that is missing is somebody else's error."""
    assert others_who_may_write(file) is None
    assert others_who_may_write(file.with_name("absent.pkl")) is None


def test_everybody_may_write(file: Path) -> None:
    """The file's own mode is told first, then its folder's, then that of a link to it."""
    link = file.parent.parent / "links" / "link.pkl"
    link.parent.mkdir()
    link.symlink_to(file)
    link.parent.chmod(0o777)
    assert f"its folder {link.parent} may be written by everybody" == others_who_may_write(link)
    file.parent.chmod(0o777)
    assert f"its folder {file.parent} may be written by everybody" == others_who_may_write(file)
    file.chmod(0o666)
    assert "it may be written by everybody" == others_who_may_write(file)


def test_a_sticky_folder_is_safe(file: Path) -> None:
    """In /tmp nobody can put another file in the place of one's own."""
    file.parent.chmod(0o1777)
    assert others_who_may_write(file) is None


@pytest.mark.parametrize(
    ("group", "members", "told"),
    [
        ("lab", [], "it may be written by the group lab"),
        ("me", [], None),
        ("me", ["me"], None),
        ("me", ["me", "you"], "it may be written by the group me"),
    ],
)
def test_a_group_may_write(
    file: Path, monkeypatch: pytest.MonkeyPatch, group: str, members: list[str], told: str | None
) -> None:
    """Unless it is the owner's own group, which many systems give each user."""
    user = pwd.getpwuid(os.getuid())
    monkeypatch.setattr("pwd.getpwuid", lambda _: type(user)(("me", *user[1:])))
    monkeypatch.setattr("grp.getgrgid", lambda number: grp.struct_group((group, "x", number, members)))
    file.chmod(0o664)
    assert told == others_who_may_write(file)


def test_another_users_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner may change it, whatever its mode; root may change anything anyway."""
    owner = file.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 12345)
    told = others_who_may_write(file)
    assert (told is None) == (owner == 0)
    assert owner == 0 or (told or "").startswith("it belongs to the user")


def test_what_is_read_is_a_regular_file(tmp_path: Path) -> None:
    """A pipe that nobody writes to, and a device without an end, are refused at once."""
    os.mkfifo(tmp_path / "pipe.pkl")
    (tmp_path / "zeros.pkl").symlink_to("/dev/zero")
    for name in ("pipe.pkl", "zeros.pkl"):
        with pytest.raises(PolicyLoadError, match="is not a regular file"):
            read_bytes(str(tmp_path / name), PolicyLoadError)
    with pytest.raises(PolicyLoadError, match="cannot be read"):
        read_bytes("a\0b.pkl", PolicyLoadError)


def test_too_large(file: Path) -> None:
    """A limit is told with the file's size, and a file of just that size is read."""
    with pytest.raises(PolicyLoadError, match="it has 2 bytes") as caught:
        read_bytes(str(file), PolicyLoadError, most=1)
    assert "at most 1 bytes" in caught.value.hint
    assert b"N." == read_bytes(str(file), PolicyLoadError, most=2)
