"""collect(): what it makes, what it reports on the way, and how it ends."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rollout_cli
from rollout_cli.dataset.reader import load
from rollout_cli.dataset.store import FileStore
from rollout_cli.errors import (
    ConfigError,
    EnvError,
    NotReproducibleError,
    PolicyLoadError,
    StorageError,
    UsageError,
    UserCodeError,
)
from rollout_cli.options.config import CollectConfig
from rollout_cli.options.types import EpisodeRange
from rollout_cli.progress import Progress
from rollout_cli.run.collect import collect
from rollout_cli.run.replay import replay
from rollout_cli.run.reproduce import Verdict
from rollout_cli.run.resume import recorded_options
from rollout_cli.run.tally import CollectResult
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.seeding.seeds import env_seed
from rollout_cli.sources import versions
from tests.helpers.damage import set_json
from tests.helpers.datasets import assert_same_data, data_hashes, info_of, numbers_of, set_source, source_of
from tests.helpers.errors import raises
from tests.helpers.projects import project, write_module

__all__ = ["project"]

LOCAL: dict[str, Any] = {"sampler": "local", "workers": 1, "seed": 7, "env": "tests.helpers.envs:FaultyEnv"}


class Reports(Progress):
    """Keeps what a run reports."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.warnings: list[str] = []
        self.calls: list[str] = []
        self.counted = [0, 0, 0]

    def start(
        self,
        *,
        label: str,
        total_steps: int | None,
        total_episodes: int | None,
        total_seconds: float | None = None,
    ) -> None:
        self.calls.append(f"start {label} {total_steps} {total_episodes} {total_seconds}")

    def begin(
        self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0, seconds: float = 0.0
    ) -> None:
        self.calls.append("begin")
        self.counted = [episodes, steps, 0]

    def update(
        self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0, failures: int = 0
    ) -> None:
        self.counted = [a + b for a, b in zip(self.counted, (episodes, steps, failures), strict=True)]

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def finish(self) -> None:
        self.calls.append("finish")


def run(output: Path, reports: Reports | None = None, **options: Any) -> CollectResult:
    return collect(CollectConfig(output=output, **LOCAL | options), progress=reports)


def seeds_of(path: Path) -> list[int]:
    """Return the seeds that the environments of the episodes were built with."""
    seeds: list[int] = rollout_cli.load(path).to_episode_batch().episode_infos["built_with"].tolist()
    return seeds


@pytest.mark.thorough
def test_vector_environments_with_seeds_of_their_own(tmp_path: Path) -> None:
    """No two workers, shards or runs of one dataset begin alike; the same run does."""
    native: dict[str, Any] = {
        "vectorization": "native",
        "envs_per_worker": 2,
        "env": "tests.helpers.envs:self_seeding",
    }
    run(tmp_path / "exact", command="exact", episodes_per_worker=4, **native | {"workers": 2})
    assert 4 == len(set(seeds_of(tmp_path / "exact")))
    for name in ("first", "more"):
        run(tmp_path / name, episodes=400, **native)
    run(tmp_path / "more", episodes=800, resume=True, **native)
    for shard in ("1/2", "2/2"):
        run(tmp_path / shard[0], episodes=20, shard=shard, **native)
    first, more, *shards = (seeds_of(tmp_path / name) for name in ("first", "more", "1", "2"))
    assert [400, 800, 10, 10] == [len(seeds) for seeds in (first, more, *shards)]
    assert first == more[:400]
    assert set() == {*first} & {*more[400:]}
    assert set() == {*shards[0]} & {*shards[1]}


def test_the_result_is_that_of_the_dataset(tmp_path: Path) -> None:
    """Totals, means, path and verdict; and the calls of the progress."""
    reports = Reports()
    result = run(tmp_path / "out", reports, timesteps=500)
    lengths = rollout_cli.load(tmp_path / "out").episodes["length"].to_numpy()
    returns = rollout_cli.load(tmp_path / "out").episodes["return"].to_numpy()
    assert (tmp_path / "out", "complete", 7, 1) == (result.path, result.status, result.seed, result.n_workers)
    assert (len(lengths), lengths.sum()) == (result.episodes, result.steps)
    assert pytest.approx((returns.mean(), lengths.mean())) == (result.mean_return, result.mean_length)
    assert "yes" == result.reproducible["status"] == source_of(tmp_path / "out")["reproducible"]["status"]
    assert ["start tests.helpers.envs:FaultyEnv 500 None None", "begin", "finish"] == reports.calls
    assert [result.episodes, result.steps, 0] == reports.counted


