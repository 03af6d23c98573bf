"""Reads a reply, as its text arrives: reasoning, content and tool calls.

A family has a grammar of its own, a generator over a `TextSource`. Invariants: the pieces in which a text arrives
change nothing; text is given out as soon as no later text can change it; a call that is malformed or cut off is
content, and the text after it is read on; no text is refused, and the time grows with its length.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from synth.chat.json_text import BadJson, read_json, write_json
from synth.chat.marks import THINK, THINK_END
from synth.chat.replies.source import Reading, TextSource
from synth.chat.tools import Tools, as_object, functions_of

Kind = Literal["reasoning", "content"]
Piece = tuple[Kind, str]
#: The place at which a reply begins, by its prompt: before all of it, inside its reasoning, or inside its content.
Opening = Literal["", "reasoning", "content"]


class ReadCall(NamedTuple):
    """One tool call. arguments: JSON text, as in the OpenAI API. id: the one that the model wrote, if any."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a family writes a tool call.

    marks: texts with which one may begin. before_name, after_name: the texts around its function's name, up to its
    arguments. name_end: the text that follows a name and cannot be in it. after_arguments: ends a call after its
    arguments. later: stands before the name in a call after the first. closing: ends the calls of a reply. xml: whether
    arguments are a parameter each, not JSON. alone: whether a call ends its turn. id_length: of the ids that its
    templates accept; None: any.
    """

    marks: tuple[str, ...]
    before_name: str
    after_name: str
    name_end: str
    after_arguments: str
    later: str = ""
    closing: str = ""
    xml: bool = False
    alone: bool = False
    id_length: int | None = None

    @property
    def ending(self) -> str:
        """The text that ends a call within a reply; a control token that ends the turn is not part of the grammar."""
        return "" if self.alone else self.after_arguments

    def cut_off(self, text: str, names: Sequence[str]) -> ReadCall | None:
        """Read a call that was begun for the model and has no end: its arguments are the text that the model wrote."""
        body = text.removeprefix(self.before_name)
        name = next((name for name in names if body.startswith(name + self.after_name)), None)
        if name is None or body == text:
            return None
        written = body[len(name + self.after_name) :].strip()
        try:
            whole = json.JSONDecoder().raw_decode(written)[1]
        except (ValueError, RecursionError):
            return ReadCall(name, written)
        return ReadCall(name, written[:whole])


class ReplyReader:
    """Reads one reply; a family without readable calls has no `syntax`.

    opening: see `Opening`. must_call: the functions of which the reply was made to call one; such a call is read even
    if it is cut off. json: whether the content is JSON, in whose strings a call is text.
    calls: the complete ones. malformed: whether there was one that could not be read.
    unclosed: whether the calls so far lack their `closing`. reasoned: whether there was any reasoning.
    """

    syntax: CallSyntax | None = None
    thinks = False
    reasoning_end = THINK_END

    def __init__(
        self, tools: Tools = (), *, opening: Opening = "", must_call: Sequence[str] = (), json: bool = False
    ) -> None:
        self.calls: list[ReadCall] = []
        self.malformed = self.unclosed = False
        self.reasoned = opening == "reasoning"
        self._source = TextSource()
        self._tools = functions_of(tools)
        self._opening = opening
        self._must_call = must_call
        self._json = json
        self._pieces: list[Piece] = []
        self._content = False  # whether any content was given out
        self._after_call = 0  # the end of the last complete call
        self._running = self._reply()

    @classmethod
    def opening(cls, prompt: str) -> Opening:
        """Return the place at which a reply begins, by the end of its prompt's text."""
        return "reasoning" if cls.thinks and prompt.rstrip().endswith(THINK) else ""

    def feed(self, text: str) -> list[Piece]:
        """Read more text; return the parts that are certain now."""
        self._source.text += text
        return self._advance()

    def close(self) -> list[Piece]:
        """Read to the end; returns the text that was held back."""
        self._source.ended = True
        return self._advance()

    def _advance(self) -> list[Piece]:
        next(self._running, None)
        pieces, self._pieces = self._pieces, []
        return pieces

    def _reply(self) -> Reading[None]:
        """Read the whole reply: reasoning if the family thinks, then content and calls."""
        source = self._source
        if self.thinks and self._opening == "":
            yield from source.space()
            if (yield from source.takes(THINK)):
                self.reasoned = True
            else:
                source.at = 0
        if self.reasoned:
            mark = yield from self._stream("reasoning", (THINK_END,), start="\n", end="\n")
            if mark < 0:
                return
            source.at = mark + len(THINK_END)
        yield from self._content_and_calls()

    def _content_and_calls(self) -> Reading[None]:
        source, marks = self._source, self.syntax.marks if self.syntax and self._tools else ()
        if self._json and marks:
            at = source.at
            yield from source.space()
            # If it does not begin with a call it is the JSON.
            marks = marks if (yield from source.takes(*marks)) else ()
            source.at = at
        start = "\n" if self.reasoned else ""
        while True:
            mark = yield from self._stream("content", marks, start=start, end=None if marks else "")
            if mark < 0:
                return
            begin, source.at, self._after_call = source.at, mark, 0
            if not (yield from self._calls()):
                self._no_call(max(begin, self._after_call), mark)
            start = "" if self._content else None

    def _no_call(self, begin: int, mark: int) -> None:
        """Give out the text of a call that cannot be read as content, or as the call that was forced."""
        source = self._source
        if source.ended and self._must_call and not self.calls and self.syntax:
            call = self.syntax.cut_off(source.text[mark:], self._must_call)
            if self._call(call):
                source.at = len(source.text)
                return
        self.malformed = True
        self._say("content", source.text[begin : source.at])

    def _calls(self) -> Reading[bool]:
        """Read the calls that begin with the mark that comes next. False: there is none, or not a whole one."""
        yield from ()
        return False

    def _call(self, call: ReadCall | None) -> bool:
        """Keep a complete call."""
        if call is None or not _can_be_sent(call):
            return False
        self.calls.append(call)
        self._after_call = self._source.at
        return True

    def _stream(
        self, kind: Kind, marks: Sequence[str], *, start: str | None = "", end: str | None = ""
    ) -> Reading[int]:
        """Give out text up to the first mark; returns its position, or -1 if the text ended.

        start: characters that are left out at the beginning, end: those before the mark; None: all white space. The
        text that is left out before the mark is not read yet.
        """
        source, begun, scanned = self._source, start == "", 0
        while True:
            if not begun:
                rest = source.text[source.at :]
                source.at += len(rest) - len(rest.lstrip(start))
                begun = source.at < len(source.text)
            scanned = max(scanned, source.at)
            hits = [at for at in (source.text.find(mark, scanned) for mark in marks) if at >= 0]
            mark = min(hits, default=-1)
            if mark >= 0:
                until = mark
            else:
                until = len(source.text) - (0 if source.ended else _overlap(source.text, source.at, marks))
            text = source.text[source.at : until]
            dropped = end != "" and not (source.ended and mark < 0 and kind == "content" and not self.calls)
            certain = text.rstrip(end) if dropped else text
            self._say(kind, certain)
            source.at += len(certain)
            if mark >= 0 or source.ended:
                return mark
            scanned = until
            shift = source.at
            source.drop()
            scanned -= shift
            yield

    def _say(self, kind: Kind, text: str) -> None:
        if text:
            self._content = self._content or kind == "content"
            self._pieces.append((kind, text))


def json_call(text: str | None, arguments: Sequence[str]) -> ReadCall | None:
    """Read the JSON object of a call. arguments: the names under which its arguments may stand."""
    try:
        call = as_object(read_json(text or ""))
        values: list[Any] = [call[key] for key in arguments if key in call]
        value: Any = values[0] if values else dict[str, Any]()
        name, id = call.get("name"), call.get("id")
        spelled = value if isinstance(value, str) else write_json(value)
    except BadJson:
        return None
    return ReadCall(name, spelled, id if isinstance(id, str) and id else None) if isinstance(name, str) else None


def _can_be_sent(call: ReadCall) -> bool:
    """Return whether a call is valid text: JSON escapes can spell half of a surrogate pair."""
    try:
        "".join((call.name, call.arguments, call.id or "")).encode()
    except UnicodeEncodeError:
        return False
    return True


def _overlap(text: str, at: int, marks: Sequence[str]) -> int:
    """Return how many characters at the end of the text may be the beginning of a mark."""
    room = len(text) - at
    return max(
        (next((n for n in range(min(len(mark) - 1, room), 0, -1) if text.endswith(mark[:n])), 0) for mark in marks),
        default=0,
    )
