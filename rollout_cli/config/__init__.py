"""What a run was asked to do: options declared once, and read from flags, environment variables and a TOML file.

`*_options.py` declare the options, which `collect_config.py` joins; `kinds.py` says how a kind of value is read and
checked, `sources.py` which source wins, `toml_writer.py` how a resolved configuration is written down,
`recorded.py` how a dataset records it and gives it back.
Nothing here imports numpy or gymnasium: `rollout --help` reads these declarations.
"""

from rollout_cli.config.collect_config import OPTIONS, CollectConfig, default_output, options_of
from rollout_cli.config.kinds import EpisodeRange
from rollout_cli.config.options import Option
from rollout_cli.config.recorded import cut_options, recorded_config, recorded_options, recorded_values
from rollout_cli.config.sources import resolve
from rollout_cli.config.toml_writer import config_to_dict, config_to_toml
from rollout_cli.cores import usable_cores

__all__ = [
    "OPTIONS",
    "CollectConfig",
    "EpisodeRange",
    "Option",
    "config_to_dict",
    "config_to_toml",
    "cut_options",
    "default_output",
    "options_of",
    "recorded_config",
    "recorded_options",
    "recorded_values",
    "resolve",
    "usable_cores",
]
