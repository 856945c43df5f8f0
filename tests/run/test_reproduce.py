"""Two runs of one episode are compared bit by bit; what a run concludes from it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.dataset.layout import described
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.episodes.chunk import Chunk, concatenate, without_infos
from rollout_cli.errors import EnvError, NotReproducibleError, RolloutError, WorkerError, as_flags
from rollout_cli.run.compare import Difference, advice, first_difference
from rollout_cli.run.reproduce import EarlyEpisodes, Verdict, check, recorded, require
from rollout_cli.samplers.plan import Episodes, Plan
from rollout_cli.workers.values import WorkerReport
from tests.helpers.chunks import BOX_SPEC, episode
from tests.helpers.errors import raises

TREE = EnvSpec(
    spaces.Dict({"camera": spaces.Box(0, 255, (4, 4), np.uint8), "name": spaces.Text(4)}),
    spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float64))),
)


def infos(number: int, step: int) -> dict[str, Any]:
    """Return infos some of which some steps lack."""
    return {"x": step, "sparse": 0.5, "text": "a", "list": [1, 2]} if step % 2 else {"x": step}


def batch(chunk: Chunk, spec: EnvSpec = TREE) -> EpisodeBatch:
    return EpisodeBatch.from_chunks(spec, [chunk])


def one(length: int = 6, number: int = 3) -> Chunk:
    return episode(
        number,
        length,
        spec=TREE,
        env_info=infos,
        agent_info=lambda *_: {"logit": np.float32(0.5)},
        episode_info=infos,
    )


# -- comparing ---------------------------------------------------------------------------------------------------------


def test_equal_episodes_do_not_differ() -> None:
    """Trees, texts, images, infos that some steps lack."""
    assert None is first_difference(batch(one()), batch(one()))


def changed_leaf(name: str, leaf: int, row: int) -> Callable[[Chunk], Chunk]:
    def change(chunk: Chunk) -> Chunk:
        columns = [column.copy() for column in getattr(chunk, name)]
        flat = columns[leaf][row].ravel() if columns[leaf].ndim > 1 else columns[leaf][row : row + 1]
        flat[-1] = "zz" if columns[leaf].dtype == object else flat[-1] + 1
        fields: dict[str, Any] = {name: tuple(columns)}
        return replace(chunk, **fields)

    return change


def changed(name: str, value: Any) -> Callable[[Chunk], Chunk]:
    return lambda chunk: replace(chunk, **{name: value})


def negative_zero(chunk: Chunk) -> Chunk:
    rewards = np.zeros(chunk.n_steps)
    rewards[4] = -0.0
    return replace(chunk, rewards=rewards)


CHANGES: dict[str, tuple[Callable[[Chunk], Chunk], str]] = {
    "an image": (changed_leaf("observations", 0, 2), "observation.camera at step 2"),
    "a text": (changed_leaf("observations", 1, 1), "observation.name at step 1"),
    "an action": (changed_leaf("actions", 0, 5), "action.0 at step 5"),
    "a vector": (changed_leaf("actions", 1, 3), "action.1 at step 3"),
    "the last observation": (changed_leaf("last_observations", 0, 0), "last_observation.camera at step 6"),
    "a flag": (lambda chunk: replace(chunk, terminated=~chunk.terminated), "terminated at step 5"),
    "the seed": (changed("seeds", np.array([5])), "seed at step 0"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_first_difference_is_named(name: str) -> None:
    """By field, step and, in big rows, the element."""
    change, place = CHANGES[name]
    found = first_difference(batch(one()), batch(change(one())))
    assert found is not None
    assert place == found.place
    assert found.values[0] != found.values[1]


@pytest.mark.parametrize(("leaf", "name"), [(0, "observation.a.b"), (1, "observation.a.b#2")])
def test_leaves_whose_names_are_equal_once_dotted_are_both_compared(leaf: int, name: str) -> None:
    """The later one is named by a number too."""
    box = spaces.Box(0, 1, (2,), np.float64)
    space = spaces.Dict({"a": spaces.Dict({"b": box}), "a.b": box})
    spec = replace(TREE, observation_space=space)
    whole = episode(3, 6, spec=spec)
    found = first_difference(batch(whole, spec), batch(changed_leaf("observations", leaf, 2)(whole), spec))
    assert found is not None
    assert f"{name} at step 2" == found.place


def test_bits_are_compared() -> None:
    """Zero and minus zero differ; nan is equal to itself."""
    zeros = replace(one(), rewards=np.zeros(6))
    found = first_difference(batch(zeros), batch(negative_zero(one())))
    assert found is not None
    assert ("reward at step 4", [0.0, -0.0]) == (found.place, found.values)
    nans = replace(one(), rewards=np.full(6, np.nan))
    assert None is first_difference(batch(nans), batch(nans))


def changed_info(logit: Any = None, **env_info: Any) -> Chunk:
    """Return the episode with another info of the policy, or others of the environment at step 3."""
    return episode(
        3,
        6,
        spec=TREE,
        env_info=lambda number, step: {**infos(number, step), **(env_info if step == 3 else {})},
        agent_info=lambda *_: {"logit": np.float32(0.5) if logit is None else logit},
        episode_info=infos,
    )


@pytest.mark.parametrize(
    ("again", "place"),
    [
        (changed_info(sparse=1.0), "env_info.sparse at step 3"),
        (changed_info(new=True), "env_info.new at step 3"),
        (changed_info(np.float64(0.5)), "agent_info.logit at step 0"),
        (one(8), "length at step 5"),
    ],
)
def test_infos_and_lengths(again: Chunk, place: str) -> None:
    """Another value, type or missing key is a difference; rows that one run lacks show in its length."""
    found = first_difference(batch(one()), batch(again))
    assert found is not None
    assert place == found.place


@pytest.mark.parametrize(
    ("lists", "values"),
    [
        (([[1, 2], [3]], [[1, 2], [4]]), ["[3]", "[4]"]),
        (([[1, 2], [3, 4]], [[1, 2], [3, 5]]), [4, 5]),
        (([[1, 2], [3]], [1]), ["[[1, 2], [3]]", "[1]"]),
    ],
)
def test_lists_may_be_ragged(lists: tuple[Any, Any], values: list[Any]) -> None:
    """They are JSON, which no array of numbers need hold."""
    found = first_difference(*(batch(changed_info(ragged=each)) for each in lists))
    assert found is not None
    assert ("env_info.ragged at step 3", values) == (found.place, found.values)


def test_the_advice_names_the_infos_that_differ() -> None:
    """Where nothing else differs, it is the very options that leave them out; else they would not help."""
    again = changed_info(np.float64(0.5), **{"sparse": 1.0, "odd [key]": 2})
    found = first_difference(batch(one()), batch(again))
    assert found is not None
    options = "--drop-info agent_info.logit --drop-info env_info.sparse --drop-info 'env_info.odd [[]key]'"
    assert as_flags(advice(found)).endswith(options)
    found = first_difference(batch(one()), batch(replace(again, rewards=again.rewards + 1)))
    assert found is not None
    assert "keeps state" in advice(found)
    patterns = [word for word in shlex.split(options) if word != "--drop-info"]
    without = [batch(without_infos(chunk, patterns)) for chunk in (one(), again)]
    assert None is first_difference(*without)


# -- early episodes ----------------------------------------------------------------------------------------------------


def kept_numbers(early: EarlyEpisodes) -> list[int]:
    return [int(chunk.numbers[0]) for chunk in early.kept]


def test_the_first_episodes_are_copied() -> None:
    """Eight at most, and no view of the chunk that they came in."""
    early = EarlyEpisodes()
    chunk = concatenate([episode(number, 5) for number in range(6)])
    early.keep(chunk)
    early.keep(concatenate([episode(number, 5) for number in range(6, 12)]))
    assert list(range(8)) == kept_numbers(early)
    assert not np.shares_memory(early.kept[0].rewards, chunk.rewards)
    assert None is first_difference(batch(episode(5, 5), BOX_SPEC), batch(early.kept[5], BOX_SPEC))


def test_of_a_big_episode_the_beginning_is_kept() -> None:
    """As a limit of its steps gives it; no later episode is kept, since it would be no early one."""
    whole = episode(0, 900)
    early = EarlyEpisodes(_free_bytes=2_000)
    early.keep(whole)
    early.keep(episode(1, 5))
    (kept,) = early.kept
    assert 20 < kept.n_steps < 900
    assert None is first_difference(batch(whole.truncated_at(kept.n_steps), BOX_SPEC), batch(kept, BOX_SPEC))
    assert ([False], [True]) == (kept.terminated.tolist(), kept.truncated.tolist())
    assert whole.observations[0][kept.n_steps].tolist() == kept.last_observations[0][0].tolist()
    assert ([kept.n_steps], kept.n_steps) == (
        [chunk.n_steps for chunk in early.chosen(0.1, 1e9)[0]],
        early.chosen(0.1, 1e9)[1],
    )


def test_the_shortest_are_chosen_in_falling_order() -> None:
    """As many of two as the time allows."""
    early = EarlyEpisodes()
    for number, length in enumerate((30, 10, 20)):
        early.keep(episode(number, length))

    def chosen(seconds: float) -> list[int]:
        return [int(chunk.numbers[0]) for chunk in early.chosen(0.1, seconds)[0]]

    assert ([2, 1], [1], [1]) == (chosen(3.0), chosen(2.9), chosen(0.9))


def test_of_a_slow_episode_the_beginning_is_chosen() -> None:
    """As many steps of the shortest as the time allows, at least one."""
    early = EarlyEpisodes()
    early.keep(concatenate([episode(0, 30), episode(1, 10)]))
    for seconds, steps in ((0.95, 9), (0.35, 3), (0.0, 1)):
        (chunk,), limit = early.chosen(0.1, seconds)
        assert (1, steps, steps, [True]) == (chunk.numbers[0], chunk.n_steps, limit, chunk.truncated.tolist())


# -- the verdict -------------------------------------------------------------------------------------------------------


class FakeSampler:
    """Runs one episode again: as `again` makes it."""

    env_spec, n_workers, n_started = BOX_SPEC, 64, 2

    def __init__(
        self, again: Callable[[int], Chunk | RolloutError | None], report: WorkerReport | None = None
    ) -> None:
        self.report = report or WorkerReport()
        self._again = again
        self.ran: list[int] = []
        self.limits: list[int | None] = []

    def rebuild(self, limit: int | None) -> Any:
        """Stand for a new worker."""
        self.limits.append(limit)
        return nullcontext(self)

    def stream(self, plan: Plan) -> Iterator[Chunk]:
        assert isinstance(plan, Episodes)
        self.ran.append(plan.first)
        result = self._again(plan.first)
        if isinstance(result, RolloutError):
            raise result
        if result is not None:
            yield result


def verdict(
    sampler: FakeSampler, *, steps: int = 10, seconds: float = 0.1, required: bool = False
) -> Verdict:
    early = EarlyEpisodes()
    early.keep(concatenate([episode(0, 5), episode(1, 5)]))
    fake: Any = sampler
    return check(fake, early, fake.rebuild, steps=steps, seconds=seconds, required=required)


def test_the_same_again_is_yes() -> None:
    """Both were run again, the later one first, and the sampler's totals are as before."""
    sampler = FakeSampler(lambda number: episode(number, 5), WorkerReport(scope="n_envs"))
    assert Verdict("yes", scope="n_envs", episodes=[1, 0, 1]) == verdict(sampler)
    assert [1, 0, 1] == sampler.ran


