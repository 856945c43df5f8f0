"""`rollout export` and `rollout_cli.export`: what they refuse, say and leave behind."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymSpec

import rollout_cli
from rollout_cli.cli.share import FORMAT_NAMES
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch
from rollout_cli.errors import (
    DatasetExistsError,
    RolloutError,
    StorageError,
    UnsupportedSpaceError,
    UsageError,
)
from rollout_cli.exporters import hdf5
from rollout_cli.exporters.columns import TIANSHOU
from rollout_cli.exporters.export import FORMATS, export
from rollout_cli.exporters.hdf5 import hdf5_file
from tests.cli.calling import Caller
from tests.exporters.cases import (
    BOX,
    CHOICE,
    SPECS,
    MemoryDataset,
    batch_of,
    chunks_of,
    export_to,
    files_of,
)
from tests.exporters.readers import FILE_READERS, attributes
from tests.exporters.victim import MOMENTS
from tests.helpers.errors import raises
from tests.helpers.processes import ROOT
from tests.helpers.writing import all_files, write_dataset


@pytest.fixture
def rollout(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Caller:
    monkeypatch.chdir(tmp_path)
    return Caller(capsys)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset with infos, three kinds of ends, and rewards that float32 does not hold."""
    path = tmp_path_factory.mktemp("export") / "dataset"
    write_dataset(
        path,
        chunks_of(SPECS["box"], env_info=lambda number, step: {"x": step}),
        spec=SPECS["box"],
        header={"env_source": {"spec": "Made-v0"}, "env": {"kwargs": {"size": 3}}},
    )
    return path


def test_command(dataset: Path, rollout: Caller, tmp_path: Path) -> None:
    """The command writes the file, leaves the dataset alone, and says what is lost; so does the document."""
    before = all_files(dataset)
    called = rollout("export", dataset, "--to", "d3rlpy", "--output", tmp_path / "a.h5")
    assert "14" in called.stdout.split()
    losses = [
        "that 1 of 4 episodes ended both ways, terminated and truncated",
        "the digits of rewards beyond float32",
        "infos",
    ]
    assert called.stderr.splitlines() == [f"not in d3rlpy: {loss}" for loss in losses]
    document = json.loads(
        rollout("export", dataset, "--to", "d3rlpy", "-o", tmp_path / "b.h5", "--json").stdout
    )
    assert (document["losses"], document["episodes"], document["steps"]) == (losses, 4, 14)
    assert files_of(tmp_path / "a.h5") == {".": files_of(tmp_path / "b.h5")["."]}
    with attributes(tmp_path / "a.h5") as attrs:
        assert list(attrs["not_held"]) == losses
    quiet = rollout("export", dataset, "--to", "d3rlpy", "-o", tmp_path / "c.h5", "-q")
    assert (quiet.stdout, quiet.stderr) == (f"{tmp_path / 'c.h5'}\n", "")
    assert all_files(dataset) == before


def test_environment_is_recorded(dataset: Path, tmp_path: Path) -> None:
    """The file of robomimic names the environment and its arguments."""
    rollout_cli.export(rollout_cli.load(dataset), "robomimic", tmp_path / "a.hdf5")
    import h5py

    with h5py.File(tmp_path / "a.hdf5") as file:
        env = json.loads(file["data"].attrs["env_args"])
    assert env == {"env_name": "Made-v0", "env_type": 2, "env_kwargs": {"size": 3}}


def test_minari_has_the_env_spec(rollout: Caller, tmp_path: Path) -> None:
    """`gymnasium.make` makes the environment of it, as `recover_environment` does: arguments, limit and wrappers."""
    options = ("--env-kwargs", "sutton_barto_reward=true", "--max-episode-length", "70", "--timesteps", "200")
    rollout(
        "collect", "--env", "CartPole-v1", "--wrapper", "FlattenObservation", *options, "--output", "pole"
    )
    rollout("export", "pole", "--to", "minari", "--output", "cartpole/random-v0")
    metadata = json.loads((tmp_path / "cartpole/random-v0/data/metadata.json").read_text())
    made: Any = gymnasium.make(GymSpec.from_json(metadata["env_spec"]))
    assert (True, 70) == (made.unwrapped._sutton_barto_reward, made.spec.max_episode_steps)
    assert isinstance(made, gymnasium.wrappers.FlattenObservation)


