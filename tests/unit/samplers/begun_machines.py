"""A sampler's machine that has begun, the events that it is given, and what its workers are leased."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollout_cli.errors import EnvError
from rollout_cli.samplers.instructions import Instructions, SendTo
from rollout_cli.samplers.leasing import FixedLeases
from rollout_cli.samplers.messages import Batch, Continue, Start, Started, lease_numbers
from rollout_cli.samplers.plan import Episodes, Plan
from rollout_cli.samplers.plan_states import begin_plan
from rollout_cli.samplers.ranges import contiguous_ranges
from rollout_cli.samplers.reports import pack_error
from rollout_cli.samplers.sampler_machine import Known, SamplerMachine
from rollout_cli.samplers.supervision import Died, Supervision, Supervisor
from tests.unit.samplers.counting_worker import SPEC

BASE, VERSION = 1000, 5


def machine_of(
    plan: Plan,
    *,
    n_workers: int = 2,
    lease: int = 2,
    started: bool = True,
    by_worker: bool = False,
    rules: Supervision | None = None,
) -> SamplerMachine:
    """Return a machine that has begun; with `started`, all workers have answered."""
    state = begin_plan(plan, n_workers=n_workers, by_worker=by_worker)
    machine = SamplerMachine(
        state,
        base=BASE,
        version=VERSION,
        n_workers=n_workers,
        sizer=FixedLeases(lease),
        supervisor=Supervisor(rules or Supervision(), seed=0),
    )
    machine.begin([(None, None)] * n_workers, 0.0)
    for worker in range(n_workers if started else 0):
        machine.handle(Started(worker, VERSION, SPEC), 0.0)
    return machine


def batch(worker: int, offsets: Sequence[int], length: int = 1, version: int = VERSION) -> Batch:
    numbers = contiguous_ranges(BASE + np.array(offsets))
    return Batch(worker, version, numbers, np.full(len(offsets), length), ())


def leases(instructions: Instructions) -> dict[int, list[int]]:
    """Return the offsets that each worker is leased by `instructions`."""
    return {
        one.worker: [number - BASE for number in lease_numbers(one.message.lease)]
        for one in instructions
        if isinstance(one, SendTo) and isinstance(one.message, Start | Continue) and one.message.lease
    }


def open_offsets(machine: SamplerMachine, worker: int) -> set[int]:
    return {number - BASE for number in machine._open[worker]}


def machine_where(known: Known) -> SamplerMachine:
    """Return a machine to which worker 0 is `known`."""
    machine = machine_of(Episodes(0, 4), started=known is not Known.STARTING)
    if known is Known.IDLE:
        machine.handle(batch(0, [0, 1]), 1.0)
    elif known is Known.GONE:
        machine = machine_of(Episodes(0, 4), rules=Supervision(max_worker_restarts=0))
        machine.handle(Died(0, "was killed"), 1.0)
    assert known is machine._known[0]
    return machine


ERROR = pack_error(EnvError("env.step raised ValueError"))
