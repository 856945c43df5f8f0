"""`rollout replay`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_cli.cli.options import Folder, JsonFlag, shown
from rollout_cli.cli.output import counted, first_of, print_message, show
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.errors import UsageError, VerificationError
from rollout_cli.loading import printable

if TYPE_CHECKING:
    from rollout_cli.run.replay import Replayed

_KWARGS = (
    "An argument of the environment that the dataset does not record, since its name is that of a secret."
)
_EpisodeFlag = Annotated[int | None, typer.Option("--episode", metavar="ID", help="Replay this one.", min=0)]
_EpisodesFlag = Annotated[str | None, typer.Option("--episodes", metavar="A:B", help="Replay ids A to B-1.")]
_AllFlag = Annotated[bool, typer.Option("--all", help="Replay all of them.", show_default=False)]
_PolicyFlag = Annotated[
    str | None, typer.Option("--policy", "-p", metavar="SPEC", help="Where the policy that was used is now.")
]
_PolicyKwargsFlag = Annotated[
    list[str] | None,
    typer.Option("--policy-kwargs", metavar="KEY=VALUE", help="Where a file that it was given is now."),
]
_KwargsFlag = Annotated[list[str] | None, typer.Option("--env-kwargs", metavar="KEY=VALUE", help=_KWARGS)]
_QuietFlag = Annotated[bool, shown("--quiet", "-q", text="Print differences only.")]


def replay(
    folder: Folder,
    *,
    episode: _EpisodeFlag = None,
    episodes: _EpisodesFlag = None,
    all_: _AllFlag = False,
    policy: _PolicyFlag = None,
    policy_kwargs: _PolicyKwargsFlag = None,
    env_kwargs: _KwargsFlag = None,
    quiet: _QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Run episodes of a dataset again from their seeds and compare them, bit by bit, with the stored ones.

    This loads and runs the policy and the environment that the dataset names.
    """
    from rollout_cli.config import OPTIONS  # noqa: PLC0415 - it loads pydantic
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.run.compare import advice  # noqa: PLC0415 - as above
    from rollout_cli.run.replay import replay as run_again  # noqa: PLC0415 - as above

    if (n_given := (episode is not None) + (episodes is not None) + all_) != 1:
        raise UsageError(
            "these options exclude each other" if n_given else "say which episodes to replay",
            hint="give one of: --episode ID, {episodes=A:B}, --all",
        )
    wanted = None if episode is None else range(episode, episode + 1)
    if episodes is not None:
        wanted = range(*OPTIONS["episodes"].read(episodes, "--episodes", text=True))
    texts = {"env_kwargs": env_kwargs or [], "policy_kwargs": policy_kwargs or []}
    kwargs = {name: OPTIONS[name].read(text, OPTIONS[name].flag, text=True) for name, text in texts.items()}
    dataset = load(folder)
    ids = dataset.episodes["episode_id"].to_pylist()
    places = [place for place, episode_id in enumerate(ids) if wanted is None or episode_id in wanted]
    if not places:
        hint = f"its episodes have ids from {min(ids)} to {max(ids)}" if ids else "it has no episode"
        raise UsageError(f"{folder} has no such episode", hint=hint)
    with user_output_on_stderr():
        replayed, notices = run_again(dataset, places, policy=policy, **kwargs)
    for notice in () if quiet else notices:
        print_message(f"notice: {printable(notice)}")
    different = [(rerun, rerun.difference) for rerun in replayed if rerun.difference]
    document: dict[str, object] = {
        "path": str(folder),
        "replayed": len(replayed),
        "identical": len(replayed) - len(different),
        "different": [{**rerun.facts, "difference": asdict(difference)} for rerun, difference in different],
        "notices": notices,
    }
    if different:
        first, difference = different[0]
        which = f"episode {first.facts['episode_id']} of {folder}"
        if len(replayed) > 1:
            which = f"{len(different):,} of {len(replayed):,} episodes differ; the first, {which},"
        lines = [
            f"episode {_title(rerun)}: {other.place}: stored {other.values[0]}, replayed {other.values[1]}"
            for rerun, other in different
        ]
        raise VerificationError(
            f"{which} is not as stored: "
            f"{difference.place} was {difference.values[0]}, is {difference.values[1]}",
            hint="; ".join(notices) or f"the episode depends on more than its seeds: {advice(difference)}",
            details="\n".join(first_of(lines)),
            report=document,
        )
    rows = {"episode": _title(replayed[0])} if len(replayed) == 1 else {"episodes": f"{len(replayed):,}"}
    show(document, {"dataset": folder, **rows, "replayed": "identical"}, as_json=json, quiet=quiet)


def _title(rerun: Replayed) -> str:
    number, seed, steps = (rerun.facts[name] for name in ("episode_number", "seed", "steps"))
    return f"{rerun.facts['episode_id']} (number {number}, seed {seed}, {counted(steps, 'step')})"
