"""`rollout evaluate` prints tables, a document or a chart, and refuses what it cannot use."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import rollout_cli
from rollout_cli.errors import ConfigError
from tests.cli.calling import Caller
from tests.helpers.processes import running
from tests.helpers.thorough import usually
from tests.run.test_evaluate import GOAL, LOCAL, checkpoint

EVALUATE = ("evaluate", "--sampler", "local", "--seed", "0")


def test_the_tables(rollout: Caller) -> None:
    ran = rollout(
        *EVALUATE,
        "-p",
        "constant:0",
        "-p",
        "constant:2",
        "--env",
        GOAL,
        "--episodes",
        "20",
        "--normalize",
        "0,6",
    )
    assert "constant:2                    6  6 to 6  100.0%" in ran.stdout
    for words in ("mean return", "IQM", "success 95 %", "score", "difference to first", "P(higher return)"):
        assert words in ran.stdout
    assert "20 episodes, the same for all policies" in ran.stdout
    alone = rollout(*EVALUATE, "--env", GOAL, "--episodes", "20", "--quiet").stdout
    assert "difference" not in alone
    assert 2 == len(alone.splitlines())


def test_the_document(rollout: Caller) -> None:
    words = ("-p", "constant:0", "-p", "random", "--env", GOAL, "--episodes", "10", "--json")
    document = json.loads(rollout(*EVALUATE, *words).stdout)
    evaluation = rollout_cli.evaluate(["constant:0", "random"], GOAL, episodes=10, **LOCAL)
    assert evaluation.returns.tolist() == document["episodes"]["returns"]
    assert evaluation.successes.tolist() == document["episodes"]["successes"]
    assert ["constant:0", "random"] == [entry["policy"] for entry in document["policies"]]
    mean = evaluation.results[1].mean
    assert {"value": mean.value, "low": mean.low, "high": mean.high} == document["policies"][1]["mean"]


def test_a_curve_is_drawn(rollout: Caller, tmp_path: Path) -> None:
    for steps in (100, 200, 300):
        checkpoint(tmp_path / f"model_{steps}.pkl", steps // 100 - 1)
    words = (*EVALUATE, "-p", f"{tmp_path}/*.pkl", "--env", GOAL, "--episodes", "10")
    shown = rollout(*words).stdout
    assert "by checkpoint: mean and its 95 % interval" in shown
    assert "300  " in shown
    rollout(*words, "--plot", tmp_path / "curve.txt", code=2)


def test_a_picture_is_written(rollout: Caller, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib.figure")
    for policies in (("random", "constant:1"), ("random",)):
        picture = tmp_path / f"{len(policies)}.png"
        rollout(
            *EVALUATE, *(word for name in policies for word in ("-p", name)), "--env", GOAL, "--plot", picture
        )
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_file_of_options(rollout: Caller, tmp_path: Path) -> None:
    file = tmp_path / "evaluate.toml"
    file.write_text(
        f'command = "evaluate"\npolicy = "constant:1"\nenv = "{GOAL}"\nepisodes = 7\nsampler = "local"\n'
    )
    document = json.loads(rollout("evaluate", "--config", file, "--json").stdout)
    assert ("constant:1", 7) == (document["policies"][0]["policy"], document["policies"][0]["episodes"])
    file.write_text("timesteps = 100\n")
    assert (
        "`rollout evaluate` has no option timesteps" in rollout("evaluate", "--config", file, code=2).stderr
    )


@pytest.mark.parametrize("text", ["5", "5,", ",", ""])
def test_half_a_scale_is_refused(rollout: Caller, text: str) -> None:
    assert "[option-value]" in rollout(*EVALUATE, "--normalize", text, code=ConfigError.exit_code).stderr


@pytest.mark.parametrize("sampler", usually(["local", "multiprocessing"], "multiprocessing".__eq__))
def test_a_signal_ends_it(sampler: str) -> None:
    """Without a result, with the exit code of the signal."""
    words = ("evaluate", "--sampler", sampler, "--episodes", "10000000", "--env", "CartPole-v1")
    with running(words) as run:
        run.wait_to_say("steps/s")
        run.process.send_signal(signal.SIGINT)
        ran = run.end()
    assert (130, "") == (ran.code, ran.stdout)
    assert "the evaluation was ended by SIGINT" in ran.stderr


def test_a_policy_that_fails_loses_no_result_before_it(rollout: Caller, tmp_path: Path) -> None:
    """They are printed, and then the error."""
    (tmp_path / "cut.pkl").write_bytes(b"\x80")
    words = ("--env", GOAL, "--episodes", "5", "-p", "constant:0", "-p", "random")
    ran = rollout(*EVALUATE, *words, "-p", tmp_path / "cut.pkl", code=3)
    assert "[unpickle-failed]" in ran.stderr
    assert rollout(*EVALUATE, *words).stdout == ran.stdout


def test_a_picture_that_exists_is_refused_at_once(rollout: Caller, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib.figure")
    (tmp_path / "curve.png").touch()
    ran = rollout(*EVALUATE, "--episodes", "5", "--plot", tmp_path / "curve.png", code=None)
    assert "[output-exists]" in ran.stderr
    assert ran.stdout == ""


def test_one_episode_has_no_interval(rollout: Caller) -> None:
    assert "nan" not in rollout(*EVALUATE, "--episodes", "1").stdout
