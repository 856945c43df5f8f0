"""The scheme `d3rlpy`: a `.d3` file of d3rlpy's `save`.

The file is a pickle of three plain values: the algorithm's configuration as JSON, its tensors, and d3rlpy's
version. d3rlpy rebuilds the algorithm from them; no code in the file runs.
"""

from __future__ import annotations

import io
import math
from typing import Any

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Tree
from rollout_cli.errors import PolicyLoadError
from rollout_cli.keywords import Keywords, Record
from rollout_cli.policies.networks import NetworkPolicy
from rollout_cli.policies.noise import RowNoise
from rollout_cli.policies.policy import ActionsAndInfos
from rollout_cli.policies.schemes.files import FileScheme, PolicyFiles
from rollout_cli.policies.schemes.torch import tensors_alone
from rollout_cli.policies.schemes.unpickle import Allowed, restricted_loads

_NOTHING = Allowed("a d3rlpy model", hint="save the model again; d3rlpy does not write such files")
_DRAWING = ("bcq", "bear", "crr")
"""Algorithms whose best action is chosen from several sampled actions."""


class D3rlpyPolicy(NetworkPolicy):
    """Acts greedily by the `predict` of a d3rlpy algorithm, with and without `deterministic`.

    A stochastic algorithm samples from torch's global generator, which is seeded per episode, so it acts row
    by row.

    Raises:
        PolicyLoadError: The algorithm has other observations or actions, or is stochastic although
            `deterministic` is true.
    """

    def __init__(self, algorithm: Any, env_spec: EnvSpec, *, deterministic: bool) -> None:
        super().__init__(algorithm, env_spec, deterministic=deterministic)
        # d3rlpy treats a scalar as a vector of length 1.
        shapes = [[*leaf.shape] or [1] for leaf in self._observations.leaves]
        size = int(self._space.n) if self._action.kind == "discrete" else math.prod(self._action.shape)
        _check("observations", _plain(algorithm.observation_shape), shapes[0] if len(shapes) == 1 else shapes)
        kind = "discrete" if algorithm.get_action_type().name == "DISCRETE" else "box"
        _check("actions", [kind, algorithm.action_size], [self._action.kind, size])
        self.row_by_row = algorithm.config.get_type() in _DRAWING
        if self.row_by_row and deterministic:
            raise PolicyLoadError(
                f"{type(algorithm).__name__} predicts the best of several sampled actions, "
                "and has no deterministic mode",
                code="policy-not-deterministic",
                hint="omit {deterministic}",
            )

    def _act(self, observations: Tree, numbers: RowNoise) -> ActionsAndInfos:
        columns = [
            column.reshape(len(column), *column.shape[1:] or (1,))
            for column in self._observations.columns(observations)
        ]
        actions = self.wrapped.predict(columns[0] if len(columns) == 1 else columns)
        if self._action.kind == "discrete":
            actions = actions + int(self._space.start)  # d3rlpy's actions start at 0.
        return self._typed(actions.reshape(len(numbers), *self._action.shape), len(numbers)), {}


def _plain(shape: Any) -> Any:
    """Return a shape, or a sequence of shapes, as lists of integers."""
    if isinstance(shape, list | tuple):
        return list(map(_plain, shape))
    return int(shape)


def _check(name: str, saved: list[Any], expected: list[Any]) -> None:
    if saved != expected:
        raise PolicyLoadError(
            f"the {name} of the model are {saved}, but the environment has {expected}",
            code="policy-space",
            hint="use the arguments and wrappers of the training environment",
        )


def _contents(files: PolicyFiles) -> Record:
    contents: Record = restricted_loads(files.data, trust=False, allowed=_NOTHING)
    return contents


def _load(
    files: PolicyFiles,
    options: Keywords,  # noqa: ARG001
    env_spec: EnvSpec,
    *,
    deterministic: bool,
) -> D3rlpyPolicy:
    from d3rlpy.algos import QLearningAlgoBase  # noqa: PLC0415 - only workers with such a policy need it
    from d3rlpy.base import LearnableConfigWithShape  # noqa: PLC0415 - as above

    contents = _contents(files)
    algorithm: Any = LearnableConfigWithShape.deserialize(contents["config"]).create("cpu:0")
    if not isinstance(algorithm, QLearningAlgoBase):
        raise PolicyLoadError(
            f"{files.path} is a {type(algorithm).__name__}, which needs a target return",
            code="policy-unsupported",
            hint="load it in a function that fixes the target return, and pass the function as module:attr",
        )
    with tensors_alone():
        algorithm.impl.load_model(io.BytesIO(contents["torch"]))
    return D3rlpyPolicy(algorithm, env_spec, deterministic=deterministic)


def _about(files: PolicyFiles) -> Record:
    return {"saved_by": {"d3rlpy": str(_contents(files)["version"])}}


D3RLPY = FileScheme(
    "d3rlpy", "a d3rlpy model", _load, needs={"d3rlpy": "d3rlpy", "torch": "torch"}, about=_about
)
