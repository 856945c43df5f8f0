"""What `check` sees of policy and environment themselves, in a worker process: InspectingWorker."""

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
from rollout_cli.errors import UserCodeError
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.policies.recorded import RecordedPolicy
from rollout_cli.seeding.seeds import SETUP, seed_globals
from rollout_cli.sources.loading import first_line, reporting, traceback_text
from rollout_cli.workers.checks import element
from rollout_cli.workers.kinds import DefaultWorker
from rollout_cli.workers.policy_holder import masks_of
from rollout_cli.workers.rows.recording import SpaceRecorder
from rollout_cli.workers.values import WorkerReport

_STEPS = 300
_SECONDS = 2.0
_ANSWERS = 8
_SHORT = 60  # Characters of a space that are shown.
_NO_FAULTS = (
    "not within the observation space",  # Another check judges the values of recorded episodes.
    "different from the unwrapped version",
    "is probably too low",
    "is probably too high",
    "we recommend using a symmetric",
    "maximum and minimum values are equal",
)
"""What gymnasium's checker warns of in any wrapper, in its own environments, and in Meta-World."""
_HARMLESS = ("non-deterministic", "share an object")
"""What ends it and harms no run: workers seed more generators than a reset, and copy observations."""
_AS_TRAINED = "give the environment the arguments and wrappers of the training"
_clock = time.perf_counter


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check has to say, and what to change; options in that are marked up as in hints."""

    status: Literal["ok", "warn", "fail"]
    what: str
    change: str = ""
    details: str = ""  # The traceback, if user code raised.


Findings = Iterator[Finding]
"""What a check yields."""


class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Returns what a run records: converted observations, and the numbers in arrays of one element.

    Its space contains everything: gymnasium's checker would end at the first value outside.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.metadata = {}  # The checker converts the actions of an environment of JAX.
        self.recorder = SpaceRecorder(env.observation_space, "the observation")
        space: Any = copy.deepcopy(env.observation_space)
        space.contains = lambda _: True
        self.observation_space = space
        # The checker looks at these, and at the signature.
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
    """A worker that runs no episode: when it is ready, it looks at its policy and environment.

    The record of the environment in its report has what it saw: `findings`, by the name of the check;
    `rate`, the steps a second of its loop, 0 where that raised; `step_bytes`, of a row; `has_native`, whether
    gymnasium knows a vector form; `is_batched`, whether the policy acts for many environments at once.

    Args:
        looks: Whether it makes the checks; else it times a loop that records nothing.
        bare_seconds: For how long that loop runs.
        common: What every worker takes.

    Attributes:
        is_deterministic: Whether deterministic actions are asked for.
        rate: As above.
        recorded_env: The environment as a run records it; there from the report on.
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
        """Look, and return the report with what was seen."""
        report = super().report()
        seed_globals(self._seed, SETUP)
        self.recorded_env = RecordedEnv(self.env)
        findings = {name: _found(look, self) for name, look in ON_OBJECTS.items()} if self._looks else {}
        if not self._looks:
            with reporting(UserCodeError, "a loop of policy and environment raised"):
                self._time_bare_loop(self._bare_seconds / 4)  # It warms up.
                self._time_bare_loop(self._bare_seconds)
        registered = getattr(self.env.unwrapped, "spec", None)
        seen = {
            "findings": findings,
            "rate": self.rate,
            "step_bytes": self._ready().row_bytes,
            "has_native": registered is not None and registered.vector_entry_point is not None,
            "is_batched": not self.policy.row_by_row,
        }
        return replace(report, env={**report.env, **seen})

    def _time_bare_loop(self, seconds: float) -> None:
        """Run the loop that anybody would write; it converts actions, and records nothing."""
        env = self.env
        policy = self.policy
        over = True
        observation = None
        self.recorded_env.reset()
        if self.recorded_env.recorder.casts:  # The policy needs these.
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
    """Return the findings of a check; what the user's code raises under it is one."""
    try:
        return [*look(worker)]
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        change = "fix what raises, or what it was given: the traceback below shows where"
        return [Finding("fail", f"it raised {first_line(error)}", change, traceback_text(error))]


