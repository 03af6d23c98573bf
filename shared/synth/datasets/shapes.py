"""The shapes in which rows come: each gives its turns, and `row_rules` and `turns` do the same with all of them.

- messages: `{"messages": [{"role", "content", …}]}`, the OpenAI API's and Hugging Face's;
- ShareGPT: `{"conversations": [{"from": "human", "value": "…"}, …]}`, or `{"conversation": [{"human", "assistant"}]}`;
- a prompt and a reply: Alpaca's `instruction`, `input` and `output`, TRL's `prompt` and `completion`, ms-swift's
  `query` and `response`, `question` and `answer`; with `history` in front;
- pairs: `chosen` and `rejected` beside any prompt, `preferred_output` and `non_preferred_output` beside `input`,
  `rejected_response` or `rejected_messages` beside `messages` (`synth.datasets.pairs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from synth.datasets.columns import REFUSED, Columns
from synth.datasets.turns import BadRow, Turn, expect, is_empty, merge_calls, only, read_turn

MESSAGES = "messages"
SHAREGPT = "sharegpt"
OPENAI = "openai_preference"
CHOSEN_REJECTED = "chosen_rejected"

#: A prompt's key: the name of the shape, the key of the text that follows it as a paragraph, the keys of the reply.
_REPLIES = {
    "instruction": ("alpaca", "input", ("output", "response")),
    "prompt": ("prompt_completion", None, ("completion", "response")),
    "query": ("query_response", None, ("response",)),
    "question": ("question_answer", None, ("response", "answer")),
}
_CHOSEN = ("chosen", "chosen_response")
_REJECTED = ("rejected", "rejected_response", "rejected_messages")
_OPENAI = ("preferred_output", "non_preferred_output")
#: All keys that a shape reads, for hints at misspelled ones.
SHAPE_KEYS = frozenset(
    (
        *("messages", "conversations", "conversation", "input", "output", "history", "completion", "response"),
        *("instruction", "prompt", "query", *_CHOSEN, *_REJECTED, *_OPENAI),
    )
)
_KNOWN = (
    "messages, conversations (ShareGPT), instruction and output (Alpaca), prompt and completion, query and response, "
    "or prompt, chosen and rejected"
)


@dataclass
class Draft:
    """The turns of a row. place: the key of its conversation.

    chosen, rejected: the sides of a pair; None in a conversation. sides: their keys. context: how many turns, from the
    first on, are not learnt from. tools, parallel: those inside an OpenAI pair.
    """

    shape: str
    place: str
    messages: list[Turn]
    chosen: list[Turn] | None = None
    rejected: list[Turn] | None = None
    context: int = 0
    sides: tuple[str, str] = ("$.chosen", "$.rejected")
    tools: Any = None
    parallel: bool | None = None


def read_shape(columns: Columns) -> Draft:
    """Return the turns of a row. Raises `BadRow` for one in no shape, and for a turn that is wrong."""
    if columns.first(*_OPENAI):
        return _openai_pair(columns)
    if columns.first(*_CHOSEN, *_REJECTED):
        return _pair(columns)
    if columns.first("messages", "conversations", "conversation"):
        shape, place, turns = _conversation(columns)
        return Draft(shape, place, turns)
    return _prompt_and_reply(columns)


def _conversation(columns: Columns) -> tuple[str, str, list[Turn]]:
    name = columns.first("messages", "conversations", "conversation") or ""
    place = f"$.{name}"
    value: list[Any] = expect(columns.take(name), list, place)
    if name == "conversation" and all(isinstance(item, dict) and "role" not in item for item in value):
        return SHAREGPT, place, [turn for i, item in enumerate(value) for turn in _both(item, f"{place}[{i}]")]
    turns = _turns(value, place)
    # Hugging Face's chat datasets have the first question under `prompt` too.
    question = next((turn.message.get("content") for turn in turns if turn.role == "user"), None)
    if isinstance(question, str) and columns.data.get("prompt") == question:
        columns.take("prompt")
    return MESSAGES if name == "messages" else SHAREGPT, place, turns


def _both(item: dict[str, Any], place: str) -> list[Turn]:
    """Return the two turns of an element of ms-swift's `conversation`."""
    only(item, ("human", "assistant"), place, "an element of `conversation`")
    return [_text_turn(role, item.get(key), f"{place}.{key}") for key, role in (("human", "user"), ("assistant",) * 2)]


