"""The caller, the keys of its task apps, and whether the gateway is well."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from synth.gateway.auth import Caller
from synth.gateway.openapi import json_response, listing
from synth.gateway.state import Parts

router = APIRouter(prefix="/api", tags=["account"])


class EnvironmentKeyBody(BaseModel):
    """The key that opens your task app."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str = Field(min_length=1, max_length=1024)


@router.get("/me", summary="Who you are")
async def me(caller: Caller) -> Response:
    """Your organisation, and the public name of the key that you use."""
    return json_response({"org": caller.org, "key_id": caller.key_id})


@router.post("/environment-keys", status_code=201, summary="Keep a key of your task app")
async def add_environment_key(body: EnvironmentKeyBody, caller: Caller, parts: Parts) -> Response:
    """Stored sealed; only its id is ever shown again. Jobs try each key on their task app."""
    return json_response({"id": await parts.secrets.add_environment_key(caller.org, body.key)}, 201)


@router.get("/environment-keys", summary="The ids of your task-app keys")
async def environment_keys(caller: Caller, parts: Parts) -> Response:
    """Ids only."""
    keys = await parts.secrets.environment_keys(caller.org)
    return listing([{"id": key.id} for key in keys])


@router.get("/health", summary="Whether the gateway is well (no key needed)")
async def health(parts: Parts) -> Response:
    """`ills` names every part that is not."""
    ills = parts.service.health()
    return json_response({"status": "ill" if ills else "ok", "ills": ills}, 503 if ills else 200)
