"""Whether episodes come out the same when they are run again: at the end of each run, and by `rollout replay`."""

from rollout_cli.reproducing.check import ReproductionCheck
from rollout_cli.reproducing.verdicts import Verdict, describe, unchecked

__all__ = ["ReproductionCheck", "Verdict", "describe", "unchecked"]
