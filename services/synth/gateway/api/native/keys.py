"""Organisations, and the API keys of one: made, listed, rotated, revoked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from synth.bus.kv.secrets import ORGANISATION_SCOPES, ApiKey, Organisation, Scope
from synth.errors import Problem
from synth.gateway.api.key_views import Key, MadeKey, MadeOrganisation, shown, shown_once
from synth.gateway.api.openapi import json_response, listing, many, one
from synth.gateway.auth import Caller, need_scope
from synth.gateway.deps import Gateway, Parts
from synth.gateway.errors import ApiError, not_found
from synth.ids import OrgId
from synth.keys import key_hash
from synth.runtime import logs

router = APIRouter(prefix="/api", tags=["keys"])
log = logs.get("keys")

_LONGEST_S = 10 * 365 * 86_400
_LONGEST_GRACE_S = 30 * 86_400
#: A scope as JSON has it: a word.
_Word = Annotated[Scope, Field(strict=False)]
_Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]


class KeyBody(BaseModel):
    """A key to make. It may have scopes that its maker has, no others."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: _Name = "key"
    scopes: list[_Word] = Field(default=[Scope.READ, Scope.WRITE, Scope.INFERENCE], min_length=1, max_length=10)
    expires_in_s: int | None = Field(default=None, ge=1, le=_LONGEST_S, description="Seconds; without it, never")


class RotationBody(BaseModel):
    """How a key is replaced."""

    model_config = ConfigDict(extra="forbid", strict=True)

    grace_s: int = Field(default=0, ge=0, le=_LONGEST_GRACE_S, description="For how long the old one still opens")


class OrganisationBody(BaseModel):
    """An organisation to make."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: _Name


@router.get("/keys", summary="Your organisation's API keys, oldest first", responses=many(Key))
async def list_keys(caller: Caller, parts: Parts) -> Response:
    """Those that have ended too."""
    return listing([shown(key) for key in await parts.secrets.api_keys(caller.org)])


@router.post("/keys", status_code=201, summary="Make an API key", responses=one(MadeKey, status=201))
async def add_key(body: KeyBody, caller: Caller, parts: Parts) -> Response:
    """The answer is the one place that shows `key`."""
    return json_response(await _made(parts, caller, caller.org, body), 201)


@router.post("/keys/{key_id}/rotate", status_code=201, summary="Replace a key", responses=one(MadeKey, status=201))
async def rotate_key(key_id: str, caller: Caller, parts: Parts, body: RotationBody | None = None) -> Response:
    """A new key with the name, scopes and end of the old one, which opens for `grace_s` more: by default not at all."""
    old = await _key(parts, caller, key_id)
    if not old.active:
        problem = Problem(what=f"the key {key_id} has ended", expected="a live key", fix="make a new one")
        raise ApiError(409, problem.text(), problems=[problem])
    key, record = await parts.secrets.add_api_key(
        caller.org, name=old.name, scopes=old.scopes, by=caller.key_id, expires_at=old.expires_at
    )
    parts.keys.keep(key_hash(key), record)
    await _revoke(parts, caller, old, after=timedelta(seconds=body.grace_s if body else 0))
    log.info("key rotated", org=caller.org, key=old.key_id, new=record.key_id, by=caller.key_id)
    return json_response(shown_once(record, key), 201)


@router.delete("/keys/{key_id}", summary="Revoke a key", responses=one(Key))
async def revoke_key(key_id: str, caller: Caller, parts: Parts) -> Response:
    """At once, on every gateway. Repeating it changes nothing."""
    record = await _revoke(parts, caller, await _key(parts, caller, key_id))
    log.info("key revoked", org=caller.org, key=key_id, by=caller.key_id)
    return json_response(shown(record))


@router.get("/organisations", summary="The cluster's organisations, oldest first", responses=many(Organisation))
async def list_organisations(caller: Caller, parts: Parts) -> Response:
    """Needs the scope `operator`, as every route below this path does."""
    return listing(await parts.secrets.organisations())


@router.post(
    "/organisations", status_code=201, summary="Make an organisation", responses=one(MadeOrganisation, status=201)
)
async def add_organisation(body: OrganisationBody, caller: Caller, parts: Parts) -> Response:
    """With a first key, which is shown here alone and may do everything in it."""
    made = await parts.secrets.add_organisation(body.name)
    log.info("organisation made", org=made.id, by=caller.key_id)
    first = await _made(parts, caller, made.id, KeyBody(name="first", scopes=list(ORGANISATION_SCOPES)))
    return json_response(MadeOrganisation(**msgspec.structs.asdict(made), first_key=first), 201)


@router.post(
    "/organisations/{org_id}/keys",
    status_code=201,
    summary="Make a key of any organisation",
    responses=one(MadeKey, status=201),
)
async def add_key_of(org_id: str, body: KeyBody, caller: Caller, parts: Parts) -> Response:
    """For one that has lost its own."""
    found = next((o for o in await parts.secrets.organisations() if o.id == org_id), None)
    if found is None:
        raise not_found("org", org_id)
    return json_response(await _made(parts, caller, found.id, body), 201)


async def _made(parts: Gateway, caller: ApiKey, org: OrgId, body: KeyBody) -> MadeKey:
    need_scope(caller, *body.scopes)
    ends = datetime.now(UTC) + timedelta(seconds=body.expires_in_s) if body.expires_in_s else None
    scopes = tuple(scope for scope in Scope if scope in body.scopes)
    key, record = await parts.secrets.add_api_key(org, name=body.name, scopes=scopes, by=caller.key_id, expires_at=ends)
    parts.keys.keep(key_hash(key), record)
    log.info("key made", org=org, key=record.key_id, scopes=",".join(scopes), by=caller.key_id)
    return shown_once(record, key)


async def _key(parts: Gateway, caller: ApiKey, id: str) -> ApiKey:
    """A key that the caller may change: one of its organisation that can do no more than its own."""
    found = next((key for key in await parts.secrets.api_keys(caller.org) if key.key_id == id), None)
    if found is None:
        raise not_found("key", id)
    need_scope(caller, *found.scopes)
    return found


async def _revoke(parts: Gateway, caller: ApiKey, key: ApiKey, *, after: timedelta = timedelta()) -> ApiKey:
    record = await parts.secrets.revoke_api_key(caller.org, key.key_id, after=after)
    assert record is not None
    parts.keys.changed(record)
    return record
