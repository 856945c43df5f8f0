"""`check` finds each planted fault, and nothing in what is sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import rollout_cli.run.check as module
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.chunk import concatenate
from rollout_cli.errors import PolicyLoadError
from rollout_cli.options.config import CollectConfig
from rollout_cli.run.check import CheckReport, check
from rollout_cli.run.checks.episodes import ON_EPISODES
from rollout_cli.run.checks.objects import ON_OBJECTS
from rollout_cli.samplers.plan import Episodes
from rollout_cli.workers.values import WorkerReport
from tests.helpers.chunks import BOX_SPEC, episode
from tests.helpers.errors import raises
from tests.run.planted import BOX

SOUND, RANDOM = "tests.run.planted:sound", "random"


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STEPS", 600)


def checked(fault: str = "", policy: str = SOUND, seconds: float = 120.0, **options: Any) -> CheckReport:
    options = {"env": "tests.run.planted:World", "env_kwargs": {"fault": fault}, **options}
    return check(CollectConfig(timesteps=10_000, seed=1, policy=policy, **options), seconds=seconds)


def findings(report: CheckReport) -> list[str]:
    """Return a line a finding that is not well: status, check, what, and what to change."""
    return [
        f"{entry['status']} {entry['check']}: {entry['what']} -> {entry['change']}"
        for entry in report.document()["checks"]
        if entry["status"] != "ok"
    ]


ENVS = {
    "ignores its seed": (
        "fail seeds: episode",
        "at step 0",
        "the environment uses an unseeded generator",
        "self.np_random",
    ),
    "is constant": ("warn seeds: the first 3 episodes are equal, but have different seeds",),
    "keeps state": ("fail seeds", "the environment keeps state", "--fresh-env, which rebuilds"),
    "keeps state in its module": (
        "fail seeds",
        "at step 34",
        "the environment keeps state",
        "clear the state of",
    ),
    "draws late": ("fail seeds", "reward at step 34", "unseeded generator"),
    "disguises its limit": ("warn endings: all", "terminated at step 20", "truncated=True"),
    "has no end": ("warn endings", "episodes did not end within 200 steps", "--max-episode-length"),
    "gives nan": ("fail running: ", "step 34"),
    "sees nan": ("fail values: observation holds numbers that are not finite", "at step 35"),
    "leaves its space": ("warn values: observation holds values outside of its space", "at step 35"),
    "has odd infos": ("warn infos: these infos cannot be stored: env_info.itself", "--drop-info"),
    "has the time in its infos": ("warn seeds", "env_info.now at step 0", "--drop-info"),
    "changes its action": ("warn masks and actions: env.step changes its action",),
    "has the time in its infos, and keeps state in its module": (
        "fail seeds: episode",
        "reward at step 34",
        "the environment keeps state across resets",
    ),
    "passes no seed on": ("fail gymnasium's checker: ", "super().reset(seed=seed)", "did not run"),
    "is float64, passes no seed on": ("fail gymnasium's checker: ", "super().reset(seed=seed)"),
    "is outside, passes no seed on": ("fail gymnasium's checker: ", "super().reset(seed=seed)"),
    "is outside": ("warn values: observation holds values outside of its space", "at step 0"),
    "is float64": ("warn gymnasium's checker: the observation is float64, and is cast to float32",),
    "reuses its array": ("warn gymnasium's checker: ", "share an object"),
    "crashes": ("fail running: worker 0 was killed by SIGABRT in step", "planted.py"),
    "raises": ("fail running: env.step", "a broken joint", "step 34"),
    "some masks": (
        "fail masks and actions: the environment has action_masks, which the policy does not take",
    ),
    "empty masks": ("fail masks and actions: ", "masks allow no action"),
}
"""By fault of the environment, what the finding says."""


@pytest.mark.parametrize("fault", ENVS)
def test_a_fault_of_the_environment_is_found(fault: str) -> None:
    """One finding names it, and says what to change."""
    if fault == "reuses its array" and gymnasium.__version__ < "1.3":
        pytest.skip("the checker of gymnasium 1.0 to 1.2 does not look for it")
    policy = RANDOM if "masks" in fault or "nan" in fault else SOUND
    found = findings(checked(fault, policy))
    assert any(all(words in line for words in ENVS[fault]) for line in found), found


def test_observations_that_are_cast_are_one_warning() -> None:
    """The policy sees them as a run gives them: it is not at fault. A strict check fails."""
    report = checked("is float64")
    (line,) = findings(report)
    assert line.startswith("warn gymnasium's checker: the observation is float64, and is cast to float32")
    assert (False, True) == (report.has_failed, replace(report, strict=True).has_failed)
    assert not replace(checked(), strict=True).has_failed


@pytest.mark.parametrize(
    ("options", "check_name", "words"),
    [
        ({"fault": "raises"}, "running", "ValueError: a broken joint"),
        ({"policy": "tests.run.planted:missing"}, "running", "FileNotFoundError: weights.pt"),
        ({"policy": "tests.run.planted:blind"}, "exploration", "RuntimeError: too dark"),
    ],
)
def test_a_traceback_that_is_spoken_of_is_there(options: Any, check_name: str, words: str) -> None:
    """It is the user's own."""
    findings_of = {
        entry["check"]: entry for entry in checked(**options).document()["checks"] if entry["status"] != "ok"
    }
    finding = findings_of[check_name]
    assert "the traceback below" in finding["change"]
    assert finding["details"].startswith("Traceback")
    assert "planted.py" in finding["details"]
    assert words in finding["details"]


