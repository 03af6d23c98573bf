"""Routes for environment keys from Synth clients, which seal them for the cluster so that no proxy can read them."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from synth.api.limits import MAX_ENVIRONMENT_KEY_BYTES
from synth.errors import InvalidKey, Problem
from synth.gateway.api.openapi import json_response
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.environment_keys import store_environment_key
from synth.gateway.deps import GatewayDep
from synth.gateway.errors import ApiError
from synth.gateway.passage import PassageDep
from synth.keys import open_sealed, sealing_key
from synth.service_secrets import Purpose

router = APIRouter(tags=["account"])

_NAME = "ENVIRONMENT_API_KEY"
_ALGORITHM = "libsodium.sealedbox.v1"
# The size for the longest key in a sealed box (an ephemeral public key and an authentication code before it), as
# base64, with line breaks.
_MAX_CIPHERTEXT = 2 * (MAX_ENVIRONMENT_KEY_BYTES + 32 + 16)


class SealedKey(BaseModel):
    """An environment key in a sealed box."""

    name: str = Field(default=_NAME, max_length=100)
    ciphertext_b64: str = Field(
        max_length=_MAX_CIPHERTEXT,
        description=f"Base64 of a libsodium sealed box: {MAX_ENVIRONMENT_KEY_BYTES} bytes inside it",
    )


@router.get("/v1/crypto/public-key", summary="The key to seal secrets with for this cluster")
async def public_key(caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return a base64 X25519 key; it changes only with the cluster's secret."""
    keyring = gateway.service.secrets[Purpose.CLIENTS]
    return json_response({"public_key": sealing_key(keyring), "alg": _ALGORITHM})


@router.post("/v1/env-keys", status_code=201, summary="Keep a sealed key of your task app")
async def add_sealed_key(body: SealedKey, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep) -> Response:
    """Store a key that was sealed with the public key, as `POST /api/environment-keys` without an address does."""
    if body.name != _NAME:
        raise _bad_field("name", f"the name is {body.name!r}", expected=_NAME)
    try:
        key = open_sealed(body.ciphertext_b64, gateway.service.secrets[Purpose.CLIENTS]).decode()
    except (InvalidKey, UnicodeDecodeError) as error:
        expected = "base64 of a libsodium sealed box of UTF-8 text"
        fix = "get the public key again (GET /api/v1/crypto/public-key), seal the key with it, and send that"
        what = str(error) if isinstance(error, InvalidKey) else "what was sealed is not UTF-8"
        raise _bad_field("ciphertext_b64", what, expected=expected, fix=fix) from error
    stored = await store_environment_key(gateway, caller, key)
    passage.about = stored.id
    return json_response({"id": stored.id, "name": _NAME, "updated_at": stored.stored_at}, 201)


@router.get("/v1/env-keys/verify", summary="Whether your organisation has a task-app key")
async def verify(caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return `present`, and the public ids of all keys."""
    keys = await gateway.secrets.environment_keys(caller.org)
    return json_response({"present": bool(keys), "name": _NAME, "ids": [key.id for key in keys]})


def _bad_field(field: str, what: str, *, expected: str, fix: str = "") -> ApiError:
    problem = Problem(what=what, expected=expected, fix=fix, where=field)
    return ApiError(400, problem.text(), param=field, problems=[problem])
