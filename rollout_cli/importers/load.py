"""import_dataset(): one call writes a complete dataset of `rollout`, or nothing, from one of another tool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces

from rollout_cli.dataset.folder import staged
from rollout_cli.dataset.layout import info_path
from rollout_cli.errors import (
    ArgumentError,
    DatasetFormatError,
    RolloutError,
    UnsupportedSpaceError,
    UsageError,
    UserCodeError,
)
from rollout_cli.importers import columns, d3rlpy, hf, lerobot, minari, ogbench, robomimic, sb3
from rollout_cli.importers.format import Foreign, Format
from rollout_cli.recording.arrays import EpisodeArrays
from rollout_cli.recording.writer import Writer
from rollout_cli.sources.loading import first_line
from rollout_cli.sources.remote import folder_of
from rollout_cli.sources.untrusted import shell_word

FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        *(columns.D4RL, d3rlpy.FORMAT, hf.FORMAT, lerobot.FORMAT, minari.FORMAT),
        *(ogbench.FORMAT, robomimic.FORMAT, sb3.FORMAT, columns.TIANSHOU),
    )
}
"""The formats by name."""

_DAMAGED_HINT = "download it again, or check it with the tool that wrote it"


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """The result of an import.

    Attributes:
        path: The folder of the new dataset.
        format: The name of the format.
        episodes: The number of episodes.
        steps: The number of steps.
        unknown: What the imported dataset does not say, a few words each.

    Example:
        >>> _ = rollout_cli.export(rollout_cli.load("data"), "robomimic", "data.h5")
        >>> rollout_cli.import_dataset("data.h5", "imported", env="CartPole-v1").steps
        67
    """

    path: Path
    format: str
    episodes: int
    steps: int
    unknown: tuple[str, ...]


class _ImportingWriter(Writer):
    """A writer that records the origin of its episodes."""

    _kind = "imported"

    def __init__(self, path: Path, origin: dict[str, Any], **options: Any) -> None:
        self._origin = origin
        super().__init__(path, **options)

    def _source(self, *, are_inferred: bool) -> dict[str, Any]:
        return {**super()._source(are_inferred=are_inferred), "imported": self._origin}


def import_dataset(
    source: str | Path,
    path: str | Path,
    format: str | None = None,  # noqa: A002 - the word of the command line
    *,
    env: str | None = None,
    n_actions: int | None = None,
    trust: bool = False,
) -> ImportSummary:
    """Write a dataset of another tool as a dataset of `rollout`. Nothing in it is run, unless `trust` says so.

    Args:
        source: The file or folder of the other tool.
        path: The folder to write; it must not exist.
        format: The name of the format; None to recognise it by its content.
        env: The id of a registered environment, whose spaces the episodes have; needed by formats that do not
            store spaces, if a Box does not describe them.
        n_actions: The number of actions of a Discrete action space.
        trust: True to unpickle a replay buffer, which may run any code.

    Raises:
        DatasetExistsError: If `path` exists.
        DatasetFormatError: If the dataset is damaged, or cannot be imported.
        StorageError: If a disk operation fails.
        UsageError: If the format is unknown, a package is missing, or the spaces are unknown.
        UserCodeError: If the file is a pickle, and is not trusted.

    Example:
        >>> _ = rollout_cli.export(rollout_cli.load("data"), "d4rl", "data.hdf5")
        >>> rollout_cli.import_dataset("data.hdf5", "imported", env="CartPole-v1").episodes
        3
    """
    origin = Path(source)
    chosen = _format_of(origin, format)
    folder = folder_of(path)
    if chosen.runs_code and not trust:
        raise UserCodeError(
            f"{origin} is a pickle, which can run any code when it is loaded; expected trust",
            code="file-may-run-code",
            hint="pass {trust=True} if the file is yours, or you trust it",
        )
    with staged(folder) as place, ExitStack() as opened:
        with _reading(origin):
            foreign = opened.enter_context(chosen.read(origin))
        observation_space, action_space = _spaces(foreign, env, n_actions)
        described = {"format": chosen.name, "file": origin.name, "unknown": list(foreign.unknown)}
        with _ImportingWriter(
            place,
            described,
            observation_space=observation_space,
            action_space=action_space,
            max_episode_length=foreign.max_episode_length,
            env=env or foreign.env,
        ) as writer:
            for episode in _episodes(origin, foreign):
                try:
                    writer.add(episode)
                except (ArgumentError, UnsupportedSpaceError) as error:
                    raise _unfit(origin, error) from error
            written = writer.close()
        if written is None:
            raise DatasetFormatError(
                f"{origin} has no episodes, expected at least 1", code="import-empty", hint=_DAMAGED_HINT
            )
    return ImportSummary(folder, chosen.name, written.episodes, written.steps, foreign.unknown)


@contextmanager
def _reading(origin: Path) -> Iterator[None]:
    """Report what libraries raise for damaged content: of any class, as far as HDF5 and JSON are concerned."""
    try:
        yield
    except DatasetFormatError as error:
        raise error.with_hint(error.marked_hint or _DAMAGED_HINT) from error
    except RolloutError:
        raise
    except Exception as error:
        message = f"{origin} cannot be read: {first_line(error)}"
        raise DatasetFormatError(message, code="import-damaged", hint=_DAMAGED_HINT) from error


def _episodes(origin: Path, foreign: Foreign) -> Iterator[EpisodeArrays]:
    while True:
        with _reading(origin):
            episode = next(foreign.episodes, None)
        if episode is None:
            return
        yield episode


def recognised(path: Path) -> Format | None:
    """Return the format of a file or folder, if its content leaves no doubt."""
    found = [each for each in FORMATS.values() if not each.runs_code and each.recognises(path)]
    return found[0] if len(found) == 1 else None


def _format_of(path: Path, name: str | None) -> Format:
    """Return the format with this name, or of a file's content."""
    if name is not None and name not in FORMATS:
        raise UsageError(
            f"unknown format {name!r}", code="format-unknown", hint=f"choose from {', '.join(FORMATS)}"
        )
    if info_path(path).is_file() and recognised(path) is None:
        raise UsageError(
            f"{path} is a dataset of rollout, and needs no import",
            code="import-not-needed",
            hint=f"read it without an import: rollout info {shell_word(path)}",
        )
    if not path.exists():
        raise UsageError(f"{path} does not exist", code="import-missing", hint="pass a file or folder")
    if name is not None:
        return FORMATS[name]
    found = [each for each in FORMATS.values() if each.recognises(path)]
    if len(found) != 1:
        names = " or ".join(each.name for each in found) or "a known format"
        raise UsageError(
            f"the content of {path} is not certain to be {names}",
            code="format-uncertain",
            hint=f"name its format, one of {', '.join(FORMATS)}; those in HDF5 need h5py",
        )
    return found[0]


def _unfit(origin: Path, error: RolloutError) -> RolloutError:
    """Return the error of an episode that the writer refused."""
    if error.code == "space-unknown":
        hint = "pass {env=ID} of an environment with the spaces, or {n_actions=N}"
        return UsageError(f"{origin}: {error.message}", code="space-unknown", hint=hint)
    return DatasetFormatError(f"{origin}: {error.message}", code="import-damaged", hint=_DAMAGED_HINT)


def _spaces(foreign: Foreign, env: str | None, n_actions: int | None) -> tuple[Any, Any]:
    """Return the spaces that the dataset states, or else those that the caller states; None to infer one."""
    observation_space = foreign.observation_space
    action_space = foreign.action_space
    if env is not None and observation_space is None:
        try:
            made = gymnasium.make(env)
        except gymnasium.error.Error as error:
            raise ArgumentError(
                f"env={env!r} is not a registered environment: {error}",
                code="import-env",
                hint="pass the id of an installed environment",
            ) from error
        observation_space = made.observation_space
        action_space = made.action_space
        made.close()
    if n_actions is not None and action_space is None:
        action_space = spaces.Discrete(n_actions)
    return observation_space, action_space
