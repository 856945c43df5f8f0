"""PredictPolicy: an object with `predict`, as Stable-Baselines3's algorithms and policies have."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies.base import Tree
from rollout_cli.policies.completed import own_method
from rollout_cli.policies.rows import count_rows
from rollout_cli.policies.signatures import accepts_keyword

Array = npt.NDArray[Any]

_PARAMETER_VERBS = (
    ("get_param_values", "set_param_values"),
    ("get_parameters", "set_parameters"),
    ("state_dict", "load_state_dict"),
)


class PredictPolicy:
    """Calls `predict(observation, state, episode_start, deterministic)`, which gives (action, state).

    The state is kept between the steps of an episode and given back, with `episode_start`, bool (n,), true for the rows
    whose episode begins; a recurrent policy clears those rows itself. Of the three keywords, those that the method
    takes are given.

    Args:
        wrapped: The object with `predict`.
        env_spec: The spaces that it is for.
        deterministic: Whether `predict` is to be deterministic.

    Raises:
        PolicyLoadError: If it must be deterministic and `predict` has no such keyword.
    """

    row_wise = False

    def __init__(self, wrapped: Any, env_spec: EnvSpec, *, deterministic: bool) -> None:
        self.wrapped = wrapped
        self._predict = wrapped.predict
        self._takes_state = accepts_keyword(self._predict, "state")
        self._takes_start = accepts_keyword(self._predict, "episode_start")
        self._options: dict[str, Any] = {}
        if accepts_keyword(self._predict, "deterministic"):
            self._options["deterministic"] = deterministic
        elif deterministic:
            raise PolicyLoadError(
                f"{type(wrapped).__name__}.predict has no deterministic mode", hint="give it a keyword `deterministic`"
            )
        self._scalar = isinstance(env_spec.action_space, spaces.Discrete)
        self._state: Any = None
        self._starts = np.ones(1, bool)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Choose the action for one observation."""
        action = self._act(observation, 1)
        # `predict` gives a 0-d array where a Discrete space has numbers.
        return (np.asarray(action)[()] if self._scalar else action), {}

    def get_actions(self, observations: Tree) -> tuple[Tree, dict[str, Any]]:
        """Choose actions for n observations, a tree of arrays (n, *shape)."""
        return self._act(observations, count_rows(observations)), {}

    def reset(self, do_resets: Array | None = None) -> None:
        """Mark the rows whose episode begins; where all begin, the state is forgotten."""
        if do_resets is None or np.all(do_resets) or len(do_resets) != len(self._starts):
            self._state = None
            self._starts = np.ones(len(self._starts) if do_resets is None else len(do_resets), bool)
        else:
            self._starts = self._starts | do_resets

    def get_param_values(self) -> Any:
        """Return the parameters, by whichever pair of verbs the object has; an empty dictionary if by none."""
        verbs = self._parameter_verbs()
        return getattr(self.wrapped, verbs[0])() if verbs else {}

    def set_param_values(self, params: Any) -> None:
        """Take parameters over.

        Raises:
            PolicyError: If there are some and the object has no verb to set them.
        """
        verbs = self._parameter_verbs()
        if verbs:
            getattr(self.wrapped, verbs[1])(params)
        elif len(params):
            raise PolicyError(
                f"{type(self.wrapped).__name__} has no parameters to set", hint="send a whole policy instead"
            )

    def _parameter_verbs(self) -> tuple[str, str] | None:
        for verbs in _PARAMETER_VERBS:
            if all(own_method(self.wrapped, verb) for verb in verbs):
                return verbs
        return None

    def _act(self, observation: Any, n_rows: int) -> Any:
        if len(self._starts) != n_rows:
            self._state, self._starts = None, np.ones(n_rows, bool)
        options = dict(self._options)
        if self._takes_state:
            options["state"] = self._state
        if self._takes_start:
            options["episode_start"] = self._starts
        result = self._predict(observation, **options)
        if not isinstance(result, tuple) or len(result) != 2:  # noqa: PLR2004
            raise PolicyError(
                f"{type(self.wrapped).__name__}.predict gave {type(result).__name__}, not (action, state)",
                hint="return the pair; a policy without a state returns `action, None`",
            )
        self._state = result[1]
        # Made anew, since the object may have kept the one it was given.
        self._starts = np.zeros(n_rows, bool)
        return result[0]
