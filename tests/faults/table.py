"""The fault table: what is done to a run, and what must become of it."""

from __future__ import annotations

import resource
import signal

from tests.faults import meddling as m
from tests.faults.running import SOME, Row

RETRY, SKIP = ("--on-env-error", "retry"), ("--on-env-error", "skip")
LOCAL = ("--sampler", "local")
OFTEN = ("--flush-every", "0.05")
STEP_LIMIT = ("--step-timeout", "2")
LONG, MIDDLE = ("collect", "--timesteps", "100000"), ("collect", "--episodes", "200")
SLOW = {"pace": 0.001}


def some(what: str, when: str = "step", **more: object) -> dict[str, object]:
    """Return a fault of some episodes."""
    return {"what": what, "when": when, "at": SOME, **more}


def once(what: str, when: str = "step", **more: object) -> dict[str, object]:
    """Return a fault that happens once in the whole run, in an episode in the middle."""
    return {"what": what, "when": when, "at": SOME[:1] if when == "step" else (), "times": 1, **more}


def always(what: str, when: str = "step", **more: object) -> dict[str, object]:
    """Return a fault of all episodes."""
    return {"what": what, "when": when, **more}


LOADING = [
    Row("env raises at load", 3, "the simulator is broken", env=always("raise", "load"), keeps="none"),
    Row(
        "env leaves at load by sys.exit",
        3,
        "sys.exit|SystemExit",
        "is imported",
        env=always("sys.exit 3", "load"),
        keeps="none",
    ),
    Row("env is killed at load", 4, "SIGKILL", env=always("kill", "load"), keeps="none"),
    Row("env crashes at load, once", env=once("segfault", "load"), says="SIGSEGV"),
    Row("policy raises at load", 3, "the simulator is broken", acts=always("raise", "load"), keeps="none"),
    Row("no such env", 3, "NoSuchEnv-v0", spec="NoSuchEnv-v0", keeps="none", signed=False),
    Row(
        "half a pickle",
        3,
        "half.pkl",
        options=("--policy", "half.pkl"),
        keeps="none",
        signed=False,
        prepare=m.truncated_pickle,
    ),
    Row("no such worker class", 3, "nowhere", options=("--worker-class", "nowhere:Worker"), keeps="none", signed=False),
    Row(
        "a spec of 100,000 brackets", 3, "deep.json", spec="deep.json", keeps="none", signed=False, prepare=m.deep_json
    ),
    Row("a space without leaves: Dict", 3, "empty|no ", env={"space": "empty dict"}, keeps="none", signed=False),
    Row("a space without leaves: Tuple", 3, "empty|no ", env={"space": "empty tuple"}, keeps="none", signed=False),
    Row("a key that has no UTF-8", 3, "key", env={"space": "surrogate key"}, keeps="none", signed=False),
    Row("a space without fixed columns", 3, "Sequence", env={"space": "sequence"}, keeps="none", signed=False),
]

RESETTING = [
    Row(
        "env raises at reset", 3, r"env.reset raised ValueError.*episode \d", env=always("raise", "reset"), keeps="none"
    ),
    Row("env raises at some resets, skipped", 0, "skip", env=some("raise", "reset"), options=SKIP, keeps="skips"),
    Row("env crashes at some resets", 4, r"episode 7\b.*SIGSEGV", env=some("segfault", "reset"), keeps="prefix"),
    Row("env has the old reset", 3, "reset", env=always("old reset", "reset"), keeps="none"),
    Row("env gives nothing at reset", 3, "observation", env=always("obs none", "reset"), keeps="none"),
    Row("infos of resets that have no UTF-8", env=some("info surrogate", "reset"), keeps="whole"),
    Row("policy raises at reset", 3, "policy.reset raised", acts=always("raise", "reset"), keeps="none"),
]

