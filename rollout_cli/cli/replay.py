"""`rollout replay`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout_cli.cli.options import SHOWING, JsonFlag, VerboseFlag
from rollout_cli.cli.output import print_json, print_problem, print_rows
from rollout_cli.cli.user_output import user_output_on_stderr
from rollout_cli.config.kinds import EpisodeRange, Episodes, Keywords
from rollout_cli.errors import UsageError, VerificationError
from rollout_cli.escaping import printable

if TYPE_CHECKING:
    from rollout_cli.dataset import Dataset
    from rollout_cli.reproducing.replay import Replayed

SHOWN = 20
"""So many episodes that differ are shown."""

Chosen = tuple[str, Any]
"""The flag that says which episodes, and its value."""

EpisodeFlag = Annotated[int | None, typer.Option("--episode", metavar="ID", help="Replay this one.", min=0)]
NumberFlag = Annotated[
    int | None, typer.Option("--number", metavar="N", help="Replay the one with this episode number.", min=0)
]
EpisodesFlag = Annotated[str | None, typer.Option("--episodes", metavar="A:B", help="Replay ids A to B-1.")]
AllFlag = Annotated[bool, typer.Option("--all", help="Replay all of them.", show_default=False)]
PolicyFlag = Annotated[
    str | None, typer.Option("--policy", "-p", metavar="SPEC", help="Where the policy that was used is now.")
]
KwargsFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--env-kwargs",
        metavar="KEY=VALUE",
        help="An argument of the environment that the dataset does not record, since it looked like a secret.",
    ),
]
QuietFlag = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print differences only.", rich_help_panel=SHOWING, show_default=False),
]


def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A dataset's folder.", show_default=False)],
    *,
    episode: EpisodeFlag = None,
    number: NumberFlag = None,
    episodes: EpisodesFlag = None,
    all_: AllFlag = False,
    policy: PolicyFlag = None,
    env_kwargs: KwargsFlag = None,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,  # noqa: ARG001 - read where all commands end
    json: JsonFlag = False,
) -> None:
    """Run episodes of a dataset again from their seeds and compare them, bit by bit, with what is stored.

    This loads and runs the policy and the environment that the dataset names.
    """
    from rollout_cli.dataset import load  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.reproducing.replay import replaying  # noqa: PLC0415 - as above

    chosen = _given(episode=episode, number=number, episodes=episodes, all_=all_)
    dataset = load(folder)
    places = _places(dataset, chosen)
    given = _kwargs(env_kwargs)
    with user_output_on_stderr(), replaying(dataset, policy=policy, env_kwargs=given) as replayer:
        for notice in () if quiet else replayer.notices:
            print_problem(f"notice: {printable(notice)}")
        replayed = [replayer.replay(dataset[place]) for place in places]
    document = _document(folder, replayed, replayer.notices)
    if document["different"]:
        raise _failure(folder, replayed, document)
    if json:
        print_json(document)
    elif not quiet:
        print_rows(list(_rows(folder, replayed)))


def _given(**flags: Any) -> Chosen:
    """Return the one flag that says which episodes, and its value."""
    given = [(name, value) for name, value in flags.items() if value is not None and value is not False]
    if len(given) != 1:
        raise UsageError(
            "say which episodes to replay, in one way",
            hint="one of: --episode ID, --number N, --episodes A:B, --all",
        )
    return given[0]


def _kwargs(texts: list[str] | None) -> dict[str, Any]:
    try:
        return dict(Keywords("", "").from_flag(texts or []))  # type: ignore[call-overload, no-any-return]
    except ValueError as error:
        raise UsageError(f"--env-kwargs must be key=value, got {error}") from error


def _places(dataset: Dataset, chosen: Chosen) -> Sequence[int]:
    """Return where the chosen episodes stand in the dataset.

    Raises:
        UsageError: If there are none.
    """
    flag, value = chosen
    found: Sequence[int]
    if flag == "all_":
        found = range(len(dataset))
    elif flag == "episodes":
        ids = _range(value)
        known = dataset.episodes["episode_id"].to_pylist()
        found = [place for place, one in enumerate(known) if ids.first <= one < ids.stop]
    else:
        column = "episode_number" if flag == "number" else "episode_id"
        found = [place for place, one in enumerate(dataset.episodes[column].to_pylist()) if one == value]
    if not found:
        raise UsageError(f"{dataset.path} has no such episode", hint=_what_there_is(dataset))
    return found


def _range(text: str) -> EpisodeRange:
    kind = Episodes("A:B", "")
    try:
        value = kind.from_text(text)
    except ValueError:
        value = None
    if not isinstance(value, EpisodeRange) or not kind.accepts(value):
        raise UsageError(f"--episodes must be A:B with 0 <= A < B, got {text!r}")
    return value


def _what_there_is(dataset: Dataset) -> str:
    if not len(dataset):
        return "it has no episode"
    told = [
        f"{name} from {min(values)} to {max(values)}"
        for name, values in (
            ("ids", dataset.episodes["episode_id"].to_pylist()),
            ("numbers", dataset.episodes["episode_number"].to_pylist()),
        )
    ]
    return f"its episodes have {' and '.join(told)}"


def _document(folder: Path, replayed: Sequence[Replayed], notices: Sequence[str]) -> dict[str, Any]:
    different = [one.document() for one in replayed if one.found]
    return {
        "path": str(folder),
        "replayed": len(replayed),
        "identical": len(replayed) - len(different),
        "different": different,
        "notices": list(notices),
    }


def _rows(folder: Path, replayed: Sequence[Replayed]) -> Iterator[tuple[str, str]]:
    yield "dataset", str(folder)
    if len(replayed) == 1:
        (one,) = replayed
        yield "episode", f"{one.episode_id} (number {one.number}, seed {one.seed}, {one.steps:,} steps)"
        yield "replayed", "identical"
    else:
        yield "episodes", f"{len(replayed):,}"
        yield "replayed", "all identical"


def _failure(folder: Path, replayed: Sequence[Replayed], document: dict[str, Any]) -> VerificationError:
    """Return the error of episodes that came out otherwise; the first of them gives its words."""
    different = [one for one in replayed if one.found]
    first = different[0]
    stored, now = first.found[0].values
    which = f"episode {first.episode_id} of {folder}"
    if len(replayed) > 1:
        which = f"{len(different):,} of {len(replayed):,} episodes of {folder} came out otherwise; the first, {which},"
    message = f"{which} is not what is stored: {first.found[0].place} is {stored} there and {now} here"
    lines = [line for one in different[:SHOWN] for line in _lines(one)]
    more = [f"and {len(different) - SHOWN:,} more episodes"] if len(different) > SHOWN else []
    return VerificationError(
        message, hint=f"{first.reason}: {first.hint}", details="\n".join([*lines, *more]), report=document
    )


def _lines(one: Replayed) -> Iterator[str]:
    yield f"episode {one.episode_id} (number {one.number}, seed {one.seed}, {one.steps:,} steps)"
    for difference in one.found:
        stored, now = difference.values
        yield f"  {difference.place}: stored {stored}, replayed {now}"
