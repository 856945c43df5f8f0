"""NativeRows, which resets the rows of a vector environment, and NativePolicy, which acts in all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from rollout_cli.envs.describe import AutoresetMode, autoreset_mode, layers, time_limit_of, vector_name
from rollout_cli.envs.source import Vector
from rollout_cli.episodes.spaces import Array, Leaf, SpaceRows
from rollout_cli.errors import EnvLoadError
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.seeding.seeds import derive_seed, env_seed
from rollout_cli.workers.batches import leaf_batch, row_mask
from rollout_cli.workers.checks import BadValueError, bad_action, bounds_of, clipped, shown
from rollout_cli.workers.values import NO_NUMBER
from rollout_cli.workers.worker import Setting

_FINAL = {"final_obs", "final_info", "_final_obs", "_final_info"}
_STATISTICS = ("episode_start_times", "episode_returns", "episode_lengths", "prev_dones")


class NativeRows:
    """The rows of a vector environment.

    Attributes:
        env: The vector environment.
        n_rows: Number of rows.
        mode: The autoreset mode.
        keeps_mask: True once a reset of some rows was observed to leave the others unchanged.

    Raises:
        EnvLoadError: If `env` does not have `n_rows` rows, or its metadata lack the autoreset mode.
    """

    def __init__(self, env: Vector, n_rows: int, root: int) -> None:
        if env.num_envs != n_rows:
            raise EnvLoadError(
                f"expected a vector environment with {n_rows} rows, got {env!r}",
                code="env-not-vector",
                hint="pass an EnvSource, or omit vectorization='native'",
            )
        self._root = root
        # Any: its `reset` takes one seed per row, unlike the signature of VectorEnv.
        self.env: Any = env
        self.n_rows = n_rows
        self.mode = autoreset_mode(env)
        self._statistics = [layer for layer in layers(env) if isinstance(layer, RecordEpisodeStatistics)]
        self._takes_list = True
        self.keeps_mask = False
        self._filler_number = 0  # Rows without an episode use this number's seed.

    @property
    def resets_itself(self) -> bool:
        """True if the environment resets ended rows by itself, without a seed per episode."""
        return self.mode is not AutoresetMode.DISABLED

    def check_limit(self, limit: float) -> None:
        """Raise EnvLoadError if the environment resets rows itself but later than after `limit` steps."""
        own_limit = time_limit_of(self.env) or math.inf
        if self.resets_itself and own_limit > limit:
            raise EnvLoadError(
                f"{vector_name(self.env)} resets its rows itself, "
                + (f"after {own_limit:g} steps" if own_limit < math.inf else "without a known time limit")
                + f"; its episodes cannot be truncated at {limit:g} steps",
                code="env-autoreset",
                hint="omit {max_episode_length}, or set the environment's own time limit by its arguments, "
                "such as {env_kwargs=max_episode_steps=N}, or max_num_frames_per_episode=N for ALE",
            )

    def reset(self, rows: Array, numbers: Array, *, is_first: bool) -> tuple[Any, Array]:
        """Reset rows (k,) for the episodes `numbers` (n,).

        `rows` are all rows at the first reset, and at every reset if the environment resets rows itself.
        Return the result of `env.reset` for the batch, and the seeds of `rows` (k,), -1 for no seed.
        """
        if self.resets_itself:
            # No two workers share a number, so no two start with the same seed. The seed has 31 bits.
            lowest = int(numbers[numbers != NO_NUMBER].min())
            return self.env.reset(seed=env_seed(self._root, lowest) >> 1), np.full(len(rows), -1)
        # Rows without an episode repeat a running one: with a new seed they might fail, and the error would
        # name the running episodes.
        self._filler_number = min(numbers[numbers != NO_NUMBER].tolist(), default=self._filler_number)
        mask = row_mask(rows, self.n_rows)
        seeds = np.zeros(len(numbers), np.int64)
        numbers = np.where(numbers == NO_NUMBER, self._filler_number, numbers)
        seeds[rows] = [env_seed(self._root, number) for number in numbers[rows].tolist()]
        # gymnasium's vector environments remove the mask from the options, and RecordEpisodeStatistics then
        # resets its counters in all rows: restore the counters of the rows that keep running.
        statistics = [
            (layer, name, getattr(layer, name)) for layer in self._statistics for name in _STATISTICS
        ]
        result = self._reset(mask, seeds, None if is_first else {"reset_mask": mask.copy()})
        for layer, name, before in statistics:
            setattr(layer, name, np.where(mask, getattr(layer, name), before))
        return result, seeds[rows] if self._takes_list else seeds[rows] >> 1

    def _reset(self, mask: Array, seeds: Array, options: dict[str, Any] | None) -> Any:
        if self._takes_list:
            try:
                return self.env.reset(seed=seeds.tolist(), options=options)
            except TypeError:
                if options is not None:
                    raise
            self._takes_list = False
        # ALE takes an array of 31-bit seeds, only of the rows to reset.
        return self.env.reset(seed=seeds[mask] >> 1, options=options)

    def final_infos(self, infos: Mapping[Any, Any]) -> tuple[Any, list[Any], dict[Any, Any]]:
        """Return a SAME_STEP step's final observations, their infos, and the infos of the new episodes."""
        if "final_obs" not in infos:
            raise BadValueError(
                "the infos lack 'final_obs' at the end of an episode, expected it in the mode SAME_STEP",
                "return final_obs in the infos, or declare another autoreset_mode in the metadata",
                code="final-observation-missing",
            )
        # RecordEpisodeStatistics puts its values among the new episodes' infos; they describe ended episodes.
        keys = [layer._stats_key for layer in self._statistics]  # noqa: SLF001  It has no public name.
        statistics = {key: infos[key] for key in keys if key in infos}
        last_infos = [statistics]
        if infos.get("final_info") is not None:
            last_infos = [infos["final_info"], statistics]
        keys_of_ended = _FINAL.union(keys, (f"_{key}" for key in keys))
        present_infos = {key: value for key, value in infos.items() if key not in keys_of_ended}
        return infos["final_obs"], last_infos, present_infos

    def check_left_alone(self, rows: Array, before: list[Array], after: list[Array]) -> None:
        """Raise EnvLoadError if a reset of `rows` changed observations of other rows; this is checked once.

        `before` and `after` hold the observations before and after the reset, one array (n, *shape) per leaf.
        """
        other_rows = ~row_mask(rows, self.n_rows)
        if self.keeps_mask or not other_rows.any():
            return
        for old_leaf, new_leaf in zip(before, after, strict=True):
            if _content(old_leaf[other_rows]) != _content(new_leaf[other_rows]):
                raise EnvLoadError(
                    f"{vector_name(self.env)} resets rows that options['reset_mask'] excludes",
                    code="reset-mask-ignored",
                    hint="reset only the rows of the mask, or declare another autoreset_mode in the metadata",
                )
        self.keeps_mask = True


