"""SECURITY.md: files of strangers run nothing. Each would create a canary if its code ran."""

from __future__ import annotations

import html
import json
import pickle
import re
import shutil
import traceback
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import rollout_cli
from rollout_cli.errors import RolloutError
from tests.cli.calling import Caller
from tests.helpers.datasets import info_of, set_source
from tests.helpers.projects import project
from tests.helpers.thorough import usually

__all__ = ["project"]

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
    assert "[file-may-run-code]" in ran.stderr
    assert "--trust" in ran.stderr
    assert not Path(CANARY).exists()


@pytest.mark.parametrize("name", ENVS)
def test_rendering_a_dataset_runs_no_code_that_it_names(evil: Caller, name: str) -> None:
    change(ENVS[name])
    assert "[file-may-run-code]" in evil("render", "out", "-o", "film", code=3).stderr
    assert not Path(CANARY).exists()
    assert not Path("film").exists()


def test_a_package_is_not_taken_from_the_folder_of_a_stranger(evil: Caller) -> None:
    """A known package's name stands for that package alone."""
    pytest.importorskip("minigrid")
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
    ("export", "out", "--to", "hf", "-o", "copy"),
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
    assert "[file-may-run-code]" in ran.stderr
    assert not Path(CANARY).exists()


def test_tasks_and_options_are_data(rollout: Caller) -> None:
    Path("tasks.json").write_text('[{"__reduce__": "evil:call"}]')
    rollout(*COLLECT, "--episodes", "1", "--tasks", "tasks.json", "-o", "out")
    assert not Path(CANARY).exists()


