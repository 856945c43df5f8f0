"""evaluate: the episodes are those of `collect`, the same for all policies, and the statistics are theirs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import rollout_cli
from rollout_cli.errors import (
    DatasetExistsError,
    EnvError,
    PolicyLoadError,
    UsageError,
)
from rollout_cli.options.types import EpisodeRange
from rollout_cli.run.evaluation import Evaluation
from tests.helpers.errors import raises
from tests.helpers.thorough import usually

LOCAL: dict[str, Any] = {"seed": 0, "sampler": "local"}
CARTPOLE = ["constant:0", "random"]


class Goal(gymnasium.Env[Any, Any]):
    """Ends after three steps with the return of the action; some episodes say that they succeed, or fail to run."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Discrete(3)

    def __init__(self, info: str = "is_success", *, fails: bool = False) -> None:
        self._info = info
        self._fails = fails
        self._count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._count = 0
        self._value = float(self.np_random.normal())
        if self._fails and self._value > 1:
            raise ValueError("this episode cannot run")
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._count += 1
        has_ended = self._count == 3
        infos = {self._info: bool(self._value + action > 0.5)} if has_ended else {}
        return np.zeros(1, np.float32), self._value + float(action), has_ended, False, infos


GOAL = f"{__name__}:Goal"


def checkpoint(path: Path, action: int) -> None:
    path.write_bytes(cloudpickle.dumps(lambda observation: action))


def same(first: Evaluation, second: Evaluation) -> bool:
    return all(
        np.array_equal(getattr(first, name), getattr(second, name), equal_nan=name != "successes")
        for name in ("returns", "lengths", "successes")
    )


def test_the_episodes_are_those_of_collect(tmp_path: Path) -> None:
    evaluation = rollout_cli.evaluate(CARTPOLE, "CartPole-v1", episodes=30, **LOCAL)
    for place, policy in enumerate(CARTPOLE):
        config = rollout_cli.CollectConfig(
            policy=policy,
            env="CartPole-v1",
            episodes=EpisodeRange(0, 30),
            output=tmp_path / str(place),
            **LOCAL,
        )
        rollout_cli.collect(config)
        rows = rollout_cli.load(tmp_path / str(place)).rows
        np.testing.assert_array_equal(evaluation.returns[place], rows.column("return"))
        np.testing.assert_array_equal(evaluation.lengths[place], rows.column("length"))
    assert (("constant:0", "random"), "CartPole-v1", 0) == (
        evaluation.policies,
        evaluation.env,
        evaluation.seed,
    )
    np.testing.assert_array_equal(np.arange(30), evaluation.numbers)


@pytest.mark.parametrize(("workers", "n_envs"), usually([(2, 4), (1, 1), (3, 1)], (2, 4).__eq__))
def test_workers_change_nothing(workers: int, n_envs: int) -> None:
    expected = rollout_cli.evaluate(["random", "constant:1"], GOAL, episodes=50, **LOCAL)
    found = rollout_cli.evaluate(
        ["random", "constant:1"], GOAL, episodes=50, seed=0, workers=workers, envs_per_worker=n_envs
    )
    assert same(expected, found)


def test_a_range_of_episodes_is_a_part() -> None:
    whole = rollout_cli.evaluate("random", episodes=20, **LOCAL)
    part = rollout_cli.evaluate("random", episodes="15:20", **LOCAL)
    np.testing.assert_array_equal(whole.returns[:, 15:], part.returns)
    assert [15, 16, 17, 18, 19] == part.numbers.tolist()


def test_datasets_are_kept_and_give_the_same(tmp_path: Path) -> None:
    evaluation = rollout_cli.evaluate(
        ["random", "constant:1"], GOAL, episodes=20, output=tmp_path / "d", **LOCAL
    )
    assert same(evaluation, rollout_cli.evaluate(["random", "constant:1"], GOAL, episodes=20, **LOCAL))
    assert (tmp_path / "d/random", tmp_path / "d/constant-1") == evaluation.paths
    for place, path in enumerate(evaluation.paths):
        assert [] == rollout_cli.verify(path).faults
        np.testing.assert_array_equal(evaluation.returns[place], rollout_cli.load(path).rows.column("return"))
        assert path == evaluation.results[place].path
    with raises(DatasetExistsError, "output-exists"):
        rollout_cli.evaluate("random", GOAL, episodes=2, output=tmp_path / "d", **LOCAL)


