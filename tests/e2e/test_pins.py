"""What a run reads is pinned: one dataset never holds two policies or environments without saying so."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.datasets import assert_same_data, data_hashes, info_of, numbers_of, set_source, source_of
from tests.helpers.processes import called, rollout, running
from tests.helpers.projects import project, write_module

__all__ = ["project"]

LEAN = """
    import numpy as np

    WEIGHTS = np.load("weights.npy")

    def act(observation):
        return int(observation @ WEIGHTS > 0)
"""
LAZY = """
    import numpy as np

    class Lazy:
        weights = None

        def get_action(self, observation):
            if self.weights is None:
                self.weights = np.load("weights.npy")
            return int(observation @ self.weights > 0), {}
"""
IN_C = """
    import ctypes

    libc = ctypes.CDLL(None)

    def read(name):
        buffer, descriptor = ctypes.create_string_buffer(100), libc.open(name.encode(), 0)
        libc.read(descriptor, buffer, 100)
        libc.close(descriptor)
        return buffer.value.decode()

    SIDE = int(read("side.txt"))

    def act(observation):
        return SIDE
"""
WITH_HELPER = """
    import helper

    def act(observation):
        return helper.side(observation)
"""
HELPER = """
    def side(observation):
        return int(observation[2] + observation[3] > 0)
"""
ENV_WITH_HELPER = """
    from gymnasium.envs.classic_control import CartPoleEnv

    import rewards

    class Env(CartPoleEnv):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, rewards.REWARD, *rest
"""
ENV_WITH_ARGUMENT = """
    from gymnasium.envs.classic_control import CartPoleEnv

    class Env(CartPoleEnv):
        def __init__(self, settings):
            super().__init__()
"""
ENV_WITH_SCENES = """
    from pathlib import Path

    from gymnasium.envs.classic_control import CartPoleEnv

    class Env(CartPoleEnv):
        def __init__(self, scenes):
            super().__init__()
            self.scenes = scenes

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            scene = Path(self.scenes) / f"{self.np_random.integers(4)}" / "scene.txt"
            self.state[0] = float(scene.read_text())
            return self.state.astype("float32"), {}

        def step(self, action):
            observation, reward, _, _, info = super().step(action)
            self.state = self.state / 2  # It never falls: an episode has steps enough to decide the columns.
            return observation, reward, False, False, info
