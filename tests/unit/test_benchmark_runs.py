"""How the benchmarks measure many cases: lengths, batches, failures, and the time that is told. Nothing is timed."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import report, usage
from benchmarks.__main__ import main as run_benchmarks
from benchmarks.cases.comparison import Comparison
from benchmarks.documents import read
from benchmarks.pairs import alternate
from benchmarks.results import Case, Result, Row
from benchmarks.runs import batches, expected, measure_all
from benchmarks.sides import Guess, Settings, Side
from benchmarks.stats import Spread

START = {"fast": 0.5, "peer": 9.0}
RATE = {"fast": 1000, "peer": 40_000}


class _Machine:
    """Runs commands in no time, and says that they took what `START` and `RATE` give; some fail."""

    def __init__(self, *, fails: Sequence[str] = ()) -> None:
        self.ran: list[tuple[str, int]] = []
        self.fails = set(fails)

    def run(self, command: Sequence[str]) -> usage.Usage:
        name, steps, _ = command
        self.ran.append((name, int(steps)))
        if name in self.fails:
            raise usage.CommandError(f"{name} broke")
        seconds = int(steps) / RATE.get(name, 1000)
        document = {"steps": int(steps), "seconds": seconds, "version": f"{name} 1.0"}
        return usage.Usage(START.get(name, 0.5) + seconds, 0.0, 0.0, 0, 0, json.dumps(document))

    @property
    def seconds(self) -> float:
        return sum(START.get(name, 0.5) + steps / RATE.get(name, 1000) for name, steps in self.ran)


def _settings(folder: Path, say: Callable[[str], None] = lambda _: None) -> Settings:
    return Settings(pairs=10, seconds=5.0, scratch=folder, say=say)


def _side(name: str, *, rate: float | None = None, self_timed: bool = False) -> Side:
    guess = Guess(START.get(name, 0.5), rate or RATE.get(name, 1000))
    return Side(name, partial(_named_command, name), guess=guess, self_timed=self_timed)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> _Machine:
    """A machine on which all is well."""
    fake = _Machine()
    monkeypatch.setattr("benchmarks.sides.run", fake.run)
    return fake


@pytest.mark.parametrize("guessed", [30, 1000, 1_000_000])
def test_a_length_is_found_in_few_runs_however_wrong_the_guess(
    machine: _Machine, tmp_path: Path, guessed: float
) -> None:
    """One run for the start, one for the rate; two more where the guess was thirty times too low."""
    rounds = alternate([_side("fast", rate=guessed)], _settings(tmp_path))
    found_in = len(machine.ran) - 20
    assert found_in == 2 or (guessed == 30 and found_in <= 4)
    assert [(500, 5000)] * 10 == [(a, b) for (_, a), (_, b) in pairwise(machine.ran[-20:])][::2]
    assert [1000] * 10 == [round(cost.rate) for cost in rounds.costs["fast"]]


def test_a_side_that_times_itself_runs_once_a_round_and_without_its_start(machine: _Machine, tmp_path: Path) -> None:
    """Its rate is that of its own seconds, and a start of nine seconds is paid once a round."""
    rounds = alternate([_side("peer", self_timed=True)], _settings(tmp_path))
    assert [("peer", 40_000), *[("peer", 200_000)] * 10] == machine.ran
    assert [40_000] * 10 == [round(cost.rate) for cost in rounds.costs["peer"]]
    assert {"peer": "peer 1.0"} == rounds.versions


def test_a_case_takes_about_as_long_as_is_told_beforehand(machine: _Machine, tmp_path: Path) -> None:
    """Where the guesses are right, the time told is what passes, and little more than ten times the runs and starts."""
    settings = _settings(tmp_path)
    sides = [_side("fast"), _side("peer", self_timed=True)]
    alternate(sides, settings)
    told = sum(side.expected(settings) for side in sides)
    assert pytest.approx(told, rel=0.02) == machine.seconds
    assert machine.seconds < 1.1 * 10 * ((5.0 + 0.5 + 2 * 0.5) + (5.0 + 9.0))


def test_an_optional_side_that_fails_is_left_out_and_another_ends_all(machine: _Machine, tmp_path: Path) -> None:
    """The rest has all of its rounds; a side that was needed raises."""
    machine.fails = {"peer"}
    rounds = alternate([_side("fast"), _side("peer")], _settings(tmp_path), optional={"peer"})
    assert {"peer": "peer broke"} == rounds.failed
    assert {"fast": 10} == {name: len(costs) for name, costs in rounds.costs.items()}
    with pytest.raises(usage.CommandError, match="peer broke"):
        alternate([_side("fast"), _side("peer")], _settings(tmp_path))


def _beside(peer: str) -> Comparison:
    return Comparison(
        f"beside-{peer}",
        "work",
        _side("ours"),
        (_side(peer, self_timed=True),),
        ("ahead",),
        also=(_side("native"),),
        batch="peers",
    )


def test_comparisons_of_a_batch_share_what_is_the_same(machine: _Machine, tmp_path: Path) -> None:
    """Ours runs once a round beside both, each has a row with either of ours, and one that fails says so alone."""
    machine.fails = {"broken"}
    cases = [_beside("peer"), _beside("broken")]
    results = [result for some in measure_all(cases, _settings(tmp_path)) for result in some]
    assert 20 + 2 == sum(name == "ours" for name, _ in machine.ran)
    fine, broken = results
    assert [("work: ours", "peer (peer 1.0)"), ("work: native", "peer (peer 1.0)")] == [
        (row.what, row.against) for row in fine.rows
    ]
    assert [pytest.approx(1000 / 40_000)] * 2 == [row.figure.median for row in fine.rows if row.figure]
    assert [None, None] == [row.figure for row in broken.rows]
    assert {"failed: broken broke"} == {row.detail for row in broken.rows}
    assert (False, True) == (fine.failed, broken.failed)
    assert {"steps", "wall"} == set(fine.raw["peer"][0])
    assert "| work: ours | broken | - |  | failed: broken broke | ahead |" in report.results_table(results)


def test_only_neighbours_of_one_batch_are_measured_together(tmp_path: Path) -> None:
    """Cases without a batch are alone; what a batch shares is expected to take its time once."""
    alone = Comparison("alone", "work", _side("ours"), (), ())
    a, b = _beside("peer"), _beside("broken")
    assert [(alone,), (a, b), (alone,)] == batches([alone, a, b, alone])
    settings = _settings(tmp_path)
    shared = _side("ours").expected(settings) + _side("native").expected(settings)
    assert pytest.approx(a.expected(settings) + b.expected(settings) - shared) == expected((a, b), settings)


class _Case:
    """A case that gives a figure, cannot be run, or fails."""

    title = "a case"

    def __init__(self, name: str, *, missing: str | None = None, error: BaseException | None = None) -> None:
        self.name = name
        self._missing = missing
        self._error = error

    def missing(self) -> str | None:
        return self._missing

    def expected(self, settings: Settings) -> float:
        return 60.0

    def measure(self, settings: Settings) -> Result:
        if self._error:
            raise self._error
        return Result(self.name, (Row(self.name, "", Spread(1.0, 1.0, 1.0)),))


_CASES: tuple[Case, ...] = (
    _Case("good"),
    _Case("broken", error=usage.CommandError("no such pole")),
    _Case("defect", error=ZeroDivisionError("by zero")),
    _Case("absent", missing="needs mujoco"),
    _Case("last"),
)


def test_a_case_that_fails_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its row says why, the exit code is 1 at the end, and what was told beforehand counts what can be run."""
    monkeypatch.setattr("benchmarks.__main__.CASES", _CASES)
    file = tmp_path / "figures.json"
    assert 1 == run_benchmarks(["--pairs", "2", "--json", str(file)])
    told = capsys.readouterr()
    assert "4 cases, about 4.0 minutes; 1 cannot be run here" in told.err
    assert "[2/4] broken: about 1.0 minutes" in told.err
    assert [
        "| good |  | 1 | 1 - 1 |  |  |",
        "| broken |  | - |  | failed: no such pole |  |",
        "| defect |  | - |  | failed: ZeroDivisionError('by zero') |  |",
        "| absent |  | - |  | needs mujoco |  |",
        "| last |  | 1 | 1 - 1 |  |  |",
    ] == told.out.splitlines()[-5:]
    assert 0 == run_benchmarks(["--table", str(file)])
    assert told.out == capsys.readouterr().out


