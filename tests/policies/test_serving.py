"""Messages between workers and a policy server: every value arrives as it was, and nothing else does any harm."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import gymnasium
import msgpack
import numpy as np
import pytest
from gymnasium.spaces import GraphInstance

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError, RolloutError
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.policies.schemes.openpi import OpenpiSource
from rollout_cli.policies.schemes.serve import ServedSource
from rollout_cli.policies.serving import connection, wire
from rollout_cli.policies.serving.process import Address, PolicyProcess
from rollout_cli.policies.serving.wire import BadMessageError, pack, unpack
from rollout_cli.policies.source import policy_source
from rollout_cli.sources.pins import PinRules
from tests.helpers.errors import raises

VALUES: list[Any] = [
    None, True, -3, 2**64 - 1, 0.1, float("inf"), "ä", b"x", [1, (2.5, ())], {"a": {1: "b"}}, np.float32(0.1),
    np.int64(-5), np.bool_(1), np.float16(0.1), np.str_("ö"), np.zeros((2, 0, 3)), np.array(5.0), np.array(["a", "bc"]),
    np.arange(6, dtype=">i2").reshape(2, 3), np.array([None, "a", {"b": 1}], object), np.arange(8)[::2],
    np.ma.MaskedArray([1.0, 2.0], [True, False]), GraphInstance(np.zeros((1, 2)), None, None),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_arrives_as_it_was(value: Any) -> None:
    """With its type, also inside a dictionary, a list and a tuple."""
    for nested in (lambda item: item, lambda item: {"k": [item]}, lambda item: (item, 1)):
        assert_same(nested(value), unpack(pack(nested(value))))


def assert_same(expected: Any, actual: Any) -> None:
    assert type(expected) is type(actual)
    if isinstance(expected, np.ndarray):
        assert expected.dtype == actual.dtype
        assert expected.shape == actual.shape
        assert_same(np.ma.getmaskarray(expected).tolist(), np.ma.getmaskarray(actual).tolist())
        assert_same(np.ma.getdata(expected).tolist(), np.ma.getdata(actual).tolist())
        assert actual.flags.writeable
    elif isinstance(expected, dict):
        assert list(expected) == list(actual)
        assert_same(list(expected.values()), list(actual.values()))
    elif isinstance(expected, list | tuple):
        assert len(expected) == len(actual)
        for pair in zip(expected, actual, strict=True):
            assert_same(*pair)
    else:
        assert expected == actual


@pytest.mark.parametrize(
    "value", [object(), {1}, 3j, 2**64, np.array([1j]), np.longdouble(1), np.zeros(1, "M8[s]")]
)
def test_a_value_without_a_representation_is_refused(value: Any) -> None:
    with raises(PolicyError, code="served-value"):
        pack({"value": value})


def test_a_message_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BYTES", 1000)
    with raises(PolicyError, code="served-size"):
        pack(np.zeros(1000))


def test_damaged_messages_are_refused_or_are_values() -> None:
    """Of a thousand changed messages none raises another error, or makes an array of objects from bytes."""
    rng = random.Random(0)
    good = pack(
        {"calls": [["act", [np.arange(4.0), (1, "a"), np.array([None], object)]]], "x": np.float32(1)}
    )
    n_refused = 0
    for _ in range(1000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            unpack(bytes(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data))
        except BadMessageError:
            n_refused += 1
    assert 200 < n_refused < 1000
    for dtype in ("O", "V8", "c8", "M8[s]", "<f4,<f4"):
        with pytest.raises(BadMessageError):
            unpack(
                msgpack.packb({b"__ndarray__": True, b"data": b"12345678", b"dtype": dtype, b"shape": [1]})
            )
    with pytest.raises(BadMessageError):  # An array of a terabyte.
        unpack(msgpack.packb({b"__ndarray__": True, b"data": b"1", b"dtype": "|u1", b"shape": [1 << 40]}))


# -- a server in its process -------------------------------------------------------------------------------


def spec_of(env_id: str) -> EnvSpec:
    env = gymnasium.make(env_id)
    return EnvSpec(env.observation_space, env.action_space, 200)


@contextmanager
def served(spec: str) -> Iterator[ServedSource]:
    source = policy_source(spec)
    record = {"spec": spec, **source.describe()}
    with PolicyProcess(source, record, PinRules(), Address(token="secret")) as process:
        yield ServedSource(process.url, "secret", record)


class Drawing:
    """Draws its actions from numpy's global generator."""

    def get_action(self, observation: Any) -> Any:
        return int(np.random.randint(2)), {}


