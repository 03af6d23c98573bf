"""Routes of organisations and of their API keys, which they create, list, rotate and revoke."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from synth.access import ORGANISATION_SCOPES, Organisation, Scope
from synth.api.schemas import Key, MadeKey, MadeOrganisation
from synth.bus.kv.secrets import ApiKey
from synth.errors import Problem
from synth.gateway.api.native.models import find_model
from synth.gateway.api.openapi import json_response, list_response, returns, returns_list
from synth.gateway.auth import CurrentKey, require_scope
from synth.gateway.commands.quotas import check_bus_keys, check_keys
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.errors import ApiError, not_found
from synth.gateway.passage import PassageDep
from synth.gateway.subscribers.feeds import end_feeds
from synth.ids import OrgId
from synth.keys import key_hash, url_key_path
from synth.runtime import logs

router = APIRouter(prefix="/api", tags=["keys"])
log = logs.get("keys")

# A thousand years: a year has four digits, and a key that should last has no end.
_MAX_LIFETIME_S = 1000 * 365 * 86_400
#: A scope, which is a string in JSON.
_ScopeName = Annotated[Scope, Field(strict=False)]
_Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]


class KeyBody(BaseModel):
    """A key to create. It can have only scopes that its creator has."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: _Name = "key"
    scopes: list[_ScopeName] = Field(default=[Scope.READ, Scope.WRITE, Scope.INFERENCE], min_length=1, max_length=10)
    expires_in_s: int | None = Field(
        default=None, ge=1, le=_MAX_LIFETIME_S, description="Seconds; without it never, or after a day for a `url`"
    )
    url: bool = Field(default=False, description="For a client that can send nothing but a URL: chat completions alone")
    bus: bool = Field(default=False, description="For a subscriber on the bus: your organisation's events alone")
    model: str | None = Field(
        default=None, min_length=1, max_length=500, description="The one model that a `url` opens; without it, all"
    )


class RotationBody(BaseModel):
    """The options of a key's replacement."""

    model_config = ConfigDict(extra="forbid", strict=True)

    grace_s: int = Field(default=0, ge=0, description="Seconds for which the old one still opens")


class OrganisationBody(BaseModel):
    """An organisation to create."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: _Name


@router.get("/keys", summary="Your organisation's API keys, oldest first", responses=returns_list(Key))
async def list_keys(caller: CurrentKey, gateway: GatewayDep) -> Response:
    """List all keys, with the expired and revoked ones."""
    return list_response([_key_view(key) for key in await gateway.secrets.api_keys(caller.org)])


@router.post("/keys", status_code=201, summary="Make an API key", responses=returns(MadeKey, status=201))
async def add_key(body: KeyBody, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep) -> Response:
    """Create a key; only this response shows `key`."""
    made = await _create_key(gateway, caller, caller.org, body)
    passage.about = made.id
    return json_response(made, 201)


@router.post("/keys/{key_id}/rotate", status_code=201, summary="Replace a key", responses=returns(MadeKey, status=201))
async def rotate_key(
    key_id: str, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep, body: RotationBody | None = None
) -> Response:
    """Create a key with the name, scopes and end of the old one, which stays valid for `grace_s` (0 by default).

    A key is replaced once. While both are valid, both count as keys of your organisation.
    """
    old = await _find_key(gateway, caller, key_id)
    _check_replaceable(old)
    _check_no_longer(caller, old)
    grace, longest = body.grace_s if body else 0, gateway.settings.max_key_grace_s
    if grace > longest:
        raise _wrong("grace_s", f"{grace} s", expected=f"at most {longest} s (SYNTH_MAX_KEY_GRACE_S)")
    if grace:
        await _check_room(gateway, caller.org, bus=old.bus)
    if old.url:
        assert old.expires_at is not None
        key, record = await gateway.secrets.add_url_key(
            caller.org, name=old.name, by=caller.key_id, expires_at=old.expires_at, model=old.model
        )
    elif old.bus:
        key, record = await gateway.secrets.add_bus_key(
            caller.org, name=old.name, by=caller.key_id, expires_at=old.expires_at
        )
    else:
        key, record = await gateway.secrets.add_api_key(
            caller.org, name=old.name, scopes=old.scopes, by=caller.key_id, expires_at=old.expires_at
        )
    ended = await _revoke(gateway, caller, old, after=timedelta(seconds=grace), replaced_by=record.key_id)
    if ended.replaced_by != record.key_id:
        # Another request has replaced or revoked it since; the new key was not shown to any caller.
        await _revoke(gateway, caller, record)
        _check_replaceable(ended)
    gateway.keys.remember(key_hash(key), record)
    passage.about = f"{old.key_id}/{record.key_id}"
    log.info("key rotated", org=caller.org, key=old.key_id, new=record.key_id, by=caller.key_id)
    return json_response(_made_key_view(record, key), 201)


@router.delete("/keys/{key_id}", summary="Revoke a key", responses=returns(Key))
async def revoke_key(key_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Revoke a key at once, on every gateway. Repeating it changes nothing."""
    record = await _revoke(gateway, caller, await _find_key(gateway, caller, key_id))
    log.info("key revoked", org=caller.org, key=key_id, by=caller.key_id)
    return json_response(_key_view(record))


