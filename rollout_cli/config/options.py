"""What one option is: from it come a key in files, an environment variable, a flag, and a line of the help page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollout_cli.config.kinds import Integer, Keywords, Kind, Switch
from rollout_cli.errors import ConfigError

CommandName = Literal["collect", "exact"]

AMOUNT, WHAT, HOW, DATASET = "How much", "Policy and environment", "Workers and seeds", "Dataset"
FAULTS = "Faults and endings"
"""The parts of a help page."""

COUNT = Integer("N", "an integer of at least 1", minimum=1)
SWITCH = Switch("", "true or false")
KEYWORDS = Keywords("KEY=VALUE", "key=value, where the value is a TOML literal (no date) or plain text")

_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Option:
    """One declared option of `CollectConfig`.

    Args:
        kind: How values are read and checked.
        panel: The part of the help page that it stands in.
        help: One sentence for the help page.
        short: A one-letter flag such as `-p`; empty for none.
        commands: The commands that have it.
        default: The default as a person reads it; empty where the field's own default tells it, or where there is none.
        rivals: Names that mean the same decision: a source that sets one of them overrules what weaker sources say
            about any of them.
        name: The name of the field that it describes, which is the key in a file too.
        optional: Whether the field may hold None, for "not said".
    """

    kind: Kind
    panel: str
    help: str
    short: str = ""
    commands: tuple[CommandName, ...] = ("collect", "exact")
    default: str = ""
    rivals: frozenset[str] = frozenset()
    name: str = ""
    optional: bool = False

    @property
    def flag(self) -> str:
        """The long flag, such as `--env-kwargs`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable, such as `ROLLOUT_ENV_KWARGS`."""
        return "ROLLOUT_" + self.name.upper()

    def check(self, value: object, label: str) -> None:
        """Raise `ConfigError` about `label` unless the value is of the option's kind."""
        if not (self.kind.accepts(value) or (self.optional and value is None)):
            raise self.refusal(value, label)

    def refusal(self, value: object, label: str) -> ConfigError:
        """Return the error that says what `label` must be and what it is."""
        shown = repr(value)
        if len(shown) > _LONGEST_SHOWN:
            shown = shown[:_LONGEST_SHOWN] + "…"
        return ConfigError(f"{label} must be {self.kind.expected}, got {shown}", hint=self.help)
