"""The conversations of a transcript, as rows to train on: each message of the policy is learned once.

A rollout whose every call continues the one before is one conversation. A rollout whose client starts again, or leaves
out messages, is several: a message of the policy that stands in two of them is learned in the first. A reply that was
cut off is learned in none: its row would teach the model to end there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from synth.transcripts.transcript import Transcript, TranscriptTurn

Object = dict[str, Any]
#: How a reply ended that the policy did not end: at its token limit, or with the engine.
CUT_OFF = ("length", "abort")


@dataclass(frozen=True)
class TaughtConversation:
    """Messages as a client wrote them, and the tools that were offered last. turns: the turns whose replies it teaches.

    taught: the places of these replies among the messages. A message of an assistant at another place is context: the
    client wrote it, another conversation teaches it, or it was cut off.
    """

    messages: list[Object]
    tools: list[Any]
    taught: list[int]
    turns: list[int]

    def as_row(self) -> Object:
        """Return a line of a training file. Every assistant message is learned unless its weight is 0."""
        taught = set(self.taught)
        messages = [
            message | {"weight": 0} if message.get("role") == "assistant" and place not in taught else message
            for place, message in enumerate(self.messages)
        ]
        return {"messages": messages} | ({"tools": self.tools} if self.tools else {})


def conversations(transcript: Transcript) -> list[TaughtConversation]:
    """Return the conversations that no later turn continues as a whole, in the order of their last turns."""
    turns = transcript.turns
    lengths: list[int] = []
    goes_on: set[int] = set()
    for n, turn in enumerate(turns):
        lengths.append(_kept(turn, n) + len(turn.messages) + 1)
        if turn.continues is not None and _kept(turn, n) == lengths[turn.continues]:
            goes_on.add(turn.continues)
    tools = _tools(turns)
    known: set[int] = set()
    return [_conversation(turns, n, tools[n], lengths, known) for n in range(len(turns)) if n not in goes_on]


def _kept(turn: TranscriptTurn, n: int) -> int:
    return turn.kept if turn.continues is not None and 0 <= turn.continues < n else 0


def _tools(turns: Sequence[TranscriptTurn]) -> list[list[Any]]:
    """Return the tools of each turn; a turn records them only if they differ from the turn before."""
    tools_by_turn: list[list[Any]] = []
    last: list[Any] = []
    for turn in turns:
        last = last if turn.tools is None else turn.tools
        tools_by_turn.append(last)
    return tools_by_turn


def _conversation(
    turns: Sequence[TranscriptTurn], end: int, tools: list[Any], lengths: list[int], known: set[int]
) -> TaughtConversation:
    """Return the messages up to the reply of a turn. known: the turns that are taught already; it is updated."""
    pieces: list[tuple[int, int, int]] = []
    turn, upto = end, lengths[end]
    while upto > 0:
        begin = _kept(turns[turn], turn)
        if upto > begin:
            pieces.append((turn, begin, upto))
        upto = min(upto, begin)
        turn = turns[turn].continues or 0
    messages: list[Object] = []
    taught: list[int] = []
    used: list[int] = []
    for turn, begin, upto in reversed(pieces):
        added = [*turns[turn].messages, turns[turn].reply][: upto - begin]
        if upto == lengths[turn] and turn not in known and turns[turn].finish_reason not in CUT_OFF:
            taught.append(len(messages) + len(added) - 1)
            used.append(turn)
        messages += [cast(Object, message) if isinstance(message, dict) else {} for message in added]
    known.update(used)
    return TaughtConversation(messages, tools, taught, used)
