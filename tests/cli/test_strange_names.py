"""Names and messages of others never drive a terminal, are never taken for markup, and never break a line."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import psutil
import pytest

from rollout_cli.config import CollectConfig, config_to_toml
from rollout_cli.config.sources import values_from_file
from rollout_cli.progress import LineProgress, RichProgress
from rollout_cli.samplers import MultiprocessingSampler
from tests.cli.conftest import Ran, run_command
from tests.support.policies import plain_policy

Rollout = Callable[..., Ran]

NASTY = "[red]x\x1b[2Jy\nz\x00\u202e\x9b1m[/red]"
SHOWN = "[red]x\\x1b[2Jy\\nz\\x00\\u202e\\x9b1m[/red]"
ARGUMENT = NASTY.replace("\x00", "")
"""What a command line can hold of it."""

NASTY_ENV = f"""
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

NASTY = {NASTY!r}

class Nasty(CartPoleEnv):
    def __init__(self, where=""):
        super().__init__()
        self.where = where
        self.spec = gymnasium.spec("CartPole-v1")
        self.spec.id = NASTY
    def reset(self, **options):
        return super().reset(**options)[0], {{NASTY: 1.0, "f" + NASTY: NASTY, "g" + NASTY: lambda: 1}}
    def step(self, action):
        if self.where == "raise":
            raise RuntimeError(NASTY)
        if self.where == "shape":
            return NASTY, 1.0, False, False, {{}}
        return super().step(action)

class BadPolicy:
    def get_action(self, observation):
        raise KeyError(NASTY)
"""


@pytest.fixture(autouse=True)
def nasty_env(tmp_path: Path) -> None:
    """An environment with a name and messages of that kind."""
    (tmp_path / "nasty.py").write_text(NASTY_ENV)


def assert_tame(*texts: str) -> None:
    """Check that a terminal gets letters and line breaks only."""
    for text in texts:
        assert [] == [char for char in text if not (char.isprintable() or char == "\n")], text


COLLECT = ["collect", "--episodes", "2", "-e", "nasty:Nasty", "-o", "out"]
WORKERS = [["--sampler", "local", "-w", "1"], ["-w", "2"]]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_run_and_its_summary(tmp_path: Path, workers: list[str]) -> None:
    """An environment's id and info keys are shown as they are recorded, with escapes, by `collect` and `info`."""
    ran = run_command(*COLLECT, *workers, "--progress", cwd=tmp_path)
    assert 0 == ran.code, ran.stderr
    told = run_command("info", "out", cwd=tmp_path)
    assert SHOWN in told.stdout
    assert_tame(ran.stdout, ran.stderr, told.stdout, told.stderr)
    as_json = run_command("info", "out", "--json", cwd=tmp_path).stdout
    assert NASTY == json.loads(as_json)["env"]["id"]
    assert_tame(as_json)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("where", ["raise", "shape"])
def test_errors_of_an_environment(tmp_path: Path, workers: list[str], where: str) -> None:
    """What it raises is told on one line, and the traceback below keeps its line breaks alone."""
    words = [*COLLECT, *workers, "--env-kwargs", f"where={where}"]
    ran = run_command(*words, cwd=tmp_path)
    assert 3 == ran.code
    line = next(line for line in ran.stderr.splitlines() if line.startswith("rollout: error: "))
    assert where == "shape" or "[red]x\\x1b[2Jy" in line
    assert_tame(ran.stdout, ran.stderr)
    as_json = run_command(*words, "--json", cwd=tmp_path)
    assert 3 == json.loads(as_json.stdout)["error"]["exit_code"]
    assert_tame(as_json.stdout, as_json.stderr)


def test_errors_of_a_policy(tmp_path: Path) -> None:
    """As those of an environment."""
    ran = run_command(*COLLECT, *WORKERS[0], "-p", "nasty:BadPolicy", "--verbose", cwd=tmp_path)
    assert 3 == ran.code
    assert "[red]" in ran.stderr
    assert_tame(ran.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ["collect", "--timesteps", "1", "-p", ARGUMENT],
        ["collect", "--timesteps", "1", "-e", ARGUMENT],
        ["collect", "--timesteps", "1", "-p", ARGUMENT + ".pkl"],
        ["collect", "--timesteps", ARGUMENT],
        ["collect", ARGUMENT],
        [ARGUMENT],
        ["collect", "--timesteps", "1", "-c", ARGUMENT],
        ["info", ARGUMENT],
        ["policy", "pack", ARGUMENT, "-o", "x.pkl"],
        ["policy", "inspect", ARGUMENT],
    ],
)
def test_what_is_given_on_the_command_line(rollout: Rollout, words: list[str]) -> None:
    """Every argument comes back in an error, on its first line, with escapes."""
    ran = rollout(*words)
    assert ran.code in {2, 3, 5}
    assert "[red]x\\x1b[2Jy" in ran.stderr.replace("\\\\x1b", "\\x1b").splitlines()[0]
    assert_tame(ran.stdout, ran.stderr)


