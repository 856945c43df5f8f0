"""Hugging Face's `datasets`, whose arrow format hands out slices of a memory map."""
# /// script
# dependencies = ["datasets"]
# ///

from __future__ import annotations

from functools import partial

from datasets import Dataset, load_from_disk

from benchmarks.arrays import KINDS, cache
from benchmarks.peers.driver import Clock, main, read

COLUMNS = ["observation", "action", "reward", "terminated", "truncated"]


def episodes(name: str, steps: int, clock: Clock) -> int:
    """Read episodes in order, all rows of an episode at once."""
    folder, kind, taken = cache() / f"hf-{name}", KINDS[name], 0
    if not folder.exists():
        files = sorted(map(str, (cache() / name / "data").rglob("*.parquet")))
        Dataset.from_parquet(files, cache_dir=str(cache() / "hf-cache"), columns=COLUMNS).save_to_disk(folder)
    dataset = load_from_disk(folder).with_format("arrow")
    with clock:
        while taken < steps:
            for start in range(0, len(dataset), kind.length):
                taken += len(dataset[start : start + kind.length])
                if taken >= steps:
                    break
    return taken


if __name__ == "__main__":
    main("datasets", {"episodes": partial(read, episodes)})
