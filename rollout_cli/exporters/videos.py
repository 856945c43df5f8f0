"""MP4 files of a camera, as LeRobot stores them: many episodes in a file, one after another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from rollout_cli.episodes.plain import Fields
from rollout_cli.episodes.spaces import Array
from rollout_cli.sources.loading import needing

_MOST_BYTES = 200 << 20
_MOST_SECONDS = 1_000
"""LeRobot compares times as float32 with a tolerance of 0.1 ms, which fails in longer files."""
_CODEC = "libx264"
_OPTIONS = {"crf": "18", "g": "2", "bf": "0"}
"""High quality, and every other frame is a key frame, since learners read single frames in random order."""


class Videos(ExitStack):
    """The videos of one camera; leaving the context completes the open file.

    `path_of` returns the path of a file by number, starting at 0. A new file starts with the first episode
    after 200 MiB or 1,000 seconds.

    Attributes:
        places: For each episode, the number of its file, and its start and end in seconds.
    """

    def __init__(self, path_of: Callable[[int], Path], fps: int) -> None:
        super().__init__()
        with needing("av"):
            import av  # noqa: PLC0415 - an optional package
        self._av: Any = av
        self._path_of = path_of
        self._fps = fps
        self._number = -1
        self._frames = 0
        self._bytes = 0
        self._container: Any = None
        self._stream: Any = None
        self.places: list[tuple[int, float, float]] = []

    def write(self, images: Array) -> None:
        """Append an episode, uint8 (T, height, width, 3)."""
        if self._container is None or self._bytes >= _MOST_BYTES or self._frames >= _MOST_SECONDS * self._fps:
            self._open(images.shape[1:3])
        start = self._frames
        for image in images:
            frame = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts = self._frames
            frame.time_base = Fraction(1, self._fps)
            self._encode(frame)
            self._frames += 1
        self.places.append((self._number, start / self._fps, self._frames / self._fps))

    def _open(self, shape: tuple[int, ...]) -> None:
        self.close()
        self._number += 1
        self._frames = 0
        self._bytes = 0
        path = self._path_of(self._number)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = self.enter_context(self._av.open(str(path), "w"))
        self._stream = self._container.add_stream(_CODEC, rate=self._fps, options=_OPTIONS)
        self._stream.height, self._stream.width = shape
        self._stream.pix_fmt = _pixel_format(shape)
        self.callback(self._encode, None)

    def _encode(self, frame: Any) -> None:
        """Encode a frame; None completes the file."""
        for packet in self._stream.encode(frame):
            self._bytes += packet.size
            self._container.mux(packet)


def video_info(shape: tuple[int, ...], fps: int) -> Fields:
    """Return LeRobot's description of a video of frames with this shape."""
    height, width, channels = shape
    return {
        "video.height": height,
        "video.width": width,
        "video.channels": channels,
        "video.codec": "h264",
        "video.pix_fmt": _pixel_format(shape),
        "video.fps": fps,
        "is_depth_map": False,
        "has_audio": False,
    }


def _pixel_format(shape: tuple[int, ...]) -> str:
    """Return yuv420p, or yuv444p if the height or width is odd."""
    return "yuv444p" if shape[0] % 2 or shape[1] % 2 else "yuv420p"