@router.get("/organisations", summary="The cluster's organisations, oldest first", responses=returns_list(Organisation))
async def list_organisations(caller: CurrentKey, gateway: GatewayDep) -> Response:
    """List the organisations. Every route below this path needs the scope `operator`."""
    return list_response(await gateway.secrets.organisations())


@router.post(
    "/organisations", status_code=201, summary="Make an organisation", responses=returns(MadeOrganisation, status=201)
)
async def add_organisation(
    body: OrganisationBody, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep
) -> Response:
    """Create an organisation with a first key that may do everything in it, and that is shown only here."""
    made = await gateway.secrets.add_organisation(body.name)
    log.info("organisation made", org=made.id, by=caller.key_id)
    first = await _create_key(gateway, caller, made.id, KeyBody(name="first", scopes=list(ORGANISATION_SCOPES)))
    passage.org, passage.about = made.id, f"{made.id}/{first.id}"
    return json_response(MadeOrganisation(**msgspec.structs.asdict(made), first_key=first), 201)


@router.post(
    "/organisations/{org_id}/keys",
    status_code=201,
    summary="Make a key of any organisation",
    responses=returns(MadeKey, status=201),
)
async def add_key_of(
    org_id: str, body: KeyBody, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep
) -> Response:
    """Create a key for an organisation that has lost its own keys."""
    found = next((o for o in await gateway.secrets.organisations() if o.id == org_id), None)
    if found is None:
        raise not_found("org", org_id)
    # The organisation's audit records show that an operator created a key for it.
    passage.org = found.id
    made = await _create_key(gateway, caller, found.id, body)
    passage.about = f"{found.id}/{made.id}"
    return json_response(made, 201)


def _key_view(record: ApiKey) -> Key:
    """Return a key as everybody in the organisation may see it."""
    return Key(
        id=record.key_id,
        name=record.name,
        state="revoked" if record.revoked_at else "expired" if record.expired else "live",
        scopes=record.scopes,
        created_at=record.created_at,
        created_by=record.created_by,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at,
        url=record.url,
        model=record.model,
        bus=record.bus,
    )


def _made_key_view(record: ApiKey, key: str) -> MadeKey:
    """Return a new key with its secret, which its creator sees once."""
    path = url_key_path(key) if record.url else None
    return MadeKey(**msgspec.structs.asdict(_key_view(record)), key=key, path=path)


async def _create_key(gateway: Gateway, caller: ApiKey, org: OrgId, body: KeyBody) -> MadeKey:
    await _check_room(gateway, org, bus=body.bus)
    if body.bus:
        return await _create_bus_key(gateway, caller, org, body)
    if body.url:
        return await _create_url_key(gateway, caller, org, body)
    if body.model is not None:
        raise _wrong("model", "an API key is for every model", fix='add "url": true, or leave it out')
    require_scope(caller, *body.scopes)
    ends = _end_of_new_key(caller, org, body.expires_in_s)
    scopes = tuple(scope for scope in Scope if scope in body.scopes)
    key, record = await gateway.secrets.add_api_key(
        org, name=body.name, scopes=scopes, by=caller.key_id, expires_at=ends
    )
    gateway.keys.remember(key_hash(key), record)
    log.info("key made", org=org, key=record.key_id, scopes=",".join(scopes), by=caller.key_id)
    return _made_key_view(record, key)


def _end_of_new_key(
    caller: ApiKey, org: OrgId, seconds: float | None, *, default_s: float | None = None
) -> datetime | None:
    """Return when a key that the caller's key creates ends: in the same organisation, no later than the caller's key.

    seconds: the requested lifetime; default_s: the lifetime if none is requested. Raises a 422.
    """
    now = datetime.now(UTC)
    # An operator's key can create keys for other organisations.
    last = caller.expires_at if caller.org == org else None
    if seconds is None:
        ends = [] if default_s is None else [now + timedelta(seconds=default_s)]
        return min(ends if last is None else [*ends, last], default=None)
    if last is None or now + timedelta(seconds=seconds) <= last:
        return now + timedelta(seconds=seconds)
    raise _wrong(
        "expires_in_s",
        f"{seconds:.0f} s is longer than the key that asks lives ({caller.key_id})",
        expected=f"an end no later than {last.isoformat(timespec='seconds')}",
        fix="leave it out, or make it with a key that lives longer",
    )


async def _check_room(gateway: Gateway, org: OrgId, *, bus: bool) -> None:
    """Raise a 429 if the organisation may have no further live key, or no further bus key."""
    live = [key for key in await gateway.secrets.api_keys(org) if key.active]
    check_keys(gateway, org, len(live), kind="live API keys")
    if bus:
        check_bus_keys(gateway, org, sum(key.bus for key in live))


