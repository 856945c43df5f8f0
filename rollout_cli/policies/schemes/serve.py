"""The scheme `serve:`: a policy that a `rollout serve` process loads, and that acts as if it were loaded here.

Everything that decides an action is sent: spaces, seeds, resets, rewards, masks. So the data are those of the
same policy without a server, unless policy and environment share a random generator, such as `numpy.random` or
that of the action space: here each process has its own.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rollout_cli import errors
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, Tree, space_to_json
from rollout_cli.errors import PolicyError, PolicyLoadError, UserCodeError
from rollout_cli.keywords import Keywords, Record
from rollout_cli.policies.policy import ActionAndInfo, ActionsAndInfos, AdaptedPolicy, RemoteReport
from rollout_cli.policies.serving.connection import Connection, split_token
from rollout_cli.policies.serving.wire import ATTRIBUTES, PROTOCOL
from rollout_cli.seeding.generators import SeededElsewhere
from rollout_cli.seeding.seeds import Seeding, last_seeding
from rollout_cli.sources.pins import PinnedFile


@dataclass(frozen=True, slots=True)
class ServedSource:
    """The source of a policy behind a server.

    Attributes:
        url: The URL of the server, without a token.
        token: The token; empty for none.
        served: The server's record of the policy.
        is_own: True if this run started the server; the policy is then recorded as if the worker had loaded it.
    """

    url: str
    token: str = field(repr=False)
    served: Record
    is_own: bool = False

    @classmethod
    def of(cls, url: str, options: Keywords) -> ServedSource:
        """Ask the server at `url`, which may contain a token, for its policy.

        Raises:
            PolicyLoadError: The server cannot be reached, or options are given.
        """
        if options:
            raise PolicyLoadError(
                f"serve:{url} does not accept {', '.join(options)}",
                code="policy-options",
                hint="pass the options of the policy to `rollout serve`",
            )
        url, token = split_token(url)
        connection = _connected(url, token)
        connection.close()
        return cls(url, token, dict(connection.metadata["policy"]))

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> ServedPolicy:
        connection = _connected(self.url, self.token)
        if (found := connection.metadata["policy"]) != self.served:
            raise PolicyLoadError(
                f"the policy server {self.url} has the policy {found.get('spec')!r} with the SHA-256 "
                f"{found.get('sha256')}, expected {self.served.get('spec')!r} with {self.served.get('sha256')}",
                code="policy-hash",
                hint="serve the policy with which the run started",
            )
        return ServedPolicy(connection, env_spec, deterministic=deterministic, is_own=self.is_own)

    def describe(self) -> Record:
        if self.is_own:
            return {name: value for name, value in self.served.items() if name != "spec"}
        sha256 = self.served.get("sha256")
        return {
            "scheme": "serve",
            "path": self.url,
            "sha256": sha256,
            "options": {},
            "served": dict(self.served),
        }


def _connected(url: str, token: str) -> Connection:
    """Connect to a `rollout serve` process of this version of the protocol, or raise PolicyLoadError."""
    connection = Connection(url, token)
    version = connection.metadata.get("rollout")
    if version != PROTOCOL or not isinstance(connection.metadata.get("policy"), dict):
        found = f"version {version} of the protocol" if version else "another protocol"
        raise PolicyLoadError(
            f"the policy server {url} speaks {found}, expected version {PROTOCOL} of the protocol of `rollout serve`",
            code="server-protocol",
            hint="use the same version of rollout-collect on both sides; for other servers, pass openpi:ws://…",
        )
    return connection


class ServedPolicy(AdaptedPolicy, SeededElsewhere):
    """A policy behind a server. Calls without a result are sent with the next call that has one.

    Args:
        connection: The connection, which is this policy's own.
        env_spec: The environment's spaces.
        deterministic: Use the policy's deterministic mode.
        is_own: True if this run started the server.

    Raises:
        RolloutError: The server cannot load the policy for these spaces.
    """

    def __init__(
        self, connection: Connection, env_spec: EnvSpec, *, deterministic: bool, is_own: bool = False
    ) -> None:
        super().__init__()
        self._connection = connection
        weakref.finalize(self, connection.close)
        self._is_own = is_own
        self._seeding: Seeding | None = None  # The last seeding of the global generators that was sent.
        self._calls: list[list[Any]] = []  # Calls that are not sent yet.
        root, number = last_seeding() or (0, 0)
        loaded = self._ask({
            "load": {
                "observation_space": space_to_json(env_spec.observation_space),
                "action_space": space_to_json(env_spec.action_space),
                "max_episode_length": env_spec.max_episode_length,
                "seeding": [str(root), number],
                "deterministic": deterministic,
            }
        })  # fmt: skip
        self._seeding = last_seeding()
        self.remote_class = loaded["class"]
        self.methods = tuple(loaded["methods"])
        for name in ATTRIBUTES:
            setattr(self, name, loaded[name])
        for verb in loaded["verbs"]:
            setattr(self, verb, partial(self._add, verb))

    def remote_reports(self) -> list[RemoteReport]:
        report = self._ask({"report": True})
        files = [PinnedFile(**{**file, "state": tuple(file["state"])}) for file in report["files"]]
        if self._is_own:
            return [RemoteReport(tuple(report["modules"]), tuple(files))]
        # Another machine may have another file with the path of a file here, and other versions of packages.
        files = [replace(file, key=f"{self._connection.url} {file.key}") for file in files]
        return [RemoteReport((), tuple(files))]

    def get_action(self, observation: Any) -> ActionAndInfo:
        return self._result("get_action", observation)  # type: ignore[no-any-return]

    def get_actions(self, observations: Tree) -> ActionsAndInfos:
        return self._result("get_actions", observations)  # type: ignore[no-any-return]

    def act(self, observation: Any, masks: Any) -> ActionAndInfo:
        return self._result("act", observation, masks)  # type: ignore[no-any-return]

    def act_batch(self, observations: Tree, masks: Any) -> ActionsAndInfos:
        return self._result("act_batch", observations, masks)  # type: ignore[no-any-return]

    def acts_alike(self, n_rows: int) -> bool:
        return bool(self._result("acts_alike", n_rows))

    def reset(self, do_resets: Array | None = None) -> None:
        if self.resets:
            self._add("reset", do_resets)

    def seed_found(self, root: int, number: int | str) -> None:
        self._add("seed_found", str(root), number)

    def _add(self, verb: str, *arguments: Any) -> None:
        """Queue a call for the next request, after a seeding of the global generators since the last call."""
        seeding = last_seeding()
        if seeding is not None and seeding is not self._seeding:
            self._seeding = seeding
            self._calls.append(["seed_globals", [str(seeding[0]), seeding[1]]])
        self._calls.append([verb, list(arguments)])

    def _result(self, verb: str, *arguments: Any) -> Any:
        self._add(verb, *arguments)
        calls = self._calls
        self._calls = []
        return self._ask({"calls": calls})

    def _ask(self, request: dict[str, Any]) -> Any:
        match self._connection.ask(request):
            case {"result": result}:
                return result
            case {"error": {"kind": str() as kind, "message": str(), "code": str()} as failed}:
                raise _error_of(kind, failed)
            case other:
                raise PolicyError(
                    f"the policy server {self._connection.url} answered {other!r:.100}, expected a result or an error",
                    code="server-protocol",
                    hint="use the same version of rollout-collect on both sides",
                )


def _error_of(kind: str, failed: dict[str, Any]) -> errors.RolloutError:
    """Return the server's error as an exception of the same class."""
    found = getattr(errors, kind, None)
    error_class: type[errors.RolloutError] = UserCodeError
    if isinstance(found, type) and issubclass(found, errors.RolloutError):
        error_class = found
    code, hint, details = (str(failed.get(name, "")) for name in ("code", "hint", "details"))
    return error_class(failed["message"], code=code, hint=hint, details=details)
