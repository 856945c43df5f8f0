"""Policies in another process: the data of the same policy in each worker, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import setproctitle

import rollout_cli
from rollout_cli.errors import PolicyLoadError
from tests.faults.meddling import committed
from tests.helpers.datasets import assert_same_data, source_of
from tests.helpers.errors import raises
from tests.helpers.policies import push
from tests.helpers.processes import Running, called, marked, rollout, running
from tests.helpers.thorough import usually

ENV = ("--env", "tests.helpers.envs:FaultyEnv", "--seed", "7", "--quiet")
VECTOR = (
    "--env",
    "tests.helpers.envs:vector",
    "--vectorization",
    "native",
    "--envs-per-worker",
    "4",
    *ENV[2:],
)
ROWS = ("--envs-per-worker", "4")
POLICY = "tests.helpers.policies:"
HERE = "tests.e2e.test_serving:"


class Everything:
    """A policy whose actions depend on rewards, on the task, on its row's steps, and on seeds, with infos."""

    def seed_rows(self, mask: Any, seeds: Any) -> None:
        self.noise = np.where(mask, seeds / 2.0**64, getattr(self, "noise", np.zeros(len(mask))))

    def seed(self, seed: int) -> None:
        self.noise = np.array([seed / 2.0**64])

    def reset(self, do_resets: Any) -> None:
        mask = np.ones(1, bool) if do_resets is None else do_resets
        self.total = np.where(mask, 0.0, getattr(self, "total", np.zeros(len(mask))))
        self.tasks = getattr(self, "tasks", {})

    def observe_rewards(self, mask: Any, rewards: Any) -> None:
        self.total = self.total + mask * rewards

    def observe_task(self, row: int, task: str) -> None:
        self.tasks[row] = task

    def get_actions(self, observations: Any) -> Any:
        places = self.noise + self.total
        actions = np.stack([push(*each) for each in zip(observations, places, strict=True)])
        tasks = np.array([self.tasks.get(row, "idle") for row in range(len(places))], object)
        return actions, {"place": places, "task": tasks, "some": np.ma.MaskedArray(places, places > 0.5)}


class InServer:
    """Can be loaded in the process of a policy server only."""

    def __init__(self) -> None:
        assert "rollout-policy-server" == setproctitle.getproctitle()

    def get_action(self, observation: Any) -> Any:
        return push(observation), {}


class Pushing:
    """A policy of a program, with a value of its own."""

    def __init__(self, scale: Any) -> None:
        self.scale = scale

    def get_action(self, observation: Any) -> Any:
        return push(observation) * np.float32(self.scale), {}


class Waiting:
    """Waits in its first action until a test has killed a process, if the variable WAIT is 1."""

    def get_action(self, observation: Any) -> Any:
        Path("waiting").touch()
        while os.environ["WAIT"] == "1" and not Path("go").exists():
            time.sleep(0.01)
        return push(observation), {}


class Reading:
    """Reads a file of the working folder as it acts for the first time."""

    scale: float | None = None

    def get_action(self, observation: Any) -> Any:
        if self.scale is None:
            with open("scale.json") as file:  # noqa: PTH123 - as users do
                self.scale = json.load(file)
        return push(observation) * np.float32(self.scale), {}


KINDS: dict[str, tuple[str, ...]] = {
    "random": (*ENV, "--policy", "random"),
    "own noise": (*ENV, "--policy", f"{POLICY}OwnNoisePolicy"),
    "global noise": (*ENV, "--policy", f"{POLICY}GlobalNoisePolicy"),
    "rows": (*ENV, *ROWS, "--policy", f"{POLICY}CountingPolicy"),
    "native rows": (*VECTOR, "--policy", f"{POLICY}CountingPolicy"),
    "everything": (*ENV, "--policy", f"{HERE}Everything"),
    "everything in rows": (*ENV, *ROWS, "--policy", f"{HERE}Everything"),
    "epsilon": (*ENV, "--policy", f"{POLICY}CountingPolicy", "--epsilon", "0.3"),
    "a mixture": (*ENV, "--policy", f"mix:0.5*{POLICY}OwnNoisePolicy+0.5*random"),
    "a dictionary": (*ENV, "--env-kwargs", "space=dict", "--policy", "random"),
    "texts": (*ENV, "--env-kwargs", "space=text", "--policy", "random"),
}


@pytest.mark.parametrize("kind", usually(KINDS, {"own noise", "everything in rows"}.__contains__))
def test_the_bytes_are_those_without_a_server(tmp_path: Path, kind: str) -> None:
    """With one worker in this process and with three, and so are policy, files and verdict of the record."""
    words = ("collect", "--timesteps", "300", *KINDS[kind])
    called(*words, "--sampler", "local", "--output", tmp_path / "plain")
    expected = source_of(tmp_path / "plain")
    for more in (("--sampler", "local"), ("--workers", "3")):
        output = tmp_path / more[1]
        called(*words, "--policy-process", *more, "--output", output)
        assert_same_data(tmp_path / "plain", output)
        source = source_of(output)
        assert expected["policy"] == source["policy"]
        assert expected["reproducible"] == source["reproducible"]


