"""Routes that store, list and remove the keys of task apps, and that end chat by one of them."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from synth.api.limits import MAX_ENVIRONMENT_KEY_BYTES, MAX_URL
from synth.api.schemas import EnvironmentKeyView
from synth.bus.kv.environment_keys import EnvironmentKey
from synth.errors import InvalidKey, Problem
from synth.gateway.api.openapi import json_response, list_response, returns, returns_list
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.environment_keys import store_environment_key, view_environment_keys
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.errors import ApiError
from synth.gateway.passage import PassageDep
from synth.runtime import logs

router = APIRouter(tags=["account"])
log = logs.get("environment keys")


class EnvironmentKeyBody(BaseModel):
    """The key that opens your task app."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str = Field(max_length=MAX_ENVIRONMENT_KEY_BYTES)
    url: str | None = Field(
        default=None,
        max_length=MAX_URL,
        description="The task app's address: the key is sent to its scheme, host and port alone. Without it, to the "
        "first task app that this API key names and that answers, for a while; if the key opens it, that is its own",
    )
    chat: bool | None = Field(
        default=None,
        description="Whether it opens chat completions as `X-API-Key`, too, for a while; without it, where this API "
        "key has the scope `inference` and the key is long enough",
    )


@router.post(
    "/environment-keys", status_code=201, summary="Keep a key of your task app", responses=returns(EnvironmentKeyView)
)
async def add_environment_key(
    body: EnvironmentKeyBody, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep
) -> Response:
    """Store the key sealed; it is never shown again. Storing the same key for the same address again renews it."""
    stored = await store_environment_key(gateway, caller, body.key, url=body.url, chat=body.chat)
    passage.about = stored.id
    return json_response(stored, 201)


@router.get("/environment-keys", summary="Your task-app keys, oldest first", responses=returns_list(EnvironmentKeyView))
async def environment_keys(caller: CurrentKey, gateway: GatewayDep) -> Response:
    """List the id and the address of each key, never the key itself."""
    keys = await gateway.secrets.environment_keys(caller.org)
    return list_response(await view_environment_keys(gateway, caller.org, keys))


@router.delete("/environment-keys/{key_id}", summary="Forget a key of your task app")
async def remove_environment_key(key_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Remove a key. Jobs that start later do not try it, and it does not authenticate chat any more."""
    try:
        kept = await _find(gateway, caller.org, key_id)
    except InvalidKey:
        # The secret that sealed it no longer exists: the key is unusable, and can be removed.
        kept = None
    await gateway.secrets.remove_environment_key(caller.org, key_id)
    if kept is not None:
        gateway.keys.forget_chat(kept.key)
    log.info("environment key removed", org=caller.org, key=key_id, by=caller.key_id)
    return json_response({"id": key_id, "deleted": True})


@router.delete(
    "/environment-keys/{key_id}/chat", summary="End chat by a task-app key", responses=returns(EnvironmentKeyView)
)
async def revoke_chat(key_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """End chat by a key; it opens your task app as before. Repeating the request changes nothing."""
    kept = await _find(gateway, caller.org, key_id)
    await gateway.secrets.revoke_chat(caller.org, kept.key)
    gateway.keys.forget_chat(kept.key)
    log.info("chat by environment key revoked", org=caller.org, key=key_id, by=caller.key_id)
    [view] = await view_environment_keys(gateway, caller.org, [kept])
    return json_response(view)


async def _find(gateway: Gateway, org: str, id: str) -> EnvironmentKey:
    result = await gateway.secrets.environment_key(org, id)
    if result is None:
        problem = Problem(what=f"there is no environment key {id[:120]!r}", fix="`GET /api/environment-keys` has yours")
        raise ApiError(404, problem.text(), code="environment_key_not_found", problems=[problem])
    return result
