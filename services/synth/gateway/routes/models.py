"""Models: what there is to serve and train from, and the files of those that jobs made."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from synth.events import BlobRef
from synth.gateway.auth import Caller
from synth.gateway.failures import not_found
from synth.gateway.openapi import json_response, listing, many, one
from synth.gateway.projection import Model
from synth.gateway.routes.files import download
from synth.gateway.state import Gateway, Parts

router = APIRouter(tags=["models"])

_MOST = 1000

ModelId = Annotated[str, Query(alias="model", description="A model's id")]


@router.get("/api/models", summary="Models: yours, newest first, then the bases", responses=many(Model))
async def list_models(caller: Caller, parts: Parts) -> Response:
    """The models that your jobs made, and the base models that are on the cluster."""
    return listing(_all(parts, caller.org))


@router.get("/api/models/{model_id:path}", summary="One model", responses=one(Model))
async def get_model(model_id: str, caller: Caller, parts: Parts) -> Response:
    """One model; its id may hold slashes and colons."""
    found = next((m for m in _all(parts, caller.org) if m.id == model_id), None)
    if found is None:
        raise not_found("model", model_id)
    return json_response(found)


@router.get("/api/model-files", summary="The files of a model that a job made")
async def model_files(model: ModelId, caller: Caller, parts: Parts) -> Response:
    """Name, size and sha256 of each."""
    files = await _files(parts, caller.org, model)
    return listing([{"name": name, "size": ref.size, "sha256": ref.sha256} for name, ref in sorted(files.items())])


@router.get("/api/model-files/content", summary="One file of a model that a job made")
async def model_file(model: ModelId, name: str, caller: Caller, parts: Parts) -> Response:
    """Its bytes."""
    ref = (await _files(parts, caller.org, model)).get(name)
    if ref is None:
        raise not_found("model", f"{model} has no file {name}")
    return await download(parts.blobs, ref, name)


@router.get("/v1/models", summary="Models, as OpenAI clients list them", tags=["inference"])
@router.get("/api/v1/models", include_in_schema=False)
@router.get("/api/inference/v1/models", include_in_schema=False)
async def openai_models(caller: Caller, parts: Parts) -> Response:
    """The same models in the shape of the OpenAI API."""
    return listing(
        [
            {
                "id": model.id,
                "object": "model",
                "created": int(model.created_at.timestamp()) if model.created_at else 0,
                "owned_by": caller.org if model.job_id else "base",
            }
            for model in _all(parts, caller.org)
        ]
    )


def _all(parts: Gateway, org: str) -> list[Model]:
    made = [row.model for row in parts.model.models(org, limit=_MOST)]
    return made + [Model(id=spec.id, kind="base") for spec in parts.registry.bases() if spec.path is not None]


async def _files(parts: Gateway, org: str, id: str) -> dict[str, BlobRef]:
    row = parts.model.model(org, id)
    if row is None or row.tree is None:
        raise not_found("model", id)
    return (await parts.blobs.manifest(row.tree)).files