POLICIES: dict[str, tuple[str, ...]] = {
    "scales": ("warn range of actions: action stays in [-1, 1]", "Box(-2.0, 2.0"),
    "squashes": ("fail actions: ", "Box(-2.0, 2.0", "--invalid-action clip"),
    "saturates": ("warn range of actions: action is at a bound in 100% of the steps", "squash"),
    "keeps": ("fail seeds", "action at step 0", "the policy keeps state", "clear the state of the policy"),
    "draws": ("fail seeds", "action at step 0", "the policy uses an unseeded generator"),
    "frames": ("fail saved spaces", "--wrapper FrameStackObservation?stack_size=4"),
    "of_bytes": ("fail saved spaces: the policy's observation space is Box(0, 255, (2, 1), uint8)",),
    "bounds": (
        "warn saved spaces",
        "Box(-1.0, 1.0, (2, 1), float32), but the environment's is Box(-5.0, 5.0",
    ),
    "turned": ("warn saved spaces", "transpose"),
    "number": ("fail saved spaces", "Discrete(4)"),
    "more": (
        "fail saved spaces: the policy's action space is Discrete(4), but the environment's is Discrete(3)",
    ),
    "from_one": ("fail saved spaces: the policy's action space is Discrete(3, start=1)",),
    "shape": ("fail saved spaces: the policy's action space is Box(-2.0, 2.0, (2,)",),
    "Masked": ("fail running", "action_masks"),
    "at_load": ("fail seeds", "action at step 0", "the policy uses an unseeded generator"),
    "missing": ("fail running", "Missing", "weights.pt"),
}
"""By fault of the policy, what the finding says."""


@pytest.mark.parametrize("name", POLICIES)
def test_a_fault_of_the_policy_is_found(name: str) -> None:
    """Ranges, states, draws, and the spaces that it was made for."""
    fault = "some masks" if name in ("more", "from_one") else ""
    report = checked(fault, f"tests.run.planted:{'squashes' if name == 'saturates' else name}")
    found = findings(report)
    assert any(all(words in line for words in POLICIES[name]) for line in found), found
    assert report.has_failed == any(line.startswith("fail") for line in found)


@pytest.mark.parametrize("part", [None, "camera"])
def test_images_that_stable_baselines3_turns_are_no_other_space(part: str | None) -> None:
    """It saves images with the channels first, alone and in a Dict, and takes those of the environment."""
    images: list[Any] = [spaces.Box(0, 255, shape, np.uint8) for shape in ((3, 64, 48), (64, 48, 3))]
    saved, space = [spaces.Dict({part: image, "speed": BOX}) for image in images] if part else images
    model = SimpleNamespace(observation_space=saved, action_space=BOX)
    worker: Any = SimpleNamespace(
        policy=SimpleNamespace(wrapped=model),
        env_spec=SimpleNamespace(observation_space=space, action_space=BOX),
    )
    found = [each.what for each in ON_OBJECTS["saved spaces"](worker)]
    assert [str(part) in text for text in found] == [part is not None]
    model.obs_to_tensor = None
    assert not [*ON_OBJECTS["saved spaces"](worker)]


def test_a_space_that_is_no_equal_of_its_copy_is_no_other_space() -> None:
    """As one of texts of the environment's own, which a policy that was pickled has a copy of."""
    words: Any = type("Words", (spaces.Text,), {"__eq__": object.__eq__})
    worker: Any = SimpleNamespace(
        policy=SimpleNamespace(wrapped=SimpleNamespace(observation_space=words(9))),
        env_spec=SimpleNamespace(observation_space=words(9)),
    )
    assert not [*ON_OBJECTS["saved spaces"](worker)]


WRAPPERS = {
    (
        "MaxAndSkipObservation?skip=2",
        "MaxAndSkipObservation?skip=3",
    ): "warn wrappers: frames are skipped twice, 3 by",
    ("ClipReward?min_reward=-1.0&max_reward=1.0",): "warn wrappers: ClipReward changes rewards",
    ("tests.run.planted:EpisodicLifeEnv",): "warn wrappers: EpisodicLifeEnv ends episodes at each lost life",
    ("NormalizeObservation",): "fail seeds: episode",
}
"""By a stack that is wrong for data, what the finding says."""


