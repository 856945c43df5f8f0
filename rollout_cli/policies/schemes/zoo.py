"""The scheme `zoo`: a run folder of rl_zoo3, with a model and the statistics that it was trained with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyLoadError
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.policies.schemes.files import FileScheme, PolicyFiles
from rollout_cli.policies.schemes.sb3 import load_model, versions_of

_MODEL, _ARGUMENTS, _STATISTICS = "model.zip", "args.yml", "vecnormalize.pkl"


def _beside(folder: Path) -> dict[str, Path]:
    """Return the best model, else the last one, and what lies in the subfolder of the environment's name."""
    settings = next((path.parent for path in folder.glob(f"*/{_ARGUMENTS}")), None)
    if settings is None:
        raise PolicyLoadError(
            f"{str(folder)!r} is no run folder of rl_zoo3: no subfolder of it has {_ARGUMENTS}",
            hint="name the folder of one run, such as logs/ppo/Pendulum-v1_1",
        )
    models = (folder / "best_model.zip", folder / f"{settings.name}.zip")
    files = {_ARGUMENTS: settings / _ARGUMENTS, _STATISTICS: settings / _STATISTICS}
    files[_MODEL] = next((model for model in models if model.is_file()), models[1])
    if not files[_MODEL].is_file():
        raise PolicyLoadError(
            f"{str(folder)!r} holds no model",
            hint=f"it should have best_model.zip or {settings.name}.zip; name another one by itself: sb3:FILE",
        )
    return {name: path for name, path in files.items() if path.is_file()}


def _load(
    files: PolicyFiles, options: Mapping[str, Any], env_spec: EnvSpec, *, deterministic: bool
) -> AdaptedPolicy:
    return load_model(
        files.contents[_MODEL],
        files.contents.get(_STATISTICS),
        env_spec,
        deterministic=deterministic,
        trust=options.get("trust", False),
        trained_in=_env_id(files),
    )


def _env_id(files: PolicyFiles) -> str:
    # YAML with Python objects in it, which no safe reader takes: a list of pairs, one value below its name.
    named = re.search(rb"^ *(?:- )*- env\n +- (\S+)", files.contents[_ARGUMENTS], re.MULTILINE)
    return named[1].decode() if named else ""


def _about(files: PolicyFiles) -> Mapping[str, Any]:
    return {"saved_by": versions_of(files.contents[_MODEL]), "trained_in": _env_id(files)}


ZOO = FileScheme(
    "zoo", "a run folder of rl_zoo3", _load, {"trust": bool}, takes_folder=True, beside=_beside, about=_about
)
