"""The Crafter steps that a core plays in a second: the package, our game with and without pictures, and rollouts.

.venv/bin/python -m benchmarks.crafter_steps [--worlds 4]. Each world is played by eight episodes of 200 random steps,
as a group is in RL; making the worlds is part of it. A rollout goes through the task app, with a model that answers at
once. Exit code 1: fewer than 50 steps a CPU second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable

import crafter as package
import httpx
from rich.console import Console
from rich.table import Table
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.cluster_run import RunFailed
from synth.taskapp.llm import ChatClients
from task_apps.crafter.app import crafter
from task_apps.crafter.env import ACTIONS, Game

STEPS_PER_CPU_S_LIMIT = 50.0
_EPISODES, _STEPS, _ACTIONS = 8, 200, 5
#: Each way to play uses other worlds, since the last one's are cached.
_FAR = 1000


def main() -> int:
    """Measure, print the table; exit code 1 when the limit is not reached."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--worlds", type=int, default=4, help="worlds of each way to play")
    worlds = options.parse_args().worlds
    ways: dict[str, Callable[[range], int]] = {
        "the package: a picture each step": _package,
        "game: text": lambda seeds: _game(seeds, size=0, images=1),
        "game: text, a picture of 64 pixels a turn": lambda seeds: _game(seeds, size=64, images=1),
        "game: text, a picture of 256 pixels a turn": lambda seeds: _game(seeds, size=256, images=1),
        "game: text, a picture each step": lambda seeds: _game(seeds, size=64, images=_ACTIONS),
        "rollouts: text": lambda seeds: asyncio.run(_rollouts(seeds, vision=False)),
        "rollouts: text, a picture a turn": lambda seeds: asyncio.run(_rollouts(seeds, vision=True)),
    }
    speeds: dict[str, float] = {}
    for number, (name, play) in enumerate(ways.items()):
        begun = time.process_time()
        steps = play(range(number * _FAR, number * _FAR + worlds))
        speeds[name] = steps / (time.process_time() - begun)
    table = Table(title=f"Crafter, {worlds} worlds x {_EPISODES} episodes; {STEPS_PER_CPU_S_LIMIT:.0f} at least")
    table.add_column("")
    table.add_column("steps per CPU s", justify="right")
    for name, speed in speeds.items():
        table.add_row(name, f"{speed:.0f}")
    Console().print(table)
    return int(min(speeds.values()) < STEPS_PER_CPU_S_LIMIT)


def _package(seeds: range) -> int:
    steps, chance = 0, random.Random(0)
    for seed in seeds:
        for _ in range(_EPISODES):
            env, done = package.Env(seed=seed, length=_STEPS), False
            env.reset()
            while not done:
                done, steps = env.step(chance.randrange(len(ACTIONS)))[2], steps + 1
    return steps


def _game(seeds: range, *, size: int, images: int) -> int:
    steps, chance = 0, random.Random(0)
    for seed in seeds:
        for _ in range(_EPISODES):
            game = Game(seed, max_steps=_STEPS, image_size=size, images=images)
            while not game.play(chance.choices(ACTIONS, k=_ACTIONS)).done:
                pass
            steps += game.steps
    return steps


async def _rollouts(seeds: range, *, vision: bool) -> int:
    """Through the app, in this process; the episodes of a world at one time."""
    os.environ["ENVIRONMENT_API_KEY"] = "env_of_the_benchmark"
    crafter._clients = ChatClients(transport=httpx.ASGITransport(_model()))
    steps = 0
    transport = httpx.ASGITransport(crafter.asgi())
    headers = {"X-API-Key": "env_of_the_benchmark"}
    async with httpx.AsyncClient(transport=transport, base_url="http://app", headers=headers) as http:
        for seed in seeds:
            config = {"inference_url": "http://model/v1?cid=trace_a", "use_vision": vision}
            body = {
                "run_id": "benchmark",
                "env": {"seed": seed, "config": {"max_steps": _STEPS}},
                "policy": {"config": config},
            }
            for reply in await asyncio.gather(*(http.post("/rollout", json=body) for _ in range(_EPISODES))):
                if reply.status_code != 200:
                    raise RunFailed(f"the app answered HTTP {reply.status_code}: {reply.text[:300]}")
                steps += reply.json()["metrics"]["details"]["steps"]
    return steps


def _model() -> Starlette:
    chance = random.Random(0)

    async def complete(request: Request) -> Response:
        await request.body()
        arguments = json.dumps({"actions": chance.choices(ACTIONS, k=_ACTIONS)})
        call = {"id": "call", "type": "function", "function": {"name": "interact", "arguments": arguments}}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        return JSONResponse({"choices": [{"message": message, "finish_reason": "tool_calls"}]})

    return Starlette(routes=[Route("/{path:path}", complete, methods=["POST"])])


if __name__ == "__main__":
    sys.exit(main())