STEPPING = [
    Row("env raises in some episodes", 3, "env.step raised ValueError.*Traceback", env=some("raise"), keeps="prefix"),
    Row(
        "env raises in some episodes, skipped",
        0,
        "the simulator is broken",
        env=some("raise"),
        options=SKIP,
        keeps="skips",
    ),
    Row("env raises in some episodes, retried", 3, "env.step raised", env=some("raise"), options=RETRY, keeps="prefix"),
    Row("env raises once, retried", env=once("raise"), options=RETRY),
    Row("an error that cannot be pickled", 3, "LocalError", env=some("raise unpicklable"), keeps="prefix"),
    Row("an error of 10 MB", 3, "the simulator is broken", env=some("raise 10 MB"), keeps="prefix"),
    Row("env runs out of stack", 3, "RecursionError", env=some("recurse"), keeps="prefix"),
    Row("env raises MemoryError", 3, "MemoryError", env=some("memory"), keeps="prefix"),
    Row(
        "env raises KeyboardInterrupt",
        (3, 4),
        "error: [^\n]*(KeyboardInterrupt|interrupt)",
        env=some("interrupt"),
        keeps="prefix",
    ),
    Row("env raises its own BaseException", (3, 4), "an odd error", env=some("raise odd"), keeps="prefix"),
    Row("env leaves by sys.exit", (3, 4), r"episode 7\b", env=some("sys.exit 3"), keeps="prefix"),
    Row("env leaves by os._exit once", 0, "exit", env=once("os._exit")),
    Row("env is killed as for lack of memory", 0, "SIGKILL.*memory", env=once("kill")),
    Row("env is killed in some episodes", 4, r"episode 7\b.*SIGKILL", env=some("kill"), keeps="prefix"),
    Row(
        "such episodes are skipped",
        0,
        "SIGKILL",
        env=some("kill"),
        options=("--on-worker-death", "skip"),
        keeps="skips",
    ),
    Row("env crashes in some episodes", 4, r"episode 7\b.*SIGSEGV", env=some("segfault"), keeps="prefix"),
    Row("env aborts once", 0, "SIGABRT", env=once("abort")),
    Row(
        "no restart is allowed", 4, "SIGKILL", env=once("kill"), options=("--max-worker-restarts", "0"), keeps="prefix"
    ),
    Row("env hangs once", env=once("hang"), options=STEP_LIMIT, says="2"),
    Row(
        "an episode takes too long",
        3,
        "episode",
        env={"pace": 1.0},
        options=("--episode-timeout", "2"),
        keeps="none",
        signed=False,
    ),
    Row(
        "env never ends",
        3,
        "--max-episode-length",
        env={"endless": True},
        options=("--episode-step-guard", "500"),
        keeps="none",
        signed=False,
    ),
    Row("env has the old step", 3, "step", env=always("old step"), keeps="none"),
    Row("a reward is a text", 3, "reward", env=some("reward text"), keeps="prefix"),
    Row("a reward is complex", 3, "reward", "ComplexWarning", env=some("reward complex"), keeps="prefix"),
    Row("a reward is too large", 3, "reward", "raised OverflowError", env=some("reward huge"), keeps="prefix"),
    Row("a flag is an array", 3, "terminated", env=always("flag array"), keeps="none"),
    Row("an observation changes its shape", 3, "observation", env=some("obs shape"), keeps="prefix"),
    Row("an observation is nan", 0, "observation", env=some("obs nan"), keeps="whole"),
    Row("an observation leaves its space", 0, "observation", env=some("obs outside"), keeps="whole"),
    Row("a text that has no UTF-8", (0, 3), "observation|text", env=some("obs surrogate", space="text"), keeps="any"),
    Row(
        "infos that cannot be stored",
        env=always("info unstorable", "all steps"),
        command=("collect", "--timesteps", "300"),
        keeps="any",
        after=m.dropped_are_counted_once,
    ),
    Row("infos that change their type", env=some("info type"), keeps="whole"),
    Row("infos with odd keys", env=some("info keys"), keeps="whole"),
    Row("infos that have no UTF-8", env=some("info surrogate"), keeps="whole"),
    Row("infos that hold themselves", env=some("info recursive"), keeps="whole"),
    Row("infos that are a list", 3, "info", env=some("info list"), keeps="prefix"),
    Row("infos of a megabyte", env=some("info 1 MB"), keeps="whole"),
    # As a dense column they would take 9 GB.
    Row(
        "a few infos of 8 MB",
        env=some("info 8 MB"),
        command=("collect", "--episodes", "200"),
        keeps="whole",
        before=m.limit(resource.RLIMIT_AS, 6 << 30),
    ),
    Row("env prints", env=always("print"), options=("--json",), lines=400),
    Row("env closes stdout", env=once("close stdout")),
    Row("env changes the folder", env=always("chdir")),
    Row("env changes signal handlers", env=always("signals")),
    Row("env changes global settings", env=always("globals")),
    Row("env leaves processes behind", env=some("child")),
    Row("frames are stacked", spec="tests.helpers.envs:stacked", keeps="whole", signed=False, after=m.slices_are_right),
    Row(
        "observations of two dimensions", env={"space": "stack"}, keeps="whole", signed=False, after=m.all_commands_work
    ),
    Row("keyword arguments are infinite", env={"note": float("inf")}, signed=False, after=m.all_commands_work),
    Row("keyword arguments are nan", env={"note": float("nan")}, signed=False, after=m.all_commands_work),
]