def test_info_json_says_how_it_was_made(tmp_path: Path) -> None:
    """Options, versions, git, policy and environment; no word of the command line, and no place of the dataset."""
    run(tmp_path / "out", timesteps=50, env_kwargs={"note": [1, float("inf")]})
    info = source_of(tmp_path / "out")
    assert "argv" not in info["collector"]
    assert str(tmp_path) not in json.dumps(info)
    assert {"note": [1, "inf"]} == info["collector"]["env_kwargs"] == info["env"]["kwargs"]
    assert info["versions"]["numpy"]
    assert {"commit", "dirty"} == set(info["git"])
    assert "tests.helpers.envs.FaultyEnv" == info["env"]["class"]
    assert info["policy"]["class"].endswith("RandomPolicy")


def test_what_ran_before_the_dataset_was_open_counts_for_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers begin while the run's record is made: a rate without that time would flatter."""
    prepare = versions.surroundings

    def slow() -> Mapping[str, Any]:
        while not list(tmp_path.glob("met-*")):
            time.sleep(0.002)
        time.sleep(0.3)
        return prepare()

    monkeypatch.setattr(versions, "surroundings", slow)
    options = {**LOCAL, "sampler": "multiprocessing", "env_kwargs": {"meet": 1, "signs": str(tmp_path)}}
    result = collect(CollectConfig(output=tmp_path / "out", episodes=EpisodeRange(0, 1), **options))
    assert 0.3 <= result.sampling_time_s <= result.wall_time_s
    assert result.steps_per_second == result.steps / result.sampling_time_s


def test_a_clock_that_is_wrong_takes_nothing_from_max_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of another machine: the time of sampling is bounded by the run's, and the limit begins with the dataset."""
    now, after = [0.0], list[float]()
    prepare, stop = versions.surroundings, Sampler.request_stop

    def slow() -> Mapping[str, Any]:
        now[0] = 300.0
        return prepare()

    def request_stop(sampler: Sampler, **times: float) -> None:
        after.append(times["after"])
        stop(sampler, **times)

    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: 1e12)
    monkeypatch.setattr("rollout_cli.run.collect.time", clock)
    monkeypatch.setattr(versions, "surroundings", slow)
    monkeypatch.setattr(Sampler, "request_stop", request_stop)
    result = run(tmp_path / "out", episodes=EpisodeRange(0, 1), max_time=1000.0)
    assert ([1000.0], 300.0) == (after, result.sampling_time_s)


def test_a_later_part_has_the_columns_of_the_first_episodes(tmp_path: Path) -> None:
    """The first 1,000 steps decide the columns, though they are not in the dataset."""
    early: dict[str, Any] = {"env_kwargs": {"what": "info late", "episodes": []}, "max_episode_length": 3}
    run(tmp_path / "whole", episodes=EpisodeRange(0, 500), **early)
    run(tmp_path / "part", episodes=EpisodeRange(490, 500), **early)
    assert list(range(490, 500)) == numbers_of(tmp_path / "part")
    assert info_of(tmp_path / "whole")["features"] == info_of(tmp_path / "part")["features"]


# -- what is reported --------------------------------------------------------------------------------------------------


def test_what_may_spoil_the_data_is_reported(tmp_path: Path) -> None:
    """An info that is not there, observations outside of their space; but no limit that nothing has missed."""
    reports = Reports()
    run(
        tmp_path / "out",
        reports,
        episodes=EpisodeRange(0, 3),
        env_kwargs={"what": "obs outside"},
        drop_info=("odd",),
    )
    assert ["--drop-info odd matches no info"] == reports.notices
    assert any("observation" in text for text in reports.warnings), reports.warnings