"""
OUT = ("-w", "1", "-o", "out")
CHANGED: dict[str, tuple[str, Callable[[], object]]] = {
    "weights behind a module": ("weights.npy", lambda: weights(0.0, 0.0, 1.0, -1.0)),
    "weights read in the first step": ("weights.npy", lambda: weights(0.0, 0.0, 1.0, -1.0)),
    "a module that the policy imports": (
        "helper.py",
        lambda: write_module(Path(), "helper", HELPER + "    # more\n"),
    ),
    "a module that the environment imports": (
        "rewards.py",
        lambda: write_module(Path(), "rewards", "REWARD = 2.0"),
    ),
    "a file that an argument names": ("weights.npy", lambda: weights(0.0, 0.0, 1.0, -1.0)),
    "a file that is pinned": ("side.txt", lambda: Path("side.txt").write_text("0")),
}


def weights(*values: float) -> None:
    np.save("weights.npy", np.array(values))


def begin(case: str, *words: str) -> tuple[str, ...]:
    """Write the files of a case; return the words that name its policy and environment."""
    weights(0.0, 0.0, 1.0, 1.0)
    Path("side.txt").write_text("1")
    write_module(
        Path(),
        "mine",
        {"weights read in the first step": LAZY, "a file that is pinned": IN_C}.get(case, LEAN),
    )
    named = {
        "weights read in the first step": ("--policy", "mine:Lazy"),
        "a file that is pinned": ("--policy", "mine:act", "--pin", "side.txt"),
    }.get(case, ("--policy", "mine:act"))
    if case == "a module that the policy imports":
        write_module(Path(), "mine", WITH_HELPER)
        write_module(Path(), "helper", HELPER)
    elif case == "a module that the environment imports":
        write_module(Path(), "world", ENV_WITH_HELPER)
        write_module(Path(), "rewards", "REWARD = 1.0")
        named = ("--env", "world:Env", "--max-episode-length", "200")
    elif case == "a file that an argument names":
        write_module(
            Path(),
            "world",
            ENV_WITH_HELPER.replace("class Env", "class Plain").replace("rewards.REWARD", "1.0"),
        )
        write_module(Path(), "rewards", "")
        text = (
            Path("world.py").read_text() + "\n    def __init__(self, settings):\n        super().__init__()\n"
        )
        Path("world.py").write_text(text)
        named = (
            "--env",
            "world:Plain",
            "--env-kwargs",
            "settings=weights.npy",
            "--max-episode-length",
            "200",
        )
    return *named, *words


def files_of(folder: str) -> dict[str, str]:
    """Return when each file was read, by its name."""
    return {file["path"]: file["read"] for file in source_of(Path(folder))["files"]}


@pytest.mark.parametrize("case", CHANGED)
def test_a_resume_after_a_change_is_refused_by_the_name_of_the_file(project: Path, case: str) -> None:
    """Exit code 2, and the data are as they were; with --accept-changes it goes on and says so."""
    named = begin(case)
    file, change = CHANGED[case]
    called("collect", *named, "-n", "1100", "--seed", "1", *OUT)
    assert ("episode" if "first step" in case else "load") == files_of("out")[file]
    before = data_hashes(project / "out")
    change()
    refused = called("collect", "--resume", "-n", "2000", *OUT, code=2)
    assert all(part in refused.stderr for part in (file, "--accept-changes", "[resume-differs]"))
    assert before == data_hashes(project / "out")
    assert "complete" == info_of(project / "out")["status"]
    n_before = len(numbers_of(project / "out"))
    called("collect", "--resume", "-n", "2000", "--accept-changes", *OUT)
    info = source_of(project / "out")
    (entry,) = info["changes"]
    assert ([n_before], "no", f"files changed: {file} has changed") == (
        entry["from_numbers"],
        info["reproducible"]["status"],
        info["reproducible"]["reason"],
    )
    was, now = (
        {one["path"]: one["sha256"] for one in files} for files in (entry["before"]["files"], info["files"])
    )
    assert was[file] != now[file]


def test_episodes_that_are_collected_anew_are_not_replaced_by_those_of_other_files(project: Path) -> None:
    """A dataset of too few steps is begun anew by its resume: it then holds what was accepted alone."""
    weights(0.0, 0.0, 1.0, 1.0)
    write_module(project, "mine", LEAN)
    words = ("--sampler", "local", "-o", "out", "--quiet")
    called("collect", "--policy", "mine:act", "--episodes", "1", "--seed", "1", *words)
    before = data_hashes(project / "out")
    CHANGED["weights behind a module"][1]()
    sys.modules.pop("mine", None)
    refused = called("collect", "--resume", "--episodes", "2", *words, code=2)
    assert all(part in refused.stderr for part in ("weights.npy", "[resume-differs]"))
    assert before == data_hashes(project / "out")
    called("collect", "--resume", "--episodes", "2", "--accept-changes", *words)
    assert (2, []) == (len(numbers_of(project / "out")), source_of(project / "out")["changes"])


def test_accepted_changes_stay_known(project: Path) -> None:
    """A later resume needs no acceptance, and neither it nor a replay forgets them."""
    called("collect", *begin(""), "-n", "1100", "--seed", "1", *OUT)
    CHANGED["weights behind a module"][1]()
    called("collect", "--resume", "-n", "2000", "--accept-changes", *OUT)
    called("collect", "--resume", "-n", "3000", *OUT)
    assert "no" == source_of(project / "out")["reproducible"]["status"]
    called("verify", "out")
    assert (
        "files changed: weights.npy has changed" in called("replay", "--trust", "out", "--all", code=6).stderr
    )
    last = numbers_of(project / "out")[-1]
    called("replay", "--trust", "out", "--episode", str(last))


@pytest.mark.thorough
@pytest.mark.parametrize("bytecode", ["1", ""], ids=["without bytecode", "with bytecode"])
def test_a_module_is_pinned_by_its_source(project: Path, bytecode: str) -> None:
    """Whether Python reads it or its bytecode."""
    named, env = begin("a module that the policy imports"), {"PYTHONDONTWRITEBYTECODE": bytecode}
    for more in (("--seed", "1"), ("--overwrite",)):  # The second time the bytecode is there.
        rollout("collect", *named, "-n", "1100", *more, *OUT, cwd=project, env=env)
    assert bool(bytecode) != (project / "__pycache__").exists()
    CHANGED["a module that the policy imports"][1]()
    refused = rollout("collect", "--resume", "-n", "2000", *OUT, cwd=project, env=env, code=2)
    assert all(part in refused.stderr for part in ("helper.py", "[resume-differs]"))


@pytest.mark.parametrize("case", ["weights behind a module", "weights read in the first step"])
def test_a_replay_names_a_changed_file_first(project: Path, case: str) -> None:
    """And not the state that an episode might carry on."""
    called("collect", *begin(case), "-n", "1100", "--seed", "1", *OUT)
    CHANGED[case][1]()
    ran = called("replay", "--trust", "out", "--all", code=6)
    assert "notice: since the dataset was made: weights.npy has changed" == ran.stderr.splitlines()[0]
    assert "[data-not-repeated]" in ran.stderr
    assert any("weights.npy" in line for line in ran.stderr.splitlines() if line.startswith("  hint: "))
    assert "keeps state" not in ran.stderr


def test_what_no_hook_sees_is_found_by_the_stored_episode(project: Path) -> None:
    """A file that is read in C; it runs again, differs twice alike, and the run is refused."""
    write_module(project, "mine", IN_C)
    Path("side.txt").write_text("1")
    called("collect", "--policy", "mine:act", "-n", "1100", "--seed", "1", *OUT)
    assert {"mine.py"} == {*files_of("out")}
    before = data_hashes(project / "out")
    Path("side.txt").write_text("0")
    refused = called("collect", "--resume", "-n", "3000", *OUT, code=2)
    named = ("episode 0", "action at step 0 was 1, is 0", "[resume-differs]")
    assert all(part in refused.stderr for part in named), refused.stderr
    assert before == data_hashes(project / "out")
    called("collect", "--resume", "-n", "3000", "--accept-changes", *OUT)
    assert "no" == source_of(project / "out")["reproducible"]["status"]
    called("collect", "--resume", "-n", "4000", *OUT)
    Path("side.txt").write_text("1")
    called("collect", "--resume", "-n", "5000", *OUT, code=2)


def test_another_machine_with_other_last_bits_is_a_warning(project: Path) -> None:
    """The pins are equal and the platform is another one: it goes on, and the verdict says why it is `no`."""
    write_module(project, "mine", IN_C)
    Path("side.txt").write_text("1")
    called("collect", "--policy", "mine:act", "-n", "1100", "--seed", "1", *OUT)
    Path("side.txt").write_text("0")
    set_source(project / "out", versions={**source_of(project / "out")["versions"], "platform": "X"})
    ran = called("collect", "--resume", "-n", "3000", *OUT)
    assert (
        "warning: with other versions, or on another machine, the stored episode 0: action at step 0"
        in ran.stderr
    )
    reason = source_of(project / "out")["reproducible"]["reason"]
    assert reason.startswith(
        "with other versions, or on another machine, episode 0: action at step 0 was 1, is 0"
    )


def test_a_run_that_cannot_be_reproduced_goes_on(project: Path) -> None:
    """Its stored episode differs from two new ones, which differ from each other; the verdict is `no`."""
    # Real numbers: of two actions, few new ones may be the same by chance.
    text = "import random\ndef act(observation):\n    return [random.SystemRandom().uniform(-2, 2)]\n"
    write_module(project, "mine", text)
    called("collect", "--policy", "mine:act", "--env", "Pendulum-v1", "-n", "1100", "--seed", "1", *OUT)
    called("collect", "--resume", "-n", "3000", *OUT)
    assert ("no", []) == (
        source_of(project / "out")["reproducible"]["status"],
        source_of(project / "out")["changes"],
    )


def test_files_that_a_policy_writes_are_not_pinned(project: Path) -> None:
    """A log and a cache may change; so may a file that the policy does not read."""
    write_module(
        project,
        "mine",
        """
        from pathlib import Path

        def act(observation):
            with open("log.txt", "a") as log:
                log.write("acted\\n")
            cache = Path("cache.txt")
            if not cache.exists():
                cache.write_text("cached")
            return len(cache.read_text()) % 2
        """,
    )
    called("collect", "--policy", "mine:act", "-n", "1100", "--seed", "1", "-w", "1", *OUT)
    assert {"mine.py"} == {*files_of("out")}
    Path("unread.txt").write_text("x")
    called("collect", "--resume", "-n", "3000", *OUT)
    assert "yes" == source_of(project / "out")["reproducible"]["status"]


@pytest.mark.thorough
def test_a_worker_that_reads_other_files_than_the_others_ends_the_run(project: Path) -> None:
    """It is killed after the weights were replaced: exit code 3, the file's name, and what was committed is safe."""
    out = project / "out"
    begin("")
    write_module(
        project,
        "slow",
        "import time\nimport mine\ndef act(o):\n    time.sleep(0.0005)\n    return mine.act(o)\n",
    )
    words = ["collect", "--policy", "slow:act", "--seed", "1", "-w", "2", "--flush-every", "0.05"]
    with running([*words, "-n", "1000000", "--segment-bytes", "20000", "-o", str(out)]) as run:
        run.wait_until(lambda: len(_numbers(out)) > 2)
        weights(0.0, 0.0, 1.0, -1.0)
        run.workers()[0].send_signal(signal.SIGKILL)
        ran = run.end()
    assert 3 == ran.code, ran.said
    assert all(part in ran.stderr for part in ("weights.npy", "--resume", "[files-changed]"))
    called("verify", out)
    assert numbers_of(out) == list(range(len(numbers_of(out))))
    called("collect", "--resume", "-n", "1000000", *OUT, code=2)
    weights(0.0, 0.0, 1.0, 1.0)
    steps = info_of(out)["steps"]
    called("collect", "--resume", "-n", str(steps + 500), *OUT)
    called("replay", "--trust", "out", "--all")