def test_policies_of_the_same_name_have_datasets_of_their_own(tmp_path: Path) -> None:
    paths = rollout_cli.evaluate(["random", "random"], episodes=2, output=tmp_path, **LOCAL).paths
    assert ["random", "random-1"] == [path.name for path in paths]


def test_the_statistics_are_those_of_the_returns() -> None:
    evaluation = rollout_cli.evaluate(["random", "constant:2"], GOAL, episodes=40, **LOCAL)
    first, second = evaluation.returns
    result = evaluation.results[1]
    assert result.mean.value == pytest.approx(second.mean())
    assert result.median == np.median(second)
    assert result.interquartile_mean.value == pytest.approx(np.sort(second)[10:30].mean())
    assert 3.0 == result.length
    assert result.success is not None
    assert result.success.value == evaluation.successes[1].mean()
    assert result.difference is not None
    assert result.difference.value == pytest.approx((second - first).mean())
    assert result.improvement is not None
    assert result.improvement.value == (second > first).mean() + (second == first).mean() / 2
    assert (None, None) == (evaluation.results[0].difference, evaluation.results[0].improvement)


def test_success_is_what_the_environment_says_at_the_end() -> None:
    for info in ("is_success", "success"):
        evaluation = rollout_cli.evaluate("constant:0", GOAL, episodes=50, env_kwargs={"info": info}, **LOCAL)
        assert f"env_info.{info}" == evaluation.success
        np.testing.assert_array_equal(evaluation.returns > 1.5, evaluation.successes)


def test_success_is_an_expression() -> None:
    evaluation = rollout_cli.evaluate(
        "random", GOAL, episodes=20, success="return > 4 and length == 3", **LOCAL
    )
    np.testing.assert_array_equal(evaluation.returns > 4, evaluation.successes)
    for expression in ("env_info.none", "lenght > 3"):
        with raises(UsageError, "expression-syntax"):
            rollout_cli.evaluate("random", GOAL, episodes=2, success=expression, **LOCAL)


def test_without_a_word_of_success_there_is_none() -> None:
    evaluation = rollout_cli.evaluate("random", episodes=2, **LOCAL)
    assert ("", None) == (evaluation.success, evaluation.results[0].success)


def test_checkpoints_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for steps in (100, 20, 3):
        checkpoint(tmp_path / f"v2_model_{steps}_steps.pkl", steps % 3)
    evaluation = rollout_cli.evaluate(
        [f"{tmp_path}/*.pkl", "random"], GOAL, episodes=5, normalize=(0.0, 10.0), **LOCAL
    )
    assert (3, 20, 100, None) == evaluation.checkpoints
    names = [Path(name).name for name in evaluation.policies]
    assert ["v2_model_3_steps.pkl", "v2_model_20_steps.pkl", "v2_model_100_steps.pkl", "random"] == names
    means = evaluation.returns.mean(axis=1)
    assert means[1] - means[0] == pytest.approx(6.0)
    chart = evaluation.curve()
    assert (False, 4) == (chart.ordered, len(chart.labels))
    np.testing.assert_allclose(means, chart.percentiles[:, 1])