def test_infos_that_are_not_reproducible_are_named_as_options(tmp_path: Path, project: Path) -> None:
    """Where only infos differ, the warning has the options that leave them out, and these make the verdict `yes`."""
    text = """
        import itertools
        from tests.helpers.envs import FaultyEnv

        count = itertools.count()

        class Counting(FaultyEnv):
            def step(self, action):
                *result, info = super().step(action)
                return *result, {**info, "deep": {"count": next(count)}}
    """
    write_module(project, "mine", text)
    reports = Reports()
    options: dict[str, Any] = {"env": "mine:Counting", "episodes": EpisodeRange(0, 3)}
    assert "no" == run(tmp_path / "out", reports, **options).reproducible["status"]
    assert reports.warnings[0].endswith(
        "drop the infos, since nothing else differs: --drop-info env_info.deep.count"
    )
    without = run(tmp_path / "without", **options, drop_info=("env_info.deep.count",))
    assert "yes" == without.reproducible["status"]


def test_too_many_workers_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the cores."""
    monkeypatch.setattr("rollout_cli.run.collect.usable_cores", lambda: 2)
    reports = Reports()
    run(tmp_path / "out", reports, timesteps=20, workers=9)
    assert ["9 workers share 2 usable cores: use fewer workers"] == reports.warnings


def test_skipped_episodes_are_listed(tmp_path: Path) -> None:
    """With their reasons, in the dataset; each is a failure on the progress."""
    run(tmp_path / "well", episodes=EpisodeRange(0, 6))
    seeds = rollout_cli.load(tmp_path / "well").episodes["seed"].to_pylist()
    reports = Reports()
    kwargs = {"what": "raise", "episodes": seeds[2:4]}
    run(tmp_path / "out", reports, episodes=EpisodeRange(0, 6), env_kwargs=kwargs, on_env_error="skip")
    skipped = source_of(tmp_path / "out")["skipped"]
    assert (2, [2, 3]) == (skipped["count"], [episode["episode_number"] for episode in skipped["episodes"]])
    assert all("the simulator is broken" in episode["reason"] for episode in skipped["episodes"])
    assert [4, 2] == [reports.counted[0], reports.counted[2]]
    assert [0, 1, 4, 5] == numbers_of(tmp_path / "out")


def test_a_failure_keeps_the_reasons_of_skipped_episodes(tmp_path: Path) -> None:
    """Nobody could tell those episodes later from the ones that were rejected."""
    kwargs = {"what": "raise", "episodes": [env_seed(7, 2)]}
    # The name of an info that no episode has is an error when all have ended.
    keep = f"seed != {env_seed(7, 0)} or env_info.nothing == 1"
    with raises(UsageError, "expression-syntax", "env_info.nothing"):
        run(
            tmp_path / "out",
            episodes=EpisodeRange(0, 4),
            env_kwargs=kwargs,
            on_env_error="skip",
            keep=keep,
        )
    source = source_of(tmp_path / "out")
    assert [2] == [episode["episode_number"] for episode in source["skipped"]["episodes"]]
    assert {"kept": 4, "run": 5, "rejected": 1}.items() <= source["acceptance"].items()


def test_a_resume_that_adds_no_episode_keeps_the_verdict(tmp_path: Path) -> None:
    """The last episode was skipped, and is again."""
    options: dict[str, Any] = {"episodes": EpisodeRange(0, 220), "on_env_error": "skip"}
    options["env_kwargs"] = {"what": "raise", "episodes": [env_seed(7, 219)]}
    first = run(tmp_path / "out", **options)
    again = run(tmp_path / "out", **options, resume=True)
    assert (219, 0.0) == (again.episodes, again.steps_per_second)
    assert "yes" == first.reproducible["status"]
    assert first.reproducible == again.reproducible == source_of(tmp_path / "out")["reproducible"]


def test_a_resume_does_not_forget_a_difference(tmp_path: Path) -> None:
    """The episodes that follow may well be the same again; nor does a run that is killed meanwhile."""
    run(tmp_path / "out", episodes=EpisodeRange(0, 220))
    found = asdict(Verdict("no", "episode 2: reward at step 0 was 1.0, is 2.0", episodes=[2]))
    set_source(tmp_path / "out", reproducible=found)

    class Watching(Reports):
        def begin(
            self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0, seconds: float = 0.0
        ) -> None:
            assert found == source_of(tmp_path / "out")["reproducible"]

    again = run(tmp_path / "out", Watching(), episodes=EpisodeRange(0, 225), resume=True)
    assert found == again.reproducible == source_of(tmp_path / "out")["reproducible"]
    with raises(NotReproducibleError, "not-reproducible"):
        run(tmp_path / "out", episodes=EpisodeRange(0, 230), resume=True, require_reproducible=True)
    assert 225 == len(numbers_of(tmp_path / "out"))


def test_what_was_skipped_is_known_though_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An episode that is missing among those that are kept is listed, with the reason, also by who resumes."""
    options: dict[str, Any] = {"timesteps": 1_000, "segment_bytes": 20_000, "on_env_error": "skip"}
    options["env_kwargs"] = {"what": "raise", "episodes": [env_seed(7, 5)]}

    def before(_: FileStore, operation: str, path: Path) -> None:
        if operation == "rename" and path.name == "file-00001.parquet":
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "before", before)
        with raises(StorageError, "write-failed"):
            run(tmp_path / "out", **options)
    assert [0, 1, 2, 3, 4, 6] == numbers_of(tmp_path / "out")[:6]
    for status in ("interrupted", "complete"):
        (skipped,) = source_of(tmp_path / "out")["skipped"]["episodes"]
        assert status == info_of(tmp_path / "out")["status"]
        assert 5 == skipped["episode_number"]
        assert "is broken" in skipped["reason"]
        run(tmp_path / "out", **options, resume=True)


