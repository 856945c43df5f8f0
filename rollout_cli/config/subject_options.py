"""Options of `CollectConfig`: what runs: the policy and its environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rollout_cli.config.kinds import SHA256, Choice, ShapedText, Text
from rollout_cli.config.options import KEYWORDS, SWITCH, WHAT, Option


@dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """What runs: the policy and its environment."""

    policy: Annotated[
        str,
        Option(Text("SPEC", "a policy spec"), WHAT, "The policy: random, file.pkl, or module:attr.", short="-p"),
    ] = "random"
    policy_sha256: Annotated[
        str | None,
        Option(
            ShapedText("HEX", "the 64 hexadecimal digits of a SHA-256", SHA256),
            WHAT,
            "The SHA-256 that the policy's file must have, checked before anything of it is loaded.",
        ),
    ] = None
    env: Annotated[
        str,
        Option(
            Text("SPEC", "an environment spec"),
            WHAT,
            "The environment: a gymnasium id, spec.json, file.pkl, or module:attr.",
            short="-e",
        ),
    ] = "CartPole-v1"
    env_kwargs: Annotated[
        Mapping[str, Any],
        Option(
            KEYWORDS,
            WHAT,
            "A keyword argument for the environment, the value a TOML literal or else text; may be given again.",
        ),
    ] = field(default_factory=dict)
    deterministic: Annotated[
        bool,
        Option(SWITCH, WHAT, "Ask the policy for its deterministic actions; one that has no such mode is refused."),
    ] = False
    invalid_action: Annotated[
        Literal["error", "clip", "warn"],
        Option(
            Choice("NAME", "'error', 'clip' or 'warn'", choices=("error", "clip", "warn")),
            WHAT,
            "An action outside of its space is an error, is moved to its nearest bound, or is only told of.",
        ),
    ] = "error"