@pytest.mark.parametrize(
    ("seconds", "ran"),
    [(0.1, [1, 0, 1]), (3.0, [0, 0]), (8.0, [0, 0])],
    ids=["several", "one", "a beginning"],
)
def test_one_episode_follows_itself(seconds: float, ran: list[int]) -> None:
    """All may be the first ones of their workers or rows: without a predecessor in the run, and in a new worker."""

    def again(number: int) -> Chunk:
        carried = float(sampler.ran.count(number) > 1)
        first = episode(number, 5).truncated_at(sampler.limits[-1] or 9)
        return replace(first, rewards=first.rewards + carried)

    sampler = FakeSampler(again)
    found = verdict(sampler, seconds=seconds)
    assert ("no", ran, ran) == (found.status, found.episodes, sampler.ran)


@pytest.mark.parametrize(
    ("number", "steps", "ran"),
    [(0, 5, [0]), (0, 500, [0, 0]), (7, 5, [7, 7])],
    ids=["the only one", "the only one that is kept", "one more of a resumed run"],
)
def test_an_episode_that_was_the_only_one_follows_none(number: int, steps: int, ran: list[int]) -> None:
    """Another run of the seed gives the same, whatever would be carried on to a second one."""
    sampler: Any = FakeSampler(lambda number: episode(number, 5))
    early = EarlyEpisodes()
    early.keep(episode(number, 5))
    found = check(sampler, early, sampler.rebuild, steps=steps, seconds=0.1, required=False)
    assert Verdict("yes", episodes=ran) == found