def test_nothing_but_skipped_episodes_is_an_error(tmp_path: Path) -> None:
    """With the reason of the first one."""
    with raises(UserCodeError, "all-episodes-skipped"):
        run(tmp_path / "out", episodes=EpisodeRange(0, 3), env_kwargs={"what": "raise"}, on_env_error="skip")
    assert not (tmp_path / "out" / "data").exists()


def test_a_failure_keeps_the_episodes_before_it(tmp_path: Path) -> None:
    """The hint counts them; where there are none, no dataset is left."""
    run(tmp_path / "well", episodes=EpisodeRange(0, 6))
    seeds = rollout_cli.load(tmp_path / "well").episodes["seed"].to_pylist()
    kwargs = {"what": "raise", "episodes": seeds[4:5]}
    with raises(EnvError, "env-raised") as caught:
        run(tmp_path / "out", episodes=EpisodeRange(0, 6), env_kwargs=kwargs)
    assert "4 finished episodes" in caught.value.hint
    assert ("interrupted", [0, 1, 2, 3]) == (
        info_of(tmp_path / "out")["status"],
        numbers_of(tmp_path / "out"),
    )
    with raises(EnvError, "env-raised") as caught:
        run(tmp_path / "none", timesteps=10, env_kwargs={"what": "raise"})
    assert "finished episodes" not in caught.value.hint
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("required", [False, True])
def test_a_run_that_is_not_reproducible(tmp_path: Path, required: bool) -> None:
    """A warning names the first difference; where it is required, an error does. The dataset is complete."""
    reports = Reports()
    options: dict[str, Any] = {"timesteps": 500, "policy": "tests.helpers.policies:StatefulPolicy"}
    if required:
        with raises(NotReproducibleError, "not-reproducible", "--require-reproducible"):
            run(tmp_path / "out", reports, require_reproducible=True, **options)
    else:
        run(tmp_path / "out", reports, **options)
        (warning,) = reports.warnings
        assert "not reproducible: episode " in warning
        assert "keeps state across episodes" in warning
    info = info_of(tmp_path / "out")
    verdict = source_of(tmp_path / "out")["reproducible"]
    assert ("complete", "no", "action") == (info["status"], verdict["status"], verdict["difference"]["field"])


