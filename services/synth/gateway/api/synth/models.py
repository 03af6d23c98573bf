"""Routes of fine-tuned models, in the shape that the Synth clients read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from synth.api.limits import MAX_MODELS
from synth.api.schemas import Model
from synth.gateway.api.native.models import find_model, list_made_models
from synth.gateway.api.openapi import json_response, returns, returns_list
from synth.gateway.api.synth.schemas import SynthModel
from synth.gateway.auth import CurrentKey
from synth.gateway.deps import GatewayDep

router = APIRouter(tags=["models"])

_Limit = Annotated[int, Query(ge=1, le=MAX_MODELS)]
_After = Annotated[str | None, Query(description="Go on after this model's id")]


@router.get("/learning/models", summary="Fine-tuned models, newest first", responses=returns_list(SynthModel))
async def list_models(
    caller: CurrentKey, gateway: GatewayDep, limit: _Limit = MAX_MODELS, after: _After = None
) -> Response:
    """List the models that your jobs made."""
    return _list_response(caller.org, *list_made_models(gateway, caller.org, limit=limit, after=after))


@router.get("/learning/models/rl", summary="Models that RL jobs made, newest first", responses=returns_list(SynthModel))
async def list_rl_models(
    caller: CurrentKey, gateway: GatewayDep, limit: _Limit = MAX_MODELS, after: _After = None
) -> Response:
    """List the models whose id begins with `rl:`."""
    return _list_response(caller.org, *list_made_models(gateway, caller.org, limit=limit, after=after, prefix="rl"))


@router.get("/learning/models/{model_id:path}", summary="One model", responses=returns(SynthModel))
async def get_model(model_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return a fine-tuned model, a checkpoint or a base; the id may contain slashes and colons."""
    return json_response(_synth_model(find_model(gateway, caller.org, model_id), caller.org))


def _list_response(org: str, models: list[Model], more: bool) -> Response:
    rows = [_synth_model(model, org) for model in models]
    # Send both names, because one client reads `data` and another `models`.
    return json_response({"object": "list", "data": rows, "models": rows, "has_more": more})


def _synth_model(model: Model, org: str) -> SynthModel:
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
