"""The turns of a rollout by the Responses API continue the sampled tokens."""

from __future__ import annotations

from typing import Any

import pytest

from synth.inference.api.responses.items import ItemReader
from synth.inference.chat.output_parser import ReplyParser
from tests.unit.inference.one_model_service import Served, credential
from tests.unit.inference.responses.calls import ASK, FORCED, THINK, events_of, respond

RESENT = {
    "as it was": lambda items: items,
    "references": lambda items: [{"type": "item_reference", "id": item["id"]} for item in items],
    "reasoning by its id alone": lambda items: [
        {"type": "reasoning", "id": items[0]["id"], "summary": [], "content": []},
        *items[1:],
    ],
    "reasoning changed": lambda items: [
        {
            "type": "reasoning",
            "id": items[0]["id"],
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "?"}],
        },
        *items[1:],
    ],
    "sealed reasoning alone": lambda items: [
        {"type": "reasoning", "summary": [], "encrypted_content": items[0]["encrypted_content"]},
        *items[1:],
    ],
    "without reasoning": lambda items: items[1:],
    "arguments without spaces": lambda items: [
        items[0],
        *(
            {"type": "function_call", "call_id": c["call_id"], "name": c["name"], "arguments": '{"a":12}'}
            for c in items[1:]
        ),
    ],
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("how", RESENT)
async def test_a_second_turn_continues_the_sampled_tokens(served: Served, how: str, streamed: bool) -> None:
    served.router.sampling = type(served.router.sampling)(temperature=0.0, max_tokens=60, constrain_tools=True)
    cid = credential(f"job_1_t0_{list(RESENT).index(how)}")
    asked: dict[str, Any] = {**FORCED, **THINK}
    if streamed:
        first = (await events_of(served, cid, **asked))[-1]["response"]
    else:
        first = await respond(served, cid, **asked)
    result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "46"}
    items = [{"role": "user", "content": ASK}, *RESENT[how](first["output"]), result]
    second = await respond(served, cid, **asked | {"input": items, "tool_choice": "auto"})
    assert second["http"] == 200, second
    await _second_continues_first(served, cid)


@pytest.mark.parametrize("instructions", [None, "Be brief."])
async def test_a_previous_response_is_continued_in_a_rollout(served: Served, instructions: str | None) -> None:
    served.router.sampling = type(served.router.sampling)(temperature=0.0, max_tokens=60, constrain_tools=True)
    cid = credential("job_1_t0_900")
    asked: dict[str, Any] = {**FORCED, **THINK, "instructions": instructions, "store": True}
    first = await respond(served, cid, **asked)
    assert "warnings" not in first
    result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "46"}
    second = await respond(
        served, cid, **asked | {"input": [result], "previous_response_id": first["id"], "tool_choice": "auto"}
    )
    assert second["previous_response_id"] == first["id"]
    third = await respond(
        served, cid, **asked | {"input": "And 1 more?", "previous_response_id": second["id"], "tool_choice": "auto"}
    )
    assert third["http"] == 200, third
    unknown = await respond(served, cid, previous_response_id="resp_0")
    assert (unknown["http"], unknown["error"]["param"]) == (400, "previous_response_id")
    await _second_continues_first(served, cid)


async def _second_continues_first(served: Served, cid: str) -> None:
    first, second, *_ = await served.records(cid)
    whole = [*first.prompt_ids.tolist(), *first.sampled_ids.tolist()]
    assert second.prompt_ids.tolist()[: len(whole)] == whole


async def test_a_previous_response_needs_no_new_input(served: Served) -> None:
    cid = credential("job_1_t0_902")
    first = await respond(served, cid)
    again = await respond(served, cid, input=[], previous_response_id=first["id"])
    assert again["http"] == 200, again
    await _second_continues_first(served, cid)


async def test_calls_between_outputs_are_one_reply(served: Served) -> None:
    served.router.sampling = type(served.router.sampling)(temperature=0.0, max_tokens=60, constrain_tools=True)
    cid = credential("job_1_t0_903")
    first = await respond(served, cid, **FORCED)
    [one] = first["output"]
    two = one | {"id": "call_two", "call_id": "call_two"}
    log = served.recorder.responses(cid)
    log.add_items(first["id"], [two])
    reader = ItemReader(log)
    outputs = [{"type": "function_call_output", "call_id": c["call_id"], "output": "46"} for c in (one, two)]
    for i, item in enumerate((one, outputs[0], two, outputs[1])):
        reader.read(item, f"input[{i}]")
    assert [message["role"] for message in reader.messages] == ["assistant", "tool", "tool"]
    assert [call["id"] for call in reader.messages[0]["tool_calls"]] == [one["id"], "call_two"]
    assert reader.origins[0]["tool_calls[1]"] == "input[2]"


async def test_a_call_with_the_id_of_an_earlier_item_gets_another_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.router.sampling = type(served.router.sampling)(temperature=0.0, max_tokens=60, constrain_tools=True)
    monkeypatch.setattr(ReplyParser, "_id", lambda self, call: "c0")
    cid = credential("job_1_t0_904")
    ids = [(await respond(served, cid, **FORCED))["output"][-1]["call_id"] for _ in range(3)]
    assert ids[0] == "c0"
    assert len(set(ids)) == 3


async def test_a_rollout_keeps_each_message_once_whatever_its_client_changes(served: Served) -> None:
    cid = credential("job_1_t0_905")
    items: list[dict[str, Any]] = []
    text, reply = "x" * 40, dict[str, Any]()
    for turn in range(6):
        items.append({"role": "user", "content": f"{text} {turn}"})
        reply = await respond(served, cid, input=items, max_output_tokens=2)
        items += [{"type": "message", "role": "assistant", "content": reply["output"][0]["content"][0]["text"]}]
    held = served.recorder.nbytes
    last = served.recorder.responses(cid).conversation(reply["id"])
    assert last is not None
    assert len(last) == 12
    body = await respond(served, cid, input=items[:-1], max_output_tokens=2, store=False)
    assert served.recorder.responses(cid).conversation(body["id"]) is None
    assert held < 60_000
