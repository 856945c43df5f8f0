"""RaySampler on simulated nodes: the bytes of one machine, also where a node dies; and a driver without data."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from rollout_cli import Episodes, MinTimesteps, RaySampler, Supervision, evaluate
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.chunk import ChunkRef
from rollout_cli.errors import UsageError, WorkerError
from tests.helpers.batches import assert_same_batches
from tests.helpers.datasets import assert_same_data, has_commit, info_of, source_of
from tests.helpers.envs import FaultyEnv
from tests.helpers.errors import raises
from tests.helpers.processes import Running, marked, rollout, running
from tests.helpers.sampled import act, still
from tests.helpers.sampling import batch_of, faulty, sampler_of, serial
from tests.helpers.servers import fetched, s3_server


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head that runs no worker; this process is connected to it."""
    ray.shutdown()
    simulated = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    ray.init(address=simulated.address, logging_level="ERROR", log_to_driver=False)
    yield simulated
    ray.shutdown()
    simulated.shutdown()


def node_of(cluster: Cluster) -> Any:
    """Add a node for one worker."""
    return cluster.add_node(num_cpus=1)


COLLECT = ("collect", "--timesteps", "400000", "--seed", "3", "--segment-bytes", "2000000", "--quiet")


def test_a_node_dies_in_the_middle_of_a_run(cluster: Cluster, tmp_path: Path) -> None:
    """What it had run, and what lay in its memory, is run again: the dataset is that of one local worker."""
    nodes = [node_of(cluster) for _ in range(3)]
    one, many = tmp_path / "one", tmp_path / "many"
    where = ("--sampler", "ray", "--ray-address", cluster.address)
    with running([*COLLECT, *where, "--workers", "3", "--output", str(many)]) as run:
        run.wait_until(lambda: has_commit(many))
        cluster.remove_node(nodes[0], allow_graceful=False)
        node_of(cluster)
        ran = run.end()
    assert 0 == ran.code, ran.said
    assert "was lost" in ran.stderr, ran.said
    rollout(*COLLECT, "--sampler", "local", "--workers", "1", "--output", one)
    assert_same_data(one, many)


def test_an_evaluation_is_that_of_local_workers(cluster: Cluster) -> None:
    """Two policies, one after the other, on workers of two nodes."""
    for _ in range(2):
        node_of(cluster)
    policies = ["random", "constant:1"]
    where = {"sampler": "ray", "ray_address": cluster.address, "workers": 2}
    remote = evaluate(policies, "CartPole-v1", episodes=20, seed=0, **where)
    local = evaluate(policies, "CartPole-v1", episodes=20, seed=0, sampler="local")
    np.testing.assert_array_equal(local.returns, remote.returns)
    np.testing.assert_array_equal(local.lengths, remote.lengths)


def test_what_a_dead_node_kept_is_run_again(cluster: Cluster) -> None:
    """Chunks that were handed on as references, and lay in the memory of a node that died since."""
    node = node_of(cluster)
    with sampler_of("ray", act, partial(FaultyEnv, space="image"), n_workers=1) as sampler:
        stream = sampler.stream_refs(MinTimesteps(20_000))
        chunks = list(stream)
        assert all(isinstance(chunk, ChunkRef) for chunk in chunks)
        cluster.remove_node(node, allow_graceful=False)
        loaded = [chunk.load() for chunk in chunks]
        assert_same_batches(
            serial(MinTimesteps(20_000), act, partial(FaultyEnv, space="image")), batch_of(sampler, loaded)
        )


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _node_at_last(mark: Path) -> str:
    """Return the node, but end the process the first time."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _node()


def test_segments_for_a_bucket_are_written_on_another_node(cluster: Cluster, tmp_path: Path) -> None:
    """Where there is one; those for a folder are written on the driver's."""
    with sampler_of("ray", act, n_workers=1) as sampler:
        assert _node() == sampler.segment_runner().run(_node, needs_folder=False)
    node = node_of(cluster)
    with sampler_of("ray", act, n_workers=1) as sampler:
        assert _node() == sampler.segment_runner().run(_node)
    with sampler_of("ray", act, n_workers=1) as sampler:
        assert node.node_id == sampler.segment_runner().run(_node, needs_folder=False)
    local = tmp_path / "local"
    with s3_server() as (at, _):
        where = ("--sampler", "ray", "--ray-address", cluster.address, "--workers", "1", "--output", at("d"))
        rollout("collect", "--timesteps", "20000", "--seed", "3", "--segment-bytes", "100000", *where)
        rollout(
            "collect", "--timesteps", "20000", "--seed", "3", "--segment-bytes", "100000", "--output", local
        )
        assert_same_data(local, fetched(at("d"), tmp_path / "copy"))


