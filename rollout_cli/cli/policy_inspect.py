"""`rollout policy inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_cli.cli.options import JsonFlag, VerboseFlag
from rollout_cli.cli.output import print_json, print_rows, print_text

if TYPE_CHECKING:
    from rollout_cli.policies.inspect_pickle import CodeByValue, PickleContents


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A policy's file.", show_default=False)],
    *,
    verbose: VerboseFlag = False,  # noqa: ARG001 - read where all commands end
    json: JsonFlag = False,
) -> None:
    """List what a policy's file would import and what code it holds, without loading it. This is no security check."""
    from rollout_cli.policies.inspect_pickle import NOTE, inspect_pickle  # noqa: PLC0415 - it loads numpy

    contents = inspect_pickle(str(file))
    if json:
        print_json({**asdict(contents), "note": NOTE})
        return
    print_rows(list(_rows(contents)))
    print_text(f"\n{NOTE}")


def _rows(contents: PickleContents) -> Iterator[tuple[str, str]]:
    from rollout_cli.policies.inspect_pickle import import_name  # noqa: PLC0415 - as above

    yield "file", contents.path
    yield "size", f"{contents.n_bytes:,} bytes"
    yield "sha256", contents.sha256
    yield "protocol", str(contents.protocol)
    for found in contents.imports:
        yield "imports", import_name(found)
    for code in contents.code:
        yield "code", _told(code)
    if contents.n_trailing:
        yield "beyond its end", f"{contents.n_trailing:,} bytes, which are not loaded"


def _told(code: CodeByValue) -> str:
    return f"{code.kind} {code.name}" + (f", from {code.file}" if code.file else "")
