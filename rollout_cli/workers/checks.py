"""What user code gives at each step, held against its interface; and the errors that say whose step it was.

A value that cannot be used raises BadValueError. Nothing here is called for a step that is as it should be,
except the comparison of an action with its bounds: an action outside of its space fails before the
environment sees it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.episodes.spaces import Array, Leaf, has_utf8
from rollout_cli.errors import EnvError, PolicyError, RolloutError, UserCodeError
from rollout_cli.sources.loading import first_line, is_interrupt

RESET = "env.reset"
STEP = "env.step"
RESET_RESULT = "the result of env.reset"
STEP_RESULT = "the result of env.step"
_INTERFACES = {
    RESET_RESULT: (RESET, "(observation, info)"),
    STEP_RESULT: (STEP, "(observation, reward, terminated, truncated, info)"),
}
_REWARD_HINT = "a reward is one real number that a float can hold: 0.0 where a step is worth nothing"
ENDLESS_HINT = (
    "{max_episode_length=N} truncates it; "
    "{episode_step_guard=…} says how long an episode without a limit may get"
)


class BadValueError(Exception):
    """A value of the user's code that its interface forbids; the message says which, and what was expected.

    `code` is the code of the error that reports it; `row`, the row of a vector environment that is at fault,
    if that row runs an episode.
    """

    def __init__(
        self,
        message: str,
        hint: str = "make it match the space, or the space match it",
        row: int | None = None,
        *,
        code: str,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.row = row
        self.code = code


def shown(value: Any) -> str:
    """Return a value as a message shows it: its type and the beginning of its text."""
    return f"{type(value).__name__} {value!r:.80}"


def as_reward(reward: Any) -> float:
    """Return a reward as a float: a real number, or an array of any library that holds one."""
    number = float(reward) if isinstance(reward, _FLOATS) else _number_in(reward)
    if number is None:
        raise _bad_result("reward", reward, "a real number", _REWARD_HINT)
    return number


def as_flag(name: str, flag: Any) -> bool:
    """Return `terminated` or `truncated` as a bool; an array of any library may hold it, or 0 or 1."""
    number = _number_in(flag)
    if number not in (0.0, 1.0):
        raise _bad_result(name, flag, "a bool", "return True or False for terminated and for truncated")
    return number == 1.0


_FLOATS = (float, np.floating)
# `float` parses strings, and takes the real part of numpy's complex numbers.
_NO_NUMBERS = (str, bytes, np.complexfloating)


def element(value: Any) -> Any:
    """Return the number in an array of one element, of any library; a value that is no array as it is."""
    if hasattr(value, "__array__") and not hasattr(value, "item"):  # As TensorFlow's.
        value = np.asarray(value)
    return value.item() if hasattr(value, "item") else value


def _number_in(value: Any) -> float | None:
    """Return a real number, or the number in an array of one element; None for anything else."""
    try:
        value = element(value)
        return None if isinstance(value, _NO_NUMBERS) else float(value)
    except Exception:  # noqa: BLE001  A foreign array may refuse in any way.
        return None


def _bad_result(name: str, value: Any, expected: str, hint: str) -> BadValueError:
    shape = getattr(value, "shape", ())
    of_shape = ""
    if shape and isinstance(shape, tuple):
        of_shape = f" of shape {tuple(shape)}"
    text = " ".join(repr(value).split())
    return BadValueError(
        f"{STEP} returned {name}={text:.80} ({type(value).__name__}{of_shape}); expected {expected}",
        hint,
        code="step-value",
    )


def as_array(values: Any) -> Any:
    """Return what numpy makes of values, also of a tensor with a gradient or on another device."""
    try:
        return np.asarray(values)
    except Exception:  # Which one, the library decides.
        if not hasattr(values, "detach"):
            raise
        return np.asarray(values.detach().cpu())


def cast_numbers(name: str, verb: str, leaf: Leaf, numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Return a copy of numbers in a leaf's type; BadValueError if that has no room for an integer."""
    with np.errstate(over="ignore"):  # A number that is too large becomes inf, which the checks name.
        converted = numbers.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(converted, numbers):
        raise BadValueError(
            f"{name} {verb} numbers for which {dtype} has no room, of {leaf.space}", code="number-range"
        )
    return converted


