"""A task app of several turns whose rewards come late: a reply is paid in the next turn's step.

A job may set fewer turns.
"""

from __future__ import annotations

import sys
from typing import Any

from synth.demo.command import run
from synth.taskapp.sdk import Episode, TaskApp

TURNS = 12

delayed = TaskApp(
    "delayed",
    name="Late rewards",
    description=f"{TURNS} turns; each is paid for the vowels of its reply, one turn later.",
    max_turns=TURNS,
)


@delayed.episode
async def play(ep: Episode) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Seed {ep.seed % 10}"}]
    owed = 0.0
    for turn in range(ep.max_turns):
        reply = await ep.chat(messages)
        worth = sum(c in "aeiouAEIOU" for c in reply.content) / max(len(reply.content), 1)
        last = turn == ep.max_turns - 1
        ep.step(obs=reply.content, reward=owed + (worth if last else 0.0), done=last)
        owed = worth
        messages += [reply.message, {"role": "user", "content": f"Turn {turn + 1}"}]


if __name__ == "__main__":
    sys.exit(run(delayed, "benchmarks.delayed_app"))
