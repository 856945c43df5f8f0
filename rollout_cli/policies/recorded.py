"""Recorded actions as a policy: each episode is played by the actions of the one with its number.

Who made the source has read them; nothing here knows how datasets are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, Space, SpaceRows, are_alike
from rollout_cli.errors import PolicyError, PolicyLoadError, UsageError
from rollout_cli.keywords import Record
from rollout_cli.policies.policy import ActionAndInfo, AdaptedPolicy


@dataclass(frozen=True, slots=True)
class RecordedSource:
    """The source of the actions of a dataset.

    Attributes:
        path: The dataset's absolute path, or its URI.
        action_space: The space that the actions are of.
        root_seeds: Those of the runs that its episodes come from, in order.
        steps: By the seed that a policy gets for an episode, its first step, and one past its last.
        columns: The actions of all steps, an array (T, *shape) a leaf.
    """

    path: str
    action_space: Space
    root_seeds: tuple[int, ...]
    steps: Mapping[int, tuple[int, int]] = field(repr=False)
    columns: tuple[Array, ...] = field(repr=False)

    def root_seed(self, asked: int | None) -> int:
        """Return the root seed of a run that plays these episodes, where the user asked for this one or none.

        Raises:
            UsageError: If its episodes have another one, or several.
        """
        root_seed = self.root_seeds[0] if asked is None else asked
        if root_seed not in self.root_seeds or (asked is None and len(self.root_seeds) > 1):
            run = "no seed is given" if asked is None else f"the run has {asked}"
            seeds = " or ".join(map(str, self.root_seeds))
            raise UsageError(
                f"the episodes of {self.path} have the root seed {seeds}, and {run}",
                code="recording-seed",
                hint=f"number and root seed decide how an episode begins: {{seed={self.root_seeds[0]}}}",
            )
        return root_seed

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> RecordedPolicy:  # noqa: ARG002
        """Return the policy, which draws nothing; PolicyLoadError where the action space is another one."""
        if not are_alike(env_spec.action_space, self.action_space):
            raise PolicyLoadError(
                f"the actions in {self.path} are of {self.action_space}, "
                f"and the environment's are of {env_spec.action_space}",
                code="policy-space",
                hint="replay them in the environment that they were recorded in",
            )
        return RecordedPolicy(self)

    def describe(self) -> Record:
        """Return its record; the hash is that of the actions, and of which episode they belong to."""
        digest = sha256(repr(sorted(self.steps.items())).encode())
        for column in self.columns:
            if column.dtype == object:
                digest.update(repr(column.tolist()).encode())
            else:
                digest.update(column.tobytes())
        return {"scheme": "replay", "path": self.path, "sha256": digest.hexdigest(), "options": {}}


class RecordedPolicy(AdaptedPolicy):
    """Plays the recorded actions of the episode that it is seeded for, whatever it observes."""

    row_by_row = True

    def __init__(self, source: RecordedSource) -> None:
        super().__init__()
        self._source = source
        self._rows = SpaceRows(source.action_space)
        self._actions: Iterator[Any] = iter(())

    def seed(self, seed: int) -> None:
        """Begin an episode; PolicyError where the dataset does not have it."""
        if seed not in self._source.steps:
            raise PolicyError(
                f"{self._source.path} has no episode of this number and of the run's root seed",
                code="recording-missing",
                hint="ask for numbers that it has: {episodes=A:B}, "
                f"with {{seed={self._source.root_seeds[0]}}}",
            )
        start, stop = self._source.steps[seed]
        # Copied, since an environment may write into the action that it gets.
        columns = [column[start:stop].copy() for column in self._source.columns]
        self._actions = iter(self._rows.split(self._rows.tree(columns)))

    def get_action(self, observation: Any) -> ActionAndInfo:  # noqa: ARG002
        for action in self._actions:
            return action, {}
        raise PolicyError(
            "the episode goes on after its recorded actions",
            code="recording-ended",
            hint="its environment, or its limit of steps, is not the one that it was recorded in",
        )