def test_a_difference_is_no() -> None:
    """The document has the place and both values."""
    found = verdict(FakeSampler(lambda number: replace(episode(number, 5), rewards=np.arange(5.0))))
    assert found.difference is not None
    assert ("no", [1], "reward", 0) == (
        found.status,
        found.episodes,
        found.difference.field,
        found.difference.step,
    )
    assert described(asdict(found)).startswith("no (episode 1: reward at step 0 was ")
    with raises(NotReproducibleError, "not-reproducible"):
        require(found)


@pytest.mark.parametrize(
    ("again", "status", "cause"),
    [(EnvError("boom"), "no", "boom"), (WorkerError("died"), "unknown", "died"), (None, "unknown", "")],
)
def test_an_episode_that_does_not_end_again(again: Any, status: str, cause: str) -> None:
    """An error of the user's code is a difference; all else says nothing."""
    found = verdict(FakeSampler(lambda _: again))
    assert status == found.status
    assert "episode 1 could not be run again: " in found.reason
    assert cause in found.reason


def test_other_spaces_are_a_difference() -> None:
    """The episode that was run again has other columns, so it is not compared."""
    sampler: Any = FakeSampler(lambda _: None)
    anew: Any = FakeSampler(lambda number: episode(number, 5, spec=TREE))
    anew.env_spec = TREE
    early = EarlyEpisodes()
    early.keep(episode(0, 5))
    found = check(sampler, early, lambda _: nullcontext(anew), steps=5, seconds=0.1, required=False)
    assert ("no", "the environment has other spaces when it is rebuilt") == (found.status, found.reason)


