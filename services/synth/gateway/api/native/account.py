"""Routes that return the caller, its limits and the health of the gateway."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from synth.api.schemas import Account, LimitList
from synth.gateway.api.openapi import json_response, returns
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.quotas import list_limits
from synth.gateway.deps import GatewayDep

router = APIRouter(tags=["account"])


@router.get("/me", summary="Who you are", responses=returns(Account))
async def me(caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return your organisation, and the id, the name and the scopes of the key that you use."""
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


@router.get("/limits", summary="Your limits, and what you use of them", responses=returns(LimitList))
async def limits(caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return your limits. A limit that each gateway counts for itself shows the count of this gateway."""
    return json_response(LimitList(org=caller.org, data=await list_limits(gateway, caller.org)))


@router.post("/v1/sdk-logs", include_in_schema=False)
async def take_client_logs(caller: CurrentKey) -> Response:
    """Accept a client's logs, and discard them."""
    return json_response({"accepted": 0})


@router.get("/health", summary="Whether the gateway is well (no key needed)")
async def health(gateway: GatewayDep) -> Response:
    """Return the health; `unhealthy` names every unhealthy part, with its problem."""
    unhealthy = gateway.service.health()
    status = "unhealthy" if unhealthy else "ok"
    response = json_response({"status": status, "unhealthy": unhealthy}, 503 if unhealthy else 200)
    if unhealthy:
        response.headers["Retry-After"] = "2"
    return response
