"""Checks of the policy and environment objects, which an InspectingWorker runs in a worker process."""

from __future__ import annotations

import copy
import functools
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env, data_equivalence

from rollout_cli.envs.describe import stack_warnings
from rollout_cli.episodes.spaces import Space, differences, space_leaves
from rollout_cli.errors import EnvError, UserCodeError
from rollout_cli.policies.functional import METHOD
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.policies.recorded import RecordedPolicy
from rollout_cli.seeding.seeds import SETUP, seed_globals
from rollout_cli.sources.loading import first_line, reporting, traceback_text
from rollout_cli.testing import OUTSIDE, check_functional_env
from rollout_cli.workers.checks import element
from rollout_cli.workers.kinds import DefaultWorker
from rollout_cli.workers.policy_holder import masks_of
from rollout_cli.workers.rows.recording import SpaceRecorder
from rollout_cli.workers.values import WorkerReport

_STEPS = 300
_SECONDS = 2.0
_ANSWERS = 8
_SHORT = 60  # Maximum characters of a space in a message.
_NO_FAULTS = (
    "not within the observation space",  # The check of recorded values reports this.
    "different from the unwrapped version",
    "is probably too low",
    "is probably too high",
    "we recommend using a symmetric",
    "maximum and minimum values are equal",
)
"""Warnings of gymnasium's checker to ignore: wrappers, gymnasium's own environments and Meta-World cause them."""
_HARMLESS = ("non-deterministic", "share an object")
"""Errors of the checker that harm no run: workers seed more generators than a reset, and copy observations."""
_AS_TRAINED = "use the environment arguments and wrappers of the training"
_clock = time.perf_counter


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of a check and the change that fixes it, in which options are marked up as in hints."""

    status: Literal["ok", "warn", "fail"]
    what: str
    change: str = ""
    details: str = ""  # The traceback, if user code raised.


Findings = Iterator[Finding]
"""The return type of a check."""


class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that returns values as a run records them: converted observations, and scalars for 0-d arrays.

    Its observation space contains every value, because gymnasium's checker stops at the first value outside.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.metadata = {}  # The checker would convert the actions of a JAX environment.
        self.recorder = SpaceRecorder(env.observation_space, "the observation")
        space: Any = copy.deepcopy(env.observation_space)
        space.contains = lambda _: True
        self.observation_space = space
        # The checker inspects `seed`, and `reset` with its signature.
        self.seed = getattr(env, "seed", None)
        reset: Any = functools.partial(self._reset, env.reset)
        self.reset = functools.update_wrapper(reset, env.reset)  # type: ignore[method-assign]

    def _reset(self, reset: Callable[..., Any], **arguments: Any) -> Any:
        return self._recorded(*reset(**arguments))

    def step(self, action: Any) -> Any:
        """Take a step."""
        return self._recorded(*self.env.step(action))

    def _recorded(self, observation: Any, *others: Any) -> Any:
        self.recorder.clear()
        return self.recorder.record(observation), *map(element, others)


class InspectingWorker(DefaultWorker):
    """A worker that runs no episode, but checks its policy and environment when it is ready.

    The environment record of its report has the results: `findings` by the name of the check; `rate`, the
    steps per second of its loop, 0 if it raised; `step_bytes`, the bytes of a step; `has_native`, whether
    gymnasium has a vector form; `is_batched`, whether the policy acts for many environments at once.

    Args:
        looks: Whether to run the checks; otherwise, time a loop that records nothing.
        bare_seconds: Duration of that loop.
        common: Arguments of every worker.

    Attributes:
        is_deterministic: Whether deterministic actions are requested.
        rate: Steps per second of the loop.
        recorded_env: The environment as a run records it; set by `report`.
    """

    def __init__(self, *, looks: bool, bare_seconds: float = 0.0, **common: Any) -> None:
        self._looks = looks
        self._bare_seconds = bare_seconds
        self.is_deterministic = common.get("deterministic", False)
        self.rate = 0.0
        super().__init__(**common)

    recorded_env: RecordedEnv

    @property
    def policy(self) -> AdaptedPolicy:
        """The policy as workers call it."""
        assert self._holder.policy is not None
        return self._holder.policy

    def report(self) -> WorkerReport:
        """Run the checks or the timed loop, and return the report with the results."""
        report = super().report()
        seed_globals(self._seed, SETUP)
        looks = ON_OBJECTS
        if self.functional is None:
            self.recorded_env = RecordedEnv(self.env)
        else:
            from rollout_cli.envs.functional.vector import FunctionalGymEnv  # noqa: PLC0415 - it loads JAX

            self.env.compile_reset()
            self.env.compile_step()  # The checks time steps.
            self.recorded_env = RecordedEnv(FunctionalGymEnv(self.env))
            looks = ON_JAX
        findings = {name: _found(look, self) for name, look in looks.items()} if self._looks else {}
        if not self._looks and self.functional is None:
            with reporting(UserCodeError, "a loop of policy and environment raised"):
                self._time_bare_loop(self._bare_seconds / 4)  # Warm-up.
                self._time_bare_loop(self._bare_seconds)
        registered = getattr(self.env.unwrapped, "spec", None)
        seen = {
            "findings": findings,
            "rate": self.rate,
            "step_bytes": self._ready().row_bytes,
            "has_native": registered is not None and registered.vector_entry_point is not None,
            "is_batched": not self.policy.row_by_row,
            "is_jax": self.functional is not None,
        }
        return replace(report, env={**report.env, **seen})

    def _time_bare_loop(self, seconds: float) -> None:
        """Time the usual loop of policy and environment, which converts actions and records nothing."""
        env = self.env
        policy = self.policy
        over = True
        observation = None
        self.recorded_env.reset()
        if self.recorded_env.recorder.casts:  # The policy needs the converted observations.
            env = self.recorded_env
        actions = SpaceRecorder(self.env_spec.action_space, "the action", "warn")
        steps = 0
        length = 0
        began = _clock()
        while not steps or _clock() - began < seconds:
            if over:
                length = 0
                (observation, _) = env.reset()
                policy.reset()
                actions.clear()
            masks = masks_of(env) if policy.takes_masks else None
            result = env.step(actions.record(policy.act(observation, masks)[0]))
            observation = result[0]
            steps += 1
            length += 1
            over = bool(result[2] or result[3] or length == self.env_spec.max_episode_length)
        self.rate = steps / (_clock() - began)


def _found(look: Callable[[InspectingWorker], Findings], worker: InspectingWorker) -> list[Finding]:
    """Return the findings of a check; an error that user code raises is a finding."""
    try:
        return [*look(worker)]
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        change = "fix the code that raises or its arguments: the traceback below shows where"
        return [Finding("fail", f"raised {first_line(error)}", change, traceback_text(error))]


def _checker(worker: InspectingWorker) -> Findings:
    """Run gymnasium's checker on the environment as a run records it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(worker.recorded_env, skip_render_check=True, skip_close_check=True)
        except Exception as error:  # noqa: BLE001 - the checker's errors and the environment's
            is_harmless = any(words in str(error) for words in _HARMLESS)
            yield Finding(
                "warn" if is_harmless else "fail",
                first_line(error),
                "follow gymnasium's Env API; gymnasium's checker stopped here, so its other checks did not run",
            )
    for text in worker.recorded_env.recorder.casts:
        yield Finding("warn", text, "return the space's dtype in the environment, or change the space")
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        if not any(words in text for words in _NO_FAULTS):
            yield Finding("warn", text.replace("\x1b[33m", "").replace("\x1b[0m", "").removeprefix("WARN: "))


