"""The trajectory format of the `imitation` library.

See https://imitation.readthedocs.io/en/latest/main-concepts/trajectories.html.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import encode_tensor
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.plain import Fields
from rollout_cli.exporters.format import Array, Export, Format

_FILE = "data-00000-of-00001.arrow"


def write(export: Export) -> None:
    """Write a folder for `imitation.data.serialize.load_with_rewards`, with one row per episode."""
    export.path.mkdir()
    writer = None
    with pa.OSFile(str(export.path / _FILE), "wb") as file:
        for batch in export.blocks():
            table = _table(batch)
            writer = writer or pa.ipc.new_stream(file, table.schema)
            writer.write_table(table)
        assert writer is not None  # There is at least one episode.
        writer.close()
    state: Fields = {
        "_data_files": [{"filename": _FILE}],
        "_fingerprint": "0" * 16,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (export.path / "state.json").write_text(json.dumps(state))
    # Without features in this file, every version of `datasets` reads them from the Arrow file.
    description = f"Episodes of {export.env_id}. Not held: {'; '.join(export.losses)}."
    (export.path / "dataset_info.json").write_text(json.dumps({"description": description}))


def _table(batch: EpisodeBatch) -> pa.Table:
    """Return one row per episode; `infos` are jsonpickle strings, and the last one has the kind of the end."""
    observations = np.insert(batch.observations, np.cumsum(batch.lengths), batch.last_observations, axis=0)
    infos = np.full(len(batch.rewards), "{}", object)
    infos[np.cumsum(batch.lengths) - 1] = [
        json.dumps({"terminated": terminated, "truncated": truncated})
        for terminated, truncated in zip(batch.terminated.tolist(), batch.truncated.tolist(), strict=True)
    ]
    columns = {
        "obs": _lists(encode_tensor(observations), batch.lengths + 1),
        "acts": _lists(encode_tensor(batch.actions), batch.lengths),
        "infos": _lists(pa.array(infos, pa.string()), batch.lengths),
        # True for every end of an episode, including a truncation.
        "terminal": pa.array(np.ones(len(batch), np.bool_)),
        "rews": _lists(encode_tensor(batch.rewards), batch.lengths),
    }
    return pa.table(columns)


def _lists(values: pa.Array, lengths: Array) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


FORMAT = Format("imitation", "imitation: BC, GAIL, AIRL", write)