LINKS: dict[tuple[str, ...], tuple[str, ...]] = {
    (".README.md.tmp", "meta/.info.json.tmp"): ("card", "out"),
    ("meta/.returns.png.tmp",): ("card", "out", "--plot"),
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
    if "--plot" in LINKS[links]:
        pytest.importorskip("matplotlib")
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
    assert "[folder-is-a-link]" in rollout("card", "out", "--license", "mit", code=5).stderr
    assert before == Path("mine/meta/info.json").read_bytes()


def files_of(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "link", usually(["data", ".replaced", ".next.tmp", "meta/episodes"], {"data", ".replaced"}.__contains__)
)
@pytest.mark.parametrize(
    "words",
    [
        ("repair", "out"),
        (*COLLECT, "--resume", "--episodes", "3", "-o", "out"),
        (*COLLECT, "--overwrite", "--episodes", "3", "-o", "out"),
        ("filter", "out", "--keep", "length > 0", "-o", "other", "--overwrite"),
    ],
    ids=["repair", "resume", "overwrite", "edit"],
)
def test_linked_folders_are_not_written_through(rollout: Caller, words: tuple[str, ...], link: str) -> None:
    """Whatever a command does about a link in a dataset, the folder that the link names stays as it is."""
    for output in ("mine", "out", "other"):
        rollout(*COLLECT, "--episodes", "1", "-o", output)
    before = files_of("mine")
    target = "mine" if link.startswith(".") else f"mine/{link}"
    for output in ("out", "other"):
        path = Path(output, link)
        if path.exists():
            shutil.rmtree(path)
        path.symlink_to(Path(target).absolute())
        if link == ".replaced":
            shutil.rmtree(f"{output}/meta")
    rollout(*words, code=None)
    assert before == files_of("mine")


WORLD = """
import gymnasium

class World(gymnasium.Wrapper):
    def __init__(self, env=None, fails=False, **kwargs):
        super().__init__(env or gymnasium.make("CartPole-v1"))
        if fails:
            raise ValueError(f"cannot log in with {kwargs}")
"""
SECRETS = {
    "api_token": "tk1111",
    "PASSWORD": 2222222,
    "hf-token": "tk3333",
    "url": "https://me:tk4444@host/x",
    "deep": {"passwd": "tk5555", "list": [{"credentials": {"id": "tk6666"}}]},
    "json": '{"private_key": "tk7777"}',
    "toml": 'secret = "tk8888 tk8899"',
}
VALUES = [*(f"tk{digit * 4}" for digit in "1345678"), "2222222", "tk8899", "tk9999", "tk0000"]


@pytest.mark.usefixtures("project")
def test_no_secret_is_shown_or_written(rollout: Caller) -> None:
    """Eleven secrets: none in a file of the dataset, its card, its report, an error, a warning or a log."""
    Path("world.py").write_text(WORLD)
    kwargs = "\n".join(f"{name} = {json.dumps(value)}" for name, value in SECRETS.items() if name != "deep")
    deep = 'deep = { passwd = "tk5555", list = [{ credentials = { id = "tk6666" } }] }'
    Path("run.toml").write_text(
        'env = "world:World"\nwrapper = ["world:World?auth_token=tk9999"]\n'
        f'[reset_options]\napi_key = "tk0000"\n[env_kwargs]\n{kwargs}\n{deep}\n'
    )
    collect = (*COLLECT[:-1], "--config", "run.toml", "-o", "out")
    said = [rollout(*collect, "--episodes", "2", "--verbose")]
    said.append(rollout(*collect, "--episodes", "3", "--resume"))
    said.append(rollout("card", "out", "--license", "mit"))
    said.append(rollout("report", "out", "-o", "out/page.html"))
    said.append(rollout("info", "out"))
    said.append(rollout("info", "out", "--json"))
    # Other secrets are no other run: both are cut where they are compared.
    changed = ("--env-kwargs", "size=3", "--env-kwargs", "api_token=tk1111")
    said.append(rollout(*collect, *changed, "--episodes", "4", "--resume", code=2))
    assert all(part in said[-1].stderr for part in ("env_kwargs", "[resume-refused]"))
    said.append(rollout(*COLLECT[:-1], "--resume", "-o", "out", code=2))
    assert all(part in said[-1].stderr for part in ("'api_token'", "[secret-missing]"))
    said += [rollout(*collect, "--episodes", "2", "--dry-run", *words) for words in ((), ("--json",))]
    # What was printed is no configuration with the secrets.
    Path("again.toml").write_text(said[-2].stdout)
    said.append(rollout("collect", "--config", "again.toml", "--output", "again", code=2))
    assert all(part in said[-1].stderr for part in ("'api_token'", "[secret-missing]"))
    fails = (*collect, "--env-kwargs", "fails=true", "--episodes", "1", "--overwrite", "--verbose")
    said += [rollout(*fails, code=3), rollout(*fails, "--json", code=3)]
    assert "cannot log in with" in said[-2].stderr
    written = [path.read_bytes() for path in Path("out").rglob("*") if path.is_file()]
    text = b"\n".join(written).decode(errors="replace") + "\n".join(ran.stdout + ran.stderr for ran in said)
    assert [] == [value for value in VALUES if value in text]


@pytest.mark.usefixtures("project")
def test_no_secret_is_in_an_error_of_the_python_api() -> None:
    """Neither in its message, nor in the traceback that Python prints of it."""
    Path("world.py").write_text(WORLD)
    secrets = {"api_token": "tk1111", "url": "https://me:tk4444@host/x", "deep": [{"passwd": "tk5555"}]}
    requests: list[dict[str, Any]] = [
        {"env": "world:World", "env_kwargs": {**secrets, "fails": True}},
        {"env_kwargs": {**secrets, "when": date(2000, 1, 1)}},
        {"env_kwargs": {"api_token": "tk1111" * 30, "when": date(2000, 1, 1)}},
        {"wrapper": ["TimeLimit?api_token=tk1111&api_token=tk4444"]},
    ]
    for sampler in ("local", "multiprocessing"):
        for request in requests:
            with pytest.raises(RolloutError) as raised:
                rollout_cli.collect(
                    rollout_cli.CollectConfig(
                        **request, timesteps=1, workers=1, sampler=sampler, output=Path("out"), seed=0
                    )
                )
            error = raised.value
            chain = traceback.format_exception(error, limit=0) if sampler != "local" else []
            shown = [str(error), repr(error), error.message, error.hint, error.details, *chain]
            assert [] == [value for value in VALUES if any(value in text for text in shown)], shown


def test_the_card_has_no_markdown_of_a_stranger(rollout: Caller) -> None:
    rollout(*COLLECT, "--episodes", "1", "-o", "out")
    name = "a` <script>x</script> [b](javascript:c) `"
    change({"env": {"id": name}, "env_source": {"spec": name}, "policy": {"spec": name}})
    change({"reproducible": {"status": "[b](javascript:c)"}})
    rollout("card", "out")
    card = Path("out/README.md").read_text().partition("\n---\n")[2]
    outside_of_code = re.sub("`[^`\n]*`", "", card.replace("\\`", "")).replace("\\[", "").replace("\\<", "")
    assert "[b]" not in outside_of_code
    assert "<script" not in outside_of_code


def test_the_commands_of_a_report_are_quoted(rollout: Caller) -> None:
    name = "out; touch canary"
    rollout(*COLLECT, "--episodes", "1", "-o", name)
    rollout("report", name, "-o", "page.html")
    text = html.unescape(re.sub("<[^>]+>", "", Path("page.html").read_text()))
    assert "rollout verify 'out; touch canary'" in text


ODD_NAMES = r"""
import gymnasium


class Odd(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        *result, _ = self.env.step(action)
        return *result, {"a\x1b[31m\nb": 1}
"""


def test_names_of_columns_are_escaped(rollout: Caller) -> None:
    """They come from the dataset as its values do."""
    Path("odd_names.py").write_text(ODD_NAMES)
    rollout("collect", "--env", "odd_names:Odd", "--episodes", "1", "-o", "out")
    printed = rollout("head", "out", "--steps").stdout
    assert r"env_info.a\x1b[31m\nb" in printed
    assert "\x1b" not in printed


def test_the_next_command_can_be_run(rollout: Caller) -> None:
    """A folder that begins with a dash is no option."""
    said = rollout(*COLLECT[:-1], "--episodes", "1", "--output=-x").stderr
    assert "next: rollout info ./-x\n" in said
    rollout("info", "./-x")
