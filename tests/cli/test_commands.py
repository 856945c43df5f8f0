"""The commands `collect` and `exact`, with a stand-in for what they run: arguments in, lines or a document out."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rollout_cli.cli.output import counted
from rollout_cli.config import CollectConfig, EpisodeRange
from rollout_cli.errors import InterruptedRunError, PolicyError, RolloutError, TerminatedRunError, WorkerError
from rollout_cli.progress import Progress
from tests.cli.conftest import Ran

Rollout = Callable[..., Ran]


@dataclass(frozen=True)
class Result:
    """What the stand-in returns; it has the fields of a real result."""

    path: Path
    status: str = "complete"
    episodes: int = 1234
    steps: int = 56789
    mean_return: float = 46.02026
    mean_length: float = 46.02026
    seed: int = 7
    n_workers: int = 3
    wall_time_s: float = 2.0
    steps_per_second: float = 28394.5
    reproducible: dict[str, Any] = field(default_factory=lambda: {"status": "checked", "scope": "any"})

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


class StandIn:
    """Takes the place of the use case."""

    def __init__(self) -> None:
        self.config: CollectConfig | None = None
        self.raises: BaseException | None = None
        self.mean_return = 46.02026

    def collect(self, config: CollectConfig, *, progress: Progress, argv: tuple[str, ...] = ()) -> Result:
        self.config = config
        progress.start(label=config.env, total_steps=config.timesteps, total_episodes=None)
        progress.notice("a notice")
        progress.warn("a warning")
        progress.update(episodes=1234, steps=56789, return_sum=1.0)
        if self.raises is not None:
            raise self.raises
        progress.finish()
        return Result(config.output, mean_return=self.mean_return)

    def asked(self) -> CollectConfig:
        assert self.config is not None, "the run was not begun"
        return self.config


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    module = ModuleType("rollout_cli.collect")
    vars(module)["collect"] = made.collect
    monkeypatch.setitem(sys.modules, "rollout_cli.collect", module)
    return made


def test_flags_reach_the_run(rollout: Rollout, stand_in: StandIn) -> None:
    """Every flag of collect is taken, long or short."""
    ran = rollout(
        "collect", "--episodes", "2:5", "-p", "m:p", "-e", "Env-v0", "--env-kwargs", "a=1", "--env-kwargs", "b=x",
        "-o", "out", "-w", "3", "--sampler", "local", "--start-method", "spawn", "--worker-class", "m:W",
        "--worker-args", "k=2", "--worker-args", "name=x",
        "--max-episode-length", "9", "--seed", "7", "--order", "arrival", "--deterministic", "--next-observation",
        "--overwrite",
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    assert stand_in.asked() == CollectConfig(
        episodes=EpisodeRange(2, 5),
        policy="m:p",
        env="Env-v0",
        env_kwargs={"a": 1, "b": "x"},
        output=Path("out"),
        workers=3,
        sampler="local",
        start_method="spawn",
        worker_class="m:W",
        worker_args={"k": 2, "name": "x"},
        max_episode_length=9,
        seed=7,
        order="arrival",
        deterministic=True,
        next_observation=True,
        overwrite=True,
    )


def test_exact(rollout: Rollout, stand_in: StandIn) -> None:
    """`exact` asks for a number of episodes from each worker."""
    assert rollout("exact", "--episodes-per-worker", "5", "--workers", "3").code == 0
    asked = stand_in.asked()
    assert (asked.command, asked.episodes_per_worker, asked.workers, asked.timesteps) == ("exact", 5, 3, None)


def test_variables_and_file(
    rollout: Rollout, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The environment and --config are read, and a flag beats both."""
    (tmp_path / "run.toml").write_text("timesteps = 5\nworkers = 1\noverwrite = true\nseed = 1")
    monkeypatch.setenv("ROLLOUT_WORKERS", "2")
    monkeypatch.setenv("ROLLOUT_SEED", "2")
    assert rollout("collect", "-c", "run.toml", "--seed", "3", "--no-overwrite").code == 0
    asked = stand_in.asked()
    assert (asked.timesteps, asked.workers, asked.seed, asked.overwrite) == (5, 2, 3, False)