def test_the_time_to_go_follows_how_the_guesses_fared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four cases takes two minutes rather than the one that it was guessed to take."""
    clock = iter(range(0, 10_000, 60))
    monkeypatch.setattr("benchmarks.runs.time.monotonic", lambda: next(clock))
    said: list[str] = []
    # The clock is read twice a case and once before, and each reading is a minute later.
    list(measure_all([_Case(str(number)) for number in range(4)], _settings(tmp_path, said.append)))
    told = [line for line in said if "to go" in line]
    assert [f"  took 60 s; about {left} minutes to go" for left in ("6.0", "4.0", "2.0", "0.0")] == told


def test_a_run_without_failures_exits_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be run here is no failure."""
    monkeypatch.setattr("benchmarks.__main__.CASES", (_CASES[0], _CASES[3]))
    assert 0 == run_benchmarks([])


def test_a_run_that_is_stopped_keeps_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After Ctrl-C the file holds the cases before, the table is printed, and the exit code is 130."""
    stopped = _Case("stopped", error=KeyboardInterrupt())
    monkeypatch.setattr("benchmarks.__main__.CASES", (_CASES[0], stopped, _CASES[4]))
    file = tmp_path / "figures.json"
    assert 130 == run_benchmarks(["--json", str(file)])
    assert ["good"] == [result.case for result in read(file).results]
    assert "| good |" in capsys.readouterr().out
    assert [file] == list(tmp_path.iterdir())


def _named_command(name: str, steps: int, folder: Path) -> list[str]:
    return [name, str(steps), str(folder)]
