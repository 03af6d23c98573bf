"""Graders, tried before a job: look whether one can be read, and grade one sample by it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from synth.errors import Problem, UserError
from synth.gateway.api.openapi import json_response, returns
from synth.gateway.auth import CurrentKey
from synth.gateway.deps import GatewayDep
from synth.gateway.errors import ApiError
from synth.graders.formula import NoNumber
from synth.graders.grade import Graded, GraderFailed, grade
from synth.graders.schema import Grader, models_of, parse_grader, python_refused, runs_python
from synth.graders.template import ItemLacks, Sample

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
    grader = await asyncio.to_thread(_parse, body.grader, python=gateway.settings.python_graders)
    return json_response(ValidatedGrader(grader=grader.model_dump(mode="json", exclude_none=True)))


@router.post("/fine_tuning/alpha/graders/run", summary="Grade a sample", responses=returns(GradedSample))
async def run(body: RunRequest, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """A sample that lacks what the grader reads has the reward 0 and `sample_parse_error`.

    A grader that refers to what the item lacks, or whose formula has no value, has the reward 0 and that error. One
    that asks a model, or is code, is a 400: it grades in a job alone.
    """
    grader = await asyncio.to_thread(_parse, body.grader, python=gateway.settings.python_graders)
    if runs_python(grader) or models_of(grader):
        what = "a grader that asks a model, or is code, grades in a job alone"
        raise _refused([Problem(what=what, fix="graders.validate reads it; a short job tries it", where="grader")])
    sample = Sample(body.model_sample, [])
    limit = gateway.settings.max_graded_characters
    began = time.perf_counter()
    failed: GraderFailed | None = None
    try:
        graded = await asyncio.to_thread(grade, grader, body.item, sample, max_characters=limit)
    except GraderFailed as error:
        failed, graded = error, Graded(0.0)
    errors = _errors(graded, failed)
    metadata = {
        "name": grader.name,
        "type": grader.type,
        "errors": errors,
        "execution_time": time.perf_counter() - began,
        "scores": graded.parts or {grader.name: graded.score},
        "token_usage": None,
        "sampled_model_name": None,
    }
    assert graded.score is not None
    return json_response(GradedSample(reward=graded.score, sub_rewards=graded.parts, metadata=metadata))


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
    """python: whether graders that are code are run."""
    try:
        grader = parse_grader(data)
        if runs_python(grader) and not python:
            raise UserError(python_refused(where="grader"))
        return grader
    except UserError as error:
        raise _refused(error.problems) from error


def _refused(problems: list[Problem]) -> ApiError:
    text = "\n".join(problem.text() for problem in problems)
    return ApiError(400, text, param=problems[0].where, code="invalid_grader", problems=problems)
