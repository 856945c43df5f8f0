"""What a run finds out of its episodes being reproduced, and says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollout_cli.collect import collect
from rollout_cli.config import CollectConfig
from rollout_cli.dataset import Dataset, load
from rollout_cli.dataset.layout import read_info
from rollout_cli.errors import ConfigError, EnvError, NotReproducibleError
from rollout_cli.progress import NullProgress
from tests.support.runs import data_hashes, run
from tests.support.slow import ROOT_SEED

SETTINGS: dict[str, dict[str, Any]] = {
    "local": {"sampler": "local", "workers": 1},
    "local, 4 rows": {"sampler": "local", "workers": 1, "envs_per_worker": 4},
    "processes": {"workers": 2},
    "processes, 4 rows": {"workers": 2, "envs_per_worker": 4},
}
WHERE = "tests.support.irreproducible"

settings = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


class Told(NullProgress):
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.warnings: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def run_told(output: Path, **options: Any) -> tuple[Dataset, Told]:
    """Collect 2,000 steps and return the dataset and what was told."""
    told = Told()
    collect(CollectConfig(output=output, **{"timesteps": 2_000, "seed": ROOT_SEED} | options), progress=told)
    return load(output), told


@settings
def test_what_is_the_same_again_is_checked(tmp_path: Path, setting: dict[str, Any]) -> None:
    """CartPole with random actions: two early episodes were run again, nothing is told, and `data/` is as ever."""
    dataset, told = run_told(tmp_path / "out", env="CartPole-v1", timesteps=10_000, **setting)
    verdict = dataset.info["reproducible"]
    assert {"status": "checked", "scope": "any"} == {name: verdict[name] for name in ("status", "scope")}
    assert 2 == len(verdict["episodes"])
    assert [] == told.warnings


def test_other_workers_episodes_are_run_again(tmp_path: Path) -> None:
    """With several workers, what is run again by the first one was run by others."""
    dataset, _ = run_told(tmp_path / "out", env="tests.support.slow:chain", workers=3)
    workers = dataset.episodes["worker"].to_pylist()
    assert {0, 1, 2} == set(workers)
    assert 0 not in [workers[number] for number in dataset.info["reproducible"]["episodes"]]


@settings
@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"env": f"{WHERE}:normalised"}, "observation", ["NormalizeObservation keeps running statistics"]),
        ({"env": f"{WHERE}:normalised_rewards"}, "reward", ["NormalizeReward keeps running statistics"]),
        ({"env": f"{WHERE}:timed"}, "env_info.episode.t", ["how long", "RecordEpisodeStatistics"]),
        ({"env": f"{WHERE}:CountingEnv"}, "observation", ["CountingEnv", "carries state", "same seed"]),
        ({"env": f"{WHERE}:box", "policy": f"{WHERE}:CallsPolicy"}, "action", ["CallsPolicy", "reset does not clear"]),
    ],
)
def test_what_differs_is_named(
    tmp_path: Path, setting: dict[str, Any], options: dict[str, Any], field: str, words: list[str]
) -> None:
    """State that is carried on, wall time in infos, and calls that are counted: field, values and cause are told."""
    dataset, told = run_told(tmp_path / "out", **setting, **options)
    verdict = dataset.info["reproducible"]
    assert ("failed", field) == (verdict["status"], verdict["field"])
    length = dataset.episodes["length"].to_pylist()[verdict["episode"]]
    assert 0 <= verdict["step"] < length
    assert verdict["values"]["first"] != verdict["values"]["again"]
    (warning,) = told.warnings
    for word in words:
        assert word in verdict["reason"]
        assert word in warning
    assert "complete" == dataset.info["status"]


@settings
def test_an_info_that_tells_the_time_can_be_dropped(tmp_path: Path, setting: dict[str, Any]) -> None:
    """With `--drop-info` as the hint says, the same environment is checked, and the rest of its infos is there."""
    timed = {"env": f"{WHERE}:timed", **setting}
    first, _ = run_told(tmp_path / "first", **timed)
    assert "--drop-info episode.t" in first.info["reproducible"]["hint"]
    dataset, told = run_told(tmp_path / "out", **timed, drop_info=("episode.t",))
    assert "checked" == dataset.info["reproducible"]["status"]
    assert ([], []) == (told.notices[1:], told.warnings)
    names = [name for name in dataset.info["features"] if name.startswith("env_info.episode")]
    assert ["env_info.episode.l", "env_info.episode.r"] == sorted(names)
    assert ["env_info.episode.t"] == list(dataset.info["dropped_infos"])
    assert ["episode.t"] == dataset.info["collector"]["drop_info"]


def test_frozen_statistics_are_reproducible(tmp_path: Path) -> None:
    """A normalising wrapper that no longer learns is no fault."""
    dataset, _ = run_told(tmp_path / "out", env=f"{WHERE}:frozen", workers=2)
    assert "checked" == dataset.info["reproducible"]["status"]


@settings
def test_the_check_changes_no_data(tmp_path: Path, setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`data/`, the totals and the statistics are those of a run without it."""
    checked, _ = run_told(tmp_path / "checked", env="tests.support.slow:chain", **setting)
    monkeypatch.setattr("rollout_cli.reproducing.check.SHARE", 10**9)
    without, _ = run_told(tmp_path / "without", env="tests.support.slow:chain", **setting)
    statuses = [dataset.info["reproducible"]["status"] for dataset in (checked, without)]
    assert ["checked", "unchecked"] == statuses
    assert data_hashes(tmp_path / "without") == data_hashes(tmp_path / "checked")
    for name in ("episodes", "steps", "shards"):
        assert without.info[name] == checked.info[name]


