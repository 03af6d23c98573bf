"""A task app of one turn: every other rollout asks for a few words, the others for one that cannot end by itself."""

from __future__ import annotations

import itertools
import sys

from synth.taskapp.sdk import Episode, TaskApp
from task_apps.command import run

_SHORT = 64
essays = TaskApp("essays", name="Essays", description="Short replies, and replies as long as their time allows.")
_numbers = itertools.count()
#: JSON that is not whole before it has so many items keeps a model from ending its reply.
_ENDLESS = {"type": "array", "items": {"enum": ["a", "b", "c", "d"]}, "minItems": 10_000_000}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "essay", "strict": True, "schema": _ENDLESS}}


@essays.episode
async def play(ep: Episode) -> None:
    asked = {"max_tokens": _SHORT} if next(_numbers) % 2 else {"response_format": _FORMAT}
    reply = await ep.chat([{"role": "user", "content": f"Write of {ep.seed % 10}"}], **asked)
    ep.step(obs=reply.content[:100], reward=reply.content.count("a") % 11 / 10, done=True)


if __name__ == "__main__":
    sys.exit(run(essays, "benchmarks.essays_app"))
