"""Worker processes: whoever dies or is stuck, and whatever surrounds them, no episode changes and nothing is left."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest

from rollout_cli import Episodes, MinTimesteps, Supervision
from rollout_cli.envs.updates import NewEnvUpdate
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.errors import EnvError, InterruptedRunError, UserCodeError, WorkerError
from rollout_cli.samplers.messages import Start, Started, Update
from rollout_cli.samplers.pool import Died
from rollout_cli.samplers.processes import pool
from rollout_cli.samplers.processes.crash_box import (
    MOST_ROWS,
    CrashBox,
    how_it_ended,
    new_box,
    read_notes,
    read_story,
)
from rollout_cli.samplers.processes.fork_server import RECORD, ForkServer, Server, Status
from rollout_cli.samplers.processes.pool import ProcessPool
from rollout_cli.samplers.supervision import Notes, Watch
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.kinds import VecWorker
from rollout_cli.workers.values import NO_NUMBER
from tests.helpers.batches import assert_same_batches
from tests.helpers.envs import FaultyEnv
from tests.helpers.errors import raises
from tests.helpers.processes import ROOT, Running, marked, running
from tests.helpers.sampled import (
    AddToTask,
    ConstantPolicy,
    CrawlingEnv,
    DoingEnv,
    DyingPolicy,
    SleepingEnv,
    TaskEnv,
    TellingEnv,
    Unloadable,
    act,
    fork_and_die,
    half_a_message,
    leave_at_once,
    whole_nonsense,
    wrong_bytes,
)
from tests.helpers.sampling import (
    MakeSampler,
    faulty,
    numbers_of,
    sampler_of,
    seeds,
    serial,
    worker_pids,
    workers_below_us,
)
from tests.helpers.thorough import usually
from tests.helpers.writing import wait_until


@pytest.fixture
def make_sampler() -> Iterator[MakeSampler]:
    """Give a function that makes samplers with worker processes; afterwards none may be left."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(sampler_of("forkserver", *args, **options))
    assert [] == workers_below_us()


# -- workers that die --------------------------------------------------------------------------------------------------


WAYS: dict[str, tuple[Any, str]] = {
    "killed": ("kill", r"was killed by SIGKILL \(maybe by the out-of-memory killer\) while it ran episode 4"),
    "segfault": (
        "segfault",
        r"was killed by SIGSEGV in string_at \(.*ctypes.*, line \d+\) while it ran episode 4",
    ),
    "abort": ("abort", r"was killed by SIGABRT in .* while it ran episode 4"),
    "at once": ("os._exit", "ended with exit code 0 while it ran episode 4"),
    "bytes": (wrong_bytes, "sent an invalid message"),
    "nonsense": (whole_nonsense, "sent an invalid message"),
    "half a message": (half_a_message, "ended with exit code 1 while it ran episode 4"),
}


@pytest.mark.parametrize(("way", "n_envs"), [*((way, 1) for way in WAYS), ("killed", 3)])
def test_a_run_survives_the_death_of_a_worker(
    make_sampler: MakeSampler, way: str, n_envs: int, tmp_path: Path
) -> None:
    """However a worker dies, its episodes run again and are what they would have been; one line reports it."""
    do, message = WAYS[way]
    env = (
        faulty(do, 4, signs=tmp_path, times=1)
        if isinstance(do, str)
        else partial(DoingEnv, do, tmp_path, seeds(4)[0])
    )
    vectorised: dict[str, Any] = (
        {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs}} if n_envs > 1 else {}
    )
    warnings: list[str] = []
    sampler = make_sampler(act, env, warn=warnings.append, **vectorised)
    batch = sampler.obtain_samples(0, 300, None)
    assert 1 == len(list(tmp_path.iterdir()))
    assert_same_batches(serial(MinTimesteps(300), act), batch)
    (warning,) = warnings
    message = message if n_envs == 1 else message.replace("episode 4", r"episodes? .*4.*")
    assert re.match(rf"worker [01] {message}", warning)
    assert "restarting it (1 of 10)" in warning
    assert (2, 1) == (len(worker_pids(2)), sampler.restarts)


