"""`python -m benchmarks [--list] [--pairs N] [--seconds S] [--json FILE] [CASE ...]`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.cases.overheads import OVERHEAD_CASES
from benchmarks.cases.throughput import BARE_CASES, PEER_CASES
from benchmarks.pairs import Settings
from benchmarks.report import machine, machine_lines, results_table
from benchmarks.results import Case, Result
from benchmarks.usage import CommandError

CASES: tuple[Case, ...] = (*BARE_CASES, *OVERHEAD_CASES, *PEER_CASES)

QUOTABLE_PAIRS, QUOTABLE_SECONDS = 10, 5.0
"""Below these, figures show that a case works, and no more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cases that were named, print the table; return 1 where one failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    cases = chosen(options.cases)
    if not cases:
        parser.error(f"no case is called {' '.join(options.cases)}; --list names them")
    if options.list:
        print("\n".join(f"{case.name:26}  {case.title}" for case in cases))
        return 0
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="rollout-benchmarks-", dir=options.scratch) as scratch:
        settings = Settings(options.pairs, options.seconds, Path(scratch), _say)
        results = [_measure(case, settings) for case in cases]
    _print(facts, settings, results)
    if options.json:
        document = {
            "machine": facts,
            "pairs": options.pairs,
            "seconds": options.seconds,
            "results": [asdict(result) for result in results],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(any(result.reason.startswith(_FAILED) for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure rollout beside other ways.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names, or patterns such as 'peer-*'; all by default")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--pairs", type=_positive_int, default=QUOTABLE_PAIRS, metavar="N", help="rounds (default 10)")
    parser.add_argument(
        "--seconds", type=_positive, default=QUOTABLE_SECONDS, metavar="S", help="length of a long run (default 5)"
    )
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where runs write (default: the system's)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement to FILE")
    return parser


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError(text)
    return value


def chosen(patterns: Sequence[str]) -> list[Case]:
    """Return the cases whose names fit one of the patterns; all where there are none."""
    return [case for case in CASES if not patterns or any(fnmatch(case.name, pattern) for pattern in patterns)]


_FAILED = "failed: "


def _measure(case: Case, settings: Settings) -> Result:
    _say(f"{case.name}: {case.title}")
    started = time.monotonic()
    try:
        reason = case.missing()
        result = Result(case.name, reason=reason) if reason else case.measure(settings)
    except CommandError as error:
        result = Result(case.name, reason=f"{_FAILED}{error}")
    _say(f"  {result.reason}" if result.reason else f"  took {time.monotonic() - started:.0f} s")
    return result


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(facts: dict[str, str], settings: Settings, results: Sequence[Result]) -> None:
    print("\n".join(machine_lines(facts)))
    print(f"- measured: {settings.pairs} rounds, long runs {settings.seconds:g} s longer than the short ones")
    if settings.pairs < QUOTABLE_PAIRS or settings.seconds < QUOTABLE_SECONDS:
        print("- SMOKE RUN: too short to quote")
    print()
    print("\n".join(results_table(results)))


if __name__ == "__main__":
    sys.exit(main())
