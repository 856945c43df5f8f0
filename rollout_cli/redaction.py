"""Cutting secrets from what is recorded: arguments of environments and workers, and the command line.

Whatever looks like a secret becomes `***`: the values of keys such as `api_key`, the user's part of a URL, tokens of
known shapes. This is a net for accidents. A secret of an unknown shape under a harmless key passes it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

CUT = "***"

_SECRET_WORDS = {"password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "authorization"}
_SECRET_WORDS |= {"apikey"}
_SECRET_LAST = {"token", "auth", "pwd", "bearer", "cookie"}
_SECRET_KEYS = {"api", "access", "private", "auth", "encryption", "ssh", "signing"}
"""What makes a secret of a key whose last word is `key`."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NAMED = re.compile(r"([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_FLAG = re.compile(r"(-{1,2}[\w-]+)=(.*)", re.DOTALL)

_TOKENS = (
    r"\bgh[a-z]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}",  # GitHub, GitLab
    r"\bhf_[A-Za-z0-9]{20,}|\bsk-[\w-]{20,}|\bwandb_v\d_\w{20,}",  # Hugging Face, OpenAI and its like, Weights & Biases
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}",  # AWS, Google
    r"\bxox[a-z]-[\w-]{10,}|\bnpm_[A-Za-z0-9]{30,}|\bpypi-[\w-]{30,}",  # Slack, package registries
    r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",  # JSON web tokens
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
)
_SECRET_TEXTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile("|".join(_TOKENS), re.DOTALL), CUT),
    (re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s/@:]*:[^\s/@]+@"), rf"\1{CUT}@"),
    (re.compile(r"\b(https?://)[^\s/@]+@"), rf"\1{CUT}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+(?=\S*\d)[\w.~+/=-]{12,}"), rf"\1 {CUT}"),
    (
        re.compile(
            r"(?i)([?&;](?:sig|[\w.-]{0,40}?(?:token|password|passwd|secret|signature|credential|api[_-]?key))=)[^&#\s]+"
        ),
        rf"\1{CUT}",
    ),
)


def without_secrets(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a copy of a JSON document with its secrets cut, and the paths of what was cut, as `env.kwargs.token`.

    Texts that are JSON objects themselves are cut as such.
    """
    paths: list[str] = []
    cut = {key: _cut(value, str(key), str(key), paths) for key, value in document.items()}
    return cut, paths


def command_line_without_secrets(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with their secrets cut, in `key=value` pairs and after flags as well."""
    return list(_cut_words(words))


def _cut(value: Any, key: str, path: str, paths: list[str]) -> Any:
    if _names_secret(key) and not (value is None or isinstance(value, bool) or value in ("", CUT)):
        paths.append(path)
        return CUT
    if isinstance(value, Mapping):
        return {inner: _cut(item, str(inner), f"{path}.{inner}", paths) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(item, "", f"{path}[{index}]", paths) for index, item in enumerate(value)]
    return _cut_text(value, path, paths) if isinstance(value, str) else value


def _cut_text(text: str, path: str, paths: list[str]) -> str:
    inner = _json_object(text)
    if inner is not None:
        found: list[str] = []
        cut = _cut(inner, "", path, found)
        paths += found
        return json.dumps(cut) if found else text
    without = _without_known_shapes(text)
    if without != text:
        paths.append(path)
    return without


def _json_object(text: str) -> dict[str, Any] | None:
    """Return the object that a text is in JSON, such as an EnvSpec's; None for any other text."""
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _without_known_shapes(text: str) -> str:
    for pattern, replacement in _SECRET_TEXTS:
        text = pattern.sub(replacement, text)
    return text


def _names_secret(key: str) -> bool:
    words = [word.lower() for word in _WORD.findall(key)]
    if not words:
        return False
    is_key = words[-1] in {"key", "keys"} and not _SECRET_KEYS.isdisjoint(words[:-1])
    return is_key or words[-1] in _SECRET_LAST or not _SECRET_WORDS.isdisjoint(words)


def _cut_words(words: Iterable[str]) -> Iterator[str]:
    after_secret_flag = False
    for word in words:
        yield CUT if after_secret_flag and not word.startswith("-") else _cut_word(word)
        after_secret_flag = word.startswith("-") and "=" not in word and _names_secret(word)


def _cut_word(word: str) -> str:
    flag = _FLAG.fullmatch(word)
    if flag is not None:
        return f"{flag[1]}={CUT if _names_secret(flag[1]) else _cut_word(flag[2])}"
    pair = _NAMED.fullmatch(word)
    if pair is None:
        return _cut_text(word, "", [])
    # A table's keys may name secrets too; it is then cut as a whole, for it is not written down again.
    document = {pair[1]: _toml_value(pair[2])}
    _, found = without_secrets(document)
    return f"{pair[1]}={CUT}" if found else word


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}").get("value", text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
