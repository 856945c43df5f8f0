"""`python -m benchmarks [--list] [--pairs N] [--seconds S] [--json FILE] [CASE ...]`, or `--table FILE ...`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.cases.ingest import INGEST_CASES
from benchmarks.cases.overheads import OVERHEAD_CASES
from benchmarks.cases.peers import PEER_CASES
from benchmarks.cases.throughput import BARE_CASES
from benchmarks.documents import Document, markdown, read, write
from benchmarks.report import machine
from benchmarks.results import Case, Result
from benchmarks.runs import measure_all
from benchmarks.sides import Settings

CASES: tuple[Case, ...] = (*BARE_CASES, *OVERHEAD_CASES, *INGEST_CASES, *PEER_CASES)

QUOTABLE_PAIRS, QUOTABLE_SECONDS = 10, 5.0
"""What is measured unless the command line says otherwise; below, figures show that a case works, and no more."""

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cases that were named, print the table; return 1 where one failed, 130 after Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(arguments)
    cases = chosen(options.cases)
    if not cases:
        parser.error(f"no case is called {' '.join(options.cases)}; --list names them")
    if options.list:
        print("\n".join(f"{case.name:26}  {case.title}" for case in cases))
        return 0
    if options.table:
        try:
            documents = [read(path) for path in options.table]
        except (OSError, ValueError) as error:
            parser.error(str(error))
        _print(documents)
        return 0
    return _measure(cases, options)


def _measure(cases: Sequence[Case], options: argparse.Namespace) -> int:
    facts = machine()
    results: list[Result] = []
    code = 0

    def document() -> Document:
        return Document(facts, options.pairs, options.seconds, tuple(results))

    with tempfile.TemporaryDirectory(prefix="rollout-benchmarks-", dir=options.scratch) as scratch:
        settings = Settings(options.pairs, options.seconds, Path(scratch), _say)
        try:
            for some in measure_all(cases, settings):
                results += some
                if options.json:
                    write(options.json, document())
        except KeyboardInterrupt:
            _say("interrupted; the table holds what was measured until then")
            code = INTERRUPTED
    _print([document()])
    return code or int(any(result.failed for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure rollout beside other ways.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names, or patterns such as 'peer-*'; all by default")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--pairs", type=_positive_int, default=QUOTABLE_PAIRS, metavar="N", help="rounds (default 10)")
    parser.add_argument(
        "--seconds", type=_positive, default=QUOTABLE_SECONDS, metavar="S", help="length of a long run (default 5)"
    )
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where runs write (default: the system's)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement to FILE, as they come")
    parser.add_argument(
        "--table", type=Path, nargs="+", metavar="FILE", help="measure nothing: print one table of such FILEs"
    )
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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(documents: Sequence[Document]) -> None:
    order = [case.name for case in CASES]
    print("\n".join(markdown(documents, order, quotable=(QUOTABLE_PAIRS, QUOTABLE_SECONDS))))


if __name__ == "__main__":
    sys.exit(main())
