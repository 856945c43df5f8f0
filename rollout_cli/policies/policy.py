"""Policy: what a worker asks of a policy, whoever wrote it; AdaptedPolicy: the base of our own ones.

The verbs are garage's. Nothing needs to be subclassed: `adapt_policy` makes a Policy of whatever the user
has. A PolicySource is where a policy comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeGuard, runtime_checkable

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, Tree
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.keywords import Record
from rollout_cli.sources.loading import first_line, name_of, traceback_text

Infos = dict[str, Any]
"""What a policy says of an action, by name; of n rows, arrays (n, ...)."""
ActionAndInfo = tuple[Any, Infos]
"""An action, and its infos."""
ActionsAndInfos = tuple[Tree, Infos]
"""Actions of n rows, a tree of arrays (n, *shape), and their infos."""


@runtime_checkable
class Policy(Protocol):
    """Chooses actions.

    Legal sequences, of one environment: `reset()`, then `get_action` once a step until the episode ends, then
    `reset()` again. Of n environments at once: `reset(do_resets)` with an all-true mask of length n, then
    `get_actions` with n rows at every step; before a step in which some rows begin a new episode,
    `reset(do_resets)` with those rows true. n stays the same until the next all-true mask. `set_param_values`
    comes between episodes only, before a `reset`.

    A policy that draws may offer two more methods. They are called before the `reset` of the episode that
    they seed; from then on the actions must follow from the seed and the observations alone:

    - `seed(seed)`, for `get_action`: an integer in [0, 2**64).
    - `seed_rows(mask, seeds)`, for `get_actions`: bool (n,) and uint64 (n,); a seed of a row outside the mask
      means nothing. Row j must then draw from a generator of its own, and act as after `seed(seeds[j])`.
    """

    def get_action(self, observation: Any) -> ActionAndInfo:
        """Return a sample of the action space for one observation, and a dictionary of infos to record."""

    def get_actions(self, observations: Tree) -> ActionsAndInfos:
        """Return n actions for n observations, trees of arrays (n, *shape), and infos, arrays (n, ...).

        An array of infos is masked where some rows have no value.
        """

    def reset(self, do_resets: Array | None = None) -> None:
        """Begin new episodes: in the rows where `do_resets`, bool (n,), is true; in all where it is None."""

    def get_param_values(self) -> Any:
        """Return the parameters: what `set_param_values` of an equal policy takes in another process."""

    def set_param_values(self, params: Any) -> None:
        """Take parameters over."""


ACCEPTED = "give it get_action, get_actions or predict, or a torch.nn.Module, or a callable f(observation)"
"""The hint for an object that is no policy."""

_PARAMETER_VERBS = (
    ("get_param_values", "set_param_values"),
    ("get_parameters", "set_parameters"),  # Of Stable-Baselines3.
    ("state_dict", "load_state_dict"),  # Of torch.
)


class AdaptedPolicy(Policy):
    """The base of this package's own policies: those that `adapt_policy` makes, and the built-in ones.

    Workers read these attributes of its instances alone, so that a user's attribute means no more than its
    author knows. Parameters, {} where there are none, go by whichever of `_PARAMETER_VERBS` the user's object
    has.
    """

    # Row j of `get_actions` is what `get_action` gives, bit for bit, whatever others are.
    row_wise: bool = False
    # A batch does not act as its rows alone do: each row needs a policy of its own.
    row_by_row: bool = False
    # `reset` does anything: only then must a worker call it at the beginning of each episode.
    resets: bool = False
    # The user's own methods behind these two, for messages.
    methods: tuple[str, str] = ("get_action", "get_actions")
    # Its actions are in the action space by construction, and need no check.
    trusted: bool = False
    # The policy's own methods; None where it has none.
    seed: Callable[[int], Any] | None = None
    seed_rows: Callable[[Array, Array], Any] | None = None
    takes_masks: bool = False  # A worker must pass masks, so it calls `act` or `act_batch`.

    def __init__(self, wrapped: Any = None) -> None:
        self.wrapped = wrapped  # The user's own object; None of a built-in policy.
        find = partial(own_method, wrapped)
        self._parameter_verbs = next((verbs for verbs in _PARAMETER_VERBS if all(map(find, verbs))), None)

    @property
    def users_own(self) -> Any:
        """The user's own object behind it; a built-in policy is its own."""
        return self if self.wrapped is None else self.wrapped

    def acts_alike(self, n_rows: int) -> bool:  # noqa: ARG002
        """Return whether equal observations get equal actions in each row of a batch of `n_rows`."""
        return self.row_wise

    def act(self, observation: Any, masks: Any) -> ActionAndInfo:  # noqa: ARG002
        """Act as `get_action` does. `masks` is what `env.action_masks()` returns; None if it takes none."""
        return self.get_action(observation)

    def act_batch(self, observations: Tree, masks: Any) -> ActionsAndInfos:  # noqa: ARG002
        """Act as `get_actions` does, with the masks of n rows, stacked to (n, ...)."""
        return self.get_actions(observations)

    def get_actions(self, observations: Tree) -> ActionsAndInfos:  # noqa: ARG002
        raise PolicyError(
            f"{name_of(self.users_own)} has no get_actions: it acts on one observation at a time",
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
                f"{name_of(self.users_own)} has not both get_param_values and set_param_values",
                code="policy-no-parameters",
                hint="give it the two methods, or send a whole policy",
            )