def test_exact_is_checked(tmp_path: Path) -> None:
    """Lanes come as they come; any early episodes of theirs are run again."""
    dataset, _ = run_told(
        tmp_path / "out",
        command="exact",
        timesteps=None,
        episodes_per_worker=150,
        workers=3,
        env="tests.support.slow:chain",
    )
    assert "checked" == dataset.info["reproducible"]["status"]


@pytest.mark.parametrize("sampler", ["local", "multiprocessing"])
def test_native_environments_are_checked(tmp_path: Path, sampler: Any) -> None:
    """Where rows can be reset from seeds, for this number of rows."""
    options = {"vectorization": "native", "envs_per_worker": 4, "sampler": sampler, "workers": 2}
    dataset, _ = run_told(tmp_path / "out", env="tests.support.vector_envs:slow_chain", **options)
    verdict = dataset.info["reproducible"]
    assert ("checked", "n_envs") == (verdict["status"], verdict["scope"])


def test_a_short_run_is_not_checked(tmp_path: Path) -> None:
    """Where two episodes are more than a hundredth of the run, it says so."""
    dataset, told = run_told(tmp_path / "out", timesteps=100, sampler="local", workers=1)
    verdict = dataset.info["reproducible"]
    assert ("unchecked", "any") == (verdict["status"], verdict["scope"])
    assert "1 %" in verdict["reason"]
    assert [] == told.warnings


def test_a_run_that_fails_is_not_checked(tmp_path: Path) -> None:
    """What an error interrupts says `unchecked`."""
    options = {"env": f"{WHERE}:FailsLateEnv", "seed": ROOT_SEED, "sampler": "local", "workers": 1}
    with pytest.raises(EnvError):
        run(tmp_path / "out", timesteps=2_000, **options)
    info = read_info(tmp_path / "out")
    assert ("interrupted", "unchecked") == (info["status"], info["reproducible"]["status"])
    assert "ended early" in info["reproducible"]["reason"]


def test_an_error_the_second_time_is_a_failed_check(tmp_path: Path) -> None:
    """An environment that refuses a seed that it has had is not reproducible; the data are there."""
    dataset, told = run_told(tmp_path / "out", env=f"{WHERE}:FailsAgainEnv", sampler="local", workers=1)
    verdict = dataset.info["reproducible"]
    assert ("complete", "failed") == (dataset.info["status"], verdict["status"])
    assert "this seed was used before" in verdict["reason"]
    assert 1 == len(told.warnings)


def test_an_info_that_is_never_met_is_told(tmp_path: Path) -> None:
    """A misspelt key has no effect, so a notice says that there is no such info."""
    _, told = run_told(tmp_path / "out", timesteps=100, workers=1, drop_info=("episod.t", "nothing"))
    assert ["--drop-info episod.t", "--drop-info nothing"] == [text.partition(":")[0] for text in told.notices]


# -- where it is required ----------------------------------------------------------------------------------------------

LOCAL: dict[str, Any] = {"sampler": "local", "workers": 1, "require_reproducible": True}


def test_required_and_so(tmp_path: Path) -> None:
    """Even a short run is checked where that is required."""
    dataset, _ = run_told(tmp_path / "out", timesteps=100, **LOCAL)
    assert "checked" == dataset.info["reproducible"]["status"]


def test_required_and_not_so(tmp_path: Path) -> None:
    """The dataset is complete, says what is wrong, and the run ends with exit code 3."""
    with pytest.raises(NotReproducibleError, match="NormalizeObservation") as caught:
        run_told(tmp_path / "out", env=f"{WHERE}:normalised", **LOCAL)
    assert 3 == caught.value.exit_code
    assert "update_running_mean" in caught.value.hint
    info = read_info(tmp_path / "out")
    assert ("complete", "failed") == (info["status"], info["reproducible"]["status"])


def test_required_and_known_not_to_be_so(tmp_path: Path) -> None:
    """A worker class without numbers is refused before there is a folder."""
    with pytest.raises(NotReproducibleError, match="takes no episode numbers"):
        run_told(tmp_path / "out", worker_class="tests.support.workers:PlainVerbs", **LOCAL)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("setting", [SETTINGS["local, 4 rows"], SETTINGS["processes, 4 rows"]])
def test_required_and_seen_while_it_runs(tmp_path: Path, setting: dict[str, Any]) -> None:
    """A batch that draws from a global generator is seen when it acts: the run ends then, and keeps what there is."""
    options = {"env": "tests.support.slow:box", "policy": "tests.support.policies:GlobalNoisePolicy"}
    with pytest.raises(NotReproducibleError, match=r"numpy\.random"):
        run_told(tmp_path / "out", timesteps=100_000, require_reproducible=True, **setting, **options)
    info = read_info(tmp_path / "out")
    assert ("interrupted", "failed") == (info["status"], info["reproducible"]["status"])
    assert 0 < info["steps"] < 100_000


def test_required_in_the_order_of_arrival(tmp_path: Path) -> None:
    """The two exclude each other."""
    with pytest.raises(ConfigError, match="--order arrival"):
        run_told(tmp_path / "out", order="arrival", **LOCAL)