def test_minari_has_the_reference_scores(dataset: Path, tmp_path: Path) -> None:
    """By the names under which `minari.get_normalized_score` reads them."""
    copy = Path(shutil.copytree(dataset, tmp_path / "copy"))
    rollout_cli.card(copy, references=(22.5, 500.0))
    rollout_cli.export(rollout_cli.load(copy), "minari", tmp_path / "minari/case-v0")
    written = json.loads((tmp_path / "minari/case-v0/data/metadata.json").read_text())
    assert (22.5, 500.0) == (written["ref_min_score"], written["ref_max_score"])


def test_minari_without_an_env_spec(dataset: Path, tmp_path: Path) -> None:
    """An environment that gymnasium does not make has none, and a vector environment's is that of another one."""
    vector = {"env_source": {"spec": "V-v0"}, "env": {"spec_json": '{"id": "V-v0"}', "num_envs": 2}}
    write_dataset(tmp_path / "v", chunks_of(SPECS["box"]), spec=SPECS["box"], header=vector)
    for source in (dataset, tmp_path / "v"):
        rollout_cli.export(rollout_cli.load(source), "minari", tmp_path / "made" / f"{source.name}-v0")
        assert "env_spec" not in json.loads(
            (tmp_path / "made" / f"{source.name}-v0/data/metadata.json").read_text()
        )


@pytest.mark.parametrize("flatten", [False, True])
def test_environment_of_a_selection(dataset: Path, tmp_path: Path, *, flatten: bool) -> None:
    """Of a dataset of several runs the episodes may be of another one than the first."""
    header = {"env_source": {"spec": "Made-v0"}, "env": {"kwargs": {"size": 4}}}
    write_dataset(tmp_path / "b", chunks_of(SPECS["box"]), spec=SPECS["box"], header=header, root_seed=1)
    rollout_cli.join_datasets([rollout_cli.load(dataset), rollout_cli.load(tmp_path / "b")], tmp_path / "ab")
    chosen = rollout_cli.load(tmp_path / "ab").filter("source == 1")
    rollout_cli.export(chosen, "robomimic", tmp_path / "a.hdf5", flatten=flatten)
    import h5py

    with h5py.File(tmp_path / "a.hdf5") as file:
        assert {"size": 4} == json.loads(file["data"].attrs["env_args"])["env_kwargs"]


def test_help_names_formats(rollout: Caller) -> None:
    """The help page names all formats, though it loads none."""
    page = rollout("export", "--help").stdout
    assert set(FORMAT_NAMES) == FORMATS.keys()
    assert all(name in page for name in FORMATS)


@pytest.mark.parametrize(
    ("words", "parts", "hint"),
    [
        (["--to", "d4rk"], ["[format-unknown]", "'d4rk'"], "d3rlpy, d4rl,"),
        (["--to", "d4rl", "--set", "fps"], ["[option-value]", "--set", "'fps'"], "--set flatten=true"),
        (["--to", "d4rl", "--set", "fps=3"], ["[format-option]", "d4rl", "'fps'"], "flatten"),
        (
            ["--to", "d4rl", "--set", "format=a"],
            ["[format-option]", "d4rl", "'format'"],
            "--set flatten=true",
        ),
        (
            ["--to", "d4rl", "--set", "flatten=yes"],
            ["[format-option]", "d4rl", "bool", "flatten", "'yes'", "str"],
            "true, 30, 0.5",
        ),
        (
            ["--to", "minari", "--set", "author=3"],
            ["[format-option]", "minari", "str", "author", "3", "int"],
            "'\"3\"'",
        ),
        (
            ["--to", "d4rl", "--output", "out.npz"],
            ["[output-suffix]", "out.npz", ".hdf5", ".h5"],
            "--output out.npz.hdf5",
        ),
        (["--to", "d4rl", "--output", "s3://b/a.h5"], ["[output-not-local]", "s3://b/a.h5"], ""),
        (["--to", "minari", "--output", "a/b"], ["[output-name]", "a/b"], "MINARI_DATASETS_PATH=minari"),
    ],
)
def test_refusals(words: list[str], parts: list[str], hint: str, dataset: Path, rollout: Caller) -> None:
    """What cannot be used is one line and a hint, with exit code 2."""
    output = [] if "--output" in words else ["--output", "out.hdf5"]
    called = rollout("export", dataset, *words, *output, code=2)
    error, shown = called.stderr.splitlines()
    assert all(part in error for part in parts), error
    assert hint in shown


