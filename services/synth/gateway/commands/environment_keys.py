"""The single command that stores an environment key, for every API: checked, sealed, and granted chat if allowed."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from synth.access import Scope
from synth.api.limits import MAX_ENVIRONMENT_KEY_BYTES
from synth.api.schemas import EnvironmentKeyChat, EnvironmentKeyView
from synth.bus.kv.chat_grants import ChatGrant
from synth.bus.kv.environment_keys import EnvironmentKey
from synth.bus.kv.secrets import ApiKey
from synth.errors import Problem
from synth.gateway.auth import require_scope
from synth.gateway.commands.quotas import check_keys
from synth.gateway.deps import Gateway
from synth.gateway.errors import ApiError
from synth.keys import is_platform_key
from synth.outbound.http_guard import origin_of
from synth.runtime import logs

log = logs.get("environment keys")


async def store_environment_key(
    gateway: Gateway, caller: ApiKey, key: str, *, url: str | None = None, chat: bool | None = None
) -> EnvironmentKeyView:
    """Store a key of the organisation's task apps.

    url: an address of the task app, whose origin the key then belongs to; without it, the key belongs to the first task
    app that this API key names, if it opens that app. chat: whether the key also opens chat completions; None: if the
    API key itself may chat, and the key is long enough and opens no chat for another organisation. Raises a 400 for an
    unusable key, a 403 for chat that the API key may not grant, and a 409 if the key opens chat for another
    organisation.
    """
    _check(key)
    settings = gateway.settings
    long_enough = len(key) >= settings.environment_chat_characters
    if chat:
        require_scope(caller, Scope.INFERENCE)
        if not long_enough:
            raise _unusable(
                f"the environment key has {len(key)} characters, too few to open chat",
                expected=f"{settings.environment_chat_characters} or more (SYNTH_ENVIRONMENT_CHAT_CHARACTERS)",
            )
    origin = _origin(url)
    kept = await gateway.secrets.environment_keys(caller.org)
    if all((known.key, known.origin) != (key, origin) for known in kept):
        check_keys(gateway, caller.org, len(kept), kind="environment keys")
    stored = await gateway.secrets.add_environment_key(
        caller.org,
        key,
        by=caller.key_id,
        origin=origin,
        offered_for=timedelta(seconds=settings.environment_key_offer_s),
    )
    granted = (chat or (chat is None and long_enough and Scope.INFERENCE in caller.scopes)) and await _grant_chat(
        gateway, caller, key
    )
    if chat and not granted:
        problem = Problem(
            what=f"the environment key is stored as {stored.id}, but it opens chat for another organisation",
            expected="a key that only your organisation has",
            fix="start the task app with a new random key and store that one, or send "
            "`Authorization: Bearer <SYNTH_API_KEY>`",
        )
        raise ApiError(409, problem.text(), param="chat", problems=[problem])
    log.info(
        "environment key stored", org=caller.org, key=stored.id, origin=origin or "", by=caller.key_id, chat=granted
    )
    [view] = await view_environment_keys(gateway, caller.org, [stored])
    return view


async def _grant_chat(gateway: Gateway, caller: ApiKey, key: str) -> bool:
    """Grant chat to the key. Returns False if it opens chat for another organisation already."""

    async def has_ended(grant: ChatGrant) -> bool:
        return await gateway.keys.chat_ended(grant) is not None

    grant = await gateway.secrets.grant_chat(
        caller.org,
        key,
        by=caller.key_id,
        by_hash=caller.digest,
        lasts=timedelta(seconds=gateway.settings.environment_chat_s),
        has_ended=has_ended,
    )
    gateway.keys.forget_chat(key)
    if grant is None:
        log.warning("environment key opens chat for another organisation", org=caller.org, by=caller.key_id)
    return grant is not None


async def view_environment_keys(gateway: Gateway, org: str, keys: list[EnvironmentKey]) -> list[EnvironmentKeyView]:
    """Return environment keys as everybody in the organisation may see them, never the keys themselves."""
    grants = await gateway.secrets.chat_grants_of(org, keys)
    return [
        EnvironmentKeyView(
            id=key.id,
            origin=key.origin,
            stored_by=key.stored_by,
            stored_at=key.stored_at,
            offered_until=key.offered_until,
            offered_to=key.offered_to,
            chat=await _view_chat(gateway, grants[key.id]) if key.id in grants else None,
        )
        for key in keys
    ]


async def _view_chat(gateway: Gateway, grant: ChatGrant) -> EnvironmentKeyChat:
    state: Literal["live", "ended"] = "live" if await gateway.keys.chat_ended(grant) is None else "ended"
    return EnvironmentKeyChat(
        state=state, made_by=grant.by, made_at=grant.made_at, expires_at=grant.expires_at, revoked_at=grant.revoked_at
    )


def _origin(url: str | None) -> str | None:
    if url is None:
        return None
    origin = origin_of(url.strip())
    if origin is None:
        problem = Problem(
            what=f"{url[:80]!r} is not the address of a task app",
            expected="such as https://app.example.com, without a user's name in it",
            where="url",
        )
        raise ApiError(400, problem.text(), param="url", problems=[problem])
    return origin


def _check(key: str) -> None:
    """Raise a 400, without the key, if no HTTP header can carry the key or it is another kind of secret."""
    what = None
    expected = f"printable ASCII, 1 to {MAX_ENVIRONMENT_KEY_BYTES:,} bytes: what your task app compares with"
    if not key:
        what = "the environment key is empty"
    elif len(key.encode()) > MAX_ENVIRONMENT_KEY_BYTES:
        what = f"the environment key has {len(key.encode()):,} bytes"
    elif not (key.isascii() and key.isprintable()) or key.strip() != key:
        what = "the environment key has characters that no HTTP header can carry, or blanks around it"
    elif is_platform_key(key):
        what = "this is an API key of a cluster, and an environment key is sent to a task app"
        expected = "a key of the task app's own, its ENVIRONMENT_API_KEY"
    if what is not None:
        raise _unusable(what, expected=expected)


def _unusable(what: str, *, expected: str) -> ApiError:
    problem = Problem(what=what, expected=expected)
    return ApiError(400, problem.text(), problems=[problem])
