"""The `huggingface` entry of a shard's schema metadata: the columns as the `datasets` library names their types.

Read with `datasets` 5.2: fixed-size lists come back as lists of that length, nested ones too, dotted names stay, and
images are bytes. Version 3.6 reads all but images: it knows no fixed-size binary type. Tensor extension types were
refused by both, which is why the columns are plain.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

_NAMES = {"double": "float64", "float": "float32", "halffloat": "float16"}


def features_metadata(schema: pa.Schema) -> bytes:
    """Return the value of the `huggingface` key for a file with `schema`."""
    features = {field.name: _feature(field.type) for field in schema}
    return json.dumps({"info": {"features": features}}).encode()


def _feature(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_fixed_size_list(kind):
        # `Sequence` is read by every version; `List`, which replaced it, only from 4.0 on.
        return {"feature": _feature(kind.value_type), "length": kind.list_size, "_type": "Sequence"}
    return {"dtype": _NAMES.get(str(kind), str(kind)), "_type": "Value"}
