"""The caller, the keys of its task apps, and whether the gateway is well."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from synth.api.limits import MAX_ENVIRONMENT_KEY_BYTES
from synth.api.schemas import Account
from synth.errors import Problem
from synth.gateway.api.openapi import json_response, list_response, returns
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.environment_keys import store_environment_key
from synth.gateway.deps import GatewayDep
from synth.gateway.errors import ApiError

router = APIRouter(tags=["account"])


class EnvironmentKeyBody(BaseModel):
    """The key that opens your task app."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str = Field(max_length=MAX_ENVIRONMENT_KEY_BYTES)


@router.get("/me", summary="Who you are", responses=returns(Account))
async def me(caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Your organisation, and the key that you use: its id and name, and what it may do."""
    organisation = await gateway.secrets.organisation(caller.org)
    return json_response(
        Account(
            org=caller.org,
            org_name=organisation.name if organisation else "",
            key_id=caller.key_id,
            key_name=caller.name,
            scopes=caller.scopes,
        )
    )


@router.post("/environment-keys", status_code=201, summary="Keep a key of your task app")
async def add_environment_key(body: EnvironmentKeyBody, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Stored sealed; only its id is ever shown again. Jobs try each key on their task app."""
    id = await store_environment_key(gateway, caller.org, body.key)
    return json_response({"id": id}, 201)


@router.get("/environment-keys", summary="The ids of your task-app keys")
async def environment_keys(caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Ids only."""
    keys = await gateway.secrets.environment_keys(caller.org)
    return list_response([{"id": key.id} for key in keys])


@router.delete("/environment-keys/{key_id}", summary="Forget a key of your task app")
async def remove_environment_key(key_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Jobs that start after this do not try it."""
    if not await gateway.secrets.remove_environment_key(caller.org, key_id):
        problem = Problem(
            what=f"there is no environment key {key_id[:120]!r}", fix="`GET /api/environment-keys` has yours"
        )
        raise ApiError(404, problem.text(), code="environment_key_not_found", problems=[problem])
    return json_response({"id": key_id, "deleted": True})


@router.post("/v1/sdk-logs", include_in_schema=False)
async def take_client_logs(caller: CurrentKey) -> Response:
    """What a client tells of itself is not kept: nothing here is made of it."""
    return json_response({"accepted": 0})


@router.get("/health", summary="Whether the gateway is well (no key needed)")
async def health(gateway: GatewayDep) -> Response:
    """`unhealthy` names every part that is not, with its problem."""
    unhealthy = gateway.service.health()
    status = "unhealthy" if unhealthy else "ok"
    response = json_response({"status": status, "unhealthy": unhealthy}, 503 if unhealthy else 200)
    if unhealthy:
        response.headers["Retry-After"] = "2"
    return response
