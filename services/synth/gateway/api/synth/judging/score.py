"""The route that judges a trace while the client waits.

The judge service does the work, because it may call addresses that users name.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from synth.api.limits import MAX_MODEL_ID
from synth.bus.connection import Connection
from synth.bus.rpc import ANSWER_WITHIN_S, JUDGE, ask
from synth.errors import Problem, Transient
from synth.gateway.api.openapi import json_response
from synth.gateway.api.synth.judging.requests import ScoreOptions, ScoreRequest, transcript_of
from synth.gateway.auth import CurrentKey
from synth.gateway.deps import GatewayDep
from synth.gateway.errors import ApiError
from synth.gateway.settings import GatewaySettings
from synth.judging.contract import JudgeAnswer, JudgeFailure, JudgeRollouts, RolloutReview, RolloutToJudge
from synth.judging.rubric import rubric_from_request
from synth.judging.settings import JudgeModel, Judging, Rubric
from synth.runtime.off_loop import INLINE_BYTES

router = APIRouter(tags=["judging"])


@router.post("/judge/v1/score", summary="Judge a trace by a rubric")
async def score(body: ScoreRequest, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Score each call of the model in the trace (or each of its steps), and the whole trace, by a judge model.

    Judging that takes longer than the client waits continues: the same request returns its result later. Raises a 422
    for a trace that cannot be judged, a 429 if the judge's API limits us, and a 503 if the judge is unavailable, gives
    no scores, or has not finished.
    """
    started = time.monotonic()
    # A trace may have 25,000 steps.
    rubric, content, digest = await gateway.service.off_loop.thread(_read, body, org=caller.org, size=INLINE_BYTES + 1)
    judging = _judging(body.options, rubric, gateway.settings)
    gateway.capacity.check(len(content))
    async with gateway.asked.hold(caller.org, content, digest) as requested:
        question = JudgeRollouts(
            org=caller.org,
            job_id="",
            judging=judging,
            rubric=rubric,
            rollouts=[RolloutToJudge(rollout_id="trace", transcript=requested.ref)],
        )
        answer = await ask_judge(gateway.bus, question, until=started + ANSWER_WITHIN_S)
        requested.goes_on = answer.failure is not None and answer.failure.kind == "working"
    if answer.failure is not None:
        raise judge_failed(answer.failure)
    seconds = time.monotonic() - started
    return json_response(_reply(body, judging.judges[0], answer.reviews[0], answer, seconds))


def _read(body: ScoreRequest) -> tuple[Rubric, bytes, str]:
    """Return the rubric, the transcript of the trace as JSON, and its SHA-256 as hex. Raises a 422."""
    rubric = rubric_from_request(body.rubric, body.options.rubric_overrides)
    if isinstance(rubric, Problem):
        if body.rubric is None and body.options.rubric_overrides is None:
            rubric = _no_rubric(body)
        raise _invalid(rubric)
    transcript = transcript_of(body.trace)
    if isinstance(transcript, Problem):
        raise _invalid(transcript)
    content = msgspec.json.encode(transcript)
    return rubric, content, hashlib.sha256(content).hexdigest()


async def ask_judge(bus: Connection, question: JudgeRollouts, *, until: float) -> JudgeAnswer:
    """Return the judge's answer; send the question again while the judge works. until: by the monotonic clock."""
    answer = await ask(bus, JUDGE, question, JudgeAnswer, within=until - time.monotonic())
    while answer.failure is not None and answer.failure.kind == "working" and (left := until - time.monotonic()) > 0:
        try:
            answer = await ask(bus, JUDGE, question, JudgeAnswer, within=left)
        except Transient:
            # The last answer already states that the judge is working.
            break
    return answer


def _judging(options: ScoreOptions, rubric: Rubric, settings: GatewaySettings) -> Judging:
    """Return the judge and the tracks to judge. Raises a 422 if there is no judge, or no track to judge."""
    model = options.model or settings.judge_model
    provider = options.provider or settings.judge_provider
    for name, value, setting in (("model", model, "MODEL"), ("provider", provider, "PROVIDER")):
        if not value or len(value) > MAX_MODEL_ID:
            raise _invalid(
                Problem(
                    what=f"no judge {name} was named" if not value else f"the judge {name} is too long",
                    expected='a model and its provider, such as "synth" for a model of this cluster',
                    fix=f"name it, or have the operator set SYNTH_JUDGE_{setting}",
                    where=f"options.{name}",
                )
            )
    event, outcome = options.event and bool(rubric.event), options.outcome and bool(rubric.outcome)
    if not event and not outcome:
        raise _invalid(
            Problem(
                what="nothing is left to judge",
                expected="criteria for a track (event, outcome) that options do not turn off",
                where="options",
            )
        )
    judging = Judging(
        judges=[JudgeModel(model=model or "", provider=provider)], rubric=rubric, event=event, outcome=outcome
    )
    if options.timeout_s is not None:
        judging = msgspec.structs.replace(judging, timeout_s=options.timeout_s)
    if options.max_concurrency is not None:
        judging = msgspec.structs.replace(judging, max_concurrency=options.max_concurrency)
    return judging


def _reply(
    body: ScoreRequest, judge: JudgeModel, review: RolloutReview, answer: JudgeAnswer, seconds: float
) -> dict[str, Any]:
    totals = [event.total for event in review.events]
    mean = sum(totals) / len(totals) if totals else 0.0
    outcome = review.outcome
    return {
        "status": "ok",
        "aggregate_score": outcome.total if outcome is not None else mean,
        "event_reviews": review.events,
        "event_totals": totals,
        "outcome_review": outcome,
        "details": {
            "provider": judge.provider,
            "model": judge.model,
            "latency_s": round(seconds, 3),
            "usage": answer.usage,
        },
        "metadata": {
            "policy_name": body.policy_name,
            "task_app": body.task_app.id,
            "options": body.options.model_dump(mode="json", exclude_none=True),
        },
    }


def _no_rubric(body: ScoreRequest) -> Problem:
    named = body.options.rubric_id
    return Problem(
        what=f"no rubric is stored here, {named[:80]!r} neither" if named else "the request has no rubric",
        expected="`rubric` with `event` or `outcome`, or `options.rubric_overrides`",
        fix="send the criteria along",
        where="options.rubric_id" if named else "rubric",
    )


def _invalid(problem: Problem) -> ApiError:
    return ApiError(422, problem.text(), type="invalid_request", param=problem.where or None, problems=[problem])


def judge_failed(failure: JudgeFailure) -> ApiError:
    """Return the error for a client that gets no scores, instead of a score of 0."""
    problem = failure.problem
    match failure.kind:
        case "refused":
            return ApiError(422, problem.text(), type="judge_refused", problems=[problem])
        case "unreadable":
            return ApiError(503, problem.text(), type="judge_unreadable", problems=[problem])
        case "working":
            return ApiError(503, problem.text(), type="judge_working", problems=[problem], retry_after=1)
        case "away":
            wait, limited = max(1, round(failure.retry_after_s)), failure.limited
            kind = "judge_limited" if limited else "judge_away"
            return ApiError(429 if limited else 503, problem.text(), type=kind, problems=[problem], retry_after=wait)
