"""Datasets on the Hugging Face Hub: `rollout push` and `hf://` by the real library, with a server of the Hub's API."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

from rollout_cli import load
from rollout_cli.errors import StorageError, UsageError
from rollout_cli.run.push import push
from rollout_cli.sources import hub as sources
from rollout_cli.sources import remote
from rollout_cli.sources.remote import folder_of
from tests.helpers.errors import raises
from tests.helpers.hub import TOKEN, Hub, Repository, hub_server
from tests.helpers.processes import called, rollout

# The library passes a file as `data` to its HTTP client.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

COLLECT = ("collect", "--sampler", "local", "--segment-bytes", "20000", "--quiet")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub of the test's own, which the library of this process uses too."""
    with hub_server() as server:
        for name, value in server.variables().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        )
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        remote._connect.cache_clear()
        yield server
    remote._connect.cache_clear()


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "d"
    called(*COLLECT, "--timesteps", "2000", "--seed", "3", "--output", folder)
    return folder


@pytest.fixture
def local(collected: Path, tmp_path: Path) -> Path:
    """A dataset of several segments that the test may change."""
    return Path(shutil.copytree(collected, tmp_path / "d"))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def stored(hub: Hub, name: str, revision: str = "main") -> dict[str, bytes]:
    """Return the files of a repository, without the one that each has."""
    files = dict(hub.repositories[name].files(revision) or {})
    assert files.pop(".gitattributes")
    return files


def test_a_pushed_dataset_is_read_by_its_uri(hub: Hub, local: Path) -> None:
    """In another process, as users do, and here; all that was uploaded is one commit."""
    assert len(list(local.glob("data/*/*"))) > 2
    pushed = rollout("push", local, "me/d")
    assert f"pushed    {hub.address}/datasets/me/d\nload      hf://datasets/me/d\n" in pushed.stdout
    assert contents(local) == stored(hub, "me/d")
    episodes = len(load(local))
    assert ["initial commit", f"Push {episodes} episodes by rollout"] == hub.repositories["me/d"].messages
    assert f'"episodes": {episodes}' in rollout("info", "hf://datasets/me/d", "--json").stdout
    verified = called("verify", "hf://datasets/me/d").stdout
    assert "notes     0" in verified
    there, here = (load(path).to_episode_batch() for path in ("hf://datasets/me/d", local))
    for name in ("observations", "actions", "rewards", "lengths"):
        assert np.array_equal(getattr(here, name), getattr(there, name))
    called("replay", "--trust", "hf://datasets/me/d", "--episodes", "1")
    called("diff", "hf://datasets/me/d", local)


def test_one_episode_needs_only_its_part_of_a_file(hub: Hub, tmp_path: Path) -> None:
    called(*COLLECT[:3], "--timesteps", "400000", "--seed", "1", "--quiet", "--output", tmp_path / "d")
    push(tmp_path / "d", "me/d")
    load("hf://datasets/me/d")[3].observations  # noqa: B018 - it reads
    (file,) = (tmp_path / "d").glob("data/*/*")
    (sent,) = (n_bytes for path, n_bytes in hub.sent.items() if "/data/" in path)
    assert 0 < sent < file.stat().st_size / 2


