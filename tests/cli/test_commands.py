"""`collect` and `exact` with a stand-in for the run: arguments in, lines or a document out."""

from __future__ import annotations

import errno
import json
import re
import sys
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.errors import InterruptedRunError, PolicyError, RolloutError, TerminatedRunError, WorkerError
from rollout_cli.options.config import CollectConfig
from rollout_cli.options.types import EpisodeRange
from rollout_cli.progress import Progress
from tests.cli.calling import Caller


@dataclass(frozen=True)
class Result:
    """The stand-in's result; it has the fields of a real one."""

    path: Path
    status: str = "complete"
    stopped_by: str = "max_time"
    episodes: int = 1234
    steps: int = 56789
    mean_return: float = 46.02026
    mean_length: float = 46.02026
    seed: int = 7
    n_workers: int = 3
    wall_time_s: float = 2.7
    sampling_time_s: float = 2.0
    steps_per_second: float = 28394.5
    acceptance: None = None
    skipped: int = 0
    reproducible: dict[str, Any] = field(default_factory=lambda: {"status": "unknown", "reason": "no time"})


class StandIn:
    """Takes the place of the run."""

    def __init__(self) -> None:
        self.config: CollectConfig | None = None
        self.raises: BaseException | None = None
        self.mean_return = 46.02026

    def collect(self, config: CollectConfig, *, progress: Progress) -> Result:
        self.config = config
        progress.start(label=str(config.env), total_steps=config.timesteps, total_episodes=None)
        progress.notice("a notice")
        progress.warn("a warning")
        progress.begin()
        progress.update(episodes=1234, steps=56789, return_sum=1.0)
        if self.raises is not None:
            raise self.raises
        progress.finish()
        return Result(config.output, mean_return=self.mean_return)

    def asked(self) -> CollectConfig:
        assert self.config is not None, "the run did not begin"
        return self.config


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.setattr("rollout_cli.run.collect.collect", made.collect)
    monkeypatch.setattr("rollout_cli.samplers.processes.fork_server.running_server", lambda method: None)
    return made


def test_flags_reach_the_run(rollout: Caller, stand_in: StandIn) -> None:
    """Flags are taken, long or short, and given again."""
    rollout(
        "collect", "--episodes", "2:5", "-p", "m:p", "-e", "Env-v0", "--env-kwargs", "a=1", "--env-kwargs", "b=x",
        "-o", "out", "-w", "3", "-m", "2", "--sampler", "local", "--start-method", "spawn", "--worker-class", "m:W",
        "--worker-args", "k=2", "--worker-args", "name=x", "--max-episode-length", "9", "--seed", "7",
        "--deterministic", "--next-observation", "--overwrite", "--drop-info", "a", "--drop-info", "b",
    )  # fmt: skip
    expected = CollectConfig(
        episodes=EpisodeRange(2, 5), policy="m:p", env="Env-v0", env_kwargs={"a": 1, "b": "x"}, output=Path("out"),
        workers=3, envs_per_worker=2, sampler="local", start_method="spawn", worker_class="m:W",
        worker_args={"k": 2, "name": "x"}, max_episode_length=9, seed=7, deterministic=True, next_observation=True,
        overwrite=True, drop_info=("a", "b"),
    )  # fmt: skip
    assert expected == stand_in.asked()
    rollout("exact", "--episodes-per-worker", "5", "--workers", "3", "-o", "out", "--seed", "7")
    exact = CollectConfig(command="exact", episodes_per_worker=5, workers=3, output=Path("out"), seed=7)
    assert exact == stand_in.asked()


