"""`python -m benchmarks [NAMES] [--pairs 10] [--seconds 5] [--json FILE]` measures the cases and prints a table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, as_json, chosen
from benchmarks.jax_cases import JAX
from benchmarks.learner import LEARNER
from benchmarks.measure import CommandError
from benchmarks.reading import READING


def main() -> int:
    """Measure; print one line per round on stderr and the table on stdout; exit with 1 if a case failed."""
    arguments = _parser().parse_args()
    cases = (*CASES, *LEARNER, *JAX, *READING)
    if arguments.list:
        print("\n".join(case.name for case in cases))
        return 0
    figures: list[dict[str, Any]] = []
    failed = False
    for case in chosen(cases, arguments.names):
        _say(case.name)
        try:
            figures += [as_json(figure) for figure in case.measure(arguments.pairs, arguments.seconds, _say)]
        except CommandError as error:
            failed = True
            _say(f"  {case.name} failed: {error}")
        if arguments.json:
            arguments.json.write_text(
                json.dumps({"machine": _machine(), "figures": figures}, indent=1) + "\n"
            )
    print(_table(figures))
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="cases as globs, or `reading`; all but peers and JAX by default"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--pairs", type=int, default=10, help="rounds; fewer than ten are a smoke run")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="length of a long run, start-up not counted"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file, after each case")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _machine() -> dict[str, str]:
    names = ("rollout-collect", "gymnasium", "numpy", "pyarrow")
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _table(figures: list[dict[str, Any]]) -> str:
    lines = [
        "| work | against | median | min - max | bound | rates |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in figures:
        unit = f" {row['unit']}" if row["unit"] else ""
        spread = f"{row['low']:.3g} - {row['high']:.3g}"
        cells = (
            row["what"],
            row["against"],
            f"{row['median']:.3g}{unit}",
            spread,
            row["bound"],
            row["detail"],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
