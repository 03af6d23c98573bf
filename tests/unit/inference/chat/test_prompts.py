"""Prompts and replies: token-exact turns, tool calls, chunks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from synth.chat.messages import ContentPart, Conversation, Message, text_length
from synth.chat.template import TooManyTokens
from synth.errors import UserError
from synth.inference.api.limits import RequestLimits
from synth.inference.api.replies import ChunkWriter, ReplyOptions
from synth.inference.chat.generation import ReplyDelta
from synth.inference.chat.output_parser import ParsedReply, ReplyParser
from synth.inference.chat.prompts import ChatFormat, TokenHistory
from synth.inference.tokenizers import load_tokenizer
from tests.loop_gaps import LoopGaps, RecordProperty, check_gaps

CALL = '<tool_call>\n{"name":"move","arguments":{"x":1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "move"}}]


@pytest.fixture(scope="module")
def chat(model_dir: Path) -> ChatFormat:
    return ChatFormat(load_tokenizer(model_dir))


def said(chat: ChatFormat, text: str, *, ended: bool = True) -> list[int]:
    """Ids of a reply as a model might sample them: one byte-level token a character, never merged."""
    ids = [i for c in text for i in chat.tokenizer.encode(c)]
    return [*ids, chat.tokenizer.turn_end] if ended else ids


def reply_delta(ids: list[int], **more: Any) -> ReplyDelta:
    return ReplyDelta(ids, [-0.5] * len(ids), [0] * len(ids), **more)


def read(chat: ChatFormat, ids: list[int], *, tools: Any = (), stop: str | None = None) -> ParsedReply:
    parser = ReplyParser(chat.tokenizer, chat.family, tools=tools, stop=(stop,) if stop else ())
    parser.feed(reply_delta(ids, finish_reason="stop", stop_text=stop))
    return parser.close("stop")[0]


def turn(chat: ChatFormat, history: TokenHistory, talk: Conversation, ids: list[int]) -> tuple[list[int], Message]:
    prompt = chat.prompt(talk, history).ids
    reply = read(chat, ids, tools=talk.tools).message
    chat.remember(history, talk, reply, prompt, ids)
    return prompt, reply


def user(text: str) -> Message:
    return Message(role="user", content=text)


def test_a_prompt_is_the_templates_text(chat: ChatFormat) -> None:
    ids = chat.prompt(Conversation([user("What is 1 + 2?")])).ids
    text = "".join(chat.tokenizer.text_of(i) for i in ids)
    assert text == "<|im_start|>user\nWhat is 1 + 2?<|im_end|>\n<|im_start|>assistant\n"


def test_a_next_turn_keeps_the_sampled_ids_where_encoding_the_text_again_would_not(chat: ChatFormat) -> None:
    history, first = TokenHistory(), Conversation([user("What is 1 + 2?")])
    sampled = said(chat, "answer 46 at least")
    assert chat.tokenizer.encode("answer 46 at least") != sampled[:-1]

    prompt, reply = turn(chat, history, first, sampled)
    second = chat.prompt(Conversation([*first.messages, reply, user("Sure?")]), history).ids

    assert second[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    rest = "".join(chat.tokenizer.text_of(i) for i in second[len(prompt) + len(sampled) :])
    assert rest == "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    assert history.branch_breaks == 0


def test_a_reply_cut_by_length_gets_its_end_from_the_template(chat: ChatFormat) -> None:
    history, first = TokenHistory(), Conversation([user("hi")])
    sampled = said(chat, "answer 4", ended=False)
    prompt, reply = turn(chat, history, first, sampled)
    second = chat.prompt(Conversation([*first.messages, reply, user("go on")]), history).ids
    at = len(prompt) + len(sampled)
    assert second[:at] == [*prompt, *sampled]
    assert second[at] == chat.tokenizer.turn_end


def test_a_tool_call_turn_is_continued_although_the_template_spells_it_otherwise(chat: ChatFormat) -> None:
    history, first = TokenHistory(), Conversation([user("go")], TOOLS)
    sampled = said(chat, CALL)
    prompt, reply = turn(chat, history, first, sampled)
    assert reply.tool_calls
    result = Message(role="tool", content="moved", tool_call_id=reply.tool_calls[0].id)
    second = chat.prompt(Conversation([*first.messages, reply, result], TOOLS), history).ids
    assert second[: len(prompt) + len(sampled)] == [*prompt, *sampled]


def test_stripped_thinking_an_edited_history_and_other_tools_open_a_new_branch(chat: ChatFormat) -> None:
    history, first = TokenHistory(), Conversation([user("hi")])
    _, reply = turn(chat, history, first, said(chat, "<think>hm</think>yes"))
    stripped = Conversation([*first.messages, reply, user("and?")])
    assert chat.prompt(stripped, history).ids == chat.prompt(stripped).ids
    edited = Conversation([*first.messages, Message(role="assistant", content="no"), user("and?")])
    assert chat.prompt(edited, history).ids == chat.prompt(edited).ids
    other = Conversation([*first.messages, reply, user("and?")], TOOLS)
    assert chat.prompt(other, history).ids == chat.prompt(other).ids
    assert history.branch_breaks == 3


# What Qwen3's own template shows of a turn: its thoughts until the next question, an empty block where there are none.
QWEN3 = (
    "{%- set ns = namespace(last=0) %}"
    "{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{%- for m in messages %}<|im_start|>{{ m.role + '\n' }}"
    "{%- set text = m.content or '' %}{% set thoughts = '' %}"
    "{%- if '</think>' in text %}"
    "{%- set thoughts = text.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{%- if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or thoughts) %}"
    "<think>\n{{ thoughts }}\n</think>\n\n{% endif %}{{ text }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("name", [None, "reasoning_content", "reasoning"])
def test_reasoning_goes_on_to_the_next_call_as_the_template_has_it_whether_sent_back_or_not(
    model_dir: Path, name: str | None
) -> None:
    tokenizer = load_tokenizer(model_dir)
    tokenizer.full.chat_template = QWEN3
    chat = ChatFormat(tokenizer)
    history, first = TokenHistory(), Conversation([user("go")])
    sampled = said(chat, "<think>\nhm\n</think>\n\nI look.")
    prompt, reply = turn(chat, history, first, sampled)
    assert (reply.reasoning_text, reply.content) == ("hm", "I look.")
    reasoning: dict[str, Any] = {name: "hm"} if name else {}
    back = Message(role="assistant", content="I look.", **reasoning)
    found = [*first.messages, back, Message(role="tool", content="a wall")]

    second = chat.prompt(Conversation(found), history).ids
    assert second[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    assert history.branch_breaks == 0
    asked = Conversation([*found, user("and now?")])
    assert "hm" not in chat.tokenizer.decode(chat.prompt(asked, history).ids)
    other = [*first.messages, Message(role="assistant", content="I look.", reasoning="no"), found[-1]]
    assert "no" in chat.tokenizer.decode(chat.prompt(Conversation(other), history).ids)
    assert history.branch_breaks == 2


def test_a_part_that_is_not_text_is_refused_at_its_place(chat: ChatFormat) -> None:
    message = Message(role="user", content=[ContentPart(type="text", text="a"), ContentPart(type="image_url")])
    with pytest.raises(UserError) as caught:
        chat.prompt(Conversation([user("x"), message]))
    assert caught.value.problems[0].where == "messages[1].content[1].type"


def test_tool_calls_are_read_from_the_text(chat: ChatFormat) -> None:
    reply = read(chat, said(chat, f"I move.\n{CALL}\n{CALL}"), tools=TOOLS)
    assert reply.finish_reason == "tool_calls"
    assert reply.message.content == "I move."
    assert reply.message.tool_calls is not None
    assert [(c.called.name, c.called.arguments) for c in reply.message.tool_calls] == [("move", '{"x": 1}')] * 2


@pytest.mark.parametrize("text", ["<tool_call>{bad}</tool_call>", "<tool_call>\n{}\n</tool_call>", "plain", CALL[:-5]])
def test_what_is_no_tool_call_stays_text(chat: ChatFormat, text: str) -> None:
    reply = read(chat, said(chat, text), tools=TOOLS)
    assert (reply.message.content, reply.message.tool_calls, reply.finish_reason) == (text, None, "stop")


def test_a_stop_string_is_cut_from_the_text(chat: ChatFormat) -> None:
    ids = said(chat, "one two", ended=False)
    reply = read(chat, ids, stop=" t")
    assert reply.message.content == "one"


@pytest.mark.parametrize(
    ("text", "tools", "stop"),
    [
        ("plain words", False, ()),
        ("naïve 日本 🙂 text", False, ()),
        (f"Moving. \n{CALL}", True, ()),
        ("a < b <tool is no call", True, ()),
        ("up to the STOP", False, ("STOP",)),
        ("an ST is not it", False, ("STOP",)),
        ("<tool_call>{bad}</tool_call>", True, ()),
    ],
)
def test_chunks_joined_are_the_whole_reply(chat: ChatFormat, text: str, tools: bool, stop: tuple[str, ...]) -> None:
    ids = said(chat, text, ended=not stop)
    hit = next((s for s in stop if s in text), None)
    offered, shape = TOOLS if tools else [], ReplyOptions("id", "m", logprobs=False, token_ids=False)
    writer = ChunkWriter(shape, chat.tokenizer)
    parser = ReplyParser(chat.tokenizer, chat.family, tools=offered, stop=stop)
    chunks: list[dict[str, Any]] = [writer.first_chunk()]
    for tokens in [*(reply_delta([i]) for i in ids[:-1]), reply_delta([ids[-1]], finish_reason="stop", stop_text=hit)]:
        chunks += writer.chunks(tokens, parser.feed(tokens))
    chunks += writer.last_chunks(*parser.close("stop"))
    whole = read(chat, ids, tools=offered, stop=hit)

    changes = [c["choices"][0]["delta"] for c in chunks]
    assert "".join(c.get("content", "") for c in changes) == (whole.message.content or "")
    assert "\ufffd" not in "".join(c.get("content", "") for c in changes)
    calls = [call["function"] for c in changes for call in c.get("tool_calls", [])]
    assert calls == [{"name": "move", "arguments": '{"x": 1}'}] * bool(whole.message.tool_calls)
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == [
        "tool_calls" if calls else "stop"
    ]


def test_a_reply_that_ended_with_its_first_call_keeps_it_and_can_be_continued(chat: ChatFormat) -> None:
    history, tools = TokenHistory(), [{"type": "function", "function": {"name": "move"}}]
    first = Conversation([user("go")], tools)
    prompt, sampled = chat.prompt(first, history).ids, said(chat, f"I move.\n{CALL}", ended=False)
    reply = read(chat, sampled, tools=tools, stop="</tool_call>")
    assert reply.finish_reason == "tool_calls"
    assert [c.called.name for c in reply.message.tool_calls or ()] == ["move"]
    chat.remember(history, first, reply.message, prompt, sampled)
    result = Message(role="tool", content="done")
    following = chat.prompt(Conversation([user("go"), reply.message, result], tools), history).ids
    assert following[: len(prompt) + len(sampled)] == prompt + sampled
    assert following[len(prompt) + len(sampled)] == chat.tokenizer.turn_end
    assert history.branch_breaks == 0


async def test_a_long_prompt_does_not_hold_the_event_loop(chat: ChatFormat, record_property: RecordProperty):
    async with LoopGaps() as gaps:
        prompt = await asyncio.to_thread(chat.prompt, Conversation([user("word " * 40_000)]))
    assert len(prompt.ids) > 40_000
    gaps.check(record_property, "inference", "a prompt of 200 kB")


def test_texts_of_too_many_characters_are_refused_before_they_are_rendered(chat: ChatFormat):
    talk = Conversation([user("ab " * 100), Message(role="assistant", reasoning="c" * 50)], TOOLS)
    assert chat.prompt(talk, most_characters=1000).ids
    with pytest.raises(UserError, match=r"at most 300 \(SYNTH_MAX_PROMPT_CHARACTERS\)"):
        chat.prompt(talk, most_characters=300)
    for more in (user("a" * 700), Message(role="user", content=[ContentPart(type="text", text="a" * 700)])):
        with pytest.raises(UserError, match="SYNTH_MAX_PROMPT_CHARACTERS"):
            chat.prompt(Conversation([*talk.messages, more]), most_characters=1000)


def test_texts_that_certainly_have_too_many_tokens_overflow_the_context(chat: ChatFormat):
    with pytest.raises(TooManyTokens) as refused:
        chat.prompt(Conversation([user("a" * 100_000)]), most=100, most_characters=1000)
    assert 100 < refused.value.tokens < 100_000


def test_images_are_no_characters():
    image = ContentPart(type="image_url", image_url="data:image/png;base64," + "A" * 10_000)
    assert text_length(Conversation([Message(role="user", content=[image, ContentPart(type="text", text="abc")])])) < 20


async def test_the_longest_text_does_not_hold_the_event_loop(chat: ChatFormat, record_property: RecordProperty):
    most = RequestLimits().characters
    # One wide character makes each character of the text four bytes.
    talk = Conversation([user("\U0001f600" + "<|im_start|>" * (most // 12 - 1))])

    async def refuse() -> None:
        with pytest.raises(TooManyTokens):
            await asyncio.to_thread(chat.prompt, talk, most=4095, most_characters=most)

    await check_gaps(refuse, record_property, "inference", "a text of the most characters")
