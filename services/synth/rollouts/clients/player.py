"""The player of a job's rollouts: its task app, or the collector itself if a grader scores them."""

from __future__ import annotations

from typing import Protocol

from synth.outbound.answer_memory import AnswerRoom
from synth.rollouts.collection.types import CollectRequest, RolloutSpec
from synth.rollouts.rewards.scoring import TaskAppReply


class Player(Protocol):
    """A player of single tries of rollouts, whose model calls go to inference_url; it returns the reward."""

    @property
    def url(self) -> str:
        """The player's address, named in the problems of its answers."""
        ...

    async def play(
        self, request: CollectRequest, spec: RolloutSpec, *, inference_url: str, cid: str, room: AnswerRoom
    ) -> TaskAppReply:
        """Run one try of one rollout, and answer as a task app does.

        The caller limits its time. room: the memory that holds the answer.
        """
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...
