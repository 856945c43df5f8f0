"""Run a policy in a gymnasium environment with many workers and write the episodes to a Parquet dataset.

The names below are loaded when they are first used, so that `import rollout_cli` costs nothing: the command line's help
and the worker processes need only a part of them each. `rollout_cli.collect.collect` runs what `rollout collect` runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollout_cli.lazy_names import lazy_names

if TYPE_CHECKING:
    from rollout_cli.config import CollectConfig as CollectConfig
    from rollout_cli.dataset import load as load
    from rollout_cli.envs import EnvUpdate as EnvUpdate
    from rollout_cli.envs import ExistingEnvUpdate as ExistingEnvUpdate
    from rollout_cli.envs import NewEnvUpdate as NewEnvUpdate
    from rollout_cli.envs import SetTaskUpdate as SetTaskUpdate
    from rollout_cli.episode_batch import EnvSpec as EnvSpec
    from rollout_cli.episode_batch import EpisodeBatch as EpisodeBatch
    from rollout_cli.episode_batch import StepType as StepType
    from rollout_cli.errors import RolloutError as RolloutError
    from rollout_cli.samplers import LocalSampler as LocalSampler
    from rollout_cli.samplers import MultiprocessingSampler as MultiprocessingSampler
    from rollout_cli.samplers.plan import Episodes as Episodes
    from rollout_cli.samplers.plan import EpisodesPerWorker as EpisodesPerWorker
    from rollout_cli.samplers.plan import MinTimesteps as MinTimesteps
    from rollout_cli.workers import DefaultWorker as DefaultWorker
    from rollout_cli.workers import FragmentWorker as FragmentWorker
    from rollout_cli.workers import VecWorker as VecWorker
    from rollout_cli.workers import Worker as Worker
    from rollout_cli.workers import WorkerFactory as WorkerFactory

    __version__: str

_HOMES = {
    "CollectConfig": "config",
    "DefaultWorker": "workers",
    "EnvSpec": "episode_batch",
    "EnvUpdate": "envs",
    "EpisodeBatch": "episode_batch",
    "Episodes": "samplers.plan",
    "EpisodesPerWorker": "samplers.plan",
    "ExistingEnvUpdate": "envs",
    "FragmentWorker": "workers",
    "LocalSampler": "samplers",
    "MinTimesteps": "samplers.plan",
    "MultiprocessingSampler": "samplers",
    "NewEnvUpdate": "envs",
    "RolloutError": "errors",
    "SetTaskUpdate": "envs",
    "StepType": "episode_batch",
    "VecWorker": "workers",
    "Worker": "workers",
    "WorkerFactory": "workers",
    "load": "dataset",
}

_find = lazy_names(__name__, _HOMES)

__all__ = sorted([*_HOMES, "__version__"])  # noqa: PLE0605 - a sorted list is a list


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("rollout-cli")
    return _find(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
