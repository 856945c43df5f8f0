"""The fault table: what is done to a run, and what must become of it."""

from __future__ import annotations

import resource
import signal
from typing import Any

from tests.faults import meddling as m
from tests.faults.running import SOME, Row

RETRY, SKIP = ("--on-env-error", "retry"), ("--on-env-error", "skip")
LOCAL, OFTEN = ("--sampler", "local"), ("--flush-every", "0.05")
CLIP, WARN = ("--invalid-action", "clip"), ("--invalid-action", "warn")
ROWS = ("--envs-per-worker", "4")
LONG, MIDDLE = ("collect", "--timesteps", "100000"), ("collect", "--episodes", "200")
SLOW, MEETING = {"pace": 0.001}, {"meet": 3}
VECTOR = "tests.helpers.envs:vector"
ANY_OF = rf"episode ({'|'.join(map(str, SOME))})\b"


def some(what: str, when: str = "step") -> dict[str, object]:
    """Return a fault of some episodes."""
    return {"what": what, "when": when, "at": SOME}


def once(what: str, when: str = "step") -> dict[str, object]:
    """Return a fault that happens once in the whole run."""
    return {"what": what, "when": when, "at": SOME[:1], "times": 1}


def always(what: str, when: str = "step", **more: object) -> dict[str, object]:
    """Return a fault of all episodes."""
    return {"what": what, "when": when, **more}


def fails(
    name: str, what: str, says: str, never: str = "", code: int | tuple[int, ...] = 3, **more: Any
) -> Row:
    """Return a row in which the environment's fault ends the run, which keeps the episodes before it."""
    return Row(name, code, says, never, **{"env": some(what), "keeps": "prefix", **more})


def stays(name: str, what: str, says: str = "", **more: Any) -> Row:
    """Return a row in which the episodes with the fault are stored as they come."""
    return Row(name, 0, says, **{"env": some(what), "keeps": "whole", **more})


def acts(name: str, what: str, says: str, never: str = "", **more: Any) -> Row:
    """Return a row in which the policy's fault ends the run."""
    return Row(name, 3, says, never, **{"acts": some(what), "keeps": "prefix", **more})


def refused(name: str, code: int | tuple[int, ...], says: str, never: str = "", **more: Any) -> Row:
    """Return a row in which nothing is collected."""
    return Row(
        name, code, says, never, **{"keeps": "none", "signed": "env" in more or "acts" in more, **more}
    )


def ended(
    name: str, code: int | tuple[int, ...], says: str, meddle: m.Meddle, never: str = "", **more: Any
) -> Row:
    """Return a row in which a long run is ended from outside, and keeps what it has."""
    fixed = {"env": SLOW, "command": LONG, "options": OFTEN, "keeps": "prefix", "signed": False}
    return Row(name, code, says, never, **{**fixed, "meddle": meddle, **more})


def well(name: str, code: int | tuple[int, ...] = 0, says: str = "", **more: Any) -> Row:
    """Return a row in which user code does nothing wrong."""
    return Row(name, code, says, **{"signed": False, **more})


LOADING = [
    refused("env raises at load", 3, "the simulator is broken", env=always("raise", "load")),
    refused("env leaves at load", 3, "sys.exit|SystemExit", "is imported", env=always("sys.exit 3", "load")),
    refused("env is killed at load", 4, "SIGKILL", env=always("kill", "load")),
    Row("env crashes at load, once", 0, "SIGSEGV", env=once("segfault", "load")),
    refused("policy raises at load", 3, "the simulator is broken", acts=always("raise", "load")),
    refused("no such env", 3, "NoSuchEnv-v0", spec="NoSuchEnv-v0"),
    refused("half a pickle", 3, "half.pkl", options=("--policy", "half.pkl"), prepare=m.truncated_pickle),
    refused("no such worker class", 3, "nowhere", options=("--worker-class", "nowhere:Worker")),
    refused("a spec of 100,000 brackets", 3, "deep.json", spec="deep.json", prepare=m.deep_json),
    refused("a Dict without leaves", 3, r"\[space-empty\]", kwargs={"space": "empty dict"}),
    refused("a Tuple without leaves", 3, r"\[space-empty\]", kwargs={"space": "empty tuple"}),
    refused("a key that has no UTF-8", 3, r"\[space-key\]", kwargs={"space": "surrogate key"}),
    refused(
        "a space without fixed columns", 3, r"Sequence.*\[space-unsupported\]", kwargs={"space": "sequence"}
    ),
]