def test_checkpoints_alone_are_a_learning_curve(tmp_path: Path) -> None:
    for steps in (1000, 500):
        checkpoint(tmp_path / f"{steps}.pkl", steps // 500 - 1)
    chart = rollout_cli.evaluate(f"{tmp_path}/*.pkl", GOAL, episodes=5, **LOCAL).curve()
    assert (True, [500, 1000], ["500", "1,000"]) == (chart.ordered, [*chart.places], [*chart.labels])


def test_a_pattern_without_a_file_is_refused(tmp_path: Path) -> None:
    with raises(PolicyLoadError, "policy-pattern"):
        rollout_cli.evaluate(f"{tmp_path}/*.zip", **LOCAL)


def test_scores_are_relative_to_references() -> None:
    evaluation = rollout_cli.evaluate(
        ["constant:0", "constant:1", "constant:2"],
        GOAL,
        episodes=20,
        normalize=("constant:0", "constant:2"),
        **LOCAL,
    )
    scores = [result.score for result in evaluation.results]
    values = [score.value for score in scores if score is not None]
    assert values == pytest.approx([0.0, 50.0, 100.0])
    numbers = rollout_cli.evaluate("constant:1", GOAL, episodes=20, normalize=(0.0, 6.0), **LOCAL)
    score = numbers.results[0].score
    mean = numbers.results[0].mean
    assert score is not None
    assert (score.value, score.low) == pytest.approx((100 * mean.value / 6, 100 * mean.low / 6))


def test_wrong_references_are_refused() -> None:
    with raises(UsageError, "reference-unknown"):
        rollout_cli.evaluate("random", GOAL, normalize=("random", "expert.zip"), **LOCAL)
    with raises(UsageError, "reference-order"):
        rollout_cli.evaluate("random", GOAL, episodes=3, normalize=(1.0, 1.0), **LOCAL)


def test_objects_are_policies(tmp_path: Path) -> None:
    policies: dict[str, Callable[[Any], int]] = {"stay": lambda _: 0, "go": lambda _: 2}
    evaluation = rollout_cli.evaluate(policies, GOAL, episodes=10, **LOCAL)
    assert ("stay", "go") == evaluation.policies
    assert same(evaluation, rollout_cli.evaluate(["constant:0", "constant:2"], GOAL, episodes=10, **LOCAL))
    with raises(UsageError, "policy-not-a-spec"):
        rollout_cli.evaluate(policies, GOAL, output=tmp_path / "d", **LOCAL)
    assert not (tmp_path / "d").exists()


def test_tasks_and_wrappers_are_those_of_all_policies(tmp_path: Path) -> None:
    """Episode i has task i modulo the number of tasks, with every policy."""
    (tmp_path / "tasks.json").write_text('[{"goal": 1}, {"goal": 2}, {"goal": 5}]')
    evaluation = rollout_cli.evaluate(
        ["constant:0", "constant:1"],
        "tests.helpers.envs:OptionsEnv",
        episodes=6,
        tasks=str(tmp_path / "tasks.json"),
        wrapper=["TimeLimit?max_episode_steps=3"],
        output=tmp_path / "d",
        **LOCAL,
    )
    assert [[3] * 6] * 2 == evaluation.lengths.tolist()
    for path in evaluation.paths:
        goals = rollout_cli.load(path).to_episode_batch().split()
        assert [1, 2, 5, 1, 2, 5] == [episode.observations[0, 0] for episode in goals]
    assert [[0.0] * 6, [3.0] * 6] == evaluation.returns.tolist()


def test_skipped_episodes_do_not_count() -> None:
    evaluation = rollout_cli.evaluate(
        ["constant:0", "constant:1"],
        GOAL,
        episodes=60,
        env_kwargs={"fails": True},
        on_env_error="skip",
        seed=0,
        workers=1,
    )
    has_run = evaluation.lengths > 0
    assert 0 < (~has_run[0]).sum() < 30
    np.testing.assert_array_equal(has_run[0], has_run[1])
    np.testing.assert_array_equal(has_run, np.isfinite(evaluation.returns))
    assert [has_run[0].sum()] * 2 == [result.episodes for result in evaluation.results]
    difference = evaluation.results[1].difference
    assert difference is not None
    assert difference.value == pytest.approx(3.0)


def test_a_failing_environment_is_an_error() -> None:
    with raises(EnvError, "env-raised"):
        rollout_cli.evaluate("random", GOAL, episodes=60, env_kwargs={"fails": True}, **LOCAL)


def test_no_policy_is_refused() -> None:
    with raises(UsageError, "policy-none"):
        rollout_cli.evaluate([], **LOCAL)


def test_rows_fit_a_table_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(rollout_cli.evaluate(CARTPOLE, episodes=10, **LOCAL).to_rows())
    assert (2, True) == (len(table), bool((table["mean_low"] <= table["mean"]).all()))
    assert math.isnan(table["difference_low"][0])
    assert table["difference"][1] == pytest.approx(table["mean"][1] - table["mean"][0])
