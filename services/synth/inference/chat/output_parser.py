"""Read the tokens of a reply, as they arrive, as reasoning, content and tool calls.

Invariants: whole and streamed replies are read by the same code, and their deltas joined are the same, however the
tokens were cut; text is given out once no later token can change it; every text of a model can be read, none is
refused.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synth.chat.families import Family
from synth.chat.json_text import BadJson, read_json
from synth.chat.marks import CALL_END, THINK_END
from synth.chat.messages import FunctionCall, Message, MessageToolCall
from synth.chat.replies.reader import Opening, Piece, ReadCall
from synth.chat.tools import Tools
from synth.inference.chat.generation import ReplyDelta
from synth.inference.tokenizers import StreamDecoder, Tokenizer


class TextDelta(NamedTuple):
    """Text that has become certain."""

    reasoning: str = ""
    content: str = ""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """The content of a model's reply. finish_reason: OpenAI's word. reasoning_tokens: sampled ones of the reasoning.

    malformed_call: whether it began a tool call that cannot be read, or one whose arguments are no JSON object.
    """

    message: Message
    finish_reason: str
    reasoning_tokens: int
    malformed_call: bool


class ReplyParser:
    """Reads one reply.

    opening: how the prompt makes it begin. stop: strings that are cut off. must_call: the functions of which one call
    was forced; this call is read even if it is cut off. json: whether its answer is JSON, in whose strings a call is
    text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        family: Family,
        *,
        opening: Opening = "",
        tools: Tools,
        stop: tuple[str, ...],
        must_call: tuple[str, ...] = (),
        json: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._text = StreamDecoder(tokenizer)
        self._pending = ""
        self._stop = stop
        self._tools = tools
        self._id_length = family.calls.id_length if family.calls else None
        self._reader = family.reader(tools, opening=opening, must_call=must_call, json=json)
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._sampled_ids: list[int] = []
        self._forced_end: int | None = None

    def feed(self, delta: ReplyDelta) -> TextDelta:
        """Return the text that has become certain with these tokens. The stop string of the last delta is cut off."""
        text = self._text.feed(delta.token_ids)
        if delta.sampled:
            self._sampled_ids += delta.token_ids
        elif self._forced_end is None and THINK_END in self._tokenizer.decode(delta.token_ids):
            self._forced_end = len(self._sampled_ids)
        if delta.finish_reason is not None:
            self._pending += text + self._text.rest()
            certain, self._pending = self._without_stop(delta.stop_text), ""
        elif not delta.sampled:
            # The engine looks for stop strings only in the tokens that it samples.
            certain, self._pending = self._pending + text, ""
        else:
            self._pending += text
            overlap = max((_overlap(self._pending, stop) for stop in self._stop), default=0)
            certain = self._pending[: len(self._pending) - overlap]
            self._pending = self._pending[len(certain) :]
        return self._emit(self._reader.feed(certain))

    def close(self, finish_reason: str) -> tuple[ParsedReply, TextDelta]:
        """Return the whole reply, and what of its text was held back until now."""
        text = self._emit(self._reader.close())
        calls = [
            MessageToolCall(id=self._id(call), function=FunctionCall(name=call.name, arguments=call.arguments))
            for call in self._reader.calls
        ]
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        message = Message(
            role="assistant",
            content=None if calls and not content else content,
            tool_calls=calls or None,
            reasoning_content=reasoning or None,
        )
        finish = "tool_calls" if calls and finish_reason == "stop" else finish_reason
        malformed = self._reader.malformed or any(not _is_object(call.arguments) for call in self._reader.calls)
        reasoning_tokens = self._reasoning_tokens() if self._reader.reasoned else 0
        return ParsedReply(message, finish, reasoning_tokens, malformed), text

    def _id(self, call: ReadCall) -> str:
        """Return the id that the model wrote, or a new one that the family's templates accept."""
        return call.id or (f"call_{secrets.token_hex(12)}" if self._id_length is None else _id_of(self._id_length))

    def _without_stop(self, stop_text: str | None) -> str:
        at = self._pending.find(stop_text) if stop_text is not None else -1
        if stop_text is None or at < 0:
            return self._pending
        return self._pending[: at + (len(CALL_END) if self._tools and stop_text == CALL_END else 0)]

    def _emit(self, pieces: Sequence[Piece]) -> TextDelta:
        reasoning = "".join(text for kind, text in pieces if kind == "reasoning")
        content = "".join(text for kind, text in pieces if kind == "content")
        self._reasoning.append(reasoning)
        self._content.append(content)
        return TextDelta(reasoning, content)

    def _reasoning_tokens(self) -> int:
        """Return the number of sampled tokens up to the end of the reasoning, or of the reply if it never ended."""
        if self._forced_end is not None:
            return self._forced_end
        mark, ids = self._tokenizer.encode(self._reader.reasoning_end), self._sampled_ids
        return next((i + len(mark) for i in range(len(ids)) if ids[i : i + len(mark)] == mark), len(ids))


def _id_of(length: int) -> str:
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(length))


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(read_json(arguments), dict)
    except BadJson:
        return False


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `mark`."""
    longest = min(len(mark) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
