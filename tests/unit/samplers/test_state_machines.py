"""Both state machines under any order of single events: nothing is lost, nothing comes twice, and nothing hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rollout_cli.samplers import Episodes
from tests.unit.samplers.machines import Machines

N_EXAMPLES = 500


def test_a_call_may_be_closed_before_it_tells_of_its_failure() -> None:
    """Episodes that ended before come first; who then wants no more can begin another call, with new workers."""
    machines = Machines()
    machines.build(
        table=[2],
        n_workers=1,
        speeds=[1],
        capacity=3,
        at_once=1,
        limits=(0, 3000),
        lease=3,
        restarts=1000,
        on_death="fail",
        on_error="fail",
    )
    machines.a_call_begins(Episodes(0, 9), None, None, arrival=False)
    machines.everybody_goes_on(rounds=4)
    machines.an_episode_fails(pick=1, blamed=True)
    machines.a_way_back_fills_up(pick=0)
    machines.the_sampler_takes_messages(pick=0, count=9)
    assert machines.has_chunk
    assert machines.call.has_failed
    machines.the_caller_closes_the_call(now=True)
    assert machines.pool is None
    machines.teardown()


SETTINGS = settings(
    max_examples=N_EXAMPLES,
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

SCRIPT = """
import tests.conftest
from hypothesis.stateful import run_state_machine_as_test
from tests.unit.samplers.machines import Machines
from tests.unit.samplers.test_state_machines import SETTINGS
run_state_machine_as_test(Machines, settings=SETTINGS)
"""


# Where it fails, making the failure small takes longer than a test has by default.
@pytest.mark.timeout(600)
def test_both_machines_under_any_order_of_events() -> None:
    """In a process of its own: which examples are tried depends on the modules that are loaded."""
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=root, capture_output=True, text=True, timeout=500, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