def test_existing_output(dataset: Path, rollout: Caller, tmp_path: Path) -> None:
    """Nothing is written over."""
    (tmp_path / "a.h5").write_text("mine")
    rollout("export", dataset, "--to", "d4rl", "-o", tmp_path / "a.h5", code=5)
    (tmp_path / "b.h5").symlink_to("nowhere")
    with pytest.raises(DatasetExistsError):
        export(rollout_cli.load(dataset), "d4rl", tmp_path / "b.h5")
    assert (tmp_path / "a.h5").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "b.h5"]


def test_missing_package(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A format that needs a package says how to install it."""
    monkeypatch.setitem(sys.modules, "h5py", None)
    with raises(UsageError, "package-missing") as raised:
        export(rollout_cli.load(dataset), "d4rl", tmp_path / "a.h5")
    assert raised.value.hint == "pip install h5py"
    assert not list(tmp_path.iterdir())


def test_a_refused_export_makes_no_folder(dataset: Path, tmp_path: Path) -> None:
    """Nor do others that are refused as they write; a folder that was there stays."""
    (tmp_path / "mine").mkdir()
    for parent in ("mine", "new/deeper"):
        with raises(UsageError, "output-name"):
            export(rollout_cli.load(dataset), "minari", tmp_path / parent / "b")
    assert [tmp_path / "mine"] == list(tmp_path.iterdir())


def test_no_episodes(dataset: Path, tmp_path: Path) -> None:
    with raises(UsageError, "no-episode"):
        export(rollout_cli.load(dataset)[:0], "d4rl", tmp_path / "a.h5")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("cannot flush")])
def test_a_failing_disk(
    error: Exception, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the system, or HDF5, says of a full disk is an error of ours, and leaves nothing."""

    def write(export: Any) -> None:
        with hdf5_file(export):
            raise error

    monkeypatch.setitem(FORMATS, "tianshou", replace(TIANSHOU, write=write))
    with raises(StorageError, "write-failed", tmp_path) as raised:
        export(rollout_cli.load(dataset), "tianshou", tmp_path / "a.h5")
    assert str(error).split("] ")[-1] in raised.value.message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["d3rlpy", "d4rl", "robomimic", "tianshou"])