RESETTING = [
    refused(
        *("env raises at reset", 3, r"env.reset .*ValueError.*episode \d.*\[env-raised\]"),
        env=always("raise", "reset"),
    ),
    Row("resets raise, skipped", 0, "skip", env=some("raise", "reset"), options=SKIP, keeps="skips"),
    fails("resets crash", "", ANY_OF + ".*SIGSEGV", code=4, env=some("segfault", "reset")),
    refused("env has the old reset", 3, r"env.reset.*\[result-type\]", env=always("old reset", "reset")),
    refused("env gives nothing at reset", 3, "observation", env=always("obs none", "reset")),
    stays("reset infos without UTF-8", "", env=some("info surrogate", "reset")),
    refused("policy raises at reset", 3, r"policy.reset .*\[policy-raised\]", acts=always("raise", "reset")),
]

STEPPING = [
    fails("env raises", "raise", r"env.step .*ValueError.*\[env-raised\].*Traceback"),
    Row("env raises, skipped", 0, "simulator is broken", env=some("raise"), options=SKIP, keeps="skips"),
    fails("env raises each time, retried", "raise", r"env.step .*\[env-raised\]", options=RETRY),
    Row("env raises once, retried", env=once("raise"), options=RETRY),
    fails("an error that cannot be pickled", "raise unpicklable", "LocalError"),
    fails("an error of 10 MB", "raise 10 MB", "the simulator is broken"),
    fails("env runs out of stack", "recurse", "RecursionError"),
    fails("env raises MemoryError", "memory", "MemoryError"),
    fails("env raises KeyboardInterrupt", "interrupt", "error: [^\n]*[Ii]nterrupt", code=(3, 4)),
    fails("env raises a BaseException", "raise odd", "an odd error", code=(3, 4)),
    fails("env leaves by sys.exit", "sys.exit 3", ANY_OF, code=(3, 4)),
    Row("env leaves by os._exit once", 0, "exit", env=once("os._exit")),
    Row("env is killed as for lack of memory", 0, "SIGKILL.*memory", env=once("kill")),
    fails("env is killed each time", "kill", ANY_OF + ".*SIGKILL", code=4),
    Row("and skipped", 0, "SIGKILL", env=some("kill"), options=("--on-worker-death", "skip"), keeps="skips"),
    fails("env crashes each time", "segfault", ANY_OF + ".*SIGSEGV", code=4),
    Row("env aborts once", 0, "SIGABRT", env=once("abort")),
    fails("env closes all files", "close files", "closed its file descriptors", code=4, lines=45),
    fails("no restart is allowed", "kill", "SIGKILL", code=4, options=("--max-worker-restarts", "0")),
    Row("env hangs once", 0, "2", env=once("hang"), options=("--step-timeout", "2")),
    refused(
        *("an episode takes too long", 3, r"\[episode-timeout\]"),
        kwargs={"pace": 1.0},
        options=("--episode-timeout", "2"),
    ),
    refused(
        *("env never ends", 3, r"\[episode-endless\]"),
        kwargs={"endless": True},
        options=("--episode-step-guard", "500"),
    ),
    refused("env has the old step", 3, r"env.step.*\[result-type\]", env=always("old step")),
    well(
        "episodes are longer than the guard, and limited",
        kwargs={"endless": True},
        options=("--max-episode-length", "60", "--episode-step-guard", "50"),
        keeps="whole",
    ),
    fails("a reward is a text", "reward text", r"reward=.*\[step-value\]"),
    fails("a reward is complex", "reward complex", r"reward=.*\[step-value\]", "ComplexWarning"),
    fails("a reward is too large", "reward huge", r"reward=.*\[step-value\]", r"\[env-raised\]"),
    refused("a flag is an array", 3, r"terminated=.*\[step-value\]", env=always("flag array")),
    fails("an observation changes its shape", "obs shape", r"observation.*\[value-shape\]"),
    stays("an observation is nan", "obs nan", "observation"),
    stays("an observation leaves its space", "obs outside", "observation"),
    Row(
        "a text without UTF-8",
        (0, 3),
        "text|obs",
        env=some("obs surrogate"),
        kwargs={"space": "text"},
        keeps="any",
    ),
    stays("infos that change their type", "info type"),
    stays("infos with odd keys", "info keys"),
    stays("infos without UTF-8", "info surrogate"),
    stays("infos that hold themselves", "info recursive"),
    fails("infos that are a list", "info list", r"\[info-type\]"),
    stays("infos of a megabyte", "info 1 MB"),
    # As a dense column they would take 9 GB.
    stays("a few infos of 8 MB", "info 8 MB", command=MIDDLE, before=m.limit(resource.RLIMIT_AS, 6 << 30)),
    Row(
        "infos that cannot be stored",
        env=always("info unstorable", "all steps"),
        command=("collect", "--timesteps", "300"),
        keeps="any",
        after=m.dropped_are_counted_once,
    ),
    Row("env prints", env=always("print"), options=("--json",), lines=400),
    Row("env closes stdout", env=once("close stdout")),
    Row("env changes the folder", env=always("chdir")),
    Row("env changes signal handlers", env=always("signals")),
    Row("env changes global settings", env=always("globals")),
    Row("env leaves processes behind", env=some("child"), alone=True),
    well("frames are stacked", spec="tests.helpers.envs:stacked", keeps="whole", after=m.slices_are_right),
    well(
        "observations of two dimensions", kwargs={"space": "stack"}, keeps="whole", after=m.all_commands_work
    ),
    well(
        "a keyword argument is inf", kwargs={"note": float("inf")}, keeps="whole", after=m.all_commands_work
    ),
    well(
        "a keyword argument is nan", kwargs={"note": float("nan")}, keeps="whole", after=m.all_commands_work
    ),
]