def test_time_is_limited() -> None:
    """To a second, or a hundredth of the run; whoever requires the check has it anyway."""
    slow = FakeSampler(lambda number: episode(number, 5).truncated_at(slow.limits[-1] or 9))
    assert "yes" == verdict(slow, steps=10, seconds=4.0).status
    assert "yes" == verdict(slow, steps=10_000, seconds=1_000.0).status
    assert "yes" == verdict(slow, steps=10, seconds=2.0, required=True).status
    assert [1, None, None] == slow.limits


def test_what_is_known_needs_no_check() -> None:
    """Nothing is run again, and no worker is built."""
    sampler = FakeSampler(lambda _: None, WorkerReport(not_reproducible="it resets itself"))
    assert "no (it resets itself)" == described(asdict(verdict(sampler, steps=10, seconds=100.0)))
    assert ([], []) == (sampler.ran, sampler.limits)


def test_no_episode_to_run_again() -> None:
    """A reason is given."""
    sampler: Any = FakeSampler(lambda _: None)
    for steps, reason in (
        (0, "no episode was run"),
        (5, "one step needs more than the 128 MB of memory for it"),
    ):
        found = check(sampler, EarlyEpisodes(), sampler.rebuild, steps=steps, seconds=0.1, required=False)
        assert ("unknown", reason) == (found.status, found.reason)


def test_a_recorded_verdict() -> None:
    """It is what was recorded, with the place of a difference; a new dataset has none."""
    found = Verdict("no", "episode 3", "n_envs", [5, 3], Difference("reward", 2, [1.5, None]))
    facts: Any = {"reproducible": asdict(found)}
    assert found == recorded(facts)
    assert Verdict("unknown") == recorded({})


def test_what_is_required() -> None:
    """`yes`; `no` and `unknown` raise, and nothing known yet does not."""
    require(None)
    require(Verdict("yes"))
    for status in ("no", "unknown"):
        with raises(NotReproducibleError, "not-reproducible", status):
            require(Verdict(status, "why"))
    assert "not recorded" == described({})  # A writer that was used without `collect` records none.
