"""UpdateHistory: what brings a worker that starts late to where the others are."""

from __future__ import annotations

from typing import Any

import pytest

from rollout_cli.envs import EnvUpdate, NewEnvUpdate
from rollout_cli.samplers.messages import Pickled
from rollout_cli.samplers.updates import UpdateHistory
from tests.support.envs import ChainEnv


def named(name: str | None) -> Pickled | None:
    return None if name is None else Pickled(name.encode())


Given = tuple[str | None, Any]


def history(*calls: tuple[Given, Given]) -> list[tuple[str, str]]:
    """Return the names of the updates to apply after `calls`, each of ((agent's name, agent), (env's name, env))."""
    kept = UpdateHistory(named("agent"), named("env"))
    for agent, env in calls:
        kept.add((named(agent[0]), named(env[0])), (agent[1], env[1]))
    return [tuple(update.data.decode() if update else "-" for update in pair) for pair in kept.updates]  # type: ignore[misc]


NOTHING: tuple[None, None] = (None, None)


def test_a_new_worker_begins_with_the_first_policy_and_environment() -> None:
    """Without updates there is one pair; calls without updates add nothing."""
    assert [("agent", "env")] == history() == history((NOTHING, NOTHING))


@pytest.mark.parametrize("parameters", [{"w": 1}, (1, 2)])
def test_parameters_replace_earlier_parameters(parameters: Any) -> None:
    """Of several parameter updates the last one counts, on top of the last whole policy."""
    calls: tuple[tuple[Given, Given], ...] = ((("p1", parameters), NOTHING), (("p2", parameters), NOTHING))
    assert [("agent", "env"), ("p2", "-")] == history(*calls)


def test_a_whole_policy_replaces_everything_before() -> None:
    """Parameters of the policy before are no use to the next one; those after it are."""
    calls: tuple[tuple[Given, Given], ...] = (
        (("p1", {}), NOTHING),
        (("agent2", object()), NOTHING),
        (("p2", {}), NOTHING),
    )
    assert [("agent2", "env"), ("p2", "-")] == history(*calls)


def test_env_updates_that_build_on_each_other_are_kept_in_order() -> None:
    """Every update since the last environment is applied again, before the parameters."""
    calls: tuple[tuple[Given, Given], ...] = ((NOTHING, ("u1", EnvUpdate())), (("p1", {}), ("u2", EnvUpdate())))
    assert [("agent", "env"), ("-", "u1"), ("-", "u2"), ("p1", "-")] == history(*calls)


@pytest.mark.parametrize("replacing", [ChainEnv, lambda: NewEnvUpdate(ChainEnv)])
def test_an_update_that_replaces_the_environment_ends_the_list(replacing: Any) -> None:
    """What came before a whole environment, or an update that owes nothing to the one before, is forgotten."""
    calls: tuple[tuple[Given, Given], ...] = (
        (NOTHING, ("u1", EnvUpdate())),
        (NOTHING, ("new", replacing())),
        (NOTHING, ("u2", EnvUpdate())),
    )
    assert [("agent", "new"), ("-", "u2")] == history(*calls)
