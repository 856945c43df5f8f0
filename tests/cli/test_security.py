"""SECURITY.md: files of strangers run nothing. Each would create a canary if its code ran."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calling import Caller
from tests.helpers.datasets import info_of, set_source

CANARY = "canary"
COLLECT = ("collect", "--seed", "1", "--sampler", "local", "--workers", "1", "--quiet")


class Touch:
    """A pickle of it creates the canary as it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(CANARY).absolute(),)


TOUCH = {"args": ["touch", CANARY]}


def evil_module() -> None:
    """Write a module that creates the canary when it is imported."""
    Path("evil.py").write_text("from pathlib import Path\nPath('canary').touch()\n")


def evil_pickle() -> None:
    Path("evil.pkl").write_bytes(pickle.dumps(Touch()))


def evil_spec() -> None:
    spec = {"id": "E-v0", "entry_point": "subprocess:call", "kwargs": TOUCH, "additional_wrappers": []}
    Path("evil.json").write_text(json.dumps(spec))


def env(
    spec: str, kwargs: dict[str, Any] | None = None, *wrappers: str, path: str | None = None
) -> dict[str, Any]:
    return {
        "env_source": {"spec": spec, "path": path, "kwargs": kwargs or {}, "wrappers": []},
        "collector": {"env": spec, "env_kwargs": kwargs or {}, "wrapper": list(wrappers)},
    }


def policy(spec: str, scheme: str | None = None, path: str | None = None, **options: Any) -> dict[str, Any]:
    return {"policy": {"spec": spec, "scheme": scheme, "path": path, "sha256": None, "options": options}}


ENVS: dict[str, dict[str, Any]] = {
    "a function": env("subprocess:call", TOUCH),
    "a module that registers": env("evil:E-v0"),
    "a package of an id": env("evil/E-v0"),
    "a pickle": env("evil.pkl", path="evil.pkl"),
    "an EnvSpec": env("evil.json", path="evil.json"),
    "a wrapper": env("CartPole-v1", None, "evil:Wrapper"),
    "a wrapper's argument": env("CartPole-v1", None, 'AddRenderObservation?module="evil.py"'),
    "a wrapper that writes": env("CartPole-v1", None, "RecordVideo?video_folder=canary"),
    "an argument": env("CartPole-v1", {"config": {"type": "evil.Vehicle"}}),
}
POLICIES: dict[str, dict[str, Any]] = {
    "a policy": policy("evil:Policy"),
    "a pickled policy": policy("evil.pkl", path="evil.pkl"),
    "a component": policy("mix:0.5*evil:Policy+0.5*random"),
    "a worker class": {"collector": {"worker_class": "evil:Worker"}},
}


@pytest.fixture
def evil(rollout: Caller) -> Caller:
    """Give a folder with all kinds of files that create the canary, and a dataset `out`."""
    rollout(*COLLECT, "--episodes", "1", "-o", "out")
    for write in (evil_module, evil_pickle, evil_spec):
        write()
    return rollout


def change(source: dict[str, Any]) -> None:
    """Let the dataset's record have these values."""
    before = info_of(Path("out"))["sources"][0]
    set_source(Path("out"), **{name: {**before[name], **values} for name, values in source.items()})


@pytest.mark.parametrize("name", [*ENVS, *POLICIES])
def test_replaying_a_dataset_runs_no_code_that_it_names(evil: Caller, name: str) -> None:
    """It is refused in a line, with the exit code of code that cannot be loaded."""
    change({**ENVS, **POLICIES}[name])
    ran = evil("replay", "out", "--all", code=3)
    assert "may run any code" in ran.stderr
    assert "--trust" in ran.stderr
    assert not Path(CANARY).exists()


@pytest.mark.parametrize("name", ENVS)
def test_rendering_a_dataset_runs_no_code_that_it_names(evil: Caller, name: str) -> None:
    change(ENVS[name])
    assert "may run any code" in evil("render", "out", "-o", "film", code=3).stderr
    assert not Path(CANARY).exists()
    assert not Path("film").exists()


