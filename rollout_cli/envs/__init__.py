"""Environments: the sources that they are built from, their updates, and what is recorded of them."""

from rollout_cli.envs.building import each_its_own
from rollout_cli.envs.describe import check_spaces, describe_env, env_record, has_time_limit
from rollout_cli.envs.sources import EnvSource, as_env_source, env_source
from rollout_cli.envs.stripping import strip_env
from rollout_cli.envs.updates import EnvUpdate, ExistingEnvUpdate, NewEnvUpdate, SetTaskUpdate

__all__ = [
    "EnvSource",
    "EnvUpdate",
    "ExistingEnvUpdate",
    "NewEnvUpdate",
    "SetTaskUpdate",
    "as_env_source",
    "check_spaces",
    "describe_env",
    "each_its_own",
    "env_record",
    "env_source",
    "has_time_limit",
    "strip_env",
]