def _functions(worker: InspectingWorker) -> Findings:
    """Run this package's check of JAX environments."""
    assert worker.functional is not None
    try:
        check_functional_env(worker.functional)
    except EnvError as error:
        yield Finding("warn" if error.code == OUTSIDE else "fail", error.message, error.marked_hint)


def _saved_spaces(worker: InspectingWorker) -> Findings:
    """Compare the spaces stored in a policy, if it has any, with the environment's."""
    holders = (worker.policy.wrapped, getattr(worker.policy.wrapped, "policy", None))
    # Stable-Baselines3 transposes images.
    turns = any(hasattr(holder, "obs_to_tensor") for holder in holders)
    for name in ("observation_space", "action_space"):
        named = (getattr(holder, name, None) for holder in holders)
        saved = next((space for space in named if isinstance(space, spaces.Space)), None)
        if saved is not None:
            yield from _compared(name.replace("_", " "), saved, getattr(worker.env_spec, name), turns=turns)


def _compared(name: str, policy_space: Space, env_space: Space, *, turns: bool) -> Findings:
    """Compare two spaces, and each part of Dict spaces; if `turns`, the policy's images may be channels-first."""
    for part, saved, space in differences(name, policy_space, env_space):
        before = saved
        if turns and isinstance(saved, spaces.Box) and saved.low.ndim == 3:  # noqa: PLR2004
            low, high = (np.moveaxis(bound, 0, -1) for bound in (saved.low, saved.high))
            if low.shape == space.shape:
                before = spaces.Box(low, high, dtype=saved.dtype.type)
        if not _has_same_bounds(before, space):
            yield _space_difference(part, before, space)


def _has_same_bounds(saved: Space, space: Space) -> bool:
    """Return whether two Boxes have equal bounds in any order: VecFrameStack repeats each bound n times."""
    if not isinstance(saved, spaces.Box) or not isinstance(space, spaces.Box):
        return False
    before, now = (
        [box.shape, box.dtype, *(np.sort(bound, None).tolist() for bound in (box.low, box.high))]
        for box in (saved, space)
    )
    return before == now