def test_a_complete_run_that_is_not_reproducible(tmp_path: Path) -> None:
    """Where that is required it is an error each time, also where a job is run again and nothing is left."""
    options: dict[str, Any] = {
        "episodes": EpisodeRange(0, 3),
        "policy": "tests.helpers.policies:StatefulPolicy",
    }
    run(tmp_path / "out", **options)
    assert "no" == run(tmp_path / "out", resume=True, **options).reproducible["status"]
    with raises(NotReproducibleError, "not-reproducible", "--require-reproducible"):
        run(tmp_path / "out", resume=True, require_reproducible=True, **options)


def test_a_replay_of_all_finds_state_that_is_carried_on(tmp_path: Path) -> None:
    """It does not run them in the order of the run, in which that state would be the same again."""
    policy = "tests.helpers.policies:StatefulPolicy"
    run(tmp_path / "out", episodes=EpisodeRange(0, 3), policy=policy)
    replayed, _ = replay(load(tmp_path / "out"), range(3), policy=None, env_kwargs={}, trust=True)
    assert [0, 1, 2] == [again.facts["episode_number"] for again in replayed]
    assert any(again.difference for again in replayed)


def test_a_resume_of_what_carries_state_on_finds_no_change(tmp_path: Path) -> None:
    """The first stored episode had a predecessor: those that decide the columns ran before it."""
    options: dict[str, Any] = {"policy": "tests.helpers.policies:StatefulPolicy"}
    run(tmp_path / "out", episodes=EpisodeRange(5, 225), **options)
    again = run(tmp_path / "out", episodes=EpisodeRange(5, 226), resume=True, **options)
    assert (221, "no") == (again.episodes, again.reproducible["status"])


def test_a_run_that_is_known_not_to_be_reproducible(tmp_path: Path) -> None:
    """Where that is not allowed it ends before it begins."""
    options: dict[str, Any] = {
        "env": "tests.helpers.envs:vector",
        "env_kwargs": {"autoreset_mode": "NextStep"},
    }
    options |= {"vectorization": "native", "envs_per_worker": 2, "timesteps": 50}
    reports = Reports()
    assert "no" == run(tmp_path / "out", reports, **options).reproducible["status"]
    assert any("not reproducible: " in text for text in reports.warnings)
    with pytest.raises(NotReproducibleError):
        run(tmp_path / "required", require_reproducible=True, **options)
    assert not (tmp_path / "required").exists()


# -- folders and sources -----------------------------------------------------------------------------------------------


def test_a_policy_of_another_hash_is_refused(tmp_path: Path) -> None:
    """Nothing of it is loaded."""
    (tmp_path / "p.pkl").write_bytes(b"never loaded")
    with raises(PolicyLoadError, "policy-hash", "SHA"):
        run(tmp_path / "out", timesteps=10, policy=str(tmp_path / "p.pkl"), policy_sha256="0" * 64)
    assert not (tmp_path / "out").exists()


# -- resuming ----------------------------------------------------------------------------------------------------------


def resume(output: Path, reports: Reports | None = None, **given: Any) -> CollectResult:
    """Resume with the recorded options, as the command line does."""
    values = {"output": output, "resume": True, **given}
    recorded = recorded_options("collect", values)
    amounts = {"timesteps", "episodes"}
    if amounts & given.keys():
        recorded = {name: value for name, value in recorded.items() if name not in amounts}
    return collect(CollectConfig(**recorded | values), progress=reports)


def test_the_result_of_a_resumed_run(tmp_path: Path) -> None:
    """Its episodes count as done; where nothing is left to do, no worker is started."""
    whole = run(tmp_path / "whole", timesteps=3_000)
    run(tmp_path / "out", timesteps=1_500)
    for reports, calls in ((Reports(), 3), (Reports(), 0)):
        result = resume(tmp_path / "out", reports, timesteps=3_000)
        assert calls == len(reports.calls)
        assert [result.episodes, result.steps, 0] == reports.counted or not calls
        assert (whole.episodes, whole.steps) == (result.episodes, result.steps)
        assert pytest.approx(whole.mean_return) == result.mean_return
    assert_same_data(tmp_path / "whole", tmp_path / "out")
    with raises(UsageError, "too-many-episodes"):
        resume(tmp_path / "out", timesteps=100)