def test_a_branch_and_a_folder_of_a_repository(hub: Hub, local: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    called(*COLLECT, "--episodes", "4", "--seed", "9", "--output", other)
    push(local, "me/d")
    summary = push(other, "me/d", revision="feature/x")
    assert summary.address == f"{hub.address}/datasets/me/d/tree/feature%2Fx"
    assert summary.uri == "hf://datasets/me/d@feature%2Fx"
    assert summary.commit == hub.repositories["me/d"].branches["feature/x"]
    assert 4 == len(load(summary.uri)) == summary.episodes
    assert 4 == len(load(f"hf://datasets/me/d@{summary.commit}"))
    assert len(load(local)) == len(load("hf://datasets/me/d"))
    files = {f"suite/{name}": data for name, data in contents(other).items()}
    hub.repositories["me/all"] = Repository(is_private=False)
    hub.repositories["me/all"].commit("main", "x", files)
    assert 4 == len(load("hf://datasets/me/all/suite"))
    assert "suite" in called("list", "hf://datasets/me/all").stdout


def test_a_second_push_replaces_the_first(
    hub: Hub, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of it stays that the new dataset lacks, the user's files stay, and no listing is kept for ever."""
    monkeypatch.setattr(sources, "_LISTED_SECONDS", 0.0)
    push(local, "me/d")
    hub.repositories["me/d"].commit(
        "main", "y", {**stored(hub, "me/d"), "notes.txt": b"mine", ".gitattributes": b"x"}
    )
    assert len(load(local)) == len(load("hf://datasets/me/d"))
    called(*COLLECT, "--episodes", "4", "--seed", "9", "--output", tmp_path / "other")
    for _ in range(2):  # The second time nothing has changed, and there is no commit.
        push(tmp_path / "other", "me/d")
        assert {**contents(tmp_path / "other"), "notes.txt": b"mine"} == stored(hub, "me/d")
        assert 4 == len(hub.repositories["me/d"].messages)
    assert 4 == len(load("hf://datasets/me/d"))


def test_the_card_is_written_if_it_is_missing_and_kept_if_it_is_not(hub: Hub, local: Path) -> None:
    (local / "README.md").write_text("---\npretty_name: mine\n---\n")
    push(local, "me/d")
    assert b"---\npretty_name: mine\n---\n" == stored(hub, "me/d")["README.md"]
    (local / "README.md").unlink()
    push(local, "me/d")
    assert b"Episodes of CartPole-v1" in stored(hub, "me/d")["README.md"]


def test_files_of_the_user_are_not_pushed(hub: Hub, local: Path) -> None:
    before = contents(local)
    for name in (".lock", "key.txt", "data/.file.tmp", ".repair-1/data"):
        (local / name).parent.mkdir(exist_ok=True)
        (local / name).write_text("secret")
    push(local, "me/d")
    assert before == stored(hub, "me/d")


def test_a_private_repository_needs_the_token(hub: Hub, local: Path) -> None:
    ran = called("push", local, "me/d", "--private", "--json")
    assert {"address", "uri", "commit", "episodes"} == json.loads(ran.stdout).keys()
    assert hub.repositories["me/d"].is_private
    called("verify", "hf://datasets/me/d")
    remote._connect.cache_clear()
    refused = called("info", "hf://datasets/me/d", env={"HF_TOKEN": "another"}, code=5)
    assert "[bucket-missing]" in refused.stderr
    assert "HF_TOKEN" in refused.stderr
    hub.repositories["me/e"] = Repository(is_private=False)
    hub.repositories["me/e"].commit("main", "x", {})
    with raises(UsageError, "push-public", "me/e"):
        push(local, "me/e", private=True)
    assert {} == hub.repositories["me/e"].files("main")


@pytest.mark.parametrize(
    "refused",
    [
        ({}, "me/d", "another", "hf auth login"),
        ({}, "me/d", "", "hf auth login"),
        ({}, "others/d", TOKEN, "OWNER"),
        ({"POST .*/branch/b$": 404}, "me/d", TOKEN, "branch"),
        ({"POST .*/commit/b$": 500}, "me/d", TOKEN, "HF_ENDPOINT"),
        ({"PUT /lfs/": 400}, "me/d", TOKEN, "HF_ENDPOINT"),
        ({}, "me/d--e", TOKEN, "OWNER/NAME"),
    ],
    ids=["401", "no token", "403", "404", "500", "upload", "name"],
)
def test_a_refused_push_is_one_line(
    hub: Hub, local: Path, refused: tuple[dict[str, int], str, str, str]
) -> None:
    hub.answers, repository, token, hint = refused
    ran = called("push", local, repository, "--revision", "b", "--quiet", env={"HF_TOKEN": token}, code=5)
    assert "" == ran.stdout
    line, second = ran.stderr.splitlines()[
        -2:
    ]  # Progress bars stand above, in a process that has shown some before.
    assert line.startswith(f"rollout: error: cannot push to {repository} at {hub.address}: ")
    assert hint in second
    assert all(["initial commit"] == repository.messages for repository in hub.repositories.values())


def test_a_hub_that_is_not_there_is_one_line(hub: Hub, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    for command in (("push", str(local), "me/d"), ("info", "hf://datasets/me/d")):
        ran = called(*command, code=5)
        assert 2 == len(ran.stderr.splitlines())
        assert "Connection refused" in ran.stderr
        assert "HF_ENDPOINT" in ran.stderr


@pytest.mark.parametrize("asked", ["info", "tree", "resolve"])
def test_an_error_of_the_server_is_not_a_missing_file(hub: Hub, local: Path, asked: str) -> None:
    """400 is not asked for again; 500 is, for half a minute."""
    push(local, "me/d")
    hub.answers = {{"info": "GET /api/datasets/me/d$"}.get(asked, f"GET .*/{asked}/"): 400}
    with raises(StorageError, "server-failed", "hf://datasets/me/d/meta", "refused by the test"):
        load("hf://datasets/me/d")


def test_files_that_vanish_while_a_dataset_is_read_are_an_error(hub: Hub, local: Path) -> None:
    push(local, "me/d")
    dataset = load("hf://datasets/me/d")
    hub.answers = {"GET .*/data/": 403}
    with raises(StorageError, "server-failed", "/data/", "403"):
        dataset.to_episode_batch()


def test_what_is_not_there(hub: Hub, local: Path) -> None:
    push(local, "me/d")
    for name in ("me/e", "me/d@none", "me/d@none/data"):
        with raises(StorageError, "bucket-missing", name.removesuffix("/data")):
            load(f"hf://datasets/{name}")
    for name in ("me/d/data", "me/d/none", "me/d/README.md"):
        with raises(StorageError, "not-a-dataset", name):
            load(f"hf://datasets/{name}")
    assert [] == list((folder_of("hf://datasets/me/d") / "none").iterdir())
    assert [] == list((folder_of("hf://datasets/me/d") / "README.md").iterdir())


def test_only_complete_datasets_are_pushed(hub: Hub, local: Path) -> None:
    document = json.loads((local / "meta" / "info.json").read_text())
    (local / "meta" / "info.json").write_text(json.dumps({**document, "status": "interrupted"}))
    with raises(UsageError, "push-incomplete", "interrupted"):
        push(local, "me/d")
    (local / "meta" / "info.json").write_text(json.dumps(document))
    next(local.glob("data/*/*")).unlink()
    with raises(UsageError, "push-incomplete", "it is missing"):
        push(local, "me/d")
    with raises(UsageError, "push-arguments", "hf://datasets/me/d"):
        push("hf://datasets/me/d", "me/e")
    with raises(UsageError, "push-arguments", "'cartpole'"):
        push(local, "cartpole")
    assert [] == hub.requests


def test_a_dataset_of_the_hub_is_not_written(hub: Hub, local: Path, tmp_path: Path) -> None:
    push(local, "me/d")
    uri = "hf://datasets/me/d"
    for command in (
        ("collect", "--timesteps", "10", "--output", uri),
        ("collect", "--timesteps", "9000", "--resume", "--output", uri),
        ("filter", local, "--keep", "length > 20", "--output", uri),
        ("card", uri, "--title", "x"),
        ("repair", uri),
    ):
        ran = called(*command, code=2)
        assert "[uri-read-only]" in ran.stderr, ran.said
        assert "rollout push" in ran.stderr
    called("filter", uri, "--keep", "length > 20", "--output", tmp_path / "filtered")
    assert 2 == len(hub.repositories["me/d"].messages)


def test_the_package_is_optional(monkeypatch: pytest.MonkeyPatch, local: Path) -> None:
    remote._connect.cache_clear()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for use in (lambda: load("hf://datasets/me/d"), lambda: push(local, "me/d")):
        with raises(UsageError, "package-missing") as caught:
            use()
        assert "pip install huggingface_hub" == caught.value.hint
