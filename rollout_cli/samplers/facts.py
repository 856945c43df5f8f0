"""WorkerFacts: what the workers of a sampler have told about the environment and policy that they built."""

from __future__ import annotations

from dataclasses import replace

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.errors import EnvLoadError
from rollout_cli.samplers.messages import Reported, Started
from rollout_cli.workers.values import WorkerReport


class WorkerFacts:
    """Spaces, joined report and first build of a sampler's workers.

    Attributes:
        env_spec: The spaces and time limit that all workers share; None until a worker has told them.
        report: The joined reports of all workers; None until a worker has sent one.
        built_at: Time when the first worker had built its environment and policy, in seconds since the epoch.
    """

    def __init__(self) -> None:
        self.env_spec: EnvSpec | None = None
        self.report: WorkerReport | None = None
        self.built_at = 0.0

    def add(self, message: Started | Reported) -> None:
        """Add what a worker tells.

        Raises:
            EnvLoadError: If the spaces or time limits of two workers differ.
            ChangedFilesError: If two workers have read different contents of a file.
        """
        self.report = (self.report or replace(message.report, files=())).joined(message.report)
        if isinstance(message, Started):
            if self.env_spec is not None and self.env_spec != message.env_spec:
                difference = message.env_spec.difference(self.env_spec)
                raise EnvLoadError(
                    f"the environment of worker {message.worker} has the {difference} as in other workers",
                    code="worker-spaces",
                    hint="build environments with the same spaces and time limit in all workers",
                )
            self.env_spec = message.env_spec
            self.built_at = self.built_at or message.at

    def forget(self, *, spaces: bool) -> None:
        """Forget the reports before an update, which may read other files, and the spaces if they may change."""
        self.report = None
        if spaces:
            self.env_spec = None
