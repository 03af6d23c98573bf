"""`response_format` and strict functions: what comes is JSON that fits, and what is recorded trains exactly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from synth.chat.marks import CALL_START
from synth.inference.api.requests import JobSampling
from synth.inference.chat.generation import ReplyDelta
from synth.inference.chat.output_parser import ReplyParser
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.grammar.tokens import build_lexicon
from synth.inference.tokenizers import load_tokenizer
from synth.trainer.learner.data.packing import Sequences, collate
from synth.trainer.learner.model.logprobs import token_logprobs
from synth.trajectories import BatchMeta, CompletionRecord, RolloutBatch, RolloutMeta, build_branches
from tests.unit.inference.chat.test_forced_tokens import ADD, GREEDY, both, calls_of
from tests.unit.inference.memorised_replies import BUDGET, REASONING
from tests.unit.inference.one_model_service import Served, credential
from tests.unit.inference.tiny_model import plain_model

VERDICT: dict[str, Any] = {
    "type": "object",
    "properties": {"right": {"type": "boolean"}, "why": {"enum": ["the sum", "the carry", "a guess"]}},
    "required": ["right", "why"],
    "additionalProperties": False,
}
STRICT_ADD: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": [12, 34]}, "b": {"enum": [12, 34]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "strict": True, "parameters": STRICT_ADD}},
    {"type": "function", "function": {"name": "answer"}},
]


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema, **more}}


@pytest.fixture(scope="module")
async def engine(memorised_dir: Path) -> AsyncIterator[TransformersEngine]:
    loaded = await TransformersEngine.load(memorised_dir, settings=EngineSettings(device="cpu", seed=0))
    yield loaded
    await loaded.close()


@pytest.fixture
async def served(engine: TransformersEngine, memorised_dir: Path) -> AsyncIterator[Served]:
    one = Served(engine, ChatFormat(load_tokenizer(memorised_dir)))
    one.router.sampling = JobSampling(temperature=0, max_tokens=60)
    yield one
    await one.http.aclose()


def fits(text: str) -> bool:
    value = json.loads(text)
    return list(value) == ["right", "why"] and value["right"] in (True, False) and value["why"].startswith(("the", "a"))


@pytest.mark.parametrize("strict", [True, False])
async def test_a_reply_is_the_schemas_json_whole_and_streamed(served: Served, strict: bool) -> None:
    reply = await both(served, **GREEDY, response_format=schema_format(VERDICT, strict=strict))
    assert fits(reply["choices"][0]["message"]["content"])
    assert (reply["choices"][0]["finish_reason"], "warnings" in reply) == ("stop", False)
    draws = [served.ask(None, model="tiny", max_tokens=200, response_format=schema_format(VERDICT)) for _ in range(4)]
    for drawn in await asyncio.gather(*draws):
        assert fits(drawn.json()["choices"][0]["message"]["content"])


async def test_reasoning_is_free_and_the_answer_after_it_is_json(served: Served) -> None:
    asked = GREEDY | {"thinking_mode": "think", "response_format": schema_format(VERDICT), "max_tokens": 100}
    free = (await both(served, **asked))["choices"][0]["message"]
    assert (free["reasoning"], fits(free["content"])) == (REASONING, True)
    hurried = (await both(served, **asked, thinking_budget=BUDGET))["choices"][0]["message"]
    assert (REASONING.startswith(hurried["reasoning"]), fits(hurried["content"])) == (True, True)


async def test_a_bias_and_penalties_choose_among_what_the_schema_allows(served: Served) -> None:
    encode = served.chat.tokenizer.encode
    asked = GREEDY | {"response_format": schema_format(VERDICT), "max_tokens": 100, "logprobs": True}
    asked |= {"frequency_penalty": 2, "presence_penalty": 2, "top_logprobs": 20}
    for right in ("true", "false"):
        biased = {encode(right)[0]: 100, encode("0")[0]: 100}
        choice = (await both(served, **asked, logit_bias=biased))["choices"][0]
        assert fits(choice["message"]["content"])
        assert json.loads(choice["message"]["content"])["right"] == (right == "true")
        listed = [other["token"] for entry in choice["logprobs"]["content"] for other in entry["top_logprobs"]]
        assert "0" not in listed
        assert choice["logprobs"]["content"][0]["top_logprobs"][0]["token"].startswith("{")


async def test_json_that_is_cut_off_says_so(served: Served) -> None:
    asked: dict[str, Any] = {"model": "tiny", "seed": 1, "max_tokens": 4}
    reply = await both(served, **asked, response_format=schema_format(VERDICT))
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["choices"][0]["message"]["content"].startswith('{"')


async def test_an_object_is_an_object_or_the_beginning_of_one(served: Served) -> None:
    draws = [
        served.ask(None, model="tiny", max_tokens=40, seed=i, response_format={"type": "json_object"}) for i in range(6)
    ]
    for drawn in await asyncio.gather(*draws):
        choice = drawn.json()["choices"][0]
        whole = choice["finish_reason"] == "stop"
        assert choice["message"]["content"].startswith("{")
        assert not whole or isinstance(json.loads(choice["message"]["content"]), dict)


async def test_a_forced_call_of_a_strict_function_has_arguments_that_fit(served: Served) -> None:
    for choice in (ADD, "required"):
        reply = await both(served, **GREEDY, tools=TOOLS[:1], tool_choice=choice, parallel_tool_calls=False)
        [(name, arguments)] = calls_of(reply)
        assert name == "add"
        assert set(json.loads(arguments)) == {"a", "b"}
        assert set(json.loads(arguments).values()) <= {12, 34}
        assert reply["choices"][0]["finish_reason"] == "tool_calls"


REFUSED: list[tuple[Any, str, str]] = [
    ({"type": "yaml"}, "response_format.type", "json_object"),
    (schema_format(7), "response_format.json_schema.schema", "no object"),
    (schema_format(VERDICT, strict="yes"), "response_format.json_schema.strict", "true or false"),
    (
        schema_format({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "strin"}}}}),
        "response_format.json_schema.schema.properties.a.items",
        "Invalid type: strin",
    ),
    (
        schema_format({"type": "object", "properties": {"a": {"not": {"type": "null"}}}}, strict=True),
        "response_format.json_schema.schema.properties.a",
        'Unimplemented keys: ["not"]',
    ),
    (schema_format({"$ref": "#"}), "response_format.json_schema.schema", "no value fits"),
    (schema_format({"$ref": "https://example.org/schema"}), "response_format.json_schema.schema", "not present"),
    (schema_format({"type": "array", "minItems": 10**9}), "response_format.json_schema.schema", "too large"),
    (schema_format({"enum": ["x" * 70_000]}), "response_format.json_schema.schema", "SYNTH_MAX_SCHEMA_BYTES"),
    (schema_format(json.loads('{"items":' * 70 + "{}" + "}" * 70)), "response_format.json_schema.schema", "nested"),
]


@pytest.mark.parametrize(("asked", "param", "says"), REFUSED, ids=[says for _, _, says in REFUSED])
async def test_a_format_that_cannot_be_enforced_is_a_400_that_names_the_place(
    served: Served, asked: Any, param: str, says: str
) -> None:
    refused = await served.ask(None, **GREEDY, response_format=asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert says in refused.json()["error"]["message"]


async def test_what_a_loose_schema_asks_in_vain_is_a_warning(served: Served) -> None:
    loose = VERDICT | {"not": {"required": ["other"]}}
    reply = (await served.ask(None, **GREEDY, response_format=schema_format(loose))).json()
    assert fits(reply["choices"][0]["message"]["content"])
    assert 'Unimplemented keys: ["not"]' in reply["warnings"][0]


@pytest.mark.parametrize("stream", [False, True])
async def test_beside_tools_a_reply_is_the_schemas_json_or_calls(served: Served, stream: bool) -> None:
    """The engine is asked for both: what it may begin with is a brace or the mark of a call."""
    asked: dict[str, Any] = {"response_format": schema_format(VERDICT), "tools": TOOLS[1:], "stream": stream}
    brace = served.chat.tokenizer.encode("{")[0]
    mark = served.chat.tokenizer.encode(CALL_START)[0]
    served.router.sampling = JobSampling(temperature=1.5, max_tokens=60, banned=(mark,))
    cid = credential(f"job_1_t{mark}_{int(stream)}")
    await served.ask(cid, **asked)
    [record] = await served.records(cid)
    text = served.chat.tokenizer.decode(record.sampled_ids.tolist())
    assert record.masks is not None
    assert set(record.masks.sets[record.masks.index[0]].ids) == {brace, mark}
    assert fits(text.removesuffix("<|im_end|>")), text


async def test_a_call_in_a_string_of_the_json_is_text(served: Served) -> None:
    said = json.dumps({"why": '<tool_call>\n{"name": "answer", "arguments": {}}\n</tool_call>'})
    tokenizer = served.chat.tokenizer
    for json_first, text in ((True, said), (False, '<tool_call>\n{"name": "answer", "arguments": {}}\n</tool_call>')):
        parser = ReplyParser(tokenizer, served.chat.family, tools=TOOLS, stop=(), must_call=(), json=True)
        for token in tokenizer.encode(text):
            parser.feed(ReplyDelta([token], [0.0], [0]))
        reply, _ = parser.close("stop")
        assert (reply.message.content, reply.message.tool_calls is None) == (said if json_first else None, json_first)


async def test_a_tool_that_may_not_be_called_leaves_the_json_alone(served: Served) -> None:
    free = await served.ask(None, **GREEDY, response_format=schema_format(VERDICT), tools=TOOLS, tool_choice="none")
    assert fits(free.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", ["none", "may call", "must call"])
async def test_trainer_and_engine_agree_on_what_was_drawn_under_a_schema(
    served: Served, memorised_dir: Path, stream: bool, tools: str
) -> None:
    served.router.sampling = JobSampling(temperature=0.7, max_tokens=200, constrain_tools=True)
    cid = credential()
    asked: dict[str, Any] = {"response_format": schema_format(VERDICT)}
    if tools == "may call":
        asked["tools"] = TOOLS
    elif tools == "must call":
        asked = {"tools": TOOLS[:1], "tool_choice": ADD, "parallel_tool_calls": False}
    await (served.chunks(cid, **asked) if stream else served.ask(cid, **asked))
    [record] = await served.records(cid)

    assert record.masks is not None
    constrained = record.masks.index >= 0
    assert constrained.any()
    # A token that no other could have come in place of is not trained; one among several is.
    alone = np.asarray([i >= 0 and len(record.masks.sets[i].ids) == 1 for i in record.masks.index])
    assert alone.any() or tools == "may call"  # within a call any text may come
    assert not record.sampled[alone].any()
    assert (record.logprobs[~record.sampled] == 0).all()
    assert record.sampled[constrained & ~alone].all()
    assert record.sampled.any()

    batch = batch_of([record])
    assert batch.loss_mask.sum() == record.sampled.sum()
    logp, without = trained_logprobs(plain_model(memorised_dir), batch)
    behaviour = batch.logprobs[batch.loss_mask]
    assert np.abs(logp - behaviour).max() <= 1e-4
    # Without its masks the trainer would compute something else.
    assert np.abs(without - behaviour).max() > 1e-2 or tools == "may call"


def trained_logprobs(model: Any, batch: RolloutBatch) -> tuple[np.ndarray, np.ndarray]:
    """The log-probabilities of the trained tokens, with the batch's masks and without."""
    weights = batch.loss_mask.astype(np.float32)
    micro = collate(Sequences(batch.tokens, weights, batch.cu_seqlens, batch.masks), [0], packing="packed")
    with torch.no_grad():
        hidden = model.model(micro.input_ids_BL).last_hidden_state.flatten(0, 1)[micro.predict_N]
        both = [
            token_logprobs(
                hidden, model.lm_head.weight, micro.target_N, temperature=batch.meta.temperature, allowed=allowed
            )[0]
            for allowed in (micro.allowed, None)
        ]
    return both[0].numpy(), both[1].numpy()


def batch_of(records: list[CompletionRecord]) -> RolloutBatch:
    branches = build_branches(records)
    rollout = RolloutMeta(rollout_id="r", seed=0, group=0, reward=1.0)
    meta = BatchMeta(job_id="j", iteration=1, temperature=0.7, rollouts=[rollout], groups_kept=1, groups_dropped=0)
    batch = RolloutBatch.build(branches, [1.0] * len(branches), [0] * len(branches), meta)
    return RolloutBatch.from_bytes(batch.to_bytes())


async def test_a_schema_is_compiled_once_for_all_who_send_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    def build(tokenizer: Any, vocabulary: int) -> Any:
        built.append(vocabulary)
        return build_lexicon(tokenizer, vocabulary)

    monkeypatch.setattr("synth.inference.grammar.compiler.build_lexicon", build)
    asked: dict[str, Any] = GREEDY | {"response_format": schema_format(VERDICT)}
    await asyncio.gather(*(served.ask(None, **asked) for _ in range(5)))
    assert built == [served.engine.vocabulary]
    assert len(served.chat.grammars._compiled) == 1  # pyright: ignore[reportPrivateUsage]
