"""Fine-tuned models in the shape that the Synth clients list them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from synth.gateway.auth import Caller
from synth.gateway.openapi import json_response, many, one
from synth.gateway.projection import Model
from synth.gateway.routes.models import model_named, models_of
from synth.gateway.state import Gateway, Parts
from synth.gateway.synth_api.shapes import SynthModel
from synth.models import parse_finetuned

router = APIRouter(tags=["models"])

_MOST = 1000
_Limit = Annotated[int, Query(ge=1, le=_MOST)]


@router.get("/learning/models", summary="Fine-tuned models, newest first", responses=many(SynthModel))
async def list_models(caller: Caller, parts: Parts, limit: _Limit = _MOST) -> Response:
    """The models that your jobs made."""
    return _listed(_made(parts, caller.org), caller.org, limit)


@router.get("/learning/models/rl", summary="Models that RL jobs made, newest first", responses=many(SynthModel))
async def list_rl_models(caller: Caller, parts: Parts, limit: _Limit = _MOST) -> Response:
    """Those whose id begins with `rl:`."""
    made = [m for m in _made(parts, caller.org) if (named := parse_finetuned(m.id)) and named.prefix == "rl"]
    return _listed(made, caller.org, limit)


@router.get("/learning/models/{model_id:path}", summary="One model", responses=one(SynthModel))
async def get_model(model_id: str, caller: Caller, parts: Parts) -> Response:
    """A fine-tuned model, a checkpoint or a base; the id may hold slashes and colons."""
    return json_response(_shown(model_named(parts, caller.org, model_id), caller.org))


def _made(parts: Gateway, org: str) -> list[Model]:
    return [model for model in models_of(parts, org) if model.job_id is not None]


def _listed(models: list[Model], org: str, limit: int) -> Response:
    rows = [_shown(model, org) for model in models[:limit]]
    # Under both names, because one client reads `data` and another `models`.
    return json_response({"object": "list", "data": rows, "models": rows, "has_more": len(models) > limit})


def _shown(model: Model, org: str) -> SynthModel:
    return SynthModel(
        id=model.id,
        base_model=model.base or (None if model.job_id else model.id),
        owner=org if model.job_id else None,
        created_at=model.created_at,
        job_id=model.job_id,
        kind=model.kind,
        step=model.step,
        stand_in=model.stand_in,
    )
