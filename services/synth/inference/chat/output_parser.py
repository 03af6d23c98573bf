"""From the tokens of a reply, as they come, to what it says: reasoning, content, tool calls.

Invariants: whole and streamed replies are read by the same code, and their deltas joined are the same, however the
tokens were cut; text is given out once no later token can change it; whatever a model says is read, never refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from synth.chat.families import CALL_END, CALL_START, THINK, THINK_END, Family, ReadCall, Tools
from synth.chat.json_text import BadJson, read_json
from synth.chat.messages import FunctionCall, Message, MessageToolCall
from synth.inference.chat.generation import ReplyDelta
from synth.inference.tokenizers import Tokenizer


class TextDelta(NamedTuple):
    """Text that has become certain."""

    reasoning: str = ""
    content: str = ""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """What the model said. finish_reason: OpenAI's word. reasoning_tokens: sampled ones of the reasoning.

    malformed_call: whether it began a tool call that cannot be read, or one whose arguments are no JSON object.
    """

    message: Message
    finish_reason: str
    reasoning_tokens: int
    malformed_call: bool


class ReplyParser:
    """Reads one reply.

    in_reasoning: whether its prompt ends in open reasoning. stop: strings that are cut off.
    must_call: the functions of which it was made to call one; this call is read even where its arguments are not JSON.
    json: whether its answer is JSON, in whose strings a call is text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        family: Family,
        *,
        in_reasoning: bool,
        tools: Tools,
        stop: tuple[str, ...],
        must_call: tuple[str, ...] = (),
        json: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._text = _StreamDecoder(tokenizer)
        self._pending = ""
        self._stop = stop
        self._tools = tools
        self._split = _ReplySplitter(family, tools, in_reasoning=in_reasoning, must_call=must_call, json=json)
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._sampled_ids: list[int] = []
        self._forced_end: int | None = None

    def feed(self, delta: ReplyDelta) -> TextDelta:
        """What has become certain with these tokens. The stop string of the last delta is cut off."""
        text = self._text.feed(delta.token_ids)
        if delta.sampled:
            self._sampled_ids += delta.token_ids
        elif self._forced_end is None and THINK_END in self._tokenizer.decode(delta.token_ids):
            self._forced_end = len(self._sampled_ids)
        if delta.finish_reason is not None:
            self._pending += text + self._text.rest()
            certain, self._pending = self._without_stop(delta.stop_text), ""
        elif not delta.sampled:
            # The engine looks for stop strings in what it samples, and nowhere else.
            certain, self._pending = self._pending + text, ""
        else:
            self._pending += text
            held = max((_overlap(self._pending, stop) for stop in self._stop), default=0)
            certain = self._pending[: len(self._pending) - held]
            self._pending = self._pending[len(certain) :]
        return self._emit(self._split.feed(certain))

    def close(self, finish_reason: str) -> tuple[ParsedReply, TextDelta]:
        """The whole reply, and what of its text was held back until now."""
        rest, read = self._split.close()
        text = self._emit(rest)
        calls = [
            MessageToolCall(id=f"call_{secrets.token_hex(12)}", function=FunctionCall(name=name, arguments=arguments))
            for name, arguments in read
        ]
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        message = Message(
            role="assistant",
            content=None if calls and not content else content,
            tool_calls=calls or None,
            reasoning_content=reasoning or None,
        )
        finish = "tool_calls" if calls and finish_reason == "stop" else finish_reason
        malformed = (self._split.in_calls and not read) or any(not _is_object(call.arguments) for call in read)
        reasoning_tokens = self._reasoning_tokens() if self._split.reasoned else 0
        return ParsedReply(message, finish, reasoning_tokens, malformed), text

    def _without_stop(self, stop_text: str | None) -> str:
        at = self._pending.find(stop_text) if stop_text is not None else -1
        if stop_text is None or at < 0:
            return self._pending
        return self._pending[: at + (len(CALL_END) if self._tools and stop_text == CALL_END else 0)]

    def _emit(self, pieces: Sequence[_Piece]) -> TextDelta:
        reasoning = "".join(text for kind, text in pieces if kind == "reasoning")
        content = "".join(text for kind, text in pieces if kind == "content")
        self._reasoning.append(reasoning)
        self._content.append(content)
        return TextDelta(reasoning, content)

    def _reasoning_tokens(self) -> int:
        """Sampled tokens up to the end of the reasoning, which may never have come."""
        if self._forced_end is not None:
            return self._forced_end
        mark, ids = self._tokenizer.encode(THINK_END), self._sampled_ids
        return next((i + len(mark) for i in range(len(ids)) if ids[i : i + len(mark)] == mark), len(ids))