def test_options_that_decide_the_data_may_not_differ(tmp_path: Path) -> None:
    """They are named, with both values; nothing is touched."""
    run(tmp_path / "out", timesteps=1_500, env_kwargs={"note": 1})
    before = data_hashes(tmp_path / "out")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"max_episode_length": 3}, "max_episode_length was not set, is 3"),
        ({"seed": 8}, "seed was 7, is 8"),
        ({"envs_per_worker": 2}, "envs_per_worker was 1, is 2"),
        ({"env_kwargs": {"note": 2}}, 'env_kwargs was {"note": 1}, is {"note": 2}'),
        ({"env": "CartPole-v1"}, 'env was "tests.helpers.envs:FaultyEnv", is "CartPole-v1"'),
        ({"policy": "tests.helpers.policies:OwnNoisePolicy"}, 'policy was "random"'),
        ({"episodes": EpisodeRange(5, 600)}, "the first episode was 0, is 5"),
        ({"segment_bytes": 1000}, "segment_bytes was"),
    ]
    for given, part in refused:
        with raises(UsageError, "resume-refused", part):
            resume(tmp_path / "out", **given if "episodes" in given else {"timesteps": 3_000} | given)
        assert before == data_hashes(tmp_path / "out")


def test_a_changed_source_is_refused(project: Path) -> None:
    """A comment may be all that changed; nobody can know."""
    code = "from tests.helpers.envs import FaultyEnv as Env\n"
    write_module(project, "mine", code)
    run(project / "out", timesteps=1_500, env="mine:Env")
    write_module(project, "mine", f"{code}# changed\n")
    with raises(UsageError, "resume-differs", "mine.py"):
        resume(project / "out", timesteps=3_000)


def test_a_changed_file_that_the_stored_episode_does_not_read_is_refused(project: Path) -> None:
    """Before an episode of a worker that reads it is taken; where it is accepted, the dataset says so."""
    text = """
        from rollout_cli.seeding.seeds import env_seed
        from tests.helpers.envs import FaultyEnv

        class Env(FaultyEnv):
            def reset(self, *, seed=None, options=None):
                if seed in (env_seed(7, 200), env_seed(7, 201)):
                    open("scene.txt").close()
                return super().reset(seed=seed, options=options)
    """
    write_module(project, "mine", text)
    (project / "scene.txt").write_text("one")
    for stop in (200, 201):
        run(project / "out", env="mine:Env", episodes=EpisodeRange(0, stop), resume=stop > 200)
    (project / "scene.txt").write_text("two")
    with raises(UsageError, "resume-differs"):
        resume(project / "out", episodes=EpisodeRange(0, 202))
    assert list(range(201)) == numbers_of(project / "out")
    resume(project / "out", episodes=EpisodeRange(0, 202), accept_changes=True)
    source = source_of(project / "out")
    assert [[201]] == [change["from_numbers"] for change in source["changes"]]
    assert "files changed: scene.txt has changed" == source["reproducible"]["reason"]


def test_other_versions_are_a_warning(tmp_path: Path) -> None:
    """The last bits of a network may differ; the run goes on."""
    run(tmp_path / "out", timesteps=1_500)
    versions = source_of(tmp_path / "out")["versions"]
    set_source(tmp_path / "out", versions={**versions, "numpy": "1.0"})
    reports = Reports()
    resume(tmp_path / "out", reports, timesteps=3_000)
    assert any("numpy was 1.0, is " in text for text in reports.warnings)


def test_a_secret_is_cut_and_must_be_given_again(tmp_path: Path) -> None:
    """Under the names of secrets; with it, the run goes on."""
    secret = {"note": {"password": "hunter2"}}
    run(tmp_path / "out", timesteps=1_500, env_kwargs=secret)
    assert "hunter2" not in (tmp_path / "out" / "meta" / "info.json").read_text()
    with raises(ConfigError, "secret-missing", "--env-kwargs", "note"):
        resume(tmp_path / "out", timesteps=3_000)
    assert "complete" == resume(tmp_path / "out", timesteps=3_000, env_kwargs=secret).status


