"""The declaration of one option: its help, its meaning for a run, and the validation of its values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rollout_cli.errors import ConfigError
from rollout_cli.keywords import keyword
from rollout_cli.options import types
from rollout_cli.options.rules import Rule
from rollout_cli.redact import without_secrets

CommandName = Literal["collect", "exact", "evaluate"]
UNCHANGED: Any = object()
"""Marks options that keep their value when an episode is rerun."""

_LONGEST_SHOWN = 80
_ADAPTERS: dict[str, TypeAdapter[Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of `rollout collect`, `rollout exact` or `rollout evaluate`."""

    name: str  # Name of the field of `CollectConfig`, and key in a TOML file.
    type: Any  # Annotated type of the field.
    # How the command line passes it: `switch` has no value; `list` and `mapping` are repeatable.
    kind: Literal["scalar", "switch", "list", "mapping"]
    panel: str  # Section of the help page.
    help: str  # Description on the help page; the first sentence has at most 12 words.
    short: str = ""  # One-letter flag such as `-p`, or empty.
    metavar: str  # Placeholder of the value on help pages; empty for a switch.
    shown: str = ""  # Default as shown on help pages; empty if there is none.
    commands: tuple[CommandName, ...] = get_args(CommandName)
    choices: tuple[str, ...]  # Accepted words of an enumeration; empty for other types.
    # The option states how much to collect. An amount in one source overrides all amounts of weaker sources.
    is_amount: bool = False
    # The option can end a run. A run needs at least one such option and ends when the first is reached.
    ends_run: bool = False
    # The value must be the same for all runs of one dataset. Policy and environment are compared separately.
    decides_data: bool = False
    # info.json records the option.
    is_recorded: bool = True
    # Value for rerunning an episode in this process.
    when_rerun: Any = UNCHANGED
    needs: tuple[Rule, ...] = ()
    excludes: tuple[Rule, ...] = ()

    @property
    def summary(self) -> str:
        """The first sentence of the help, which a help page shows; docs/options.md has all of it."""
        return re.split(r"(?<=\.) (?=[A-Z`])", self.help, maxsplit=1)[0]

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "ROLLOUT_" + self.name.upper()

    @property
    def repeats(self) -> bool:
        """True if the flag can be repeated on a command line."""
        return self.kind in {"list", "mapping"}

    def read(self, raw: Any, label: str, *, text: bool = False) -> Any:
        """Return the validated value of the option.

        Args:
            raw: The value; with `text`, a string, or a list of strings if the option is repeatable.
            label: The source of the value for messages, such as `ROLLOUT_WORKERS`.
            text: Parse strings, as for flags and environment variables.

        Raises:
            ConfigError: If the option does not accept the value.
        """
        if text and self.kind == "mapping":
            raw = dict(keyword(item, label) for item in raw)
        elif text and self.kind == "list":
            raw = tuple(raw)
        try:
            if text and isinstance(raw, str):
                return self._adapter().validate_strings(raw)
            return self._adapter().validate_python(raw, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            value = repr(without_secrets(first["input"]))
            if len(value) > _LONGEST_SHOWN:
                value = f"{value[:_LONGEST_SHOWN]}…"
            _, has_rule, rule = re.sub(", unable to parse.*", "", first["msg"]).partition(" should ")
            expected = f"must {rule}" if has_rule else f"is not valid ({first['msg']})"
            raise ConfigError(
                f"{label} {expected}, got {value}",
                code="option-value",
                hint=f"use {' or '.join(self.choices) or types.ALLOWED[self.metavar]}",
            ) from error

    def _adapter(self) -> TypeAdapter[Any]:
        """Return the cached validator of the type; building it is slow."""
        if self.name not in _ADAPTERS:
            _ADAPTERS[self.name] = TypeAdapter(self.type, config=ConfigDict(hide_input_in_errors=True))
        return _ADAPTERS[self.name]
