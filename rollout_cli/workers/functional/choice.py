"""Which engine runs a JAX environment: that depends on where the policy acts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rollout_cli.envs.functional.vector import FunctionalGymEnv, FunctionalVectorEnv
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.policies.functional import FunctionalPolicy
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.policies.random import RandomPolicy
from rollout_cli.workers.checks import RESET, STEP
from rollout_cli.workers.functional.engine import FunctionalEngine
from rollout_cli.workers.functional.program import JaxAct, random_act
from rollout_cli.workers.native.engine import NativeEngine
from rollout_cli.workers.native.rows import NativeRows
from rollout_cli.workers.rows.sequential import SequentialRows
from rollout_cli.workers.worker import Engine, Setting


def functional_engine(
    setting: Setting, rows: FunctionalVectorEnv, seed: int
) -> tuple[Engine, Callable[[], bool]]:
    """Return the engine of the rows of a JAX environment, and the function that compiles its program once."""
    n_rows = rows.num_envs
    if setting.policy.row_by_row:
        single = FunctionalVectorEnv(rows.functional, 1)
        envs = [FunctionalGymEnv(single) for _ in range(n_rows)]
        sequential = SequentialRows(setting, envs, None)
        return sequential, partial(_compile, sequential, single)
    act = _jax_function(setting.policy, SpaceRows(setting.worker.env_spec.action_space))
    if act is None:
        native = NativeEngine(setting, NativeRows(rows, n_rows, seed))
        return native, partial(_compile, native, rows)
    engine = FunctionalEngine(setting, rows.functional, act, n_rows)
    return engine, engine.prepare


def _compile(engine: Engine, rows: FunctionalVectorEnv) -> bool:
    """Compile reset and step of the rows; return False if that was done before."""
    if rows.is_compiled:
        return False
    engine.where = RESET
    rows.compile_reset()
    engine.where = STEP
    rows.compile_step()
    return True


def _jax_function(policy: AdaptedPolicy, actions: SpaceRows) -> JaxAct | None:
    """Return the JAX function of a policy that can act in the program; None if the policy acts on the host."""
    if isinstance(policy, FunctionalPolicy):
        function: JaxAct = policy.function
        return function
    return random_act(actions) if type(policy) is RandomPolicy else None
