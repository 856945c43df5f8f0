"""Checks of the values that user code returns at each step, and the errors that name the failing step.

An unusable value raises BadValueError. A correct step calls nothing here except the comparison of an action
with its bounds: an action outside its space fails before the environment receives it.
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
_REWARD_HINT = "return one real number that fits in a float; 0.0 if a step has no reward"
ENDLESS_HINT = (
    "pass {max_episode_length=N} to truncate it, "
    "or {episode_step_guard=…} to allow longer episodes without a time limit"
)


class BadValueError(Exception):
    """A value from user code that its interface forbids; the message states the value and the expectation.

    `code` is the code of the error that reports it. `row` is the row of the vector environment that returned
    the value, if that row runs an episode.
    """

    def __init__(
        self,
        message: str,
        hint: str = "change the value or the space so that they match",
        row: int | None = None,
        *,
        code: str,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.row = row
        self.code = code


def shown(value: Any) -> str:
    """Return a value as messages show it: its type and the start of its repr."""
    return f"{type(value).__name__} {value!r:.80}"


def as_reward(reward: Any) -> float:
    """Return a reward as a float; it may be a real number or a one-element array of any library."""
    number = float(reward) if isinstance(reward, _FLOATS) else _number_in(reward)
    if number is None:
        raise _bad_result("reward", reward, "a real number", _REWARD_HINT)
    return number


def as_flag(name: str, flag: Any) -> bool:
    """Return `terminated` or `truncated` as a bool; 0, 1 and one-element arrays are accepted."""
    number = _number_in(flag)
    if number not in (0.0, 1.0):
        raise _bad_result(name, flag, "a bool", "return True or False for terminated and for truncated")
    return number == 1.0


_FLOATS = (float, np.floating)
# `float` parses strings, and takes the real part of numpy's complex numbers.
_NO_NUMBERS = (str, bytes, np.complexfloating)


def element(value: Any) -> Any:
    """Return the number in a one-element array of any library; return any other value unchanged."""
    if hasattr(value, "__array__") and not hasattr(value, "item"):  # For example a TensorFlow tensor.
        value = np.asarray(value)
    return value.item() if hasattr(value, "item") else value


def _number_in(value: Any) -> float | None:
    """Return a real number, or the number in a one-element array, as a float; None for other values."""
    try:
        value = element(value)
        return None if isinstance(value, _NO_NUMBERS) else float(value)
    except Exception:  # noqa: BLE001  Arrays of other libraries may raise anything.
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
    """Convert values to an array, including tensors that require a gradient or are on another device."""
    try:
        return np.asarray(values)
    except Exception:  # The library chooses the class.
        if not hasattr(values, "detach"):
            raise
        return np.asarray(values.detach().cpu())


def cast_numbers(name: str, verb: str, leaf: Leaf, numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Return a copy of numbers in a leaf's dtype; BadValueError if an integer overflows it."""
    with np.errstate(over="ignore"):  # A float that overflows becomes inf, which later checks report.
        converted = numbers.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(converted, numbers):
        raise BadValueError(
            f"{name} {verb} integers that overflow {dtype}, the dtype of {leaf.space}",
            f"return values from {np.iinfo(dtype).min} to {np.iinfo(dtype).max}",
            code="number-range",
        )
    return converted


def checked_text(name: str, value: Any, expected: Any) -> str:
    """Return a string; BadValueError if it is not encodable as UTF-8 (a lone surrogate)."""
    if not isinstance(value, str):
        raise BadValueError(
            f"{name} is {shown(value)}, expected a string of {expected}",
            "return a str",
            code="string-value",
        )
    if not (value.isascii() or has_utf8(value)):
        raise BadValueError(
            f"{name} cannot be encoded as UTF-8: {value!r:.80}",
            "escape lone surrogates (U+D800 to U+DFFF)",
            code="string-value",
        )
    return value if type(value) is str else str(value)


_VALUES = (bool, int, float, str, np.generic, type(None))


def frozen_copy(info: Any) -> dict[Any, Any]:
    """Return a copy of an info dictionary, which later changes to `info` or its values do not affect."""
    if not isinstance(info, Mapping):
        raise BadValueError(
            f"expected an info dictionary, got {shown(info)}",
            "return {} if there is no info",
            code="info-type",
        )
    return {  # hot loop: it runs at every step with an info, and a call per value costs more.
        key: value if isinstance(value, _VALUES) else copied(value) for key, value in info.items()
    }


