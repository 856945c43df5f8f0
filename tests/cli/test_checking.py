"""`check` and `tune`: exit codes, lines and documents; the lines of `tune` are a configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rollout_cli.run.check as module
import rollout_cli.run.tune as tuning
from rollout_cli.options.config import CollectConfig
from rollout_cli.run.check import CheckReport
from tests.cli.calling import Caller

ENV = ("--env", "tests.run.planted:World", "--policy", "tests.run.planted:sound", "--seed", "1")
ENDLESS = (*ENV, "--env-kwargs", "fault=has no end")


def test_what_fails_ends_with_3(rollout: Caller) -> None:
    """CI sees the code; people see what failed, and below it what to change; with --quiet nothing that is well."""
    called = rollout("check", *ENDLESS, "--seconds", "60", "--quiet", code=3)
    place = next(
        at for at, line in enumerate(called.stdout.splitlines()) if line.startswith("fail  endings ")
    )
    assert "--max-episode-length N" in called.stdout.splitlines()[place + 1]
    assert "\nok " not in called.stdout


def test_strict_ends_with_3_for_a_warning(rollout: Caller) -> None:
    """Also in the document; without the flag a warning is no failure."""
    words = ("check", *ENV, "--env-kwargs", "fault=is float64", "--seconds", "60", "--json")
    assert json.loads(rollout(*words).stdout)["passed"]
    assert not json.loads(rollout(*words, "--strict", code=3).stdout)["passed"]


def test_a_traceback_stands_below_its_line(rollout: Caller) -> None:
    """Where the advice says that it does."""
    words = ("check", *ENV, "--env-kwargs", "fault=raises", "--seconds", "60", "--quiet")
    lines = rollout(*words, code=3).stdout.splitlines()
    place = next(at for at, line in enumerate(lines) if "change: see the traceback below" in line)
    assert "  Traceback (most recent call last):" == lines[place + 1]
    assert "  ValueError: a broken joint" in lines


def test_what_passes_ends_with_0(rollout: Caller, tmp_path: Path) -> None:
    """It takes the words and files of `collect`, and says what that would take; with --json as a document."""
    file = tmp_path / "run.toml"
    file.write_text('command = "collect"\ntimesteps = 2000\nmax_episode_length = 30\n')
    called = rollout("check", *ENDLESS, "--config", file, "--seconds", "60", "--json")
    document = json.loads(called.stdout)
    assert document["passed"]
    assert 2000 == document["costs"]["steps"]
    assert {"check", "status", "what", "change", "details"} == document["checks"][0].keys()
    shown = rollout("check", *ENDLESS, "--config", file, "--seconds", "60").stdout
    assert "\nthe run  2,000 steps: " in shown


@pytest.mark.thorough
def test_tune_prints_a_configuration(rollout: Caller, tmp_path: Path) -> None:
    """The fastest row is the one that --quiet prints, and `collect` reads it."""
    words = ("tune", "--seconds", "0.05", "--workers", "1")
    document = json.loads(rollout(*words, "--json").stdout)
    rates = {row["rate"]: row["options"] for row in document["rows"]}
    assert rates[max(rates)] == document["fastest"]
    assert {"sync", "native"} == {row["options"]["vectorization"] for row in document["rows"]}
    assert document["rows"][0]["ratio"] == document["rows"][0]["rate"] / document["bare_rate"]
    file = tmp_path / "fast.toml"
    file.write_text(rollout(*words, "--require-reproducible", "--quiet").stdout)
    dry = rollout("collect", "--timesteps", "1", "--config", file, "--dry-run", "--json")
    options = json.loads(dry.stdout)
    assert "sync" == options["vectorization"]
    assert 1 == options["workers"].bit_count()  # Doubled from 1 as long as that helped.
    assert "envs_per_worker" in options
    repeatable = json.loads(rollout(*words, "--require-reproducible", "--json").stdout)
    assert {"sync"} == {row["options"]["vectorization"] for row in repeatable["rows"]}


def test_a_ratio_that_is_unknown_is_not_said(rollout: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector environment has no bare loop to be compared with."""
    options = {"workers": 1, "envs_per_worker": 16, "vectorization": "native"}
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: tuning.TuneResult([tuning.Row(options, 5e3)], None))
    shown = rollout("tune", "--vectorization", "native").stdout.splitlines()
    assert ["1", "16", "native", "5,000"] == shown[1].split()


def test_check_looks_at_what_acts(rollout: Caller, tmp_path: Path) -> None:
    """With --epsilon the policy explores, and recorded actions are checked in their own episodes."""
    words = ("check", "--seconds", "60", "--json")
    for epsilon, expected in ((), True), (("--epsilon", "0.5"), False):
        document = json.loads(
            rollout(*words, "--policy", "constant:0", "--env", "CartPole-v1", *epsilon).stdout
        )
        assert expected == ("the policy does not explore" in str(document["checks"]))
    rollout(
        "collect", "--timesteps", "1500", "--seed", "5", "-q", "--sampler", "local", "-o", tmp_path / "made"
    )
    replayed = ("--policy", f"replay:{tmp_path / 'made'}", "--env", "CartPole-v1", "--timesteps", "1000")
    assert json.loads(rollout(*words, *replayed).stdout)["passed"]


def test_a_resumed_dataset_says_what_is_asked_about(
    rollout: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `collect --resume`: its environment, its policy and its amount, unless another one is given."""
    env = ("--env", "tests.report.worlds:Pictures", "--env-kwargs", "blind=true")
    folder = ("--output", tmp_path / "made")
    rollout("collect", *env, "--episodes", "3", "--seed", "5", "--sampler", "local", "-q", *folder)
    asked = list[CollectConfig]()

    def note(config: CollectConfig, **_: object) -> CheckReport:
        asked.append(config)
        return CheckReport({"running": []}, {}, 0.0)

    monkeypatch.setattr(module, "check", note)
    for amount in (), ("--timesteps", "9"), ("--max-time", "2"):
        rollout("check", "--resume", *folder, *amount)
    assert {(env[1], 5)} == {(config.env, config.seed) for config in asked}
    assert [{"blind": True}] * 3 == [config.env_kwargs for config in asked]
    assert [None, 9, None] == [config.timesteps for config in asked]
    rollout("check", "--max-time", "2")
    assert (None, 2.0) == (asked[-1].timesteps, asked[-1].max_time)


@pytest.mark.parametrize("noise", [(), ("--action-noise", "0.1")])
def test_check_of_few_recorded_episodes(rollout: Caller, tmp_path: Path, noise: tuple[str, ...]) -> None:
    """They are played to their end, which is no lack of steps, and in their own episodes behind noise too."""
    env = ("--env", "tests.report.worlds:Pictures", "--env-kwargs", "blind=true")
    rollout(
        "collect", *env, "--episodes", "8", "--seed", "5", "--sampler", "local", "-q", "-o", tmp_path / "made"
    )
    replayed = ("--policy", f"replay:{tmp_path / 'made'}", *noise)
    document = json.loads(rollout("check", *env, *replayed, "--seconds", "60", "--json").stdout)
    assert [] == [one for one in document["checks"] if one["status"] != "ok"]