def test_the_result_is_on_stdout(rollout: Rollout) -> None:
    """Stdout has the result, stderr has progress and messages."""
    ran = rollout("collect", "--timesteps", "100", "-o", "out/\x1bx")
    assert ran.stdout.splitlines() == [
        "dataset       out/\\x1bx",
        "status        complete",
        "episodes      1,234",
        "steps         56,789",
        "mean return   46.0203",
        "mean length   46.0203",
        "seed          7",
        "reproducible  checked",
        "time          2.0 s, 28,394 steps/s with 3 workers",
    ]
    notice, warning, progress = ran.stderr.splitlines()
    assert (notice, warning) == ("notice: a notice", "warning: a warning")
    assert progress.startswith("CartPole-v1: 56,789/100 steps, 1,234 episodes, ")


@pytest.mark.parametrize(("count", "told"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1234, "1,234 files")])
def test_one_of_something_is_no_plural(count: int, told: str) -> None:
    """As in what a run with one worker says."""
    assert told == counted(count, "file")


@pytest.mark.parametrize(
    ("flags", "stderr"),
    [
        (["--no-progress"], ["notice: a notice", "warning: a warning"]),
        (["--quiet"], ["warning: a warning"]),
        (["-q", "--progress"], ["warning: a warning"]),
        (["--json"], ["warning: a warning"]),
        (["--json", "--no-progress"], ["warning: a warning"]),
    ],
)
def test_what_is_shown_besides(rollout: Rollout, flags: list[str], stderr: list[str]) -> None:
    """Progress and notices can be turned off; warnings stay, and never reach stdout."""
    ran = rollout("collect", "--timesteps", "100", *flags)
    assert ran.stderr.splitlines() == stderr
    assert "warning" not in ran.stdout


def test_progress_can_be_asked_for_beside_json(rollout: Rollout) -> None:
    """--json --progress shows progress on stderr."""
    ran = rollout("collect", "--timesteps", "100", "--json", "--progress")
    assert "56,789/100 steps" in ran.stderr
    assert json.loads(ran.stdout)["steps"] == 56789


def test_quiet_prints_the_path_alone(rollout: Rollout) -> None:
    """A script can take the path from stdout."""
    assert rollout("collect", "--timesteps", "1", "-q", "-o", "here").stdout == "here\n"


def test_json(rollout: Rollout, stand_in: StandIn) -> None:
    """--json prints one valid document; what is no number becomes null."""
    stand_in.mean_return = float("nan")
    document = json.loads(rollout("collect", "--timesteps", "1", "--json", "-o", "here").stdout)
    assert document == {**Result(Path("here")).to_dict(), "mean_return": None}


def test_dry_run(rollout: Rollout, stand_in: StandIn, tmp_path: Path) -> None:
    """--dry-run prints the configuration, which --config reads back, and runs nothing."""
    flags = ["--timesteps", "5", "--env-kwargs", "size=[1, 2]", "--seed", "3", "-o", "out"]
    ran = rollout("collect", *flags, "--dry-run")
    assert (ran.code, ran.stderr, stand_in.config) == (0, "", None)
    (tmp_path / "again.toml").write_text(ran.stdout)
    assert rollout("collect", "--config", "again.toml", "--dry-run").stdout == ran.stdout
    as_json = rollout("collect", *flags, "--dry-run", "--json")
    assert json.loads(as_json.stdout) == tomllib.loads(ran.stdout)


ERRORS: list[tuple[BaseException, int, str]] = [
    (PolicyError("the policy raised"), 3, "PolicyError"),
    (WorkerError("worker 2 died"), 4, "WorkerError"),
    (InterruptedRunError("stopped"), 130, "InterruptedRunError"),
    (TerminatedRunError("ended"), 143, "TerminatedRunError"),
    (KeyboardInterrupt(), 130, "InterruptedRunError"),
    (KeyError("x"), 1, "InternalError"),
    (BrokenPipeError(32, "Broken pipe"), 1, "InternalError"),
    (RolloutError("odd"), 1, "RolloutError"),
]


@pytest.mark.parametrize(("error", "code", "name"), ERRORS)
def test_errors_end_in_their_codes(
    rollout: Rollout, stand_in: StandIn, error: BaseException, code: int, name: str
) -> None:
    """Each class ends in its exit code, as lines on stderr or, with --json, as one document on stdout."""
    stand_in.raises = error
    plain = rollout("collect", "--timesteps", "1", "--no-progress")
    assert (plain.code, plain.stdout) == (code, "")
    assert "rollout: error: " in plain.stderr
    document = json.loads(rollout("collect", "--timesteps", "1", "--json").stdout)["error"]
    assert (document["class"], document["exit_code"]) == (name, code)
    assert set(document) - {"details"} == {"class", "message", "hint", "exit_code"}