def end_and_wait(pid: int) -> None:
    """Kill a process that is no child of ours; it is gone when this returns."""
    ended = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        select.select([ended], [], [])
    finally:
        os.close(ended)


@pytest.mark.parametrize("moment", ["while starting", "between calls", "in a call"])
def test_a_worker_that_is_killed_from_outside(make_sampler: MakeSampler, moment: str) -> None:
    """Whenever it happens, the call that needs the worker gets the same episodes."""
    sampler = make_sampler(act)
    sampler.start_worker()
    if moment == "between calls":
        sampler.obtain_samples(0, 30, None)
    first = sampler.next_number
    # Far more than the workers have leased: the killed one is needed, however slowly this process runs.
    stream = sampler.stream(MinTimesteps(30_000, first))
    chunks = [next(stream)] if moment == "in a call" else []
    end_and_wait(worker_pids(2)[1])
    chunks += stream
    assert list(range(first, first + len(numbers_of(chunks)))) == numbers_of(chunks)
    assert 1 == sampler.restarts
    expected = serial(Episodes(first, first + 20), act)
    assert (
        expected.rewards.tolist()
        == [r for chunk in chunks for r in chunk.rewards.tolist()][: len(expected.rewards)]
    )


def test_a_restarted_worker_is_where_the_others_are(make_sampler: MakeSampler) -> None:
    """It gets the last policy, the parameters after it and every update of the environment, then this call's."""
    sampler = make_sampler(ConstantPolicy(0.1), TaskEnv())
    sampler.obtain_exact_episodes(2, ConstantPolicy(0.2), AddToTask(1.0))
    for call, (gain, task) in enumerate([(0.3, 1.5), (0.4, 2.0)]):
        end_and_wait(worker_pids(2)[call])
        batch = sampler.obtain_exact_episodes(5, {"value": gain}, AddToTask(0.5))
        assert ({gain}, {task}) == (set(batch.agent_infos["value"].tolist()), set(batch.rewards.tolist()))
    batch = sampler.obtain_exact_episodes(2, None)
    assert ({0.4}, {2.0}) == (set(batch.agent_infos["value"].tolist()), set(batch.rewards.tolist()))


def n_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_stay_as_few(make_sampler: MakeSampler) -> None:
    """Nothing of a dead worker or of a sampler that was shut down is kept open."""
    sampler = make_sampler(act, supervision=Supervision(max_worker_restarts=100))
    found = []
    for _ in range(3):
        sampler.obtain_exact_episodes(3, None)
        during = n_descriptors()
        end_and_wait(worker_pids(2)[0])
        sampler.obtain_exact_episodes(3, None)
        sampler.shutdown_worker()
        found.append((during, n_descriptors()))
    assert {found[0]} == set(found)


@pytest.mark.parametrize(("what", "how"), [("kill", "SIGKILL"), ("os._exit", "code 0")])
def test_an_episode_that_kills_its_worker_three_times_is_named(
    make_sampler: MakeSampler, what: str, how: str
) -> None:
    """The call ends with its number and seed, after a line for each death; the sampler works again."""
    warnings: list[str] = []
    sampler = make_sampler(act, faulty(what, 5), warn=warnings.append)
    with raises(WorkerError, "episode-kills-worker", f"episode 5 (seed {seeds(5)[0]})", how, 3) as caught:
        sampler.obtain_samples(0, 1000, None)
    assert [True, True] == [bool(re.match(f"worker [01] .*{how}", warning)) for warning in warnings]
    assert caught.value.hint
    assert [] == workers_below_us()
    assert 50 <= sampler.obtain_samples(0, 50, None, FaultyEnv()).lengths.sum() < 57


