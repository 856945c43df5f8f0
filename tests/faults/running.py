"""Running one row of the fault table, and checking what became of it."""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pyarrow as pa

from tests.helpers.datasets import assert_same_data, episodes_of, info_of, numbers_of, source_of
from tests.helpers.envs import HIDDEN, SIGNS
from tests.helpers.policies import FAULT
from tests.helpers.processes import SECONDS, Ran, Running, called, is_worker, running

SPEC = "tests.helpers.envs:FaultyEnv"
FORTY = ("collect", "--episodes", "40")
SOME = (7, 19, 31)
"""The episodes in which a fault happens that does not happen in all."""
BAD_ACTION = "bad action-0"
FEW = 80
"""So many lines are on stderr at most, where a row does not say another number."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        name: What is done to the run.
        code: The expected exit code, or those that are right.
        says: A regular expression that stderr must match.
        never: One that it must not match.
        env: What FaultyEnv does, by the variable. `at` are episode numbers, in place of `episodes`, the
            seeds.
        kwargs: Keyword arguments of the environment, which the dataset records.
        acts: The fault of FaultyPolicy (of `policy`, if that is another one).
        policy: The class in `tests.helpers.policies`; empty for the built-in random one, unless there is
            `acts`.
        spec: The environment's spec.
        options: Further options of the command.
        command: The command and how much it collects.
        keeps: What the dataset must hold. `same`: the bytes of a run without the fault. `prefix`: the first
            episodes of that run, none of SOME. `finished`: all before the first of SOME, as one worker has
            them. `skips`: all of its episodes but SOME, which are listed as skipped. `whole`: as many
            episodes, perhaps with other values. `none`: nothing is left. `any`: whatever it is, it verifies.
            `wreck`: it does not, and `verify` says so.
        signed: Whether FaultyEnv, or FaultyPolicy, leaves a sign of its fault. Otherwise `meddle`, `prepare`
            or `after` prove that it happened.
        lines: At most so many lines go to stderr.
        workers: How many workers there are.
        variables: Of the command's environment; given the folder.
        prepare: Called with the folder before the run.
        before: Called in the run's process before it begins.
        meddle: Called with the run, and the folder, while it runs.
        after: Called with the folder when it has ended.
        output: The name of the dataset's folder.
        alone: Whether the command needs a process of its own though nothing else says so.
    """

    name: str
    code: int | tuple[int, ...] = 0
    says: str = ""
    never: str = ""
    env: Mapping[str, object] = field(default_factory=dict)
    kwargs: Mapping[str, object] = field(default_factory=dict)
    acts: Mapping[str, object] = field(default_factory=dict)
    policy: str = ""
    spec: str = SPEC
    options: tuple[str, ...] = ()
    command: tuple[str, ...] = FORTY
    keeps: str = "same"
    signed: bool = True
    lines: int = FEW
    workers: int = 2
    variables: Callable[[Path], Mapping[str, str]] | None = None
    prepare: Callable[[Path], None] | None = None
    before: Callable[[], None] | None = None
    meddle: Callable[[Running, Path], None] | None = None
    after: Callable[[Path], None] | None = None
    output: str | bytes = "out"
    alone: bool = False

    @property
    def is_apart(self) -> bool:
        """Whether the command needs a process of its own: the fault reaches it, or what its processes print."""
        done_to_it = (self.alone, self.meddle, self.before, self.prepare, self.variables, self.never)
        return any(done_to_it) or "local" in self.options or (self.lines, self.output) != (FEW, "out")


def run_row(row: Row, folder: Path) -> None:
    """Run a row in an empty folder, and check everything that must hold of it.

    Most rows share this process and its fork server, which is four times as fast.
    """
    (folder / "signs").mkdir()
    faults = {HIDDEN: json.dumps(_placed(row.env)), FAULT: json.dumps(_placed(row.acts))}
    ran = (_run_apart if row.is_apart else _run_here)(row, folder, {**faults, SIGNS: str(folder / "signs")})
    signs = {sign.name for sign in (folder / "signs").iterdir()}
    _check_said(row, ran)
    assert () == ran.left, ran.said
    if row.signed:
        assert signs - {BAD_ACTION}, f"it never happened: {ran.said}"
    reaches = "warn" in row.options
    assert reaches == (BAD_ACTION in signs), "whether a bad action reached the environment"
    _check_kept(row, folder / os.fsdecode(row.output), ran)
    if row.after is not None:
        row.after(folder)


def _run_apart(row: Row, folder: Path, variables: Mapping[str, str]) -> Ran:
    if row.prepare is not None:
        row.prepare(folder)
    with tempfile.TemporaryDirectory(prefix="r-") as temporary:
        variables = {**variables, "TMPDIR": temporary, **(row.variables(folder) if row.variables else {})}
        with running(_words(row, folder), cwd=folder, env=variables, before=row.before, session=True) as run:
            if row.meddle is not None:
                row.meddle(run, folder)
            ran = run.end()
        wait_for_none(Path(variables["TMPDIR"]))
    return ran