def test_an_error_is_a_line_a_hint_and_details(rollout: Rollout, stand_in: StandIn) -> None:
    """The message comes first, then the hint, then what happened in the worker; nothing in them drives a terminal."""
    stand_in.raises = PolicyError(
        "the policy raised\nin \x1b[31mworker 3", hint="look below", details="Traceback:\n  \x07 boom\n"
    )
    ran = rollout("collect", "--timesteps", "1", "-q")
    assert ran.stderr.splitlines() == [
        "warning: a warning",
        "rollout: error: the policy raised in \\x1b[31mworker 3",
        "  hint: look below",
        "",
        "Traceback:",
        "  \\x07 boom",
    ]


def test_tracebacks(rollout: Rollout, stand_in: StandIn) -> None:
    """A user's error shows no traceback of ours unless --verbose asks; a fault of ours always does."""
    stand_in.raises = PolicyError("the policy raised")
    assert "Traceback" not in rollout("collect", "--timesteps", "1").stderr
    assert "Traceback" in rollout("collect", "--timesteps", "1", "--verbose").stderr
    assert "Traceback" in rollout("collect", "--timesteps", "1", "-v").stderr
    stand_in.raises = KeyError("x")
    ran = rollout("collect", "--timesteps", "1")
    assert "rollout: error: internal error: KeyError: 'x'" in ran.stderr
    assert "Traceback" in ran.stderr


def test_the_bar_is_ended_before_an_error_is_shown(rollout: Rollout, stand_in: StandIn) -> None:
    """Progress is finished when the run raises, whoever forgot it."""
    stand_in.raises = PolicyError("the policy raised")
    lines = rollout("collect", "--timesteps", "100").stderr.splitlines()
    assert lines[-2].startswith("CartPole-v1: 56,789/100 steps")
    assert lines[-1] == "rollout: error: the policy raised"


USAGE_ERRORS = [
    (["collect"], "ConfigError", "neither --timesteps nor --episodes is given"),
    (["collect", "--timesteps", "0"], "ConfigError", "--timesteps must be an integer of at least 1, got '0'"),
    (["collect", "--timesteps", "1", "--workers", "0"], "ConfigError", "--workers must be"),
    (["collect", "--timesteps", "1", "--config", "none.toml"], "ConfigError", "cannot read the configuration file"),
    (["collect", "--episodes-per-worker", "1"], "UsageError", "No such option: --episodes-per-worker"),
    (["collect", "--timesteps"], "UsageError", "--timesteps"),
    (["collect", "stray"], "UsageError", "stray"),
    (["exact"], "ConfigError", "--episodes-per-worker is missing"),
    (["exact", "--order", "index"], "UsageError", "No such option: --order"),
    (["colect"], "UsageError", "colect"),
    (["policy"], "UsageError", "Missing command"),
    (["policy", "pack", "a:b"], "UsageError", "--output"),
    (["info"], "UsageError", "DIR"),
]


@pytest.mark.parametrize(("arguments", "name", "part"), USAGE_ERRORS)
def test_usage_errors(rollout: Rollout, stand_in: StandIn, arguments: list[str], name: str, part: str) -> None:
    """What cannot be run ends with 2, in a line and a hint, or a document; nothing is begun."""
    plain = rollout(*arguments)
    assert (plain.code, plain.stdout) == (2, "")
    assert part in plain.stderr.splitlines()[0]
    assert "  hint: " in plain.stderr
    ran = rollout(*arguments[:1], "--json", *arguments[1:]) if arguments[-1] != "--timesteps" else None
    if ran is not None and arguments[0] not in {"policy", "colect"}:
        document = json.loads(ran.stdout)["error"]
        assert (ran.code, ran.stderr, document["class"], document["exit_code"]) == (2, "", name, 2)
    assert stand_in.config is None


def test_version(rollout: Rollout) -> None:
    """--version prints the installed version."""
    assert rollout("--version").stdout == "rollout 0.1.0\n"


def test_nothing_asked_is_help(rollout: Rollout) -> None:
    """`rollout` alone shows what it can do."""
    ran = rollout()
    assert ran.code == 0
    for command in ("collect", "exact", "info", "policy"):
        assert command in ran.stdout
