"""The benchmarks' pure helpers: statistics, pairing, the table, and what a timed command is said to have cost.

Nothing is timed here; no benchmark is run.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks import policies, report, usage
from benchmarks.__main__ import CASES, chosen
from benchmarks.pairs import Amounts, alternate, amounts
from benchmarks.probes import SLEEPING_STEPS, Sleeping
from benchmarks.product import collect
from benchmarks.results import Result, Row
from benchmarks.sides import Settings, Side, read_document
from benchmarks.stats import Cost, Spread, paired_ratios

ROOT = Path(__file__).resolve().parents[2]


def test_spread_is_median_least_and_greatest() -> None:
    """The median is not the mean, and the spread is the whole range."""
    assert Spread(2.0, 1.0, 9.0) == Spread.of([9.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="no figures"):
        Spread.of([])


def test_cost_beyond_a_short_run_leaves_the_start_out() -> None:
    """Two runs that both start in 3 s differ by their steps alone."""
    long, short = Cost(1100, 3 + 11.0, 1 + 2.2, 5 + 22.0), Cost(100, 3 + 1.0, 1 + 0.2, 5 + 2.0)
    cost = long.beyond(short)
    assert 1000 == cost.steps
    assert pytest.approx(100.0) == cost.rate
    assert pytest.approx([10_000, 2_000, 20_000]) == [cost.wall_us, cost.main_us, cost.others_us]
    assert pytest.approx(0.2) == cost.main_share


@pytest.mark.parametrize("long", [Cost(100, 9.0, 0, 0), Cost(200, 1.0, 0, 0)])
def test_runs_that_cannot_be_told_apart_have_no_rate(long: Cost) -> None:
    """A run with no more steps, or no more time, than the short one is refused rather than divided by."""
    with pytest.raises(ValueError, match="too short to tell apart"):
        long.beyond(Cost(100, 2.0, 0, 0))


def test_ratios_are_taken_pair_by_pair() -> None:
    """Each of our figures is divided by that of its own round."""
    assert [2.0, 0.5] == paired_ratios([4.0, 2.0], [2.0, 4.0])
    with pytest.raises(ValueError, match="zip"):
        paired_ratios([1.0], [])


def test_amounts_are_whole_multiples_and_differ_by_the_seconds_that_are_wanted() -> None:
    """1,010 steps a second for 5 s are about 5,050 steps, in granules of 16; a long run has a granule more at least."""
    assert Amounts(32 * 16, 316 * 16) == amounts(1010.0, 5.0, 16)
    assert Amounts(64, 128) == amounts(1.0, 1.0, 64)


def test_a_document_is_all_of_the_output_or_its_last_line() -> None:
    """The product prints one document over many lines, a driver may print other things first."""
    assert 7 == read_document(json.dumps({"steps": 7}, indent=2))["steps"]
    assert 8 == read_document('Saving...\n{"steps": 8}\n')["steps"]
    with pytest.raises(usage.CommandError, match="printed no JSON document"):
        read_document("[1]\n")
    with pytest.raises(usage.CommandError, match="with its steps and seconds, but"):
        read_document('{"steps": 7}', "steps", "seconds")


def test_sides_take_turns_and_every_run_writes_to_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once lengths are found, the order is A B A B, each side short and then long; start-up leaves the rates."""
    ran: list[tuple[str, int, str]] = []

    def run(command: Sequence[str]) -> usage.Usage:
        name, steps, folder = command
        ran.append((name, int(steps), folder))
        wall = 3.0 + int(steps) / {"a": 20_000, "b": 10_000}[name]
        return usage.Usage(wall, 0.0, 0.0, 0, 0, json.dumps({"steps": int(steps)}))

    monkeypatch.setattr("benchmarks.sides.run", run)
    a, b = (Side(name, partial(_named_command, name)) for name in "ab")
    costs = alternate([a, b], Settings(pairs=2, seconds=5.0, scratch=tmp_path, say=lambda _: None)).costs
    order = [(name, steps) for name, steps, _ in ran[-8:]]
    a_round, b_round = [("a", 10_000), ("a", 100_000)], [("b", 5_000), ("b", 50_000)]
    assert [*a_round, *b_round, *a_round, *b_round] == order
    assert [20_000, 20_000, 10_000, 10_000] == [round(cost.rate) for cost in (*costs["a"], *costs["b"])]
    assert len(ran) == len({folder for *_, folder in ran})
    assert [] == list(tmp_path.iterdir())


