"""ReproductionCheck: two early episodes of a run are run again at its end and compared bit by bit.

It costs two short episodes and as many messages to one worker; while the run goes on, nothing but a look at its first
chunks.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.comparing import differences
from rollout_cli.config import CollectConfig
from rollout_cli.episode_batch import EpisodeBatch
from rollout_cli.errors import NotReproducibleError, RolloutError, UserCodeError
from rollout_cli.reproducing.early import KEPT_BYTES, EarlyEpisodes, number_of
from rollout_cli.reproducing.verdicts import (
    Verdict,
    describe,
    failed,
    failed_to_run,
    known_verdict,
    scope_of,
    unchecked,
)
from rollout_cli.samplers import Episodes, Sampler

SHARE = 100
"""One step of so many may be run again."""


@dataclass(slots=True)
class ReproductionCheck:
    """The check of one run.

    Args:
        config: The run's configuration.
        sampler: Who runs it.
    """

    config: CollectConfig
    sampler: Sampler
    _early: EarlyEpisodes = field(default_factory=EarlyEpisodes)
    _steps: int = 0

    def refuse(self) -> None:
        """Raise where it is required that episodes can be reproduced, and known that they cannot.

        Raises:
            NotReproducibleError: If so.
        """
        known = known_verdict(self.config, self.sampler.facts)
        if known is not None:
            self.require(known)

    def watched(self, chunks: Generator[Chunk, None, None]) -> Generator[Chunk, None, None]:
        """Yield the run's chunks, and keep what is to be compared.

        Raises:
            NotReproducibleError: As soon as a worker tells that its episodes cannot be reproduced, where that is
                required.
        """
        with closing(chunks):
            for chunk in chunks:
                self._early.keep(chunk)
                self._steps += chunk.n_steps
                yield chunk
                if self.config.require_reproducible:
                    self.refuse()

    def verdict(self, env: Mapping[str, Any]) -> Verdict:
        """Run episodes again, and return what info.json says of the run's being reproduced.

        All of the run's episodes must be there. Its numbers, totals and data are not touched.

        Args:
            env: What is recorded of the environment.
        """
        if (known := known_verdict(self.config, self.sampler.facts)) is not None:
            return known
        # Who requires the check has it in short runs as well.
        most_steps = float("inf") if self.config.require_reproducible else self._steps / SHARE
        chosen = self._early.chosen(most_steps)
        if not chosen:
            return self._unchecked(self._why_none())
        for first in chosen:
            if (wrong := self._wrong(first, env)) is not None:
                return wrong
        numbers = sorted(number_of(first) for first in chosen)
        return {"status": "checked", "scope": scope_of(self.sampler.facts), "episodes": numbers}

    def _wrong(self, first: Chunk, env: Mapping[str, Any]) -> Verdict | None:
        """Run an episode again; return what is wrong with it, and None where it came out the same."""
        number, sampler = number_of(first), self.sampler
        try:
            again = run_again(sampler, number)
        except UserCodeError as error:
            return failed_to_run(number, error.message, sampler.facts)
        except RolloutError as error:
            return self._unchecked(f"episode {number} could not be run again: {error.message}")
        if again is None:
            return self._unchecked(f"the run was ended, or episode {number} was left out, when it was run again")
        batches = (EpisodeBatch.from_chunks(sampler.env_spec, [chunk]) for chunk in (first, again))
        found = differences(*batches)
        return known_verdict(self.config, sampler.facts) or (
            failed(number, found, env, sampler.facts) if found else None
        )

    def _why_none(self) -> str:
        if not self._steps:
            return "no episode was run"
        if not self._early.kept:
            return f"no early episode is small enough ({KEPT_BYTES >> 20} MB) to be kept and compared"
        return f"any two early episodes are more than 1 % of {self._steps:,} steps"

    def _unchecked(self, reason: str) -> Verdict:
        return unchecked(self.config, self.sampler.facts, reason)

    def require(self, verdict: Verdict) -> None:
        """Raise unless a verdict is good enough.

        Raises:
            NotReproducibleError: If it must be `checked` and is not.
        """
        if self.config.require_reproducible and verdict["status"] != "checked":
            raise NotReproducibleError(describe(verdict), hint=verdict.get("hint", ""))


def run_again(sampler: Sampler, number: int) -> Chunk | None:
    """Run one episode of known number with a sampler that is not busy; None where it was stopped, or left it out.

    Its steps do not count.

    Raises:
        RolloutError: What went wrong in the worker.
    """
    steps_before = sampler.total_env_steps
    try:
        with closing(sampler.stream(Episodes(number, number + 1), base=0)) as chunks:
            parts = list(chunks)
    finally:
        sampler.total_env_steps = steps_before
    return concatenate(parts) if parts else None
