"""From the tokens of a reply, as they come, to what it says: thoughts, content, tool calls.

Invariants: whole and streamed replies are read by the same code, and their parts joined are the same, however the
tokens were cut; text is given out once no later token can change it; whatever a model says is read, never refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from synth.inference.chat.families import CALL_END, THINK, THINK_END, Family, ReadCall, Tools
from synth.inference.chat.generation import Part
from synth.inference.chat.prompts import FunctionCall, Message, ToolCall
from synth.inference.tokenizers import Tokenizer


class Fresh(NamedTuple):
    """Text that has become certain."""

    thoughts: str = ""
    content: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said. finish_reason: OpenAI's word. thought_tokens: sampled ones among the thoughts."""

    message: Message
    finish_reason: str
    thought_tokens: int


class ReplyReader:
    """Reads one reply. in_thoughts: whether its prompt ends in open thoughts. stop: what may have to be cut off."""

    def __init__(
        self, tokenizer: Tokenizer, family: Family, *, in_thoughts: bool, tools: Tools, stop: tuple[str, ...]
    ) -> None:
        self._tokenizer = tokenizer
        self._text = _Decoder(tokenizer)
        self._uncut = ""
        self._stop = stop
        self._tools = tools
        self._split = _Splitter(family, tools, in_thoughts=in_thoughts)
        self._thoughts: list[str] = []
        self._content: list[str] = []
        self._sampled_ids: list[int] = []
        self._forced_end: int | None = None

    def more(self, part: Part) -> Fresh:
        """What has become certain with these tokens. Of the last part the stop string is cut off."""
        fresh = self._text.more(part.token_ids)
        if part.sampled:
            self._sampled_ids += part.token_ids
        elif self._forced_end is None and THINK_END in self._tokenizer.decode(part.token_ids):
            self._forced_end = len(self._sampled_ids)
        if part.finish_reason is not None:
            self._uncut += fresh + self._text.rest()
            certain, self._uncut = self._without_stop(part.stop_text), ""
        elif not part.sampled:
            # The engine looks for stop strings in what it samples, and nowhere else.
            certain, self._uncut = self._uncut + fresh, ""
        else:
            self._uncut += fresh
            held = max((_overlap(self._uncut, stop) for stop in self._stop), default=0)
            certain = self._uncut[: len(self._uncut) - held]
            self._uncut = self._uncut[len(certain) :]
        return self._give(self._split.more(certain))

    def close(self, finish_reason: str) -> tuple[Reply, Fresh]:
        """The whole reply, and what of its text was held back until now."""
        rest, read = self._split.close()
        fresh = self._give(rest)
        calls = [
            ToolCall(id=f"call_{secrets.token_hex(12)}", function=FunctionCall(name=name, arguments=arguments))
            for name, arguments in read
        ]
        content, thoughts = "".join(self._content), "".join(self._thoughts)
        message = Message(
            role="assistant",
            content=None if calls and not content else content,
            tool_calls=calls or None,
            reasoning_content=thoughts or None,
        )
        finish = "tool_calls" if calls and finish_reason == "stop" else finish_reason
        return Reply(message, finish, self._thought_tokens() if self._split.thought else 0), fresh

    def _without_stop(self, stop_text: str | None) -> str:
        at = self._uncut.find(stop_text) if stop_text is not None else -1
        if stop_text is None or at < 0:
            return self._uncut
        return self._uncut[: at + (len(CALL_END) if self._tools and stop_text == CALL_END else 0)]

    def _give(self, pieces: Sequence[_Piece]) -> Fresh:
        thoughts = "".join(text for kind, text in pieces if kind == "thoughts")
        content = "".join(text for kind, text in pieces if kind == "content")
        self._thoughts.append(thoughts)
        self._content.append(content)
        return Fresh(thoughts, content)

    def _thought_tokens(self) -> int:
        """Sampled tokens up to the end of the thoughts, which may never have come."""
        if self._forced_end is not None:
            return self._forced_end
        mark, ids = self._tokenizer.encode(THINK_END), self._sampled_ids
        return next((i + len(mark) for i in range(len(ids)) if ids[i : i + len(mark)] == mark), len(ids))


_Kind = Literal["thoughts", "content"]
_Piece = tuple[_Kind, str]


class _Splitter:
    """Tells thoughts, content and tool calls apart in text that comes piece by piece.

    thought: whether there were thoughts.
    """

    def __init__(self, family: Family, tools: Tools, *, in_thoughts: bool) -> None:
        self._family = family
        self._tools = tools
        self.thought = in_thoughts
        # "start": the text may yet begin with thoughts. "calls": it has come to what may be a call.
        self._at: Literal["start", "thoughts", "content", "calls"] = "thoughts" if in_thoughts else "start"
        self._held = ""
        self._blank = True  # nothing of the thoughts, or of what follows them, was given out yet

    def more(self, text: str) -> list[_Piece]:
        self._held += text
        pieces: list[_Piece] = []
        if self._at == "start":
            self._begin()
        if self._at == "thoughts":
            pieces += self._think()
        if self._at == "content":
            pieces += self._speak()
        return pieces

    def close(self) -> tuple[list[_Piece], list[ReadCall]]:
        """What was held back, and the calls."""
        if self._at == "thoughts":
            return [("thoughts", self._unpadded().rstrip("\n"))], []
        calls = self._family.calls.read(self._held.lstrip(), self._tools) if self._at == "calls" else []
        return ([], calls) if calls else ([("content", self._held)], [])

    def _begin(self) -> None:
        begun = self._held.lstrip()
        if self._family.thinks and begun.startswith(THINK):
            self._at, self.thought, self._held = "thoughts", True, begun[len(THINK) :]
        elif not (self._family.thinks and THINK.startswith(begun)):
            self._at = "content"

    def _think(self) -> list[_Piece]:
        text = self._unpadded()
        end = text.find(THINK_END)
        if end >= 0:
            self._at, self._held, self._blank = "content", text[end + len(THINK_END) :], True
            return [("thoughts", text[:end].rstrip("\n"))]
        # Newlines before the end are not part of the thoughts.
        certain = text[: len(text) - _overlap(text, THINK_END)].rstrip("\n")
        self._held = text[len(certain) :]
        self._blank = self._blank and not certain
        return [("thoughts", certain)]

    def _speak(self) -> list[_Piece]:
        text = self._unpadded() if self.thought else self._held
        certain = text
        if self._tools:
            marks = self._family.calls.marks
            found = [at for at in (text.find(mark) for mark in marks) if at >= 0]
            if found:
                self._at = "calls"
            end = min(found) if found else len(text) - max(_overlap(text, mark) for mark in marks)
            # White space before a call is not content.
            certain = text[:end].rstrip()
        self._held = text[len(certain) :]
        self._blank = self._blank and not certain
        return [("content", certain)]

    def _unpadded(self) -> str:
        return self._held.lstrip("\n") if self._blank else self._held


class _Decoder:
    """Text from token ids that come piece by piece: whole characters, for a token may hold a part of one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # some decoders treat the first token of a text otherwise
        self._ids: list[int] = []

    def more(self, ids: Sequence[int]) -> str:
        self._ids += ids
        text = self._fresh()
        if text.endswith("\ufffd"):
            return ""
        self._before, self._ids = self._ids[-4:] or self._before, []
        return text

    def rest(self) -> str:
        return self._fresh()

    def _fresh(self) -> str:
        if not self._ids:
            return ""
        known = len(self._tokenizer.decode(self._before)) if self._before else 0
        return self._tokenizer.decode([*self._before, *self._ids])[known:]


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    longest = min(len(mark) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
