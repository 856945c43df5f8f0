"""Run a policy in a gymnasium environment with many workers and write the episodes to a Parquet dataset.

`collect` is the Python form of `rollout collect`. Public names are imported on first use, which keeps
`import rollout_cli` fast: help pages and worker processes need only a few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollout_cli._version import __version__ as __version__

if TYPE_CHECKING:
    from rollout_cli.options.config import CollectConfig as CollectConfig
    from rollout_cli.dataset.operations import (
        convert_dataset as convert_dataset,
        filter_dataset as filter_dataset,
        join_datasets as join_datasets,
        relabel_dataset as relabel_dataset,
        split_dataset as split_dataset,
    )
    from rollout_cli.dataset.reader import Dataset as Dataset, Episode as Episode, load as load
    from rollout_cli.dataset.verify import verify_dataset
    from rollout_cli.envs.updates import (
        EnvUpdate as EnvUpdate,
        ExistingEnvUpdate as ExistingEnvUpdate,
        NewEnvUpdate as NewEnvUpdate,
        SetTaskUpdate as SetTaskUpdate,
    )
    from rollout_cli.episodes.batch import (
        EnvSpec as EnvSpec,
        EpisodeBatch as EpisodeBatch,
        StepType as StepType,
        TrajectoryBatch as TrajectoryBatch,
    )
    from rollout_cli.episodes.intervals import Interval as Interval
    from rollout_cli.errors import RolloutError as RolloutError
    from rollout_cli.exporters.export import export as export
    from rollout_cli.importers.load import ImportSummary as ImportSummary, import_dataset as import_dataset
    from rollout_cli.progress import Progress as Progress
    from rollout_cli.recording.recorder import Recorder as Recorder, VectorRecorder as VectorRecorder
    from rollout_cli.recording.writer import Writer as Writer
    from rollout_cli.reports.card import write_card
    from rollout_cli.reports.figure import figure_of
    from rollout_cli.reports.page import write_report
    from rollout_cli.run.check import check as check
    from rollout_cli.run.collect import collect as collect
    from rollout_cli.run.evaluate import evaluate as evaluate
    from rollout_cli.run.evaluation import Evaluation as Evaluation, PolicyResult as PolicyResult
    from rollout_cli.run.merge import merge as merge
    from rollout_cli.run.push import PushSummary as PushSummary, push as push
    from rollout_cli.run.replay import replay as replay
    from rollout_cli.run.tally import CollectResult as CollectResult
    from rollout_cli.samplers.local_sampler import LocalSampler as LocalSampler
    from rollout_cli.samplers.plan import (
        Episodes as Episodes,
        EpisodesPerWorker as EpisodesPerWorker,
        MinTimesteps as MinTimesteps,
    )
    from rollout_cli.samplers.processes.pool import MultiprocessingSampler as MultiprocessingSampler
    from rollout_cli.samplers.queue_worker import run_worker as run_worker
    from rollout_cli.samplers.ray.pool import RaySampler as RaySampler
    from rollout_cli.samplers.sampler import Sampler as Sampler
    from rollout_cli.samplers.supervision import Supervision as Supervision
    from rollout_cli.workers.factory import WorkerFactory as WorkerFactory
    from rollout_cli.workers.kinds import DefaultWorker as DefaultWorker, VecWorker as VecWorker
    from rollout_cli.workers.worker import Worker as Worker

    card = write_card
    plot = figure_of
    report = write_report
    verify = verify_dataset

_HOMES = {
    "options.config": ("CollectConfig",),
    "dataset.operations": (
        "convert_dataset",
        "filter_dataset",
        "join_datasets",
        "relabel_dataset",
        "split_dataset",
    ),
    "dataset.reader": ("Dataset", "Episode", "load"),
    "dataset.verify": ("verify",),
    "envs.updates": ("EnvUpdate", "ExistingEnvUpdate", "NewEnvUpdate", "SetTaskUpdate"),
    "episodes.batch": ("EnvSpec", "EpisodeBatch", "StepType", "TrajectoryBatch"),
    "episodes.intervals": ("Interval",),
    "errors": ("RolloutError",),
    "exporters.export": ("export",),
    "importers.load": ("ImportSummary", "import_dataset"),
    "progress": ("Progress",),
    "recording.recorder": ("Recorder", "VectorRecorder"),
    "recording.writer": ("Writer",),
    "reports.card": ("card",),
    "reports.figure": ("plot",),
    "reports.page": ("report",),
    "run.check": ("check",),
    "run.collect": ("collect",),
    "run.evaluate": ("evaluate",),
    "run.evaluation": ("Evaluation", "PolicyResult"),
    "run.merge": ("merge",),
    "run.push": ("PushSummary", "push"),
    "run.replay": ("replay",),
    "run.tally": ("CollectResult",),
    "samplers.local_sampler": ("LocalSampler",),
    "samplers.plan": ("Episodes", "EpisodesPerWorker", "MinTimesteps"),
    "samplers.processes.pool": ("MultiprocessingSampler",),
    "samplers.queue_worker": ("run_worker",),
    "samplers.ray.pool": ("RaySampler",),
    "samplers.sampler": ("Sampler",),
    "samplers.supervision": ("Supervision",),
    "workers.factory": ("WorkerFactory",),
    "workers.kinds": ("DefaultWorker", "VecWorker"),
    "workers.worker": ("Worker",),
}
_ORIGINALS = {"card": "write_card", "plot": "figure_of", "report": "write_report", "verify": "verify_dataset"}
"""By public name, the function's own, which says more within the package."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, "__version__"])  # noqa: PLE0605 - a sorted list is a list


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), _ORIGINALS.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