ACTING = [
    acts("policy raises", "raise", r"policy\.get_action .*\[policy-raised\]"),
    Row("policy crashes once", 0, "SIGSEGV", acts=once("segfault")),
    acts(
        *("a batch policy raises", "raise", r"policy\.get_actions .*\[policy-raised\]"),
        policy="FaultyBatchPolicy",
    ),
    acts(
        *("one of rows raises", "raise", r"policy\.get_action .*\[policy-raised\]"),
        options=("--envs-per-worker", "2"),
    ),
    acts("an action is nan", "action nan", r"\[action-outside-space\]"),
    acts("an action leaves its space", "action outside", r"\[action-outside-space\].*--invalid-action"),
    acts("an action is infinite", "action inf", r"\[action-outside-space\]"),
    acts("an action overflows its type", "action 1e300", r"\[inf, 0", "RuntimeWarning"),
    acts(
        *("two of them overflow", "action 1e300", r"\[inf, 0", "RuntimeWarning"),
        options=("--envs-per-worker", "2"),
        keeps="any",
    ),
    Row("actions are clipped", acts=some("action outside"), options=CLIP, keeps="whole"),
    Row("actions are only warned of", 0, "action", acts=some("action outside"), options=WARN, keeps="whole"),
    acts(
        *("nan cannot be clipped", "action nan", r"\[action-outside-space\]", "--invalid-action clip"),
        options=CLIP,
    ),
    acts("nan makes the reward nan", "action nan", r"\[reward-nan\].*hint: .*action", options=WARN),
    acts("an action has another shape", "action shape", r"\[value-shape\]"),
    acts("an action is a text", "action text", r"\[value-shape\]"),
    refused("an action without infos", 3, r"get_action.*\(action, ", acts=always("bare action", "all steps")),
    refused("no action at all", 3, "get_action", acts=always("no answer", "all steps")),
    acts("agent infos that are a list", "list infos", "get_action"),
    Row("agent infos that cannot be stored", acts=some("agent info"), keeps="whole"),
    acts("two actions for one observation", "two actions", "get_actions", policy="FaultyBatchPolicy"),
    acts("agent infos of another length", "long infos", "get_actions", policy="FaultyBatchPolicy"),
    acts("no batch of actions", "no batch", "get_actions", r"get_action\b", policy="FaultyBatchPolicy"),
]

