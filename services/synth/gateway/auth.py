"""Who calls and what they may do: bearer keys, looked up in the secrets' bucket and cached for a short while.

Invariants. Every route that is not open to the world takes a `CurrentKey` (or calls `authenticate`), and the scope
that a request needs follows from its method and path alone, so a route can forget neither. A revoked or rotated key
is refused as soon as the bucket tells of the change, and after `_KEY_TTL_S` when it does not.
"""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from synth.access import Scope
from synth.bus.connection import Connection
from synth.bus.kv.secrets import API_KEYS, ApiKey, SecretStore
from synth.bus.replay import StreamFollower
from synth.bus.server.topology import SECRETS
from synth.errors import Problem
from synth.gateway.chat_proxy.paths import is_chat_path
from synth.gateway.errors import ApiError, unavailable
from synth.ids import OrgId
from synth.keys import is_url_key, key_hash, mistyped
from synth.runtime import logs

log = logs.get("auth")

_KEY_TTL_S = 30.0
_STORE_KEY_FIX = "store it with POST /api/environment-keys, or send `Authorization: Bearer <SYNTH_API_KEY>`"
_NO_KEY_TTL_S = 3.0
_STALE_KEY_TTL_S = 600.0
_MAX_ENTRIES = 10_000


class ApiKeyCache:
    """Caches API keys by their hash. While the bus is away, a recently used key stays valid for reads."""

    def __init__(self, bus: Connection, store: SecretStore) -> None:
        self._bus = bus
        self._store = store
        self._records: dict[str, tuple[float, ApiKey | None]] = {}
        self._environment_owners: dict[str, tuple[float, list[OrgId]]] = {}
        self._ending_keys: dict[str, ApiKey] = {}

    async def follow(self) -> None:
        """Follow the bucket for ever, so that a key made or revoked by another gateway is known here at once."""
        follower = StreamFollower(self._bus.nc, [f"{API_KEYS}>"], stream=f"KV_{SECRETS}", last=True)
        try:
            async for msg in follower.messages():
                try:
                    record = msgspec.json.decode(msg.data, type=ApiKey)
                except msgspec.DecodeError as error:
                    log.warning("a key's record cannot be read", error=str(error))
                    continue
                self.remember(msg.subject.removeprefix(API_KEYS), record)
        finally:
            await follower.close()

    async def find(self, key: str) -> ApiKey | None:
        """The record of this key, even if it has ended; None for an unknown one."""
        digest, now = key_hash(key), time.monotonic()
        seen = self._records.get(digest)
        if seen and now - seen[0] < (_KEY_TTL_S if seen[1] else _NO_KEY_TTL_S):
            return seen[1]
        try:
            found = await self._store.find_api_key(key)
        except (NatsError, JetStreamError, TimeoutError, OSError) as error:
            if seen and seen[1] and now - seen[0] < _STALE_KEY_TTL_S:
                return seen[1]
            raise unavailable("the key cannot be checked while the event log is away; try again") from error
        later = self._records.get(digest)
        if later and later[0] > now:
            # The bucket told of a change while we asked, and our answer may be from before it.
            return later[1]
        self.remember(digest, found)
        return found

    async def owners_of_environment_key(self, key: str) -> list[OrgId]:
        """The organisations that keep this environment key; a removed one may still be named for `_KEY_TTL_S`."""
        digest, now = key_hash(key), time.monotonic()
        seen = self._environment_owners.get(digest)
        if seen and now - seen[0] < (_KEY_TTL_S if seen[1] else _NO_KEY_TTL_S):
            return seen[1]
        try:
            found = await self._store.owners_of_environment_key(key)
        except (NatsError, JetStreamError, TimeoutError, OSError) as error:
            raise unavailable("the key cannot be checked while the event log is away; try again") from error
        if len(self._environment_owners) >= _MAX_ENTRIES:
            self._environment_owners.clear()
        self._environment_owners[digest] = (now, found)
        return found

    def remember(self, digest: str, record: ApiKey | None) -> None:
        """Cache the record of the key with this hash; None for a key that is nobody's."""
        if len(self._records) >= _MAX_ENTRIES:
            self._records.clear()
        self._records[digest] = (time.monotonic(), record)
        if record is not None and (record.revoked_at or record.expires_at):
            self._ending_keys[record.key_id] = record

    def update(self, record: ApiKey) -> None:
        """Replace a cached record by one that was just written, before the bucket tells of it."""
        for digest, (_, seen) in list(self._records.items()):
            if seen is not None and (seen.org, seen.key_id) == (record.org, record.key_id):
                self.remember(digest, record)

    def still_valid(self, caller: ApiKey) -> bool:
        """Whether the key of a long request, which was valid at its start, still is."""
        return self._ending_keys.get(caller.key_id, caller).active


_bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer synth_live_…`")


async def authenticate(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> ApiKey:
    """The key of a request, which allows it. Raises a 401 or a 403."""
    key_cache: ApiKeyCache = request.app.state.gateway.keys
    if credentials is None:
        raise _unauthorised("no API key", expected="`Authorization: Bearer <SYNTH_API_KEY>`")
    key = credentials.credentials
    if mistyped(key):
        raise _unauthorised("this API key is mistyped: its checksum is wrong", fix="copy SYNTH_API_KEY again, whole")
    caller = await key_cache.find(key)
    if caller is None:
        fix = "check SYNTH_API_KEY (`synthctl up` writes it to .env)"
        raise _unauthorised("this API key is not known here", fix=fix)
    if caller.url:
        what = f"this key ({caller.key_id}) is part of a URL, and opens nothing but chat completions there"
        raise _unauthorised(what, expected="`Authorization: Bearer <SYNTH_API_KEY>`", fix="use the whole URL")
    if not caller.active:
        fix = "set SYNTH_API_KEY to one that is live"
        raise _unauthorised(f"this API key ({caller.key_id}) {_ended(caller)}", fix=fix)
    require_scope(caller, *required_scopes(request.method, request.scope["path"]))
    return caller


async def authenticate_chat(request: Request) -> OrgId:
    """The organisation of a chat call. Raises a 401 or a 403.

    A task app may also send the environment key that it was started with, in `X-API-Key` or as the bearer (clients
    send their `api_key` so). A bearer that is an API key, revoked or not, is never taken for an environment key.
    """
    credentials = await _bearer(request)
    key_cache: ApiKeyCache = request.app.state.gateway.keys
    if credentials is not None:
        bearer = credentials.credentials
        is_api_key = mistyped(bearer) or await key_cache.find(bearer) is not None
        owners = [] if is_api_key else await key_cache.owners_of_environment_key(bearer)
        if not owners:
            return (await authenticate(request, credentials)).org
    elif environment_key := request.headers.get("x-api-key", ""):
        owners = await key_cache.owners_of_environment_key(environment_key)
    else:
        return (await authenticate(request, None)).org
    if len(owners) == 1:
        return owners[0]
    if owners:
        what = "this environment key is kept by several organisations, so that it does not say whose call this is"
        raise _unauthorised(what, expected="a key of its own for each, or `Authorization: Bearer <SYNTH_API_KEY>`")
    raise _unauthorised("the key in X-API-Key is no environment key of an organisation here", fix=_STORE_KEY_FIX)


async def authenticate_url_key(request: Request, key: str) -> ApiKey:
    """The URL key in the path of a chat call. Raises a 401; an API key does not open it, for paths are logged."""
    new_url = "`synthctl keys create --url` makes a new URL"
    if not is_url_key(key) or mistyped(key):
        raise _unauthorised("the URL holds no key of `synthctl keys create --url`, or not all of it", fix=new_url)
    key_cache: ApiKeyCache = request.app.state.gateway.keys
    caller = await key_cache.find(key)
    if caller is None or not caller.url:
        raise _unauthorised("the key in the URL is not known here", fix=new_url)
    if not caller.active:
        raise _unauthorised(f"the key in the URL ({caller.key_id}) {_ended(caller)}", fix=new_url)
    require_scope(caller, Scope.INFERENCE)
    return caller


def required_scopes(method: str, path: str) -> tuple[Scope, ...]:
    """The scopes that a request requires."""
    if is_chat_path(method, path):
        return (Scope.INFERENCE,)
    path = path.rstrip("/")
    for prefix, scope in (("/api/keys", Scope.KEYS), ("/api/organisations", Scope.OPERATOR)):
        if path == prefix or path.startswith(f"{prefix}/"):
            return (scope,)
    if method in ("GET", "HEAD"):
        return (Scope.READ,)
    # An environment key opens chat completions, so nobody without that scope may make one known.
    opens_chat = method == "POST" and path.endswith(("/environment-keys", "/env-keys"))
    return (Scope.WRITE, Scope.INFERENCE) if opens_chat else (Scope.WRITE,)


def require_scope(caller: ApiKey, *scopes: Scope) -> None:
    """Raises a 403 when the key lacks one of them."""
    lacking = [scope.value for scope in scopes if scope not in caller.scopes]
    if not lacking:
        return
    problem = Problem(
        what=f"this API key ({caller.key_id}) lacks the scope {', '.join(lacking)}; it has {', '.join(caller.scopes)}",
        expected=f"a key with the scope {', '.join(lacking)}",
        fix=f"`synthctl keys create --scopes {','.join(scopes)}` makes one, with a key that has them and `keys`",
    )
    raise ApiError(403, problem.text(), problems=[problem])


def _unauthorised(what: str, *, expected: str = "", fix: str = "check SYNTH_API_KEY") -> ApiError:
    problem = Problem(what=what, expected=expected, fix=fix)
    return ApiError(401, problem.text(), problems=[problem])


def _ended(key: ApiKey) -> str:
    moment = key.revoked_at or key.expires_at
    assert moment is not None
    return f"{'was revoked' if key.revoked_at else 'expired'} at {moment.isoformat(timespec='seconds')}"


CurrentKey = Annotated[ApiKey, Depends(authenticate)]
