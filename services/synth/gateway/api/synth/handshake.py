"""The handshake of `synth-ai setup`: a new machine requests keys, and a person with a key approves it.

The client opens a page that shows a code. `synthctl setup --approve CODE` approves it for the organisation of the
caller's key. The client's next poll then makes an API key and an environment key, and returns them once. Nothing is
stored before the approval.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import HTMLResponse, Response

from synth.access import Scope
from synth.api.schemas import ApprovedDevice
from synth.bus.kv.secrets import DeviceApproval
from synth.errors import InvalidKey, Problem
from synth.gateway.api.openapi import json_response, returns
from synth.gateway.api.synth.device_codes import LIFETIME_S, new_device_code, read_device_code, read_user_code
from synth.gateway.auth import HANDSHAKE_PATH, CurrentKey, require_scope
from synth.gateway.commands.environment_keys import store_environment_key
from synth.gateway.commands.quotas import check_keys
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.errors import ApiError
from synth.gateway.passage import PassageDep
from synth.keys import key_hash
from synth.runtime import logs
from synth.service_secrets import Keyring, Purpose

router = APIRouter(tags=["keys"])
log = logs.get("handshake")

_PATH = HANDSHAKE_PATH.removeprefix("/api")
#: Seconds between two polls of a client.
_INTERVAL_S = 3
_SCOPES = (Scope.READ, Scope.WRITE, Scope.INFERENCE)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Approve a machine · Synth</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 36rem; margin: 15vh auto; padding: 0 1rem; color: #1a1a1a }}
.code {{ font: 600 2rem/1.4 ui-monospace, monospace; letter-spacing: .05em }}
pre {{ background: #f3f3f3; border-radius: 6px; padding: .8rem 1rem; overflow-x: auto }}
</style></head><body>
<h1>Approve a machine</h1>
<p class="code">{code}</p>
<p>A client requests keys of this cluster. If you started it, approve it within {minutes} minutes, on a machine that has
a key with the scope <code>keys</code>:</p>
<pre>synthctl setup --approve {code}</pre>
<p>If you did not start it, do nothing.</p>
</body></html>
"""


class TokenBody(BaseModel):
    """The code that `init` returned."""

    device_code: str = Field(max_length=200)


class ApprovalBody(BaseModel):
    """The code that the page shows."""

    model_config = ConfigDict(extra="forbid", strict=True)

    code: str = Field(min_length=1, max_length=100)


@router.post(f"{_PATH}/init", summary="Request keys for this machine")
async def init(request: Request, gateway: GatewayDep) -> Response:
    """Start a handshake without a key. Open `verification_uri`; poll `token` with `device_code` until its approval."""
    code = new_device_code(_keyring(gateway))
    page = request.url.replace(path=HANDSHAKE_PATH, query=f"code={code.user_code}")
    return json_response(
        {
            "device_code": code.text,
            "user_code": code.user_code,
            "verification_uri": str(page),
            "expires_in": LIFETIME_S,
            "interval": _INTERVAL_S,
        }
    )


@router.get(_PATH, summary="The page that shows the code of a machine", response_class=HTMLResponse)
async def page(code: str, gateway: GatewayDep) -> Response:
    """Return the page for a browser."""
    user_code = _read_user_code(gateway, code)
    headers = {"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return HTMLResponse(_PAGE.format(code=user_code, minutes=LIFETIME_S // 60), headers=headers)


@router.post(f"{_PATH}/token", summary="The keys of an approved machine")
async def token(body: TokenBody, gateway: GatewayDep, passage: PassageDep) -> Response:
    """Return 428 until the code is approved, then the keys, once; 410 for an expired code. Needs no key."""
    try:
        code = read_device_code(body.device_code, _keyring(gateway))
    except InvalidKey as error:
        raise _refused(404, str(error), fix="start the setup again") from error
    expired = _refused(410, "this device code has expired", fix="start the setup again")
    if code.expires_at <= datetime.now(UTC).timestamp():
        raise expired
    approval = await gateway.secrets.device_approval(code.user_code)
    if approval is None:
        raise _refused(428, "authorization_pending: nobody has approved this machine yet", fix="approve its code")
    maker = await gateway.keys.find_by_hash(approval.by_hash)
    if maker is None or not maker.active or not await gateway.secrets.take_device_approval(code.user_code):
        raise expired
    key, record = await gateway.secrets.add_api_key(
        approval.org,
        name=f"setup {code.user_code}",
        scopes=tuple(scope for scope in _SCOPES if scope in maker.scopes),
        by=maker.key_id,
        expires_at=maker.expires_at,
    )
    gateway.keys.remember(key_hash(key), record)
    environment_key = secrets.token_urlsafe(24)
    await store_environment_key(gateway, record, environment_key)
    org = await gateway.secrets.organisation(approval.org)
    passage.shown, passage.about = maker, record.key_id
    log.info("keys made for an approved machine", org=record.org, key=record.key_id, by=maker.key_id)
    return json_response(
        {
            "keys": {"synth": key, "rl_env": environment_key},
            "org": {"id": record.org, "name": org.name if org else record.org},
        }
    )


@router.post("/keys/approve", summary="Approve a machine that requests keys", responses=returns(ApprovedDevice))
async def approve(body: ApprovalBody, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep) -> Response:
    """Approve a machine: it gets an API key of your organisation and an environment key.

    The API key has the scopes `read`, `write` and `inference`.
    """
    require_scope(caller, *_SCOPES)
    user_code = _read_user_code(gateway, body.code)
    live = [key for key in await gateway.secrets.api_keys(caller.org) if key.active]
    check_keys(gateway, caller.org, len(live), kind="live API keys")
    stored = await gateway.secrets.environment_keys(caller.org)
    check_keys(gateway, caller.org, len(stored), kind="environment keys")
    ends = datetime.now(UTC) + timedelta(seconds=LIFETIME_S)
    approval = DeviceApproval(org=caller.org, by_hash=caller.digest, expires_at=ends)
    if not await gateway.secrets.approve_device(user_code, approval):
        raise _refused(409, f"the code {user_code} is approved already", fix="wait for the client's next poll")
    passage.about = user_code
    log.info("machine approved", org=caller.org, code=user_code, by=caller.key_id)
    return json_response(ApprovedDevice(code=user_code, expires_at=ends))


def _keyring(gateway: Gateway) -> Keyring:
    return gateway.service.secrets[Purpose.CLIENTS]


def _read_user_code(gateway: Gateway, text: str) -> str:
    try:
        return read_user_code(text, _keyring(gateway))
    except InvalidKey as error:
        fix = "type the code that the page shows; the address of the page has it too"
        raise _refused(404, f"{text[:40]!r}: {error}", fix=fix) from error


def _refused(status: int, what: str, *, fix: str) -> ApiError:
    problem = Problem(what=what, fix=fix)
    return ApiError(status, problem.text(), problems=[problem])
