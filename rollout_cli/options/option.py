"""An option: what people see of it, what it means for a run, and how its values are read."""

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

CommandName = Literal["collect", "exact"]
UNCHANGED: Any = object()
"""In place of a value: the option keeps its own."""

_LONGEST_SHOWN = 80
_ADAPTERS: dict[str, TypeAdapter[Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of `rollout collect` or `rollout exact`."""

    name: str  # Of its field, which is the key in a file too.
    type: Any  # The annotated type of its field.
    # What a command line gives: `list` and `mapping` repeat.
    kind: Literal["scalar", "switch", "list", "mapping"]
    panel: str  # The part of the help page that it stands in.
    help: str  # One sentence for the help page.
    short: str = ""  # A one-letter flag such as `-p`; empty for none.
    metavar: str  # The placeholder of a value in help pages; empty for a switch.
    shown: str = ""  # The default as a person reads it; empty if there is none.
    commands: tuple[CommandName, ...] = get_args(CommandName)
    choices: tuple[str, ...]  # The words that it takes; empty where it takes other values.
    # It says how much to collect: a source with an amount overrides every amount of weaker sources.
    is_amount: bool = False
    # A run needs at least one such option; the first that is reached ends it.
    ends_run: bool = False
    # It may not differ within a dataset. Policy and environment are compared separately.
    decides_data: bool = False
    # info.json has it among the options of the run.
    is_recorded: bool = True
    # Its value when an episode is run again in this process.
    when_rerun: Any = UNCHANGED
    needs: tuple[Rule, ...] = ()
    excludes: tuple[Rule, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "ROLLOUT_" + self.name.upper()

    @property
    def repeats(self) -> bool:
        """Whether a command line may give it more than once."""
        return self.kind in {"list", "mapping"}

    def read(self, raw: Any, label: str, *, text: bool = False) -> Any:
        """Validate a value, or with `text` that of a flag or variable: a text, or a list if it repeats.

        Raises:
            ConfigError: If the option does not allow it; `label` names its source, such as `ROLLOUT_WORKERS`.
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
            _, should, rest = re.sub(", unable to parse.*", "", first["msg"]).partition(" should ")
            problem = f"{label} must {rest}" if should else f"{label}: {first['msg']}"
            raise ConfigError(
                f"{problem}, got {value}",
                code="option-value",
                hint=f"use {' or '.join(self.choices) or types.ALLOWED[self.metavar]}",
            ) from error

    def _adapter(self) -> TypeAdapter[Any]:
        """Return the validator of the type, which takes a while to build."""
        if self.name not in _ADAPTERS:
            _ADAPTERS[self.name] = TypeAdapter(self.type, config=ConfigDict(hide_input_in_errors=True))
        return _ADAPTERS[self.name]
