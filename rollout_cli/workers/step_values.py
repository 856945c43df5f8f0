"""What `env.step` and `env.reset` give beside observations, held against their interface.

Nothing here is called for a step that is as it should be: a reward that is Python's float, flags before an episode's
last step, and tuples of the right length are seen to be so by the loops themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_RESET, _STEP = "(observation, info)", "(observation, reward, terminated, truncated, info)"
_INTERFACES = {"env.reset": _RESET, "env.step": _STEP}
_FLAG_HINT = "let env.step give True or False for terminated and for truncated"
_OLD = "this looks like gym's interface before gymnasium's: wrap the environment so that it gives {}"


class BadStepError(Exception):
    """What an environment gave is not what its interface asks for.

    Args:
        message: What it gave, and what was expected.
        hint: What to do.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def as_reward(reward: Any) -> float:
    """Return a reward as a float.

    Raises:
        BadStepError: If it is no number, or more than one.
    """
    value = reward.item() if isinstance(reward, np.ndarray) and reward.size == 1 else reward
    if isinstance(value, str | bytes):
        raise _no_reward(reward)  # Some texts `float` would read.
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise _no_reward(reward) from error


def _no_reward(reward: Any) -> BadStepError:
    hint = "a reward is one number: 0.0 where a step is worth nothing"
    return BadStepError(f"the reward is no number: {_shown(reward)}", hint)


def as_flag(name: str, flag: Any) -> bool:
    """Return `terminated` or `truncated` as a bool; an integer 0 or 1 will do.

    Raises:
        BadStepError: If it is neither: what such a value means would be a guess.
    """
    if isinstance(flag, bool | np.bool_) or (isinstance(flag, int | np.integer) and flag in (0, 1)):
        return bool(flag)
    raise BadStepError(f"{name} is no bool: {_shown(flag)}", _FLAG_HINT)


def explained(where: str, error: Exception) -> Exception:
    """Return a BadStepError in place of Python's own words for what could not be unpacked, or taken for a flag, here.

    Args:
        where: `env.step` or `env.reset`; anything else is left as it is.
        error: What was raised.
    """
    trace = error.__traceback__
    # Raised in the frame that called, and not below it: so it was what is done with the result.
    if where not in _INTERFACES or trace is None or trace.tb_next is not None:
        return error
    expected = _INTERFACES[where]
    if "truth value" in str(error):
        return BadStepError(f"terminated or truncated is no bool: {error}", _FLAG_HINT)
    if "unpack" not in str(error):
        return error
    return BadStepError(f"{where} did not give {expected}: {error}", _OLD.format(expected))


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.80}"
