"""The dataset on disk: schema, writer, commit and reader."""

from rollout_cli.dataset.cuts import CutLimits
from rollout_cli.dataset.reader import Dataset, Episode, load
from rollout_cli.dataset.record import DatasetSummary
from rollout_cli.dataset.writer import DatasetWriter

__all__ = ["CutLimits", "Dataset", "DatasetSummary", "DatasetWriter", "Episode", "load"]
