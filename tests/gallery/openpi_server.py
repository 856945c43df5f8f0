"""A server of the real openpi package with a small model, for test_openpi.py: prints its port, and serves."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
import websockets.asyncio.server
from openpi_server.websocket_policy_server import WebsocketPolicyServer

HORIZON = 8


def chunk_of(state: Any, prompt: str) -> Any:
    """Return the actions (8, 1) of the model for a state of Pendulum (3,)."""
    first = 2 * np.tanh(np.asarray(state, np.float64)[1:2] + 0.1 * len(prompt))
    return np.stack([first * 0.9**step for step in range(HORIZON)]).astype(np.float32)


class Model:
    def infer(self, observation: dict[str, Any]) -> dict[str, Any]:
        prompt = observation.get("prompt", "")
        if prompt == "raise":
            raise ValueError("no such task")
        if prompt == "shape":
            return {"actions": np.zeros((HORIZON, 3), np.float32)}
        if prompt == "nothing":
            return {"other": 1}
        return {"actions": chunk_of(observation["observation/state"], prompt)}

    def reset(self) -> None:
        pass


async def main(port: int) -> None:
    serve = websockets.asyncio.server.serve

    def announced(*arguments: Any, **keywords: Any) -> Any:
        """Print the port, which the server itself does not tell."""
        server = serve(*arguments, **keywords)

        class Announced:
            async def __aenter__(self) -> Any:
                self.server = await server.__aenter__()
                print(self.server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
                return self.server

            async def __aexit__(self, *_: object) -> None:
                await server.__aexit__(None, None, None)

        return Announced()

    websockets.asyncio.server.serve = announced
    await WebsocketPolicyServer(Model(), "127.0.0.1", port, {"model": "test"}).run()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