class Counting:
    """Takes each action for three steps."""

    def __init__(self) -> None:
        self.n_steps = 0

    def get_action(self, observation: Any) -> Any:
        self.n_steps += 1
        return self.n_steps // 3 % 2, {}


COUNTING = Counting()
LOCKED = Counting()
LOCKED.lock = threading.Lock()  # type: ignore[attr-defined]


class Failing:
    """Fails in the way that the first number of the observation says."""

    def get_action(self, observation: Any) -> Any:
        if observation[0] == 1:
            raise ValueError("the first number is 1")
        if observation[0] == 2:
            raise SystemExit(3)
        return ({1, 2} if observation[0] == 3 else 0), {}

    def reset(self) -> None:
        pass


@pytest.fixture(scope="module")
def failing() -> Iterator[ServedSource]:
    with served("tests.policies.test_serving:Failing") as source:
        yield source


def test_two_sessions_do_not_change_each_other() -> None:
    """Each has its own states of the global generators, and its own policy."""

    def actions(policy: AdaptedPolicy, n_steps: int) -> list[Any]:
        return [policy.get_action(np.zeros(4, np.float32))[0] for _ in range(n_steps)]

    with served("tests.policies.test_serving:Drawing") as source:
        alone = source.load(spec_of("CartPole-v1"))
        expected = actions(alone, 20)
        first = source.load(spec_of("CartPole-v1"))
        second = source.load(spec_of("CartPole-v1"))
        turns = [actions(policy, 5) for policy in (first, second) * 4]
    assert len(set(expected)) > 1
    assert expected == [*chain(*turns[::2])] == [*chain(*turns[1::2])]


def test_two_sessions_do_not_share_an_object_of_a_module() -> None:
    """Each has a copy, of the state that the module gave it."""
    with served("tests.policies.test_serving:COUNTING") as source:
        policies = [source.load(spec_of("CartPole-v1")) for _ in range(2)]
        for _ in range(3):
            policies[0].get_action(np.zeros(4, np.float32))
        late = source.load(spec_of("CartPole-v1"))
        for policy in (policies[1], late):
            assert [0, 0, 1] == [policy.get_action(np.zeros(4, np.float32))[0] for _ in range(3)]
    with served("tests.policies.test_serving:LOCKED") as source, raises(PolicyLoadError, "pickle-failed"):
        source.load(spec_of("CartPole-v1"))


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [
        (1, "policy-raised", "the first number is 1"),
        (2, "policy-raised", "sys.exit"),
        (3, "served-value", "set"),
    ],
)
def test_an_error_of_the_policy_arrives(failing: ServedSource, number: int, code: str, says: str) -> None:
    """And the server goes on, also for the same client."""
    policy = failing.load(spec_of("CartPole-v1"))
    with raises(PolicyError, code=code) as caught:
        policy.get_action(np.full(4, number, np.float32))
    assert says in caught.value.message
    assert (0, {}) == policy.get_action(np.zeros(4, np.float32))


def test_a_policy_that_does_not_fit_is_refused_as_without_a_server(failing: ServedSource) -> None:
    with raises(PolicyLoadError, code="policy-not-deterministic"):
        failing.load(spec_of("CartPole-v1"), deterministic=True)


def test_a_wrong_token_is_refused(failing: ServedSource) -> None:
    with raises(PolicyLoadError, code="server-token"):
        ServedSource.of(failing.url.replace("://", "://wrong@"), {})
    assert failing.served == ServedSource.of(failing.url.replace("://", "://secret@"), {}).served


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: {"calls": [["get_action", [np.zeros(4)]]]},  # Before it is loaded.
        lambda: {"calls": [["__init__", []]]},
        lambda: {"calls": [["set_param_values", [{}]]]},
        lambda: {"calls": 3},
        lambda: {"load": {}},
        lambda: {"load": {"observation_space": {"type": "Box"}, "action_space": 1}},
        lambda: [1, 2],
    ],
)
def test_other_requests_are_answered_by_an_error(
    failing: ServedSource, request_of: Callable[[], Any]
) -> None:
    client = connection.Connection(failing.url, "secret")
    assert "served-message" == client.ask(request_of())["error"]["code"]
    client.close()