def _space_difference(what: str, saved: Space, space: Space) -> Finding:
    was, now = (
        str(side) if len(str(side)) <= _SHORT else f"{type(side).__name__} {side.shape} of {side.dtype}"
        for side in (saved, space)
    )
    text = f"the policy's {what} is {was}, but the environment's is {now}"
    old = space_leaves(saved)
    new = space_leaves(space)
    forms, wanted_forms = (
        [(leaf.path, leaf.kind, leaf.shape, leaf.dtype.kind) for leaf in leaves] for leaves in (new, old)
    )
    if forms == wanted_forms:
        # A network accepts a Box with other bounds.
        return Finding("warn" if all(leaf.kind == "box" for leaf in new) else "fail", text, _AS_TRAINED)
    if len(old) == len(new) == 1 and old[0].shape != new[0].shape:
        if sorted(old[0].shape) == sorted(new[0].shape):
            return Finding("warn", text, "transpose the observation, unless the policy transposes it")
        wanted = int(np.prod(old[0].shape))
        has = int(np.prod(new[0].shape))
        if wanted > has and wanted % has == 0:
            count = wanted // has
            return Finding(
                "fail",
                text,
                f"stack {count} frames, if the policy needs them: "
                f"{{wrapper=FrameStackObservation?stack_size={count}}}",
            )
    return Finding("fail", text, _AS_TRAINED)


def _steps(worker: InspectingWorker) -> Findings:
    """Take some steps, and check action masks and whether a step changes its action."""
    env = worker.recorded_env
    policy = worker.policy
    space = worker.env_spec.action_space
    if isinstance(policy.users_own, RecordedPolicy) or policy.methods[0] == METHOD:
        return  # It can act in recorded episodes only, or in a program only.
    record = SpaceRecorder(space, "the action", "clip").record
    has_masks = env.has_wrapper_attr("action_masks")
    seen = Counter[str]()
    over = True
    observation = None
    began = _clock()
    while seen["steps"] < _STEPS and _clock() - began < _SECONDS:
        if over:
            observation, _ = env.reset(seed=seen["steps"])
            policy.reset()
        mask = np.asarray(masks_of(env), bool) if has_masks else None
        action = record(policy.act(observation, mask)[0])
        before = copy.deepcopy(action)
        if mask is not None:
            seen["empty"] += not mask.any()
            seen["forbidden"] += isinstance(space, spaces.Discrete) and not mask[int(action - space.start)]
        observation, _, terminated, truncated, _ = env.step(action)
        over = bool(terminated or truncated)
        seen["edited"] += not data_equivalence(before, action)
        seen["steps"] += 1
    worker.rate = seen["steps"] / (_clock() - began)
    if seen["edited"]:
        yield Finding("warn", "env.step changes its action in place", "copy the action before changing it")
    if seen["empty"]:
        yield Finding(
            "fail",
            f"{seen['empty']} of {seen['steps']} masks allow no action",
            "allow at least one action in action_masks(), or end the episode",
        )
    if seen["forbidden"] or (has_masks and not policy.takes_masks):
        who = "which the policy does not take" if not policy.takes_masks else "which the policy ignores"
        yield Finding(
            "fail" if seen["forbidden"] else "warn",
            f"the environment has action_masks, {who}: "
            f"{seen['forbidden']} of {seen['steps']} actions are forbidden",
            "add an argument action_masks to the policy's predict, as in MaskablePPO",
        )


def _exploration(worker: InspectingWorker) -> Findings:
    """Check whether the policy explores, by sampling several actions for one observation."""
    policy = worker.policy
    answers = []
    if isinstance(policy.users_own, RecordedPolicy) or policy.methods[0] == METHOD:
        return
    observation, _ = worker.recorded_env.reset(seed=0)
    for seed in range(_ANSWERS):
        if policy.seed is not None:
            policy.seed(seed)
        policy.reset()
        masks = masks_of(worker.env) if policy.takes_masks else None
        answers.append(copy.deepcopy(policy.act(copy.deepcopy(observation), masks)[0]))
    is_same = all(data_equivalence(answers[0], answer) for answer in answers)
    if worker.is_deterministic and not is_same:
        yield Finding(
            "fail",
            f"deterministic actions are requested, but {_ANSWERS} actions for one observation differ",
            "do not sample if `deterministic`, and clear the policy's state in `reset`",
        )
    elif is_same:
        yield Finding("ok", f"{_ANSWERS} actions for one observation are equal: the policy does not explore")


def _stack(worker: InspectingWorker) -> Findings:
    """Report wrappers that suit training but spoil recorded data."""
    for line in stack_warnings(worker.env):
        yield Finding("warn", line, "remove or replace the wrapper")


ON_OBJECTS: Mapping[str, Callable[[InspectingWorker], Findings]] = {
    "gymnasium's checker": _checker,
    "wrappers": _stack,
    "saved spaces": _saved_spaces,
    "masks and actions": _steps,
    "exploration": _exploration,
}
"""The checks of objects by their name in the report; a check that yields no finding has passed."""

ON_JAX: Mapping[str, Callable[[InspectingWorker], Findings]] = {
    "JAX environment": _functions,
    "saved spaces": _saved_spaces,
    "masks and actions": _steps,
    "exploration": _exploration,
}
"""The same for a JAX environment."""
