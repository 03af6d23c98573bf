"""A rollout as a judge is shown it: whole, as JSON, between two lines that nothing in it can spell."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from synth.transcripts.transcript import Transcript, TranscriptStep


@dataclass(frozen=True)
class JudgedRollout:
    """A rollout to be judged. digest: of its transcript, as hex."""

    rollout_id: str
    digest: str
    transcript: Transcript

    def __post_init__(self) -> None:
        """Raise ValueError for a call that continues no call before it."""
        for number, turn in enumerate(self.transcript.turns):
            if turn.continues is not None and not 0 <= turn.continues < number:
                raise ValueError(f"call {number + 1} goes on from no call before it")

    @property
    def num_events(self) -> int:
        """The number of its model calls; for a trace without any, of its steps of the environment."""
        return len(self.transcript.turns) or len(self._steps)

    def episode(self) -> dict[str, Any]:
        """Return the whole rollout: the model's and the environment's messages, each once, in the order of events."""
        turns, steps = self.transcript.turns, self._steps
        events: list[dict[str, Any]] = []
        for number, turn in enumerate(turns, start=1):
            call: dict[str, Any] = {"call": number}
            if turn.continues is not None and turn.continues != number - 2:
                call["goes_on_from_call"] = turn.continues + 1
            if turn.tools is not None:
                call["tools"] = turn.tools
            events.append(call | {"messages": turn.messages, "reply": turn.reply, **_end(turn.finish_reason)})
            events += [_step(step) for step in steps if step.after_call == number]
        shown = range(1, len(turns) + 1)
        events += [_step(step) for step in steps if step.after_call not in shown]
        return {"events": events, **self._rest(), **self._gaps()}

    def event(self, index: int) -> dict[str, Any]:
        """Return one call with everything before it and the environment's reaction to it; index: from 0."""
        turns, steps = self.transcript.turns, self._steps
        if not turns:
            before = [_step(step) for step in steps[:index]]
            return {"before": before, "event": _step(steps[index]), **self._context(), **self._gaps()}
        turn = turns[index]
        tools = next((t.tools for t in reversed(turns[: index + 1]) if t.tools is not None), None)
        return {
            **({"tools": tools} if tools else {}),
            "messages": self._conversation(index),
            "reply": turn.reply,
            **_end(turn.finish_reason),
            "environment": [_step(step) for step in steps if step.after_call == index + 1],
            **self._gaps(),
        }

    @property
    def _steps(self) -> Sequence[TranscriptStep]:
        return self.transcript.answer.steps if self.transcript.answer is not None else []

    def _conversation(self, index: int) -> list[Any]:
        """Return the messages of a call, its reply left out."""
        turns = self.transcript.turns
        turn = turns[index]
        pieces, needed = [turn.messages], turn.kept
        while turn.continues is not None:
            turn = turns[turn.continues]
            # A call's own messages begin after the ones that it kept.
            pieces.append([*turn.messages, turn.reply][: max(0, needed - turn.kept)])
            needed = min(needed, turn.kept)
        return [message for piece in reversed(pieces) for message in piece]

    def _rest(self) -> dict[str, Any]:
        answer = self.transcript.answer
        if answer is None:
            return {}
        fields = {"final": answer.final, "metrics": answer.metrics}
        aborted = {"policy_failed": True} if answer.aborted else {}
        return {name: value for name, value in fields.items() if value is not None} | aborted | self._context()

    def _context(self) -> dict[str, Any]:
        body = self.transcript.answer.body if self.transcript.answer is not None else None
        return {} if body is None else {"context": body}

    def _gaps(self) -> dict[str, Any]:
        """Return the parts that the transcript lacks, so that a judge does not take a gap for a silence."""
        lacks = {
            "shortened_values": self.transcript.cut_values,
            "calls_left_out": self.transcript.turns_left_out,
            "steps_left_out": self.transcript.steps_left_out,
        }
        return {name: count for name, count in lacks.items() if count}


def fence(secret: str, org: str, digests: Sequence[str]) -> str:
    """Return the name of the lines around these rollouts: not to be guessed, but the same each time for the cache."""
    text = "\0".join(("judge", org, *digests))
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()[:24]


def fenced(name: str, value: Any) -> str:
    """Return a value as JSON between the two lines of this name."""
    return f"<rollout-{name}>\n{msgspec.json.encode(value).decode()}\n</rollout-{name}>"


def _step(step: TranscriptStep) -> dict[str, Any]:
    return {"environment": {k: v for k, v in msgspec.to_builtins(step).items() if k != "after_call"}}


def _end(finish_reason: str) -> dict[str, Any]:
    return {"finish_reason": finish_reason} if finish_reason not in ("", "stop") else {}
