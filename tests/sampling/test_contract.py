"""What every sampler does, over every backend: a plan's episodes in order, updates, errors, stops, successive calls."""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_cli import Episodes, EpisodesPerWorker, MinTimesteps, Sampler, Supervision
from rollout_cli.envs.updates import ExistingEnvUpdate, NewEnvUpdate, SetTaskUpdate
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.chunk import MESSAGE_BYTES, Chunk
from rollout_cli.errors import (
    EnvError,
    EnvLoadError,
    InternalError,
    PolicyError,
    PolicyLoadError,
    RolloutError,
    UsageError,
)
from rollout_cli.samplers.plan import NO_END
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.kinds import VecWorker
from tests.helpers.batches import assert_same_batches
from tests.helpers.envs import FaultyEnv, OddError
from tests.helpers.errors import raises
from tests.helpers.policies import CountingPolicy, FaultyPolicy, OwnNoisePolicy
from tests.helpers.sampled import (
    AddToTask,
    ConstantPolicy,
    LargeEnv,
    TaskEnv,
    Unloadable,
    act,
    still,
    unloadable,
)
from tests.helpers.sampling import (
    BACKENDS,
    MakeSampler,
    batch_of,
    faulty,
    numbers_of,
    sampler_of,
    seeds,
    serial,
    workers_below_us,
)

