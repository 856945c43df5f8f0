"""`openpi:` against the server of the real package, which pins numpy 1: chunks, rows, errors, and a killed server."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openpi_client.websocket_client_policy import WebsocketClientPolicy

import rollout_cli
from tests.faults.meddling import committed
from tests.gallery.openpi_server import chunk_of
from tests.helpers.datasets import assert_same_data, source_of
from tests.helpers.processes import ROOT, called, running

QUERY = "n_action_steps=4&key.observation/state=."
ENV = ("--env", "Pendulum-v1", "--seed", "5", "--quiet")


@contextlib.contextmanager
def serving(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    program = [sys.executable, "-m", "tests.gallery.openpi_server", str(port)]
    process = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, f"ws://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as (_, address):
        yield address


def expected(observations: Any, prompt: str = "") -> Any:
    """Return the actions of an episode: the first four of the chunk of each fourth observation."""
    chunks = [chunk_of(observation, prompt)[:4] for observation in observations[::4]]
    return np.concatenate(chunks)[: len(observations)]


@pytest.mark.parametrize("more", [("--workers", "2"), ("--workers", "1", "--envs-per-worker", "4")])
def test_four_actions_of_each_chunk_are_taken(url: str, tmp_path: Path, more: tuple[str, ...]) -> None:
    """With the prompt of the SPEC; the actions are those of the package's own client, too."""
    policy = f"openpi:{url}?{QUERY}&prompt=swing%20up"
    called("collect", "--policy", policy, "--episodes", "6", *ENV, *more, "--output", tmp_path / "out")
    dataset = rollout_cli.load(tmp_path / "out")
    for episode in dataset:
        np.testing.assert_array_equal(expected(episode.observations, "swing up"), episode.actions)
    with warnings.catch_warnings():  # Of its use of websockets.
        warnings.simplefilter("ignore")
        client = WebsocketClientPolicy(url)
    first = {"observation/state": dataset[0].observations[0], "prompt": "swing up"}
    np.testing.assert_array_equal(client.infer(first)["actions"][:4], dataset[0].actions[:4])
    client._ws.close()
    source = source_of(tmp_path / "out")
    assert "unknown" == source["reproducible"]["status"]
    assert url == source["policy"]["path"]


def test_a_server_that_is_killed_and_started_again(tmp_path: Path) -> None:
    """The run ends with one line; the resume gives the bytes of a run without the kill."""
    with serving() as (server, address):
        port = int(address.rpartition(":")[2])
        options = ("--workers", "2", "--flush-every", "0.05")
        words = ["collect", "--policy", f"openpi:{address}?{QUERY}", *ENV, *options]
        called(*words, "--episodes", "150", "--output", tmp_path / "whole")
        with running([*words, "--episodes", "150", "--output", str(tmp_path / "out")]) as run:
            run.wait_until(lambda: committed(tmp_path))
            server.kill()
            ran = run.end()
    assert (3, ()) == (ran.code, ran.left), ran.said
    assert "[server-lost]" in ran.stderr
    ran = called("collect", "--resume", "--episodes", "150", "--output", tmp_path / "out", code=3)
    assert "[server-unreachable]" in ran.stderr
    with serving(port):
        called("collect", "--resume", "--episodes", "150", "--output", tmp_path / "out")
    assert_same_data(tmp_path / "whole", tmp_path / "out")


@pytest.mark.parametrize(
    ("prompt", "code"), [("raise", "policy-raised"), ("shape", "value-shape"), ("nothing", "openpi-actions")]
)
def test_an_answer_that_is_none_is_one_error(url: str, tmp_path: Path, prompt: str, code: str) -> None:
    policy = f"openpi:{url}?{QUERY}&prompt={prompt}"
    ran = called("collect", "--policy", policy, "--episodes", "2", *ENV, "--output", tmp_path / "out", code=3)
    assert f"[{code}]" in ran.stderr
    assert not (tmp_path / "out").exists()


def test_another_kind_of_server_is_named(url: str, tmp_path: Path) -> None:
    words = ("--episodes", "2", *ENV, "--output", tmp_path / "out")
    assert "[server-protocol]" in called("collect", "--policy", f"serve:{url}", *words, code=3).stderr
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
    missing = f"openpi:ws://127.0.0.1:{port}?{QUERY}"
    assert "[server-unreachable]" in called("collect", "--policy", missing, *words, code=3).stderr