def _check_replaceable(key: ApiKey) -> None:
    """Raise a 409 for a key that has ended or has a successor: successors with a grace period would all be live."""
    if not key.active:
        problem = Problem(what=f"the key {key.key_id} has ended", expected="a live key", fix="make a new one")
    elif key.replaced_by:
        what = f"the key {key.key_id} was replaced by {key.replaced_by} already"
        fix = f"rotate {key.replaced_by}; to end this one sooner, revoke it"
        problem = Problem(what=what, expected="a key that has no successor", fix=fix)
    else:
        return
    raise ApiError(409, problem.text(), problems=[problem])


def _check_no_longer(caller: ApiKey, old: ApiKey) -> None:
    """Raise a 403 if the caller's key ends before this one: the caller would get a key that outlives its own."""
    last = caller.expires_at
    if last is None or (old.expires_at is not None and old.expires_at <= last):
        return
    problem = Problem(
        what=f"the key {old.key_id} lives longer than the one that asks ({caller.key_id})",
        expected=f"an end no later than {last.isoformat(timespec='seconds')}",
        fix="rotate it with a key that lives as long",
    )
    raise ApiError(403, problem.text(), problems=[problem])


async def _create_url_key(gateway: Gateway, caller: ApiKey, org: OrgId, body: KeyBody) -> MadeKey:
    """Create a URL key, which authenticates only chat completions and always expires."""
    if "scopes" in body.model_fields_set and set(body.scopes) != {Scope.INFERENCE}:
        given = ", ".join(body.scopes)
        raise _wrong("scopes", f"a key in a URL cannot have {given}", expected="inference", fix="leave it out")
    require_scope(caller, Scope.INFERENCE)
    longest = gateway.settings.max_url_key_s
    seconds = min(gateway.settings.url_key_s, longest) if body.expires_in_s is None else body.expires_in_s
    if seconds > longest:
        raise _wrong(
            "expires_in_s",
            f"{seconds} s is too long for a key in a URL, which others keep and log",
            expected=f"at most {longest:.0f} s (SYNTH_MAX_URL_KEY_S)",
        )
    model = None if body.model is None else find_model(gateway, org, body.model).id
    ends = _end_of_new_key(caller, org, body.expires_in_s, default_s=seconds)
    assert ends is not None
    key, record = await gateway.secrets.add_url_key(org, name=body.name, by=caller.key_id, expires_at=ends, model=model)
    gateway.keys.remember(key_hash(key), record)
    log.info("URL key made", org=org, key=record.key_id, model=model or "any", by=caller.key_id)
    return _made_key_view(record, key)


async def _create_bus_key(gateway: Gateway, caller: ApiKey, org: OrgId, body: KeyBody) -> MadeKey:
    """Create a bus key, which can only read the events of the organisation."""
    if gateway.settings.nats_issuer_seed is None:
        raise _wrong(
            "bus",
            "this cluster lets no subscribers in",
            expected="a gateway with SYNTH_NATS_ISSUER_SEED",
            fix="ask the operator; without it, read the events by GET /api/events",
        )
    if body.url or body.model is not None or "scopes" in body.model_fields_set:
        raise _wrong("bus", "a bus key has no `url`, `model` or `scopes`", fix="leave them out")
    require_scope(caller, Scope.READ)
    ends = _end_of_new_key(caller, org, body.expires_in_s)
    key, record = await gateway.secrets.add_bus_key(org, name=body.name, by=caller.key_id, expires_at=ends)
    gateway.keys.remember(key_hash(key), record)
    log.info("bus key made", org=org, key=record.key_id, by=caller.key_id)
    return _made_key_view(record, key)


def _wrong(field: str, what: str, *, expected: str = "", fix: str = "") -> ApiError:
    problem = Problem(what=what, expected=expected, fix=fix, where=f"body.{field}")
    return ApiError(422, problem.text(), type="invalid_request", param=field, problems=[problem])


async def _find_key(gateway: Gateway, caller: ApiKey, id: str) -> ApiKey:
    """Find a key that the caller may change: in its organisation, with no scope that the caller's key lacks."""
    result = next((key for key in await gateway.secrets.api_keys(caller.org) if key.key_id == id), None)
    if result is None:
        raise not_found("key", id)
    require_scope(caller, *result.scopes)
    return result


async def _revoke(
    gateway: Gateway,
    caller: ApiKey,
    key: ApiKey,
    *,
    after: timedelta = timedelta(),
    replaced_by: str | None = None,
) -> ApiKey:
    record = await gateway.secrets.revoke_api_key(caller.org, key.key_id, after=after, replaced_by=replaced_by)
    assert record is not None
    gateway.keys.update(record)
    if record.bus and record.revoked_at:
        await end_feeds(gateway.bus, record)
    return record
