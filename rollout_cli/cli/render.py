"""`rollout render`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rollout_cli.cli.options import Folder, JsonFlag, QuietFlag, flag
from rollout_cli.cli.output import print_message, show
from rollout_cli.cli.replay import KwargsFlag, places_of
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.loading import printable

_EpisodeFlag = Annotated[int, flag("--episode", metavar="ID", text="The episode.", min=0, show_default=True)]
_OutputFlag = Annotated[
    Path,
    flag(
        "--output",
        "-o",
        metavar="PATH",
        text="What to write: FILE.gif, FILE.mp4, or a folder of PNG files.",
    ),
]
_FpsFlag = Annotated[float | None, flag("--fps", metavar="N", text="Frames a second.", min=0.1, max=1000)]
_AgainFlag = Annotated[bool, flag("--again", text="Let the environment render though images are stored.")]


def render(
    folder: Folder,
    *,
    output: _OutputFlag,
    episode: _EpisodeFlag = 0,
    fps: _FpsFlag = None,
    again: _AgainFlag = False,
    env_kwargs: KwargsFlag = None,
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
    (place,) = places_of(dataset, folder, range(episode, episode + 1))
    with user_output_on_stderr():
        rendered = render_episode(dataset, place, output, fps=fps, again=again, env_kwargs=kwargs)
    other, (width, height) = rendered.difference, rendered.size
    rows = {
        "film": rendered.path,
        "episode": episode,
        "shows": rendered.origin,
        "frames": f"{rendered.frames:,} of {width} x {height}, {rendered.fps:g} a second",
    }
    if rendered.origin != "stored observations":
        rows["replayed"] = "other observations" if other else "observations and rewards as stored"
    show({"dataset": folder, **asdict(rendered)}, rows, as_json=json, quiet=quiet, path=rendered.path)
    if other and not json:
        values = f"stored {other.values[0]}, now {other.values[1]}"
        print_message(
            printable(f"warning: the film is not of the stored episode from {other.place} on: {values}")
        )
