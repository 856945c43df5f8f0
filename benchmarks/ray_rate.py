"""RaySampler against MultiprocessingSampler on one machine, with a dataset: `python -m benchmarks.ray_rate`.

Both have two started workers; they run alternately, so a slow phase of the machine affects both.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from rollout_cli import MinTimesteps, MultiprocessingSampler, RaySampler, Sampler
from rollout_cli.dataset.folder import OutputFolder
from rollout_cli.dataset.metadata import DatasetSettings
from rollout_cli.dataset.segments import write_segment
from rollout_cli.dataset.writer import DatasetWriter
from rollout_cli.envs.source import env_source
from rollout_cli.policies.source import policy_source


def steps_per_second(sampler: Sampler, n_steps: int, folder: Path) -> float:
    """Collect a dataset; return the rate, from the call until the last file is written."""
    began, collected = time.perf_counter(), 0
    write = partial(sampler.segment_runner().run, write_segment)
    output, settings = (
        OutputFolder(folder, overwrite=True),
        DatasetSettings(sampler.env_spec, [{"root_seed": 0}]),
    )
    with DatasetWriter(output, settings, write_segment=write) as writer:
        for chunk in sampler.stream_refs(MinTimesteps(n_steps)):
            writer.write(chunk)
            collected += chunk.n_steps
        writer.close(status="complete")
    return collected / (time.perf_counter() - began)


def main() -> None:
    """Print the ratio of each round, and their median."""
    parser = argparse.ArgumentParser(
        description="Measure the rate of RaySampler relative to MultiprocessingSampler."
    )
    parser.add_argument("env", nargs="?", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    policy, env = policy_source("random"), env_source(asked.env, {})
    kinds = {"processes": MultiprocessingSampler, "ray": RaySampler}
    samplers = {name: kind(policy, env, n_workers=2, seed=0) for name, kind in kinds.items()}
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(-1, asked.rounds):  # The first one warms up.
            rates = {}
            for name in sorted(samplers, reverse=turn % 2 == 0):
                samplers[name].wait_until_started()
                rates[name] = steps_per_second(samplers[name], asked.steps, Path(folder, "dataset"))
            if turn >= 0:
                ratios.append(rates["ray"] / rates["processes"])
                print(
                    f"{rates['ray']:,.0f} against {rates['processes']:,.0f} steps/s: {ratios[-1]:.2f}",
                    flush=True,
                )
    print(f"median {statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})")
    for sampler in samplers.values():
        sampler.shutdown_worker()


if __name__ == "__main__":
    main()
