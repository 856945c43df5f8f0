"""The commands that share a dataset or policy: `rollout export`, `card`, `push` and `policy pack`."""

from __future__ import annotations

import os
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

import rollout_cli
from rollout_cli.cli.options import Folder, JsonFlag, LocalFolder, QuietFlag, VerifyFlag, flag, local_path
from rollout_cli.cli.output import print_message, show
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.errors import ConfigError, StorageError, UsageError
from rollout_cli.keywords import keyword
from rollout_cli.sources.remote import folder_of

FORMAT_NAMES = (
    *("d3rlpy", "d4rl", "hf", "imitation", "lerobot", "minari"),
    *("ogbench", "rllib", "robomimic", "tianshou", "torchrl", "zarr"),
)
"""The built-in formats, listed here for the help page because the exporter modules import numpy."""


def export(
    folder: Folder,
    *,
    to: Annotated[
        str,
        flag(
            "--to",
            metavar="FORMAT",
            help=f"Format: {', '.join(FORMAT_NAMES)}, or a plugin's.",
            autocompletion=lambda: list(FORMAT_NAMES),
        ),
    ],
    output: Annotated[
        Path, flag("--output", "-o", metavar="PATH", help="File or folder to write.", parser=folder_of)
    ],
    set: Annotated[  # noqa: A002 - the option's name
        list[str] | None,
        flag(
            "--set",
            metavar="KEY=VALUE",
            help="Option of the format, e.g. flatten=true; repeatable.",
        ),
    ] = None,
    verify: VerifyFlag = True,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Export a dataset to the format of another tool."""
    example = "{set=flatten=true}"
    options: dict[str, Any] = dict(keyword(text, "--set", example=example) for text in set or ())
    # `rollout_cli.export` has parameters of these names.
    if taken := options.keys() & {"dataset", "format", "path", "verify"}:
        raise UsageError(
            f"{to} does not have an option {min(taken)!r}",
            code="format-option",
            hint=f"pass an option of the format, for example {example}",
        )
    summary = rollout_cli.export(rollout_cli.load(folder), to, output, verify=verify, **options)
    rows = {
        "exported": summary.path,
        "format": summary.format,
        "episodes": f"{summary.episodes:,}",
        "steps": f"{summary.steps:,}",
    }
    show(asdict(summary), rows, as_json=json, quiet=quiet, path=summary.path)
    if not (json or quiet):
        for loss in summary.losses:
            print_message(f"not in {summary.format}: {loss}")


def import_(
    source: Annotated[Path, typer.Argument(metavar="PATH", help="File or folder of another tool.")],
    output: Annotated[
        Path, flag("--output", "-o", metavar="DIR", help="Folder of the new dataset.", parser=folder_of)
    ],
    *,
    from_: Annotated[
        str | None,
        flag(
            "--from",
            metavar="FORMAT",
            help="d3rlpy, d4rl, hf, lerobot, minari, ogbench, robomimic, sb3 or tianshou.",
        ),
    ] = None,
    env: Annotated[str | None, flag("--env", "-e", metavar="ID", help="Environment with the spaces.")] = None,
    n_actions: Annotated[
        int | None, flag("--n-actions", metavar="N", help="Number of discrete actions.", min=1)
    ] = None,
    trust: Annotated[bool, flag("--trust", help="Unpickle a replay buffer, which may run any code.")] = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Import a dataset of another tool; without --trust nothing in it is run."""
    summary = rollout_cli.import_dataset(source, output, from_, env=env, n_actions=n_actions, trust=trust)
    rows = {
        "dataset": summary.path,
        "format": summary.format,
        "episodes": f"{summary.episodes:,}",
        "steps": f"{summary.steps:,}",
    }
    show(asdict(summary), rows, as_json=json, quiet=quiet, path=summary.path)
    if not (json or quiet):
        for missing in summary.unknown:
            print_message(f"not in {source.name}: {missing}")


def card(
    folder: Folder,
    *,
    license: Annotated[  # noqa: A002 - the option's name
        str | None, flag("--license", metavar="ID", help="License, e.g. mit or cc-by-4.0.")
    ] = None,
    plot: Annotated[bool | None, flag("--plot/--no-plot", help="Show or hide a plot of the returns.")] = None,
    title: Annotated[str | None, flag("--title", metavar="TEXT", help="Title of the card.")] = None,
    references: Annotated[
        str | None,
        flag(
            "--references",
            metavar="LOW,HIGH",
            help="Mean returns, or a suite's datasets, with the scores 0 and 100.",
        ),
    ] = None,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write the card (README.md) of a dataset, or of a folder of datasets, for the Hugging Face Hub."""
    from rollout_cli.reports.suite import members_of  # noqa: PLC0415 - imports numpy and pyarrow

    scale = None if references is None else _references(references)
    path = rollout_cli.card(folder, license=license, plot=plot, title=title, references=scale)
    kind = "folder" if members_of(folder) else "dataset"
    document = {kind: str(folder), "path": str(path)}
    show(document, {kind: folder, "card": path}, as_json=json, quiet=quiet, path=path)


def push(
    folder: LocalFolder,
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the Hub.")],
    *,
    private: Annotated[bool, flag("--private", help="Create a private repository.")] = False,
    revision: Annotated[
        str | None, flag("--revision", metavar="BRANCH", help="Branch, created if missing. (default: main)")
    ] = None,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Upload a complete dataset to the Hugging Face Hub, in one commit.

    Needs `pip install huggingface_hub`, and HF_TOKEN or `hf auth login`.
    """
    from rollout_cli.run.push import push as pushed  # noqa: PLC0415 - imports numpy and pyarrow

    if quiet or json:
        os.environ.setdefault(
            "HF_HUB_DISABLE_PROGRESS_BARS", "1"
        )  # The library reads it when it is imported.
    with user_output_on_stderr():
        summary = pushed(folder, repository, private=private, revision=revision)
    rows = {
        "pushed": summary.address,
        "load": summary.uri,
        "commit": summary.commit,
        "episodes": f"{summary.episodes:,}",
    }
    show(asdict(summary), rows, as_json=json, quiet=quiet, path=summary.address)


def _references(text: str) -> tuple[str | float, str | float]:
    low, _, high = text.partition(",")
    try:
        return _number_or_name(low.strip()), _number_or_name(high.strip())
    except ValueError as error:
        raise ConfigError(
            f"--references is {text!r}, expected two mean returns, separated by a comma",
            code="option-value",
            hint="use, for example, --references 22.3,500",
        ) from error


def _number_or_name(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        if not text:
            raise
        return text


def pack(
    spec: Annotated[str, typer.Argument(metavar="MODULE:ATTR", help="Policy, policy class or factory.")],
    output: Annotated[Path, flag("--output", "-o", metavar="FILE", help="File to write.", parser=local_path)],
    *,
    overwrite: Annotated[bool, flag("--overwrite", help="Replace an existing file.")] = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Pickle a policy by value; the file loads without the policy's module."""
    from rollout_cli.dataset.store import FileStore  # noqa: PLC0415 - as below
    from rollout_cli.policies.source import pack_policy  # noqa: PLC0415 - imports numpy and the policy

    if os.path.exists(output) and not overwrite:  # noqa: PTH110 - Path.exists raises if a name is too long
        raise StorageError(
            f"{str(output)!r} already exists",
            code="output-exists",
            hint="pass another {output}, or {overwrite=True}",
        )
    with user_output_on_stderr():
        packed = pack_policy(spec)
    FileStore().replace(output, packed.data)
    document = {
        "path": output,
        "n_bytes": len(packed.data),
        "sha256": sha256(packed.data).hexdigest(),
        "class": packed.class_name,
        "reads": packed.reads,
    }
    reads = "unknown: calling it without arguments failed here"
    if packed.reads is not None:
        reads = ", ".join(packed.reads) or "no file"
    rows = {
        "file": output,
        "class": packed.class_name,
        "size": f"{document['n_bytes']:,} bytes",
        "sha256": document["sha256"],
        "still reads": reads,
    }
    show(document, rows, as_json=json, quiet=quiet, path=output)
