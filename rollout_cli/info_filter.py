"""InfoFilter: info keys that are not recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from rollout_cli.chunk import Chunk
from rollout_cli.infos import InfoTable


class InfoFilter:
    """Leaves out infos whose keys match one of some patterns.

    A pattern is a dotted path (`episode.t`), or a glob of one (`*_time`), and stands for all that lies below it too. It
    means the infos of steps, policies and resets alike, unless it begins with the name of one: `env_info.episode.t`.

    Args:
        patterns: The patterns.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self._known: dict[tuple[str, str], bool] = {}

    def __bool__(self) -> bool:
        """Return whether anything is left out."""
        return bool(self.patterns)

    def without(self, chunk: Chunk) -> Chunk:
        """Return a chunk without these infos, whose tables count them as dropped."""
        return replace(
            chunk,
            env_infos=self._without("env_info", chunk.env_infos),
            agent_infos=self._without("agent_info", chunk.agent_infos),
            episode_infos=self._without("episode_info", chunk.episode_infos),
        )

    def _without(self, group: str, table: InfoTable) -> InfoTable:
        names = [".".join(column.path) for column in table.columns]
        if not any(self._drops(group, name) for name in (*names, *table.dropped)):
            return table
        dropped = dict(table.dropped)
        kept = []
        for name, column in zip(names, table.columns, strict=True):
            if self._drops(group, name):
                dropped[name] = dropped.get(name, 0) + len(column.values)
            else:
                kept.append(column)
        return InfoTable(table.n_rows, tuple(kept), dropped)

    def _drops(self, group: str, name: str) -> bool:
        key = group, name
        if key not in self._known:
            self._known[key] = any(_matches(pattern, group, name) for pattern in self.patterns)
        return self._known[key]

    def never_met(self, dropped: Iterable[str]) -> list[str]:
        """Return the patterns that match none of the info columns that values were dropped of.

        Args:
            dropped: Their names, such as `env_info.episode.t`.
        """
        met = [(name.partition(".")[0], name.partition(".")[2]) for name in dropped]
        return [pattern for pattern in self.patterns if not any(_matches(pattern, *one) for one in met)]


def _matches(pattern: str, group: str, name: str) -> bool:
    wanted = (pattern, f"{pattern}.*")
    return any(fnmatchcase(text, one) for text in (name, f"{group}.{name}") for one in wanted)
