"""The scheme `openpi:`: a model behind a server that speaks the openpi protocol.

The server gets one observation and returns a chunk of actions, of which the policy takes the first ones. The
protocol has neither resets nor seeds nor a description of the model, so nothing here can tell whether the server
acts the same way twice; the check at the end of a run tests it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, SpaceRows, Tree
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.keywords import Keywords, Record
from rollout_cli.policies.policy import ActionAndInfo, ActionsAndInfos, AdaptedPolicy, named
from rollout_cli.policies.serving.connection import Connection, split_token

_KEY = "key."
_EXAMPLE = "openpi:ws://127.0.0.1:8000?n_action_steps=8&key.observation/image=pixels&prompt=pick up the cube"
_CHUNK_DIMENSIONS = 2


@dataclass(frozen=True, slots=True)
class OpenpiSource:
    """The source of a policy behind an openpi server.

    Attributes:
        url: The URL of the server, without a token.
        token: The API key; empty for none.
        n_action_steps: Actions of a chunk to take; None takes all.
        keys: Maps each of the model's keys to a path in the observation: names joined by dots, or `.` for the
            complete observation. Without keys, the observation must be a dictionary and is sent unchanged.
        prompt: The instruction; None takes the description of the environment's task.
    """

    url: str
    token: str = field(repr=False)
    n_action_steps: int | None
    keys: Mapping[str, str]
    prompt: str | None

    @classmethod
    def of(cls, argument: str, options: Keywords) -> OpenpiSource:
        """Parse `URL?n_action_steps=N&key.MODEL_KEY=PATH&prompt=TEXT`; connect to nothing.

        Raises:
            PolicyLoadError: The URL or an argument is not valid.
        """
        address, _, query = argument.partition("?")
        url, token = split_token(address)
        pairs = {**dict(parse_qsl(query, keep_blank_values=True)), **options}
        keys = {name.removeprefix(_KEY): value for name, value in pairs.items() if name.startswith(_KEY)}
        keys |= pairs.pop("keys", {})
        unknown = [
            name for name in pairs if name not in {"n_action_steps", "prompt"} and not name.startswith(_KEY)
        ]
        steps = pairs.get("n_action_steps")
        if unknown or not (steps is None or (str(steps).isdecimal() and int(steps) > 0)):
            wrong = unknown[0] if unknown else f"n_action_steps={steps}"
            raise PolicyLoadError(
                f"openpi:{url} does not accept {wrong!r}",
                code="policy-options",
                hint=f"use, for example, {_EXAMPLE}",
            )
        return cls(url, token, None if steps is None else int(steps), keys, pairs.get("prompt"))

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> OpenpiPolicy:
        if deterministic:
            raise PolicyLoadError(
                f"the policy server {self.url} has no deterministic mode that a client can ask for",
                code="policy-not-deterministic",
                hint="omit {deterministic}, and start the server so that it acts deterministically",
            )
        return OpenpiPolicy(self, env_spec)

    def describe(self) -> Record:
        options: dict[str, Any] = {"keys": dict(self.keys)} if self.keys else {}
        if self.n_action_steps is not None:
            options["n_action_steps"] = self.n_action_steps
        if self.prompt is not None:
            options["prompt"] = self.prompt
        return {"scheme": "openpi", "path": self.url, "sha256": None, "options": options}


class OpenpiPolicy(AdaptedPolicy):
    """A policy that takes actions from chunks of a server; each row has its own connection and its own chunk.

    Raises:
        PolicyLoadError: The server cannot be reached.
    """

    resets = True

    def __init__(self, source: OpenpiSource, env_spec: EnvSpec) -> None:
        super().__init__()
        self._source = source
        self._space = env_spec.action_space
        self._observations = SpaceRows(env_spec.observation_space)
        self._actions = SpaceRows(env_spec.action_space)
        self._rows = [_Row(source)]

    def observe_task(self, row: int, task: str) -> None:
        self._rows[row].task = task

    def reset(self, do_resets: Array | None = None) -> None:
        mask = [True] if do_resets is None else do_resets.tolist()
        del self._rows[len(mask) :]
        while len(self._rows) < len(mask):
            self._rows.append(_Row(self._source))
        for row, starts in zip(self._rows, mask, strict=True):
            if starts:
                row.chunk = []

    def get_action(self, observation: Any) -> ActionAndInfo:
        row = self._rows[0]
        if not row.chunk:
            row.send(observation)
            row.receive()
        return self._fitted(row.chunk.pop(0)), {}

    def get_actions(self, observations: Tree) -> ActionsAndInfos:
        rows = self._rows
        waiting = []
        for row, observation in zip(rows, self._observations.split(observations), strict=True):
            if (
                not row.chunk
            ):  # All requests are sent before the first answer: a server may answer in parallel.
                row.send(observation)
                waiting.append(row)
        for row in waiting:
            row.receive()
        return self._actions.stack([self._fitted(row.chunk.pop(0)) for row in rows]), {}

    def _fitted(self, action: Array) -> Any:
        """Return an action with the dtype of the action space; the action check reports all other mismatches."""
        dtype = self._space.dtype
        return action.astype(dtype) if dtype is not None and dtype.kind == "f" else action


class _Row:
    """One row's connection, and the remaining actions of its chunk."""

    def __init__(self, source: OpenpiSource) -> None:
        self.task = ""
        self.chunk: list[Array] = []
        self._source = source
        self._connection = Connection(source.url, source.token)
        weakref.finalize(self, self._connection.close)

    def send(self, observation: Any) -> None:
        """Send the parts of an observation that `keys` selects, and the prompt."""
        source = self._source
        request = {key: _part(observation, path, source) for key, path in source.keys.items()}
        if not source.keys:
            if not isinstance(observation, Mapping):
                raise PolicyError(
                    f"the observation is {named(observation)}, expected a dictionary, "
                    f"or key.NAME=PATH in the SPEC for {source.url}",
                    code="openpi-keys",
                    hint="add the model's key to the SPEC, for example: key.observation/state=.",
                )
            request = dict(observation)
        prompt = self.task if source.prompt is None else source.prompt
        self._connection.send({**request, "prompt": prompt} if prompt else request)

    def receive(self) -> None:
        """Wait for the answer, and keep the first `n_action_steps` actions of its chunk."""
        answer = self._connection.receive()
        chunk = answer.get("actions") if isinstance(answer, Mapping) else None
        if not isinstance(chunk, np.ndarray) or chunk.ndim != _CHUNK_DIMENSIONS or not len(chunk):
            shape = chunk.shape if isinstance(chunk, np.ndarray) else f"{answer!r:.100}"
            raise PolicyError(
                f"the policy server {self._source.url} returned {shape}, expected actions of shape (horizon, size)",
                code="openpi-actions",
                hint="check that the server speaks the openpi protocol, with an array `actions` (horizon, size)",
            )
        self.chunk = list(chunk[: self._source.n_action_steps])


def _part(observation: Any, path: str, source: OpenpiSource) -> Any:
    """Return the part of an observation at a path."""
    part = observation
    for name in path.split(".") if path != "." else ():
        if not isinstance(part, Mapping) or name not in part:
            found = f"it has {', '.join(map(str, part))}" if isinstance(part, Mapping) else "it has no names"
            raise PolicyError(
                f"the observation has no {path!r} for the policy server {source.url}: {found}",
                code="openpi-keys",
                hint="name a part of the observation, such as pixels or agent.position, or . for all of it",
            )
        part = part[name]
    return part