def _numbers(folder: Path) -> list[int]:
    """Return the numbers that are committed; files may be replaced while we look."""
    try:
        return numbers_of(folder)
    except (OSError, ValueError):
        return []


@pytest.mark.thorough
def test_of_a_slow_stored_episode_the_beginning_is_run_again(project: Path) -> None:
    """As many steps as the check may take: a resume does not wait for a whole slow episode."""
    write_module(
        project,
        "mine",
        """
        import os
        import time

        calls = []

        def act(observation):
            calls.append(0)
            time.sleep(0.01 if os.path.exists("slow") and len(calls) <= 200 else 0)
            os.write(os.open(f"log-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), b".")
            return int(observation[2] + observation[3] > 0)
        """,
    )
    Path("slow").touch()
    words = ("--policy", "mine:act", "-w", "1", "-o", "out", "--max-episode-length", "200")
    called("collect", *words, "--episodes", "5", "--seed", "1")
    for log in (project / "slow", *project.glob("log-*")):
        log.unlink()
    called("collect", "--resume", "-w", "1", "--episodes", "6", *OUT)
    counts = sorted(log.stat().st_size for log in project.glob("log-*"))
    assert 2 <= len(counts)
    assert counts[0] <= 110
    assert "yes" == source_of(project / "out")["reproducible"]["status"]


