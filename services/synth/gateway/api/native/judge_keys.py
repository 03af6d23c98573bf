"""Routes that store, list and remove the keys of judges' APIs, which jobs refer to by name."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from synth.api.limits import MAX_ENVIRONMENT_KEY_BYTES
from synth.base_url import base_url_fault
from synth.errors import Problem
from synth.gateway.api.openapi import json_response, list_response
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.quotas import check_keys
from synth.gateway.deps import GatewayDep
from synth.gateway.errors import ApiError
from synth.gateway.passage import PassageDep
from synth.outbound.http_guard import origin_of
from synth.runtime import logs

router = APIRouter(tags=["keys"])
log = logs.get("judge keys")

_NAME = r"^[A-Za-z0-9_-]{1,64}$"


class JudgeKeyBody(BaseModel):
    """The key and the address of an OpenAI-compatible API, and the name that a judge's `key` refers to."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=_NAME, description="Letters, digits, _ and -")
    key: str = Field(min_length=1, max_length=MAX_ENVIRONMENT_KEY_BYTES)
    url: str = Field(max_length=2000, description="The API's address; the key is sent nowhere else")


@router.post("/judge-keys", status_code=201, summary="Keep the key of a judge's API")
async def add_judge_key(body: JudgeKeyBody, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep) -> Response:
    """Store a key sealed, in place of an earlier key of this name; it is never shown again."""
    if not (body.key.isascii() and body.key.isprintable()) or body.key.strip() != body.key:
        problem = Problem(
            what="the key has characters that no HTTP header can carry, or blanks around it",
            expected="printable ASCII",
            where="body.key",
        )
        raise ApiError(400, problem.text(), param="key", problems=[problem])
    origin, fault = origin_of(body.url), base_url_fault(body.url)
    if origin is None or fault:
        problem = Problem(
            what=f"{body.url[:80]!r} is not the address of an API: it {fault or 'is no address of HTTP'}",
            expected="such as https://api.example.com/v1",
            where="body.url",
        )
        raise ApiError(400, problem.text(), param="url", problems=[problem])
    kept = await gateway.secrets.judge_keys(caller.org)
    if body.name not in kept:
        check_keys(gateway, caller.org, len(kept), kind="keys of judges")
    await gateway.secrets.put_judge_key(caller.org, body.name, body.key, origin=origin)
    passage.about = body.name
    log.info("judge key stored", org=caller.org, name=body.name, origin=origin, by=caller.key_id)
    return json_response({"name": body.name, "origin": origin}, 201)


@router.get("/judge-keys", summary="The names of your keys of judges")
async def list_judge_keys(caller: CurrentKey, gateway: GatewayDep) -> Response:
    """List the names of your judges' keys, without the keys."""
    return list_response([{"name": name} for name in await gateway.secrets.judge_keys(caller.org)])


@router.delete("/judge-keys/{name}", summary="Forget the key of a judge's API")
async def remove_judge_key(
    name: Annotated[str, Path(max_length=200)], caller: CurrentKey, gateway: GatewayDep
) -> Response:
    """Remove a key; judging that needs it is refused from then on."""
    if not await gateway.secrets.remove_judge_key(caller.org, name):
        problem = Problem(what=f"there is no judge key {name[:120]!r}", fix="`synthctl keys judge ls` shows yours")
        raise ApiError(404, problem.text(), code="judge_key_not_found", problems=[problem])
    return json_response({"name": name, "deleted": True})
