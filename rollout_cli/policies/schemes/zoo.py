"""The scheme `zoo`: an rl_zoo3 run folder with a model, its statistics, and its training environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.keywords import Keywords, Record
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.policies.schemes.files import FileScheme, PolicyFiles, TrainingEnv
from rollout_cli.policies.schemes.sb3 import NEEDS, load_model, versions_of
from rollout_cli.sources.loading import needing, reporting

_MODEL = "model.zip"
_STATISTICS = "vecnormalize.pkl"
_ARGUMENTS = "args.yml"
_SETTINGS = "config.yml"
_FRAMES = "rollout_cli.envs.frames:StackedFrames"


def _beside(folder: Path) -> dict[str, Path]:
    """Return the best or else the last model, and the files in the subfolder named after the environment."""
    settings = next((path.parent for path in folder.glob(f"*/{_ARGUMENTS}")), None)
    if settings is None:
        raise PolicyLoadError(
            f"{str(folder)!r} is not an rl_zoo3 run folder: no subfolder has {_ARGUMENTS}",
            code="policy-folder",
            hint="pass the folder of one run, such as logs/ppo/Pendulum-v1_1",
        )
    models = (folder / "best_model.zip", folder / f"{settings.name}.zip")
    files = {name: settings / name for name in (_ARGUMENTS, _SETTINGS, _STATISTICS)}
    files[_MODEL] = next((model for model in models if model.is_file()), models[1])
    if not files[_MODEL].is_file():
        raise PolicyLoadError(
            f"{str(folder)!r} has no model, expected best_model.zip or {settings.name}.zip",
            code="policy-folder",
            hint="pass another model file as sb3:FILE",
        )
    # A run without VecNormalize has no statistics.
    return {name: path for name, path in files.items() if name != _STATISTICS or path.is_file()}


def _load(files: PolicyFiles, options: Keywords, env_spec: EnvSpec, *, deterministic: bool) -> AdaptedPolicy:
    statistics = files.contents.get(_STATISTICS)
    if statistics is None and _read(files, _SETTINGS).get("normalize"):
        raise PolicyLoadError(
            f"the model was trained with VecNormalize, but {files.path} has no {_STATISTICS}",
            code="normalization-missing",
            hint=f"copy it next to {_SETTINGS}; rl_zoo3 saves it when the training ends",
        )
    return load_model(
        files.contents[_MODEL],
        statistics,
        env_spec,
        deterministic=deterministic,
        trust=options.get("trust", False),
        trained_in=str(_read(files, _ARGUMENTS).get("env", "")),
    )


def _read(files: PolicyFiles, name: str) -> dict[str, Any]:
    """Return the content of a YAML file of the folder, without creating the Python objects in it."""
    with needing("pyyaml", "yaml"):
        import yaml  # noqa: PLC0415 - only such folders need it
    reader: Any = type("Reader", (yaml.SafeLoader,), {})
    reader.add_multi_constructor("tag:yaml.org,2002:python/", _python_object)
    with reporting(
        PolicyLoadError, f"{name} of {files.path} is not a valid rl_zoo3 file", code="policy-file-damaged"
    ):
        return dict(yaml.load(files.contents[name], reader))  # noqa: S506 - derived from SafeLoader


def _python_object(reader: Any, tag: str, node: Any) -> Any:
    """Return an OrderedDict as a mapping and a tuple as a list; for other tags, return the node itself."""
    if tag == "object/apply:collections.OrderedDict":
        return dict(reader.construct_sequence(node, deep=True)[0])
    return reader.construct_sequence(node, deep=True) if tag == "tuple" else node


def _trained_in(files: PolicyFiles) -> TrainingEnv:
    arguments = _read(files, _ARGUMENTS)
    settings = _read(files, _SETTINGS)
    env = arguments.get("env")
    modules = arguments.get("gym_packages") or []
    if not env:
        raise _unavailable(f"{_ARGUMENTS} does not name an environment")
    if len(modules) > 1:
        raise _unavailable(f"{_ARGUMENTS} has several gym_packages {modules}, expected at most one")
    if vector := settings.get("vec_env_wrapper"):
        raise _unavailable(f"it has the vec_env_wrapper {vector}")
    entries = settings.get("env_wrapper")
    if not isinstance(entries, list):
        entries = [entries]
    wrappers = [_wrapper(entry) for entry in entries if entry]
    if frames := settings.get("frame_stack"):
        wrappers.append((_FRAMES, {"n": frames}))
    return TrainingEnv(":".join([*modules, env]), dict(arguments.get("env_kwargs") or {}), wrappers)


def _wrapper(entry: Any) -> tuple[str, Keywords]:
    """Return SPEC and arguments of an `env_wrapper`: `module.Class`, or `{module.Class: arguments}`."""
    name, kwargs = next(iter(entry.items())) if isinstance(entry, dict) else (entry, {})
    if not isinstance(name, str) or "." not in name:
        raise _unavailable(f"the env_wrapper {entry} is not a dotted class name with arguments")
    module, _, attribute = name.rpartition(".")
    return f"{module}:{attribute}", dict(kwargs)


def _unavailable(reason: str) -> PolicyLoadError:
    return PolicyLoadError(
        f"cannot rebuild the environment of the run folder: {reason}",
        code="zoo-environment",
        hint="pass the environment and its wrappers: {env=…} {wrapper=…}",
    )


def _about(files: PolicyFiles) -> Record:
    return {
        "saved_by": versions_of(files.contents[_MODEL]),
        "trained_in": _read(files, _ARGUMENTS).get("env"),
    }


ZOO = FileScheme(
    "zoo",
    "an rl_zoo3 run folder",
    _load,
    {"trust": bool},
    takes_folder=True,
    needs=NEEDS,
    beside=_beside,
    about=_about,
    trained_in=_trained_in,
)