def test_the_server_needs_a_free_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        source = policy_source("random")
        process = PolicyProcess(source, {"spec": "random"}, PinRules(), Address(port=port))
        with raises(RolloutError, code="serve-address"), process:
            pass


# -- something else than a policy server -------------------------------------------------------------------


@contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Listen, and call `answer` with the first connection; yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65_536)
                answer(client)

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"ws://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def connect(url: str) -> None:
    ServedSource.of(url, {})


@pytest.mark.parametrize("load", [connect, lambda url: OpenpiSource.of(url, {}).load(spec_of("CartPole-v1"))])
def test_something_else_is_not_a_policy_server(
    load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(
        lambda client: client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    ) as url:
        with raises(PolicyLoadError, code="server-protocol") as caught:
            load(url)
        assert url in caught.value.message
    mail = listening(lambda client: client.sendall(b"220 mail.example.org ESMTP\r\n"))
    with mail as url, raises(PolicyLoadError, code="server-protocol"):
        load(url)
    with listening(lambda client: None) as url, raises(PolicyLoadError, code="server-lost"):  # It ends.
        load(url)
    with raises(PolicyLoadError, code="server-unreachable"):
        load(url)
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.2)
    with (
        listening(lambda client: client.recv(1)) as url,
        raises(PolicyLoadError, code="server-unreachable"),
    ):
        load(url)  # It never answers.


@contextmanager
def answering(*frames: Any) -> Iterator[str]:
    """Serve WebSockets that send these frames: the first one at once, then one for each request; yield the URL.

    Without frames, the server ends after the handshake, as if it was killed.
    """
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.server import ServerConnection, serve

    def handle(client: ServerConnection) -> None:
        if not frames:
            client.socket.shutdown(socket.SHUT_RDWR)
            return
        with suppress(ConnectionClosed):
            client.send(frames[0])
            for frame in frames[1:]:
                client.recv()
                client.send(frame)
            client.recv()

    with serve(handle, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


def acts(url: str) -> Any:
    """Act once with a policy of an openpi server."""
    policy = OpenpiSource.of(f"{url}?key.state=.", {}).load(spec_of("Pendulum-v1"))
    return policy.get_action(np.zeros(3, np.float32))


@pytest.mark.parametrize("metadata", [b"\xc1", pack([1]), "text", pack({"a": 1})[:2]], ids=repr)
def test_a_server_that_introduces_itself_otherwise(metadata: Any) -> None:
    for load in (connect, acts):
        with answering(metadata) as url, raises(PolicyLoadError, code="server-protocol"):
            load(url)


def test_a_server_that_ends_before_it_introduces_itself() -> None:
    for load in (connect, acts):
        with answering() as url, raises(PolicyLoadError, code="server-lost"):
            load(url)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"\xc1", "server-protocol"),
        (pack([1, 2]), "openpi-actions"),
        (pack({"actions": np.zeros(1)}), "openpi-actions"),
        (pack({"actions": np.zeros((0, 1))}), "openpi-actions"),
        (pack({"actions": [[0.0]]}), "openpi-actions"),
        ("Traceback\nValueError: no", "policy-raised"),
        (bytes(2000), "server-lost"),  # Too large.
    ],
)
def test_a_server_that_answers_something_else(
    answer: Any, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_BYTES", 1000)
    with answering(pack({}), answer) as url, raises(PolicyError, code=code) as caught:
        acts(url)
    assert url in caught.value.message
    with answering(pack({}), pack({"actions": np.zeros((1, 1), np.float32)})) as url:
        assert ([0.0], {}) == (acts(url)[0].tolist(), {})


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "127.0.0.1:8000", "ws://", "ws://host:port", ""])
def test_another_url_is_refused(url: str) -> None:
    for load in (connect, lambda url: OpenpiSource.of(url, {})):
        with raises(PolicyLoadError, code="policy-spec"):
            load(url)


@pytest.mark.parametrize("query", ["x=1", "n_action_steps=0", "n_action_steps=two"])
def test_wrong_arguments_of_openpi_are_refused(query: str) -> None:
    with raises(PolicyLoadError, code="policy-options"):
        OpenpiSource.of(f"ws://127.0.0.1:8000?{query}", {})
