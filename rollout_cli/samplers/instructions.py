"""What the sampler's state machine tells its shell to do."""

from __future__ import annotations

from dataclasses import dataclass

from rollout_cli.errors import RolloutError
from rollout_cli.samplers.messages import Batch, Continue, Start, Started, Stop


@dataclass(frozen=True, slots=True)
class SendTo:
    """Send a message to a worker."""

    worker: int
    message: Start | Continue | Stop


@dataclass(frozen=True, slots=True)
class Keep:
    """Put a batch into the reorder buffer."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Learn:
    """A worker told what it learnt of its environment."""

    started: Started


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a worker's process again, bring it to where the others are, and send it `start`."""

    worker: int
    start: Start


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Let a worker build its policy and environment anew, bring it to where the others are, and send it `start`."""

    worker: int
    start: Start


@dataclass(frozen=True, slots=True)
class Skip:
    """An episode is left out; the order goes on without it."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the user of a fault that was got over."""

    text: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The call cannot go on."""

    error: RolloutError


SamplerInstruction = SendTo | Keep | Learn | Restart | Rebuild | Skip | Tell | Fail
Instructions = list[SamplerInstruction]
