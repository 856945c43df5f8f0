"""Which engine runs a JAX environment: that depends on where the policy acts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from rollout_cli.envs.functional.vector import FunctionalGymEnv, FunctionalVectorEnv
from rollout_cli.episodes.spaces import SpaceRows, space_leaves
from rollout_cli.errors import UnsupportedSpaceError
from rollout_cli.policies.functional import FunctionalPolicy
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.policies.random import RandomPolicy
from rollout_cli.workers.checks import RESET, STEP
from rollout_cli.workers.functional.engine import FunctionalEngine
from rollout_cli.workers.functional.program import JaxAct, Program, random_act
from rollout_cli.workers.functional.types import check_step, reset_types
from rollout_cli.workers.native.engine import NativeEngine
from rollout_cli.workers.native.rows import NativeRows
from rollout_cli.workers.rows.sequential import SequentialRows
from rollout_cli.workers.worker import Engine, Setting


def functional_engine(
    setting: Setting, rows: FunctionalVectorEnv, seed: int
) -> tuple[Engine, Callable[[], None]]:
    """Return the engine of the rows of a JAX environment, and the function that compiles its program once."""
    n_rows = rows.num_envs
    spec = setting.worker.env_spec
    leaves = (*space_leaves(spec.observation_space), *space_leaves(spec.action_space))
    if unsupported := [leaf for leaf in leaves if leaf.dtype == object]:
        raise UnsupportedSpaceError(
            f"JAX environments with a {unsupported[0].space} are not supported",
            code="space-unsupported",
            hint="use spaces of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple",
        )
    if setting.policy.row_by_row:
        single = FunctionalVectorEnv(rows.functional, 1)
        envs = [FunctionalGymEnv(single) for _ in range(n_rows)]
        sequential = SequentialRows(setting, envs, None)
        return sequential, partial(_compile, sequential, single)
    act = _jax_function(setting.policy, SpaceRows(spec.action_space))
    if act is None:
        native = NativeEngine(setting, NativeRows(rows, n_rows, seed))
        return native, partial(_compile, native, rows)
    engine = FunctionalEngine(setting, rows.functional, act, n_rows)
    return engine, engine.prepare


def _compile(engine: Engine, rows: FunctionalVectorEnv) -> None:
    """Check the types of reset and step of the rows, and compile both, unless that was done before."""
    if rows.is_compiled:
        return
    actions = SpaceRows(rows.single_action_space)
    action = actions.tree([np.zeros(leaf.shape, leaf.dtype) for leaf in actions.leaves])
    program = Program(rows.functional, lambda *_: action, actions, limit=None, rule=None, n_steps=1)
    engine.where = RESET
    row = reset_types(program, SpaceRows(rows.single_observation_space))
    rows.compile_reset()
    engine.where = STEP
    check_step(program, {}, row)
    rows.compile_step()


def _jax_function(policy: AdaptedPolicy, actions: SpaceRows) -> JaxAct | None:
    """Return the JAX function of a policy that can act in the program; None if the policy acts on the host."""
    if isinstance(policy, FunctionalPolicy):
        function: JaxAct = policy.function
        return function
    return random_act(actions) if type(policy) is RandomPolicy else None
