"""Who plays the rollouts of a job: its task app, or the collector itself where a grader pays them."""

from __future__ import annotations

from typing import Protocol

from synth.outbound.answer_memory import AnswerRoom
from synth.rollouts.collection.types import CollectRequest, RolloutSpec
from synth.rollouts.rewards.scoring import TaskAppReply


class Player(Protocol):
    """Plays one try of a rollout, whose calls of the model go to inference_url, and says what it earned."""

    @property
    def url(self) -> str:
        """Where it is, for the problems of its answers."""
        ...

    async def play(
        self, request: CollectRequest, spec: RolloutSpec, *, inference_url: str, cid: str, room: AnswerRoom
    ) -> TaskAppReply:
        """One try of one rollout, answered as a task app does. Whoever calls bounds its time. room: of the answer."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...