def _dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_call_that_is_lost_runs_again_on_this_node(cluster: Cluster, tmp_path: Path) -> None:
    """With its process or its node; one that never comes to its end is given up."""
    with sampler_of("ray", act, n_workers=1) as sampler:
        assert _node() == sampler.segment_runner().run(_node_at_last, tmp_path / "here")
    node = node_of(cluster)
    with sampler_of("ray", act, n_workers=1) as sampler:
        assert _node() == sampler.segment_runner().run(_node_at_last, tmp_path / "there", needs_folder=False)
    with sampler_of("ray", act, n_workers=1) as sampler:
        runner = sampler.segment_runner()
        assert node.node_id == runner.run(_node, needs_folder=False)
        cluster.remove_node(node, allow_graceful=False)
        assert _node() == runner.run(_node_at_last, tmp_path / "gone", needs_folder=False)
        with raises(WorkerError, "ray-call"):
            runner.run(_dies)


class TextsEnv(FaultyEnv):
    """Its rewards are in the order of a set of texts."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float(next(iter({str(number) for number in range(99)}))), *rest


def test_sets_of_texts_have_one_order(cluster: Cluster) -> None:
    """In actors, and where a segment is written, as in the worker processes of a machine."""
    node_of(cluster)
    with sampler_of("forkserver", still, TextsEnv) as sampler:
        expected = batch_of(sampler, sampler.stream(Episodes(0, 4)))
    with sampler_of("ray", still, TextsEnv) as sampler:
        assert_same_batches(expected, batch_of(sampler, sampler.stream(Episodes(0, 4))))
        (chunk,) = sampler.stream_refs(Episodes(4, 5))
        again = sampler.segment_runner().run(_rewards_again, chunk)
        assert {expected.rewards[0]} == set(again)


def _rewards_again(chunk: ChunkRef) -> Any:
    return chunk.source._run_again(ray.get(chunk.source.recipe)).rewards  # type: ignore[attr-defined]


class UnseededEnv(FaultyEnv):
    """Its episodes end by chance."""

    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, os.urandom(1)[0] < 64, truncated, info


def test_lost_episodes_that_cannot_be_repeated(cluster: Cluster) -> None:
    """They are never replaced by others without a word."""
    node = node_of(cluster)
    with sampler_of("ray", still, partial(UnseededEnv, space="image"), n_workers=1) as sampler:
        chunks = list(sampler.stream_refs(MinTimesteps(20_000)))
        cluster.remove_node(node, allow_graceful=False)
        with raises(WorkerError, "episodes-lost"):
            _ = [chunk.load() for chunk in chunks]


def test_the_driver_sees_no_data(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What its replies hold is under 1 % of the data, for the shortest episodes, which have most facts a byte."""
    # A slow machine takes more turns for the same data, and each reply has its own bytes.
    monkeypatch.setattr("rollout_cli.samplers.ray.pool.TURN_SECONDS", 1.0)
    node_of(cluster)
    seen: list[int] = []
    get = ray.get

    def counting(what: Any, **options: Any) -> Any:
        value = get(what, **options)
        seen.append(len(value) if isinstance(value, bytes) else 0)
        return value

    monkeypatch.setattr(ray, "get", counting)
    with sampler_of("ray", "random", "CartPole-v1", n_workers=1) as sampler:
        collected = sum(chunk.n_bytes for chunk in sampler.stream_refs(MinTimesteps(500_000)))
    assert sum(seen) < 0.01 * collected, (sum(seen), collected)


def test_a_ray_that_runs_is_joined_and_left_alone(cluster: Cluster) -> None:
    """A sampler that ends leaves the connection, the cluster and other actors."""
    node_of(cluster)
    with sampler_of("ray", still, n_workers=1) as sampler:
        sampler.obtain_samples(0, 50, None)
    assert ray.is_initialized()
    assert 7 == ray.get(ray.put(7))


def test_a_stuck_step_and_a_kill_end_their_worker(tmp_path: Path) -> None:
    """The worker is replaced, and no episode changes."""
    supervision = Supervision(step_timeout=2.0)
    for what in ("hang", "kill"):
        signs = tmp_path / what
        signs.mkdir()
        env = faulty(what, 6, times=1, signs=signs)
        warnings: list[str] = []
        with sampler_of("ray", still, env, supervision=supervision, warn=warnings.append) as sampler:
            assert_same_batches(
                serial(Episodes(0, 12), still), batch_of(sampler, sampler.stream(Episodes(0, 12)))
            )
        told = "was killed, because a step took longer than 2 s" if what == "hang" else "was lost"
        assert any(told in warning for warning in warnings), warnings


def test_what_a_cluster_cannot_give(cluster: Cluster) -> None:
    """Workers that it has no place for would wait for ever."""
    node_of(cluster)
    with raises(UsageError, "ray-resources", "9 CPU"):
        RaySampler(still, FaultyEnv, n_workers=9).start_worker()


class Holder:
    """An actor that holds what it reserves."""

    def ready(self) -> bool:
        return True


def test_workers_without_a_place_are_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """While others hold the cores, one warning says what the workers wait for; they start once these are free."""
    monkeypatch.setattr("rollout_cli.samplers.ray.pool.PLACE_SECONDS", 0.5)
    node_of(cluster)
    holder = ray.remote(num_cpus=1)(Holder).remote()
    assert ray.get(holder.ready.remote())
    warnings: list[str] = []

    def warned(text: str) -> None:
        warnings.append(text)
        ray.kill(holder)

    with RaySampler(still, FaultyEnv, n_workers=1, seed=5, warn=warned) as sampler:
        batch = sampler.obtain_samples(0, 50, None)
    assert_same_batches(serial(MinTimesteps(50), still), batch)
    assert [
        "1 of 1 workers have not started after 0.5 s; still waiting: 0 of 1 CPUs of the Ray cluster are free"
    ] == warnings


