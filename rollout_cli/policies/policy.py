"""The protocols Policy and PolicySource, and AdaptedPolicy, the base class of the policies in this package.

The method names of Policy are garage's. Users need not subclass it: `adapt_policy` wraps other objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeGuard, runtime_checkable

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, Tree
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.keywords import Record
from rollout_cli.sources.loading import first_line, name_of, traceback_text
from rollout_cli.sources.pins import PinnedFile

Infos = dict[str, Any]
"""The infos of an action, by name; for n rows, arrays (n, ...)."""
ActionAndInfo = tuple[Any, Infos]
"""An action and its infos."""
ActionsAndInfos = tuple[Tree, Infos]
"""Actions of n rows, a tree of arrays (n, *shape), and their infos."""


@runtime_checkable
class Policy(Protocol):
    """Chooses actions.

    Legal call sequences for one environment: `reset()`, then `get_action` once per step until the episode
    ends, then `reset()` again. For n environments: `reset(do_resets)` with an all-true mask of length n, then
    `get_actions` with n rows at every step; before a step in which some rows start a new episode,
    `reset(do_resets)` with these rows true. n does not change until the next all-true mask.
    `set_param_values` is called only between episodes, before a `reset`.

    A stochastic policy may have two more methods. They are called before the `reset` of the episode that they
    seed; the actions of the episode must then be a function of the seed and the observations:

    - `seed(seed)`, for `get_action`: an integer in [0, 2**64).
    - `seed_rows(mask, seeds)`, for `get_actions`: bool (n,) and uint64 (n,); seeds outside the mask are
      ignored. Row j must use its own generator, and act as after `seed(seeds[j])`.

    A policy that depends on the rewards may have two more. They are called before each action of an episode
    but its first, with the reward of the step before:

    - `observe_reward(reward)`, for `get_action`: a float.
    - `observe_rewards(mask, rewards)`, for `get_actions`: bool (n,) and float64 (n,); the mask is false in rows
      whose episode has no step yet.

    A policy that depends on the task may have `observe_task(row, task)`. It is called after the `reset` of an
    episode, with the row (0 for `get_action`) and the string that describes the task: the name in
    `--tasks`, or without `--tasks` the environment's `task_description` or `task`; an empty string if there is none.
    """

    def get_action(self, observation: Any) -> ActionAndInfo:
        """Return an action for one observation, and a dictionary of infos to record."""

    def get_actions(self, observations: Tree) -> ActionsAndInfos:
        """Return n actions for n observations, trees of arrays (n, *shape), and infos, arrays (n, ...).

        If some rows have no value of an info, its array is masked.
        """

    def reset(self, do_resets: Array | None = None) -> None:
        """Start new episodes in the rows where `do_resets`, bool (n,), is true; in all rows if it is None."""

    def get_param_values(self) -> Any:
        """Return the parameters for `set_param_values` of an equal policy in another process."""

    def set_param_values(self, params: Any) -> None:
        """Set the parameters."""


ACCEPTED = "use an object with get_action, get_actions or predict, a torch.nn.Module, or f(observation)"
"""The hint for an object that is not a policy."""

_PARAMETER_VERBS = (
    ("get_param_values", "set_param_values"),
    ("get_parameters", "set_parameters"),  # Of Stable-Baselines3.
    ("state_dict", "load_state_dict"),  # Of torch.
)


@dataclass(frozen=True, slots=True)
class RemoteReport:
    """What another process, in which a policy is loaded, reports about it.

    Attributes:
        modules: The top-level modules that it has loaded, if their versions can be found in this process.
        files: The files that the policy has read there, with hashes.
    """

    modules: tuple[str, ...]
    files: tuple[PinnedFile, ...]


class AdaptedPolicy(Policy):
    """The base class of the policies that `adapt_policy` returns, and of the built-in policies.

    Workers read these attributes only from AdaptedPolicy: an attribute of the user's object with the same name
    may mean something else. Parameters are read and set by the first pair of `_PARAMETER_VERBS` that the
    user's object has; without such a pair they are {}.
    """

    # Row j of `get_actions` equals the result of `get_action` bit for bit, and does not depend on other rows.
    row_wise: bool = False
    # A batch does not act like its separate rows: each row needs its own policy.
    row_by_row: bool = False
    # `reset` has an effect: a worker must call it at the start of each episode.
    resets: bool = False
    # The names of the user's methods behind get_action and get_actions, for messages.
    methods: tuple[str, str] = ("get_action", "get_actions")
    # The actions are in the action space by construction and are not checked.
    acts_within_space: bool = False
    # The user's methods, or None.
    seed: Callable[[int], Any] | None = None
    seed_rows: Callable[[Array, Array], Any] | None = None
    observe_reward: Callable[[float], Any] | None = None
    observe_rewards: Callable[[Array, Array], Any] | None = None
    observe_task: Callable[[int, str], Any] | None = None
    takes_masks: bool = False  # A worker must pass masks, by `act` or `act_batch`.
    remote_class: str = ""  # The name of the user's class, if the policy is loaded in another process.

    def __init__(self, wrapped: Any = None) -> None:
        self.wrapped = wrapped  # The user's object; None for a built-in policy.
        find = partial(own_method, wrapped)
        self._parameter_verbs = next((verbs for verbs in _PARAMETER_VERBS if all(map(find, verbs))), None)

    @property
    def users_own(self) -> Any:
        """The user's object behind the policy; for a built-in policy, the policy itself."""
        return self if self.wrapped is None else self.wrapped

    def acts_alike(self, n_rows: int) -> bool:  # noqa: ARG002
        """Return True if equal observations get equal actions in every row of a batch of `n_rows`."""
        return self.row_wise

    def remote_reports(self) -> list[RemoteReport]:
        """Return the reports of the other processes in which the policy, or a part of it, is loaded."""
        return []

    def act(self, observation: Any, masks: Any) -> ActionAndInfo:  # noqa: ARG002
        """Act like `get_action`. `masks` is the result of `env.action_masks()`; None without `takes_masks`."""
        return self.get_action(observation)

    def act_batch(self, observations: Tree, masks: Any) -> ActionsAndInfos:  # noqa: ARG002
        """Act like `get_actions`, with the masks of n rows, stacked to (n, ...)."""
        return self.get_actions(observations)

    def get_actions(self, observations: Tree) -> ActionsAndInfos:  # noqa: ARG002
        raise PolicyError(
            f"{name_of(self.users_own)} has no get_actions method",
            code="policy-not-batched",
            hint="call get_action for each row",
        )

    def reset(self, do_resets: Array | None = None) -> None:
        pass

    def get_param_values(self) -> Any:
        return getattr(self.wrapped, self._parameter_verbs[0])() if self._parameter_verbs else {}

    def set_param_values(self, params: Any) -> None:
        if self._parameter_verbs:
            getattr(self.wrapped, self._parameter_verbs[1])(params)
        elif len(params):
            raise PolicyError(
                f"{name_of(self.users_own)} lacks get_param_values or set_param_values",
                code="policy-no-parameters",
                hint="implement both methods, or send a complete policy",
            )


