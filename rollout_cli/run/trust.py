"""Trust in code that files name: what an rl_zoo3 run folder or a dataset's info.json may run without `--trust`.

Both may come from a stranger. Environments of gymnasium and of known packages, wrappers of an allow-list, and
policy files whose loaders do not run code of the file need no trust. Everything else needs `trust=true` or
`--trust`.
"""

from __future__ import annotations

import json
import re

import gymnasium

from rollout_cli.envs.building import home_of
from rollout_cli.envs.functional.families import is_family
from rollout_cli.errors import UserCodeError
from rollout_cli.keywords import Record
from rollout_cli.options.config import CollectConfig
from rollout_cli.policies.policy import PolicySource
from rollout_cli.sources.loading import is_in_working_folder

_WRAPPERS = re.compile(
    r"(gymnasium\.wrappers:)?(?!RecordVideo)\w+|minigrid\.wrappers:\w+Wrapper|"
    r"sb3_contrib\.common\.wrappers:TimeFeatureWrapper|"
    r"stable_baselines3\.common\.atari_wrappers:(\w+Env|WarpFrame|AtariWrapper)|"
    r"rl_zoo3\.wrappers:(\w+Wrapper|HistoryWrapperObsDict|FrameSkip)"
)
"""Wrappers that run no other code. RecordVideo is excluded: its arguments choose where it writes files."""
_STACKED_FRAMES = "rollout_cli.envs.frames:StackedFrames"

_NAMES_MORE = re.compile(r"[/\\:]|\D\.|\.\D")
"""Matches names of modules and files: some environments import or read a module or file that an argument names."""

_DATA_SCHEMES = {"constant", "d3rlpy", "mix", "onnx", "random", "replay", "rllib", "sb3", "zoo"}
"""Schemes whose loaders run no code of the file without `trust=true`. TorchScript and exported programs do."""


_SERVERS = re.compile(r"(^|\*)(serve|openpi):")
"""Matches SPECs that connect to an address, alone or in a mixture."""


def check_local(origin: object, policy: str) -> None:
    """Raise `UserCodeError` if the SPEC of a policy from a file connects to a server; call it before the SPEC is used.

    Args:
        origin: The file, for the message.
        policy: The SPEC.
    """
    if _SERVERS.search(policy):
        raise UserCodeError(
            f"{origin} names the policy server {policy!r}, to which observations would be sent",
            code="file-names-server",
            hint="pass {trust=True} if you trust the server",
        )


def check_trusted(
    origin: object,
    config: CollectConfig,
    policy: PolicySource | None = None,
    *,
    hint: str = "pass {trust=True} if the dataset is yours, or you trust its code",
) -> None:
    """Raise `UserCodeError` if a configuration from a file may run code that is not of a known package.

    Args:
        origin: The file, for the message.
        config: The configuration.
        policy: The policy; None if policy and worker class do not come from the file.
        hint: How the user can trust the file.
    """
    env = str(config.env)
    wrappers = [spec.partition("?") for spec in config.wrapper]
    is_known = env in gymnasium.registry or (home_of(env)[0] and not re.search("[.:]", env)) or is_family(env)
    refused = [] if is_known else [env]
    refused += [name for name, _, _ in wrappers if not _is_known_wrapper(name)]
    arguments = [json.dumps(config.env_kwargs, separators=(",", "=")), *(text for _, _, text in wrappers)]
    refused += filter(_NAMES_MORE.search, arguments)
    if policy is not None:
        refused += [] if _is_data(policy.describe()) else [config.policy]
        refused += filter(None, [config.worker_class])
    if refused:
        names = ", ".join(map(repr, refused))
        raise UserCodeError(
            f"{origin} names {names}, which may run arbitrary code; "
            "expected registered environments, known wrappers, and policy files without code",
            code="file-may-run-code",
            hint=hint,
        )


def _is_known_wrapper(name: str) -> bool:
    # A module in the working folder shadows an installed package, but not `rollout_cli`.
    return name == _STACKED_FRAMES or bool(_WRAPPERS.fullmatch(name) and not is_in_working_folder(name))


def _is_data(record: Record) -> bool:
    """Return whether a policy, given its source's record, is loaded without running code of a file."""
    is_trusted = record["scheme"] not in _DATA_SCHEMES or record["options"].get("trust")
    return not is_trusted and all(map(_is_data, record.get("components", ())))
