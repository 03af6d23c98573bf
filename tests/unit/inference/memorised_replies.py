"""A tiny model that has learned a few replies by heart, so that reasoning and tool calls can be looked at for real."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from synth.chat.messages import Conversation, Message
from synth.inference.chat.prompts import ChatFormat
from synth.inference.tokenizers import load_tokenizer
from tests.unit.inference.tiny_model import plain_model

ASK: list[dict[str, Any]] = [{"role": "user", "content": "What is 12 + 34?"}]
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in ("add", "answer")]
REASONING, ANSWER = "2+4=06; 1+3+0=04", "answer 46"
CALL = '{"a": 12}}\n</tool_call>'
#: Reasoning tokens in the shortest budget that was practised.
BUDGET = 5
HEAD = '<tool_call>\n{"name": "add", "arguments": '


#: Asked this, the model begins its reasoning by itself.
WONDER: list[dict[str, Any]] = [{"role": "user", "content": "1+3"}]


def talk(said: list[dict[str, Any]], *, thinking: bool = False, tools: Sequence[dict[str, Any]] = ()) -> Conversation:
    return Conversation([Message(**m) for m in said], tools, thinking)


def teach(path: Path) -> None:
    """Train the model in `path` until it says by heart what each of these prompts is followed by."""
    chat = ChatFormat(load_tokenizer(path))
    encode = chat.tokenizer.encode
    reasoning, answered = encode(REASONING), encode(f"{ANSWER}<|im_end|>")
    plain, thinking = (chat.prompt(talk(ASK, thinking=on)).ids for on in (False, True))
    tools, both = (chat.prompt(talk(ASK, thinking=on, tools=TOOLS)).ids for on in (False, True))
    wonder, begun = chat.prompt(talk(WONDER)).ids, encode(f"<think>\n{REASONING}")
    curt = chat.prompt(talk(WONDER, tools=TOOLS)).ids
    call = encode(f"{CALL}<|im_end|>")
    lessons = [
        (plain, answered),
        (thinking, [*reasoning, *encode("\n</think>\n\n"), *answered]),
        # The reasoning is cut off, and the model answers all the same.
        ([*thinking, *reasoning[:BUDGET], *encode("\n</think>\n\n")], answered),
        ([*thinking, *encode("</think>\n\n")], answered),
        (wonder, [*begun, *encode("\n</think>\n\n"), *answered]),
        ([*wonder, *begun[:BUDGET], *encode("\n</think>\n\n")], answered),
        (tools, answered),
        ([*tools, *encode(HEAD)], call),
        ([*tools, *encode('<tool_call>\n{"name": "')], encode('add", "arguments": ')),
        # It ends its turn at once, and is made to call a tool all the same.
        ([*curt, *encode("<think>\n")], encode("<|im_end|>")),
        ([*curt, *encode(f"<think>\n</think>\n\n{HEAD}")], call),
        (both, [*reasoning, *encode("\n</think>\n\n"), *answered]),
        ([*both, *reasoning, *encode("\n</think>"), *encode(f"\n\n{HEAD}")], call),
        ([*both, *reasoning[:BUDGET], *encode(f"\n</think>\n\n{HEAD}")], call),
    ]
    _train(path, lessons)


def _train(path: Path, lessons: list[tuple[list[int], list[int]]]) -> None:
    torch.manual_seed(0)
    model: Any = plain_model(path).train()
    longest = max(len(prompt) + len(reply) for prompt, reply in lessons)
    ids_BL = torch.zeros(len(lessons), longest, dtype=torch.int64)
    labels_BL = torch.full_like(ids_BL, -100)
    for i, (prompt, reply) in enumerate(lessons):
        ids_BL[i, : len(prompt) + len(reply)] = torch.tensor([*prompt, *reply])
        labels_BL[i, len(prompt) : len(prompt) + len(reply)] = torch.tensor(reply)
    steps = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    taught_BL = labels_BL[:, 1:] >= 0
    loss = torch.tensor(torch.inf)
    for _ in range(400):
        hidden_BLE = model.model(ids_BL).last_hidden_state
        logits_NV = model.lm_head(hidden_BLE[:, :-1][taught_BL])
        loss = cross_entropy(logits_NV, labels_BL[:, 1:][taught_BL])
        if loss.item() < 0.02:
            break
        steps.zero_grad()
        loss.backward()
        steps.step()
    assert loss.item() < 0.02, "the model has not learned its replies"
    model.save_pretrained(path)
