"""`rollout render`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag
from rollout_cli.cli.output import print_message, show
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.errors import UsageError
from rollout_cli.loading import printable

_KWARGS = (
    "An argument of the environment that the dataset does not record, since its name is that of a secret."
)
_EpisodeFlag = Annotated[int, typer.Option("--episode", metavar="ID", help="The episode.", min=0)]
_OutputFlag = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="What to write: FILE.gif, FILE.mp4, or a folder of PNG files.",
        show_default=False,
    ),
]
_FpsFlag = Annotated[
    float | None, typer.Option("--fps", metavar="N", help="Frames a second.", min=0.1, max=1000)
]
_AgainFlag = Annotated[
    bool,
    typer.Option("--again", help="Let the environment render though images are stored.", show_default=False),
]
_KwargsFlag = Annotated[list[str] | None, typer.Option("--env-kwargs", metavar="KEY=VALUE", help=_KWARGS)]


def render(
    folder: Folder,
    *,
    output: _OutputFlag,
    episode: _EpisodeFlag = 0,
    fps: _FpsFlag = None,
    again: _AgainFlag = False,
    env_kwargs: _KwargsFlag = None,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write a film of an episode: of its images, or of its actions, which the environment takes again.

    Where observations are no images, this runs the environment that the dataset names.
    """
    from rollout_cli.config import OPTIONS  # noqa: PLC0415 - it loads pydantic
    from rollout_cli.dataset.reader import load  # noqa: PLC0415 - it loads numpy and pyarrow
    from rollout_cli.run.render import render as render_episode  # noqa: PLC0415 - as above

    kwargs = OPTIONS["env_kwargs"].read(env_kwargs or [], "--env-kwargs", text=True)
    dataset = load(folder)
    ids = dataset.episodes["episode_id"].to_pylist()
    if episode not in ids:
        hint = f"its episodes have ids from {min(ids)} to {max(ids)}" if ids else "it has no episode"
        raise UsageError(f"{folder} has no such episode", hint=hint)
    with user_output_on_stderr():
        rendered = render_episode(
            dataset, ids.index(episode), output, fps=fps, again=again, env_kwargs=kwargs
        )
    other = rendered.difference
    rows = {
        "film": rendered.path,
        "episode": episode,
        "shows": rendered.origin,
        "frames": f"{rendered.frames:,} of {rendered.size[0]} x {rendered.size[1]}, {rendered.fps:g} a second",
    }
    if rendered.origin != "stored observations":
        rows["replayed"] = "other observations" if other else "observations and rewards as stored"
    show({"dataset": folder, **asdict(rendered)}, rows, as_json=json, quiet=quiet, path=rendered.path)
    if other and not json:
        values = f"stored {other.values[0]}, now {other.values[1]}"
        print_message(
            printable(f"warning: the film is not of the stored episode from {other.place} on: {values}")
        )
