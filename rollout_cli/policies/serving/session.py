"""A policy for one client of a server: loaded for the client's spaces, seeded and called as in a worker."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import cloudpickle

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import space_from_json
from rollout_cli.errors import DatasetFormatError, PolicyError, PolicyLoadError
from rollout_cli.policies.adapt import policy_class
from rollout_cli.policies.policy import AdaptedPolicy, PolicySource
from rollout_cli.policies.schemes.mix import MixSource
from rollout_cli.policies.serving.wire import ATTRIBUTES, BadMessageError
from rollout_cli.policies.source import UserPolicySource
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.seeding.seeds import seed_globals, torch_has_drawn
from rollout_cli.sources.loading import reporting

OPTIONAL_VERBS = ("seed", "seed_rows", "observe_reward", "observe_rewards", "observe_task")
_VERBS = frozenset(("get_action", "get_actions", "act", "act_batch", "reset", "acts_alike", *OPTIONAL_VERBS))


class Session:
    """The policy of one client, and what seeds it.

    Args:
        source: The source of the policy.
        share: Called with the loaded policy, and lets it share its weights with other sessions.
    """

    def __init__(self, source: PolicySource, share: Callable[[AdaptedPolicy], None]) -> None:
        self._source = source
        self._share = share
        self._policy: AdaptedPolicy | None = None
        self._seeder = EpisodeSeeder(0)
        self._is_watched = False

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load the policy for the spaces of the request, and return its attributes.

        Raises:
            RolloutError: The policy cannot be loaded.
            BadMessageError: The request is malformed.
        """
        try:
            spaces = [space_from_json(request[name]) for name in ("observation_space", "action_space")]
            spec = EnvSpec(spaces[0], spaces[1], request["max_episode_length"])
            seeding = _seeding(*request["seeding"])
            deterministic = bool(request["deterministic"])
        except (LookupError, TypeError, ValueError, DatasetFormatError) as error:
            raise BadMessageError(f"the request to load the policy is malformed: {error!r}") from error
        had_torch = "torch" in sys.modules
        policy = self._loaded(spec, seeding, deterministic=deterministic)
        if not had_torch and torch_has_drawn():  # As in `PolicyHolder.adapt`.
            policy = self._loaded(spec, seeding, deterministic=deterministic)
        self._share(policy)
        self._policy = policy
        self._seeder = EpisodeSeeder(seeding[0])
        self._seeder.watch(policy=policy)
        return {
            "methods": list(policy.methods),
            "class": policy_class(policy),
            "verbs": [verb for verb in OPTIONAL_VERBS if getattr(policy, verb) is not None],
            **{name: bool(getattr(policy, name)) for name in ATTRIBUTES},
        }

    def _loaded(self, spec: EnvSpec, seeding: tuple[int, int | str], *, deterministic: bool) -> AdaptedPolicy:
        seed_globals(*seeding)
        with reporting(PolicyLoadError, "the policy cannot be loaded", code="policy-load"):
            return _own_copy(self._source).load(spec, deterministic=deterministic)

    def call(self, calls: Any) -> Any:
        """Make calls in order, each a verb and its arguments, and return the result of the last one.

        Raises:
            PolicyError: A call raised.
            BadMessageError: The calls are malformed, or the policy is not loaded yet.
        """
        result = None
        for verb, arguments in _checked(calls):
            result = self._call(verb, arguments)
        return result

    def _call(self, verb: str, arguments: list[Any]) -> Any:
        if self._policy is None:
            raise BadMessageError("the policy was called before it was loaded")
        if verb == "seed_globals":
            return seed_globals(*_seeding(*arguments))
        if verb == "seed_found":
            return self._seeder.seed_found(_seeding(*arguments)[1])
        method = getattr(self._policy, verb, None) if verb in _VERBS else None
        if method is None:
            raise BadMessageError(f"the policy has no method {verb!r}")
        hint = "see the traceback below; run the episode again with the same seed to reproduce the error"
        with reporting(PolicyError, f"policy.{verb} raised", code="policy-raised", hint=hint):
            result = method(*arguments)
        if verb == "reset" and not self._is_watched:
            # A policy may create a generator at its first reset.
            self._is_watched = True
            self._seeder.watch(policy=self._policy)
        return result


def _own_copy(source: PolicySource) -> PolicySource:
    """Return a source that does not load an object of a module: all clients would share it and its state."""
    if isinstance(source, MixSource):
        return replace(source, sources=tuple(map(_own_copy, source.sources)))
    if not isinstance(source, UserPolicySource) or source.source.data is not None:
        return source
    item = source.source.load(PolicyLoadError)
    if inspect.isroutine(item) or inspect.isclass(item):
        return source
    with reporting(
        PolicyLoadError,
        f"{source.source.spec} cannot be pickled, but each client of a server needs a copy of it",
        code="pickle-failed",
        hint="use a class or a factory, which each client calls",
    ):
        return replace(source, source=replace(source.source, data=cloudpickle.dumps(item)))


def _checked(calls: Any) -> Iterator[tuple[str, list[Any]]]:
    for call in calls if isinstance(calls, list) else [None]:
        match call:
            case [str() as verb, list() as arguments]:
                yield verb, arguments
            case _:
                raise BadMessageError(f"{call!r:.100} is not a call [verb, [argument, …]]")


def _seeding(root: str, number: int | str) -> tuple[int, int | str]:
    # A root seed may have more than 64 bits, so it is sent as a string.
    return int(root), number


def share_weights(policy: AdaptedPolicy, first: AdaptedPolicy) -> None:
    """Share parameters between the torch modules of `policy` and `first` where their values are equal.

    Each session loads its own policy, since a policy keeps state between steps; the weights are the large part.
    """
    for module, other in zip(_modules(policy), _modules(first), strict=False):
        for weights, others in zip(module.parameters(), other.parameters(), strict=False):
            alike = weights.shape == others.shape and weights.dtype == others.dtype
            if alike and weights.device == others.device and bool((weights == others).all()):
                weights.data = others.data


def _modules(policy: AdaptedPolicy) -> list[Any]:
    """Return the torch modules among the user's policy object and its attributes."""
    torch: Any = sys.modules.get("torch")
    own = policy.users_own
    candidates = [own, *getattr(own, "__dict__", {}).values()]
    return [item for item in candidates if torch is not None and isinstance(item, torch.nn.Module)]