ACTING = [
    Row("policy raises", 3, "policy.get_action raised", acts=some("raise"), keeps="prefix"),
    Row("policy crashes once", 0, "SIGSEGV", acts=once("segfault")),
    Row("an action is nan", 3, "action", acts=some("action nan"), keeps="prefix"),
    Row("an action leaves its space", 3, "--invalid-action", acts=some("action outside"), keeps="prefix"),
    Row("an action is infinite", 3, "action", acts=some("action inf"), keeps="prefix"),
    Row("actions are clipped", acts=some("action outside"), options=("--invalid-action", "clip"), keeps="whole"),
    Row(
        "actions are only warned of",
        0,
        "action",
        acts=some("action outside"),
        options=("--invalid-action", "warn"),
        keeps="whole",
    ),
    Row(
        "nan cannot be clipped",
        3,
        "action",
        "--invalid-action clip",
        acts=some("action nan"),
        options=("--invalid-action", "clip"),
        keeps="prefix",
    ),
    Row("an action has another shape", 3, "action", acts=some("action shape"), keeps="prefix"),
    Row("an action is a text", 3, "action", acts=some("action text"), keeps="prefix"),
    Row("an action without infos", 3, r"get_action.*\(action, ", acts=always("bare action"), keeps="none"),
    Row("no action at all", 3, "get_action", acts=always("no answer"), keeps="none"),
    Row("agent infos that are a list", 3, "get_action", acts=some("list infos"), keeps="prefix"),
    Row("agent infos that cannot be stored", acts=some("agent info"), keeps="whole"),
    Row(
        "two actions for one observation",
        3,
        "get_actions",
        acts=some("two actions"),
        policy="FaultyBatchPolicy",
        keeps="prefix",
    ),
    Row(
        "agent infos of another length",
        3,
        "get_actions",
        acts=some("long infos"),
        policy="FaultyBatchPolicy",
        keeps="prefix",
    ),
    Row(
        "no batch of actions",
        3,
        "get_actions",
        r"get_action\b",
        acts=some("no batch"),
        policy="FaultyBatchPolicy",
        keeps="prefix",
    ),
]

