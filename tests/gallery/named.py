"""A wrapper that gives Pendulum's observations LeRobot's names; a module of its own, which loads no LeRobot."""

from __future__ import annotations

from typing import Any

import gymnasium


class Named(gymnasium.ObservationWrapper[Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        names = ("agent_pos", "environment_state")
        self.observation_space = gymnasium.spaces.Dict(dict.fromkeys(names, env.observation_space))

    def observation(self, observation: Any) -> Any:
        return {"agent_pos": observation, "environment_state": observation.copy()}
