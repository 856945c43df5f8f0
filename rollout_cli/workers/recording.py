"""Recording in one environment: columns that grow by one sample a step, and the episodes that are cut from them.

This is the hot path of a worker with one environment: one call a step for the observation and one for the action. An
array of its space's own type costs one comparison and one copy to bytes. Every other value goes a slower way, which
converts it where no meaning is lost, and refuses the rest.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.episodes.infos import InfoTable, tabulate
from rollout_cli.episodes.spaces import Leaf, leaf_getters, space_leaves, unflatten
from rollout_cli.memory import Frames
from rollout_cli.workers.checks import BadValueError, bad_action, checked_text, clipped, inside_check, shown
from rollout_cli.workers.worker import OnInvalidAction

Array = npt.NDArray[Any]
Record = Callable[[Any], Any]
Infos = dict[int, dict[Any, Any]]
"""Info dictionaries by row; rows with an empty one are missing."""

_FEW_NUMBERS = 4_096  # A Discrete of at most so many values has a table of them.
_FRAME_BYTES = 1 << 12  # From so many bytes a sample is copied to its place in one array, and not to bytes first.
_NO_INFO: Mapping[Any, Any] = {}


class SpaceRecorder:
    """Rows of samples of one space.

    Attributes:
        record: Append one sample. Returns it as its space has it: the very same one where its type is right, else a
            converted one. Raises BadValueError for a sample that is none of the space.
        row_bytes: The bytes of one row, without its texts.

    Args:
        space: The space.
        name: What messages call a sample.
        rule: Given for actions: what becomes of one that is outside of its space.
    """

    def __init__(self, space: gymnasium.Space[Any], name: str, rule: OnInvalidAction | None = None) -> None:
        self._columns = [_Column(leaf, name) for leaf in space_leaves(space)]
        self.row_bytes = sum(column.leaf.row_bytes for column in self._columns)
        records = [column.recording() if rule is None else column.recording_actions(rule) for column in self._columns]
        self.record = _recording_tree(space, records, name)

    def cut(self, count: int) -> tuple[Array, ...]:
        """Remove the first `count` rows and return them, one array (count, *leaf.shape) a leaf."""
        return tuple(column.cut(count) for column in self._columns)

    def truncate(self, count: int) -> None:
        """Remove all rows but the first `count`; a sample that failed may be in some columns only."""
        for column in self._columns:
            column.truncate(count)


def _recording_tree(space: gymnasium.Space[Any], records: list[Record], name: str) -> Record:
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return records[0]
    getters = leaf_getters(space)

    def record(sample: Any) -> Any:
        try:
            values = [get(sample) for get in getters]
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(f"{name} lacks {error!r}: {sample!r:.200}, expected a sample of {space}") from error
        kept = [record(value) for value, record in zip(values, records, strict=True)]
        # Only where a value was converted is another tree needed.
        return sample if all(map(operator.is_, values, kept)) else unflatten(space, kept)

    return record


class _Column:
    """The rows of one leaf, as bytes, integers or texts, or as frames."""

    def __init__(self, leaf: Leaf, name: str) -> None:
        self.leaf = leaf
        self._rows: list[Any] = []
        self._name = f"{name} at {leaf.name!r}" if leaf.path else name
        # A space that was pickled has a dtype object of its own; the usual one lets `is` take the place of `==`.
        self._dtype: np.dtype[Any] = np.dtype(leaf.dtype.type)
        is_large = leaf.kind not in ("discrete", "text") and leaf.row_bytes >= _FRAME_BYTES
        self._frames = Frames(self._dtype, leaf.shape) if is_large else None

    def truncate(self, count: int) -> None:
        del self._rows[count:]
        if self._frames is not None:
            self._frames.truncate(count)

    def cut(self, count: int) -> Array:
        if self._frames is not None:
            return self._frames.cut(count)
        rows = self._rows[:count]
        del self._rows[:count]
        if self.leaf.kind in ("discrete", "text"):
            return np.array(rows, self._dtype)
        # A bytearray rather than bytes, so that the arrays can be written to by whoever gets them.
        return np.frombuffer(bytearray().join(rows), self._dtype).reshape(count, *self.leaf.shape)

    def recording(self) -> Record:
        """Return the function that appends one value."""
        append, convert, integer, ndarray = self._rows.append, self._converted, self._integer, np.ndarray
        dtype, shape, name, space = self._dtype, self.leaf.shape, self._name, self.leaf.space
        frames: Any = self._frames

        def record_array(value: Any) -> Any:
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                value = convert(value)
            append(value.tobytes())
            return value

        def record_frame(value: Any) -> Any:
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                value = convert(value)
            frames.append(value)
            return value

        def record_integer(value: Any) -> Any:
            append(value if type(value) is int else integer(value))
            return value

        def record_text(value: Any) -> Any:
            append(checked_text(name, value, space))
            return value

        records = {"discrete": record_integer, "text": record_text}
        return records.get(self.leaf.kind, record_array if frames is None else record_frame)

    def recording_actions(self, rule: OnInvalidAction) -> Record:
        """Return the function that appends one value before the environment gets what it returns."""
        if self.leaf.kind == "discrete":
            return self._recording_numbers(rule)
        leaf, record = self.leaf, self.recording()
        if rule == "warn":
            return record
        is_inside, clips = inside_check(leaf), rule == "clip" and leaf.kind == "box"

        def record_checked(value: Any) -> Any:
            value = record(clipped(value, leaf.space) if clips else value)
            if not is_inside(value):
                raise bad_action(leaf, value, rule)
            return value

        return record_checked

    def _recording_numbers(self, rule: OnInvalidAction) -> Record:
        leaf, append, integer = self.leaf, self._rows.append, self._integer
        kind: Any = np.dtype(leaf.space.dtype).type
        low, high = leaf.bounds or (0, -1)
        # A number is looked up several times as fast as made.
        table = {number: kind(number) for number in range(low, high + 1)} if high - low < _FEW_NUMBERS else {}
        least, greatest = (np.iinfo(kind).min, np.iinfo(kind).max) if rule == "warn" else (low, high)

        def record(value: Any) -> Any:
            number = value if type(value) is int else integer(value)
            found = table.get(number)
            if found is None:
                if not least <= number <= greatest:
                    raise bad_action(leaf, number, rule)
                found = kind(number)
            append(number)
            return found  # Not Python's integer: gymnasium's check of it takes longer, and `sample` gives numpy's.

        return record

    def _converted(self, value: Any) -> Array:
        """Return an array of the leaf's type and shape."""
        try:
            array = np.asarray(value)
        except Exception as error:  # A foreign array (a tensor with a gradient) may refuse in any way.
            raise self._refusal(value) from error
        if array.shape != self.leaf.shape or not np.can_cast(array.dtype, self._dtype, "same_kind"):
            raise self._refusal(value)
        with np.errstate(over="ignore"):  # A number that is too large becomes inf, which the checks name.
            return np.asarray(array, self._dtype)

    def _integer(self, value: Any) -> int:
        """Return Python's integer of a number, or of a comparison of numpy values, which gives numpy's bool."""
        try:
            return int(value) if isinstance(value, np.bool_) else operator.index(value)
        except TypeError as error:
            raise self._refusal(value) from error

    def _refusal(self, value: Any) -> BadValueError:
        got = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else shown(value)
        leaf = self.leaf
        return BadValueError(f"{self._name} is {got}, expected {leaf.dtype}{leaf.shape} of {leaf.space}")