_Kind = Literal["reasoning", "content"]
_Piece = tuple[_Kind, str]


class _ReplySplitter:
    """Tells reasoning, content and tool calls apart in text that comes piece by piece.

    reasoned: whether there was any reasoning.
    """

    def __init__(
        self, family: Family, tools: Tools, *, in_reasoning: bool, must_call: tuple[str, ...], json: bool
    ) -> None:
        self._family = family
        self._tools = tools
        self._must_call = must_call
        self._json = json
        self.reasoned = in_reasoning
        # "start": the text may yet begin with reasoning. "calls": what is held may be a call.
        self._state: Literal["start", "reasoning", "content", "calls"] = "reasoning" if in_reasoning else "start"
        self._held = ""
        self._at_start = True  # nothing of the reasoning, or of the content after it, was given out yet

    @property
    def in_calls(self) -> bool:
        """Whether the text has come to what begins like a tool call."""
        return self._state == "calls"

    def feed(self, text: str) -> list[_Piece]:
        self._held += text
        pieces: list[_Piece] = []
        if self._state == "start":
            self._split_start()
        if self._state == "reasoning":
            pieces += self._split_reasoning()
        if self._state == "content":
            pieces += self._split_content()
        return pieces

    def close(self) -> tuple[list[_Piece], list[ReadCall]]:
        """What was held back, and the calls."""
        if self._state == "reasoning":
            return [("reasoning", self._unpadded().rstrip("\n"))], []
        if self._state != "calls":
            return [("content", self._held)], []
        text, format = self._held.lstrip(), self._family.calls
        if self._must_call:
            calls, rest = format.read_forced(text, self._tools, self._must_call)
        else:
            calls, rest = format.read(text, self._tools), ""
        return ([("content", rest)], calls) if calls else ([("content", self._held)], [])

    def _split_start(self) -> None:
        begun = self._held.lstrip()
        if self._family.thinks and begun.startswith(THINK):
            self._state, self.reasoned, self._held = "reasoning", True, begun[len(THINK) :]
        elif not (self._family.thinks and THINK.startswith(begun)):
            self._state = "content"

    def _split_reasoning(self) -> list[_Piece]:
        text = self._unpadded()
        end = text.find(THINK_END)
        if end >= 0:
            self._state, self._held, self._at_start = "content", text[end + len(THINK_END) :], True
            return [("reasoning", text[:end].rstrip("\n"))]
        # Newlines before the end are not part of the reasoning.
        certain = text[: len(text) - _overlap(text, THINK_END)].rstrip("\n")
        self._held = text[len(certain) :]
        self._at_start = self._at_start and not certain
        return [("reasoning", certain)]

    def _split_content(self) -> list[_Piece]:
        text = self._unpadded() if self.reasoned else self._held
        certain = text
        if self._json and not CALL_START.startswith(text.lstrip()[: len(CALL_START)]):
            self._tools = ()  # it has begun with the JSON
        if self._tools:
            marks = self._family.calls.marks
            found = [at for at in (text.find(mark) for mark in marks) if at >= 0]
            if found:
                self._state = "calls"
            end = min(found) if found else len(text) - max(_overlap(text, mark) for mark in marks)
            # White space before a call is not content.
            certain = text[:end].rstrip()
        self._held = text[len(certain) :]
        self._at_start = self._at_start and not certain
        return [("content", certain)]

    def _unpadded(self) -> str:
        return self._held.lstrip("\n") if self._at_start else self._held


class _StreamDecoder:
    """Text from token ids that come piece by piece: whole characters, for a token may hold a part of one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # some decoders treat the first token of a text otherwise
        self._ids: list[int] = []

    def feed(self, ids: Sequence[int]) -> str:
        self._ids += ids
        text = self._new_text()
        if text.endswith("\ufffd"):
            return ""
        self._before, self._ids = self._ids[-4:] or self._before, []
        return text

    def rest(self) -> str:
        return self._new_text()

    def _new_text(self) -> str:
        if not self._ids:
            return ""
        known = len(self._tokenizer.decode(self._before)) if self._before else 0
        return self._tokenizer.decode([*self._before, *self._ids])[known:]


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(read_json(arguments), dict)
    except BadJson:
        return False


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    longest = min(len(mark) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
