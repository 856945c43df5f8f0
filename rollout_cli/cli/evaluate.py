"""The command `rollout evaluate`."""

from __future__ import annotations

import functools
import math
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout_cli.cli.collect import prepare_workers
from rollout_cli.cli.options import ConfigFlag, JsonFlag, flag, local_path, shown
from rollout_cli.cli.output import (
    counted,
    print_json,
    print_message,
    print_rows,
    print_table,
    print_text,
    showing_progress,
)
from rollout_cli.cli.streams import user_output_on_stderr
from rollout_cli.errors import ConfigError, RolloutError
from rollout_cli.sources.remote import folder_of

if TYPE_CHECKING:
    from rollout_cli.episodes.intervals import Interval
    from rollout_cli.run.evaluation import Evaluation

_code = functools.partial(flag, rich_help_panel="Policy and environment")
_FEWEST_DRAWN = 3  # Policies of a chart in the terminal.

PoliciesFlag = Annotated[
    list[str] | None,
    _code("--policy", "-p", metavar="SPEC", help="Policy, or a pattern such as '*.zip'; repeatable."),
]
SuccessFlag = Annotated[
    str | None,
    _code("--success", metavar="EXPRESSION", help="Condition for success. (default: an info)"),
]
NormalizeFlag = Annotated[
    str | None,
    _code("--normalize", metavar="LOW,HIGH", help="Returns, or policies, with the scores 0 and 100."),
]
OutputFlag = Annotated[
    Path | None,
    shown(
        "--output", "-o", metavar="DIR", help="Keep the episodes: one dataset per policy.", parser=folder_of
    ),
]
PlotFlag = Annotated[
    Path | None,
    shown("--plot", metavar="FILE", help="PNG or SVG file of the mean returns.", parser=local_path),
]


def evaluate(
    context: typer.Context,
    *,
    policy: PoliciesFlag = None,
    success: SuccessFlag = None,
    normalize: NormalizeFlag = None,
    output: OutputFlag = None,
    plot: PlotFlag = None,
    config: ConfigFlag = None,
    quiet: Annotated[
        bool, shown("--quiet", "-q", help="Print only the results, warnings and errors.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Compare policies by their returns in the same episodes.

    Each policy runs the same episodes, by default 100. Intervals are 95 % intervals.
    """
    from rollout_cli.options.config import DEFAULT_EPISODES, leading_policy  # noqa: PLC0415 - imports pydantic
    from rollout_cli.options.sources import resolve  # noqa: PLC0415 - as above

    request = resolve(
        "evaluate",
        flags={**context.obj, "policy": leading_policy(policy) if policy else None},
        environ=os.environ,
        file=config,
        amount={"episodes": DEFAULT_EPISODES},
    )
    prepare_workers(request)
    from rollout_cli.run.evaluate import evaluate_config  # noqa: PLC0415 - imports numpy and gymnasium

    if plot is not None:
        from rollout_cli.reports.figure import check_figure  # noqa: PLC0415 - imports numpy

        check_figure(plot)
    references = None if normalize is None else _references(normalize)
    before_error: list[Evaluation] = []
    try:
        with showing_progress(wanted=None, quiet=quiet or json) as progress, user_output_on_stderr():
            evaluation = evaluate_config(
                policy or [request.policy],
                request,
                success=success,
                normalize=references,
                output=output,
                progress=progress,
                finished=before_error.append,
            )
    except RolloutError:
        if before_error and not json:
            _print(before_error[0], quiet=quiet)
        raise
    if plot is not None:
        from rollout_cli.reports.figure import write_figure  # noqa: PLC0415 - as above

        write_figure(evaluation.curve(), plot)
    if json:
        print_json(evaluation.document())
        return
    _print(evaluation, quiet=quiet)


def _references(text: str) -> tuple[str | float, str | float]:
    """Parse two mean returns or policies, separated by a comma."""
    low, comma, high = text.partition(",")
    if not comma or not low or not high:
        raise ConfigError(
            f"--normalize is {text!r}, expected two mean returns or policies, separated by a comma",
            code="option-value",
            hint="use, for example, --normalize 22.3,500 or --normalize random,expert.zip",
        )
    return _reference(low.strip()), _reference(high.strip())


def _reference(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _print(evaluation: Evaluation, *, quiet: bool) -> None:
    """Print the results as tables, and a learning curve as a chart."""
    results = evaluation.results
    if not quiet:
        episodes = counted(len(evaluation.numbers), "episode")
        rows = {"environment": evaluation.env, "episodes": f"{episodes}, the same for all policies"}
        if len(results) == 1:
            rows["episodes"] = episodes
        rows["seed"] = str(evaluation.seed)
        if evaluation.success:
            rows["success"] = evaluation.success
        if evaluation.references is not None:
            low, high = evaluation.references
            rows["score"] = f"0 at a mean return of {low:.6g}, 100 at {high:.6g}"
        print_rows(rows)
        print_text("")
    columns = {name: [*map(cell, results)] for name, cell in _COLUMNS.items()}
    _print_columns({"policy": [result.policy for result in results], **columns})
    if len(results) > 1:
        print_text("")
        compared = {name: [*map(cell, results[1:])] for name, cell in _COMPARED.items()}
        _print_columns({"policy": [result.policy for result in results[1:]], **compared})
    if None not in evaluation.checkpoints and len(results) >= _FEWEST_DRAWN and not quiet:
        from rollout_cli.reports.text import lines  # noqa: PLC0415 - imports numpy

        print_text("")
        for line in lines(evaluation.curve(), shutil.get_terminal_size().columns):
            print_text(line)
    for result in results:
        if result.path is not None and not quiet:
            print_message(f"dataset of {result.policy}: {result.path}")


def _print_columns(columns: dict[str, list[str]]) -> None:
    """Print a table without its empty columns."""
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    print_table([*kept], [*zip(*kept.values(), strict=True)], yielding=("policy",))


def _value(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.value:.6g}"


def _range(interval: Interval | None) -> str:
    # A single episode has no interval.
    is_known = interval is not None and not math.isnan(interval.low)
    return f"{interval.low:.5g} to {interval.high:.5g}" if interval and is_known else ""


def _share(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.value:.1%}"


def _share_range(interval: Interval | None) -> str:
    return "" if interval is None else f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %"


_COLUMNS: dict[str, Any] = {
    "episodes": lambda result: f"{result.episodes:,}",
    "mean return": lambda result: _value(result.mean),
    "95 %": lambda result: _range(result.mean),
    "median": lambda result: f"{result.median:.6g}",
    "IQM": lambda result: _value(result.interquartile_mean),
    "length": lambda result: f"{result.length:.5g}",
    "success": lambda result: _share(result.success),
    "success 95 %": lambda result: _share_range(result.success),
    "score": lambda result: _value(result.score),
    "score 95 %": lambda result: _range(result.score),
}
_COMPARED: dict[str, Any] = {
    "difference to first": lambda result: _value(result.difference),
    "95 %": lambda result: _range(result.difference),
    "P(higher return)": lambda result: _share(result.improvement),
    "P 95 %": lambda result: _share_range(result.improvement),
}
