"""Statistics of LeRobot's features for normalization, in memory that does not depend on the number of steps."""

from __future__ import annotations

import warnings

import numpy as np

from rollout_cli.dataset.stats import ColumnStats, column_stats, merged
from rollout_cli.episodes.plain import Fields
from rollout_cli.episodes.spaces import Array

_QUANTILES = {f"q{percent:02}": percent / 100 for percent in (1, 10, 50, 90, 99)}
_MOST_ROWS = 20_000
"""Maximum number of rows for the quantiles."""
_MOST_NUMBERS = 1 << 22
"""Maximum number of values in these rows; it decides if a row has more than 200 values."""
_IMAGE_SAMPLE = 100
"""Use one image in this many."""


class FeatureStats:
    """The statistics of one feature: per element of a value, or each channel of images scaled to [0, 1]."""

    def __init__(self, *, is_image: bool) -> None:
        self._is_image = is_image
        self._shape: tuple[int, ...] = ()
        self._moments: list[ColumnStats] = []  # At most one.
        self._sample: _Rows | _Pixels = _Pixels() if is_image else _Rows()

    def add(self, values: Array) -> None:
        """Add the values of the next steps, (T, *shape)."""
        self._shape = values.shape[1:] or (1,)
        if self._is_image:
            values = values[::_IMAGE_SAMPLE]
            channels = values.shape[3:] or (1,)
            values = values.reshape(-1, *channels)
            self._shape = (*channels, 1, 1)
        self._sample.add(values)
        scaled = values / 255 if self._is_image else values
        self._moments = [merged([*self._moments, column_stats(scaled)])]

    def document(self, steps: int) -> Fields:
        """Return the statistics in LeRobot's form, for a dataset with this number of steps."""
        count, low, high, mean, m2 = self._moments[0]
        named = {"min": low, "max": high, "mean": mean, "std": np.sqrt(m2 / np.maximum(count, 1))}
        named |= dict(zip(_QUANTILES, self._sample.quantiles([*_QUANTILES.values()]), strict=True))
        return {name: value.reshape(self._shape).tolist() for name, value in named.items()} | {
            "count": [steps]
        }


class _Rows:
    """Every `stride`-th row; the stride doubles when there are too many.

    So the result does not depend on how the input is split.
    """

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self._seen = 0
        self._stride = 1

    def add(self, rows: Array) -> None:
        most = min(_MOST_ROWS, max(2, _MOST_NUMBERS // max(1, rows[0].size)))
        # A copy: a view would keep all rows in memory.
        self._parts.append(rows[-self._seen % self._stride :: self._stride].copy())
        self._seen += len(rows)
        while sum(map(len, self._parts)) > most:
            self._parts = [np.concatenate(self._parts)[::2].copy()]
            self._stride *= 2

    def quantiles(self, levels: list[float]) -> Array:
        """Return the quantiles of the finite values, (levels, *shape); nan if there are none."""
        rows = np.concatenate(self._parts).astype(np.float64)
        finite = np.isfinite(rows)
        if finite.all():
            return np.quantile(rows, levels, axis=0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice")
            return np.nanquantile(np.where(finite, rows, np.nan), levels, axis=0)


class _Pixels:
    """Histograms of the pixel values, one per channel."""

    def __init__(self) -> None:
        self._counts: Array = np.zeros((256, 1), np.int64)

    def add(self, pixels: Array) -> None:
        counts = [np.bincount(channel, minlength=256) for channel in pixels.T]
        self._counts = self._counts + np.stack(counts, axis=1)

    def quantiles(self, levels: list[float]) -> Array:
        """Return the quantiles of the pixels from 0 to 1, (levels, channels)."""
        below = np.cumsum(self._counts, axis=0)
        reached = [np.argmax(below >= level * below[-1], axis=0) for level in levels]
        return np.stack(reached) / 255
