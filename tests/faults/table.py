"""The fault table: what is injected and when, and what must come of it."""

from __future__ import annotations

from tests.faults.meddling import (
    close_stdout,
    foreign_folder,
    interrupt,
    interrupt_and_terminate,
    kill_parent,
    kill_worker,
    little_room,
    locked,
    remove_output,
    stop_and_continue,
    stop_worker,
    terminate,
    truncated_pickle,
)
from tests.faults.running import Case

RETRY, SKIP = ("--on-env-error", "retry"), ("--on-env-error", "skip")
SLOW = {"pace": 0.001}
LONG, MIDDLE = ("collect", "--timesteps", "100000"), ("collect", "--episodes", "600")
OFTEN = ("--flush-every", "0.05")


def env(what: str, when: str = "step", often: str = "always", **more: object) -> dict[str, object]:
    return {"what": what, "when": when, "often": often, **more}


LOADING = [
    Case("env raises at load", 3, "the simulator is broken", env("raise", "load"), verifies=(None,)),
    Case("env leaves at load by sys.exit", 3, "SystemExit: 3", env("sys.exit", "load"), verifies=(None,)),
    Case("env leaves at load by os._exit", 4, "worker . .*exit code 0", env("os._exit", "load"), verifies=(None,)),
    Case("env is killed at load", 4, "worker . .*SIGKILL", env("kill", "load"), verifies=(None,)),
    Case("env crashes at load", 4, "worker . .*SIGSEGV", env("segfault", "load"), verifies=(None,)),
    Case("env crashes at load, once", 0, "", env("segfault", "load", "once")),
    Case("env prints at load", 0, "", env("print", "load")),
    Case("policy raises at load", 3, "the simulator is broken", policy="raise,load,always", verifies=(None,)),
    Case("policy crashes at load", 4, "worker . .*SIGSEGV", policy="segfault,load,always", verifies=(None,)),
    Case("no such env", 3, "NoSuchEnv-v0", options=("--env", "NoSuchEnv-v0"), verifies=(None,)),
    Case("no such policy file", 3, "gone.pkl", options=("--policy", "gone.pkl"), verifies=(None,)),
    Case("half a pickle", 3, "half.pkl", options=("--policy", "half.pkl"), verifies=(None,), prepare=truncated_pickle),
]

RESETTING = [
    Case("env raises at reset", 3, r"env.reset raised ValueError.*episode \d", env("raise", "reset"), verifies=(None,)),
    Case("env raises at some resets, skipped", 0, "skipped", env("raise", "reset", "some"), options=SKIP),
    Case("env raises at reset once, retried", 0, "", env("raise", "reset", "once"), options=RETRY),
    Case("env crashes at reset", 4, r"episode \d+.*SIGSEGV", env("segfault", "reset"), verifies=(None,)),
    Case("env crashes at reset once", 0, "", env("segfault", "reset", "once")),
    Case("env has the old reset", 3, "gym's interface before", env("old interface", "reset"), verifies=(None,)),
    Case("env gives nothing at reset", 3, "observation is not of its space", env("none", "reset"), verifies=(None,)),
    Case("env gives another shape at reset", 3, "not of its space", env("shape", "reset"), verifies=(None,)),
    Case("policy raises at reset", 3, "policy.reset raised", policy="raise,reset,always", verifies=(None,)),
    Case("env hangs at reset", 4, "5 s|longer than", env("hang", "reset", "some"), options=("--step-timeout", "0.5")),
]

