"""Layer 3: environments: the sources that they are built from, their updates and their records."""

from rollout_cli.envs.describe import describe_env as describe_env
from rollout_cli.envs.describe import env_spec_of as env_spec_of
from rollout_cli.envs.describe import time_limit_of as time_limit_of
from rollout_cli.envs.source import EnvSource as EnvSource
from rollout_cli.envs.source import as_env_source as as_env_source
from rollout_cli.envs.source import env_source as env_source
from rollout_cli.envs.updates import EnvUpdate as EnvUpdate
from rollout_cli.envs.updates import ExistingEnvUpdate as ExistingEnvUpdate
from rollout_cli.envs.updates import NewEnvUpdate as NewEnvUpdate
from rollout_cli.envs.updates import SetTaskUpdate as SetTaskUpdate