NATIVE = ("--vectorization", "native", "--envs-per-worker", "4")
NEXT_STEP: dict[str, object] = {"autoreset_mode": "NextStep", "episodes": [-2]}
VECTOR = "tests.helpers.envs:vector"
IN_BATCHES = [
    Row(
        "a row raises in NEXT_STEP, skipped",
        0,
        "skip",
        spec=VECTOR,
        env={"what": "raise", **NEXT_STEP},
        options=(*NATIVE, *SKIP),
        keeps="any",
    ),
    Row(
        "a reward is nan in NEXT_STEP",
        3,
        "reward",
        "seed -1",
        spec=VECTOR,
        env={"what": "reward nan", **NEXT_STEP},
        options=NATIVE,
        keeps="prefix",
    ),
    Row(
        "a row raises, skipped", 0, "skip", env=some("raise"), options=("--envs-per-worker", "4", *SKIP), keeps="skips"
    ),
    Row("a row is killed once", 0, "SIGKILL", env=once("kill"), options=("--envs-per-worker", "4")),
]

LOCALLY = [
    Row(
        "sys.exit(0) in the caller's process",
        (3, 4),
        "episode 7",
        env=some("sys.exit 0"),
        options=LOCAL,
        workers=1,
        keeps="prefix",
    ),
    Row(
        "a BaseException in the caller's process",
        (3, 4),
        "an odd error",
        env=some("raise odd"),
        options=LOCAL,
        workers=1,
        keeps="prefix",
    ),
    Row(
        "KeyboardInterrupt in the caller's process",
        (3, 4, 130),
        "",
        env=some("interrupt"),
        options=LOCAL,
        workers=1,
        keeps="prefix",
    ),
    Row(
        "a crash of the caller's process",
        -signal.SIGSEGV,
        "Segmentation fault|SIGSEGV",
        env=some("segfault"),
        options=LOCAL,
        workers=1,
        keeps="prefix",
    ),
    Row(
        "Ctrl-C while a step blocks",
        130,
        env=some("hang"),
        options=LOCAL,
        workers=1,
        keeps="prefix",
        meddle=m.interrupt_blocked,
    ),
    Row("env raises at close, local", env=always("raise", "close"), options=LOCAL, workers=1),
    Row("env interrupts at close, local", env=always("interrupt", "close"), options=LOCAL, workers=1),
    Row("env leaves at close, local", env=always("sys.exit 3", "close"), options=LOCAL, workers=1),
]

CLOSING = [
    Row("env crashes at close", env=always("segfault", "close")),
    Row("env hangs at close", env=always("hang", "close")),
]

ENDING = [
    Row(
        "Ctrl-C",
        130,
        "SIGINT",
        env=SLOW,
        command=LONG,
        meddle=m.send(signal.SIGINT),
        options=OFTEN,
        keeps="prefix",
        signed=False,
    ),
    Row(
        "Ctrl-C, and SIGTERM after it",
        130,
        "at once",
        env=SLOW,
        command=LONG,
        meddle=m.interrupt_and_terminate,
        options=(*OFTEN, "--grace", "60"),
        keeps="prefix",
        signed=False,
    ),
    Row(
        "SIGTERM",
        143,
        "SIGTERM",
        env=SLOW,
        command=LONG,
        meddle=m.send(signal.SIGTERM),
        options=OFTEN,
        keeps="prefix",
        signed=False,
    ),
    Row(
        "SIGTERM to all processes",
        143,
        "SIGTERM",
        "exit code|was killed|started again|restart",
        env=SLOW,
        command=LONG,
        meddle=m.send_to_group(signal.SIGTERM),
        options=OFTEN,
        keeps="prefix",
        signed=False,
    ),
    Row(
        "the terminal is closed",
        (129, -signal.SIGHUP),
        env=always("info late", times=300, **SLOW),
        command=LONG,
        meddle=m.hang_up,
        options=("--flush-every", "3600"),
        keeps="prefix",
    ),
    Row(
        "kill -9 of the parent",
        -signal.SIGKILL,
        env=SLOW,
        command=LONG,
        meddle=m.send(signal.SIGKILL),
        options=OFTEN,
        keeps="prefix",
        signed=False,
    ),
    Row("kill -9 of a worker", 0, "SIGKILL", env=SLOW, command=MIDDLE, meddle=m.kill_worker, signed=False),
    Row("the parent is stopped for a while", env=SLOW, command=MIDDLE, meddle=m.stop_and_continue, signed=False),
    Row("a worker is stopped for a while", env=SLOW, command=MIDDLE, meddle=m.stop_worker, signed=False),
    Row("stdout is closed", (0, 5), env=SLOW, meddle=m.close_stdout, signed=False),
    Row(
        "stderr is full, then SIGTERM",
        143,
        env=always("print much"),
        meddle=m.terminate_unread,
        options=("--grace", "0.5"),
        keeps="any",
        lines=10_000,
    ),
    Row(
        "the env's module is changed",
        (0, 3, 4),
        "chang",
        env=SLOW,
        spec="mine:Mine",
        command=MIDDLE,
        meddle=m.change_module,
        prepare=m.own_module,
        options=OFTEN,
        keeps="any",
        signed=False,
    ),
]