class NativePolicy:
    """One policy, called once per step with all rows; actions of rows without an episode are ignored."""

    def __init__(self, setting: Setting, rows: NativeRows) -> None:
        self._root = setting.root
        self._seeder = setting.seeders[-1]
        self._rule = setting.rule
        self._policy = setting.policy
        self._rows = rows
        self._spaces = SpaceRows(setting.worker.env_spec.action_space)
        bounds = _integer_range if self._rule == "warn" else bounds_of
        self._bounds = [bounds(leaf) for leaf in self._spaces.leaves]

    def use(self, policy: AdaptedPolicy) -> None:
        """Use another policy of the same form, or new parameters."""
        self._policy = policy
        self.watch()

    def watch(self) -> None:
        """Search for generators, after a build, an update, or the first reset."""
        self._seeder.watch(policy=self._policy, env=self._rows.env)

    def seed_all(self, numbers: Array) -> None:
        """Seed the global generators and all rows (n,); rows without an episode get a spare number."""
        lowest = int(numbers[numbers != NO_NUMBER].min())
        rows = np.arange(len(numbers))
        self._seeder.begin(lowest)
        self.seed(rows, np.where(numbers == NO_NUMBER, lowest + rows, numbers))

    def seed(self, rows: Array, numbers: Array) -> None:
        """Seed the policy for the episodes `numbers` (k,) of `rows` (k,), before their reset."""
        if self._policy.seed_rows is not None:
            seeds = np.zeros(self._rows.n_rows, np.uint64)
            seeds[rows] = [derive_seed(self._root, number, "policy") for number in numbers.tolist()]
            self._policy.seed_rows(row_mask(rows, self._rows.n_rows), seeds)

    def reset(self, rows: Array) -> None:
        """Reset the policy in `rows` (k,), after the environment; the first time, in all rows."""
        if self._policy.resets:
            self._policy.reset(row_mask(rows, self._rows.n_rows))

    @property
    def observes_rewards(self) -> bool:
        return self._policy.observe_rewards is not None

    def observe(self, mask: Array, rewards: Array) -> None:
        """Give the policy the rewards (n,) of the last step; only those of the rows in the mask (n,) count."""
        assert self._policy.observe_rewards is not None
        self._policy.observe_rewards(mask, rewards.copy())

    def act(self, observations: Any, numbers: Array) -> tuple[Any, list[Array], Any]:
        """Choose actions for a tree of arrays (n, *shape); `numbers`, int64 (n,), are the rows' episodes.

        Return the actions as the environment takes them, the actions as one array (n, *shape) per leaf, and
        the infos of the batch.

        Raises:
            BadValueError: If an action in a row with an episode is outside its space; `row` is that row.
        """
        actions, infos = self._policy.get_actions(observations)
        try:
            action_columns = self._spaces.columns(actions)
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(
                f"the actions are {shown(actions)}, expected all parts of the action space ({error!r})",
                "return all keys and entries of the space",
                code="value-structure",
            ) from error
        columns = zip(self._spaces.leaves, self._bounds, action_columns, strict=True)
        leaves = [self._checked(leaf, bounds, values, numbers) for leaf, bounds, values in columns]
        return self._for_env(leaves), leaves, infos

    def _checked(self, leaf: Leaf, bounds: tuple[Any, Any] | None, values: Any, numbers: Array) -> Array:
        if self._rule == "clip":
            values = clipped(values, leaf.space)
        array = leaf_batch("actions", leaf, values, len(numbers))
        if bounds is not None:
            inside = (array >= bounds[0]) & (array <= bounds[1])
        elif leaf.kind == "text" and self._rule != "warn":
            inside = np.array([leaf.space.contains(text) for text in array])
        else:
            return array
        if not inside.all():
            rows = np.flatnonzero(~inside.reshape(len(array), -1).all(axis=1) & (numbers != NO_NUMBER))
            if len(rows):
                raise bad_action(leaf, array[rows[0]], self._rule, row=int(rows[0]))
        return array

    def _for_env(self, leaves: list[Array]) -> Any:
        """Return actions as gymnasium batches them: strings as a tuple, integers in their space's dtype."""
        batched: list[Any] = []
        for leaf, values in zip(self._spaces.leaves, leaves, strict=True):
            if leaf.kind == "text":
                batched.append(tuple(values))
            else:
                batched.append(values.astype(leaf.space.dtype, copy=False))
        return self._spaces.tree(batched)


def _content(values: Array) -> Any:
    """Return an array's values as one object that `==` compares."""
    return values.tolist() if values.dtype == object else values.tobytes()


def _integer_range(leaf: Leaf) -> tuple[int, int] | None:
    """Return the minimum and the maximum of a discrete space's dtype, or None if the column has that dtype.

    Values were converted to the column's dtype before, so they need no check against the same dtype.
    """
    if leaf.kind != "discrete" or leaf.space.dtype == leaf.dtype:
        return None
    limits = np.iinfo(leaf.space.dtype)
    return int(limits.min), int(limits.max)