class PolicySource(Protocol):
    """The source of a policy: a small, picklable object, from which each worker loads the policy."""

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
        """Load and adapt a new copy of the policy; with `deterministic`, in its deterministic mode.

        Raises:
            PolicyLoadError: The policy cannot be loaded, or has no deterministic mode.
        """

    def describe(self) -> Record:
        """Return the record of the policy in info.json, from which `recorded_spec` makes the SPEC.

        `scheme` is the scheme of the SPEC, `path` the absolute path of its file, and `sha256` the hash of the
        file or of a module's source; each may be None. `options` are the arguments of the scheme. For a
        mixture, `path` is the weighted sum of its `components`, and `sha256` covers all of them.
        """


def is_policy_source(item: Any) -> TypeGuard[PolicySource]:
    """Return True if an object's class has the methods of a source; a policy's attributes could raise errors."""
    return callable(getattr(type(item), "load", None)) and callable(getattr(type(item), "describe", None))


def recorded_spec(record: Record) -> str:
    """Return the SPEC of a dataset's record, with absolute paths: it is valid in any folder."""
    path = record["path"]
    if path is None:
        return str(record["spec"])
    scheme = record.get("scheme")
    return f"{scheme}:{path}" if scheme else str(path)


def own_method(item: Any, name: str) -> Callable[..., Any] | None:
    """Return a method of `item`; None if the attribute is missing or not callable.

    Raises:
        PolicyLoadError: The lookup raises an error other than AttributeError. The object could then be
            mistaken for another kind of policy.
    """
    try:
        method = getattr(item, name, None)
    except Exception as error:
        raise PolicyLoadError(
            f"an object of type {type(item).__name__} is not a policy: "
            f"reading its {name} raised {first_line(error)}",
            code="policy-type",
            hint=ACCEPTED,
            # The traceback of an endless recursion is long and repetitive.
            details="" if isinstance(error, RecursionError) else traceback_text(error),
        ) from error
    return method if callable(method) else None


def named(value: Any) -> str:
    """Return the name of a value's type with an article: `an int`, `a list`."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def is_action_and_info(result: Any) -> bool:
    """Return True if `result` is a pair (action, info dictionary)."""
    is_pair = type(result) is tuple and len(result) == 2  # noqa: PLR2004
    # The check for a Mapping takes five times as long, at each step.
    return is_pair and (type(result[1]) is dict or isinstance(result[1], Mapping))