NATIVE: dict[str, Any] = {"spec": VECTOR, "kwargs": {"autoreset_mode": "NextStep"}}
IN_BATCHES = [
    Row(
        *("a row raises in NEXT_STEP, skipped", 0, "skip"),
        **NATIVE,
        env={"what": "raise", "episodes": [-2]},
        options=("--vectorization", "native", *ROWS, *SKIP),
        keeps="any",
    ),
    Row(
        *("a reward is nan in NEXT_STEP", 3, "reward", "seed -1"),
        **NATIVE,
        env={"what": "reward nan", "episodes": [-2]},
        options=("--vectorization", "native", *ROWS),
        keeps="prefix",
    ),
    Row("a row raises, skipped", 0, "skip", env=some("raise"), options=(*ROWS, *SKIP), keeps="skips"),
    Row("a row is killed once", 0, "SIGKILL", env=once("kill"), options=ROWS),
]

ALONE: dict[str, Any] = {"options": LOCAL, "workers": 1}
KEPT: dict[str, Any] = {**ALONE, "keeps": "finished"}
LOCALLY = [
    fails("local: sys.exit(0)", "sys.exit 0", ANY_OF, code=(3, 4), **KEPT),
    fails("local: a BaseException", "raise odd", "an odd error", code=(3, 4), **KEPT),
    fails("local: KeyboardInterrupt", "interrupt", "", code=(3, 4, 130), **KEPT),
    fails("local: a crash", "segfault", "Segmentation fault|SIGSEGV", code=-signal.SIGSEGV, **ALONE),
    fails("local: Ctrl-C while a step blocks", "hang", "", code=130, meddle=m.interrupt_blocked, **ALONE),
    Row("local: env raises at close", env=always("raise", "close"), **ALONE),
    Row("local: env interrupts at close", env=always("interrupt", "close"), **ALONE),
    Row("local: env leaves at close", env=always("sys.exit 3", "close"), **ALONE),
    Row(
        "local: env hangs at close",
        0,
        "SIGINT",
        env=always("hang", "close"),
        meddle=m.interrupt_closing,
        **ALONE,
    ),
]

CLOSING = [
    Row("env crashes at close", env=always("segfault", "close")),
    Row("env hangs at close", env=always("hang", "close")),
]

