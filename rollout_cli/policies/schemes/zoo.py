"""The scheme `zoo`: a run folder of rl_zoo3: a model, its statistics, and the environment of its training."""

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
    """Return the best model, else the last one, and what lies in the subfolder of the environment's name."""
    settings = next((path.parent for path in folder.glob(f"*/{_ARGUMENTS}")), None)
    if settings is None:
        raise PolicyLoadError(
            f"{str(folder)!r} is no run folder of rl_zoo3: no subfolder of it has {_ARGUMENTS}",
            code="policy-folder",
            hint="name the folder of one run, such as logs/ppo/Pendulum-v1_1",
        )
    models = (folder / "best_model.zip", folder / f"{settings.name}.zip")
    files = {name: settings / name for name in (_ARGUMENTS, _SETTINGS, _STATISTICS)}
    files[_MODEL] = next((model for model in models if model.is_file()), models[1])
    if not files[_MODEL].is_file():
        raise PolicyLoadError(
            f"{str(folder)!r} holds no model",
            code="policy-folder",
            hint=f"it should have best_model.zip or {settings.name}.zip; "
            "name another one by itself: sb3:FILE",
        )
    # A training without a VecNormalize has no statistics.
    return {name: path for name, path in files.items() if name != _STATISTICS or path.is_file()}


def _load(files: PolicyFiles, options: Keywords, env_spec: EnvSpec, *, deterministic: bool) -> AdaptedPolicy:
    statistics = files.contents.get(_STATISTICS)
    if statistics is None and _read(files, _SETTINGS).get("normalize"):
        raise PolicyLoadError(
            f"the model was trained in a VecNormalize, and {files.path} has no {_STATISTICS}",
            code="normalization-missing",
            hint=f"put it beside {_SETTINGS}: the zoo saves it when a training ends",
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
    """Return what a YAML file of the folder holds. No Python object in it is made."""
    with needing("pyyaml", "yaml"):
        import yaml  # noqa: PLC0415 - only such folders need it
    reader: Any = type("Reader", (yaml.SafeLoader,), {})
    reader.add_multi_constructor("tag:yaml.org,2002:python/", _python_object)
    with reporting(
        PolicyLoadError, f"{name} of {files.path} is not as rl_zoo3 writes it", code="policy-file-damaged"
    ):
        return dict(yaml.load(files.contents[name], reader))  # noqa: S506 - it derives from the safe one


def _python_object(reader: Any, tag: str, node: Any) -> Any:
    """Return the mapping, or the tuple as a list, that a tag names; else the node, which is no value."""
    if tag == "object/apply:collections.OrderedDict":
        return dict(reader.construct_sequence(node, deep=True)[0])
    return reader.construct_sequence(node, deep=True) if tag == "tuple" else node


def _trained_in(files: PolicyFiles) -> TrainingEnv:
    arguments = _read(files, _ARGUMENTS)
    settings = _read(files, _SETTINGS)
    env = arguments.get("env")
    modules = arguments.get("gym_packages") or []
    if not env:
        raise _unavailable(f"{_ARGUMENTS} has no environment")
    if len(modules) > 1:
        raise _unavailable(f"{_ARGUMENTS} has the modules {modules}, and an id takes one")
    if vector := settings.get("vec_env_wrapper"):
        raise _unavailable(f"it was a vector environment in {vector}")
    entries = settings.get("env_wrapper")
    if not isinstance(entries, list):
        entries = [entries]
    wrappers = [_wrapper(entry) for entry in entries if entry]
    if frames := settings.get("frame_stack"):
        wrappers.append((_FRAMES, {"n": frames}))
    return TrainingEnv(":".join([*modules, env]), dict(arguments.get("env_kwargs") or {}), wrappers)


def _wrapper(entry: Any) -> tuple[str, Keywords]:
    """Return SPEC and arguments of a wrapper: `module.Class` in the zoo, or `{module.Class: arguments}`."""
    name, kwargs = next(iter(entry.items())) if isinstance(entry, dict) else (entry, {})
    if not isinstance(name, str) or "." not in name:
        raise _unavailable(f"an env_wrapper is no dotted class with arguments, but {entry}")
    module, _, attribute = name.rpartition(".")
    return f"{module}:{attribute}", dict(kwargs)


def _unavailable(reason: str) -> PolicyLoadError:
    return PolicyLoadError(
        f"the environment of the run folder cannot be made again: {reason}",
        code="zoo-environment",
        hint="name the environment, and what it is wrapped in: {env=…} {wrapper=…}",
    )


def _about(files: PolicyFiles) -> Record:
    return {
        "saved_by": versions_of(files.contents[_MODEL]),
        "trained_in": _read(files, _ARGUMENTS).get("env"),
    }


ZOO = FileScheme(
    "zoo",
    "a run folder of rl_zoo3",
    _load,
    {"trust": bool},
    takes_folder=True,
    needs=NEEDS,
    beside=_beside,
    about=_about,
    trained_in=_trained_in,
)