@pytest.mark.parametrize("n_envs", [1, 4])
def test_killers_are_skipped_where_that_is_asked_for(make_sampler: MakeSampler, n_envs: int) -> None:
    """Exactly the deadly episodes are left out, also where several ran in their worker; the others are the same."""
    vectorised: dict[str, Any] = (
        {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs}} if n_envs > 1 else {}
    )
    rules = Supervision(on_worker_death="skip", max_worker_restarts=20)
    sampler = make_sampler(act, faulty("kill", 3, 10), supervision=rules, **vectorised)
    batch = sampler.obtain_samples(0, 100, None)
    assert {3, 10} == set(sampler.skipped)
    assert all(f"episode {number} " in reason for number, reason in sampler.skipped.items())
    last = int(batch.numbers[-1]) + 1
    good = [
        episode for episode in serial(Episodes(0, last), act).split() if episode.numbers[0] not in (3, 10)
    ]
    assert_same_batches(EpisodeBatch.concatenate(*good), batch)


@pytest.mark.parametrize("allowed", [0, 1])
def test_past_the_budget_the_call_ends(make_sampler: MakeSampler, allowed: int) -> None:
    """The error says how the last death happened, and shows one traceback of a sensible length."""
    warnings: list[str] = []
    supervision = Supervision(max_worker_restarts=allowed)
    sampler = make_sampler(act, faulty("segfault"), supervision=supervision, warn=warnings.append)
    with raises(WorkerError, "worker-died", "SIGSEGV", "string_at") as caught:
        sampler.obtain_samples(0, 1000, None)
    assert allowed == len(warnings)
    assert all("\n" not in warning for warning in warnings)
    assert ("1 restart" in caught.value.message) == bool(allowed)
    assert 1 == caught.value.details.count("Segmentation fault")
    assert len(caught.value.details.splitlines()) < 40
    assert "max_worker_restarts=" in caught.value.hint


@pytest.mark.parametrize(
    ("what", "verb"), [("environment", "obtain_samples"), ("policy", "wait_until_started")]
)
def test_a_worker_that_dies_while_it_is_built(make_sampler: MakeSampler, what: str, verb: str) -> None:
    """After three times it is given up, and the error says so."""
    sampler = make_sampler(DyingPolicy(), FaultyEnv) if what == "policy" else make_sampler(act, leave_at_once)
    with raises(WorkerError, "worker-start"):
        sampler.obtain_samples(0, 10, None) if verb == "obtain_samples" else sampler.wait_until_started()


def test_a_worker_class_that_workers_cannot_load(make_sampler: MakeSampler) -> None:
    """It is an error of the user's code, not a death."""
    with raises(UserCodeError, "unpickle-failed") as caught:
        make_sampler(act, worker_args={"odd": Unloadable()}).obtain_samples(0, 10, None)
    assert caught.value.hint
    assert "unloadable" in caught.value.details


# -- workers that are stuck --------------------------------------------------------------------------------------------


def sleeping(*numbers: int, signs: Path | None = None, times: int = 0) -> Any:
    where = None if signs is None else str(signs)
    return partial(SleepingEnv, "sleep", episodes=seeds(*numbers), signs=where, times=times)


def crawling(*numbers: int) -> Any:
    return partial(CrawlingEnv, "crawl", episodes=seeds(*numbers))


def test_a_step_that_never_returns_ends_its_worker(make_sampler: MakeSampler, tmp_path: Path) -> None:
    """It is treated as a death: the episode runs again in a new process."""
    env = sleeping(3, signs=tmp_path, times=1)
    warnings: list[str] = []
    sampler = make_sampler(act, env, supervision=Supervision(step_timeout=2.0), warn=warnings.append)
    assert_same_batches(serial(MinTimesteps(200), act), sampler.obtain_samples(0, 200, None))
    (warning,) = warnings
    assert "was killed, because a step took longer than 2 s, while it ran episode 3; restarting it" in warning


@pytest.mark.parametrize(("kind", "n_envs"), usually([(crawling, 4), (sleeping, 1)], lambda row: row[1] == 1))
def test_an_episode_that_takes_too_long(make_sampler: MakeSampler, kind: Any, n_envs: int) -> None:
    """Whether it takes ever more steps or never returns from one, it is treated as one that failed."""
    vectorised: dict[str, Any] = (
        {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs}} if n_envs > 1 else {}
    )
    rules = Supervision(on_env_error="skip", episode_timeout=2.0, max_worker_restarts=0)
    sampler = make_sampler(act, kind(3), supervision=rules, **vectorised)
    sampler.obtain_exact_episodes(4, None)
    ((number, reason),) = sampler.skipped.items()
    assert 3 == number
    assert "2 s" in reason


