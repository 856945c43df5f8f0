"""What a dataset is and how it was made, as names and values for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollout_cli.dataset.card import skipped_text
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.layout import acceptance_text, described, table_files
from rollout_cli.dataset.reader import Dataset
from rollout_cli.keywords import Record

_NOT_RECORDED = "not recorded"
_VARIED = ("observation", "action", "next_observation")
_INFOS = ("env_info.", "agent_info.", "episode_info.")
_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_FIRST_VERSIONS = ("python", "rollout-collect", "gymnasium", "numpy")
_COMMON = {"platform", "pyarrow", "cloudpickle", "farama-notifications", "setproctitle", "setuptools"}
_UNNAMED = _COMMON | {"typing-extensions"}
"""Versions that say nothing about the environment or the policy."""
_MOST_SOURCES, _MOST_NAMES, _MOST_VERSIONS, _HASH, _COMMIT = 4, 8, 10, 12, 12


def facts_of(dataset: Dataset) -> dict[str, Any]:
    """Return info.json; the totals of a run that goes on or was killed are counted from its commits."""
    facts = dict(dataset.info)
    if facts["status"] == "collecting":
        data, episodes = (table_files(dataset.path / name).values() for name in ("data", "meta/episodes"))
        n_bytes = sum(path.stat().st_size for path in (*data, *episodes))
        steps = int(dataset.rows.column("length").sum())
        facts |= {"episodes": len(dataset), "steps": steps, "bytes": n_bytes, "segments": len(data)}
    return facts


def identity(dataset: Dataset, facts: Record) -> dict[str, str]:
    """Return the rows that say what a dataset is; `facts` are those of `facts_of`."""
    rows, sources, times = {"status": facts["status"]}, facts["sources"], facts["times"]
    for number, source in enumerate(sources[:_MOST_SOURCES]):
        place = f" of source {number}" if len(sources) > 1 else ""
        rows |= {f"{name}{place}": value for name, value in _source_rows(source).items()}
    if len(sources) > _MOST_SOURCES:
        rows["more sources"] = f"{len(sources) - _MOST_SOURCES:,}"
    if facts["derived"]:
        rows["made by"] = ", then ".join(str(step.get("operation")) for step in facts["derived"])
    ended = (
        f"to {_minute(times['ended'])}" if times.get("ended") else "on, by a run that goes on or was killed"
    )
    rows["collected"] = f"{_minute(times.get('started'))} {ended}"
    rows |= {"episodes": f"{facts['episodes']:,}", "steps": f"{facts['steps']:,}"}
    if skipped := skipped_text(facts):
        rows["skipped"] = skipped
    if len(dataset):
        rows |= {name: spread(dataset.rows.column(name)) for name in ("return", "length")}
        rows["ends"] = ", ".join(f"{count:,} {end}" for end, count in ends(dataset).items() if count)
    files = f"{facts['segments']:,} data file{'' if facts['segments'] == 1 else 's'}"
    rows["size"] = f"{sized(facts['bytes'])} in {files}"
    return rows | _columns(facts)


def _source_rows(source: Record) -> dict[str, str]:
    """Return what is known of one run; a writer that was used without `collect` may have recorded little."""
    env, policy = source.get("env_source", {}), source.get("policy", {})
    wrappers = [f"{entry['spec']}{_arguments(entry['kwargs'])}" for entry in env.get("wrappers", ())]
    arguments = _arguments(source.get("env", {}).get("kwargs", {}))
    pinned = [f"{file['path']} {str(file['sha256'])[:_HASH]}" for file in source.get("files", ())]
    stopped_by, acceptance = (source.get(name) for name in ("stopped_by", "acceptance"))
    git = source.get("git") or {"commit": ""}
    rows = {
        "environment": f"{env.get('spec', _NOT_RECORDED)} {arguments}".rstrip(),
        "wrappers": ", ".join(wrappers),
        "policy": str(policy.get("spec", _NOT_RECORDED)),
        "files": _some(pinned, _MOST_NAMES),
        "root seed": str(source["root_seed"]),
        "reproducible": described(source.get("reproducible", {})),
        "stopped by": f"--{stopped_by.replace('_', '-')}" if stopped_by else "",
        "kept": f"{acceptance_text(acceptance)}: {source['collector']['keep']}" if acceptance else "",
        "workers": _workers(source.get("collector", {})),
        "commit": f"{git['commit'][:_COMMIT]}{' and uncommitted changes' if git.get('dirty') else ''}",
        "versions": _versions(source.get("versions", {})),
    }
    return {name: text for name, text in rows.items() if text}


def _workers(options: Record) -> str:
    rows = options.get("envs_per_worker") or 1
    each = f", {rows} environments each" if rows > 1 else ""
    return f"{options['workers']} ({options.get('sampler')}{each})" if options.get("workers") else ""


def _versions(versions: Mapping[str, str]) -> str:
    names = [*_FIRST_VERSIONS, *(name for name in versions if name not in {*_FIRST_VERSIONS, *_UNNAMED})]
    return _some([f"{name} {versions[name]}" for name in names if name in versions], _MOST_VERSIONS)


def _columns(facts: Record) -> dict[str, str]:
    """Return the columns that differ between datasets, those of one kind in a row."""
    features = facts["features"].items()
    rows = {name: _typed(feature) for name, feature in features if name.startswith(_VARIED)}
    for prefix in _INFOS:
        names = [
            f"{name.removeprefix(prefix)} {_typed(feature)}"
            for name, feature in features
            if name.startswith(prefix)
        ]
        if names:
            rows[f"{prefix[:-1]}s"] = _some(names, _MOST_NAMES)
    return rows


def _typed(feature: Record) -> str:
    shape = tuple(feature.get("shape", ()))
    return f"{feature['dtype']} {shape}" if shape else str(feature["dtype"])


def _arguments(kwargs: Record) -> str:
    return f"({', '.join(f'{name}={value}' for name, value in kwargs.items())})" if kwargs else ""


def _some(texts: Sequence[str], most: int) -> str:
    more = [f"and {len(texts) - most:,} more"] if len(texts) > most else []
    return ", ".join([*texts[:most], *more])


def _minute(time: str | None) -> str:
    """Return a time of info.json to the second, in UTC."""
    return time[:19].replace("T", " ") if time else ""


def ends(dataset: Dataset) -> dict[str, int]:
    """Return how many episodes ended in each way."""
    terminated, truncated = (dataset.rows.column(name) for name in ("terminated", "truncated"))
    return {
        "terminated": int((terminated & ~truncated).sum()),
        "truncated": int((truncated & ~terminated).sum()),
        "both at once": int((terminated & truncated).sum()),
    }


def end_of(episode: Record) -> str:
    """Return how one episode ended, from its row of `meta/episodes`."""
    named = [name for name in ("terminated", "truncated") if episode[name]]
    return " and ".join(named) or "unfinished"


@np.errstate(all="ignore")  # Returns may be infinite.
def figures(values: Array) -> dict[str, float]:
    """Return mean, standard deviation and extremes of some numbers, at least one."""
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
    }


def spread(values: Array) -> str:
    """Return the same in a line."""
    return ", ".join(f"{name} {value:.6g}" for name, value in figures(values).items())


def sized(n_bytes: int) -> str:
    """Return a number of bytes in words: `12 bytes`, `3.4 MB`."""
    power = min((len(str(n_bytes)) - 1) // 3, len(_UNITS) - 1)
    return f"{n_bytes / 1000**power:.{3 if power else 12}g} {_UNITS[power]}"