def test_paths(rollout: Rollout, tmp_path: Path) -> None:
    """The paths of a dataset and of a policy are shown with escapes, in results, notices and lists."""
    name = ARGUMENT.replace("/", "|")
    policy = tmp_path / f"{name}.pkl"
    policy.write_bytes(cloudpickle.dumps(plain_policy))
    policy.chmod(0o666)
    words = ["collect", "--episodes", "1", "-p", policy.name, "--sampler", "local", "-w", "1", "-o", name]
    ran, quiet = rollout(*words), rollout(*words, "-q", "--overwrite")
    shown = SHOWN.replace("\\x00", "").replace("/", "|")
    assert f"dataset       {shown}\n" in ran.stdout.replace(f"{tmp_path}/", "")
    assert f"notice: the policy {shown}.pkl can run any code" in ran.stderr
    inspected, told = rollout("policy", "inspect", policy.name), rollout("info", name)
    assert shown in inspected.stdout
    assert shown in told.stdout
    assert_tame(*(text for one in (ran, quiet, inspected, told) for text in (one.stdout, one.stderr)))


def test_what_a_dry_run_prints_is_tame_and_read_back(rollout: Rollout, tmp_path: Path) -> None:
    """With TOML's own escapes."""
    name = NASTY + "\x7f\U000e0001"
    config = CollectConfig(timesteps=1, env=name, env_kwargs={name: name}, output=Path("out"))
    text = config_to_toml(config)
    assert_tame(text)
    (tmp_path / "run.toml").write_text(text)
    values = values_from_file("collect", tmp_path / "run.toml")
    assert (name, {name: name}) == (values["env"], values["env_kwargs"])
    assert_tame(rollout("collect", "-c", "run.toml", "--dry-run", "--json").stdout)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its label and the lines above it are shown as they are, but for escapes; markup stays text."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "300")
    terminal = Terminal()
    progress = RichProgress(terminal)
    progress.start(label=NASTY, total_steps=10, total_episodes=None)
    progress.notice(f"n{NASTY}")
    progress.warn(f"w{NASTY}")
    progress.update(episodes=1, steps=10, return_sum=1.0)
    progress.finish()
    drawn = terminal.getvalue()
    assert all(text in drawn for text in (SHOWN, f"notice: n{SHOWN}", f"warning: w{SHOWN}"))
    assert not any(text in drawn for text in ("\x1b[2J", "\x00", "\u202e", "\x9b"))


def test_lines() -> None:
    """Each is one line."""
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.start(label=NASTY, total_steps=10, total_episodes=None)
    progress.notice(NASTY)
    progress.finish()
    assert 2 == stream.getvalue().count("\n")
    assert 2 == stream.getvalue().count(SHOWN)
    assert_tame(stream.getvalue())


@pytest.fixture
def nasty_factory() -> Callable[[], object]:
    """A factory whose name is of that kind."""

    def make() -> object:
        import gymnasium

        return gymnasium.make("CartPole-v1")

    make.__name__ = NASTY + "\udc80"
    return make


def test_process_titles(nasty_factory: Callable[[], object]) -> None:
    """A worker's title shows its environment's name, which may hold what no title can."""
    with MultiprocessingSampler(plain_policy, nasty_factory, n_workers=1, seed=0, max_episode_length=5) as sampler:
        sampler.obtain_samples(0, 5, agent_update=None)
        titles = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert any(title.startswith(f"rollout-worker[0] {SHOWN}\\udc80") for title in titles), titles


ODD = """
class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")

class Silent:
    def get_action(self, observation):
        raise Odd

class Endless:
    def get_action(self, observation):
        raise ValueError("x" * 1_000_000)
"""


@pytest.mark.parametrize("workers", WORKERS)
def test_errors_that_cannot_be_told(tmp_path: Path, workers: list[str]) -> None:
    """An error whose text raises is one of the policy all the same, and one without an end is told in part."""
    (tmp_path / "odd.py").write_text(ODD)
    words = ["collect", "--episodes", "1", "-o", "out", *workers]
    silent = run_command(*words, "-p", "odd:Silent", cwd=tmp_path)
    assert 3 == silent.code, silent.stderr
    assert "Odd: (it has no text: its __str__ raised RuntimeError)" in silent.stderr
    endless = run_command(*words, "-p", "odd:Endless", cwd=tmp_path)
    assert 3 == endless.code
    assert len(endless.stderr.splitlines()[0]) < 2_000


def test_the_card(tmp_path: Path) -> None:
    """A name cannot add lines to a dataset's README."""
    ran = run_command(*COLLECT, *WORKERS[0], cwd=tmp_path)
    assert 0 == ran.code, ran.stderr
    text = (tmp_path / "out" / "README.md").read_text()
    assert "# Episodes of [red]x\\x1b[2Jy z\\x00" in text
    assert_tame(text)
