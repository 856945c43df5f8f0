"""`rollout policy pack`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollout_cli.cli.options import JsonFlag, QuietFlag, flag
from rollout_cli.cli.output import show
from rollout_cli.cli.streams import user_output_on_stderr


def pack(
    spec: Annotated[str, typer.Argument(metavar="MODULE:ATTR", help="A policy, a class or a factory.")],
    output: Annotated[Path, flag("--output", "-o", metavar="FILE", text="The file to write.")],
    *,
    overwrite: Annotated[bool, flag("--overwrite", text="Replace the file.")] = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
) -> None:
    """Pickle a policy by value, into a file that loads without the policy's module."""
    from rollout_cli.policies.source import pack_policy  # noqa: PLC0415 - it loads numpy and the policy

    with user_output_on_stderr():
        packed = pack_policy(spec, output, overwrite=overwrite)
    document = {
        "path": packed.path,
        "n_bytes": packed.n_bytes,
        "sha256": packed.sha256,
        "class": packed.class_name,
    }
    reads = "unknown: calling it without arguments failed here"
    if packed.reads is not None:
        reads = ", ".join(packed.reads) or "no file"
    rows = {"file": packed.path, "class": packed.class_name, "size": f"{packed.n_bytes:,} bytes"}
    rows |= {"sha256": packed.sha256, "still reads": reads}
    show({**document, "reads": packed.reads}, rows, as_json=json, quiet=quiet, path=packed.path)
