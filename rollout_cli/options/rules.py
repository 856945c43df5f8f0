"""Rules between options: an option can need or exclude another option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollout_cli.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Rule:
    """One other option that an option needs or excludes."""

    other: str
    value: Any = None
    """The value of the other option to which the rule applies; None for any value that is set."""
    reason: str = ""
    hint: str = ""
    """What to do instead; by default, to omit one of the two options."""

    def applies(self, config: object) -> bool:
        """Return True if the other option is set to the value of the rule."""
        given = getattr(config, self.other)
        return bool(given) if self.value is None else bool(given == self.value)

    def check_excluded(self, name: str, config: object) -> None:
        """Raise `ConfigError` if the other option is set in addition to option `name`."""
        if self.applies(config):
            flag = _flag(name)
            other_flag = self._other_flag()
            raise ConfigError(
                f"{flag} cannot be used with {other_flag}: {self.reason}",
                code="options-exclude-each-other",
                hint=self.hint or f"omit {{{name}}} or {{{self.other}}}",
            )

    def check_needed(self, name: str, config: object) -> None:
        """Raise `ConfigError` if the other option, which option `name` needs, is not set."""
        if not self.applies(config):
            flag = _flag(name)
            other_flag = self._other_flag()
            raise ConfigError(
                f"{flag} needs {other_flag}",
                code="option-needs-another",
                hint=self.hint or f"add {other_flag}, or omit {{{name}}}",
            )

    def _other_flag(self) -> str:
        return _flag(self.other) if self.value is None else f"{_flag(self.other)} {self.value}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
