"""Layer 3: environments: the sources that they are built from, their updates, their records, vector environments."""

from rollout_cli.envs.describe import describe_env, env_spec_of, time_limit_of
from rollout_cli.envs.source import EnvSource, as_env_source, env_source
from rollout_cli.envs.updates import EnvUpdate, ExistingEnvUpdate, NewEnvUpdate, SetTaskUpdate

__all__ = [
    "EnvSource",
    "EnvUpdate",
    "ExistingEnvUpdate",
    "NewEnvUpdate",
    "SetTaskUpdate",
    "as_env_source",
    "describe_env",
    "env_source",
    "env_spec_of",
    "time_limit_of",
]
