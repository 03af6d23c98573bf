"""Routes that validate a grader and grade one sample with it before a job uses it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from synth.access import Scope
from synth.bus.kv.secrets import ApiKey
from synth.bus.rpc import ANSWER_WITHIN_S
from synth.errors import Problem, UserError
from synth.gateway.api.openapi import returns
from synth.gateway.api.synth.judging.score import ask_judge, judge_failed
from synth.gateway.auth import CurrentKey, require_scope
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.errors import ApiError
from synth.graders.formula import NoNumber
from synth.graders.grade import Graded, GraderFailed, grade, sample_as_seen, total_of
from synth.graders.python.pool import PythonFailed
from synth.graders.schema import Multi, Python, models_of, parse_grader, parts_of
from synth.graders.template import ItemLacks, Sample
from synth.judging.contract import JudgeRollouts, RolloutToJudge
from synth.judging.grading import GraderPrompt
from synth.judging.settings import JudgeModel, Judging, Rubric
from synth.models import parse_finetuned
from synth.runtime.off_loop import TooMuchWork

router = APIRouter(tags=["openai"])


class _GraderBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ValidateRequest(_GraderBody):
    """A grader of a type in docs/graders.md."""

    grader: dict[str, Any]


class RunRequest(_GraderBody):
    """A grader and the sample that it grades. model_sample: the reply's text. item: the row, the namespace `item`.

    sample_tools: the reply's tool calls, `sample.output_tools`; the published API has no field for them.
    """

    grader: dict[str, Any]
    model_sample: str
    item: dict[str, Any] = Field(default={})
    sample_tools: list[dict[str, Any]] = Field(default=[])

    @property
    def sample(self) -> Sample:
        return Sample(self.model_sample, self.sample_tools)


class ValidatedGrader(msgspec.Struct, frozen=True, kw_only=True):
    """A grader after parsing."""

    grader: dict[str, Any]


class GradedSample(msgspec.Struct, frozen=True, kw_only=True):
    """The reward of a sample. sub_rewards: by the keys of a multi grader.

    metadata: the grader's `name` and `type`, `scores` by the graders' keys, `execution_time` in seconds, and `errors`,
    a flag for each possible error.
    """

    reward: float
    sub_rewards: dict[str, float]
    metadata: dict[str, Any]
    model_grader_token_usage_per_model: dict[str, Any] = {}


class GradingNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """The work before a grader grades: code and calls of models.

    sources: code by the graders' keys. sample: the sample as the code gets it.
    """

    sources: dict[str, str]
    sample: dict[str, Any]
    asks_models: bool


class ModelScores(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of a sample by models, by the graders' keys; or the flag and the text of the failure."""

    scores: dict[str, float] = {}
    failed: dict[str, str] = {}