def _checker(worker: InspectingWorker) -> Findings:
    """Run gymnasium's own checker, on what a run records."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            check_env(worker.recorded_env, skip_render_check=True, skip_close_check=True)
        except Exception as error:  # noqa: BLE001 - it raises what it finds, and what the environment raises
            is_harmless = any(words in str(error) for words in _HARMLESS)
            yield Finding(
                "warn" if is_harmless else "fail",
                first_line(error),
                "let the environment keep gymnasium's interface; "
                "what gymnasium's checker looks at after this was not checked",
            )
    for text in worker.recorded_env.recorder.casts:
        yield Finding("warn", text, "let the environment return its space's dtype, or change the space")
    for text in dict.fromkeys(str(warning.message) for warning in heard):
        if not any(words in text for words in _NO_FAULTS):
            yield Finding("warn", text.replace("\x1b[33m", "").replace("\x1b[0m", "").removeprefix("WARN: "))


def _saved_spaces(worker: InspectingWorker) -> Findings:
    """Compare the spaces that a policy was trained with, where it has them, with the environment's."""
    holders = (worker.policy.wrapped, getattr(worker.policy.wrapped, "policy", None))
    turns = any(hasattr(holder, "obs_to_tensor") for holder in holders)  # Stable-Baselines3 turns images.
    for name in ("observation_space", "action_space"):
        named = (getattr(holder, name, None) for holder in holders)
        saved = next((space for space in named if isinstance(space, spaces.Space)), None)
        if saved is not None:
            yield from _compared(name.replace("_", " "), saved, getattr(worker.env_spec, name), turns=turns)


def _compared(name: str, policy_space: Space, env_space: Space, *, turns: bool) -> Findings:
    """Compare two spaces, of Dicts each part; a policy that turns images may have their channels first."""
    for part, saved, space in differences(name, policy_space, env_space):
        before = saved
        if turns and isinstance(saved, spaces.Box) and saved.low.ndim == 3:  # noqa: PLR2004
            low, high = (np.moveaxis(bound, 0, -1) for bound in (saved.low, saved.high))
            if low.shape == space.shape:
                before = spaces.Box(low, high, dtype=saved.dtype.type)
        if not _has_same_bounds(before, space):
            yield _space_difference(part, before, space)


def _has_same_bounds(saved: Space, space: Space) -> bool:
    """Return whether two Boxes have equal bounds in another order: VecFrameStack repeats each n times."""
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
    text = f"the {what} of the policy is {was}, of the environment {now}"
    old = space_leaves(saved)
    new = space_leaves(space)
    forms, wanted_forms = (
        [(leaf.path, leaf.kind, leaf.shape, leaf.dtype.kind) for leaf in leaves] for leaves in (new, old)
    )
    if forms == wanted_forms:
        # Bounds of a Box change nothing that a network takes.
        return Finding("warn" if all(leaf.kind == "box" for leaf in new) else "fail", text, _AS_TRAINED)
    if len(old) == len(new) == 1 and old[0].shape != new[0].shape:
        if sorted(old[0].shape) == sorted(new[0].shape):
            return Finding("warn", text, "transpose the observation, unless the policy does so by itself")
        wanted = int(np.prod(old[0].shape))
        has = int(np.prod(new[0].shape))
        if wanted > has and wanted % has == 0:
            count = wanted // has
            return Finding(
                "fail",
                text,
                f"it may want {count} frames: {{wrapper=FrameStackObservation?stack_size={count}}}",
            )
    return Finding("fail", text, _AS_TRAINED)


def _steps(worker: InspectingWorker) -> Findings:
    """Take some steps, and look at masks, and at actions that a step changes."""
    env = worker.recorded_env
    policy = worker.policy
    space = worker.env_spec.action_space
    if isinstance(policy.users_own, RecordedPolicy):  # It acts in recorded episodes alone.
        return
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
        yield Finding("warn", "env.step changes the action that it is given", "let it change a copy")
    if seen["empty"]:
        yield Finding(
            "fail",
            f"{seen['empty']} of {seen['steps']} masks allow no action",
            "let action_masks() allow one at least, or end the episode",
        )
    if seen["forbidden"] or (has_masks and not policy.takes_masks):
        who = "and the policy asks for none" if not policy.takes_masks else "which the policy ignores"
        yield Finding(
            "fail" if seen["forbidden"] else "warn",
            f"the environment has action_masks, {who}: "
            f"{seen['forbidden']} of {seen['steps']} actions are forbidden",
            "give the policy's predict an argument action_masks, as MaskablePPO has",
        )


def _exploration(worker: InspectingWorker) -> Findings:
    """Ask for several actions for one observation: whether the policy draws."""
    policy = worker.policy
    answers = []
    if isinstance(policy.users_own, RecordedPolicy):
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
            f"deterministic actions are asked for, and {_ANSWERS} of one observation differ",
            "let `deterministic` end all draws, and `reset` clear what the policy keeps",
        )
    elif is_same:
        yield Finding(
            "ok", f"{_ANSWERS} actions for one observation are the same: the policy does not explore"
        )


def _stack(worker: InspectingWorker) -> Findings:
    """Look for wrappers that are fit for training and wrong for data."""
    for line in stack_warnings(worker.env):
        yield Finding("warn", line, "wrap the environment otherwise")


ON_OBJECTS: Mapping[str, Callable[[InspectingWorker], Findings]] = {
    "gymnasium's checker": _checker,
    "wrappers": _stack,
    "saved spaces": _saved_spaces,
    "masks and actions": _steps,
    "exploration": _exploration,
}
"""The checks, by the names that the report shows; each yields what is to be said, nothing if all is well."""
