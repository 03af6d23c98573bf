"""`POST /judge/v1/score`: a trace in, its scores out, through the gateway and the judge."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.judge_server import JudgeServer, limited, prose, said, scored
from tests.service.gateway.conftest import client_of, start_gateway
from tests.service.gateway.openai.sdk_jobs import sdk_of

__all__ = ["client_of", "start_gateway"]

RUBRIC = {
    "event": [{"id": "progress", "description": "It gets on.", "weight": 1.0, "scale": "binary"}],
    "outcome": [
        {"id": "wood", "description": "It has wood.", "weight": 0.75, "scale": "bounded"},
        {"id": "alive", "description": "It lives.", "weight": 0.25, "scale": "bounded"},
    ],
}
STEPS = [
    {"observation": {"wood": n}, "tool_calls": [{"tool": "act"}], "reward": 0.5, "done": n == 1, "info": {}}
    for n in range(2)
]
#: As `normalize_for_json` of the published client writes a SessionTrace.
CALL = {
    "system_instance_id": "llm",
    "time_record": {"event_time": 1.0},
    "model_name": "policy",
    "system_state_after": None,
    "call_records": [
        {
            "call_id": "1",
            "input_messages": [{"role": "user", "parts": [{"type": "text", "text": "go", "data": None}]}],
            "output_messages": [{"role": "assistant", "parts": [{"type": "text", "text": "I chop"}]}],
            "output_tool_calls": [{"name": "act", "arguments_json": '{"do": "chop"}'}],
        }
    ],
}
ENVIRONMENT = {"system_instance_id": "env", "reward": 1.0, "terminated": True, "system_state_after": {"wood": 1}}


def request(events: list, **changes: object) -> dict:
    return {
        "policy_name": "crafter-react",
        "task_app": {"id": "grpo-crafter-task-app"},
        "trace": {"event_history": events, "markov_blanket_message_history": [], "metadata": {"env_id": "crafter"}},
        "rubric": RUBRIC,
        "options": {"model": "scripted", "provider": "paused-co", "event": True, "outcome": True, "timeout_s": 45},
    } | changes


@pytest.fixture(scope="module")
def judge() -> Iterator[JudgeServer]:
    with JudgeServer(scored(lambda call: 1.0)) as server:
        yield server


@pytest.fixture(autouse=True, scope="module")
def service(start_judge, judge: JudgeServer) -> Iterator[None]:
    with start_judge("score", SYNTH_JUDGE_PROVIDERS={"paused-co": {"base_url": judge.url}}, SYNTH_JUDGE_ANSWER_S="0.5"):
        yield


@pytest.fixture
async def user(start_gateway, client_of, judge: JudgeServer):
    judge.script = scored(lambda call: {id: 0.5 if id == "wood" else 1.0 for id in call.criteria})
    judge.calls.clear()
    return await client_of(await start_gateway())


async def test_steps_of_an_environment_are_scored_one_by_one_and_as_a_whole(user, judge):
    for prefix in ("/api", "/api/v1", "/api/api"):
        reply = await user.http.post(f"{prefix}/judge/v1/score", json=request(STEPS))
        assert reply.status_code == 200, reply.text
        body = reply.json()
        assert body["status"] == "ok"
        assert body["aggregate_score"] == body["outcome_review"]["total"] == pytest.approx(0.75 * 0.5 + 0.25)
        assert body["event_totals"] == [review["total"] for review in body["event_reviews"]] == [1.0, 1.0]
        assert body["outcome_review"]["criteria"]["wood"] == {
            "score": 0.5,
            "reason": "because",
            "weight": 0.75,
            "description": "It has wood.",
        }
        assert body["details"]["model"] == "scripted"
    # The second and the third request are answered from the cache.
    assert len(judge.calls) == 3


async def test_a_trace_of_version_3_has_one_event_for_each_call_of_the_model(user, judge):
    reply = await user.http.post("/api/judge/v1/score", json=request([CALL, ENVIRONMENT]))
    assert reply.status_code == 200, reply.text
    assert len(reply.json()["event_totals"]) == 1
    event = next(call.data for call in judge.calls if "reply" in call.data)
    assert event["messages"] == [{"role": "user", "content": "go"}]
    assert event["reply"]["content"] == "I chop"
    assert event["environment"][0]["environment"]["obs"] == {"wood": 1}


async def test_overrides_replace_a_track(user, judge):
    overrides = {"outcome": {"goal_text": "Live.", "criteria": [{"id": "alive", "description": "?"}]}}
    options = {"model": "scripted", "provider": "paused-co", "event": False, "rubric_overrides": overrides}
    reply = await user.http.post("/api/judge/v1/score", json=request(STEPS, options=options))
    assert list(reply.json()["outcome_review"]["criteria"]) == ["alive"]
    assert reply.json()["event_reviews"] == []
    assert "Live." in judge.calls[0].messages[0]["content"]


async def test_a_transcript_is_kept_for_as_long_as_it_is_asked_about(user, blobs):
    gone = request([CALL, ENVIRONMENT], options={"model": "m", "provider": "groq"})
    asked = [request(STEPS), request(STEPS), request([CALL, ENVIRONMENT]), gone]
    replies = await asyncio.gather(*(user.http.post("/api/judge/v1/score", json=body) for body in asked))
    assert [reply.status_code for reply in replies] == [200, 200, 200, 422]
    assert await blobs.uris_below(f"judging/{user.org}/asked") == []
    assert await blobs.uris_below(f"judging/{user.org}/answers")


async def test_a_grader_that_asks_models_is_tried_with_the_openai_sdk(start_gateway, client_of, judge):
    user = await client_of(await start_gateway(judge_provider="paused-co"))
    judge.script = lambda call: said(json.dumps({"reason": "so", "score": 7.5, "label": "good"}))
    asked = [{"role": "user", "content": "Rate {{ sample.output_text }} as {{ item.kind }}"}]
    score: Any = {"type": "score_model", "name": "s", "model": "scripted", "input": asked, "range": [0, 10]}
    label: Any = {"type": "label_model", "name": "l", "model": "scripted", "input": asked}
    label |= {"labels": ["good", "bad"], "passing_labels": ["good"]}
    exact = {"type": "string_check", "name": "e", "operation": "eq"}
    exact |= {"input": "{{ sample.output_text }}", "reference": "4"}
    multi: Any = {
        "type": "multi",
        "graders": {"s": score, "l": label, "e": exact},
        "calculate_output": "s / 10 + l + e",
    }
    async with sdk_of(user) as client:
        graders = client.fine_tuning.alpha.graders
        found = await graders.run(grader=score, model_sample="4", item={"kind": "a sum"})
        assert (found.reward, found.metadata.scores) == (7.5, {"s": 7.5})
        found = await graders.run(grader=multi, model_sample="4", item={"kind": "a sum"})
        assert (found.reward, found.sub_rewards) == (2.75, {"s": 7.5, "l": 1.0, "e": 1.0})
        assert any("Rate" in call.messages[-1]["content"] for call in judge.calls)
        lacking = await graders.run(grader=score, model_sample="4", item={})
        assert (lacking.reward, lacking.metadata.errors.invalid_variable_error) == (0.0, True)
        judge.script = prose
        unread = await graders.run(grader=score, model_sample="5", item={"kind": "a sum"})
        assert (unread.reward, unread.metadata.errors.api_model_grader_parse_error) == (0.0, True)
    async with sdk_of(await client_of(await start_gateway(judge_provider="nobody"))) as client:
        with pytest.raises(openai.UnprocessableEntityError, match="'nobody'"):
            await client.fine_tuning.alpha.graders.run(grader=score, model_sample="6", item={"kind": "a sum"})


WRONG = {
    "no rubric": ({"rubric": None}, "the request has no rubric"),
    "no criteria": ({"rubric": {"event": [], "outcome": []}}, "the rubric has no criteria"),
    "a stored rubric": ({"rubric": None, "options": {"rubric_id": "crafter/v1"}}, "no rubric is stored here"),
    "no model": ({"options": {}}, "options.model: no judge model was named"),
    "no provider": ({"options": {"model": "m"}}, "options.provider: no judge provider was named"),
    "an unknown provider": (
        {"options": {"model": "m", "provider": "groq"}},
        "this cluster has no judge provider 'groq'",
    ),
    "no events": ({"trace": {"event_history": []}}, "the trace has no events"),
    "too little time": ({"options": {"timeout_s": 0.001}}, "options.timeout_s"),
    "too much at one time": ({"options": {"max_concurrency": 1_000_000_000}}, "options.max_concurrency"),
    "nothing to judge": (
        {"options": {"model": "m", "provider": "paused-co", "event": False, "outcome": False}},
        "nothing is left to judge",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
async def test_what_cannot_be_judged_is_a_422_with_the_reason(kind: str, user, judge):
    changes, said = WRONG[kind]
    reply = await user.http.post("/api/judge/v1/score", json=request(STEPS, **changes))
    assert reply.status_code == 422
    assert said in reply.json()["error"]["message"]
    assert judge.calls == []


async def test_work_that_takes_longer_than_one_question_is_asked_for_until_it_is_done(user, judge):
    # The judge says three times that it is still at it.
    judge.script = scored(lambda call: 1.0, delay=1.7)
    reply = await user.http.post("/api/judge/v1/score", json=request([CALL]))
    assert (reply.status_code, reply.json()["aggregate_score"], len(judge.calls)) == (200, 1.0, 2)


async def test_a_judge_without_scores_is_an_error_and_never_a_score_of_0(user, judge):
    judge.script = prose
    reply = await user.http.post("/api/judge/v1/score", json=request([CALL]))
    assert (reply.status_code, reply.json()["error"]["type"]) == (503, "judge_unreadable")
    judge.script = limited(60)
    reply = await user.http.post("/api/judge/v1/score", json=request([CALL]))
    assert (reply.status_code, reply.json()["error"]["type"]) == (429, "judge_limited")
    assert 50 < int(reply.headers["retry-after"]) <= 60


async def test_a_judges_key_is_kept_by_its_name_and_never_shown(user):
    stored = await user.http.post(
        "/api/judge-keys", json={"name": "mine", "key": "sk-1", "url": "https://API.example.com:443/v1"}
    )
    assert (stored.status_code, stored.json()) == (201, {"name": "mine", "origin": "https://api.example.com"})
    assert (await user.http.get("/api/judge-keys")).json()["data"] == [{"name": "mine"}]
    assert (await user.http.delete("/api/judge-keys/mine")).json() == {"name": "mine", "deleted": True}
    assert (await user.http.delete("/api/judge-keys/mine")).status_code == 404
    assert (await user.http.get("/api/judge-keys")).json()["data"] == []
    url = "https://api.example.com/v1"
    for name, key, at, words in (
        ("mine", "sk 1\n", url, "no HTTP header"),
        ("no/name", "sk", url, "name"),
        ("mine", "sk", "ftp://api.example.com", "not the address of an API"),
        ("mine", "sk", "https://user@api.example.com", "a user's name"),
        ("mine", "sk", "https://api.example.com/v1?to=", "a query"),
    ):
        bad = await user.http.post("/api/judge-keys", json={"name": name, "key": key, "url": at})
        assert bad.status_code in (400, 422)
        assert words in bad.json()["error"]["message"]