def _run_here(row: Row, folder: Path, variables: Mapping[str, str]) -> Ran:
    ran = called(*_words(row, folder), cwd=folder, code=None, env=variables)
    deadline = time.monotonic() + 2
    while (left := _workers_here()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return replace(ran, left=tuple(left))


def _workers_here() -> list[str]:
    """Return this process's workers: its fork server is the only other process that it has."""
    everything = psutil.Process().children(recursive=True)
    return [str(process) for process in everything if is_worker(process)]


def _words(row: Row, folder: Path) -> list[str | bytes]:
    kwargs = [
        word for name, value in row.kwargs.items() for word in ("--env-kwargs", f"{name}={_toml(value)}")
    ]
    chosen = ["--policy", f"tests.helpers.policies:{_policy(row)}"] if _policy(row) else []
    fixed = ["--env", row.spec, *kwargs, *chosen, "--seed", "5", "--workers", str(row.workers)]
    return [*row.command, *fixed, *row.options, "--output", os.fsencode(folder / os.fsdecode(row.output))]


def _policy(row: Row) -> str:
    return row.policy or ("FaultyPolicy" if row.acts else "")


def _toml(value: object) -> str:
    return str(value) if isinstance(value, float) else json.dumps(value)


def _placed(fault: Mapping[str, object]) -> dict[str, object]:
    """Return the fault with the seeds of the episodes that it is to happen in."""
    at = fault.get("at", ())
    assert isinstance(at, Sequence)
    seeds = [_seeds()[number] for number in at]
    return {name: value for name, value in fault.items() if name != "at"} | (
        {"episodes": seeds} if seeds else {}
    )


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rollout-well-")


@functools.cache
def well(command: tuple[str, ...], policy: str) -> Path:
    """Return the dataset of a run in which nothing happens."""
    output = Path(_folder().name) / re.sub(r"\W+", "-", f"{' '.join(command)}{policy}")
    chosen = ["--policy", f"tests.helpers.policies:{policy}"] if policy else []
    fixed = ["--env", SPEC, "--seed", "5", "--workers", "1", "--sampler", "local"]
    called(*command, *fixed, *chosen, "--quiet", "--output", output)
    return output


@functools.cache
def _seeds() -> list[int]:
    return [int(seed) for seed in episodes_of(well(FORTY, ""))["seed"].to_pylist()]


def _check_said(row: Row, ran: Ran) -> None:
    codes = (row.code,) if isinstance(row.code, int) else row.code
    assert ran.code in codes, ran.said
    assert "internal error" not in ran.stderr, ran.said
    assert re.search(row.says, ran.stderr, re.DOTALL), ran.said
    assert not (row.never and re.search(row.never, ran.stderr)), ran.said
    errors = len(re.findall(r"^rollout: error: ", ran.stderr, re.MULTILINE))
    assert errors == (ran.code > 0) or row.lines > 1_000, ran.said  # A message for a full pipe is lost.
    assert len(ran.stderr.splitlines()) <= row.lines, ran.said
    assert len(ran.stderr) < 1_000 * row.lines, ran.stderr[:2_000]
    if "traceback below" in ran.stderr:
        assert "Traceback (most recent call last)" in ran.stderr, ran.said


def wait_for_none(folder: Path) -> None:
    """Check that the folder for temporary files is empty; a fork server that has just ended may still clean up."""
    deadline = time.monotonic() + SECONDS
    while left := [path.name for path in folder.iterdir()]:
        assert time.monotonic() < deadline, f"these temporary files are left: {left}"
        time.sleep(0.01)


FACTS = ["episode_number", "seed", "length", "return", "terminated", "truncated"]


def _check_kept(row: Row, output: Path, ran: Ran) -> None:
    if row.keeps == "none":
        assert len(row.output) > 255 or [] == numbers_of(output), ran.said
        return
    if row.keeps in ("prefix", "any") and not numbers_of(output):
        return
    called("verify", os.fsencode(output), code=6 if row.keeps == "wreck" else 0)
    checks = {"same": _same, "prefix": _prefix, "finished": _finished, "skips": _skips, "whole": _whole}
    if row.keeps in checks:
        checks[row.keeps](row, output, ran)


def _same(row: Row, output: Path, ran: Ran) -> None:
    assert "complete" == info_of(output)["status"], ran.said
    assert_same_data(well(row.command, _policy(row)), output)


def _facts(path: Path) -> pa.Table:
    return episodes_of(path).select(FACTS)


def _prefix(row: Row, output: Path, ran: Ran) -> None:
    """Episodes 0, 1, 2 … as they are in a good run; of a long run the first forty are compared."""
    numbers = numbers_of(output)
    assert list(range(len(numbers))) == numbers
    assert "interrupted" == info_of(output)["status"] or ran.code < 0
    if row.signed and row.command == FORTY:
        assert len(numbers) <= SOME[0], ran.said
    assert not row.meddle or row.signed or numbers, ran.said
    if numbers and row.spec == SPEC:
        few = min(len(numbers), 40)
        assert _facts(well(FORTY, _policy(row))).slice(0, few).equals(_facts(output).slice(0, few))


def _finished(row: Row, output: Path, ran: Ran) -> None:
    _prefix(row, output, ran)
    assert list(range(SOME[0])) == numbers_of(output), ran.said


def _skips(row: Row, output: Path, ran: Ran) -> None:
    assert list(SOME) == [one["episode_number"] for one in source_of(output)["skipped"]["episodes"]], ran.said
    assert [number for number in range(40) if number not in SOME] == numbers_of(output)
    expected = _facts(well(row.command, _policy(row))).filter(
        pa.array([number not in SOME for number in range(40)])
    )
    assert expected.equals(_facts(output))


def _whole(row: Row, output: Path, ran: Ran) -> None:
    assert "complete" == info_of(output)["status"], ran.said
    assert list(range(int(row.command[-1]))) == numbers_of(output)