@pytest.mark.parametrize("connects", [False, True])
def test_a_connection_that_the_caller_ends(cluster: Cluster, connects: bool) -> None:
    """The next call says so and begins no Ray of its own, also where the caller has connected again.

    The call after it starts new workers, and no episode is missing.
    """
    node_of(cluster)
    with sampler_of("ray", still, n_workers=1, address=cluster.address) as sampler:
        batches = [sampler.obtain_samples(0, 50, None)]
        ray.shutdown()
        if connects:
            ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        with raises(WorkerError, "ray-disconnected") as caught:
            sampler.obtain_samples(1, 50, None)
        assert caught.value.hint
        assert connects == ray.is_initialized()
        batches.append(sampler.obtain_samples(1, 50, None))
    expected = serial(Episodes(0, int(batches[-1].numbers[-1]) + 1), still)
    assert_same_batches(expected, EpisodeBatch.concatenate(*batches))


def test_a_connection_that_ends_under_a_stream(cluster: Cluster) -> None:
    """The stream raises, and never waits for workers that nobody can reach."""
    node_of(cluster)
    with sampler_of("ray", still, n_workers=1, address=cluster.address) as sampler:
        stream = sampler.stream_refs(MinTimesteps(10_000_000))
        next(stream)
        ray.shutdown()
        with raises(WorkerError, "ray-disconnected"):
            list(stream)


def test_nobody_at_the_address(tmp_path: Path) -> None:
    """It is one line, and no dataset is left."""
    where = ("--sampler", "ray", "--ray-address", "127.0.0.1:1", "--output", tmp_path / "out")
    ran = rollout("collect", "--episodes", "1", *where, code=4)
    assert all(part in ran.stderr for part in ("127.0.0.1:1", "[ray-address]"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["LunarLander-v3", "HalfCheetah-v5", "tests.gallery.worlds:pong"])
def test_worlds(name: str, tmp_path: Path) -> None:
    """Real environments give the bytes of a local run, flushed as often as can be."""
    for sampler in ("local", "ray"):
        limits = (
            "--timesteps",
            "300",
            "--max-episode-length",
            "60",
            "--workers",
            "2",
            "--flush-every",
            "0.01",
        )
        words = ("--env", name, *limits, "--seed", "3", "--sampler", sampler, "--output", tmp_path / sampler)
        rollout("collect", *words, "--cpus-per-worker", "0.5")
    assert_same_data(tmp_path / "local", tmp_path / "ray")
    assert "yes" == source_of(tmp_path / "ray")["reproducible"]["status"]


def test_a_signal_ends_a_run_on_ray(tmp_path: Path) -> None:
    """As everywhere: what was finished is committed, and the exit code is the signal's."""
    output = tmp_path / "out"
    words = [
        "collect",
        "--timesteps",
        "100000000",
        "--sampler",
        "ray",
        "--flush-every",
        "0.01",
        "--output",
        str(output),
    ]
    with running(words) as run:
        run.wait_until(lambda: has_commit(output))
        run.process.send_signal(signal.SIGTERM)
        ran = run.end()
    assert 143 == ran.code, ran.said
    assert "interrupted" == info_of(output)["status"]


def names(run: Running) -> set[str]:
    """Return the names of the processes of a run."""
    found = set()
    for process in marked(run.mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.add(process.name())
    return found


@pytest.mark.parametrize("moment", ["gcs_server", "raylet"])
def test_an_interrupt_while_ray_starts(moment: str, tmp_path: Path) -> None:
    """It is an interrupted run, and no fault of the cluster's; no process of Ray is left, and no dataset."""
    words = ["collect", "--episodes", "3000", "--sampler", "ray", "--output", str(tmp_path / "out")]
    with running(words) as run:
        run.wait_until(lambda: moment in names(run))
        run.process.send_signal(signal.SIGINT)
        ran = run.end()
    assert 130 == ran.code, ran.said
    assert re.search(r"^rollout: error: .*SIGINT.*\[interrupted\]", ran.stderr, re.MULTILINE), ran.said
    assert () == ran.left, ran.said
    assert not (tmp_path / "out").exists()


def test_a_sigterm_while_ray_starts(tmp_path: Path) -> None:
    """It is a terminated run, though Ray handles the signal itself by then."""
    with running(
        ["collect", "--episodes", "3000", "--sampler", "ray", "--output", str(tmp_path / "out")]
    ) as run:
        run.wait_until(lambda: "gcs_server" in names(run))
        run.process.send_signal(signal.SIGTERM)
        ran = run.end()
    assert 143 == ran.code, ran.said
    assert re.search(r"^rollout: error: .*SIGTERM.*\[terminated\]", ran.stderr, re.MULTILINE), ran.said
    assert not (tmp_path / "out").exists()