def test_a_disk_that_fills_up(form: str, dataset: Path, tmp_path: Path) -> None:
    """Wherever the file ends: HDF5 would end the process, since it cannot write what it closes."""
    source, limits = rollout_cli.load(dataset), resource.getrlimit(resource.RLIMIT_FSIZE)
    export(source, form, tmp_path / "whole.h5")
    size = (tmp_path / "whole.h5").stat().st_size
    for most in (100, size // 3, size - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
        try:
            with raises(StorageError, "write-failed", f"{tmp_path}/a.h5", "File too large"):
                export(source, form, tmp_path / "a.h5")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert ["whole.h5"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize("form", ["d3rlpy", "d4rl", "robomimic", "tianshou"])
def test_an_interrupt_while_a_file_is_closed(
    form: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the export as itself: an exception within a write would become another one of h5py's."""
    write = hdf5._Disk.write

    def interrupted(disk: Any, data: Any) -> int:
        if disk.is_closing:
            monkeypatch.setattr(hdf5._Disk, "write", write)
            signal.raise_signal(signal.SIGINT)
        return write(disk, data)

    monkeypatch.setattr(hdf5._Disk, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(rollout_cli.load(dataset), form, tmp_path / "a.h5")
    assert not list(tmp_path.iterdir())
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)


def test_too_small_a_disk(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that cannot hold the episodes is an error before anything is written."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=335))
    with raises(StorageError, "disk-full"):
        export(rollout_cli.load(dataset), "tianshou", tmp_path / "a.h5")
    assert not list(tmp_path.iterdir())


def test_killed(tmp_path: Path) -> None:
    """A killed export leaves the output absent; the next one works, and clears what the killed one left."""
    words = [sys.executable, "-m", "tests.exporters.victim", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result[0] for result in results] == list(MOMENTS)
    for moment, code, left, files in results:
        assert code == (0 if moment == "never" else -9), moment
        assert ("exported.h5" in left) == (moment == "never")
        assert moment == "never" or left[0].endswith(".part")
        assert files == ["exported.h5"], moment


def test_losses_are_real() -> None:
    """A loss is said where the episodes have what is lost, and nowhere else."""

    def losses(name: str, batch: EpisodeBatch) -> list[str]:
        return list(FORMATS[name].losses(MemoryDataset(batch)))

    plain = batch_of(SPECS["box"], [4])  # It is terminated.
    plain = replace(plain, rewards=np.ones(4))
    assert [losses(name, plain) for name in ("minari", "tianshou", "d4rl", "d3rlpy", "robomimic")] == [[]] * 5
    without_number = replace(plain, rewards=np.array([1, np.nan, 0.5, np.inf]))
    assert losses("d3rlpy", without_number) == []
    assert losses("ogbench", plain) == ["rewards", "whether an episode was terminated or truncated"]
    wide = batch_of(SPECS["float64"], [4])
    digits = [f"the digits of {what} beyond float32" for what in ("observations", "actions", "rewards")]
    assert losses("d3rlpy", wide) == digits
    assert losses("d3rlpy", replace(batch_of(SPECS["start"], [4]), rewards=np.ones(4))) == [
        "the start of the actions, 5: exported actions start at 0"
    ]
    with_infos = batch_of(SPECS["box"], [4], episode_info=lambda number, step: {"a": 1})
    assert losses("tianshou", with_infos) == ["infos"]


@pytest.mark.parametrize("name", ["d3rlpy", "hf", "lerobot", "torchrl"])
def test_rewards_that_no_float_can_say(name: str, tmp_path: Path) -> None:
    """They are written as infinite, which is said where it is a loss, and numpy does not warn."""
    batch = replace(batch_of(SPECS["box"], [4]), rewards=np.array([1e308, 1e308, np.inf, -np.inf]))
    summary = export_to(tmp_path, MemoryDataset(batch), name)
    assert ("the digits of rewards beyond float32" in summary.losses) == (name != "hf")


def test_values_outside_of_their_space(tmp_path: Path) -> None:
    """A choice that its space does not have, or a character, has no flat form."""
    batch = batch_of(SPECS["tuple"])
    batch.observations[1][3] = 5
    with raises(UsageError, "value-outside-space", "1"):
        export(MemoryDataset(batch), "d4rl", tmp_path / "a.h5", flatten=True)
    batch = batch_of(SPECS["text"])
    batch.observations[3] = "Q"
    with raises(UsageError, "value-outside-space"):
        export(MemoryDataset(batch), "d4rl", tmp_path / "a.h5", flatten=True)


def test_texts_of_any_length(tmp_path: Path) -> None:
    """They have no flat form, which has numbers for each letter that a text may have."""
    spec = EnvSpec(spaces.Dict({"image": BOX, "mission": spaces.Text(1 << 17)}), CHOICE)
    with raises(UnsupportedSpaceError, "space-not-flat", "mission") as refused:
        export(MemoryDataset(batch_of(spec, [2])), "d4rl", tmp_path / "a.h5", flatten=True)
    assert "minari" in refused.value.hint
    assert not list(tmp_path.iterdir())


def test_names_that_hdf5_lacks(tmp_path: Path) -> None:
    """A key with a slash would be two groups: it is refused."""
    spec = replace(SPECS["box"], observation_space=spaces.Dict({"a/b": spaces.Discrete(2)}))
    with raises(UnsupportedSpaceError, "format-key", "a/b"):
        export(MemoryDataset(batch_of(spec)), "robomimic", tmp_path / "a.h5")


def _distribution(folder: Path, value: str) -> None:
    info = folder / "other_exporter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-exporter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rollout.exporters]\ncsv = {value}\n")
    (folder / "other_exporter.py").write_text(
        "from rollout_cli.exporters.format import ALL, Format\n"
        "def write(export, *, separator: str = ','):\n"
        "    rows = [separator.join(map(str, episode.rewards)) for episode in export.source]\n"
        "    export.path.write_text('\\n'.join(rows))\n"
        "FORMAT = Format('csv', 'spreadsheets', write, leaves=ALL, nested=True, suffixes=('.csv',))\n"
    )


def test_format_of_another_package(
    dataset: Path, rollout: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another package adds a format by an entry point; the list of formats names it."""
    _distribution(tmp_path, "other_exporter:FORMAT")
    monkeypatch.syspath_prepend(tmp_path)
    words = ("export", dataset, "-q", "--set", "separator=;", "--output", tmp_path / "a.csv")
    rollout(*words, "--to", "csv")
    del sys.modules["other_exporter"]
    first = (tmp_path / "a.csv").read_text().splitlines()[0]
    expected = rollout_cli.load(dataset)[0].rewards.tolist()
    assert [float(number) for number in first.split(";")] == expected
    assert "csv" in rollout(*words, "--to", "xls", code=2).stderr


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("other_exporter:FORMATS", "AttributeError"),
        ("gone:FORMAT", "ModuleNotFoundError"),
        ("other_exporter:write", "function"),
    ],
)
def test_broken_format_of_another_package(
    value: str, found: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package whose format does not load is one line that names it."""
    _distribution(tmp_path, value)
    monkeypatch.syspath_prepend(tmp_path)
    with raises(UsageError, "format-plugin", value, found):
        export(rollout_cli.load(dataset), "csv", tmp_path / "a.csv")
    sys.modules.pop("other_exporter", None)


def test_a_dataset_holds_no_export_of_itself(dataset: Path) -> None:
    """Its data files would no longer be of one table."""
    before = sorted(dataset.rglob("*"))
    with raises(UsageError, "output-is-input"):
        export(rollout_cli.load(dataset), "hf", dataset / "data" / "x")
    assert before == sorted(dataset.rglob("*"))


def test_a_selection(dataset: Path, tmp_path: Path) -> None:
    """A selection of episodes exports as they stand in it."""
    chosen = rollout_cli.load(dataset)[[2, 0]]
    rollout_cli.export(chosen, "tianshou", tmp_path / "a.h5")
    read = list(FILE_READERS["tianshou"](tmp_path / "a.h5"))
    for episode, actual in zip(chosen, read, strict=True):
        np.testing.assert_array_equal(episode.rewards, actual.rewards)


def test_errors_of_a_format_leave_nothing(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(export: Any) -> None:
        TIANSHOU.write(export)
        raise RolloutError("late")

    monkeypatch.setitem(FORMATS, "tianshou", replace(TIANSHOU, write=write))
    with raises(RolloutError, "error"):
        export(rollout_cli.load(dataset), "tianshou", tmp_path / "a.h5")
    assert not list(tmp_path.iterdir())
