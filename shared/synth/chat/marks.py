"""The marks around reasoning and tool calls. A message that contains them as text keeps them unchanged."""

from __future__ import annotations

#: Reasoning stands between these two, at the beginning of a reply.
THINK, THINK_END = "<think>", "</think>"
#: Ends reasoning that reaches its budget; templates render the end of reasoning with the same text.
THINK_CLOSING = f"\n{THINK_END}\n\n"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"
#: Never escaped in a message, because a model's own words come back in messages.
MARKS = (CALL_START, CALL_END, THINK, THINK_END)