def test_a_package_is_not_taken_from_the_folder_of_a_stranger(evil: Caller) -> None:
    """A known package's name stands for that package alone."""
    Path("minigrid.py").write_text(Path("evil.py").read_text())
    change(env("MiniGrid-Empty-5x5-v0"))
    evil("replay", "out", "--all", code=3)
    change(env("CartPole-v1", None, "minigrid.wrappers:FlatObsWrapper"))
    evil("replay", "out", "--all", code=3)
    assert not Path(CANARY).exists()


def test_trust_runs_what_a_dataset_names(evil: Caller) -> None:
    """The flag is the consent; a dataset of registered environments and plain policies needs none."""
    evil("replay", "out", "--all")
    change(env("subprocess:call", TOUCH))
    evil("replay", "out", "--all", "--trust", code=3)
    assert Path(CANARY).exists()


LOOKS: tuple[tuple[str, ...], ...] = (
    *((name, "out") for name in ("info", "head", "stats", "verify", "card", "plot", "list")),
    ("report", "out", "-o", "page.html"),
    ("filter", "out", "--where", "length > 0", "-o", "copy"),
    ("merge", "out", "-o", "copy"),
    ("diff", "out", "out"),
    ("export", "out", "--to", "parquet", "-o", "copy"),
    (*COLLECT, "--episodes", "1", "--policy", "replay:out", "-o", "copy"),
)


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: words[0])
def test_what_reads_a_dataset_runs_nothing(evil: Caller, words: tuple[str, ...]) -> None:
    """Whatever code the record names."""
    for source in (*ENVS.values(), *POLICIES.values()):
        change(source)
    evil(*words, code=None)
    assert not Path(CANARY).exists()


@pytest.mark.parametrize(
    "name", ["model.zip", "model.onnx", "model.pt", "model.safetensors", "model.d3", "model"]
)
def test_a_pickle_by_another_name_is_refused(rollout: Caller, name: str) -> None:
    """Only `.pkl` and `.pickle` say that the file is code."""
    Path(name).write_bytes(pickle.dumps(Touch()))
    ran = rollout(*COLLECT, "--episodes", "1", "--policy", name, "-o", "out", code=3)
    assert "is a pickle, which may run any code" in ran.stderr
    assert not Path(CANARY).exists()


def test_tasks_and_options_are_data(rollout: Caller) -> None:
    Path("tasks.json").write_text('[{"__reduce__": "evil:call"}]')
    rollout(*COLLECT, "--episodes", "1", "--tasks", "tasks.json", "-o", "out")
    assert not Path(CANARY).exists()


LINKS: dict[tuple[str, ...], tuple[str, ...]] = {
    (".README.md.tmp", "meta/.info.json.tmp", "meta/.returns.png.tmp"): ("card", "out", "--plot"),
    ("README.md",): ("card", "out"),
    (".data-00000-00000.parquet.tmp", ".episodes-00000-00000.parquet.tmp", ".next.tmp"): (
        *COLLECT,
        *("--resume", "--episodes", "3", "-o", "out"),
    ),
    ("out/.page.html.part",): ("report", "out", "-o", "out/page.html"),
}
"""By names of links that lie in a dataset, what writes there."""


@pytest.mark.parametrize("links", LINKS, ids=" ".join)
def test_links_of_a_stranger_are_not_followed(rollout: Caller, links: tuple[str, ...]) -> None:
    """The user's file that one names stays as it is, and the command does its work."""
    rollout(*COLLECT, "--episodes", "1", "-o", "out")
    Path("folder").mkdir()
    for target in ("mine", "folder/page.html"):
        Path(target).write_text("mine")
    for link in links:
        path = Path(link) if link.startswith("out/") else Path("out", link)
        path.unlink(missing_ok=True)
        path.symlink_to(Path("folder" if link.endswith(".part") else "mine").absolute())
    rollout(*LINKS[links])
    assert ["mine"] * 2 == [Path(target).read_text() for target in ("mine", "folder/page.html")]
    rollout("verify", "out")


def test_a_link_to_another_dataset_is_not_written_through(rollout: Caller) -> None:
    for output in ("mine", "out"):
        rollout(*COLLECT, "--episodes", "1", "-o", output)
    shutil.rmtree("out/meta")
    Path("out/meta").symlink_to(Path("mine/meta").absolute())
    before = Path("mine/meta/info.json").read_bytes()
    assert "is a link" in rollout("card", "out", "--license", "mit", code=5).stderr
    assert before == Path("mine/meta/info.json").read_bytes()
