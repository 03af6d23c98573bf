"""A task app whose reward any model can earn: a fixed function of the text, so that a group always has a signal.

`python -m benchmarks.tax_app --port 8801`
"""

from __future__ import annotations

import argparse
import zlib

from synth.taskapp.sdk import Episode, TaskApp, serve

tax = TaskApp("tax", name="Any text", description="Pays for a property of the reply that nobody can guess.")


def question(seed: int) -> str:
    """Return the user's question."""
    return f"What is {seed % 90 + 10} + {seed // 90 % 90 + 10}?"


def reward_of(text: str) -> float:
    """0 to 1, the same for the same text."""
    return zlib.crc32(text.encode()) % 1000 / 999


@tax.episode
async def answer(ep: Episode) -> None:
    reply = await ep.chat([{"role": "user", "content": question(ep.seed)}])
    ep.step(obs={"completion": reply.content}, reward=reward_of(reply.content), done=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    serve(tax, port=parser.parse_args().port)
