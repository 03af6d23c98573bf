"""How the families of models write reasoning and tool calls, and how both are read. One table, at the end.

A model writes what its chat template taught it, so the template decides to which family a model belongs: a finetune
keeps it under any name.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from synth.chat.marks import THINK, THINK_END
from synth.chat.replies import harmony
from synth.chat.replies.json_calls import BareReader, ListReader, MarkedReader, NamedReader, ThinkingMarkedReader
from synth.chat.replies.reader import CallSyntax, ReplyReader
from synth.chat.replies.xml_calls import ThinkingXmlReader, XmlReader


@dataclass(frozen=True, slots=True)
class Family:
    """One family of models. reader: the grammar of its replies. marks: control tokens that the grammar reads."""

    name: str
    reader: type[ReplyReader]
    marks: tuple[str, ...] = ()

    @property
    def thinks(self) -> bool:
        """Whether replies may begin with reasoning between `<think>` and `</think>`."""
        return self.reader.thinks

    @property
    def one_text(self) -> bool:
        """Whether the template takes either reasoning or content beside a tool call."""
        return issubclass(self.reader, harmony.HarmonyReader)

    @property
    def calls(self) -> CallSyntax | None:
        """How it writes tool calls; None if its calls cannot be read."""
        return self.reader.syntax


class _PlainReader(ReplyReader):
    """Content alone."""


class _ThinkingReader(ReplyReader):
    """Content after reasoning."""

    thinks = True


class _HarmonyWithoutTools(harmony.HarmonyReader):
    """Channels, of a template that shows no tools."""

    syntax = None


_BRACKETS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

#: The texts that a template of a family contains; the first family that matches is used. Call syntaxes: docs/models.md.
FAMILIES: tuple[tuple[tuple[str, ...], Family], ...] = (
    ((harmony.CHANNEL, harmony.MESSAGE, "functions."), Family("gpt-oss", harmony.HarmonyReader, harmony.MARKS)),
    ((harmony.CHANNEL, harmony.MESSAGE), Family("harmony", _HarmonyWithoutTools, harmony.MARKS)),
    (("[TOOL_CALLS]", "[ARGS]"), Family("mistral", NamedReader, _BRACKETS)),
    (("[TOOL_CALLS]",), Family("mistral-v3", ListReader, _BRACKETS)),
    # A coder's calls after reasoning.
    (("<function=", THINK_END), Family("qwen3.5", ThinkingXmlReader)),
    (("<function=",), Family("qwen3-coder", XmlReader)),
    # Qwen3 and Qwen3-VL alike; the instruct models of both have no reasoning in their templates.
    (("<tool_call>", THINK_END), Family("qwen3", ThinkingMarkedReader)),
    # Qwen2.5, Qwen3-Instruct-2507, Qwen3-VL-Instruct, Hermes.
    (("<tool_call>",), Family("qwen2.5", MarkedReader)),
    (("<|start_header_id|>", '"parameters": ', "tool_calls"), Family("llama3", BareReader)),
    ((THINK_END,), Family("thinking", _ThinkingReader)),
    ((), Family("plain", _PlainReader)),
)


def always_thinks(template: str) -> bool:
    """Return whether each reply begins inside its reasoning, for any request, by the model's chat template."""
    _, variable, opening = template.rpartition("add_generation_prompt")
    return bool(variable) and THINK in opening and "enable_thinking" not in template


@functools.lru_cache(maxsize=64)
def family_of(template: str) -> Family:
    """Return the family of a model by its chat template."""
    return next(family for signs, family in FAMILIES if all(sign in template for sign in signs))
