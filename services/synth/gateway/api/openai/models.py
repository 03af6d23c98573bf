"""Models: list, look at. What a job made is kept as long as its job."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from synth.gateway.api.native.models import MOST, base_models, kept, made_models, model_named
from synth.gateway.api.openai.views import ModelObject, model_object
from synth.gateway.api.openapi import json_response, listing, many, one
from synth.gateway.auth import Caller
from synth.gateway.deps import Parts

router = APIRouter(tags=["openai"])


@router.get("/models", summary="List models", responses=many(ModelObject))
async def list_models(caller: Caller, parts: Parts) -> Response:
    """The models that your jobs made, newest first, and the base models that are on the cluster."""
    made, more = made_models(parts, caller.org, limit=MOST)
    return listing([model_object(model, caller.org) for model in [*made, *base_models(parts)]], more=more)


@router.get("/models/{model_id:path}", summary="One model", responses=one(ModelObject))
async def get_model(model_id: str, caller: Caller, parts: Parts) -> Response:
    """One model, or a checkpoint; the id may hold slashes and colons."""
    return json_response(model_object(model_named(parts, caller.org, model_id), caller.org))


@router.delete("/models/{model_id:path}", summary="Delete a model")
async def delete(model_id: str, caller: Caller, parts: Parts) -> Response:
    """Refused: other models may stand on this one, and its job is replayed from what it is made of."""
    raise kept(model_named(parts, caller.org, model_id))
