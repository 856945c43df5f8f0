"""evaluate(): run several policies in the same episodes, and compare their returns."""

from __future__ import annotations

import glob
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from rollout_cli.envs.source import EnvSource
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import AnyChunk, episode_returns
from rollout_cli.episodes.infos import SUCCESS_INFOS
from rollout_cli.errors import DatasetExistsError, PolicyLoadError, RolloutError, UsageError
from rollout_cli.keywords import Record
from rollout_cli.options.config import DEFAULT_EPISODES, CollectConfig, leading_policy
from rollout_cli.policies.adapt import adapt_policy
from rollout_cli.policies.policy import AdaptedPolicy, PolicySource
from rollout_cli.progress import Progress, showing
from rollout_cli.run.collect import collect
from rollout_cli.run.evaluation import Evaluation
from rollout_cli.run.request import check_pins, completed, env_of, exploring, policy_of, sampler_of
from rollout_cli.run.serve import policy_process
from rollout_cli.run.signals import stop_on_signals
from rollout_cli.samplers.keep import Judge
from rollout_cli.samplers.nesting import refuse_in_worker
from rollout_cli.samplers.plan import Episodes
from rollout_cli.seeding.seeds import draw_root_seed
from rollout_cli.sources.loading import reporting
from rollout_cli.sources.remote import folder_of

Reference = str | float
"""A mean return, or the policy that has it."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A policy to evaluate: its name, a SPEC or an object, and the number in its file's name."""

    name: str
    policy: Any
    checkpoint: int | None = None


