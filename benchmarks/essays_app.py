"""A task app of one turn: every other rollout of a seed requests few words, the others all that the budget allows."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator

from benchmarks.tax_app import reward_of
from synth.demo.command import run
from synth.taskapp.sdk import Episode, TaskApp

#: Tokens of a short reply.
SHORT = 64

essays = TaskApp("essays", name="Essays", description="Short replies, and replies as long as the job allows.")
_played: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)


@essays.episode
async def play(ep: Episode) -> None:
    """Ask once. A try again counts on, so it shows as one more episode of its seed."""
    number = next(_played[ep.seed])
    limits = {"max_tokens": SHORT} if number % 2 else {}
    reply = await ep.chat([{"role": "user", "content": f"Write of {ep.seed % 10}"}], **limits)
    ep.step(obs={"episode": number}, reward=reward_of(reply.content), done=True)


if __name__ == "__main__":
    sys.exit(run(essays, "benchmarks.essays_app"))
