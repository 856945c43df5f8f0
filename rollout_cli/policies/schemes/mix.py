"""The scheme `mix:0.8*SPEC+0.2*SPEC`: one policy acts per episode, sampled by the weights."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import Any

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import PolicyLoadError
from rollout_cli.keywords import Keywords, Record
from rollout_cli.policies.policy import (
    ActionAndInfo,
    AdaptedPolicy,
    PolicySource,
    RemoteReport,
    recorded_spec,
)
from rollout_cli.seeding.seeds import derive_seed

_WEIGHT = r"\d*\.?\d+(?:[eE]-?\d+)?"
_PLUS = rf"\+(?={_WEIGHT}\*)"
_EXAMPLE = "use a form such as mix:0.8*expert.zip+0.2*random"
_PRECISION = 1e-9


class MixPolicy(AdaptedPolicy):
    """Acts as one of its components, which the seed of the episode chooses; call `seed` before acting.

    The component gets the same seed as without a mixture. The info `component` is its index, from 0.
    """

    row_by_row = resets = True

    def __init__(self, components: Sequence[AdaptedPolicy], weights: Sequence[float]) -> None:
        super().__init__()
        self._components = components
        self._edges = list(accumulate(weights))[:-1]
        self._index = 0
        self.acts_within_space = all(component.acts_within_space for component in components)
        self.takes_masks = any(component.takes_masks for component in components)
        if any(component.observe_reward for component in components):
            self.observe_reward = self._observe_reward
        if any(component.observe_task for component in components):
            self.observe_task = self._observe_task

    def remote_reports(self) -> list[RemoteReport]:
        return [report for component in self._components for report in component.remote_reports()]

    def seed(self, seed: int) -> None:
        self._index = bisect_right(self._edges, derive_seed(seed, "policy", "mix") / 2**64)
        component = self._components[self._index]
        if component.seed is not None:
            component.seed(seed)

    def reset(self, do_resets: Array | None = None) -> None:
        self._components[self._index].reset(do_resets)

    def _observe_reward(self, reward: float) -> None:
        if (observe := self._components[self._index].observe_reward) is not None:
            observe(reward)

    def _observe_task(self, row: int, task: str) -> None:
        if (observe := self._components[self._index].observe_task) is not None:
            observe(row, task)

    def get_action(self, observation: Any, masks: Any = None) -> ActionAndInfo:
        action, info = self._components[self._index].act(observation, masks)
        return action, {**info, "component": self._index}

    act = get_action


@dataclass(frozen=True, slots=True)
class MixSource:
    """The source of a mixture.

    Attributes:
        sources: The sources of the components.
        records: For each component its weight, its SPEC, and the record of its source.
    """

    sources: tuple[PolicySource, ...]
    records: tuple[Record, ...]

    @classmethod
    def of(
        cls,
        mixture: str,
        options: Keywords,
        find: Callable[[str, Keywords], PolicySource],
    ) -> MixSource:
        """Parse a sum of weighted SPECs.

        `options` may contain dictionaries with the options of components, under `component0` and so on.
        `find` returns the source of a component from its SPEC and options.

        Raises:
            PolicyLoadError: The syntax is wrong, the weights do not sum to 1, or a component is unknown.
        """
        parts = {}
        for index, term in enumerate(re.split(_PLUS, mixture)):
            match = re.fullmatch(rf"({_WEIGHT})\*(.+)", term)
            if match is None:
                raise PolicyLoadError(
                    f"mix:{mixture} is not a sum of weighted policies", code="policy-spec", hint=_EXAMPLE
                )
            parts[f"component{index}"] = match.groups()
        total = math.fsum(float(weight) for weight, _ in parts.values())
        if abs(total - 1.0) > _PRECISION:
            raise PolicyLoadError(
                f"the weights of mix:{mixture} sum to {total:.12g}, expected 1",
                code="mix-weights",
                hint=_EXAMPLE,
            )
        for name, value in options.items():
            if name not in parts or not isinstance(value, Mapping):
                raise PolicyLoadError(
                    f"mix:{mixture} does not accept the option {name!r} with the value {value!r}",
                    code="policy-options",
                    hint="pass a table of options per component in {policy_kwargs}, such as component0={scale = 2}",
                )
        sources = []
        records = []
        for name, (weight, spec) in parts.items():
            source = find(spec, options.get(name, {}))
            sources.append(source)
            records.append({"weight": float(weight), "spec": spec, **source.describe()})
        return cls(tuple(sources), tuple(records))

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> MixPolicy:
        policies = [source.load(env_spec, deterministic=deterministic) for source in self.sources]
        return MixPolicy(policies, [record["weight"] for record in self.records])

    def describe(self) -> Record:
        """Return the record: `path` is the weighted sum, `sha256` covers all components, and so do `components`."""
        terms = []
        hashed = []
        options = {}
        for index, record in enumerate(self.records):
            terms.append(f"{record['weight']!r}*{recorded_spec(record)}")
            # For a component that is a file, the content counts, not the path.
            spec = record["path"] is None and record["spec"]
            hashed.append([record["weight"], record["scheme"], record["sha256"], spec])
            if record["options"]:
                options[f"component{index}"] = record["options"]
        return {
            "scheme": "mix",
            "path": "+".join(terms),
            "sha256": sha256(json.dumps(hashed).encode()).hexdigest(),
            "options": options,
            "components": list(map(dict, self.records)),
        }