def evaluate(
    policies: str | Sequence[str] | Mapping[str, Any],
    env: str | None = None,
    *,
    success: str | None = None,
    normalize: tuple[Reference, Reference] | None = None,
    output: Path | str | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> Evaluation:
    """Run each policy in the same episodes, with the same seeds and tasks, and compare the returns.

    The episodes are those that `collect` runs with the same root seed.

    Args:
        policies: SPECs, or policies by name: SPECs, or objects that samplers accept. A SPEC with a `*` stands for
            the files that match it, in the order of the numbers in their names.
        env: The environment, as in `CollectConfig`.
        success: An expression for successful episodes, such as `return >= 200`; by default, the infos
            `is_success` or `success` of an episode's last step, if it has them.
        normalize: The mean returns with the scores 0 and 100: numbers, or names of evaluated policies.
        output: A folder for the datasets, one a policy; None keeps no episodes.
        progress: As in `collect`.
        options: Options of `rollout evaluate`, as in `CollectConfig`; `episodes` is 100 by default.

    Raises:
        RolloutError: If a policy cannot be loaded, or a run fails or is interrupted.

    Example:
        >>> evaluation = rollout_cli.evaluate(
        ...     ["constant:0", "random"], "CartPole-v1", episodes=20, seed=0, sampler="local"
        ... )
        >>> print(evaluation.results[1].difference)
        14.7 (10.4873 to 18.9)
    """
    options.setdefault("episodes", DEFAULT_EPISODES)
    named = {"": policies} if isinstance(policies, str) else policies
    found = named.values() if isinstance(named, Mapping) else named
    leading = leading_policy([spec for spec in found if isinstance(spec, str)])
    config = CollectConfig(command="evaluate", policy=leading, env=env, **options)
    with showing(progress) as shown:
        return evaluate_config(
            policies, config, success=success, normalize=normalize, output=output, progress=shown
        )


def evaluate_config(
    policies: str | Sequence[str] | Mapping[str, Any],
    config: CollectConfig,
    *,
    success: str | None,
    normalize: tuple[Reference, Reference] | None,
    output: Path | str | None,
    progress: Progress,
    finished: Callable[[Evaluation], None] | None = None,
) -> Evaluation:
    """Evaluate as `evaluate`, with the options of a configuration, whose policy is the leading one.

    If an error or a signal ends it, `finished` is called with the results of the policies before.
    """
    refuse_in_worker("evaluate")
    candidates = [*_candidates([policies] if isinstance(policies, str) else policies)]
    if not candidates:
        raise UsageError(
            "the list of policies is empty, expected at least one policy",
            code="policy-none",
            hint="pass {policy=SPEC}",
        )
    names = [candidate.name for candidate in candidates]
    for reference in normalize or ():
        _check_reference(reference, names)
    check_pins(config.pin)
    config = completed(config, progress)
    config = replace(config, seed=draw_root_seed() if config.seed is None else config.seed)
    expressions = [success] if success is not None else [*SUCCESS_INFOS]
    folders = () if output is None else _folders(candidates, folder_of(str(output)))
    progress.start(
        label=f"{len(names)} policies in {config.env}" if len(names) > 1 else str(config.env),
        total_steps=None,
        total_episodes=len(names) * len(config.run_numbers),
    )
    outcomes: list[_Outcome] = []

    def evaluation() -> Evaluation:
        expression = _success(expressions, outcomes, is_given=success is not None)
        return Evaluation(
            env=str(config.env),
            seed=config.seed or 0,
            policies=tuple(names[: len(outcomes)]),
            checkpoints=tuple(candidate.checkpoint for candidate in candidates[: len(outcomes)]),
            numbers=np.arange(*config.episodes or ()),
            returns=np.array([outcome.returns for outcome in outcomes]),
            lengths=np.array([outcome.lengths for outcome in outcomes]),
            success=expression,
            successes=np.array([outcome.successes[expression] for outcome in outcomes] if expression else []),
            references=None,
            paths=tuple(folders[: len(outcomes)]),
        )

    try:
        if output is None:
            _sample(candidates, config, expressions, outcomes, progress)
        else:
            runs = zip(candidates, folders, strict=True)
            configs = [replace(config, policy=run.policy, output=folder) for run, folder in runs]
            _collect(configs, expressions, outcomes, progress)
    except RolloutError:
        progress.finish()
        if outcomes and finished is not None:
            finished(evaluation())
        raise
    progress.finish()
    whole = evaluation()
    return whole if normalize is None else replace(whole, references=_references(normalize, whole))


@dataclass(frozen=True, slots=True)
class _GivenSource:
    """The source of a policy that a program passes as an object, pickled, so that each worker has a copy."""

    pickled: bytes

    @classmethod
    def of(cls, policy: Any) -> _GivenSource:
        with reporting(
            PolicyLoadError, "the policy cannot be pickled", code="pickle-failed", hint="pass a SPEC instead"
        ):
            return cls(cloudpickle.dumps(policy))

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
        policy = pickle.loads(self.pickled)  # noqa: S301 - by this program
        return adapt_policy(policy, env_spec, deterministic=deterministic)

    def describe(self) -> Record:
        return {"scheme": None, "path": None, "sha256": None, "options": {}}


class _Outcome:
    """What the episodes of one policy gave.

    Attributes:
        returns: float64 (N,); nan for episodes that did not run.
        lengths: Steps, int64 (N,); 0 for episodes that did not run.
        successes: By expression, bool (N,).
        unmet: By expression, an error for each info that it names and no episode has had.
    """

    def __init__(self, numbers: range, expressions: Sequence[str]) -> None:
        self.returns = np.full(len(numbers), np.nan)
        self.lengths = np.zeros(len(numbers), np.int64)
        self.successes = {text: np.zeros(len(numbers), bool) for text in expressions}
        self.unmet: dict[str, Mapping[str, UsageError]] = {}
        self._first = numbers.start
        self._judges = {text: Judge(text) for text in expressions}

    def add(self, chunk: AnyChunk) -> None:
        """Add the episodes of a chunk."""
        episodes = chunk.load()
        places = episodes.numbers - self._first
        self.returns[places] = episode_returns([episodes.rewards], episodes.lengths)
        self.lengths[places] = episodes.lengths
        for text, judge in self._judges.items():
            _, rejected, self.unmet[text] = judge.judge(episodes)
            self.successes[text][places] = ~np.isin(episodes.numbers, rejected)


class _Watched(Progress):
    """The progress of one policy's run, as a part of the evaluation's."""

    def __init__(self, whole: Progress, outcome: _Outcome) -> None:
        self._whole = whole
        self._outcome = outcome

    def add(self, chunk: AnyChunk) -> None:
        self._outcome.add(chunk)
        self._whole.add(chunk)

    def update(self, **counts: Any) -> None:
        self._whole.update(**counts)

    def notice(self, text: str) -> None:
        self._whole.notice(text)

    def warn(self, text: str) -> None:
        self._whole.warn(text)


def _sample(
    candidates: Sequence[_Candidate],
    config: CollectConfig,
    expressions: Sequence[str],
    outcomes: list[_Outcome],
    progress: Progress,
) -> None:
    """Run the episodes of each policy on the same workers, and add what they gave to `outcomes`."""
    env = env_of(config)
    policies = [_served(candidate.policy, config, env) for candidate in candidates]
    numbers = config.run_numbers
    with stop_on_signals() as signals, ExitStack() as process:
        # The workers are built with the first policy.
        first = process.enter_context(policies[0])
        with sampler_of(config, first, env, warn=progress.warn) as sampler:
            signals.stop = lambda _: sampler.request_stop()
            sampler.start_worker()
            progress.begin()
            for policy in policies:
                update = None
                if outcomes:
                    process.close()  # No episode of the policy before is left.
                    update = process.enter_context(policy)
                outcome = _Outcome(numbers, expressions)
                watched = _Watched(progress, outcome)
                for chunk in sampler.stream(Episodes(numbers.start, numbers.stop), agent_update=update):
                    watched.add(chunk)
                if signals.received is not None:
                    raise signals.error(f"the evaluation was ended by {signals.name}")
                outcomes.append(outcome)


def _collect(
    configs: Sequence[CollectConfig], expressions: Sequence[str], outcomes: list[_Outcome], progress: Progress
) -> None:
    """Collect each policy's dataset, and add what its episodes gave to `outcomes`."""
    progress.begin()
    for config in configs:
        outcome = _Outcome(config.run_numbers, expressions)
        collect(replace(config, command="collect"), progress=_Watched(progress, outcome))
        outcomes.append(outcome)


def _folders(candidates: Sequence[_Candidate], output: Path) -> list[Path]:
    """Return a new folder in `output` for each policy, named after it.

    Raises:
        UsageError: If a policy is an object.
        DatasetExistsError: If a folder exists.
    """
    folders: list[Path] = []
    for candidate in candidates:
        if not isinstance(candidate.policy, str):
            raise UsageError(
                f"the policy {candidate.name!r} is an object, and a dataset records a SPEC",
                code="policy-not-a-spec",
                hint="pass SPECs, or omit {output}",
            )
        name = re.sub(r"[^A-Za-z0-9._]+", "-", candidate.name).strip("-.") or "policy"
        folder = output / name
        folders.append(folder if folder not in folders else output / f"{name}-{len(folders)}")
        if folders[-1].exists():
            raise DatasetExistsError(
                f"{folders[-1]} already exists", code="output-exists", hint="choose another {output}"
            )
    return folders


def _served(policy: Any, config: CollectConfig, env: EnvSource) -> AbstractContextManager[PolicySource]:
    """Return the source of a policy, with the exploration noise and the policy process of the configuration."""
    if isinstance(policy, str):
        config = replace(config, policy=policy)
        source, _ = policy_of(config)
    else:
        source = exploring(_GivenSource.of(policy), config)
    return policy_process(config, source, env)


def _success(expressions: Sequence[str], outcomes: Sequence[_Outcome], *, is_given: bool) -> str:
    """Return the expression of which some policy's episodes have all infos, or an empty string.

    Raises:
        UsageError: If no episode has an info that the user's expression names.
    """
    for text in expressions:
        # A policy of which all episodes were skipped says nothing.
        unmet = [outcome.unmet[text] for outcome in outcomes if text in outcome.unmet]
        if not all(unmet):
            return text
        if is_given and unmet:
            raise next(iter(unmet[0].values()))
    return ""


# Policies and references.


def _candidates(policies: Sequence[str] | Mapping[str, Any]) -> Iterator[_Candidate]:
    if isinstance(policies, Mapping):
        for name, policy in policies.items():
            yield _Candidate(name, policy)
        return
    for spec in policies:
        if "*" in spec:
            yield from _matching(spec)
        else:
            yield _Candidate(spec, spec)


def _matching(pattern: str) -> Iterator[_Candidate]:
    """Yield the files that match the path in a SPEC, in the order of the numbers in their names.

    Raises:
        PolicyLoadError: If no file matches.
    """
    scheme, colon, path = pattern.rpartition(":")
    paths = sorted(glob.glob(path, recursive=True), key=_in_order)  # noqa: PTH207 - the result has the form of the SPEC
    if not paths:
        raise PolicyLoadError(
            f"no file matches the policy {pattern!r}",
            code="policy-pattern",
            hint="quote the pattern, and check it with `ls`",
        )
    numbers = [re.findall(r"\d+", Path(name).stem) for name in paths]
    # The number that changes from file to file is the checkpoint's.
    varying = [
        place for place, column in enumerate(zip(*numbers, strict=False)) if len({*column}) == len(paths)
    ]
    for name, found in zip(paths, numbers, strict=True):
        spec = f"{scheme}{colon}{name}"
        yield _Candidate(spec, spec, int(found[varying[-1]]) if varying else None)


def _in_order(path: str) -> list[tuple[str, int]]:
    """Return a key that sorts numbers in names by value."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", path)]


def _check_reference(reference: Reference, names: Sequence[str]) -> None:
    if isinstance(reference, str) and reference not in names:
        raise UsageError(
            f"--normalize has {reference!r}, expected a number or one of the policies: {', '.join(names)}",
            code="reference-unknown",
            hint="pass the reference policy also as {policy=SPEC}",
        )


def _references(normalize: tuple[Reference, Reference], evaluation: Evaluation) -> tuple[float, float]:
    """Return the mean returns with the scores 0 and 100.

    Raises:
        UsageError: If the second is not higher than the first.
    """
    means = dict(zip(evaluation.policies, [result.mean.value for result in evaluation.results], strict=True))
    low, high = [means[reference] if isinstance(reference, str) else reference for reference in normalize]
    if not high > low:
        raise UsageError(
            f"--normalize has the mean returns {low:.6g} and {high:.6g}, expected a higher second one",
            code="reference-order",
            hint="pass the weaker policy first",
        )
    return low, high