SURROUNDINGS = [
    Row("modules of the same names in the folder", prepare=m.shadows, after=m.no_shadow_was_imported, signed=False),
    Row("TMPDIR is long", variables=m.long_tmpdir, signed=False),
    Row("SIGCHLD is blocked", before=m.block_sigchld, signed=False),
    Row("the working folder is gone", (0, 2, 5), before=m.lose_working_folder, keeps="any", signed=False),
    Row("24 open files", (4, 5), "file", before=m.limit(resource.RLIMIT_NOFILE, 24), keeps="none", signed=False),
    Row(
        "too little memory for an episode",
        (3, 4, 5),
        "[Mm]emory",
        env={"space": "huge"},
        command=("collect", "--episodes", "2"),
        workers=1,
        before=m.limit(resource.RLIMIT_AS, 3 << 30),
        keeps="none",
        signed=False,
    ),
    Row("3,000 workers", 2, "--workers", options=("--workers", "3000"), keeps="none", signed=False),
    Row(
        "a hundred million rows",
        2,
        "--envs-per-worker",
        options=("--envs-per-worker", "100000000"),
        keeps="none",
        signed=False,
    ),
]

WRITING = [
    Row(
        "the disk is full",
        5,
        "write",
        env=SLOW,
        command=LONG,
        meddle=m.little_room,
        options=("--segment-bytes", "100000"),
        keeps="any",
        signed=False,
    ),
    Row(
        "the folder cannot be made",
        5,
        "/proc/out",
        options=("--output", "/proc/out"),
        output="/proc/out",
        keeps="none",
        signed=False,
    ),
    Row("the folder holds something else", 5, "not empty", prepare=m.foreign_folder, keeps="none", signed=False),
    Row(
        "another run writes there",
        5,
        "another run",
        prepare=m.locked,
        options=("--overwrite",),
        keeps="any",
        signed=False,
    ),
    Row(
        "the folder is removed",
        5,
        "",
        "safe",
        env=SLOW,
        command=LONG,
        meddle=m.after_commit(m.remove_output),
        options=OFTEN,
        keeps="none",
        after=m.nothing_is_begun_again,
        signed=False,
    ),
    Row(
        "the folder is renamed",
        5,
        "",
        "safe",
        env=SLOW,
        command=LONG,
        meddle=m.after_commit(m.rename_output),
        options=OFTEN,
        keeps="none",
        after=m.nothing_is_begun_again,
        signed=False,
    ),
    Row(
        "the data are removed",
        5,
        "",
        "safe",
        env=SLOW,
        command=LONG,
        meddle=m.after_commit(m.remove_data),
        options=OFTEN,
        keeps="none",
        signed=False,
    ),
    Row("the folder's name is not UTF-8", output=b"b\xff", after=m.all_commands_work, signed=False),
    Row("the folder's name is too long", (2, 5), "name|long", output="n" * 300, keeps="none", signed=False),
]

TABLE = [*LOADING, *RESETTING, *STEPPING, *ACTING, *IN_BATCHES, *LOCALLY, *CLOSING, *ENDING, *SURROUNDINGS, *WRITING]
