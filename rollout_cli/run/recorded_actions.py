"""The scheme `replay:DATASET`: it reads the actions of a dataset, which `policies/recorded.py` plays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.errors import PolicyLoadError
from rollout_cli.policies.recorded import RecordedSource
from rollout_cli.remote import RemotePath, folder_of
from rollout_cli.seeding.seeds import derive_seed, env_seed


def recorded_source(rest: str, options: Mapping[str, Any]) -> RecordedSource:
    """Return the source of the actions of the dataset `rest`, a path or URI.

    Raises:
        PolicyLoadError: If none is named, there are options, or numbers do not decide its episodes.
        RolloutError: If the dataset cannot be read.
    """
    from rollout_cli.dataset.batches import flat_columns  # noqa: PLC0415 - these load pyarrow
    from rollout_cli.dataset.reader import load  # noqa: PLC0415

    if not rest or options:
        raise PolicyLoadError(
            f"replay:{rest} must name a dataset, and takes no options", hint="for example: replay:runs/expert"
        )
    root, stop = folder_of(rest), 0
    dataset = load(root)
    roots = [int(source["root_seed"]) for source in dataset.info["sources"]]
    steps = dict[int, tuple[int, int]]()
    facts = (dataset.episodes[name].to_pylist() for name in ("source", "episode_number", "seed", "length"))
    for source, number, seed, length in zip(*facts, strict=True):
        key = derive_seed(roots[source], number, "policy")
        if seed != env_seed(roots[source], number) or key in steps:
            raise PolicyLoadError(
                f"the episodes of {rest} cannot be found by their numbers: episode {number} is there twice, "
                "or did not begin by the seed of its number",
                hint="name one of the datasets that were joined; rows that a vector environment resets by "
                "itself cannot be begun again",
            )
        steps[key] = (stop, stop := stop + length)
    space = dataset.env_spec.action_space
    columns = SpaceRows(space).columns(flat_columns(dataset.rows, ["actions"], blank_rows=0)["actions"])
    path = str(root) if isinstance(root, RemotePath) else str(Path.cwd() / root)
    return RecordedSource(path, space, tuple(dict.fromkeys(roots)), steps, columns)