@pytest.mark.parametrize("wrappers", WRAPPERS)
def test_a_wrong_stack_is_found(wrappers: tuple[str, ...]) -> None:
    """What skips, clips or ends twice is named; a wrapper that learns from episode to episode keeps state."""
    found = findings(checked(policy=RANDOM, wrapper=wrappers))
    assert any(line.startswith(WRAPPERS[wrappers]) for line in found), found


def test_deterministic_actions_are_the_same() -> None:
    """A policy that draws though deterministic actions are requested fails; one that never draws is told."""
    found = findings(checked(policy="tests.run.planted:draws", deterministic=True))
    assert any("fail exploration: deterministic actions are requested" in line for line in found), found
    words = [entry["what"] for entry in checked().document()["checks"] if entry["check"] == "exploration"]
    assert ["8 actions for one observation are equal: the policy does not explore"] == words


def test_what_hangs_is_ended() -> None:
    """Time is a budget: what blocks in a worker process is a finding."""
    found = findings(checked("hangs", seconds=2.0))
    assert 1 == len(found)
    assert "fail running: policy and environment did not start" in found[0]


def test_what_hangs_later_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the time ends after some episodes, these are looked at, and the report says so."""
    monkeypatch.setattr(module, "MinTimesteps", lambda _, stop: Episodes(0, 3))
    found = findings(checked())
    assert any("warn endings: episode 3 did not end within 120 s" in line for line in found), found


def test_what_is_sound_passes() -> None:
    """The report says what the run will cost, and which episodes were repeated."""
    report = checked(policy=RANDOM, env="CartPole-v1", env_kwargs={})
    assert [] == findings(report)
    assert "are identical when run again" in report.findings["seeds"][0].what
    assert {"speed", "a step", "the run"} == report.rows().keys()
    assert 10_000 == report.costs["steps"]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"timesteps": 1_000}, 1_000),
        ({"timesteps": 1_000, "episodes": 7}, 140),
        ({"episodes": "10:50", "shard": "2/4"}, 200),
        ({"timesteps": 10_000, "max_time": 5.0, "workers": 1}, 50),
    ],
)
def test_the_costs_are_those_up_to_the_first_end(options: dict[str, Any], steps: int) -> None:
    """That of a shard, where the run is one."""
    recorded: Any = SimpleNamespace(
        chunk=episode(0, 20), seconds=2.0, summary=SimpleNamespace(bytes=10_000_000)
    )
    costs = module._costs(CollectConfig(seed=1, **options), recorded)
    assert (steps, steps * 0.5) == (costs["steps"], costs["megabytes"])


def test_an_episode_follows_itself() -> None:
    """Where each has a row of its own, it followed none, and in falling order would follow none again."""
    batches = [EpisodeBatch.from_chunks(BOX_SPEC, [episode(number, 5)]) for number in range(6)]
    ran: list[int] = []

    def again(numbers: Sequence[int]) -> list[EpisodeBatch]:
        ran.extend(numbers)
        return [batches[number] for number in numbers]

    chunk = concatenate([episode(number, 5) for number in range(6)])
    recorded: Any = SimpleNamespace(
        chunk=chunk, report=WorkerReport(), batch=batches.__getitem__, again=again
    )
    (finding,) = ON_EPISODES["seeds"](recorded)
    assert ("ok", [5, 1, 0, 0]) == (finding.status, ran)
    assert finding.what.startswith("3 episodes ")


def test_what_is_left_out_is_no_fault() -> None:
    """An info that cannot be stored, and is not to be: nothing is said of it."""
    assert not [line for line in findings(checked("has odd infos", drop_info=("itself",))) if "infos" in line]


def test_native_rows_are_checked_by_their_episodes() -> None:
    """There is no single environment to look at; what cannot be repeated is said."""
    if not hasattr(gymnasium.vector, "AutoresetMode"):
        pytest.skip("gymnasium 1.0 has no AutoresetMode")
    native: dict[str, Any] = {"vectorization": "native", "envs_per_worker": 4}
    report = checked(policy=RANDOM, env="CartPole-v1", env_kwargs={}, **native)
    assert ["warn seeds"] == [line.partition(":")[0] for line in findings(report)]
    assert "running" not in report.findings


def test_native_rows_that_do_not_say_how_they_are_reset() -> None:
    """Episodes of theirs cannot be told apart."""
    native: dict[str, Any] = {"vectorization": "native", "envs_per_worker": 4}
    found = findings(checked(policy=RANDOM, env="tests.run.planted:Vector", env_kwargs={}, **native))
    assert ["fail running"] == [line.partition(":")[0] for line in found]
    assert "autoreset_mode" in found[0]


def test_a_missing_policy_is_an_error() -> None:
    """Nothing can be checked of it."""
    with raises(PolicyLoadError, "policy-unknown"):
        checked(policy="nowhere")
