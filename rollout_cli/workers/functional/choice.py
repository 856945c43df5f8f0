"""Which engine runs a JAX environment: that depends on where the policy acts."""

from __future__ import annotations

from collections.abc import Callable

from rollout_cli.envs.functional.vector import FunctionalGymEnv, FunctionalVectorEnv
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.policies.functional import FunctionalPolicy
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.policies.random import RandomPolicy
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
        return SequentialRows(setting, envs, None), single.prepare
    act = _jax_function(setting.policy, SpaceRows(setting.worker.env_spec.action_space))
    if act is None:
        return NativeEngine(setting, NativeRows(rows, n_rows, seed)), rows.prepare
    engine = FunctionalEngine(setting, rows.functional, act, n_rows)
    return engine, engine.prepare


def _jax_function(policy: AdaptedPolicy, actions: SpaceRows) -> JaxAct | None:
    """Return the JAX function of a policy that can act in the program; None if the policy acts on the host."""
    if isinstance(policy, FunctionalPolicy):
        function: JaxAct = policy.function
        return function
    return random_act(actions) if type(policy) is RandomPolicy else None
