"""Thinking budgets and forced tool calls: what is forced, what of it is recorded, and that it is never trained."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synth.inference.api.requests import JobSampling
from synth.inference.chat.generation import Generation, GenerationPlan, ReplyDelta
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.protocol import SamplingParams
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.tokenizers import load_tokenizer
from synth.trajectories import BatchMeta, CompletionRecord, RolloutBatch, RolloutMeta, build_branches
from tests.unit.inference.engines.expected import distributions
from tests.unit.inference.memorised_replies import ANSWER, ASK, BUDGET, REASONING, TOOLS, WONDER, talk
from tests.unit.inference.one_model_service import Served, credential
from tests.unit.inference.tiny_model import plain_logprobs, plain_model

GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 60}
ADD = {"type": "function", "function": {"name": "add"}}
CALLED = ("add", '{"a": 12}')
_names = itertools.count()


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


async def both(served: Served, cid: str | None = None, **body: Any) -> dict[str, Any]:
    """The reply, whole; streamed it must say the same."""
    whole = (await served.ask(cid, **body)).json()
    said = whole["choices"][0]
    chunks = await served.chunks(cid, stream_options={"include_usage": True}, **body)
    deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
    for name in ("content", "reasoning_content", "reasoning"):
        assert "".join(d.get(name) or "" for d in deltas) == (said["message"].get(name) or "")
    calls = [c["function"] for d in deltas for c in d.get("tool_calls", ())]
    assert calls == [c["function"] for c in said["message"].get("tool_calls", ())]
    assert chunks[-2]["choices"][0]["finish_reason"] == said["finish_reason"]
    assert chunks[-1]["usage"] == whole["usage"]
    return whole


def calls_of(reply: dict[str, Any]) -> list[tuple[str, str]]:
    calls = reply["choices"][0]["message"].get("tool_calls", ())
    return [(c["function"]["name"], c["function"]["arguments"]) for c in calls]


def leave_reasoning_to_the_model(served: Served) -> None:
    """Qwen3's own way: asked to think, its template does not begin the reasoning."""
    served.change_template(lambda text: text.replace("{% if enable_thinking %}<think>\n{% endif %}", ""))