def checked_text(name: str, value: Any, expected: Any) -> str:
    """Return a text; one that has no UTF-8 (a lone surrogate) cannot be stored."""
    if not isinstance(value, str):
        raise BadValueError(f"{name} is {shown(value)}, expected a text of {expected}", code="string-value")
    if not (value.isascii() or has_utf8(value)):
        raise BadValueError(
            f"{name} is a text that has no UTF-8: {value!r:.80}",
            "escape lone surrogates",
            code="string-value",
        )
    return value if type(value) is str else str(value)


_VALUES = (bool, int, float, str, np.generic, type(None))


def frozen_copy(info: Any) -> dict[Any, Any]:
    """Return an info dictionary that later changes to `info`, or to its values, do not reach."""
    if not isinstance(info, Mapping):
        raise BadValueError(
            f"the info is no dictionary: {shown(info)}",
            "give {} where there is nothing to say",
            code="info-type",
        )
    return {  # hot loop: it runs at each step that has an info, and a call for each value costs more
        key: value if isinstance(value, _VALUES) else copied(value) for key, value in info.items()
    }


def copied(value: Any) -> Any:
    """Return a copy of one info value; the value itself where it cannot be copied."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.copy()
    try:
        return frozen_copy(value) if isinstance(value, Mapping) else copy.deepcopy(value)
    except Exception:  # noqa: BLE001  A foreign object may refuse in any way; it counts as unstorable later.
        return value


_FEW_NUMBERS = 32  # So many are compared one by one: numpy's calls take longer.


def bad_action(leaf: Leaf, value: Any, rule: str, row: int | None = None) -> BadValueError:
    """Return the error for an action that is not of its space, in a row where there are several."""
    where = f" at {leaf.name!r}" if leaf.path else ""
    numbers = np.asarray(value)
    hint = '{invalid_action="warn"} lets the environment have it'
    if numbers.dtype.kind == "f" and np.isnan(numbers).any():
        hint = "nan has no nearest bound: look at the policy's parameters and at the observation it was given"
    elif leaf.kind == "box" and rule != "clip":
        hint = f'{{invalid_action="clip"}} moves it to the nearest bound, {hint}'
    return BadValueError(
        f"the action{where} is not of its space: {numbers.tolist()!r:.80} of {leaf.space}",
        hint,
        row,
        code="action-outside-space",
    )


def bounds_of(leaf: Leaf) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of each number of a sample; None of a text."""
    if leaf.bounds is None:
        return None
    low, high = (np.broadcast_to(np.asarray(bound), leaf.shape) for bound in leaf.bounds)
    return low, high


def inside_check(leaf: Leaf) -> Callable[[Any], bool]:
    """Return a function that says whether a value in the leaf's own type is of its space."""
    bounds = bounds_of(leaf)
    if bounds is None:
        return leaf.space.contains
    low, high = bounds
    if low.size > _FEW_NUMBERS:
        return lambda value: bool(((value >= low) & (value <= high)).all())
    lows = low.ravel().tolist()
    highs = high.ravel().tolist()

    def few_are_inside(value: Any) -> bool:
        for number, minimum, maximum in zip(value.ravel().tolist(), lows, highs, strict=True):
            if not minimum <= number <= maximum:  # True of nan as well.
                return False
        return True

    return few_are_inside