def test_an_empty_folder_begins_a_dataset(tmp_path: Path) -> None:
    """Where it is said how much; then one command line serves every time."""
    reports = Reports()
    options = {"timesteps": 100, "seed": 7, "sampler": "local", "env": LOCAL["env"], "workers": 1}
    resume(tmp_path / "out", reports, **options)
    assert any("nothing to resume" in text for text in reports.notices)
    assert "complete" == resume(tmp_path / "out", **options).status
    with raises(ConfigError, "resume-without-dataset", "--resume"):
        recorded_options("collect", {"timesteps": 3})
    with raises(UsageError, "resume-command"):
        recorded_options("exact", {"output": tmp_path / "out"})


# -- a limit of time ---------------------------------------------------------------------------------------------------

NO_TIME = 1e-9
"""It is over before an episode begins."""


def test_a_resume_without_time_adds_nothing(tmp_path: Path) -> None:
    """What is there stays, and the dataset is complete again."""
    first = run(tmp_path / "out", timesteps=1_500)
    again = resume(tmp_path / "out", timesteps=3_000, max_time=NO_TIME)
    assert (first.episodes, "max_time") == (again.episodes, again.stopped_by)
    assert ("complete", "max_time") == (
        info_of(tmp_path / "out")["status"],
        source_of(tmp_path / "out")["stopped_by"],
    )


def test_time_that_is_over_before_old_episodes_are_there_again_costs_none(tmp_path: Path) -> None:
    """A dataset of few steps is collected anew: until it has its episodes again, the old one stays."""
    run(tmp_path / "out", timesteps=100)
    before = numbers_of(tmp_path / "out")
    with raises(UsageError, "time-limit", "--max-time"):
        resume(tmp_path / "out", timesteps=3_000, max_time=NO_TIME)
    assert before == numbers_of(tmp_path / "out")
    resume(tmp_path / "out", timesteps=3_000)
    run(tmp_path / "whole", timesteps=3_000)
    assert_same_data(tmp_path / "whole", tmp_path / "out")


@pytest.mark.parametrize("steps", [50, 1_000])
def test_what_was_said_of_a_dataset_stays_when_it_is_extended(tmp_path: Path, steps: int) -> None:
    """Its licence, and when it was begun: also where its steps are few, and so all are collected anew."""
    run(tmp_path / "out", timesteps=steps)
    set_json(tmp_path / "out" / "meta" / "info.json", card={"license": "mit", "plot": True})
    began = info_of(tmp_path / "out")["times"]["started"]
    resume(tmp_path / "out", timesteps=steps + 50)
    info = info_of(tmp_path / "out")
    assert ({"license": "mit"}, began, 1) == (
        info["card"],
        info["times"]["started"],
        len(info["times"]["resumed"]),
    )


def test_time_that_is_over_before_the_columns_are_decided(tmp_path: Path) -> None:
    """A later range looks at the first episodes; where it cannot, no dataset is left."""
    with raises(UsageError, "time-limit"):
        run(tmp_path / "out", episodes=EpisodeRange(490, 500), max_time=NO_TIME)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rows", [1, 3])
def test_observations_that_are_cast_are_said_once(rows: int, tmp_path: Path) -> None:
    """By a warning, however many episodes, rows and workers there are; a policy sees them cast."""
    progress = Reports()
    env: dict[str, Any] = {
        "env": "tests.run.planted:World",
        "env_kwargs": {"fault": "is float64"},
        "policy": "random" if rows > 1 else "tests.run.planted:sound",
    }
    options = {**LOCAL, **env, "workers": 2, "envs_per_worker": rows, "episodes": 9}
    collect(CollectConfig(**options, output=tmp_path / "out"), progress=progress)
    assert ["the observation is float64, and is cast to float32, the dtype of its space"] == progress.warnings


def test_progress_may_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a bool; without it nothing is printed."""
    config = CollectConfig(episodes=EpisodeRange(0, 2), sampler="local", seed=1, output=tmp_path / "out")
    collect(config)
    assert ("", "") == capsys.readouterr()
    collect(replace(config, output=tmp_path / "shown"), progress=True)
    assert "2/2 episodes" in capsys.readouterr().err
