"""gpt-oss's replies: messages with a header that names their channel, and a tool if they call one."""

from __future__ import annotations

import re

from synth.chat.json_text import BadJson, read_json
from synth.chat.replies.reader import CallSyntax, Kind, Opening, ReadCall, ReplyReader
from synth.chat.replies.source import Reading

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
CONSTRAIN, CALL = "<|constrain|>", "<|call|>"
#: Control tokens that stand within a reply. `<|call|>` and `<|return|>` end it.
MARKS = (START, CHANNEL, MESSAGE, END, CONSTRAIN)

_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
# A header that was cut off, in which nothing was written yet.
_CUT_OFF = re.compile(r"(<\|start\|>)?\w*(<\|channel\|>\w*)?\s*(<\|constrain\|>\w*)?(<\|?\w*)?")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyReader(ReplyReader):
    """`<|channel|>analysis<|message|>…<|end|>` is reasoning, and `final` content.

    `<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>` is a call. Text without a header
    is content.
    """

    syntax = CallSyntax(
        marks=(CHANNEL, START),
        before_name=f"{CHANNEL}commentary to=functions.",
        after_name=f" {CONSTRAIN}json{MESSAGE}",
        name_end=" ",
        after_arguments=CALL,
        alone=True,
    )

    reasoning_end = END

    @classmethod
    def opening(cls, prompt: str) -> Opening:
        """Return the place at which a reply begins, by the end of its prompt's text."""
        channel = _CHANNEL.search(prompt.rpartition(CHANNEL)[1] + prompt.rpartition(CHANNEL)[2])
        if not channel or not prompt.endswith(MESSAGE):
            return ""
        return "reasoning" if channel[1] == "analysis" else "content"

    def _reply(self) -> Reading[None]:
        source = self._source
        if self._opening:
            yield from self._body("reasoning" if self._opening == "reasoning" else "content")
        while True:
            at = source.at
            if not (yield from source.takes(START, CHANNEL, " to=", END)):
                # A message without a header, which may be empty.
                yield from self._body("content")
                if source.ended and source.at >= len(source.text):
                    return
                continue
            if source.text.startswith(END, at):
                continue
            source.at = at
            if not (yield from self._message()):
                return

    def _message(self) -> Reading[bool]:
        """Read a header and its message. False: the text ended."""
        source, at = self._source, self._source.at
        header = yield from source.up_to(MESSAGE)
        if header is None:
            if _RECIPIENT.search(source.text, at) or not _CUT_OFF.fullmatch(source.text, at):
                self._no_call(at, at)
            return False
        yield from source.takes(MESSAGE)
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient is None:
            yield from self._body("reasoning" if channel and channel[1] == "analysis" else "content")
        elif not (yield from self._arguments(recipient[1])):
            yield from source.up_to(END, START)
            self._no_call(at, at)
        return True

    def _arguments(self, name: str) -> Reading[bool]:
        """Read the arguments of a call; none before its end mark are an empty object."""
        source = self._source
        yield from source.space()
        if name not in self._tools:
            return False
        # A text that ends here was cut off: the arguments could still have followed.
        if (yield from source.takes(END, CALL)):
            return not self._must_call and self._call(ReadCall(name, "{}"))
        arguments = yield from source.json_object()
        try:
            read_json(arguments or "")
        except BadJson:
            return False
        yield from source.space()
        yield from source.takes(CALL, END)
        return self._call(ReadCall(name, arguments or ""))

    def _body(self, kind: Kind) -> Reading[None]:
        """Give out a message up to its end."""
        source = self._source
        if kind == "reasoning":
            if self.reasoned and self._said_reasoning:
                self._say("reasoning", "\n")
            self.reasoned = True
        mark = yield from self._stream(kind, (END, START))
        source.at = mark if mark >= 0 else len(source.text)
        self._said_reasoning = self._said_reasoning or kind == "reasoning"
        yield from source.takes(END)

    _said_reasoning = False