def _prompt_and_reply(columns: Columns) -> Draft:
    name = columns.first(*_REPLIES)
    other = columns.first(*REFUSED)
    if other is not None and (name is None or not columns.first(*_REPLIES[name][2])):
        raise BadRow(f"$.{other}", REFUSED[other])
    if name is None:
        replies = columns.first("completion", "output", "response")
        if replies:
            raise BadRow(
                "$", f"Object missing required field `{'prompt' if replies == 'completion' else 'instruction'}`"
            )
        names = ", ".join(repr(name[:40]) for name in list(columns.data)[:5])
        raise BadRow("$", f"a row of no known shape, with {names or 'no keys'}; expected {_KNOWN}")
    shape, more, replies = _REPLIES[name]
    reply = columns.first(*replies)
    if reply is None:
        raise BadRow("$", f"Object missing required field `{replies[0]}`; rows of prompts for a grader have `messages`")
    prompt, answer = _prompt(columns, name, more), _side(columns.take(reply), f"$.{reply}")
    # No message of a prompt is learnt; the replies of a history are.
    context = len(prompt) if isinstance(columns.data[name], list) else 0
    return Draft(shape, f"$.{name}", [*prompt, *answer], context=context)


def _prompt(columns: Columns, name: str, more: str | None) -> list[Turn]:
    """Return the turns of a prompt: of its history, and its own."""
    place, value = f"$.{name}", columns.take(name)
    if isinstance(value, list):
        return _turns(cast(list[Any], value), place)
    text: str = expect(value, str, place)
    if more is not None and not is_empty(extra := columns.take(more)):
        text = f"{text}\n\n{expect(extra, str, f'$.{more}')}"
    turns = list[Turn]()
    history = columns.take("history")
    for i, exchange in enumerate([] if history is None else expect(history, list, "$.history")):
        pair: list[Any] = expect(exchange, list, f"$.history[{i}]")
        if len(pair) != 2:
            raise BadRow(f"$.history[{i}]", f"{len(pair)} texts; expected a question and an answer")
        turns += [_text_turn(r, pair[k], f"$.history[{i}][{k}]") for k, r in enumerate(("user", "assistant"))]
    return [*turns, _text_turn("user", text, place)]


def _pair(columns: Columns) -> Draft:
    chosen, rejected = columns.first(*_CHOSEN), columns.first(*_REJECTED)
    if rejected is None:
        raise BadRow("$", "Object missing required field `rejected`")
    lost = _side(columns.take(rejected), f"$.{rejected}")
    place, prompt = "", list[Turn]()
    if columns.first("messages", "conversations", "conversation"):
        _, place, prompt = _conversation(columns)
    elif name := columns.first(*_REPLIES):
        place, prompt = f"$.{name}", _prompt(columns, name, _REPLIES[name][1])
    if chosen is not None:
        won = _side(columns.take(chosen), f"$.{chosen}")
    elif rejected == "rejected" or not place.endswith(("messages", "conversations", "conversation")):
        raise BadRow("$", "Object missing required field `chosen`")
    elif rejected == "rejected_messages":
        prompt, won = [], prompt
    else:
        # The conversation is the chosen one; the rejected value is another last reply.
        prompt, won = prompt[:-1], prompt[-1:]
    return Draft(CHOSEN_REJECTED, place, prompt, won, lost, sides=(f"$.{chosen}" if chosen else place, f"$.{rejected}"))


def _openai_pair(columns: Columns) -> Draft:
    for name in ("input", *_OPENAI):
        if not columns.holds(name):
            raise BadRow("$", f"Object missing required field `{name}`")
    table: dict[str, Any] = expect(columns.take("input"), dict, "$.input")
    only(table, ("messages", "tools", "parallel_tool_calls"), "$.input", "the input of a pair")
    place = "$.input.messages"
    messages = _turns(expect(table.get("messages"), list, place), place)
    won, lost = (_side(columns.take(name), f"$.{name}") for name in _OPENAI)
    sides = (f"$.{_OPENAI[0]}", f"$.{_OPENAI[1]}")
    parallel = table.get("parallel_tool_calls")
    if parallel is not None:
        expect(parallel, bool, "$.input.parallel_tool_calls")
    return Draft(OPENAI, place, messages, won, lost, sides=sides, tools=table.get("tools"), parallel=parallel)


def _side(value: Any, place: str) -> list[Turn]:
    """Return the turns of a reply: a text, a message, or messages."""
    if isinstance(value, list):
        return _turns(cast(list[Any], value), place)
    return [read_turn(value, place)] if isinstance(value, dict) else [_text_turn("assistant", value, place)]


def _turns(values: list[Any], place: str) -> list[Turn]:
    turns = [read_turn(value, f"{place}[{i}]") for i, value in enumerate(values)]
    return merge_calls(turns) if any(turn.calls for turn in turns) else turns


def _text_turn(role: str, text: Any, place: str) -> Turn:
    return Turn({"role": role, "content": expect(text, str, place)}, place, {"content": "", "role": ""})