def clipped(value: Any, space: spaces.Space[Any]) -> Any:
    """Return the value with its numbers moved to the nearest bound of a Box; of other spaces as it is.

    It comes before the conversion to the Box's type: a number that this has no room for would become another
    one.
    """
    if not isinstance(space, spaces.Box):
        return value
    try:
        numbers = as_array(value)
    except ValueError:
        return value  # The recorder says what is wrong with it.
    fits = numbers.dtype.kind in "biuf" and numbers.shape[numbers.ndim - len(space.shape) :] == space.shape
    return np.clip(numbers, space.low, space.high) if fits else value


def sound_episodes(chunk: Chunk) -> tuple[Chunk | None, RolloutError | None]:
    """Return the episodes whose rewards are numbers, None for none, and the error of the first nan."""
    rows = np.flatnonzero(np.isnan(chunk.rewards))
    if not len(rows):
        return chunk, None
    ends = np.cumsum(chunk.lengths)
    faulty = np.searchsorted(ends, rows, side="right")
    index = int(faulty[0])
    row = int(rows[0])
    number = int(chunk.numbers[index])
    step = row - int(ends[index] - chunk.lengths[index])
    hint = "a return needs a number: let the environment say what the step was worth"
    if any(column.dtype.kind == "f" and np.isnan(column[row]).any() for column in chunk.actions):
        hint = "the action of this step is nan, too: look at the policy first"
    place = episode_place(int(chunk.workers[index]), number, int(chunk.seeds[index]), step)
    error = EnvError(
        "the reward is not a number (nan)", code="reward-nan", hint=hint, place=place, episodes=(number,)
    )
    indices = np.setdiff1d(np.arange(chunk.n_episodes), faulty).tolist()
    sound = [chunk.episodes(index, index + 1) for index in indices]
    return concatenate(sound) if sound else None, error


def episode_place(worker: int, number: int, seed: int, step: int) -> str:
    """Return in words where in a run something failed; -1 for no seed: the environment began by itself."""
    seed_text = f", seed {seed}" if seed >= 0 else ""
    return f"worker {worker}, episode {number}{seed_text}, step {step}"


def rows_place(worker: int, numbers: tuple[int, ...], n_rows: int) -> str:
    """Return the same of a call for all rows, of which these episodes ran."""
    episodes = f"episodes {min(numbers)} to {max(numbers)}" if numbers else "no episode"
    return f"worker {worker}, {episodes} of {n_rows} rows"


def blame(where: str, error: BaseException, place: str, numbers: tuple[int, ...] = ()) -> None:
    """Raise the error that says which user code failed, how, and in whose step; return if none is at fault.

    Ctrl-C arrives in whichever code runs; an error of ours that is no UserCodeError is its own message. A
    UserCodeError keeps its words, and gets the place. `numbers` are the episodes in one of which `where`
    (`env.step`) failed. What fails while the result of a call is taken apart is a result that is not as it
    should be.
    """
    if is_interrupt(error):
        return
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        # Python changes its type where it leaves a generator, such as the steps of a row.
        error = error.__cause__
    call, interface = _INTERFACES.get(where, (where, ""))
    kind: type[UserCodeError] = PolicyError if call.startswith("policy") else EnvError
    if isinstance(error, UserCodeError):
        raise error.placed(place, numbers) from error
    if isinstance(error, RolloutError):
        return
    if isinstance(error, BadValueError):
        message = str(error)
        hint = error.hint
        code = error.code
        if not message.startswith(call):
            message = f"{call}: {message}"
    elif interface and isinstance(error, TypeError | ValueError):
        code = "result-type"
        message = f"{call}: the result is not {interface}: {error}"
        hint = f"return {interface}; gym before gymnasium gave fewer: wrap an environment of its interface"
    else:
        code = "policy-raised" if kind is PolicyError else "env-raised"
        hint = "the traceback below shows where; the seed repeats it"
        if isinstance(error, SystemExit):
            hint = "let the code raise an exception, or return, instead of ending the process"
        message = f"{call} raised {first_line(error)}"
    raise kind(message, code=code, hint=hint, place=place, episodes=numbers) from error
