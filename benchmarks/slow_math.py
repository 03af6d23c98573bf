"""The Math task app behind a slow environment: idle before each request, like a sandbox that starts.

`python -m benchmarks.slow_math --port 8801`; the job sets the seconds: `[rollout.env_config] idle_s = 1.0`.
"""

from __future__ import annotations

import argparse
import asyncio

from synth.demo.math.app import answer
from synth.taskapp.sdk import Episode, TaskApp, serve

app = TaskApp("math", name="Slow arithmetic", description="Adds two numbers; 1 for the exact sum, else 0.")


@app.episode
async def play(ep: Episode) -> None:
    await asyncio.sleep(float(ep.env_config.get("idle_s", 0.0)))
    await answer(ep)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    serve(app, port=parser.parse_args().port)
