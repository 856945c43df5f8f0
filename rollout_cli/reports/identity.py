"""The identity and origin of a dataset, as names and values for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rollout_cli.dataset.card import n_skipped, skipped_text
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.layout import acceptance_text, described, table_files
from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.record import DatasetInfo, RunRecord
from rollout_cli.dataset.run_changes import compare_runs
from rollout_cli.episodes.infos import SUCCESS_INFOS
from rollout_cli.episodes.intervals import Interval, interquartile_mean, mean, wilson
from rollout_cli.keywords import Record
from rollout_cli.options.config import DECISIVE

_NOT_RECORDED = "not recorded"
_VARIED = ("observation", "action", "next_observation")
_INFOS = ("env_info.", "agent_info.", "episode_info.")
_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_FIRST_VERSIONS = ("python", "rollout-collect", "gymnasium", "numpy")
_UNNAMED = {
    *("platform", "pyarrow", "cloudpickle", "farama-notifications"),
    *("setproctitle", "setuptools", "typing-extensions"),
}
"""Packages whose version does not matter to the environment or the policy."""
_MOST_SOURCES = 4
_MOST_NAMES = 8
_MOST_VERSIONS = 10
_HASH = 12  # Shown characters of a hash, or of a commit.


def facts_of(dataset: Dataset) -> DatasetInfo:
    """Return info.json; while a run is collecting or was killed, totals are counted from its commits."""
    facts = dataset.info.copy()
    if facts["status"] == "collecting":
        data = table_files(dataset.path / "data").values()
        episodes = table_files(dataset.path / "meta/episodes").values()
        n_bytes = sum(path.stat().st_size for path in (*data, *episodes))
        steps = int(dataset.rows.column("length").sum())
        facts["episodes"] = len(dataset)
        facts["steps"] = steps
        facts["bytes"] = n_bytes
        facts["segments"] = len(data)
    return facts


def identity(dataset: Dataset, facts: DatasetInfo) -> dict[str, str]:
    """Return the rows that describe a dataset; `facts` is the result of `facts_of`."""
    rows = {"status": facts["status"]}
    sources = facts["sources"]
    for number, source in enumerate(sources[:_MOST_SOURCES]):
        place = f" of source {number}" if len(sources) > 1 else ""
        for name, value in _source_rows(source).items():
            rows[name + place] = value
        if number and "collector" in sources[0] and "collector" in source:
            changes = compare_runs(sources[0], source, DECISIVE)
            rows[f"source {number} differs in"] = _some([*dict.fromkeys(map(str, changes))], _MOST_NAMES)
    if len(sources) > _MOST_SOURCES:
        rows["more sources"] = f"{len(sources) - _MOST_SOURCES:,}"
    if facts["derived"]:
        rows["made by"] = ", then ".join(str(step.get("operation")) for step in facts["derived"])
    times = facts["times"]
    ended = "on, by a run that is still collecting or was killed"
    if times.get("ended"):
        ended = f"to {_minute(times['ended'])}"
    rows["collected"] = f"{_minute(times.get('started'))} {ended}"
    rows |= {"episodes": f"{facts['episodes']:,}", "steps": f"{facts['steps']:,}"}
    if skipped := skipped_text(n_skipped(facts["sources"]), facts["episodes"]):
        rows["skipped"] = skipped
    if len(dataset):
        for name in ("return", "length"):
            rows[name] = spread(dataset.rows.column(name))
        rows["ends"] = ", ".join(f"{count:,} {end}" for end, count in ends(dataset).items() if count)
    files = f"{facts['segments']:,} data file{'' if facts['segments'] == 1 else 's'}"
    rows["size"] = f"{sized(facts['bytes'])} in {files}"
    return rows | _columns(facts)


def _source_rows(source: RunRecord) -> dict[str, str]:
    """Return the rows of one run; a writer used without `collect` may have recorded little."""
    env = source.get("env_source", {})
    wrappers = [f"{entry['spec']}{_arguments(entry['kwargs'])}" for entry in env.get("wrappers", ())]
    arguments = _arguments(source.get("env", {}).get("kwargs", {}))
    pinned = [f"{file['path']} {str(file['sha256'])[:_HASH]}" for file in source.get("files", ())]
    collector = source.get("collector", {})
    kind = source.get("kind")
    rows = {
        "origin": f"{kind}; another program ran the episodes" if kind else "",
        "environment": f"{env.get('spec', _NOT_RECORDED)} {arguments}".rstrip(),
        "wrappers": ", ".join(wrappers),
        "policy": str(source.get("policy", {}).get("spec", _NOT_RECORDED)),
        "files": _some(pinned, _MOST_NAMES),
        "root seed": _NOT_RECORDED if source["root_seed"] is None else str(source["root_seed"]),
        "reproducible": described(source.get("reproducible", {})),
    }
    if stopped_by := source.get("stopped_by"):
        rows["stopped by"] = f"--{stopped_by.replace('_', '-')}"
    if acceptance := source.get("acceptance"):
        rows["kept"] = f"{acceptance_text(acceptance)}: {collector.get('keep', _NOT_RECORDED)}"
    rows["workers"] = _workers(collector)
    if git := source.get("git"):
        rows["commit"] = git["commit"][:_HASH]
        if git.get("dirty"):
            rows["commit"] += " and uncommitted changes"
    rows["versions"] = _versions(source.get("versions", {}))
    return {name: text for name, text in rows.items() if text}


def _workers(options: Record) -> str:
    if not options.get("workers"):
        return ""
    n_envs = options.get("envs_per_worker") or 1
    envs = f", {n_envs} environments each" if n_envs > 1 else ""
    return f"{options['workers']} ({options.get('sampler')}{envs})"


def _versions(versions: Mapping[str, str]) -> str:
    names = dict.fromkeys([*_FIRST_VERSIONS, *versions])
    shown = [f"{name} {versions[name]}" for name in names if name in versions and name not in _UNNAMED]
    return _some(shown, _MOST_VERSIONS)


def _columns(facts: Record) -> dict[str, str]:
    """Return the columns that vary between datasets; each group of infos is one row."""
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
    if not kwargs:
        return ""
    return f"({', '.join(f'{name}={value}' for name, value in kwargs.items())})"


def _some(names: Sequence[str], limit: int) -> str:
    shown = [*names[:limit]]
    if len(names) > limit:
        shown.append(f"and {len(names) - limit:,} more")
    return ", ".join(shown)


def _minute(time: str | None) -> str:
    """Return a time of info.json with a precision of seconds, in UTC."""
    return (time or "")[:19].replace("T", " ")


def ends(dataset: Dataset) -> dict[str, int]:
    """Return the number of episodes by kind of end."""
    terminated = dataset.rows.column("terminated")
    truncated = dataset.rows.column("truncated")
    return {
        "terminated": int((terminated & ~truncated).sum()),
        "truncated": int((truncated & ~terminated).sum()),
        "both at once": int((terminated & truncated).sum()),
    }


def end_of(episode: Record) -> str:
    """Return the kind of end of one episode, from its row of `meta/episodes`."""
    return " and ".join(filter(episode.get, ("terminated", "truncated"))) or "unfinished"


@np.errstate(all="ignore")  # Returns may be infinite.
def figures(values: Array) -> dict[str, float]:
    """Return mean, standard deviation, minimum and maximum of at least one number."""
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
    }


def spread(values: Array) -> str:
    """Return the result of `figures` in one line."""
    return ", ".join(f"{name} {value:.6g}" for name, value in figures(values).items())


def estimates(dataset: Dataset) -> dict[str, Interval]:
    """Return estimates of a policy from its episodes: mean return, interquartile mean, score, rate of success.

    The rate is that of an info in `SUCCESS_INFOS`, if the dataset has one.

    Raises:
        UsageError: If the info is neither a number nor a bool.
    """
    returns = dataset.rows.column("return")
    found = {"mean return": mean(returns), "IQM of returns": interquartile_mean(returns)}
    if references := dataset.info.get("card", {}).get("references"):
        low = references["low"]
        found["normalized score"] = found["mean return"].scaled(low, low + (references["high"] - low) / 100)
    for name in SUCCESS_INFOS:
        if name in dataset.info["features"]:
            return found | {"success": wilson(int(dataset.rows.matching(name).sum()), len(dataset))}
    return found


def sized(n_bytes: int) -> str:
    """Return a number of bytes with a unit: `12 bytes`, `3.4 MB`."""
    power = min((len(str(n_bytes)) - 1) // 3, len(_UNITS) - 1)
    return f"{n_bytes / 1000**power:.{3 if power else 12}g} {_UNITS[power]}"