def _named_command(name: str, steps: int, folder: Path) -> list[str]:
    return [name, str(steps), str(folder)]


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


# What inherits orphans waits for all children that it has, so it is a process of its own here.
_MEASURE = """
import json, sys
from dataclasses import asdict
from benchmarks.usage import run
print(json.dumps(asdict(run([sys.executable, "-c", sys.argv[1]]))))
"""

_ORPHAN = """
import subprocess, sys
busy = "import time\\nuntil = time.process_time() + 0.3\\nwhile time.process_time() < until: pass\\nbytearray(64 << 20)"
subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print("the first process ends before its child")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes can be followed to their end on Linux alone")
def test_the_cost_of_a_process_that_nobody_waited_for_is_told() -> None:
    """A child that outlives its parent is inherited, waited for, and counted apart from it."""
    command = [*_python(_MEASURE), _ORPHAN]
    told = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    assert "the first process ends before its child\n" == told["output"]
    assert told["cpu_others"] >= 0.3
    assert told["cpu_main"] < told["cpu_others"]
    assert told["peak_others"] >= 64 << 20 > told["peak_main"]


def test_a_failing_command_says_why() -> None:
    """The error names the exit code and what the command said last: its error document, or its last lines."""
    # A process of its own again, as above.
    code = "from benchmarks.usage import run; run(['{}', '-c', {!r}])"
    said = 'import sys; print(\'{"error": {"message": "no such pole"}}\'); sys.exit(3)'
    done = subprocess.run(
        _python(code.format(sys.executable, said)), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "exit code 3 of:" in done.stderr
    assert "no such pole" == done.stderr.strip().splitlines()[-1]


def test_table_has_a_row_a_figure_and_says_why_others_are_missing() -> None:
    """A ratio stands alone, other figures have their unit, and nothing breaks a cell."""
    row = Row("a | b", "bare", Spread(0.951234, 0.9, 1.0), detail="x\ny", goal="0.95 / 1.00")
    seconds = Row("start", "", Spread(0.5, 0.4, 12345.6), unit="s")
    lines = report.results_table([Result("one", (row, seconds)), Result("two", reason="not supported")])
    assert [
        "| a \\| b | bare | 0.951 | 0.9 - 1 | x; y | 0.95 / 1.00 |",
        "| start |  | 0.5 s | 0.4 - 12,346 |  |  |",
        "| two |  | - |  | not supported |  |",
    ] == lines[2:]


def test_cases_are_chosen_by_pattern_and_have_names_of_their_own() -> None:
    """No two cases share a name; a pattern that fits nothing chooses nothing."""
    assert len(CASES) == len({case.name for case in CASES})
    assert ["native-random", "native-mlp"] == [case.name for case in chosen(["native-*"])]
    assert [] == chosen(["nothing"])
    assert len(CASES) == len(chosen([]))


def test_batched_policies_choose_what_they_choose_one_by_one() -> None:
    """The native side of a comparison does the work of the side with one environment a worker."""
    observations = np.random.default_rng(0).standard_normal((256, 4)).astype(np.float32)
    for one, batched in ((policies.linear, policies.BatchedLinear()), (policies.mlp, policies.BatchedMlp())):
        assert list(map(one, observations)) == batched.get_actions(observations)[0].tolist()
        assert one(observations[0]) == batched.get_action(observations[0])[0]


def test_the_sleeping_environment_ends_its_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step sleeps 10 ms, and an episode has 50."""
    slept: list[float] = []
    monkeypatch.setattr("benchmarks.probes.time.sleep", slept.append)
    env = Sleeping()
    env.reset(seed=0)
    ended = [env.step(np.int64(0))[2] for _ in range(SLEEPING_STEPS)]
    assert [False] * (SLEEPING_STEPS - 1) + [True] == ended
    assert [0.01] * SLEEPING_STEPS == slept


def test_the_bare_loop_is_at_most_thirty_lines() -> None:
    """What others are measured by can be read at a glance."""
    assert len((ROOT / "benchmarks" / "bare.py").read_text(encoding="utf-8").splitlines()) <= 30


def test_the_product_is_measured_with_all_that_a_user_gets() -> None:
    """The command writes a dataset, with progress, two workers and a fixed seed."""
    command = collect("--env", "Pendulum-v1").command(500, Path("out"))
    assert ["collect", "--timesteps", "500", "--output", "out", "--workers", "2", "--seed", "0"] == command[1:10]
    assert ["--json", "--progress", "--env", "Pendulum-v1"] == command[10:]