STEPPING = [
    Case("env raises in some episodes", 3, "env.step raised ValueError", env("raise", often="some")),
    Case("env raises in some episodes, skipped", 0, "skipped", env("raise", often="some"), options=SKIP),
    Case("env raises in some episodes, retried", 3, "env.step raised", env("raise", often="some"), options=RETRY),
    Case("env raises once, retried", 0, "", env("raise", often="once"), options=RETRY),
    Case("an error that cannot be pickled", 3, "LocalError", env("unpicklable", often="some")),
    Case("env runs out of stack", 3, "RecursionError", env("recurse", often="some")),
    Case("env runs out of memory", 3, "MemoryError", env("memory", often="some")),
    Case("env raises KeyboardInterrupt", 4, "worker", env("interrupt", often="some")),
    Case("env leaves by sys.exit in some episodes", 4, r"episode \d+", env("sys.exit", often="some")),
    Case("env leaves by os._exit in some episodes", 4, r"episode \d+", env("os._exit", often="some")),
    Case("env leaves by os._exit once", 0, "", env("os._exit", often="once")),
    Case("env is killed in some episodes", 4, r"episode \d+.*SIGKILL", env("kill", often="some")),
    Case("env is killed once", 0, "", env("kill", often="once")),
    Case("env crashes in some episodes", 4, r"episode \d+.*SIGSEGV", env("segfault", often="some")),
    Case("env aborts once", 0, "", env("abort", often="once")),
    Case(
        "env is killed once, no restart allowed",
        4,
        "SIGKILL",
        env("kill", often="once"),
        options=("--max-worker-restarts", "0"),
    ),
    Case("env hangs once", 0, "", env("hang", often="once"), options=("--step-timeout", "0.5")),
    Case("env hangs in some episodes", 4, r"episode \d+", env("hang", often="some"), options=("--step-timeout", "0.5")),
    Case(
        "an episode takes too long",
        3,
        "episode",
        {"pace": 0.3},
        options=("--episode-timeout", "0.5"),
        verifies=(None,),
    ),
    Case(
        "env never ends",
        3,
        "--max-episode-length",
        {"endless": True},
        options=("--episode-step-guard", "500"),
        verifies=(None,),
    ),
    Case("env has the old step", 3, "gym's interface before", env("4-tuple"), verifies=(None,)),
    Case("a reward is a text", 3, "reward", env("reward text", often="some")),
    Case("a reward is None", 3, "reward", env("reward none", often="some")),
    Case("a reward is nan", 3, "reward is not a number", env("reward nan", often="some")),
    Case("a flag is an array", 3, "terminated", env("flag array"), verifies=(None,)),
    Case("a flag is a text", 3, "terminated", env("flag text"), verifies=(None,)),
    Case("an observation changes its shape", 3, "not of its space", env("shape", often="some")),
    Case("an observation is complex", 3, "not of its space", env("dtype", often="some")),
    Case("an observation is nan", 0, "not finite", env("nan", often="some")),
    Case("an observation leaves its space", 0, "outside of", env("outside", often="some")),
    Case("infos that cannot be stored", 0, "", env("info unstorable", often="some")),
    Case("infos that change their type", 0, "", env("info type", often="some")),
    Case("infos that appear late", 0, "", env("info late", often="some")),
    Case("infos with odd keys", 0, "", env("info keys", often="some")),
    Case("infos of megabytes", 0, "", env("info huge", often="some")),
    Case("infos that hold themselves", 0, "", env("info recursive", often="some")),
    Case("no infos", 0, "", env("info none")),
    Case("env prints", 0, "", env("print"), options=("--json",)),
    Case("env closes stdout", 0, "", env("close stdout", often="once")),
    Case("env changes the folder", 0, "", env("chdir")),
    Case("env changes signal handlers", 0, "", env("signals")),
    Case("env changes global settings", 0, "", env("globals")),
    Case("env leaves processes behind", 0, "", env("child", often="some")),
]

ACTING = [
    Case("policy raises", 3, "policy.get_action raised", policy="raise,act,some"),
    Case("policy crashes once", 0, "", policy="segfault,act,once"),
    Case("an action is nan", 3, "action .*not of its space", policy="nan,act,some"),
    Case("an action leaves its space", 3, "--invalid-action", policy="outside,act,some"),
    Case("actions are clipped", 0, "", policy="outside,act,some", options=("--invalid-action", "clip")),
    Case("actions are only told of", 0, "outside of", policy="outside,act,some", options=("--invalid-action", "warn")),
    Case("nan cannot be clipped", 3, "action", policy="nan,act,some", options=("--invalid-action", "clip")),
    Case("an action has another shape", 3, "bad action", policy="shape,act,some"),
    Case("an action is a text", 3, "bad action", policy="text,act,some"),
    Case("agent infos that cannot be stored", 0, "", policy="info,act,some"),
]

CLOSING = [
    Case("env raises at close", 0, "", env("raise", "close")),
    Case("env crashes at close", 0, "", env("segfault", "close")),
    Case("env hangs at close", 0, "", env("hang", "close")),
    Case("env leaves at close", 0, "", env("os._exit", "close")),
]

ENDING = [
    Case("Ctrl-C", 130, "SIGINT: .* are in", SLOW, command=LONG, meddle=interrupt, options=OFTEN, verifies=(0,)),
    Case(
        "Ctrl-C, and SIGTERM after it",
        130,
        "ended at once; what was committed stays",
        SLOW,
        command=LONG,
        meddle=interrupt_and_terminate,
        options=(*OFTEN, "--grace", "30"),
        verifies=(0,),
    ),
    Case(
        "SIGTERM",
        143,
        "SIGTERM: .* are in",
        SLOW,
        command=LONG,
        meddle=terminate,
        options=OFTEN,
        within=15,
        verifies=(0,),
    ),
    Case("kill -9 of the parent", -9, "", SLOW, command=LONG, meddle=kill_parent, options=OFTEN, verifies=(0,)),
    Case("kill -9 of a worker", 0, "SIGKILL", SLOW, command=MIDDLE, meddle=kill_worker),
    Case("the parent is stopped for a while", 0, "", SLOW, command=MIDDLE, meddle=stop_and_continue),
    Case("a worker is stopped for a while", 0, "", SLOW, command=MIDDLE, meddle=stop_worker),
    Case("stdout is closed", 0, "", SLOW, meddle=close_stdout),
]

WRITING = [
    Case(
        "the disk is full",
        5,
        "cannot write",
        SLOW,
        command=LONG,
        meddle=little_room,
        options=("--shard-bytes", "100000"),
        verifies=(0,),
    ),
    Case("there is no room", 5, "room", verifies=(None,), options=("--output", "/proc/out")),
    Case("the folder holds something else", 5, "not empty", verifies=(5, 6), prepare=foreign_folder),
    Case("another run writes there", 5, "another run", prepare=locked, options=("--overwrite",), verifies=(0,)),
    Case(
        "the folder is removed meanwhile",
        5,
        "cannot|is missing",  # The folder where something is written, or the file that the next version goes on from.
        SLOW,
        command=LONG,
        meddle=remove_output,
        options=OFTEN,
        verifies=(None, 5, 6),
    ),
]

TABLE = [*LOADING, *RESETTING, *STEPPING, *ACTING, *CLOSING, *ENDING, *WRITING]
