"""What user code gives at each step, held against its interface; and the errors that say whose step it was.

Nothing here is called for a step that is as it should be, except the comparison of an action with its bounds: an
action outside of its space fails before the environment sees it.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.episodes.spaces import Leaf
from rollout_cli.errors import EnvError, PolicyError, RolloutError, UserCodeError
from rollout_cli.loading import first_line, is_interrupt

Array = npt.NDArray[Any]

GET_ACTION, GET_ACTIONS, RESET, STEP = "policy.get_action", "policy.get_actions", "env.reset", "env.step"
_INTERFACES = {
    GET_ACTION: "(action, info)",
    GET_ACTIONS: "(actions, infos)",
    RESET: "(observation, info)",
    STEP: "(observation, reward, terminated, truncated, info)",
}
_FLAG_HINT = "let env.step give True or False for terminated and for truncated"
_SAMPLE_HINT = "make it match the space, or the space match it"
_REWARD_HINT = "a reward is one real number: 0.0 where a step is worth nothing"
ENDLESS_HINT = (
    "--max-episode-length N truncates it; --episode-step-guard says how long an episode without a limit may get"
)
_LONGEST_SHOWN = 80


class BadValueError(Exception):
    """A value of the user's code that its interface does not allow.

    Args:
        message: The value, and what was expected.
        hint: What to do.
    """

    def __init__(self, message: str, hint: str = _SAMPLE_HINT) -> None:
        super().__init__(message)
        self.hint = hint


def shown(value: Any) -> str:
    """Return a value as a message shows it: its type and the beginning of its text."""
    return f"{type(value).__name__} {value!r:.80}"


# -- values of a step -------------------------------------------------------------------------------------------------


def as_reward(reward: Any) -> float:
    """Return a reward as a float.

    Raises:
        BadValueError: If it is no real number, or more than one.
    """
    value = reward.item() if isinstance(reward, np.ndarray) and reward.size == 1 else reward
    # `float` would read some texts, and take the real part of numpy's complex numbers.
    if isinstance(value, str | bytes | complex | np.complexfloating):
        raise BadValueError(f"the reward is no number: {shown(reward)}", _REWARD_HINT)
    try:
        return float(value)
    except OverflowError as error:
        raise BadValueError("the reward is too large for a float", _REWARD_HINT) from error
    except (TypeError, ValueError) as error:
        raise BadValueError(f"the reward is no number: {shown(reward)}", _REWARD_HINT) from error


def as_flag(name: str, flag: Any) -> bool:
    """Return `terminated` or `truncated` as a bool; an integer 0 or 1 will do.

    Raises:
        BadValueError: If it is neither: the meaning of such a value would be a guess.
    """
    if isinstance(flag, bool | np.bool_) or (isinstance(flag, int | np.integer) and flag in (0, 1)):
        return bool(flag)
    raise BadValueError(f"{name} is no bool: {shown(flag)}", _FLAG_HINT)


def checked_text(name: str, value: Any, expected: Any) -> str:
    """Return a text.

    Raises:
        BadValueError: If it is none, or has no UTF-8 (a lone surrogate), so that it cannot be stored.
    """
    if not isinstance(value, str):
        raise BadValueError(f"{name} is {shown(value)}, expected a text of {expected}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadValueError(f"{name} is a text that has no UTF-8: {value!r:.80}", "escape lone surrogates") from error
    return str(value)


_VALUES = (bool, int, float, str, np.generic, type(None))


def frozen_copy(info: Any) -> dict[Any, Any]:
    """Return an info dictionary that later changes to `info`, or to its values, do not reach.

    Raises:
        BadValueError: If it is no mapping.
    """
    if not isinstance(info, Mapping):
        raise BadValueError(f"the info is no dictionary: {shown(info)}", "give {} where there is nothing to say")
    return {key: value if isinstance(value, _VALUES) else copied(value) for key, value in info.items()}


def copied(value: Any) -> Any:
    """Return a copy of one info value; the value itself where it cannot be copied."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.copy()
    try:
        return frozen_copy(value) if isinstance(value, Mapping) else copy.deepcopy(value)
    except Exception:  # noqa: BLE001  A foreign object may refuse in any way; it is counted as unstorable later.
        return value


