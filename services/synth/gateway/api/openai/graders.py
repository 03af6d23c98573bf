"""Graders, tried before a job: look whether one can be read, and grade one sample by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from synth.bus.kv.secrets import ApiKey
from synth.errors import Problem, UserError
from synth.gateway.api.openapi import returns
from synth.gateway.auth import CurrentKey
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.errors import ApiError
from synth.graders.formula import NoNumber
from synth.graders.grade import Graded, GraderFailed, grade
from synth.graders.schema import Grader, models_of, parse_grader, python_refused, runs_python
from synth.graders.template import ItemLacks, Sample
from synth.runtime.off_loop import TooMuchWork

router = APIRouter(tags=["openai"])


class _GraderBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ValidateRequest(_GraderBody):
    """A grader of a type of docs/graders.md."""

    grader: dict[str, Any]


class RunRequest(_GraderBody):
    """A grader, and what it grades. model_sample: what the model said. item: the row, the namespace `item`."""

    grader: dict[str, Any]
    model_sample: str
    item: dict[str, Any] = Field(default={})


class ValidatedGrader(msgspec.Struct, frozen=True, kw_only=True):
    """A grader as it was read."""

    grader: dict[str, Any]


class GradedSample(msgspec.Struct, frozen=True, kw_only=True):
    """What a sample is worth. sub_rewards: by the keys of a multi grader.

    metadata: the grader's `name` and `type`, `scores` by the graders' keys, `execution_time` in seconds, and `errors`,
    a flag for each thing that may go wrong.
    """

    reward: float
    sub_rewards: dict[str, float]
    metadata: dict[str, Any]
    model_grader_token_usage_per_model: dict[str, Any] = {}


@router.post("/fine_tuning/alpha/graders/validate", summary="Read a grader", responses=returns(ValidatedGrader))
async def validate(body: ValidateRequest, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """A grader that cannot be read, or that is not run here, is a 400 with every problem."""
    return await _respond(gateway, caller, read_grader, body, gateway.settings.python_graders)


@router.post("/fine_tuning/alpha/graders/run", summary="Grade a sample", responses=returns(GradedSample))
async def run(body: RunRequest, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """A sample that lacks what the grader reads has the reward 0 and `sample_parse_error`.

    A grader that refers to what the item lacks, or whose formula has no value, has the reward 0 and that error. One
    that asks a model, or is code, is a 400: it grades in a job alone.
    """
    settings = gateway.settings
    return await _respond(gateway, caller, grade_sample, body, settings.python_graders, settings.max_graded_characters)


async def _respond(gateway: Gateway, caller: ApiKey, function: Callable[..., bytes], *args: Any) -> Response:
    """Return what a function makes of a grader in a worker process: a few bytes of a grader can take seconds."""
    try:
        content = await gateway.service.off_loop.process(
            function, *args, org=caller.org, size=None, task="read the grader, and grade by it"
        )
    except TooMuchWork:
        raise
    except UserError as error:
        raise _refused(error.problems) from error
    return Response(content, media_type="application/json")


def read_grader(request: ValidateRequest, python: bool) -> bytes:
    """Return the grader as it was read, as JSON. python: whether graders that are code are run. Raises `UserError`."""
    grader = _parse(request.grader, python=python)
    return msgspec.json.encode(ValidatedGrader(grader=grader.model_dump(mode="json", exclude_none=True)))


def grade_sample(request: RunRequest, python: bool, max_characters: int) -> bytes:
    """Return the `GradedSample` as JSON. Raises `UserError`."""
    grader = _parse(request.grader, python=python)
    if runs_python(grader) or models_of(grader):
        what = "a grader that asks a model, or is code, grades in a job alone"
        raise UserError(Problem(what=what, fix="graders.validate reads it; a short job tries it", where="grader"))
    began = time.perf_counter()
    failed: GraderFailed | None = None
    try:
        graded = grade(grader, request.item, Sample(request.model_sample, []), max_characters=max_characters)
    except GraderFailed as error:
        failed, graded = error, Graded(0.0)
    metadata = {
        "name": grader.name,
        "type": grader.type,
        "errors": _errors(graded, failed),
        "execution_time": time.perf_counter() - began,
        "scores": graded.parts or {grader.name: graded.score},
        "token_usage": None,
        "sampled_model_name": None,
    }
    assert graded.score is not None
    return msgspec.json.encode(GradedSample(reward=graded.score, sub_rewards=graded.parts, metadata=metadata))


def _errors(graded: Graded, failed: GraderFailed | None) -> dict[str, Any]:
    """The flags of the published type; `details` says in words what they say."""
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
    return {**flags, **dict.fromkeys(never, False), "details": details or None}


def _parse(data: dict[str, Any], *, python: bool) -> Grader:
    grader = parse_grader(data)
    if runs_python(grader) and not python:
        raise UserError(python_refused(where="grader"))
    return grader


def _refused(problems: list[Problem]) -> ApiError:
    text = "\n".join(problem.text() for problem in problems)
    return ApiError(400, text, param=problems[0].where, code="invalid_grader", problems=problems)