@router.post("/fine_tuning/alpha/graders/validate", summary="Read a grader", responses=returns(ValidatedGrader))
async def validate(body: ValidateRequest, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Validate a grader. A grader that is invalid, or not allowed here, returns 400 with every problem."""
    content = await _work(gateway, caller, read_grader, body, gateway.settings.python_graders)
    return Response(content, media_type="application/json")


@router.post("/fine_tuning/alpha/graders/run", summary="Grade a sample", responses=returns(GradedSample))
async def run(body: RunRequest, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Grade a sample. A sample without a field that the grader reads has the reward 0 and `sample_parse_error`.

    The reward is also 0, with the error, if the grader refers to a missing field of the item, its formula has no value,
    or its code fails. The grader's models are called as in a job; a model that is unavailable returns 503 with the time
    of the next try.
    """
    settings, began = gateway.settings, time.monotonic()
    limits = (settings.python_graders, settings.max_graded_characters)
    needs = msgspec.json.decode(await _work(gateway, caller, grading_needs, body, *limits), type=GradingNeeds)
    if needs.asks_models:
        # Every route to a model's answer requires the scope for inference.
        require_scope(caller, Scope.INFERENCE)
    scores, failed = await _run_sources(gateway, body, needs)
    if needs.asks_models and not failed:
        requested = await _work(gateway, caller, prompts_for_models, body, *limits, scores)
        if requested:
            told = await _ask_models(gateway, caller, requested, until=began + ANSWER_WITHIN_S)
            scores, failed = scores | told.scores, told.failed
    seconds = time.monotonic() - began
    content = await _work(gateway, caller, grade_sample, body, *limits, scores, failed, seconds)
    return Response(content, media_type="application/json")


async def _work(gateway: Gateway, caller: ApiKey, function: Callable[..., bytes], *args: Any) -> bytes:
    """Return a function's result for a grader, in a worker process: a few bytes of a grader can take seconds."""
    try:
        return await gateway.service.off_loop.process(
            function, *args, org=caller.org, size=None, task="read the grader, and grade by it"
        )
    except TooMuchWork:
        raise
    except UserError as error:
        raise _refused(error.problems) from error


async def _run_sources(
    gateway: Gateway, body: RunRequest, needs: GradingNeeds
) -> tuple[dict[str, float], dict[str, str]]:
    """Run the grader's code; return the scores by the graders' keys, and the flag and the text of a failure."""
    scores: dict[str, float] = {}
    for key, source in needs.sources.items():
        assert gateway.python is not None
        try:
            scores[key] = await gateway.python.grade(source, needs.sample, body.item)
        except PythonFailed as failed:
            return {}, {"python_grader_runtime_error": f"the python grader {key!r}: {failed}"}
    return scores, {}


async def _ask_models(gateway: Gateway, caller: ApiKey, prompts: bytes, *, until: float) -> ModelScores:
    """Get the models' scores for prompts, which are JSON, from the judge service. until: by the monotonic clock."""
    models = dict.fromkeys(prompt.model for prompt in msgspec.json.decode(prompts, type=list[GraderPrompt]))
    provider = gateway.settings.judge_provider or "synth"
    judges = [JudgeModel(model=m, provider="synth" if parse_finetuned(m) else provider) for m in models]
    gateway.capacity.check(len(prompts))
    async with gateway.asked.hold(caller.org, prompts, hashlib.sha256(prompts).hexdigest()) as requested:
        question = JudgeRollouts(
            org=caller.org,
            job_id="",
            judging=Judging(judges=judges),
            rubric=Rubric(),
            rollouts=[RolloutToJudge(rollout_id="sample", prompts=requested.ref)],
        )
        answer = await ask_judge(gateway.bus, question, until=until)
        requested.goes_on = answer.failure is not None and answer.failure.kind == "working"
    if answer.failure is not None and answer.failure.kind == "unreadable":
        return ModelScores(failed={"model_grader_parse_error": answer.failure.problem.text()})
    if answer.failure is not None:
        raise judge_failed(answer.failure)
    outcome = answer.reviews[0].outcome
    return ModelScores(scores={key: c.score for key, c in outcome.criteria.items()} if outcome is not None else {})


def read_grader(request: ValidateRequest, python: bool) -> bytes:
    """Return the parsed grader as JSON. python: whether graders that are code are allowed. Raises `UserError`."""
    grader = parse_grader(request.grader, python=python)
    return msgspec.json.encode(ValidatedGrader(grader=grader.model_dump(mode="json", exclude_none=True)))


def grading_needs(request: RunRequest, python: bool, max_characters: int) -> bytes:
    """Return the grader's `GradingNeeds` as JSON. Raises `UserError`."""
    parts = parts_of(grader := parse_grader(request.grader, python=python))
    sources = {key: part.source for key, part in parts.items() if isinstance(part, Python)}
    sample = sample_as_seen(request.sample) if sources else {}
    return msgspec.json.encode(GradingNeeds(sources=sources, sample=sample, asks_models=bool(models_of(grader))))


def prompts_for_models(request: RunRequest, python: bool, max_characters: int, ran: dict[str, float]) -> bytes:
    """Return the grader's prompts for models as JSON; empty if it has or can make none. ran: the scores of its code."""
    grader, sample = parse_grader(request.grader, python=python), request.sample
    try:
        graded = grade(grader, request.item, sample, max_characters=max_characters, ran=ran)
    except GraderFailed:
        return b""
    return msgspec.json.encode(graded.asked) if graded.asked else b""


def grade_sample(
    request: RunRequest,
    python: bool,
    max_characters: int,
    scores: dict[str, float],
    stopped: dict[str, str],
    seconds: float,
) -> bytes:
    """Return the `GradedSample` as JSON. Raises `UserError`.

    scores: the scores by code and models, by the graders' keys. stopped: the flag and the text of an earlier failure.
    seconds: the time that it has taken so far.
    """
    grader = parse_grader(request.grader, python=python)
    began = time.perf_counter()
    failed: GraderFailed | None = None
    graded = Graded(0.0)
    if not stopped:
        try:
            graded = grade(grader, request.item, request.sample, max_characters=max_characters, ran=scores)
            if graded.asked:
                parts = {**graded.parts, **dict.fromkeys(graded.lacking, 0.0), **scores}
                shown = parts if isinstance(grader, Multi) else {}
                graded = Graded(total_of(grader, parts), shown, graded.lacking)
        except GraderFailed as error:
            failed, graded = error, Graded(0.0)
    metadata = {
        "name": grader.name,
        "type": grader.type,
        "errors": _errors(graded, failed, stopped),
        "execution_time": seconds + time.perf_counter() - began,
        "scores": graded.parts or {grader.name: graded.score},
        "token_usage": None,
        "sampled_model_name": None,
    }
    assert graded.score is not None
    return msgspec.json.encode(GradedSample(reward=graded.score, sub_rewards=graded.parts, metadata=metadata))


def _errors(graded: Graded, failed: GraderFailed | None, stopped: dict[str, str]) -> dict[str, Any]:
    """Return the flags of the published type, and their text as `details`."""
    cause = failed.cause if failed else None
    flags = {
        "formula_parse_error": cause is NoNumber,
        "invalid_variable_error": cause is ItemLacks,
        "other_error": cause not in (None, NoNumber, ItemLacks),
        "sample_parse_error": bool(graded.lacking),
    }
    never = (
        "model_grader_parse_error",
        "model_grader_refusal_error",
        "model_grader_server_error",
        "python_grader_runtime_error",
        "python_grader_server_error",
        "truncated_observation_error",
        "unresponsive_reward_error",
    )
    details = str(failed) if failed else "; ".join(f"{key}: {why}" for key, why in graded.lacking.items())
    said = "; ".join(stopped.values()) or details or None
    return {**flags, **dict.fromkeys(never, False), **dict.fromkeys(stopped, True), "details": said}


def _refused(problems: list[Problem]) -> ApiError:
    text = "\n".join(problem.text() for problem in problems)
    return ApiError(400, text, param=problems[0].where, code="invalid_grader", problems=problems)
