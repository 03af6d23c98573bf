"""Fine-tuned models in the shape that the Synth clients list them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from synth.gateway.api.native.models import MOST, made_models, model_named
from synth.gateway.api.openapi import json_response, many, one
from synth.gateway.api.synth.shapes import SynthModel
from synth.gateway.auth import Caller
from synth.gateway.deps import Parts
from synth.gateway.read_model.artifacts import Model

router = APIRouter(tags=["models"])

_Limit = Annotated[int, Query(ge=1, le=MOST)]
_After = Annotated[str | None, Query(description="Go on after this model's id")]


@router.get("/learning/models", summary="Fine-tuned models, newest first", responses=many(SynthModel))
async def list_models(caller: Caller, parts: Parts, limit: _Limit = MOST, after: _After = None) -> Response:
    """The models that your jobs made."""
    return _listed(caller.org, *made_models(parts, caller.org, limit=limit, after=after))


@router.get("/learning/models/rl", summary="Models that RL jobs made, newest first", responses=many(SynthModel))
async def list_rl_models(caller: Caller, parts: Parts, limit: _Limit = MOST, after: _After = None) -> Response:
    """Those whose id begins with `rl:`."""
    return _listed(caller.org, *made_models(parts, caller.org, limit=limit, after=after, prefix="rl"))


@router.get("/learning/models/{model_id:path}", summary="One model", responses=one(SynthModel))
async def get_model(model_id: str, caller: Caller, parts: Parts) -> Response:
    """A fine-tuned model, a checkpoint or a base; the id may hold slashes and colons."""
    return json_response(_shown(model_named(parts, caller.org, model_id), caller.org))


def _listed(org: str, models: list[Model], more: bool) -> Response:
    rows = [_shown(model, org) for model in models]
    # Under both names, because one client reads `data` and another `models`.
    return json_response({"object": "list", "data": rows, "models": rows, "has_more": more})


def _shown(model: Model, org: str) -> SynthModel:
    return SynthModel(
        id=model.id,
        base_model=model.base or model.id,
        owner=org if model.job_id else None,
        created_at=model.created_at,
        job_id=model.job_id,
        kind=model.kind,
        step=model.step,
        stand_in=model.stand_in,
    )
