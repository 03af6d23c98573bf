"""Routes that list, show and delete models."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from synth.api.limits import MAX_MODELS
from synth.api.schemas import Deleted
from synth.gateway.api.native.models import find_model, list_base_models, list_made_models, remove_model
from synth.gateway.api.openai.views import ModelObject, model_object
from synth.gateway.api.openapi import json_response, list_response, returns, returns_list
from synth.gateway.auth import CurrentKey
from synth.gateway.deps import GatewayDep

router = APIRouter(tags=["openai"])


@router.get("/models", summary="List models", responses=returns_list(ModelObject))
async def list_models(caller: CurrentKey, gateway: GatewayDep) -> Response:
    """List the models that your jobs made, newest first, and the base models of the cluster."""
    made, more = list_made_models(gateway, caller.org, limit=MAX_MODELS)
    return list_response([model_object(model, caller.org) for model in [*made, *list_base_models(gateway)]], more=more)


@router.get("/models/{model_id:path}", summary="One model", responses=returns(ModelObject))
async def get_model(model_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return a model or a checkpoint; the id may contain slashes and colons."""
    return json_response(model_object(find_model(gateway, caller.org, model_id), caller.org))


@router.delete("/models/{model_id:path}", summary="Delete a model that a job made", responses=returns(Deleted))
async def delete(model_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Delete a model at once, and its files when nothing needs them. Refused while the model's job runs."""
    return json_response(Deleted(id=await remove_model(gateway, caller, model_id), object="model"))