PROCESSES = pytest.mark.parametrize("backend", ["forkserver"], indirect=True)
VECTORISED: dict[int, dict[str, Any]] = {1: {}, 3: {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}}
each_width = pytest.mark.parametrize("n_envs", VECTORISED)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_sampler(backend: str) -> Iterator[MakeSampler]:
    """Give a function that makes samplers of the backend; afterwards no worker process may be left."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(sampler_of(backend, *args, **options))
    assert [] == workers_below_us()


# -- plans -------------------------------------------------------------------------------------------------------------


@each_width
def test_obtain_samples_is_the_shortest_prefix(make_sampler: MakeSampler, n_envs: int) -> None:
    """The batch reaches the steps asked for with its last episode and not without it, and equals the serial run."""
    batch = make_sampler(act, **VECTORISED[n_envs]).obtain_samples(0, 200, None)
    assert list(range(len(batch))) == batch.numbers.tolist()
    assert batch.lengths[:-1].sum() < 200 <= batch.lengths.sum()
    assert_same_batches(serial(MinTimesteps(200), act), batch)


@pytest.mark.parametrize("n_workers", [1, 3])
def test_any_number_of_workers_gives_the_same_episodes(
    make_sampler: MakeSampler, backend: str, n_workers: int, tmp_path: Path
) -> None:
    """Every worker runs some of them; the episodes are those of the serial run, whatever the policy draws from."""
    meet = 0 if backend == "local" else n_workers
    env = partial(FaultyEnv, meet=meet, signs=str(tmp_path))
    for policy in (None, OwnNoisePolicy(), CountingPolicy()):
        sampler = make_sampler(policy, env, n_workers=n_workers)
        chunks = list(sampler.stream(MinTimesteps(300)))
        assert_same_batches(serial(MinTimesteps(300), policy), batch_of(sampler, chunks))
        if meet:
            assert set(range(n_workers)) == {int(worker) for chunk in chunks for worker in chunk.workers}


@pytest.mark.parametrize("env", [partial(FaultyEnv, space="dict"), partial(FaultyEnv, "info late", times=1)])
def test_every_kind_of_data_comes_through(make_sampler: MakeSampler, env: Any, tmp_path: Path) -> None:
    """Trees, and infos that only some steps have, are the same everywhere."""
    mute = make_sampler(None if env.args else still, env).obtain_samples(0, 100, None)
    assert_same_batches(serial(MinTimesteps(100), None if env.args else still, env), mute)


def test_exact_episodes_are_run_by_their_own_worker(make_sampler: MakeSampler) -> None:
    """Numbers w * k to (w + 1) * k - 1 come from worker w, in order, and a batch has them in the workers' order."""
    sampler = make_sampler(n_workers=3)
    chunks = list(sampler.stream(EpisodesPerWorker(5)))
    owners = {int(n): int(w) for chunk in chunks for n, w in zip(chunk.numbers, chunk.workers, strict=True)}
    assert {number: number // 5 for number in range(15)} == owners
    for worker in range(3):
        own = [number for number in numbers_of(chunks) if owners[number] == worker]
        assert list(range(5 * worker, 5 * worker + 5)) == own
    assert_same_batches(serial(Episodes(15, 27)), sampler.obtain_exact_episodes(4, None))


def test_starting_is_enough_to_know_the_environment(make_sampler: MakeSampler) -> None:
    """Before the first call nothing is known; once a worker has started, its spaces and more are."""
    sampler = make_sampler()
    with raises(UsageError, "sampler-not-started"):
        _ = sampler.env_spec
    with raises(UsageError, "sampler-not-started"):
        _ = sampler.report
    sampler.start_worker()
    spec = sampler.wait_until_started()
    assert FaultyEnv().observation_space == spec.observation_space == sampler.env_spec.observation_space
    assert sampler.report.env["class"].endswith("FaultyEnv")


def test_episodes_are_truncated_at_the_limit(make_sampler: MakeSampler) -> None:
    """`max_episode_length` reaches the workers."""
    batch = make_sampler(None, partial(FaultyEnv, endless=True), max_episode_length=7).obtain_samples(
        0, 20, None
    )
    assert ([7, 7, 7], [True] * 3) == (batch.lengths.tolist(), batch.truncated.tolist())


def test_large_episodes_travel_alone(make_sampler: MakeSampler) -> None:
    """An episode over the limit has a message of its own."""
    sampler = make_sampler(still, LargeEnv)
    chunks = list(sampler.stream(Episodes(0, 6)))
    assert all(chunk.n_episodes == 1 for chunk in chunks if chunk.n_bytes > 1.2 * MESSAGE_BYTES)
    assert list(range(6)) == list(dict.fromkeys(numbers_of(chunks)))
    batch = EpisodeBatch.from_chunks(sampler.env_spec, chunks)
    lefts = [left for seed in seeds(*range(6)) for left in range(20 if seed % 2 else 2, 0, -1)]
    assert lefts == batch.observations[:, 0].tolist() == batch.observations[:, -1].tolist()
    assert [left - 1 for left in lefts] == batch.env_infos["left"].tolist()
    assert (6, len(lefts)) == (sampler.next_number, sampler.total_env_steps)


# -- one a worker ------------------------------------------------------------------------------------------------------


def test_rejected_episodes_do_not_come(make_sampler: MakeSampler) -> None:
    """Large ones neither; those kept have their own numbers and seeds."""
    sampler = make_sampler(still, LargeEnv, keep="length > 2")
    chunks = list(sampler.stream(Episodes(0, NO_END, kept=2)))
    expected = [number for number in range(20) if seeds(number)[0] % 2][:2]
    assert expected == list(dict.fromkeys(numbers_of(chunks)))
    assert list(seeds(*expected)) == EpisodeBatch.from_chunks(sampler.env_spec, chunks).seeds.tolist()
    assert expected[-1] + 1 == sampler.next_number


def values(batch: EpisodeBatch) -> list[float]:
    """Return each episode's value of ConstantPolicy; it must not change within one."""
    found = [set(episode.agent_infos["value"].tolist()) for episode in batch.split()]
    assert all(len(one) == 1 for one in found)
    return [one.pop() for one in found]


@pytest.mark.parametrize(
    ("plan", "first"), [(MinTimesteps(60), 0), (Episodes(3, 12), 3), (Episodes(5, 6), 5)]
)
def test_lists_give_every_number_its_worker(make_sampler: MakeSampler, plan: Any, first: int) -> None:
    """With one policy a worker, episode i is worker i % n_workers', wherever the plan begins, and in order."""
    sampler = make_sampler([ConstantPolicy(0.0), ConstantPolicy(1.0)])
    chunks = list(sampler.stream(plan))
    numbers = numbers_of(chunks)
    assert list(range(first, first + len(numbers))) == numbers
    assert all((chunk.numbers % 2).tolist() == chunk.workers.tolist() for chunk in chunks)
    assert [float(number % 2) for number in numbers] == values(batch_of(sampler, chunks))


@pytest.mark.parametrize("entries", [0, 1, 3])
def test_lists_of_another_length_are_refused(backend: str, entries: int) -> None:
    """Policies, environments and updates come one a worker, or the call is refused."""
    refused = partial(raises, ValueError, "list-length", 2, entries)
    with refused():
        sampler_of(backend, [still] * entries)
    with refused():
        sampler_of(backend, still, [FaultyEnv] * entries)
    with sampler_of(backend, still) as sampler:
        with refused():
            sampler.obtain_samples(0, 10, [still] * entries)
        with refused():
            sampler.obtain_exact_episodes(1, None, [FaultyEnv()] * entries)


def test_three_ways_to_give_the_factory(backend: str) -> None:
    """By keyword, first (the older order), or through `from_worker_factory`: the sampler is the same."""
    factory = WorkerFactory(n_workers=3, seed=8, max_episode_length=9)
    kind = type(sampler_of(backend))
    made = [
        kind(still, FaultyEnv, worker_factory=factory),
        kind(factory, still, FaultyEnv),
        kind.from_worker_factory(factory, still, FaultyEnv),
    ]
    assert [(3, 8)] * 3 == [(sampler.n_workers, sampler.seed) for sampler in made]


# -- updates -----------------------------------------------------------------------------------------------------------


def test_a_policy_update_holds_from_its_call_on(make_sampler: MakeSampler) -> None:
    """Each call's episodes are taken under that call's policy or parameters, or else those of the call before."""
    sampler = make_sampler(ConstantPolicy(0.1))
    updates = [None, {"value": 0.2}, None, ConstantPolicy(0.3), {"value": 0.4}, None]
    found = [set(values(sampler.obtain_samples(call, 40, update))) for call, update in enumerate(updates)]
    assert [{0.1}, {0.2}, {0.2}, {0.3}, {0.4}, {0.4}] == found


def test_lists_of_parameters_go_one_to_each_worker(make_sampler: MakeSampler) -> None:
    """The first entry is worker 0's, and each keeps its own."""
    sampler = make_sampler(ConstantPolicy(0.1))
    for update in ([{"value": 0.5}, {"value": 0.6}], None):
        assert [0.5, 0.5, 0.6, 0.6] == values(sampler.obtain_exact_episodes(2, update))


def tasks(sampler: Sampler, env: Any = None, agent: Any = None) -> list[float]:
    """Return the task under which each worker ran one episode."""
    return [float(episode.rewards[0]) for episode in sampler.obtain_exact_episodes(1, agent, env).split()]


def test_env_updates_reach_every_worker_in_order(make_sampler: MakeSampler) -> None:
    """Updates that build on each other add up; one that replaces the environment begins anew."""
    sampler = make_sampler(still, TaskEnv())
    assert [0.0, 0.0] == tasks(sampler)
    assert [1.5, 1.5] == tasks(sampler, AddToTask(1.5))
    assert [1.5, 1.5] == tasks(sampler)
    assert [2.0, 3.5] == tasks(sampler, [AddToTask(0.5), AddToTask(2.0)])
    assert [7.0, 7.0] == tasks(sampler, SetTaskUpdate(TaskEnv, 7.0))
    assert [0.0, 0.0] == tasks(sampler, NewEnvUpdate(TaskEnv))
    task = TaskEnv()
    task.task = 9.0
    assert [9.0, 9.0] == tasks(sampler, ExistingEnvUpdate(task))


def test_restarted_workers_are_where_the_others_were(make_sampler: MakeSampler) -> None:
    """Workers that are started anew get the last whole policy, the parameters after it, and every update since."""
    sampler = make_sampler(ConstantPolicy(0.1), TaskEnv())
    tasks(sampler, AddToTask(1.0), ConstantPolicy(0.2))
    tasks(sampler, AddToTask(0.25), {"value": 0.3})
    sampler.shutdown_worker()
    batch = sampler.obtain_exact_episodes(1, None, AddToTask(0.5))
    assert ([0.3, 0.3], [1.75, 1.75]) == (values(batch), [float(one.rewards[0]) for one in batch.split()])


def test_an_environment_with_other_spaces(make_sampler: MakeSampler) -> None:
    """An update may bring other spaces: batches have them from then on."""
    sampler = make_sampler(still)
    sampler.obtain_samples(0, 20, None)
    batch = sampler.obtain_samples(1, 20, None, partial(FaultyEnv, space="image"))
    assert FaultyEnv(space="image").observation_space == batch.env_spec.observation_space
    assert (8, 6, 3) == batch.observations.shape[1:]


BAD_UPDATES: dict[str, tuple[Any, Any, type[RolloutError], str, str]] = {
    "environment": (None, NewEnvUpdate(unloadable), EnvLoadError, "env-build", "no pickle today"),
    "pickle": (Unloadable(), None, PolicyLoadError, "unpickle-failed", "no pickle today"),
    "no policy": (object(), None, PolicyLoadError, "policy-type", "object"),
    "parameters": ({"value": -1.0}, None, PolicyError, "policy-raised", "no such value"),
}


@pytest.mark.parametrize("name", BAD_UPDATES)
def test_an_update_that_fails_stays_until_it_is_replaced(make_sampler: MakeSampler, name: str) -> None:
    """A failed update fails its call and every later one that builds on it; no call runs on silently without it."""
    agent, env, kind, code, value = BAD_UPDATES[name]
    sampler = make_sampler(ConstantPolicy(0.1))
    sampler.obtain_samples(0, 20, None)
    for updates in ((agent, env), (None, None), (None, None)):
        with raises(kind, code, value) as caught:
            sampler.obtain_samples(0, 20, *updates)
        assert caught.value.hint or caught.value.details
    assert {0.2} == set(values(sampler.obtain_samples(0, 20, ConstantPolicy(0.2), FaultyEnv())))


# -- successive calls --------------------------------------------------------------------------------------------------


def test_two_calls_share_no_seed(make_sampler: MakeSampler) -> None:
    """A call begins where the one before ended: its numbers follow, and no seed is used twice."""
    sampler = make_sampler()
    batches = [
        sampler.obtain_samples(0, 100, None),
        sampler.obtain_exact_episodes(3, None),
        sampler.obtain_samples(1, 100, None),
    ]
    whole = EpisodeBatch.concatenate(*batches)
    assert list(range(len(whole))) == whole.numbers.tolist()
    assert len(whole) == len(set(whole.seeds.tolist())) == sampler.next_number
    assert int(whole.lengths.sum()) == sampler.total_env_steps
    again = batch_of(sampler, sampler.stream(Episodes(2, 5)))
    assert_same_batches(EpisodeBatch.concatenate(*whole.split()[2:5]), again)
    assert len(whole) == sampler.next_number


def test_a_stream_that_is_closed_early_is_over(make_sampler: MakeSampler) -> None:
    """Closing a stream ends its run; the next call begins after the highest number that was handed on."""
    sampler = make_sampler()
    stream = sampler.stream(MinTimesteps(100_000))
    taken = numbers_of([next(stream)])
    stream.close()
    batch = sampler.obtain_samples(0, 50, None)
    assert list(range(len(taken))) == taken
    assert_same_batches(serial(Episodes(len(taken), len(taken) + len(batch))), batch)


def test_a_stream_that_was_overtaken_says_so(make_sampler: MakeSampler) -> None:
    """A sampler runs one call at a time: an older stream raises when it is asked for more; the newer call is whole."""
    sampler = make_sampler()
    older = sampler.stream(MinTimesteps(100_000))
    first = next(older)
    batch = sampler.obtain_samples(0, 50, None)
    with raises(UsageError, "stream-overtaken"):
        next(older)
    assert first.n_episodes == batch.numbers[0]
    assert batch.numbers[-1] + 1 == sampler.obtain_samples(0, 50, None).numbers[0]


def test_asked_to_stop_a_stream_ends_with_a_prefix(make_sampler: MakeSampler) -> None:
    """`request_stop` ends the stream that runs with what is finished in order; the next call is not affected."""
    sampler = make_sampler()
    chunks: list[Chunk] = []
    for chunk in sampler.stream(MinTimesteps(100_000)):
        chunks.append(chunk)
        sampler.request_stop()
    numbers = numbers_of(chunks)
    assert numbers
    assert list(range(len(numbers))) == numbers
    assert 50 <= sampler.obtain_samples(0, 50, None).lengths.sum() < 57


def test_a_stop_before_the_start_leaves_the_last_update_in_force(make_sampler: MakeSampler) -> None:
    """The stream gives nothing, and the spaces are those of its update."""
    sampler = make_sampler(still, n_workers=1)
    sampler.start_worker()
    sampler.request_stop()
    assert [] == list(sampler.stream(Episodes(0, 5), env_update=partial(FaultyEnv, space="image")))
    assert FaultyEnv(space="image").observation_space == sampler.wait_until_started().observation_space


@PROCESSES
def test_workers_begin_the_plan_that_they_are_started_with(make_sampler: MakeSampler, tmp_path: Path) -> None:
    """They run while the caller does other things; what ended before an error comes before it all the same."""
    sampler, plan = make_sampler(still, faulty("raise", 1, signs=tmp_path), n_workers=1), MinTimesteps(10_000)
    sampler.start_worker(plan)
    while not list(tmp_path.iterdir()):
        time.sleep(0.002)
    assert FaultyEnv().observation_space == sampler.wait_until_started().observation_space
    chunks: list[Chunk] = []
    with raises(EnvError, "env-raised"):
        chunks.extend(sampler.stream(plan))
    assert [0] == numbers_of(chunks)


def test_another_plan_or_an_update_may_follow_the_start(make_sampler: MakeSampler) -> None:
    """What the workers have begun is then left."""
    plan = MinTimesteps(40)
    for then, update in ((Episodes(3, 6), None), (plan, partial(FaultyEnv, space="image"))):
        sampler = make_sampler(still)
        sampler.start_worker(plan)
        sampler.wait_until_started()
        batch = batch_of(sampler, list(sampler.stream(then, env_update=update)))
        assert_same_batches(serial(then, still, update or FaultyEnv), batch)


def test_a_pickled_sampler_continues_where_the_first_one_stood(make_sampler: MakeSampler) -> None:
    """A copy keeps numbering, seed and every update; its workers are its own."""
    sampler = make_sampler(ConstantPolicy(0.1))
    sampler.obtain_samples(0, 60, {"value": 0.3})
    with pickle.loads(pickle.dumps(sampler)) as copy:
        assert (sampler.next_number, sampler.total_env_steps) == (copy.next_number, copy.total_env_steps)
        theirs = copy.obtain_samples(1, 60, None)
    assert_same_batches(sampler.obtain_samples(1, 60, None), theirs)
    assert {0.3} == set(values(theirs))


def test_leaving_the_block_ends_the_workers(backend: str) -> None:
    """A `with` block ends with no worker left; a call after it starts new ones."""
    with sampler_of(backend) as sampler:
        first = sampler.obtain_samples(0, 50, None)
        assert (2 if backend == "forkserver" else 0) == len(workers_below_us())
    assert [] == workers_below_us()
    second = sampler.obtain_samples(0, 50, None)
    sampler.shutdown_worker()
    assert [] == workers_below_us()
    assert first.numbers[-1] + 1 == second.numbers[0]


def test_shutting_down_in_the_middle_of_a_stream(make_sampler: MakeSampler) -> None:
    """A stream whose workers were shut down can be closed; the sampler works again."""
    sampler = make_sampler()
    stream = sampler.stream(MinTimesteps(100_000))
    next(stream)
    sampler.shutdown_worker()
    stream.close()
    assert 50 <= sampler.obtain_samples(0, 50, None).lengths.sum() < 57


# -- errors ------------------------------------------------------------------------------------------------------------

FAILING = (0, 3, 4, 10)


@pytest.mark.parametrize(("when", "n_envs"), [("step", 1), ("step", 3), ("reset", 1)])
def test_errors_of_user_code(make_sampler: MakeSampler, when: str, n_envs: int) -> None:
    """The error names worker, episode, seed and step in one line, and holds the user's traceback and a hint."""
    sampler = make_sampler(still, faulty("raise", 6, when=when), **VECTORISED[n_envs])
    with raises(EnvError, "env-raised", f"env.{when}", "ValueError: the simulator is broken") as caught:
        sampler.obtain_samples(0, 1000, None)
    step = 0 if when == "reset" else 2
    found = re.fullmatch(r"worker [01], episode 6, seed (\d+), step (\d+)", caught.value.place)
    assert found is not None
    assert (str(seeds(6)[0]), str(step)) == found.groups()
    assert caught.value.hint
    assert "ValueError: the simulator is broken" in caught.value.details
    assert "rollout_cli/samplers" not in caught.value.details
    handed_on = sampler.next_number
    assert 6 >= handed_on
    assert handed_on == sampler.obtain_samples(0, 50, None, FaultyEnv()).numbers[0]


def test_finished_episodes_come_before_the_error(make_sampler: MakeSampler) -> None:
    """A stream hands on the episodes that ended in order before it raises."""
    sampler = make_sampler(still, faulty("raise", 7), n_workers=1)
    chunks: list[Chunk] = []
    with raises(EnvError, "env-raised"):
        chunks.extend(sampler.stream(MinTimesteps(10_000)))
    assert list(range(7)) == numbers_of(chunks)
    assert 7 == sampler.next_number


@pytest.mark.parametrize("verb", ["obtain_samples", "wait_until_started"])
def test_an_environment_that_cannot_be_built(make_sampler: MakeSampler, verb: str) -> None:
    """The factory's own error is reported, wherever the workers are first needed, and again when it is tried again."""
    sampler = make_sampler(still, unloadable)
    for _ in range(2):
        with raises(EnvLoadError, "env-build"):
            sampler.obtain_samples(0, 10, None) if verb == "obtain_samples" else sampler.wait_until_started()
    assert 0 == sampler.obtain_samples(0, 10, None, FaultyEnv()).numbers[0]


def test_workers_whose_environments_differ(make_sampler: MakeSampler) -> None:
    """They would be recorded as one; which one, the worker that started first would decide."""
    image = partial(FaultyEnv, space="image")
    with raises(EnvLoadError, "worker-spaces"):
        make_sampler(still, [FaultyEnv, image]).obtain_exact_episodes(1, None)
    sampler = make_sampler(still)
    with raises(EnvLoadError, "worker-spaces"):
        sampler.obtain_exact_episodes(1, None, [image(), FaultyEnv()])
    assert image().observation_space == sampler.obtain_samples(0, 9, None, image()).env_spec.observation_space


def test_an_environment_that_cannot_be_closed(make_sampler: MakeSampler) -> None:
    """The episodes are safe, so it is no error."""
    sampler = make_sampler(still, faulty("raise", when="close"))
    assert 20 <= sampler.obtain_samples(0, 20, None).lengths.sum() < 27
    sampler.shutdown_worker()


EXCEPTIONS = {
    "raise odd": OddError.__name__,
    "raise unpicklable": "LocalError",
    "raise 10 MB": "ValueError",
    "memory": "MemoryError",
    "recurse": "RecursionError",
    "sys.exit 0": "SystemExit",
}


@pytest.mark.parametrize("what", EXCEPTIONS)
def test_any_exception_becomes_an_error_of_ours(make_sampler: MakeSampler, what: str) -> None:
    """Whatever user code raises ends the call with one line that names it, and leaves no worker behind."""
    sampler = make_sampler(still, faulty(what, 3), supervision=Supervision(max_worker_restarts=2))
    with pytest.raises(RolloutError) as caught:
        sampler.obtain_samples(0, 100, None)
    assert not isinstance(caught.value, InternalError)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 1000
    assert len(caught.value.details) < 50_000
    assert EXCEPTIONS[what] in caught.value.message


@pytest.mark.parametrize(("n_envs", "what"), [(1, "raise"), (3, "reward nan")])
def test_episodes_that_fail_are_run_again(
    make_sampler: MakeSampler, n_envs: int, what: str, tmp_path: Path
) -> None:
    """In a worker that is built anew they give what they would have given; each failure is a warning."""
    env = faulty(what, *FAILING, signs=tmp_path, times=3)
    warnings: list[str] = []
    supervision = Supervision(on_env_error="retry")
    sampler = make_sampler(still, env, supervision=supervision, warn=warnings.append, **VECTORISED[n_envs])
    assert_same_batches(serial(MinTimesteps(200), still), sampler.obtain_samples(0, 200, None))
    assert 3 == len(list(tmp_path.iterdir()))
    assert 1 <= len(warnings) <= 3 + n_envs
    assert all("rerunning" in text for text in warnings)
    assert {} == sampler.skipped


def test_an_episode_that_always_fails_ends_the_call(make_sampler: MakeSampler) -> None:
    """It is run again three times; the error says so, and comes after the episodes before it."""
    sampler = make_sampler(
        still, faulty("raise", 3), supervision=Supervision(on_env_error="retry"), n_workers=1
    )
    with raises(EnvError, "env-raised") as caught:
        sampler.obtain_samples(0, 200, None)
    assert "episode 3 failed 4 times" in caught.value.hint
    assert 3 == sampler.next_number


@pytest.mark.parametrize(("verb", "what"), [("samples", "raise"), ("exact", "reward nan")])
@each_width
def test_episodes_that_fail_are_skipped(make_sampler: MakeSampler, n_envs: int, verb: str, what: str) -> None:
    """Exactly these are missing, and are named with their reasons; they count as no steps."""
    env = faulty(what, *FAILING)
    sampler = make_sampler(still, env, supervision=Supervision(on_env_error="skip"), **VECTORISED[n_envs])
    batch = (
        sampler.obtain_samples(0, 200, None) if verb == "samples" else sampler.obtain_exact_episodes(11, None)
    )
    assert set(FAILING) == set(sampler.skipped)
    assert all(re.search("simulator is broken|reward", reason) for reason in sampler.skipped.values())
    last = 22 if verb == "exact" else int(batch.numbers[-1]) + 1
    good = [
        episode for episode in serial(Episodes(0, last), still).split() if episode.numbers[0] not in FAILING
    ]
    assert_same_batches(EpisodeBatch.concatenate(*good), batch)
    assert last == sampler.next_number
    assert verb == "exact" or 200 <= batch.lengths.sum() < 207
    sampler.obtain_exact_episodes(1, None)
    assert {} == sampler.skipped


def test_a_policy_that_always_raises_ends_the_run(
    make_sampler: MakeSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every episode is skipped, the call fails in the end."""
    monkeypatch.setenv("ROLLOUT_TEST_POLICY", '{"what": "raise"}')
    monkeypatch.setattr("rollout_cli.samplers.supervision.MOST_SKIPPED", 10)
    sampler = make_sampler(FaultyPolicy(), supervision=Supervision(on_env_error="skip"))
    with raises(PolicyError, "too-many-skipped"):
        sampler.obtain_samples(0, 100, None)


# -- the caller's process ----------------------------------------------------------------------------------------------


def test_the_callers_generators_stay_its_own(make_sampler: MakeSampler) -> None:
    """Episodes draw from global generators; the caller's numbers are those of a program without sampling."""
    np.random.seed(3)
    expected = np.random.random(4).tolist()
    np.random.seed(3)
    sampler = make_sampler()
    found = [float(np.random.random())]
    sampler.wait_until_started()
    found.append(float(np.random.random()))
    sampler.obtain_samples(0, 50, None)
    found.append(float(np.random.random()))
    sampler.shutdown_worker()
    assert expected == [*found, float(np.random.random())]


@PROCESSES
def test_an_interrupt_that_user_code_raises_is_its_error(make_sampler: MakeSampler) -> None:
    """Ctrl-C is left to the sampler's process, so none that comes up in a worker is the user's."""
    with raises(EnvError, "env-raised", "KeyboardInterrupt"):
        make_sampler(still, faulty("interrupt", 3)).obtain_samples(0, 100, None)