ENDING = [
    ended("Ctrl-C", 130, "SIGINT", m.send(signal.SIGINT)),
    ended(
        *("two signals", 130, r"SIGTERM.*\[interrupted\]", m.interrupt_and_terminate),
        options=(*OFTEN, "--grace", "60"),
    ),
    ended(
        *("Ctrl-C while a shard sees the first episodes", 130, r"\[interrupted\]", m.interrupt_begun),
        env={"pace": 0.05},
        command=("collect", "--episodes", "40", "--shard", "2/2"),
        options=(),
        keeps="none",
    ),
    ended("SIGTERM", 143, "SIGTERM", m.send(signal.SIGTERM)),
    ended(
        "SIGTERM to all",
        143,
        "SIGTERM",
        m.send_to_group(signal.SIGTERM),
        "exit code|was killed|started again|restart",
    ),
    ended(
        *("the terminal is closed", (129, 143), "SIGHUP", m.hang_up),
        env=always("info late", times=300, pace=0.001),
        options=("--flush-every", "3600"),
    ),
    ended("kill -9 of the parent", -signal.SIGKILL, "", m.send(signal.SIGKILL)),
    well("kill -9 of a worker", says="SIGKILL", env=MEETING, command=MIDDLE, meddle=m.kill_worker),
    well("the parent is stopped for a while", env=MEETING, command=MIDDLE, meddle=m.stop_and_continue),
    well("a worker is stopped for a while", env=MEETING, command=MIDDLE, meddle=m.stop_worker),
    well("stdout is closed", code=(0, 5), env=SLOW, meddle=m.close_stdout),
    Row(
        *("stderr is full, then SIGTERM", 143),
        env=always("print much"),
        meddle=m.terminate_unread,
        options=("--grace", "0.5"),
        keeps="any",
        lines=100_000,
    ),
    well(
        *("the env's module is edited", (0, 3, 4), "chang"),
        spec="mine:Mine",
        env=MEETING,
        command=MIDDLE,
        prepare=m.own_module,
        meddle=m.change_module,
        keeps="any",
    ),
]

SURROUNDINGS = [
    well("modules of the same names in the folder", prepare=m.shadows, after=m.no_shadow_was_imported),
    well("TMPDIR is long", variables=m.long_tmpdir),
    well("SIGCHLD is blocked", before=m.block_sigchld),
    well("the working folder is gone", code=(0, 2, 5), before=m.lose_working_folder, keeps="any"),
    refused(
        "too little memory for the libraries",
        4,
        r"error: .*failed to map.*\[process-out-of-memory\]",
        variables=m.little_memory,
    ),
    refused("12 open files", (4, 5), "file", before=m.limit(resource.RLIMIT_NOFILE, 12)),
    refused(
        *("too little memory for an episode", (3, 4, 5), "[Mm]emory"),
        kwargs={"space": "huge"},
        workers=1,
        before=m.limit(resource.RLIMIT_AS, 2 << 30),
    ),
    refused("3,000 workers", 2, "--workers", options=("--workers", "3000")),
    refused("100,000,000 rows", 2, "--envs-per-worker", options=("--envs-per-worker", "100000000")),
]

IN_DIR = r"are (safe )?in |--resume"
"""What must not be said of a folder that is gone."""
REMOVED: dict[str, Any] = {"keeps": "none", "after": m.nothing_is_begun_again}
WRITING = [
    ended(
        *("the disk is full", 5, r"\[write-failed\]", m.little_room),
        options=("--segment-bytes", "100000"),
        keeps="any",
    ),
    refused("the folder cannot be made", 5, "/proc", output="/proc/out"),
    refused("the folder holds something else", 5, r"\[folder-not-empty\]", prepare=m.foreign_folder),
    well(
        "another run writes there",
        code=5,
        says=r"\[dataset-locked\]",
        prepare=m.locked,
        options=("--overwrite",),
        keeps="any",
    ),
    ended("the folder is removed", 5, "", m.after_commit(m.remove_output), IN_DIR, **REMOVED),
    ended("the folder is renamed", 5, "", m.after_commit(m.rename_output), IN_DIR, **REMOVED),
    ended(
        *("the data are removed", 5, r"\[(segments-removed|file-missing)\]", m.after_commit(m.remove_data)),
        options=(*OFTEN, "--segment-bytes", "20000"),
        command=("collect", "--episodes", "600"),
        keeps="wreck",
    ),
    well("the folder's name is not UTF-8", output=b"b\xff"),
    refused("the folder's name is too long", (2, 5), "name|long", output="n" * 300),
]

TABLE = [
    *LOADING,
    *RESETTING,
    *STEPPING,
    *ACTING,
    *IN_BATCHES,
    *LOCALLY,
    *CLOSING,
    *ENDING,
    *SURROUNDINGS,
    *WRITING,
]