def test_an_episode_that_takes_too_long_is_an_error(make_sampler: MakeSampler) -> None:
    """By default it ends the call, and the hint says what to do."""
    sampler = make_sampler(act, crawling(3), supervision=Supervision(episode_timeout=2.0))
    with raises(EnvError, "episode-timeout") as caught:
        sampler.obtain_samples(0, 200, None)
    assert "max_episode_length=" in caught.value.hint


def test_only_time_within_turns_counts() -> None:
    """A worker that waits for its sampler, or builds, is not stuck; one whose beats stand still in a turn is."""
    for numbers in ((2,), None):  # With many rows the episodes are unknown.
        watch = Watch(Supervision(step_timeout=1.0))
        found = []
        for second in range(6):
            notes = Notes(beats=7, busy=second in (3, 4, 5), numbers=numbers)
            found.append(watch.look(notes, now=float(second) * 0.24))
        assert [None] * 6 == found
        ticks = [watch.look(Notes(7, busy=True, numbers=numbers), now=2.0 + 0.2 * at) for at in range(12)]
        assert "a step took longer than 1 s" in next(overdue[0] for overdue in ticks if overdue is not None)


def test_an_episode_is_late_that_runs_too_long() -> None:
    """Each episode has its own account, though the worker's beats go on."""
    watch = Watch(Supervision(episode_timeout=2.0))
    found = []
    for at in range(30):
        numbers = (1, 100 + at) if at < 5 else (100 + at // 4, 5)
        found.append(watch.look(Notes(beats=at, busy=True, numbers=numbers), now=0.3 * at))
    assert [(5,)] == list(dict.fromkeys(overdue[1] for overdue in found if overdue is not None))


def test_an_episode_that_runs_again_begins_a_new_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a call has left unfinished, the next one runs under the same number, and it has its whole time."""
    now = [0.0]
    monkeypatch.setattr(pool, "_clock", lambda: now[0])
    monkeypatch.setattr(pool, "EXIT_SECONDS", 0.0)
    # Its first episode waits for a sign, and later ones hang in the third step.
    env = faulty("hang", signs=tmp_path, meet=2, pace=0.01)
    update = Update(cloudpickle.dumps(act), cloudpickle.dumps(NewEnvUpdate(env)))
    processes = ProcessPool(WorkerFactory(seed=5), ["worker:0"], "forkserver", Supervision(episode_timeout=1))
    with contextlib.closing(processes):

        def events_until_it_runs(sign: str) -> list[Any]:
            """Return what the worker sends until it is stuck, and stays so for 0.75 s."""
            events: list[Any] = []
            while not any(file.name.startswith(sign) for file in tmp_path.iterdir()):
                events += processes.wait()
            for _ in range(3):
                now[0] += 0.25
                events += processes.wait()
            return events

        processes.start(0)
        processes.send(0, Start(1, (update,), (range(1),), rebuild=True))
        events = events_until_it_runs("met")
        processes.send(0, Start(2, (), (range(1),)))
        (tmp_path / "met-another").touch()
        events += events_until_it_runs("hang")
        assert ([Started, Started], "") == (list(map(type, events)), processes._processes[0].killed)
        while not isinstance(events[-1], Died):
            now[0] += 0.25
            events += processes.wait()
    assert (0,) == events[-1].late
    assert "took longer than 1 s" in events[-1].reason


# -- the crash box -----------------------------------------------------------------------------------------------------


def test_the_box_says_what_ran() -> None:
    """The sampler reads what the worker noted last: rows, turns and beats."""
    with new_box() as file:
        box = CrashBox(file.fileno())
        assert Notes(0, busy=False, numbers=()) == read_notes(file)
        box.begin(2, 40)
        box.begin(0, 10)
        box.begin_turn()
        box.step()
        assert Notes(2, busy=True, numbers=(10, 40)) == read_notes(file)
        box.begin(0, NO_NUMBER)
        box.end_turn()
        assert Notes(2, busy=False, numbers=(40,)) == read_notes(file)
        box.note(np.array([5, -1, 7, 8]))
        assert (5, 7, 8) == read_notes(file).numbers
        box.note(np.arange(MOST_ROWS))
        assert read_notes(file).numbers == tuple(range(MOST_ROWS))
        box.note(np.arange(MOST_ROWS + 1))
        assert read_notes(file).numbers is None


def test_a_long_story_is_cut() -> None:
    """Where it begins and ends is kept; the middle is counted."""
    with new_box() as file:
        box = CrashBox(file.fileno())
        assert "" == read_story(file)
        box.write_story("first\n" + "x" * 10_000 + "\n" + "line\n" * 900 + "last\n")
        lines = read_story(file).splitlines()
    assert ("first", "last") == (lines[0], lines[-1])
    assert len(lines) < 30
    assert all(len(line) <= 400 for line in lines)
    assert any("(879 lines)" in line for line in lines)


def test_a_death_by_a_signal_says_what_may_be_the_cause() -> None:
    """SIGKILL is what the system uses where there is no memory left."""
    found, hint = how_it_ended(-signal.SIGKILL, "")
    assert "was killed by SIGKILL (maybe by the out-of-memory killer)" == found
    assert "fewer workers" in hint
    assert ("was killed by signal 33", "") == how_it_ended(-33, "")


# -- the sampler's process dies ----------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
from functools import partial
from rollout_cli import MinTimesteps, MultiprocessingSampler
from tests.helpers.batches import assert_same_batches
from tests.helpers.envs import FaultyEnv
from tests.helpers.policies import OwnNoisePolicy
from tests.helpers.sampling import worker_pids
env, steps, end, method = json.loads(sys.argv[1])
sampler = MultiprocessingSampler(OwnNoisePolicy(), partial(FaultyEnv, **env), n_workers=2, seed=5, start_method=method)
taken = 0
for chunk in sampler.stream(MinTimesteps(steps)):
    if not taken:
        print(json.dumps(worker_pids(2)), flush=True)
    taken += chunk.n_steps
    if end == "leave":
        sys.exit()
sampler.shutdown_worker()
print(taken)
"""
ENDLESS = 10**9


@contextlib.contextmanager
def program(
    steps: int, *, end: str = "finish", method: str = "forkserver", more: Any = None, **env: Any
) -> Iterator[Running]:
    """Run PROGRAM with its environment's arguments `env`, and `running`'s arguments `more`."""
    words = [json.dumps([env, steps, end, method])]
    options: dict[str, Any] = {"cwd": ROOT, **(more or {})}
    with running(words, program=[sys.executable, "-c", PROGRAM], **options) as run:
        yield run


def first_line(run: Running) -> list[int]:
    assert run.process.stdout is not None
    line = run.process.stdout.readline()
    assert line, run.end().said
    pids: list[int] = json.loads(line)
    return pids


@pytest.mark.parametrize(
    ("method", "sent"),
    [("forkserver", signal.SIGKILL), ("forkserver", signal.SIGTERM), ("spawn", signal.SIGKILL)],
)
def test_nothing_outlives_a_sampler_that_is_killed(method: str, sent: signal.Signals, tmp_path: Path) -> None:
    """Neither workers in the middle of an episode, nor a fork server, nor files; nothing is said.

    timeout(1) and batch systems signal the whole group: workers are in none but their own.
    """
    more = {"env": {"TMPDIR": str(tmp_path)}, "session": True}
    with program(ENDLESS, method=method, pace=0.001, more=more) as run:
        workers = first_line(run)
        assert {*workers} < {process.pid for process in marked(run.mark)}
        assert {*workers} == {os.getpgid(pid) for pid in workers}
        os.killpg(run.process.pid, sent)
        ran = run.end()
    assert (-sent, "", ()) == (ran.code, ran.stderr, ran.left)
    assert [] == list(tmp_path.iterdir())


def test_a_worker_that_is_stuck_ends_with_its_sampler(tmp_path: Path) -> None:
    """A step that never returns cannot see that the sampler is gone."""
    with program(ENDLESS, what="hang", episodes=seeds(9), signs=str(tmp_path)) as run:
        first_line(run)
        run.wait_until(lambda: any(tmp_path.iterdir()))
        run.process.kill()
        assert () == run.end().left


def test_children_of_an_environment_end_with_the_sampler(tmp_path: Path) -> None:
    """A simulator's process is not left behind."""
    with program(ENDLESS, what="child", when="reset", times=2, pace=0.001, signs=str(tmp_path)) as run:
        first_line(run)
        run.wait_until(lambda: len(list(tmp_path.iterdir())) == 2 and len(simulators(run.mark)) == 2)
        run.process.kill()
        assert () == run.end().left


def simulators(mark: str) -> list[psutil.Process]:
    return [process for process in marked(mark) if "time.sleep(3600)" in " ".join(process.cmdline())]


def test_children_of_an_environment_end_with_their_worker(make_sampler: MakeSampler, tmp_path: Path) -> None:
    """Whether it was killed or is shut down, and though a forked child holds the worker's end of every pipe open."""
    sampler = make_sampler(act, faulty("child", when="reset", signs=tmp_path, times=1), n_workers=1)
    sampler.obtain_samples(0, 20, None)
    (pid,) = worker_pids(1)
    (child,) = psutil.Process(pid).children()
    end_and_wait(pid)
    psutil.wait_procs([child])
    forking = partial(DoingEnv, partial(fork_and_die, tmp_path / "pid"), tmp_path, seeds(4)[0])
    chunks = list(sampler.stream(Episodes(2, 60), env_update=forking))
    assert list(range(2, 60)) == numbers_of(chunks)
    assert 2 == sampler.restarts
    with contextlib.suppress(psutil.NoSuchProcess):
        child = psutil.Process(int((tmp_path / "pid").read_text()))
        wait_until(lambda: has_ended(child))


def test_a_program_may_leave_without_shutting_down() -> None:
    """It ends at once, quietly, and so do its workers."""
    with program(ENDLESS, end="leave", pace=0.001) as run:
        first_line(run)
        ran = run.end()
    assert (0, "", ()) == (ran.code, ran.stderr, ran.left)


def test_the_death_of_the_fork_server_is_survived(make_sampler: MakeSampler) -> None:
    """Its workers are ended and start again under a new one."""
    sampler = make_sampler(act)
    stream = sampler.stream(MinTimesteps(3000))
    chunks = [next(stream)]
    server = psutil.Process(psutil.Process(worker_pids(2)[0]).ppid())
    assert "rollout-fork-server" in " ".join(server.cmdline())
    end_and_wait(server.pid)
    chunks += stream
    assert 2 == sampler.restarts
    assert_same_batches(serial(MinTimesteps(3000), act), EpisodeBatch.from_chunks(sampler.env_spec, chunks))


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_worker_that_is_stuck_is_killed_where_its_fork_server_has_died(
    make_sampler: MakeSampler, tmp_path: Path, goes_on: bool
) -> None:
    """Whether its sampler then goes on or ends."""
    plan = MinTimesteps(100)
    sampler = make_sampler(act, faulty("hang", 0, signs=tmp_path, times=1), n_workers=1)
    sampler.start_worker(plan)
    sampler.wait_until_started()
    wait_until(lambda: any(tmp_path.iterdir()))
    worker = psutil.Process(worker_pids(1)[0])
    psutil.Process(worker.ppid()).kill()
    if goes_on:
        assert 100 <= sum(chunk.n_steps for chunk in sampler.stream(plan))
    else:
        sampler.shutdown_worker()
    wait_until(lambda: has_ended(worker))


def test_a_fork_server_that_is_about_to_end_counts_as_dead() -> None:
    """Its pipes may be closed first: a worker that is stuck is killed all the same, and no other one asked of it."""
    with contextlib.closing(
        ProcessPool(WorkerFactory(seed=5), ["worker:0"], "spawn", Supervision())
    ) as processes:
        processes.start(0)
        process = processes._processes[0]
        while process.pid is None:
            processes.wait()
        for pid in (process.pid, process.server._process.pid):
            os.kill(pid, signal.SIGSTOP)
        read_end, write_end = os.pipe()
        os.dup2(read_end, process.status.fileno())
        for end in (read_end, write_end):
            os.close(end)
        process.read_status()
        assert not process.server.is_usable
        processes._reap(process)
        worker = process.pid
        wait_until(lambda: not psutil.pid_exists(worker) or has_ended(psutil.Process(worker)))


def test_a_fork_server_that_imports_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a signal came just when a worker had been asked of it, so that no pool knows of that one."""
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.syspath_prepend(tmp_path)
    server = ForkServer("spawn")
    server.import_torch()
    read_end, write_end = os.pipe()
    server.fork(0, write_end, write_end, write_end)
    for end in (read_end, write_end):
        os.close(end)
    server.close()


@pytest.mark.parametrize("n_registered", [0, 1])
def test_a_signal_while_a_worker_is_started(n_registered: int) -> None:
    """The pool can be closed, whatever was done of it, and the worker ends."""

    class Interrupted(selectors.DefaultSelector):
        def register(self, *args: Any) -> selectors.SelectorKey:
            if len(self.get_map()) == n_registered:
                raise InterruptedRunError("the run was ended by SIGINT")
            return super().register(*args)

    with contextlib.closing(
        ProcessPool(WorkerFactory(seed=5), ["worker:0"], "forkserver", Supervision())
    ) as processes:
        processes._selector.close()
        processes._selector = Interrupted()
        with pytest.raises(InterruptedRunError):
            processes.start(0)
    assert [] == workers_below_us()


def has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)  # Nobody may wait for it now.
    except psutil.NoSuchProcess:
        return True


# -- signals, limits and surroundings ----------------------------------------------------------------------------------


def test_workers_leave_signals_to_the_sampler(make_sampler: MakeSampler) -> None:
    """Ctrl-C, a closed terminal, or who ends a whole job: the workers go on until their sampler decides."""
    sampler = make_sampler(act)
    stream = sampler.stream(MinTimesteps(5000))
    chunks = [next(stream)]
    pids = worker_pids(2)
    for pid in [*pids, psutil.Process(pids[0]).ppid()]:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    chunks += stream
    assert 0 == sampler.restarts
    assert_same_batches(serial(MinTimesteps(5000), act), EpisodeBatch.from_chunks(sampler.env_spec, chunks))


def block_and_ignore_sigchld() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_sampler_that_was_started_with_sigchld_blocked_ends(method: str) -> None:
    """The mask is inherited by every process; the ends of workers are noticed all the same."""
    with program(300, method=method, more={"before": block_and_ignore_sigchld}) as run:
        ran = run.end()
    assert (0, "", ()) == (ran.code, ran.stderr, ran.left)
    assert 300 <= int(ran.stdout.splitlines()[-1]) < 307


def test_a_working_folder_that_is_gone_and_looked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -c`, an interpreter and a notebook look for modules in it, by an empty entry of the path."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    folder.rmdir()
    server = ForkServer("spawn")
    assert server.is_usable
    server.close()


def test_the_working_folder_and_the_one_for_temporary_files_do_no_harm(tmp_path: Path) -> None:
    """No import of the library's finds a random.py of the user's, and no socket has a name, which may not be long."""
    for name in ("random", "types", "queue", "select", "logging", "signal", "socket", "numpy", "gymnasium"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the working folder was imported')")
    script = tmp_path.parent / "program.py"
    script.write_text(PROGRAM)
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    words = [json.dumps([{}, 300, "finish", "forkserver"])]
    with running(
        words, program=[sys.executable, str(script)], cwd=tmp_path, env={"TMPDIR": str(folder)}
    ) as run:
        ran = run.end()
    assert (0, "") == (ran.code, ran.stderr)
    assert [] == list(folder.iterdir())


@pytest.mark.parametrize("flags", [[], ["-P"]])
def test_workers_find_the_package_where_their_sampler_did(flags: list[str], tmp_path: Path) -> None:
    """A copy that comes first on the path hides the installed one from both."""
    (tmp_path / "rollout_cli").symlink_to(ROOT / "rollout_cli")
    (tmp_path / "where.py").write_text(
        "import rollout_cli\ndef act(_): raise OSError(rollout_cli.__file__)\n"
    )
    words = [
        sys.executable,
        *flags,
        "-m",
        "rollout_cli",
        "collect",
        "--policy",
        "where:act",
        "--timesteps",
        "5",
    ]
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True, check=False
    )
    assert f"OSError: {tmp_path}/rollout_cli/__init__.py" in done.stderr


LIMITED = """
import resource
from rollout_cli.errors import WorkerError
from tests.helpers.sampling import sampler_of
from tests.helpers.sampled import act
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
for limit in (8, 14, 20, 60):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    try:
        with sampler_of("forkserver", act, n_workers=4) as sampler:
            sampler.obtain_samples(0, 50, None)
        print("done")
    except WorkerError as error:
        print("WorkerError", error.code, error.message, error.hint)
"""


def test_too_few_descriptors_are_a_workers_error() -> None:
    """One line says which limit it is; or there are enough."""
    words = [sys.executable, "-c", LIMITED]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    refused = r"WorkerError worker-start .*ulimit.*\n"
    assert re.fullmatch(rf"{refused}({refused}|done\n){{2}}done\n", done.stdout), done
    assert (0, "") == (done.returncode, done.stderr)


def test_a_process_that_cannot_be_forked_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server lives on, and says why; root is exempt from the limit, so here it refuses by itself."""

    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    ends = [os.dup(2), os.dup(2)]
    read_end, write_end = os.pipe()
    control, other = socket.socketpair()
    with control, other:
        Server(control, os.getpid()).fork(1, ends[0], ends[1], write_end)
    assert (Status.FAILED, errno.EAGAIN) == RECORD.unpack(os.read(read_end, RECORD.size))
    assert b"" == os.read(read_end, 1)
    os.close(read_end)


def test_other_code_may_ask_for_the_end_of_any_child(make_sampler: MakeSampler) -> None:
    """As a handler of SIGCHLD may do: the workers are no children of the sampler's process."""
    warnings: list[str] = []
    sampler = make_sampler(act, warn=warnings.append)
    sampler.obtain_samples(0, 50, None)
    with contextlib.suppress(ChildProcessError):
        assert (0, 0) == os.waitpid(-1, os.WNOHANG)
    end_and_wait(worker_pids(2)[0])
    sampler.obtain_exact_episodes(2, None)
    assert "was killed by SIGKILL" in warnings[0]


def test_workers_share_the_samplers_surroundings(
    make_sampler: MakeSampler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Environment variables, working folder and arguments are those of the moment when a worker starts.

    It reads nothing, prints to standard error, uses one thread for linear algebra, and has a title.
    """
    with make_sampler(act) as earlier:  # A fork server that was started before any of these changed.
        earlier.obtain_samples(0, 20, None)
    monkeypatch.setenv("CHOSEN_BY_A_TEST", "yes")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["a program", "of the user's"])
    sampler = make_sampler(act, TellingEnv)
    infos = sampler.obtain_samples(0, 20, None).episode_infos
    titles = sorted(" ".join(process.cmdline()) for process in map(psutil.Process, worker_pids(2)))
    found = {name: values.tolist()[0] for name, values in infos.items() if name != "length"}
    expected = {
        "chosen": "yes",
        "threads": "1",
        "folder": str(tmp_path),
        "argv": "a program",
        "stdin": "/dev/null",
        "same output": True,
    }
    assert expected == found
    assert ["worker:0", "worker:1"] == [title.split()[0] for title in titles]
    assert all("TellingEnv" in title for title in titles)
