"""The folder of a dataset: where a new one may be made, and reading and writing info.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.foreign import OURS, REPLACED, foreign_entry
from rollout_cli.dataset.limits import check_inside, read_json
from rollout_cli.dataset.lock import LOCK_NAME
from rollout_cli.dataset.schema import FORMAT, FORMAT_VERSION
from rollout_cli.errors import DatasetExistsError, DatasetFormatError, StorageError


def info_path(root: Path) -> Path:
    """Return where info.json lives."""
    return root / "meta" / "info.json"


def write_json(files: FileStore, path: Path, document: Mapping[str, Any]) -> None:
    """Put `document` in place of the file `path`, all of it or nothing."""
    files.make_folder(path.parent)
    files.replace(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())


def read_info(root: Path) -> dict[str, Any]:
    """Return the info.json of the dataset in `root`.

    Raises:
        DatasetFormatError: If there is no dataset of this format.
        StorageError: If it cannot be read.
    """
    path = info_path(root)
    try:
        check_inside(root, path)
        document = read_json(path)
    except FileNotFoundError as error:
        raise DatasetFormatError(f"{root} is not a dataset: it has no meta/info.json") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DatasetFormatError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DatasetFormatError(f"{path} does not describe a dataset of the format {FORMAT!r}")
    _check_version(path, document.get("format_version"))
    return document


def _check_version(path: Path, version: Any) -> None:
    if not isinstance(version, int):
        raise DatasetFormatError(f"{path} has no format_version")
    if version > FORMAT_VERSION:
        raise DatasetFormatError(
            f"{path} has format version {version}, but this program reads versions up to {FORMAT_VERSION}",
            hint="install a newer rollout-cli",
        )


def is_unbegun(root: Path) -> bool:
    """Return whether `root` holds no dataset, and no file but what a run leaves that was killed before it began one.

    Raises:
        DatasetExistsError: If it is a file.
        StorageError: If it cannot be read.
    """
    if not _names(root):
        return True
    try:
        files = [path for path in root.rglob("*") if not path.is_dir() and path.name != LOCK_NAME]
        return all(path.name.endswith(".tmp") for path in files) and foreign_entry(root) is None
    except OSError as error:
        raise StorageError(f"cannot read {root}: {error.strerror or error}") from error


def check_folder(root: Path, *, overwrite: bool) -> None:
    """Check that `root` may become the folder of a new dataset; nothing is changed.

    Raises:
        DatasetExistsError: If something is there that may not be replaced.
        StorageError: If the folder cannot be read.
    """
    names = _names(root)
    if names and not overwrite:
        raise DatasetExistsError(
            f"{root} exists and is not empty", hint="choose another --output, or replace a dataset with --overwrite"
        )
    if names:
        _check_replaceable(root, names)


def prepare_folder(files: FileStore, root: Path, *, overwrite: bool) -> None:
    """Make `root` an empty folder for a new dataset; what it replaces is moved to `REPLACED` inside it.

    Raises:
        DatasetExistsError: If something is there that may not be replaced.
        StorageError: If the folder cannot be read or made.
    """
    check_folder(root, overwrite=overwrite)
    names = _names(root)
    if names:
        _move_aside(files, root, names)
    files.make_folder(root)


def _names(root: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in root.iterdir() if entry.name != LOCK_NAME)
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise DatasetExistsError(f"{root} is a file", hint="choose another --output") from error
    except OSError as error:
        raise StorageError(f"cannot read {root}: {error.strerror or error}") from error


def _check_replaceable(root: Path, names: list[str]) -> None:
    _check_place(root)
    try:
        foreign = foreign_entry(root)
    except OSError as error:
        raise StorageError(f"cannot read {root}: {error.strerror or error}") from error
    if foreign is not None:
        raise DatasetExistsError(
            f"{root} holds {foreign!r}, which no dataset of ours has",
            hint="move it away, or choose another --output",
        )
    _check_ours(root, names)


def _check_place(root: Path) -> None:
    """Refuse to replace what the user lives or stands in, whatever it holds."""
    folder = root.resolve()
    for what, place in (("working", Path.cwd()), ("home", Path("~").expanduser())):
        if place.resolve().is_relative_to(folder):
            where = "is" if place.resolve() == folder else "holds"
            raise DatasetExistsError(
                f"{root} {where} the {what} folder, so it is not replaced", hint="choose another --output"
            )


def _move_aside(files: FileStore, root: Path, names: list[str]) -> None:
    aside = root / REPLACED
    ours = [name for name in OURS if name in names]
    if REPLACED in names and not info_path(root).exists():
        # An earlier try ended before its new dataset had begun; the old one waits in `aside`.
        for name in ours:
            files.remove(root / name)
        return
    if REPLACED in names:
        files.remove(aside)
    files.make_folder(aside)
    for name in ours:  # Until `meta` has moved, as the last, a second try sees here that this is ours.
        files.move(root / name, aside / name)


def _check_ours(root: Path, names: list[str]) -> None:
    try:
        read_info(root if info_path(root).exists() or REPLACED not in names else root / REPLACED)
    except DatasetFormatError as error:
        raise DatasetExistsError(
            f"{root} is not a dataset of ours, so it is not replaced: {error.message}", hint="choose another --output"
        ) from error


def remove_dataset(files: FileStore, root: Path, *, with_folder: bool) -> None:
    """Remove a dataset of ours and nothing else.

    Args:
        files: The disk.
        root: Its folder.
        with_folder: Whether the folder goes too, if nothing else is in it.
    """
    for name in OURS:
        files.remove(root / name)
    if with_folder and not _names(root):
        files.remove(root)


def remove_replaced(files: FileStore, root: Path) -> None:
    """Remove the dataset that was replaced, now that the new one has its info.json."""
    if (root / REPLACED).exists():
        files.remove(root / REPLACED)