def scene_hashes() -> set[str]:
    return {file["sha256"] for file in source_of(Path("out"))["files"] if file["path"] == "scene.txt"}


@pytest.mark.thorough
def test_episodes_read_files_of_one_name(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In folders elsewhere, each its own: which ones a run reads is no change, and their contents are."""
    scenes = tmp_path_factory.mktemp("scenes")
    for number in range(4):
        (scenes / f"{number}").mkdir()
        (scenes / f"{number}" / "scene.txt").write_text(f"0.0{number}")
    write_module(project, "world", ENV_WITH_SCENES)
    words = ("--env", "world:Env", "--env-kwargs", f"scenes={scenes}", "--max-episode-length", "1000")
    called("collect", *words, "--episodes", "1", "--seed", "2", *OUT)
    for amount in range(2, 6):
        before = scene_hashes()
        called("collect", "--resume", "--episodes", f"{amount}", *OUT)
        assert before <= scene_hashes()
    assert 4 == len(scene_hashes())
    assert "yes" == source_of(project / "out")["reproducible"]["status"]
    for number in range(4):
        (scenes / f"{number}" / "scene.txt").write_text(f"-0.0{number}")
    refused = called("collect", "--resume", "--episodes", "70", *OUT, code=2)
    assert all(part in refused.stderr for part in ("scene.txt", "[resume-differs]"))


def test_a_file_to_be_pinned_must_be_there(project: Path) -> None:
    """The error names it, before a worker starts."""
    ran = called("collect", "--pin", "missing.xml", "-n", "10", code=2)
    assert all(part in ran.stderr for part in ("--pin", "'missing.xml'", "[pin-missing]"))
    assert [] == list(project.iterdir())


def test_info_shows_the_files_and_pack_says_what_a_factory_still_reads(project: Path) -> None:
    """With their hashes; a packed factory's weights are not in the pickle."""
    begin("")
    write_module(
        project,
        "packed",
        "import numpy as np\ndef load():\n    w = np.load('weights.npy')\n    return lambda o: 0\n",
    )
    called("collect", "--policy", "packed:load", "-n", "50", *OUT)
    shown = called("info", "out").stdout
    for file in source_of(project / "out")["files"]:
        assert f"{file['path']} {file['sha256'][:12]}" in shown
    packed = json.loads(called("policy", "pack", "packed:load", "-o", "p.pkl", "--json").stdout)
    assert ["weights.npy"] == packed["reads"]
    assert "still reads  weights.npy" in called("policy", "pack", "packed:load", "-o", "q.pkl").stdout
    assert "still reads  no file" in called("policy", "pack", "mine:act", "-o", "r.pkl").stdout


def test_shards_are_merged_where_their_files_are_equal(project: Path) -> None:
    """Wherever they lie; one with other weights is refused by the file's name, or merged and said to be so."""
    words = ("--episodes", "4", "--seed", "1", "-w", "1")
    for name in ("a", "b"):
        (project / name).mkdir()
        os.chdir(project / name)
        named = begin("")
        called(
            "collect", *named, *words, "--shard", f"{'ab'.index(name) + 1}/2", "-o", project / name / "out"
        )
        sys.modules.pop("mine", None)
    called("collect", *named, *words, "-o", project / "whole")
    shards = (project / "a" / "out", project / "b" / "out")
    called("merge", *shards, "-o", project / "merged")
    assert_same_data(project / "whole", project / "merged")
    assert {"mine.py", "weights.npy"} == {file["path"] for file in source_of(project / "merged")["files"]}
    CHANGED["weights behind a module"][1]()
    sys.modules.pop("mine", None)
    called("collect", *named, *words, "--shard", "2/2", "--overwrite", "-o", shards[1])
    refused = called("merge", *shards, "-o", project / "again", code=2)
    assert all(part in refused.stderr for part in ("weights.npy", "[shards-of-other-files]"))
    assert not (project / "again").exists()
    called("merge", *shards, "-o", project / "again", "--accept-changes")
    info = source_of(project / "again")
    assert ("no", "files changed: weights.npy has changed") == (
        info["reproducible"]["status"],
        info["reproducible"]["reason"],
    )
    assert [2] == info["changes"][0]["from_numbers"]
    called("verify", project / "again")