def test_files_that_the_server_reads_are_pinned(tmp_path: Path) -> None:
    """As files of a worker: a changed one is refused when the run is resumed."""
    (tmp_path / "scale.json").write_text("0.5")
    words = ("collect", *ENV, "--policy", f"{HERE}Reading", "--workers", "2")
    called(*words, "--episodes", "100", "--output", "plain", cwd=tmp_path)
    called(*words, "--episodes", "100", "--output", "served", "--policy-process", cwd=tmp_path)
    assert_same_data(tmp_path / "plain", tmp_path / "served")
    files = source_of(tmp_path / "plain")["files"]
    assert "scale.json" in {file["path"] for file in files}
    assert files == source_of(tmp_path / "served")["files"]
    (tmp_path / "scale.json").write_text("0.75")
    ran = called("collect", "--resume", "--output", "served", "--episodes", "200", cwd=tmp_path, code=2)
    assert "scale.json" in ran.stderr


# -- rollout serve -------------------------------------------------------------------------------------------------


@contextmanager
def serving(*words: str) -> Iterator[tuple[Running, str]]:
    with running(["serve", *words, "--json"]) as server:
        assert server.process.stdout is not None
        yield server, json.loads(server.process.stdout.readline())["url"]


def test_serve(tmp_path: Path) -> None:
    """Two runs use one server; the record names it, its policy and the hash; another policy is refused on resume."""
    policy = (*ENV, "--policy", f"{POLICY}OwnNoisePolicy")
    called("collect", "--episodes", "150", *policy, "--sampler", "local", "--output", tmp_path / "plain")
    output = tmp_path / "served"
    with serving("--policy", policy[-1], "--port", "0", "--token", "secret") as (server, url):
        assert "://secret@" in url
        public = url.replace("secret@", "")
        words = ("collect", *ENV, "--workers", "2")
        called(*words, "--policy", f"serve:{url}", "--episodes", "150", "--output", output)
        assert_same_data(tmp_path / "plain", output)
        record = source_of(output)["policy"]
        assert ("serve", public, policy[-1]) == (record["scheme"], record["path"], record["served"]["spec"])
        assert record["sha256"] == source_of(tmp_path / "plain")["policy"]["sha256"]
        assert "secret" not in (output / "meta" / "info.json").read_text()
        ran = called(*words, "--policy", f"serve:{public}", "--episodes", "9", "--output", "no", code=3)
        assert "[server-token]" in ran.stderr
        called("collect", "--resume", "--policy", f"serve:{url}", "--episodes", "200", "--output", output)
        server.process.send_signal(signal.SIGINT)
        ended = server.end()
    assert (0, ()) == (ended.code, ended.left)
    again = ("collect", "--resume", "--policy", f"serve:{url}", "--episodes", "250", "--output", output)
    assert "[server-unreachable]" in called(*again, code=3).stderr
    other = ("--policy", f"{POLICY}CountingPolicy", "--token", "secret", "--port", url.rpartition(":")[2])
    with serving(*other):
        assert "[resume-refused]" in called(*again, code=2).stderr
    assert 200 == len(rollout_cli.load(output))
    # Nobody listens there any more, so a connection would fail: it is refused before.
    assert "[file-names-server]" in called("replay", output, "--all", code=3).stderr
    assert "[server-unreachable]" in called("replay", output, "--all", "--trust", code=3).stderr


def test_a_server_ends_with_its_parent() -> None:
    """Who starts it with a pipe as stdin ends it by closing the pipe, or by ending."""
    ran = rollout("serve", "--policy", "random", "--port", "0", "--end-with-stdin")  # Its stdin is empty.
    assert ran.stdout.startswith("serve:ws://127.0.0.1:")
    assert () == ran.left


def test_a_policy_that_is_missing_is_refused_at_once() -> None:
    assert "[policy-unknown]" in called("serve", "--policy", "nothing", code=3).stderr


# -- kills -----------------------------------------------------------------------------------------------------------

LONG = (
    "--policy",
    f"{POLICY}OwnNoisePolicy",
    *ENV,
    "--policy-process",
    "--workers",
    "2",
    "--flush-every",
    "0.05",
)


