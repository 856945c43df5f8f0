"""The scheme `constant:VALUE`: the same action at every step."""

from __future__ import annotations

import copy
import tomllib
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.plain import plain_value
from rollout_cli.episodes.spaces import Space, SpaceRows, Tree, count_rows
from rollout_cli.errors import PolicyLoadError
from rollout_cli.keywords import Keywords, Record
from rollout_cli.policies.policy import ActionAndInfo, ActionsAndInfos, AdaptedPolicy


class ConstantPolicy(AdaptedPolicy):
    """Returns `action`, a sample of the action space, for every observation."""

    row_wise = acts_within_space = True

    def __init__(self, action_space: Space, action: Any) -> None:
        super().__init__()
        self._rows = SpaceRows(action_space)
        self._action = action

    def get_action(self, observation: Any) -> ActionAndInfo:  # noqa: ARG002
        return copy.deepcopy(self._action), {}  # An environment may modify the action that it gets.

    def get_actions(self, observations: Tree) -> ActionsAndInfos:
        return self._rows.stack([self._action] * count_rows(observations)), {}


@dataclass(frozen=True, slots=True)
class ConstantSource:
    """The source of `constant:VALUE`; VALUE is an action as a TOML literal."""

    literal: str
    value: Any

    @classmethod
    def of(cls, literal: str, options: Keywords) -> ConstantSource:
        """Parse the literal; raise PolicyLoadError if it is not valid TOML, or if options are given."""
        if options:
            raise PolicyLoadError(
                "the policy scheme constant takes no options",
                code="policy-options",
                hint="pass the action after the colon",
            )
        try:
            return cls(literal, tomllib.loads(f"value = {literal}")["value"])
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise PolicyLoadError(
                f"the action of constant:{literal} is not a TOML value",
                code="policy-spec",
                hint="pass a TOML value, such as constant:0 or 'constant:[0.1, -0.2]'",
            ) from error

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> ConstantPolicy:  # noqa: ARG002
        """Return the policy, which is deterministic; raise PolicyLoadError if the value is not an action."""
        space = env_spec.action_space
        try:
            action = _sample(space, self.value)
        except (TypeError, ValueError, LookupError, OverflowError):
            action = None
        if action is None or not space.contains(action):
            raise PolicyLoadError(
                f"{self.literal} is not an action of {space}",
                code="policy-action",
                hint="use plain values: lists for arrays and tuples, tables for dictionaries",
            )
        return ConstantPolicy(space, action)

    def describe(self) -> Record:
        return {"scheme": "constant", "path": None, "sha256": None, "options": {}}


def _sample(space: Space, value: Any) -> Any:
    """Return plain values as a sample of the space; raise an error if they do not fit its structure."""
    rows = SpaceRows(space)
    columns = rows.columns(value)
    if plain_value(rows.tree(columns)) != plain_value(value):
        raise ValueError  # The value has entries that the space does not have.
    for leaf, column in zip(rows.leaves, columns, strict=True):
        numbers = np.asarray(column)
        fits = np.can_cast(numbers.dtype, leaf.dtype, "same_kind")
        if numbers.dtype.kind == "i" and leaf.dtype.kind in "iu":  # TOML integers are signed.
            limits = np.iinfo(leaf.dtype)
            fits = limits.min <= numbers.min(initial=0) and numbers.max(initial=0) <= limits.max
        if not fits:
            raise TypeError
    return rows.split(rows.stack([value]))[0]
