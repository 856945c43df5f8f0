"""Secrets are cut from what is recorded, and nothing else is changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollout_cli.redaction import command_line_without_secrets, without_secrets

GITHUB = "ghp_" + "a1" * 18
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "key",
    [
        "token",
        "hf_token",
        "password",
        "db_password",
        "Secret",
        "clientSecret",
        "api_key",
        "apiKey",
        "API_KEY",
        "apikey",
        "authorization",
        "access_key",
        "privateKey",
        "credentials",
        "passwd",
        "pwd",
        "auth",
        "token2",
        "secret_key",
    ],
)
@pytest.mark.parametrize("value", ["open sesame", 1234, ["a", "b"], {"user": "x"}])
def test_values_of_secret_keys(key: str, value: Any) -> None:
    """Whatever a key holds that names a secret is cut, at any depth, and its path told."""
    cut, paths = without_secrets({"kwargs": {"a": [{key: value, "b": 1}]}})
    assert ({"kwargs": {"a": [{key: "***", "b": 1}]}}, [f"kwargs.a[0].{key}"]) == (cut, paths)


@pytest.mark.parametrize(
    "document",
    [
        {"max_tokens": 5, "tokenizer": "bpe", "token_length": 3, "keyboard": "us", "key": "up", "author": "me"},
        {"password": None, "secret": True, "token": ""},
        {"sha256": "0" * 64, "git": "a" * 40, "path": "/home/me/sk-learn/policy.pkl", "spec": "ALE/Pong-v5"},
        {"url": "https://example.org/a@b?x=1", "ssh": "git@example.org:repo", "text": "basic training of 12 agents"},
        {"spec_json": '{ "id":  "CartPole-v1", "kwargs": {} }', "broken": '{"a": ', "brace": "{x}"},
    ],
)
def test_what_is_no_secret_stays(document: dict[str, Any]) -> None:
    """Harmless keys and values come back as they were, texts of JSON to the byte."""
    assert (document, []) == without_secrets(document)


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("postgres://me:pass@host/db", "postgres://***@host/db"),
        ("redis://:p4ss@host", "redis://***@host"),
        (f"https://{GITHUB}@github.com/a", "https://***@github.com/a"),
        (f"x {GITHUB} y", "x *** y"),
        (f"Bearer {JWT}", "Bearer ***"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZDE=", "Authorization: Basic ***"),
        ("https://h/a?x=1&api_key=abc&y=2", "https://h/a?x=1&api_key=***&y=2"),
        ("https://h/a?sig=abc%2F", "https://h/a?sig=***"),
        ("https://h/a?X-Amz-Signature=abc", "https://h/a?X-Amz-Signature=***"),
        ("sk-proj-abcdefghijklmnop1234", "***"),
        ("hf_abcdefghijklmnopqrstuvwxyz", "***"),
        ("AKIAABCDEFGHIJKLMNOP", "***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "***"),
    ],
)
def test_texts_of_known_shapes(text: str, cut: str) -> None:
    """The secret part of a text is cut under any key, and cutting again changes nothing."""
    assert ({"note": cut}, ["note"]) == without_secrets({"note": text})
    assert ({"note": cut}, []) == without_secrets({"note": cut})


def test_json_within_a_text() -> None:
    """An EnvSpec that is recorded as text holds the environment's arguments once more."""
    cut, paths = without_secrets({"spec_json": json.dumps({"id": "A-v0", "kwargs": {"api_key": "x", "n": 1}})})
    assert {"id": "A-v0", "kwargs": {"api_key": "***", "n": 1}} == json.loads(cut["spec_json"])
    assert ["spec_json.kwargs.api_key"] == paths


@pytest.mark.parametrize(
    ("words", "cut"),
    [
        (["--env-kwargs", "token=abc", "-w", "2"], ["--env-kwargs", "token=***", "-w", "2"]),
        (["--env-kwargs=token=abc"], ["--env-kwargs=token=***"]),
        (["--worker-args", 'headers={Authorization="x", a=1}'], ["--worker-args", "headers=***"]),
        (["--env-kwargs", 'url="http://u:p@h/"'], ["--env-kwargs", "url=***"]),
        (["--api-key", "abc", "--seed", "1"], ["--api-key", "***", "--seed", "1"]),
        (["--password=abc"], ["--password=***"]),
        (["-p", "https://u:p@h/p.pkl"], ["-p", "https://***@h/p.pkl"]),
        (["collect", "--env-kwargs", "g=9.81", "-o", "out"], ["collect", "--env-kwargs", "g=9.81", "-o", "out"]),
        (["--policy-sha256", "0" * 64], ["--policy-sha256", "0" * 64]),
    ],
)
def test_command_lines(words: list[str], cut: list[str]) -> None:
    """Pairs, flags and plain words; the other words stay as they were given."""
    assert cut == command_line_without_secrets(words)
    assert cut == command_line_without_secrets(cut)