class EpisodeRecorder:
    """The episode that runs in one environment, behind the finished ones that nobody took yet.

    All steps lie in one list a column, the finished episodes' first, so that an episode's end costs a few appends.

    Attributes:
        observations, actions: Record samples here, one each a step.
        rewards: Append floats here, one a step; its length is the number of rows.
        env_infos, agent_infos: Put `frozen_copy` of info dictionaries that are not empty here, by row.
        reset_info: The same of `env.reset`.
        first_row: The row of the running episode's first step.
        row_bytes: The bytes of one row, without its infos and texts.
    """

    def __init__(self, env_spec: EnvSpec, worker_number: int, rule: OnInvalidAction) -> None:
        self.observations = SpaceRecorder(env_spec.observation_space, "the observation")
        self.actions = SpaceRecorder(env_spec.action_space, "the action", rule)
        self.rewards: list[float] = []
        self.env_infos: Infos = {}
        self.agent_infos: Infos = {}
        self.reset_info: dict[Any, Any] = {}
        self.first_row = 0
        self.row_bytes = self.observations.row_bytes + self.actions.row_bytes + 8
        self._last_observations = SpaceRecorder(env_spec.observation_space, "the observation")
        self._worker_number = worker_number
        self._finished: list[tuple[Any, ...]] = []

    @property
    def step(self) -> int:
        """Return how many steps the running episode has."""
        return len(self.rewards) - self.first_row

    def finish(self, facts: tuple[int, int, int, bool, bool, float], last_observation: Any) -> None:
        """End the episode: its number, seed, length, whether it was terminated and truncated, and its seconds."""
        self._last_observations.record(last_observation)
        self._finished.append((*facts, self.reset_info))
        self.first_row = len(self.rewards)

    def discard(self) -> None:
        """Forget the episode that runs, also where it failed in the middle of a step."""
        self.observations.truncate(self.first_row)
        self.actions.truncate(self.first_row)
        self._last_observations.truncate(len(self._finished))
        del self.rewards[self.first_row :]
        for infos in (self.env_infos, self.agent_infos):
            for row in [row for row in infos if row >= self.first_row]:
                del infos[row]

    def take(self) -> Chunk | None:
        """Remove the finished episodes and return them in the order of their numbers; None where there are none."""
        if not self._finished:
            return None
        count = self.first_row
        numbers, seeds, lengths, terminated, truncated, wall_times, infos = zip(*self._finished, strict=True)
        chunk = Chunk(
            numbers=np.array(numbers, np.int64),
            seeds=np.array(seeds, np.int64),
            lengths=np.array(lengths, np.int64),
            terminated=np.array(terminated, bool),
            truncated=np.array(truncated, bool),
            workers=np.full(len(self._finished), self._worker_number, np.int32),
            wall_times=np.array(wall_times, np.float64),
            observations=self.observations.cut(count),
            actions=self.actions.cut(count),
            rewards=np.array(self.rewards[:count], np.float64),
            last_observations=self._last_observations.cut(len(self._finished)),
            env_infos=_cut_infos(self.env_infos, count),
            agent_infos=_cut_infos(self.agent_infos, count),
            episode_infos=tabulate(infos),
        )
        del self.rewards[:count]
        self._finished, self.first_row = [], 0
        return in_order(chunk)


def _cut_infos(infos: Infos, count: int) -> InfoTable:
    """Remove the infos of the first `count` rows and return them; the rows of the others count from there."""
    table = tabulate([infos.pop(row, _NO_INFO) for row in range(count)]) if infos else InfoTable(count)
    for row in sorted(infos):
        infos[row - count] = infos.pop(row)
    return table


def in_order(chunk: Chunk) -> Chunk:
    """Return a chunk's episodes in the order of their numbers."""
    order = np.argsort(chunk.numbers)
    runs = np.split(order, np.flatnonzero(np.diff(order) != 1) + 1)
    return concatenate([chunk.episodes(int(run[0]), int(run[-1]) + 1) for run in runs])
