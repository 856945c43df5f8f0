"""Recorded actions as a policy: each episode replays the actions of the recorded episode with its number.

The caller reads the actions; this module does not depend on the storage of datasets.
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
    """The source of a policy that replays the actions of a dataset.

    Attributes:
        path: The absolute path or URI of the dataset.
        action_space: The space of the actions.
        root_seeds: The root seeds of the runs that collected the episodes, in order.
        steps: The first step and the end (exclusive) of each episode, by the policy seed of the episode.
        columns: The actions of all steps, an array (T, *shape) per leaf.
    """

    path: str
    action_space: Space
    root_seeds: tuple[int, ...]
    steps: Mapping[int, tuple[int, int]] = field(repr=False)
    columns: tuple[Array, ...] = field(repr=False)

    def root_seed(self, asked: int | None) -> int:
        """Return the root seed for replaying the episodes; `asked` is the user's seed, or None.

        Raises:
            UsageError: No episode has the seed `asked`, or it is None and the episodes have several root seeds.
        """
        root_seed = self.root_seeds[0] if asked is None else asked
        if root_seed not in self.root_seeds or (asked is None and len(self.root_seeds) > 1):
            run = "the run has no seed" if asked is None else f"the run has the root seed {asked}"
            seeds = " or ".join(map(str, self.root_seeds))
            raise UsageError(
                f"{run}, but the episodes of {self.path} have the root seed {seeds}",
                code="recording-seed",
                hint=f"pass the root seed of the episodes: {{seed={self.root_seeds[0]}}}",
            )
        return root_seed

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> RecordedPolicy:  # noqa: ARG002
        """Return the policy, which is deterministic; raise PolicyLoadError if the action spaces differ."""
        if not are_alike(env_spec.action_space, self.action_space):
            raise PolicyLoadError(
                f"the actions in {self.path} have the space {self.action_space}, "
                f"but the environment has {env_spec.action_space}",
                code="policy-space",
                hint="replay the actions in the environment in which they were recorded",
            )
        return RecordedPolicy(self)

    def describe(self) -> Record:
        """Return the record of the source; its hash covers the actions and their assignment to episodes."""
        digest = sha256(repr(sorted(self.steps.items())).encode())
        for column in self.columns:
            if column.dtype == object:
                digest.update(repr(column.tolist()).encode())
            else:
                digest.update(column.tobytes())
        return {"scheme": "replay", "path": self.path, "sha256": digest.hexdigest(), "options": {}}


class RecordedPolicy(AdaptedPolicy):
    """Replays the recorded actions of the episode that it is seeded for, and ignores observations."""

    row_by_row = True

    def __init__(self, source: RecordedSource) -> None:
        super().__init__()
        self._source = source
        self._rows = SpaceRows(source.action_space)
        self._actions: Iterator[Any] = iter(())

    def seed(self, seed: int) -> None:
        """Start the episode of a seed; raise PolicyError if the dataset does not have it."""
        if seed not in self._source.steps:
            raise PolicyError(
                f"{self._source.path} has no episode with this number and root seed",
                code="recording-missing",
                hint="pass recorded episode numbers and their root seed: {episodes=A:B} "
                f"{{seed={self._source.root_seeds[0]}}}",
            )
        start, stop = self._source.steps[seed]
        # Copied, because an environment may modify the action that it gets.
        columns = [column[start:stop].copy() for column in self._source.columns]
        self._actions = iter(self._rows.split(self._rows.tree(columns)))

    def get_action(self, observation: Any) -> ActionAndInfo:  # noqa: ARG002
        for action in self._actions:
            return action, {}
        raise PolicyError(
            "the episode is longer than its recorded actions",
            code="recording-ended",
            hint="use the environment and the time limit of the recording",
        )
