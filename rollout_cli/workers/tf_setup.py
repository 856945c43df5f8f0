"""The ready-made set-up of `is_tf_worker=True`: a TensorFlow session, as policies of TensorFlow 1's style need one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rollout_cli.errors import UsageError


@contextmanager
def tensorflow_session() -> Iterator[None]:
    """Make a new graph the default one, and a session of it the default session, until the worker ends.

    Raises:
        UsageError: If TensorFlow is missing.
    """
    tf = _tensorflow()
    with tf.Graph().as_default(), tf.Session().as_default():
        yield


def _tensorflow() -> Any:
    try:
        tensorflow = importlib.import_module("tensorflow")
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise UsageError(
            "is_tf_worker=True needs TensorFlow, which is not installed", hint="pip install tensorflow"
        ) from error
    # TensorFlow 2 keeps the sessions of TensorFlow 1 there.
    compat = getattr(tensorflow, "compat", None)
    return compat.v1 if compat is not None else tensorflow