async def test_reasoning_is_told_apart_from_the_answer(served: Served) -> None:
    reply = await both(served, **GREEDY, thinking_mode="think")
    message = reply["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (REASONING, ANSWER)
    details = reply["usage"]["completion_tokens_details"]
    reasoning_tokens = len(served.chat.tokenizer.encode(f"{REASONING}\n</think>"))
    assert details == {"reasoning_tokens": reasoning_tokens, "forced_tokens": 0}
    plain = await both(served, **GREEDY)
    assert "reasoning_content" not in plain["choices"][0]["message"]
    assert plain["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize(
    "asked",
    [
        {"thinking_mode": "think", "thinking_budget": BUDGET},
        {"chat_template_kwargs": {"enable_thinking": True, "thinking_budget": BUDGET}},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": True, "thinking_budget": BUDGET}}},
        {"reasoning_effort": "low", "thinking_budget": BUDGET},
    ],
)
async def test_reasoning_that_reaches_its_budget_is_closed_and_the_answer_follows(served: Served, asked: Any) -> None:
    reply = await both(served, **GREEDY, **asked)
    message, encode = reply["choices"][0]["message"], served.chat.tokenizer.encode
    assert message["reasoning"] == served.chat.tokenizer.decode(encode(REASONING)[:BUDGET])
    assert (message["content"], reply["choices"][0]["finish_reason"]) == (ANSWER, "stop")
    closing, answered = len(encode("\n</think>\n\n")), len(encode(f"{ANSWER}<|im_end|>"))
    assert reply["usage"]["completion_tokens"] == BUDGET + answered
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": BUDGET, "forced_tokens": closing}


async def test_penalties_count_the_whole_reply_over_all_its_requests(served: Served, memorised_dir: Path) -> None:
    asked: dict[str, Any] = GREEDY | {"thinking_mode": "think", "thinking_budget": BUDGET, "max_tokens": 30}
    asked |= {"frequency_penalty": 2, "presence_penalty": 1, "logprobs": True, "top_logprobs": 2}
    reply = await both(served, **asked, return_token_ids=True)
    choice = reply["choices"][0]
    assert reply["usage"]["completion_tokens_details"]["forced_tokens"] > 0
    params = SamplingParams(max_tokens=30, temperature=0, frequency_penalty=2, presence_penalty=1)
    model = plain_model(memorised_dir)
    expected = distributions(model, reply["prompt_token_ids"], choice["token_ids"], params)
    for entry, token, logp_V in zip(choice["logprobs"]["content"], choice["token_ids"], expected, strict=True):
        if entry.get("sampled", True):
            logprobs = [other["logprob"] for other in entry["top_logprobs"]]
            assert token == logp_V.argmax()
            assert np.allclose(logprobs, logp_V.topk(2).values, atol=1e-3)
        else:
            assert (entry["logprob"], entry["top_logprobs"]) == (0, [])


async def test_a_budget_that_is_not_reached_changes_nothing(served: Served) -> None:
    free = await both(served, **GREEDY, thinking_mode="think", return_token_ids=True)
    bounded = await both(served, **GREEDY, thinking_mode="think", thinking_budget=30, return_token_ids=True)
    assert bounded["choices"] == free["choices"]


async def test_no_thinking_closes_what_a_template_always_opens(served: Served) -> None:
    served.change_template(lambda text: text.replace("{% if enable_thinking %}<think>\n{% endif %}", "<think>\n"))
    reply = await both(served, **GREEDY, thinking_mode="no_think")
    message = reply["choices"][0]["message"]
    assert ("reasoning" in message, message["content"]) == (False, ANSWER)
    reply = await both(served, **GREEDY)
    assert reply["choices"][0]["message"]["reasoning"] == REASONING


async def test_a_model_that_begins_its_reasoning_itself_has_it_closed_too(served: Served) -> None:
    leave_reasoning_to_the_model(served)
    asked: dict[str, Any] = GREEDY | {"messages": WONDER, "thinking_mode": "think"}
    free = (await both(served, **asked))["choices"][0]["message"]
    assert (free["reasoning"], free["content"]) == (REASONING, ANSWER)
    reply = await both(served, **asked, thinking_budget=BUDGET)
    message, encode = reply["choices"][0]["message"], served.chat.tokenizer.encode
    said = served.chat.tokenizer.decode(encode(f"<think>\n{REASONING}")[:BUDGET])
    assert (message["reasoning"], message["content"]) == (said.removeprefix("<think>\n"), ANSWER)
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == BUDGET
    # One that answers at once has nothing to be closed.
    at_once = await both(served, **GREEDY, thinking_mode="think", thinking_budget=3)
    assert at_once["choices"][0]["message"]["content"] == ANSWER
    assert at_once["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0, "forced_tokens": 0}


@pytest.mark.parametrize("most", [BUDGET - 1, BUDGET, BUDGET + 1])
async def test_max_tokens_bounds_what_is_sampled_in_all(served: Served, most: int) -> None:
    asked: dict[str, Any] = GREEDY | {"max_tokens": most, "thinking_mode": "think", "thinking_budget": BUDGET}
    reply = await both(served, **asked, return_token_ids=True)
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (most, "length")
    forced = reply["usage"]["completion_tokens_details"]["forced_tokens"]
    # Nothing is forced that no sampled token would follow.
    assert (forced > 0) == (most > BUDGET)


async def test_a_stop_string_ends_a_reply_in_its_reasoning_and_in_its_answer(served: Served) -> None:
    async def said(*stop: str, budget: int) -> tuple[str, str]:
        reply = await both(served, **GREEDY, thinking_mode="think", thinking_budget=budget, stop=stop)
        assert reply["choices"][0]["finish_reason"] == "stop"
        return reply["choices"][0]["message"].get("reasoning", ""), reply["choices"][0]["message"]["content"]

    reasoning = served.chat.tokenizer.decode(served.chat.tokenizer.encode(REASONING)[:BUDGET])
    assert await said(";", budget=30) == (REASONING.partition(";")[0], "")
    assert await said("</think>", budget=30) == (REASONING, "")
    # What is forced is not looked at, although it holds both of these.
    assert await said("n", "</think>", budget=BUDGET) == (reasoning, "a")


@pytest.mark.parametrize(
    ("choice", "offered"),
    [(ADD, TOOLS), ("required", TOOLS), ("required", TOOLS[:1])],
    ids=["named", "one of two", "the only one"],
)
async def test_a_tool_call_is_forced(served: Served, choice: Any, offered: Any) -> None:
    # With one tool the prompt is another, and what the model says of it unknown.
    reply = await both(served, **GREEDY, tools=offered, tool_choice=choice)
    assert reply["usage"]["completion_tokens_details"]["forced_tokens"] > 0
    if offered == TOOLS:
        assert calls_of(reply) == [CALLED]
        assert reply["choices"][0]["finish_reason"] == "tool_calls"
    free = await both(served, **GREEDY, tools=TOOLS)
    assert free["choices"][0]["message"]["content"] == ANSWER


async def test_a_forced_call_comes_after_the_reasoning(served: Served) -> None:
    asked = GREEDY | {"tools": TOOLS, "tool_choice": ADD, "thinking_mode": "think"}
    reply = await both(served, **asked)
    assert (reply["choices"][0]["message"]["reasoning"], calls_of(reply)) == (REASONING, [CALLED])
    hurried = await both(served, **asked, thinking_budget=BUDGET)
    assert calls_of(hurried) == [CALLED]
    assert REASONING.startswith(hurried["choices"][0]["message"]["reasoning"])


async def test_a_turn_that_ends_in_its_reasoning_has_to_call_all_the_same(served: Served) -> None:
    leave_reasoning_to_the_model(served)
    asked = GREEDY | {"messages": WONDER, "tools": TOOLS, "tool_choice": ADD, "thinking_mode": "think"}
    reply = await both(served, **asked, return_token_ids=True)
    assert calls_of(reply) == [CALLED]
    assert "reasoning" not in reply["choices"][0]["message"]
    assert served.chat.tokenizer.turn_end not in reply["choices"][0]["token_ids"]


async def test_a_coders_call_is_forced_in_its_own_format(served: Served) -> None:
    served.change_template(lambda text: text + "{# <function=name> #}")
    for choice, begins in ((ADD, "add>\n"), ("required", ("add>\n", "answer>\n"))):
        reply = await both(served, **GREEDY, tools=TOOLS, tool_choice=choice, return_token_ids=True)
        text = served.chat.tokenizer.decode(reply["choices"][0]["token_ids"])
        assert text.removeprefix("<tool_call>\n<function=").startswith(begins)


def generation(served: Served, prompt_ids: list[int], *banned: int) -> Generation:
    params = SamplingParams(max_tokens=60, temperature=0, banned=banned)
    plan = GenerationPlan(params=params, thinks=True, opening="reasoning", thinking_budget=BUDGET)
    chat, engine = served.chat, served.engine
    name = f"alone-{next(_names)}"
    return Generation(
        engine, chat.tokenizer, chat.family, prompt_ids, plan, request_id=name, time=SamplingTime(30), stream=False
    )


async def test_an_abort_between_two_requests_ends_the_reply_before_anything_is_forced(served: Served) -> None:
    alone = generation(served, served.chat.prompt(talk(ASK, thinking=True)).ids)
    deltas: list[ReplyDelta] = []
    async for delta in alone.deltas():
        deltas.append(delta)
        alone.abort()
    assert [(len(delta.token_ids), delta.finish_reason) for delta in deltas] == [(BUDGET, None), (0, "abort")]


async def test_a_context_without_room_for_what_is_forced_ends_the_reply_for_its_length(served: Served) -> None:
    [mark] = served.chat.tokenizer.encode("</think>")
    alone = generation(served, [5] * (512 - BUDGET - 2), served.chat.tokenizer.turn_end, mark)
    deltas = [delta async for delta in alone.deltas()]
    assert [(len(delta.token_ids), delta.finish_reason) for delta in deltas] == [(BUDGET, None), (0, "length")]


async def test_a_name_that_is_no_tools_is_put_right(served: Served) -> None:
    # The model would say "add"; the longest part of that which one of these names begins with stays.
    tools = [{"type": "function", "function": {"name": name}} for name in ("adieu", "answer")]
    reply = await both(served, **GREEDY, tools=tools, tool_choice="required", return_token_ids=True)
    text = served.chat.tokenizer.decode(reply["choices"][0]["token_ids"])
    assert text.startswith(('<tool_call>\n{"name": "adieu", "arguments":', '<tool_call>\n{"name": "answer", "arg'))


async def test_on_a_rollout_a_call_is_forced_only_if_the_job_wants_it(served: Served) -> None:
    asked = {"tools": TOOLS, "tool_choice": ADD}
    free = (await served.ask(credential(), **asked)).json()
    assert (free["choices"][0]["message"]["content"], len(free["warnings"])) == (ANSWER, 1)
    served.router.sampling = JobSampling(temperature=0, max_tokens=60, constrain_tools=True)
    forced = (await served.ask(credential(), **asked)).json()
    assert (calls_of(forced), "warnings" in forced) == ([CALLED], False)
    vain = (await served.ask(credential(), tools=TOOLS, tool_choice={"name": "sub"})).json()
    assert "no tool 'sub'" in vain["warnings"][0]


async def test_thinking_on_a_rollout_is_the_jobs_and_the_app_may_ask_for_less(served: Served) -> None:
    async def reasoning_of(**asked: Any) -> str | None:
        return (await served.ask(credential(), **asked)).json()["choices"][0]["message"].get("reasoning")

    def tokens(n: int) -> str:
        return served.chat.tokenizer.decode(served.chat.tokenizer.encode(REASONING)[:n])

    served.router.sampling = JobSampling(temperature=0, max_tokens=60, thinking=True, thinking_budget=BUDGET)
    assert await reasoning_of(thinking_mode="no_think") == tokens(BUDGET)
    assert await reasoning_of(thinking_budget=400) == tokens(BUDGET)
    assert await reasoning_of(thinking_budget=3) == tokens(3)
    served.router.sampling = JobSampling(temperature=0, max_tokens=60, thinking=False)
    assert await reasoning_of(thinking_mode="think") is None
    served.router.sampling = JobSampling(temperature=0, max_tokens=60)
    assert await reasoning_of(thinking_mode="think") == REASONING


async def test_the_jobs_thinking_counts_before_the_clients_and_the_reply_says_so(served: Served) -> None:
    served.router.sampling = JobSampling(temperature=0, max_tokens=60, thinking=True, thinking_budget=BUDGET)
    asked = {"chat_template_kwargs": {"enable_thinking": False, "thinking_budget": 400}, "temperature": 0.5}
    reply = (await served.ask(credential(), **asked)).json()
    assert reply["choices"][0]["message"]["reasoning"]
    assert reply["warnings"] == [
        'chat_template_kwargs.enable_thinking has no effect: the job\'s thinking_mode counts, and it is "think"',
        f"chat_template_kwargs.thinking_budget 400 has no effect: the job's is {BUDGET}",
        "temperature 0.5 has no effect: the job's is 0",
    ]
    # As a task app's client does that was handed its evaluation's mode.
    mixed = GREEDY | {"thinking_mode": "no_think", "extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
    told = (await served.ask(None, **mixed)).json()
    assert "reasoning" not in told["choices"][0]["message"]
    assert told["warnings"] == [
        'chat_template_kwargs.enable_thinking has no effect: thinking_mode counts, and it is "no_think"'
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_forced_tokens_are_recorded_as_not_sampled_and_never_trained(
    served: Served, memorised_dir: Path, stream: bool
) -> None:
    served.router.sampling = JobSampling(
        temperature=0.7, max_tokens=60, thinking=True, thinking_budget=BUDGET, constrain_tools=True
    )
    cid, encode = credential(), served.chat.tokenizer.encode
    asked = {"tools": TOOLS, "tool_choice": ADD, "logprobs": True, "return_token_ids": True}
    if stream:
        chunks = [c["choices"][0] for c in await served.chunks(cid, **asked)]
        ids = [i for c in chunks for i in c.get("token_ids", ())]
        logprobs = [p for c in chunks for p in (c.get("logprobs") or {"content": ()})["content"]]
    else:
        choice = (await served.ask(cid, **asked)).json()["choices"][0]
        ids, logprobs = choice["token_ids"], choice["logprobs"]["content"]
    [record] = await served.records(cid)
    forced = encode('\n</think>\n\n<tool_call>\n{"name": "add", "arguments": ')
    at = slice(BUDGET, BUDGET + len(forced))
    assert record.sampled_ids[at].tolist() == forced
    # Beside these, tokens that the grammar left no choice of, and the end of the call.
    ends = encode("}\n</tool_call>")
    assert record.sampled_ids[-len(ends) :].tolist() == ends
    assert not record.sampled[at].any()
    assert not record.sampled[-len(ends) :].any()
    assert record.sampled[:BUDGET].all()
    assert (record.logprobs[~record.sampled] == 0).all()
    assert ids == record.sampled_ids.tolist()
    told = np.asarray([p.get("sampled", True) for p in logprobs])
    assert told[record.sampled].all()
    assert np.allclose(np.asarray([p["logprob"] for p in logprobs])[record.sampled], record.logprobs[record.sampled])
    assert len(record.sampled_ids) - len(forced) <= 60

    plain = plain_logprobs(
        plain_model(memorised_dir), record.prompt_ids.tolist(), ids, temperature=0.7, ban_end=False
    ).numpy()
    assert np.abs(record.logprobs - plain)[:BUDGET].max() <= 1e-4
    batch = batch_of([record])
    trained = np.zeros(len(batch.tokens), bool)
    trained[len(record.prompt_ids) :] = record.sampled
    assert np.array_equal(batch.loss_mask, trained)
    assert (batch.versions[~trained] == -1).all()
    assert batch.tokens[len(record.prompt_ids) :].tolist() == ids


def batch_of(records: list[CompletionRecord]) -> RolloutBatch:
    branches = build_branches(records)
    rollout = RolloutMeta(rollout_id="r", seed=0, group=0, reward=1.0)
    meta = BatchMeta(job_id="j", iteration=1, temperature=0.7, rollouts=[rollout], groups_kept=1, groups_dropped=0)
    batch = RolloutBatch.build(branches, [1.0] * len(branches), [0] * len(branches), meta)
    return RolloutBatch.from_bytes(batch.to_bytes())


async def test_a_turn_with_forced_tokens_is_continued_token_exactly(served: Served) -> None:
    served.router.sampling = JobSampling(
        temperature=0, max_tokens=60, thinking=True, thinking_budget=BUDGET, constrain_tools=True
    )
    cid = credential()
    first = (await served.ask(cid, tools=TOOLS, tool_choice=ADD)).json()["choices"][0]["message"]
    # As most apps do: the reasoning is not sent back.
    said = {name: first[name] for name in ("role", "content", "tool_calls")}
    [call] = first["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "46"}
    question = {"role": "user", "content": "What is 12 + 34?"}
    await served.ask(cid, tools=TOOLS, messages=[question, said, result])
    one, two = await served.records(cid)
    begun = [*one.prompt_ids, *one.sampled_ids]
    assert two.prompt_ids[: len(begun)].tolist() == begun
    assert len(build_branches([one, two])) == 1
    [branch] = build_branches([one, two])
    assert branch.loss_mask.sum() == one.sampled.sum() + two.sampled.sum()
    assert not one.sampled.all()
    assert json.loads(call["function"]["arguments"]) == {"a": 12}