def test_variables_and_file(rollout: Caller, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment and --config are read, and a flag beats both."""
    Path("run.toml").write_text("timesteps = 5\nworkers = 1\noverwrite = true\nseed = 1")
    monkeypatch.setenv("ROLLOUT_WORKERS", "2")
    monkeypatch.setenv("ROLLOUT_SEED", "2")
    rollout("collect", "-c", "run.toml", "--seed", "3", "--no-overwrite")
    asked = stand_in.asked()
    assert (5, 2, 3, False) == (asked.timesteps, asked.workers, asked.seed, asked.overwrite)


def test_the_result_is_on_stdout(rollout: Caller) -> None:
    """Stdout has the result; stderr has progress, messages, and the next command."""
    ran = rollout("collect", "--timesteps", "100", "-o", "out/\x1bx")
    assert [
        "dataset       out/\\x1bx",
        "status        complete (stopped by --max-time)",
        "episodes      1,234",
        "steps         56,789",
        "mean return   46.0203",
        "mean length   46.0203",
        "seed          7",
        "reproducible  unknown (no time)",
        "time          2.7 s (sampling 2.0 s, 28,394 steps/s with 3 workers)",
    ] == ran.stdout.splitlines()
    notice, warning, progress, following = ran.stderr.splitlines()
    assert ("notice: a notice", "warning: a warning") == (notice, warning)
    assert progress.startswith("CartPole-v1: 56,789/100 steps, 1,234 episodes, ")
    assert "next: rollout info 'out/\\x1bx'" == following


@pytest.mark.parametrize(
    ("flags", "stderr"),
    [
        (["--no-progress"], ["notice: a notice", "warning: a warning", "next: rollout info here"]),
        (["--quiet"], ["warning: a warning"]),
        (["-q", "--progress"], ["warning: a warning"]),
        (["--json"], ["warning: a warning"]),
        (["--json", "--no-progress"], ["warning: a warning"]),
    ],
)
def test_messages_beside_the_result(rollout: Caller, flags: list[str], stderr: list[str]) -> None:
    """Progress and notices can be turned off; warnings stay, and never reach stdout."""
    ran = rollout("collect", "--timesteps", "100", "-o", "here", *flags)
    assert stderr == ran.stderr.splitlines()
    assert "warning" not in ran.stdout


def test_progress_beside_json_and_a_path_alone(rollout: Caller) -> None:
    """--json --progress shows progress on stderr; --quiet prints the path, which a script can take."""
    ran = rollout("collect", "--timesteps", "100", "--json", "--progress")
    assert "56,789/100 steps" in ran.stderr
    assert 56789 == json.loads(ran.stdout)["steps"]
    assert "here\n" == rollout("collect", "--timesteps", "1", "-q", "-o", "here").stdout


def test_json(rollout: Caller, stand_in: StandIn) -> None:
    """--json prints one document; nan, which JSON does not have, is a text."""
    stand_in.mean_return = float("nan")
    document = json.loads(rollout("collect", "--timesteps", "1", "--json", "-o", "here").stdout)
    assert {**asdict(Result(Path("here"))), "path": "here", "mean_return": "nan"} == document


def test_dry_run(rollout: Caller, stand_in: StandIn) -> None:
    """--dry-run prints the configuration, which --config reads back, and runs nothing."""
    flags = ["--timesteps", "5", "--env-kwargs", "size=[1, inf]", "--seed", "3", "-o", "out"]
    ran = rollout("collect", *flags, "--dry-run")
    assert ("", None) == (ran.stderr, stand_in.config)
    Path("again.toml").write_text(ran.stdout)
    assert ran.stdout == rollout("collect", "--config", "again.toml", "--dry-run").stdout
    as_json = json.loads(rollout("collect", *flags, "--dry-run", "--json").stdout)
    assert {**tomllib.loads(ran.stdout), "env_kwargs": {"size": [1, "inf"]}} == as_json


ERRORS: list[tuple[BaseException, int, str]] = [
    (PolicyError("the policy raised"), 3, "PolicyError"),
    (WorkerError("worker 2 died"), 4, "WorkerError"),
    (InterruptedRunError("stopped"), 130, "InterruptedRunError"),
    (TerminatedRunError("ended"), 143, "TerminatedRunError"),
    (KeyboardInterrupt(), 130, "InterruptedRunError"),
    (MemoryError(), 4, "WorkerError"),
    (ImportError("libarrow.so: failed to map segment from shared object"), 4, "WorkerError"),
    (SystemError("error return without exception set"), 4, "WorkerError"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), 4, "WorkerError"),
    (OSError(errno.EMFILE, "Too many open files"), 5, "StorageError"),
    (FileNotFoundError(errno.ENOENT, "No such file or directory", "here"), 5, "StorageError"),
    (KeyError("x"), 1, "InternalError"),
    (RolloutError("odd"), 1, "RolloutError"),
]


@pytest.mark.parametrize(("error", "code", "name"), ERRORS)
def test_errors_end_in_their_codes(
    rollout: Caller, stand_in: StandIn, error: BaseException, code: int, name: str
) -> None:
    """Each class ends in its exit code, as lines on stderr or, with --json, as one document on stdout."""
    stand_in.raises = error
    plain = rollout("collect", "--timesteps", "1", "--no-progress", code=code)
    assert "" == plain.stdout
    assert "rollout: error: " in plain.stderr
    document = json.loads(rollout("collect", "--timesteps", "1", "--json", code=code).stdout)["error"]
    assert (name, code) == (document["class"], document["exit_code"])
    assert {"code", "class", "message", "hint", "exit_code"} == set(document) - {"details"}


def test_an_error_is_a_line_a_hint_and_details(rollout: Caller, stand_in: StandIn) -> None:
    """The message comes first, then the hint, then the worker's traceback; nothing in them drives a terminal."""
    stand_in.raises = PolicyError(
        "the policy raised\nin \x1b[31mworker 3", hint="look below", details="Traceback:\n  \x07 boom\n"
    )
    ran = rollout("collect", "--timesteps", "1", "-q", code=3)
    assert [
        "warning: a warning",
        "rollout: error: the policy raised in \\x1b[31mworker 3 [policy-failed]",
        "  hint: look below",
        "",
        "Traceback:",
        "  \\x07 boom",
    ] == ran.stderr.splitlines()


def test_errors_are_coloured_on_a_terminal(
    rollout: Caller, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless NO_COLOR says otherwise."""
    stand_in.raises = PolicyError("the policy raised")
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;31mrollout: error:\x1b[0m the policy" in rollout("collect", "-n", "1", "-q", code=3).stderr
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in rollout("collect", "-n", "1", "-q", code=3).stderr


def test_tracebacks(rollout: Caller, stand_in: StandIn) -> None:
    """A user's error shows no traceback of ours unless --verbose asks; a fault of ours always does."""
    stand_in.raises = PolicyError("the policy raised")
    assert "Traceback" not in rollout("collect", "--timesteps", "1", code=3).stderr
    assert "Traceback" in rollout("collect", "--timesteps", "1", "--verbose", code=3).stderr
    assert "Traceback" in rollout("collect", "--timesteps", "1", "-v", code=3).stderr
    stand_in.raises = KeyError("x")
    lines = rollout("collect", "--timesteps", "100", code=1).stderr.splitlines()
    (at,) = (place for place, line in enumerate(lines) if "[internal]" in line)
    assert "KeyError: 'x'" in lines[at]
    # Progress is finished, whoever forgot it.
    assert lines[at - 1].startswith("CartPole-v1: 56,789/100 steps")
    assert any(line.startswith("Traceback") for line in lines[at:])


def test_a_long_traceback_is_cut(rollout: Caller, stand_in: StandIn) -> None:
    """Its beginning and its end fit on a screen; --verbose and documents have all of it."""
    whole = [f"line {number}" for number in range(250)]
    stand_in.raises = PolicyError("the policy raised", details="\n".join(whole))
    shown = rollout("collect", "--timesteps", "1", "-q", code=3).stderr.splitlines()[-30:]
    mark = "  … 221 lines omitted; --verbose shows them …"
    assert [*whole[:10], mark, *whole[231:]] == shown
    assert "\n".join(whole) in rollout("collect", "--timesteps", "1", "--verbose", code=3).stderr
    document = json.loads(rollout("collect", "--timesteps", "1", "--json", code=3).stdout)
    assert "\n".join(whole) == document["error"]["details"]
    stand_in.raises = PolicyError("the policy raised", details="\n".join(whole[:30]))
    assert whole[:30] == rollout("collect", "--timesteps", "1", "-q", code=3).stderr.splitlines()[-30:]


USAGE_ERRORS = [
    (["collect"], "ConfigError", r"--timesteps .*--episodes .*--max-time.*\[amount-option\]"),
    (["collect", "--timesteps", "0"], "ConfigError", r"--timesteps .*\[option-value\]"),
    (["collect", "--timesteps", "1", "--workers", "3000"], "ConfigError", r"--workers .*\[option-value\]"),
    (
        ["collect", "--timesteps", "1", "--config", "none.toml"],
        "ConfigError",
        r"'none.toml'.*\[spec-file-missing\]",
    ),
    (["collect", "--resume"], "ConfigError", r"--resume.*\[resume-without-dataset\]"),
    (["collect", "--episodes-per-worker", "1"], "UsageError", r"--episodes-per-worker.*\[command-line\]"),
    (["collect", "--order", "arrival"], "UsageError", r"--order.*\[command-line\]"),
    (["collect", "--timesteps"], "UsageError", r"--timesteps.*\[command-line\]"),
    (["collect", "stray"], "UsageError", r"stray.*\[command-line\]"),
    (["exact"], "ConfigError", r"--episodes-per-worker.*\[amount-option\]"),
    (["exact", "--timesteps", "1"], "UsageError", r"--timesteps.*\[command-line\]"),
    (["replay", "here"], "UsageError", r"\[episodes-option\]"),
    (["replay", "here", "--all", "--episodes", "1:2"], "UsageError", r"\[episodes-option\]"),
    (["replay", "here", "--episode", "3", "--episodes", "1:2"], "UsageError", r"\[episodes-option\]"),
    (["replay", "here", "--episodes", "2:1"], "ConfigError", r"--episodes .*\[option-value\]"),
    (["info"], "UsageError", r"DIR.*\[command-line\]"),
    (["colect"], "UsageError", r"colect.*\[command-line\]"),
    (["policy"], "UsageError", r"\[command-line\]"),
    (["policy", "pack", "a:b"], "UsageError", r"--output.*\[command-line\]"),
    (["policy", "inspect", "a.pkl"], "UsageError", r"inspect.*\[command-line\]"),
]


@pytest.mark.parametrize(("arguments", "name", "part"), USAGE_ERRORS)
def test_usage_errors(rollout: Caller, stand_in: StandIn, arguments: list[str], name: str, part: str) -> None:
    """They end with 2, in a line and a hint, or a document; nothing is begun."""
    plain = rollout(*arguments, code=2)
    assert "" == plain.stdout
    assert re.search(part, plain.stderr.splitlines()[0])
    assert "  hint: " in plain.stderr
    if arguments[0] not in {"policy", "colect"} and arguments[-1] != "--timesteps":
        ran = rollout(*arguments, "--json", code=2)
        document = json.loads(ran.stdout)["error"]
        assert ("", name, 2) == (ran.stderr, document["class"], document["exit_code"])
    assert stand_in.config is None


def test_version_and_help(rollout: Caller) -> None:
    """`rollout` alone shows its commands; switches have no placeholder that reads as a value."""
    assert "rollout 0.1.0\n" == rollout("--version").stdout
    ran = rollout()
    for command in ("collect", "exact", "info", "verify", "repair", "replay", "policy"):
        assert command in ran.stdout
    for words in ([], ["collect"], ["exact"], ["info"], ["policy"], ["policy", "pack"]):
        assert "<bool>" not in rollout(*words, "--help").stdout