# -- actions ----------------------------------------------------------------------------------------------------------

_FEW_NUMBERS = 32
"""An array of at most so many numbers is compared number by number: numpy's calls take longer."""


def action_hint(leaf: Leaf, rule: str, value: Any) -> str:
    """Return what to do about an action that is not of its space."""
    numbers = np.asarray(value)
    if numbers.dtype.kind == "f" and np.isnan(numbers).any():
        return "nan has no nearest bound: look at the policy's parameters and at the observation it was given"
    warn = "--invalid-action warn lets the environment have it"
    return (
        f"--invalid-action clip moves it to the nearest bound, {warn}"
        if leaf.kind == "box" and rule != "clip"
        else warn
    )


def bad_action(leaf: Leaf, value: Any, rule: str) -> BadValueError:
    """Return the error for an action that is not of its space."""
    where = f" at {leaf.name!r}" if leaf.path else ""
    text = str(value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value))[:_LONGEST_SHOWN]
    return BadValueError(
        f"the action{where} is not of its space: {text} of {leaf.space}", action_hint(leaf, rule, value)
    )


def bounds_of(leaf: Leaf) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of each number of a sample; None where no number can be outside."""
    bounds = leaf.bounds
    if bounds is None:
        return None
    low, high = (np.broadcast_to(np.asarray(bound), leaf.shape) for bound in bounds)
    if leaf.dtype.kind in "iu" and leaf.kind == "box":
        limits = np.iinfo(leaf.dtype)
        if (low <= limits.min).all() and (high >= limits.max).all():
            return None
    return low, high


def action_check(leaf: Leaf, rule: str) -> Callable[[Any], None] | None:
    """Return a function that raises BadValueError for a value outside of the leaf's space; None where none can be.

    It is called with one value in the leaf's own type.
    """
    bounds = bounds_of(leaf)
    if leaf.kind == "text":
        is_inside: Callable[[Any], bool] = leaf.space.contains
    elif bounds is None:
        return None
    elif bounds[0].size <= _FEW_NUMBERS:
        return _few_numbers_check(leaf, rule, *bounds)
    else:
        low, high = bounds
        is_inside = lambda value: bool(((value >= low) & (value <= high)).all())  # noqa: E731  As short as it gets.

    def check(value: Any) -> None:
        if not is_inside(value):
            raise bad_action(leaf, value, rule)

    return check


def _few_numbers_check(leaf: Leaf, rule: str, low: Array, high: Array) -> Callable[[Any], None]:
    lows, highs = low.ravel().tolist(), high.ravel().tolist()

    def check(value: Any) -> None:
        for number, least, greatest in zip(value.ravel().tolist(), lows, highs, strict=True):
            if not least <= number <= greatest:  # True of nan as well.
                raise bad_action(leaf, value, rule)

    return check


def clipped(value: Any, space: spaces.Space[Any]) -> Any:
    """Return the value with its numbers moved to the nearest bound of a Box; of other spaces as it is.

    It comes before the conversion to the Box's type: a number that this has no room for would become another one.
    """
    if not isinstance(space, spaces.Box):
        return value
    try:
        numbers = np.asarray(value)
    except ValueError:
        return value  # The recorder says what is wrong with it.
    is_clear = numbers.shape[-len(space.shape) :] == space.shape if space.shape else True
    return np.clip(numbers, space.low, space.high) if is_clear and numbers.dtype.kind in "biuf" else value


# -- rewards, a chunk at a time ---------------------------------------------------------------------------------------


def sound_episodes(chunk: Chunk) -> tuple[Chunk | None, RolloutError | None]:
    """Return the episodes whose rewards are numbers, None for none, and the error of the first one that has a nan."""
    if not chunk.rewards.size or not np.isnan(chunk.rewards.min()):
        return chunk, None
    rows = np.flatnonzero(np.isnan(chunk.rewards))
    ends = np.cumsum(chunk.lengths)
    faulty = np.unique(np.searchsorted(ends, rows, side="right"))
    edges = [-1, *faulty.tolist(), chunk.n_episodes]
    sound = [chunk.episodes(a + 1, b) for a, b in pairwise(edges) if b > a + 1]
    at, row = int(faulty[0]), int(rows[0])
    step = row - int(ends[at] - chunk.lengths[at])
    place = f"worker {chunk.workers[at]}, episode {chunk.numbers[at]}{_seed_text(int(chunk.seeds[at]))}, step {step}"
    hint = "a return needs a number: let the environment say what the step was worth"
    if any(column.dtype.kind == "f" and np.isnan(column[row]).any() for column in chunk.actions):
        hint = "the action of this step is nan, too: look at the policy first"
    error = EnvError(f"the reward is not a number (nan) ({place})", hint=hint)
    error.episodes = (int(chunk.numbers[at]),)
    return concatenate(sound) if sound else None, error


# -- errors -----------------------------------------------------------------------------------------------------------


def _seed_text(seed: int) -> str:
    # Where the environment began the episode by itself, there is none.
    return f", seed {seed}" if seed >= 0 else ""


def episode_place(worker: int, number: int, seed: int, step: int) -> str:
    """Return the text that says where in a run something failed."""
    return f"worker {worker}, episode {number}{_seed_text(seed)}, step {step}"


def is_of_user_code(error: BaseException) -> bool:
    """Return whether an exception that left a call of user code is to be blamed on it.

    Ctrl-C arrives in whichever code runs; an error of ours that is no UserCodeError is its own message.
    """
    if isinstance(error, GeneratorExit) or is_interrupt(error):
        return False
    return isinstance(error, UserCodeError) or not isinstance(error, RolloutError)


def blame(where: str, error: BaseException, place: str, numbers: tuple[int, ...] = ()) -> UserCodeError:
    """Return the error that says which call of user code failed, how, and in whose step.

    Args:
        where: The call, such as `env.step`.
        error: What it raised; an error of ours keeps its words, and gets the place.
        place: Worker, episode, seed and step.
        numbers: The episodes in one of which it failed.
    """
    found = _blamed(where, error, place)
    found.episodes = numbers
    return found


def _blamed(where: str, error: BaseException, place: str) -> UserCodeError:
    kind: type[UserCodeError] = PolicyError if where.startswith("policy") else EnvError
    if isinstance(error, UserCodeError):
        message = error.message if "(worker " in error.message else f"{error.message} ({place})"
        return type(error)(message, hint=error.hint, details=error.details)
    error = _explained(where, error)
    if isinstance(error, BadValueError):
        return kind(f"{where}: {error} ({place})", hint=error.hint)
    hint = "the traceback below shows where; the seed repeats it"
    if isinstance(error, SystemExit):
        hint = "let the code raise an exception, or return, instead of ending the process"
    return kind(f"{where} raised {first_line(error)} ({place})", hint=hint)


def _explained(where: str, error: BaseException) -> BaseException:
    """Return a BadValueError in place of Python's own words for a result that could not be unpacked by us."""
    if where not in _INTERFACES or not isinstance(error, TypeError | ValueError) or not _was_raised_here(error):
        return error
    if "truth value" in str(error):
        return BadValueError(f"terminated or truncated is no bool: {error}", _FLAG_HINT)
    if "unpack" not in str(error):
        return error
    expected = _INTERFACES[where]
    hint = f"return {expected}"
    if where in (RESET, STEP):
        hint += "; the interface of gym before gymnasium gave fewer: wrap such an environment"
    return BadValueError(f"the result is not {expected}: {error}", hint)


def _was_raised_here(error: BaseException) -> bool:
    """Return whether an exception was raised by this package, and not by the code that it calls."""
    frames = traceback.walk_tb(error.__traceback__)
    names = [frame.f_code.co_filename for frame, _ in frames]
    return bool(names) and Path(names[-1]).parent == Path(__file__).parent
