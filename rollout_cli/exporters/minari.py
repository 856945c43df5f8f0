"""Minari's HDF5 format: https://minari.farama.org/content/dataset_standards/."""

from __future__ import annotations

import json
import re

from gymnasium import spaces

from rollout_cli.episodes.batch import at_ends
from rollout_cli.episodes.plain import Fields
from rollout_cli.episodes.spaces import Space, map_tree, space_leaves
from rollout_cli.errors import UsageError
from rollout_cli.exporters.format import ALL, Export, Format
from rollout_cli.exporters.hdf5 import hdf5_file, put_tree
from rollout_cli.exporters.source import with_last

_VERSION = "0.5.3"
"""The Minari version of this layout; Minari refuses a file of an unknown version."""


def write(export: Export, *, author: str = "", email: str = "", description: str = "") -> None:
    """Write `data/main_data.hdf5` and `data/metadata.json`, for `minari.load_dataset`."""
    target = export.target.absolute()
    identity = "/".join(target.parts[-2:])
    if not re.fullmatch(r"[\w-]{2,}/[\w-]+-v\d+", identity, re.ASCII):
        raise UsageError(
            f"{target} does not end in a Minari namespace and name, such as cartpole/expert-v0",
            code="output-name",
            hint='pass e.g. {output="minari/cartpole/expert-v0"}, and set MINARI_DATASETS_PATH=minari',
        )
    folder = export.path / "data"
    folder.mkdir(parents=True)
    with hdf5_file(export, "data/main_data.hdf5") as file:
        for index, episode in enumerate(export.source):
            group = file.create_group(f"episode_{index}")
            group.attrs.update({"id": index, "total_steps": len(episode), "seed": episode.seed})
            observed = map_tree(with_last, episode.observations, episode.last_observation)
            put_tree(group, "observations", observed)
            put_tree(group, "actions", episode.actions)
            group["rewards"] = episode.rewards
            length = export.lengths[index : index + 1]
            group["terminations"] = at_ends(length, episode.terminated)
            group["truncations"] = at_ends(length, episode.truncated)
            group.create_group("infos")
    metadata = {
        "dataset_id": identity,
        "minari_version": _VERSION,
        "data_format": "hdf5",
        "jpeg_encoding": False,  # The default is true, and JPEG images would lose information.
        "total_episodes": len(export.source),
        "total_steps": export.n_steps,
        "observation_space": json.dumps(_space(export.env_spec.observation_space)),
        "action_space": json.dumps(_space(export.env_spec.action_space)),
        "author": [author] if author else [],
        "author_email": [email] if email else [],
        "description": description,
        "not_held": list(export.losses),
    }
    if references := export.source.info.get("card", {}).get("references"):
        metadata |= {"ref_min_score": references["low"], "ref_max_score": references["high"]}
    # For `recover_environment`. Only gymnasium environments have a spec; a vector one may differ from it.
    env = export.run.get("env", {})
    if env.get("spec_json") and "num_envs" not in env:
        limited = {**json.loads(env["spec_json"]), "max_episode_steps": export.env_spec.max_episode_length}
        metadata["env_spec"] = json.dumps(limited)
    (folder / "metadata.json").write_text(json.dumps(metadata))


def _space(space: Space) -> Fields:
    """Return a space in Minari's JSON form."""
    document: Fields = {"type": "Text" if space_leaves(space)[0].kind == "text" else type(space).__name__}
    match space:
        case spaces.Dict():
            document["subspaces"] = {key: _space(child) for key, child in space.spaces.items()}
        case spaces.Tuple():
            document["subspaces"] = [_space(child) for child in space.spaces]
        case spaces.Box():
            document |= {
                "dtype": str(space.dtype),
                "shape": list(space.shape),
                "low": space.low.tolist(),
                "high": space.high.tolist(),
            }
        case spaces.Discrete():
            document |= {"dtype": "int64", "start": int(space.start), "n": int(space.n)}
        case spaces.MultiDiscrete():
            document |= {
                "dtype": str(space.dtype),
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
            }
        case spaces.MultiBinary():
            document["n"] = list(space.shape)
        case spaces.Text():
            document |= {
                "min_length": space.min_length,
                "max_length": space.max_length,
                "charset": "".join(sorted(space.character_set)),
            }
    return document


FORMAT = Format("minari", "Minari, and TorchRL's Minari reader", write, leaves=ALL, nested=True)