def server_of(run: Running) -> psutil.Process:
    """Return the process of the policy server."""
    return next(each for each in marked(run.mark) if "policy-server" in " ".join(each.cmdline()))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbs."""
    output = tmp_path_factory.mktemp("whole") / "out"
    called("collect", "--episodes", "1500", *LONG, "--output", output)
    return output


@pytest.mark.thorough
@pytest.mark.parametrize("killed", ["server", "parent", "worker"])
def test_a_kill_loses_nothing(tmp_path: Path, whole: Path, killed: str) -> None:
    """No process outlives the run, and a resume gives the bytes of an undisturbed run."""
    output = tmp_path / "out"
    words = ["collect", "--episodes", "1500", *LONG, "--output", str(output)]
    with running(words) as run:
        run.wait_until(lambda: committed(tmp_path))
        pid = run.process.pid
        if killed != "parent":
            pid = (server_of(run) if killed == "server" else run.workers()[0]).pid
        os.kill(pid, signal.SIGKILL)
        ran = run.end()
    assert () == ran.left
    if killed == "worker":
        assert 0 == ran.code, ran.said
    else:
        assert (3 if killed == "server" else -signal.SIGKILL) == ran.code, ran.said
        assert killed == "parent" or "[server-lost]" in ran.stderr
        called("collect", "--resume", "--episodes", "1500", "--quiet", "--output", output)
    assert_same_data(whole, output)


def test_check_and_tune_use_the_process_too() -> None:
    words = ("--policy", f"{HERE}InServer", *ENV[:2], "--timesteps", "300")
    called("check", *words, "--policy-process", "--seconds", "60")
    called("tune", *words, "--policy-process", "--seconds", "0.05")
    called("check", *words, "--seconds", "60", code=3)


@pytest.mark.parametrize("kept", [(), ("--output", "out")], ids=["returns", "datasets"])
def test_evaluate_serves_each_policy(tmp_path: Path, kept: tuple[str, ...]) -> None:
    """One after the other, with the returns of policies in the workers, and no process outlives it."""
    policies = ("--policy", f"{POLICY}OwnNoisePolicy", "--policy", "random", "--policy", f"{HERE}Everything")
    words = ("evaluate", *policies, *ENV[:-1], "--episodes", "8", "--workers", "2", "--json")
    expected = json.loads(called(*words).stdout)
    with running([*words, "--policy-process", *kept], cwd=tmp_path) as run:
        ran = run.end()
    assert 0 == ran.code, ran.said
    assert () == ran.left
    served = json.loads(ran.stdout)
    for result in (*expected["policies"], *served["policies"]):
        del result["path"]
    assert expected == served
    assert 3 == len(served["policies"])
    called("evaluate", "--policy", f"{HERE}InServer", *ENV[:2], "--episodes", "2", "--policy-process")


def test_objects_are_evaluated_in_processes_of_their_own() -> None:
    policies = {"a": Everything(), "b": Pushing(0.5)}
    options: dict[str, Any] = {"env": ENV[1], "episodes": 6, "seed": 7, "workers": 2}
    here, served = (
        rollout_cli.evaluate(policies, policy_process=process, **options) for process in (False, True)
    )
    assert np.array_equal(here.returns, served.returns)
    assert not np.array_equal(here.returns[0], here.returns[1])
    with raises(PolicyLoadError, "pickle-failed"):
        rollout_cli.evaluate({"a": Pushing(threading.Lock())}, policy_process=True, **options)


def test_a_killed_worker_or_server_of_an_evaluation(tmp_path: Path) -> None:
    """A new worker gets the policy that is evaluated, whose server alone runs; a lost server ends the evaluation."""
    words = ["evaluate", "--policy", "random", "--policy", f"{HERE}Waiting", *ENV[:-1], "--episodes", "8"]
    words += ["--workers", "1"]  # A second one may still connect, and would report the end as it loads.
    expected = json.loads(called(*words, "--json", cwd=tmp_path, env={"WAIT": "0"}).stdout)
    for killed in ("worker", "server"):
        for path in tmp_path.iterdir():
            path.unlink()
        with running([*words, "--json", "--policy-process"], cwd=tmp_path, env={"WAIT": "1"}) as run:
            run.wait_until((tmp_path / "waiting").exists)
            (server,) = (each for each in marked(run.mark) if "policy-server" in " ".join(each.cmdline()))
            os.kill((run.workers()[0] if killed == "worker" else server).pid, signal.SIGKILL)
            (tmp_path / "go").touch()
            ran = run.end()
        assert () == ran.left
        document = json.loads(ran.stdout)
        if killed == "worker":
            assert expected["policies"] == document["policies"]
        else:
            assert 3 == ran.code, ran.said
            assert "server-lost" == document["error"]["code"]


def test_ray_cannot_reach_the_process() -> None:
    ran = called("collect", "--episodes", "3", "--policy-process", "--sampler", "ray", code=2)
    assert "[options-exclude-each-other]" in ran.stderr