def copied(value: Any) -> Any:
    """Return a copy of one info value, or the value itself if it cannot be copied."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.copy()
    try:
        return frozen_copy(value) if isinstance(value, Mapping) else copy.deepcopy(value)
    except Exception:  # noqa: BLE001  Any object may raise anything; it counts as unstorable later.
        return value


_FEW_NUMBERS = 32  # Up to this size, a Python loop compares numbers faster than numpy calls do.


def bad_action(leaf: Leaf, value: Any, rule: str, row: int | None = None) -> BadValueError:
    """Return the error for an action outside its space; `row` is its row in a vector environment."""
    where = f" at {leaf.name!r}" if leaf.path else ""
    numbers = np.asarray(value)
    hint = 'pass {invalid_action="warn"} to send it to the environment unchanged'
    if numbers.dtype.kind == "f" and np.isnan(numbers).any():
        hint = "check the policy's parameters and the observation it received: nan cannot be clipped"
    elif leaf.kind == "box" and rule != "clip":
        hint = f'pass {{invalid_action="clip"}} to clip it to the bounds; {hint}'
    return BadValueError(
        f"the action{where} is {numbers.tolist()!r:.80}, expected an element of {leaf.space}",
        hint,
        row,
        code="action-outside-space",
    )


def bounds_of(leaf: Leaf) -> tuple[Any, Any] | None:
    """Return the minimum and the maximum of each number of a sample; None for a string."""
    if leaf.bounds is None:
        return None
    low, high = (np.broadcast_to(np.asarray(bound), leaf.shape) for bound in leaf.bounds)
    return low, high


def inside_check(leaf: Leaf) -> Callable[[Any], bool]:
    """Return a function that checks whether a value of the leaf's dtype is in its space."""
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
            if not minimum <= number <= maximum:  # Also true for nan.
                return False
        return True

    return few_are_inside


def clipped(value: Any, space: spaces.Space[Any]) -> Any:
    """Return the value clipped to the bounds of a Box; unchanged for other spaces.

    Clipping precedes the conversion to the Box's dtype, in which a large number would overflow.
    """
    if not isinstance(space, spaces.Box):
        return value
    try:
        numbers = as_array(value)
    except ValueError:
        return value  # The recorder reports the error.
    fits = numbers.dtype.kind in "biuf" and numbers.shape[numbers.ndim - len(space.shape) :] == space.shape
    return np.clip(numbers, space.low, space.high) if fits else value


def sound_episodes(chunk: Chunk) -> tuple[Chunk | None, RolloutError | None]:
    """Return the episodes without nan rewards (None if all have one), and the error for the first nan."""
    rows = np.flatnonzero(np.isnan(chunk.rewards))
    if not len(rows):
        return chunk, None
    ends = np.cumsum(chunk.lengths)
    faulty = np.searchsorted(ends, rows, side="right")
    index = int(faulty[0])
    row = int(rows[0])
    number = int(chunk.numbers[index])
    step = row - int(ends[index] - chunk.lengths[index])
    hint = "return a number from env.step; 0.0 if a step has no reward"
    if any(column.dtype.kind == "f" and np.isnan(column[row]).any() for column in chunk.actions):
        hint = "check the policy first: the action of this step is also nan"
    place = episode_place(int(chunk.workers[index]), number, int(chunk.seeds[index]), step)
    error = EnvError(
        "env.step returned the reward nan, expected a number",
        code="reward-nan",
        hint=hint,
        place=place,
        episodes=(number,),
    )
    indices = np.setdiff1d(np.arange(chunk.n_episodes), faulty).tolist()
    sound = [chunk.episodes(index, index + 1) for index in indices]
    return concatenate(sound) if sound else None, error


def episode_place(worker: int, number: int, seed: int, step: int) -> str:
    """Return the part of a message that names a step of an episode; seed -1 is left out (autoreset rows)."""
    seed_text = f", seed {seed}" if seed >= 0 else ""
    return f"worker {worker}, episode {number}{seed_text}, step {step}"


def rows_place(worker: int, numbers: tuple[int, ...], n_rows: int) -> str:
    """Return the part of a message that names a call for all rows, with the running episodes' numbers."""
    episodes = f"episodes {min(numbers)} to {max(numbers)}" if numbers else "no episode"
    if len(numbers) == 1:
        episodes = f"episode {numbers[0]}"
    return f"worker {worker}, {episodes} of {n_rows} rows"


def blame(where: str, error: BaseException, place: str, numbers: tuple[int, ...] = ()) -> None:
    """Raise the error that names the failing user code, its failure and the step; return if none failed.

    `where` is the call that failed, such as `env.step`, in one of the episodes `numbers`. If `where` is the
    result of a call, unpacking it failed, and the result is wrong. Ctrl-C can arrive in any code and is not
    reported here, nor is a RolloutError of another class. A UserCodeError keeps its message and gets the
    place.
    """
    if is_interrupt(error):
        return
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        # Python converts a StopIteration that leaves a generator, such as the steps of a row.
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
        message = f"{call} returned a wrong result ({error}), expected {interface}"
        hint = f"return {interface}; wrap environments that return fewer values (gym before gymnasium)"
    else:
        code = "policy-raised" if kind is PolicyError else "env-raised"
        hint = "see the traceback below; run the episode again with the same seed to reproduce the error"
        if isinstance(error, SystemExit):
            hint = "raise an exception, or return, instead of ending the process"
        message = f"{call} raised {first_line(error)}"
    raise kind(message, code=code, hint=hint, place=place, episodes=numbers) from error
