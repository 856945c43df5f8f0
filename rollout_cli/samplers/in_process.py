"""take_turn: a turn of a worker whose process lives on after its death."""

from __future__ import annotations

from collections.abc import Sequence

from rollout_cli.loading import first_line, is_interrupt, traceback_text
from rollout_cli.samplers.messages import ToWorker
from rollout_cli.samplers.pool import Died, Event
from rollout_cli.samplers.worker_loop import WorkerLoop


def take_turn(loop: WorkerLoop, worker: int, commands: Sequence[ToWorker]) -> list[Event]:
    """Return the events of a turn.

    What user code raises that is no Exception (by `sys.exit`, say) counts as the death of the worker, which
    is closed: the last event then, after what had finished before. A Ctrl-C is raised as it is.
    """
    try:
        return [*loop.turn(commands)]
    except BaseException as error:
        if is_interrupt(error):
            raise
        reason, hint = f"was ended by {first_line(error)}", "let the user code raise an Exception"
        death = Died(worker, reason, loop.running_numbers, traceback_text(error), hint)
        rescued = loop.rescue()
        loop.close()
        return [*rescued, death]