class PolicySource(Protocol):
    """Where a policy comes from: small, picklable, and loaded in each worker."""

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
        """Load a new copy of the policy and adapt it; where `deterministic`, to one that does not explore.

        Raises PolicyLoadError where that fails.
        """

    def describe(self) -> Record:
        """Return what a dataset records; the SPEC follows from it (`recorded_spec`).

        `scheme` is that of the SPEC, `path` its file's absolute path, `sha256` the hash of that file or of a
        module's source, each None where there is none; `options` are the arguments that the scheme was given.
        Of a mixture, `path` is the sum of its `components`, and `sha256` covers them.
        """


def is_policy_source(item: Any) -> TypeGuard[PolicySource]:
    """Return whether an object is a source, by its class: a policy's own attributes may raise anything."""
    return callable(getattr(type(item), "load", None)) and callable(getattr(type(item), "describe", None))


def recorded_spec(record: Record) -> str:
    """Return the SPEC that a dataset's record means: a file by its absolute path, valid in any folder."""
    path = record["path"]
    if path is None:
        return str(record["spec"])
    scheme = record.get("scheme")
    return f"{scheme}:{path}" if scheme else str(path)


def own_method(item: Any, name: str) -> Callable[..., Any] | None:
    """Return a method of `item`; None where it has no such attribute, or one that cannot be called.

    Raises:
        PolicyLoadError: If the look-up raises anything but AttributeError: whether there is such a method is
            unknown then, and the object must not be taken for another kind of policy.
    """
    try:
        method = getattr(item, name, None)
    except Exception as error:
        raise PolicyLoadError(
            f"an object of type {type(item).__name__} is not a policy: "
            f"reading its {name} raised {first_line(error)}",
            code="policy-type",
            hint=ACCEPTED,
            # The traceback of an endless recursion shows nothing but itself.
            details="" if isinstance(error, RecursionError) else traceback_text(error),
        ) from error
    return method if callable(method) else None


def named(value: Any) -> str:
    """Return the type of a value, with its article: `an int`, `a list`."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def is_action_and_info(result: Any) -> bool:
    """Return whether `result` has the form (action, info dictionary)."""
    is_pair = type(result) is tuple and len(result) == 2  # noqa: PLR2004
    # To ask whether it is a Mapping takes five times as long, at each step.
    return is_pair and (type(result[1]) is dict or isinstance(result[1], Mapping))
