"""Authentication and scopes of requests: bearer keys from the secrets' bucket, cached for a short time.

Invariants. Every route that is not open to the world takes a `CurrentKey` (or calls `authenticate`), and the scope
that a request needs depends only on its method and path, so a route can forget neither. A revoked or rotated key
is refused as soon as the bucket reports the change, and otherwise after `_KEY_TTL_S`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from synth.access import Scope
from synth.bus.connection import Connection
from synth.bus.kv.chat_grants import CHAT_GRANTS, ChatGrant, first_granted, latest_grants
from synth.bus.kv.secrets import API_KEYS, ApiKey, SecretStore
from synth.bus.replay import StreamFollower
from synth.bus.server.topology import API_KEYS as API_KEYS_BUCKET
from synth.errors import Problem
from synth.gateway.chat_proxy.paths import is_model_call
from synth.gateway.errors import ApiError, unavailable
from synth.gateway.passage import PASSAGE, Passage
from synth.ids import OrgId
from synth.keys import is_url_key, key_hash, mistyped
from synth.runtime import logs

log = logs.get("auth")

#: The path that a bus key opens, and no other key.
FEEDS_PATH = "/api/feeds"
#: A key with `keys` reads the records of its organisation, an operator reads all records.
AUDIT_PATH = "/api/audit"
#: The path at which a machine without a key requests keys.
HANDSHAKE_PATH = "/api/sdk/handshake"
_KEY_TTL_S = 30.0
_GRANT_FIX = (
    "store it again with POST /api/environment-keys and an API key that has `write` and `inference`, or send "
    "`Authorization: Bearer <SYNTH_API_KEY>`"
)
_NO_KEY_TTL_S = 3.0
_STALE_KEY_TTL_S = 600.0
_MAX_ENTRIES = 10_000
#: When this many keys with an end are cached, keys that ended long ago are forgotten.
_SWEEP_ENDED_FROM = 1000


class ApiKeyCache:
    """A cache of API keys by their hash. While the bus is unavailable, a recently used key stays valid for reads."""

    def __init__(self, bus: Connection, store: SecretStore, *, ended_kept_s: float = 3600.0) -> None:
        """Create an empty cache. ended_kept_s: how long an ended key is kept; no request or feed of it lasts longer."""
        self._ended_kept = timedelta(seconds=ended_kept_s)
        self._bus = bus
        self._store = store
        self._records: dict[str, tuple[float, ApiKey | None]] = {}
        self._grants: dict[str, tuple[float, list[ChatGrant]]] = {}
        self._grants_changed: dict[str, float] = {}
        self._ending_keys: dict[str, ApiKey] = {}
        self._sweep_ended_at = _SWEEP_ENDED_FROM

    async def follow(self) -> None:
        """Follow the bucket for ever, so that a key that another gateway made or revoked is known here at once."""
        watched = [f"{API_KEYS}*.*", f"{CHAT_GRANTS}*.*"]
        follower = StreamFollower(self._bus.nc, watched, stream=f"KV_{API_KEYS_BUCKET}", last=True)
        try:
            async for msg in follower.messages():
                if msg.subject.startswith(CHAT_GRANTS):
                    self._forget_grants(msg.subject.removeprefix(CHAT_GRANTS).split(".")[0])
                    continue
                try:
                    record = msgspec.json.decode(msg.data, type=ApiKey)
                except msgspec.DecodeError as error:
                    log.warning("a key's record cannot be read", error=str(error))
                    continue
                self.remember(msg.subject.rsplit(".", 1)[-1], record)
        finally:
            await follower.close()

    async def find(self, key: str) -> ApiKey | None:
        """Return the record of this key, even if it has ended; None for an unknown key."""
        return await self.find_by_hash(key_hash(key))

    async def find_by_hash(self, digest: str) -> ApiKey | None:
        """Return the record of the key with this hash, even if it has ended; None for an unknown key."""
        now = time.monotonic()
        seen = self._records.get(digest)
        if seen and now - seen[0] < (_KEY_TTL_S if seen[1] else _NO_KEY_TTL_S):
            return seen[1]
        try:
            result = await self._store.find_api_key_by_hash(digest)
        except (NatsError, JetStreamError, TimeoutError, OSError) as error:
            if seen and seen[1] and now - seen[0] < _STALE_KEY_TTL_S:
                return seen[1]
            raise unavailable("the key cannot be checked while the event log is away; try again") from error
        later = self._records.get(digest)
        if later and later[0] > now:
            # The bucket reported a change during the request, and the response may be older than it.
            return later[1]
        self.remember(digest, result)
        return result

    async def chat_grants(self, key: str) -> list[ChatGrant]:
        """Return the grants of chat to this environment key, with the ended ones."""
        return await latest_grants(self._store.chat_digests(key), self._grants_at)

    async def _grants_at(self, digest: str) -> list[ChatGrant]:
        now = time.monotonic()
        seen = self._grants.get(digest)
        if seen and now - seen[0] < (_KEY_TTL_S if seen[1] else _NO_KEY_TTL_S):
            return seen[1]
        try:
            result = await self._store.chat_grants_at(digest)
        except (NatsError, JetStreamError, TimeoutError, OSError) as error:
            raise unavailable("the key cannot be checked while the event log is away; try again") from error
        if len(self._grants) >= _MAX_ENTRIES:
            self._grants.clear()
        # The response may lack a change that was made during the request.
        if self._grants_changed.get(digest, 0.0) < now:
            self._grants[digest] = (now, result)
        return result

    async def chat_ended(self, grant: ChatGrant) -> str | None:
        """Return why a grant of chat is not valid any more; None while it is valid."""
        return await why_chat_ended(grant, self.find_by_hash)

    def forget_chat(self, key: str) -> None:
        """Forget the cached grants of this environment key, because one was just written."""
        for digest in self._store.chat_digests(key):
            self._forget_grants(digest)

    def _forget_grants(self, digest: str) -> None:
        self._grants.pop(digest, None)
        if len(self._grants_changed) >= _MAX_ENTRIES:
            self._grants_changed.clear()
        self._grants_changed[digest] = time.monotonic()

    def remember(self, digest: str, record: ApiKey | None) -> None:
        """Cache the record of the key with this hash; None for a key without an owner."""
        if len(self._records) >= _MAX_ENTRIES:
            self._records.clear()
        self._records[digest] = (time.monotonic(), record)
        if record is not None and (record.revoked_at or record.expires_at):
            self._ending_keys[record.key_id] = record
            if len(self._ending_keys) >= self._sweep_ended_at:
                self._sweep_ended()

    def _sweep_ended(self) -> None:
        """Forget keys that ended so long ago that none of their requests or connections can be open."""
        before = datetime.now(UTC) - self._ended_kept
        ends = {id: (key.revoked_at, key.expires_at) for id, key in self._ending_keys.items()}
        for id, times in ends.items():
            if any(end is not None and end < before for end in times):
                del self._ending_keys[id]
        self._sweep_ended_at = 2 * len(self._ending_keys) + _SWEEP_ENDED_FROM

    def update(self, record: ApiKey) -> None:
        """Replace a cached record by a record that was just written, before the bucket reports it."""
        for digest, (_, seen) in list(self._records.items()):
            if seen is not None and (seen.org, seen.key_id) == (record.org, record.key_id):
                self.remember(digest, record)

    def ending(self) -> list[ApiKey]:
        """Return every cached key that has ended or has an end."""
        return list(self._ending_keys.values())

    def still_valid(self, caller: ApiKey) -> bool:
        """Return whether the key of a long request, which was valid at its start, is still valid."""
        return self._ending_keys.get(caller.key_id, caller).active


async def why_chat_ended(grant: ChatGrant, find: Callable[[str], Awaitable[ApiKey | None]]) -> str | None:
    """Return why a grant of chat is not valid any more; None while it is. It ends with the API key that made it.

    find: returns the API key of a hash.
    """
    if grant.revoked_at is not None:
        return f"was revoked at {grant.revoked_at.isoformat(timespec='seconds')}"
    if not grant.active:
        return f"expired at {grant.expires_at.isoformat(timespec='seconds')}"
    maker = await find(grant.by_hash)
    if maker is None or Scope.INFERENCE not in maker.scopes:
        return f"ended: the API key {grant.by}, which stored it, may not chat"
    return None if maker.active else f"ended: the API key {grant.by}, which stored it, {_ended(maker)}"


_bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer synth_live_…`")


async def authenticate(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> ApiKey:
    """Return the key of a request after checking that it allows the request. Raises a 401 or a 403."""
    passage: Passage = request.scope[PASSAGE]
    if passage.caller is not None:
        return passage.caller
    key_cache: ApiKeyCache = request.app.state.gateway.keys
    if credentials is None:
        raise _unauthorised("no API key", expected="`Authorization: Bearer <SYNTH_API_KEY>`")
    key = passage.tried = credentials.credentials
    if mistyped(key):
        raise _unauthorised("this API key is mistyped: its checksum is wrong", fix="copy SYNTH_API_KEY again, whole")
    caller = passage.shown = await key_cache.find(key)
    if caller is None:
        fix = "check SYNTH_API_KEY (`synthctl up` writes it to .env)"
        raise _unauthorised("this API key is not known here", fix=fix)
    if caller.url:
        what = f"this key ({caller.key_id}) is part of a URL, and opens nothing but chat completions there"
        raise _unauthorised(what, expected="`Authorization: Bearer <SYNTH_API_KEY>`", fix="use the whole URL")
    feed = request.scope["path"].rstrip("/") == FEEDS_PATH
    if caller.bus != feed:
        fix = "`synthctl keys create --bus` makes a bus key" if feed else "set SYNTH_API_KEY to an API key"
        what = "is no bus key, which a feed needs" if feed else "is a bus key, and opens feeds on the bus alone"
        raise _unauthorised(f"this key ({caller.key_id}) {what}", fix=fix)
    if not caller.active:
        fix = "set SYNTH_API_KEY to one that is live"
        raise _unauthorised(f"this API key ({caller.key_id}) {_ended(caller)}", fix=fix)
    _count_request(request, caller.org)
    require_scope(caller, *required_scopes(request.method, request.scope["path"], held=caller.scopes))
    passage.caller = caller
    return caller


async def authenticate_early(request: Request) -> ApiKey:
    """Do the same as `authenticate` before the request has a route."""
    return await authenticate(request, await _bearer(request))


def _count_request(request: Request, org: str) -> None:
    """Count a request against the organisation's limit. Raises a 429."""
    request.app.state.gateway.admission.admit(org)


async def authenticate_chat(request: Request) -> OrgId:
    """Return the organisation of a chat call. Raises a 401 or a 403.

    If chat was granted to its environment key, a task app may also send that key, in `X-API-Key` or as the bearer (in
    which clients send their `api_key`). A bearer that is an API key, revoked or not, is never used as an environment
    key.
    """
    passage: Passage = request.scope[PASSAGE]
    credentials = await _bearer(request)
    key_cache: ApiKeyCache = request.app.state.gateway.keys
    if credentials is not None:
        key = credentials.credentials
        is_api_key = mistyped(key) or await key_cache.find(key) is not None
        grants = [] if is_api_key else await key_cache.chat_grants(key)
        if not grants:
            return (await authenticate(request, credentials)).org
        passage.tried = key
    elif key := request.headers.get("x-api-key", ""):
        passage.tried = key
        grants = await key_cache.chat_grants(key)
    else:
        return (await authenticate(request, None)).org
    if not grants:
        raise _unauthorised("the key in X-API-Key is no environment key that opens chat here", fix=_GRANT_FIX)
    ends = [(grant, await key_cache.chat_ended(grant)) for grant in grants]
    holder = first_granted(grant for grant, ended in ends if ended is None)
    if holder is not None:
        passage.tried = ""
        _count_request(request, holder.org)
        return holder.org
    passage.org = ends[-1][0].org
    raise _unauthorised(f"chat by this environment key {ends[-1][1]}", fix=_GRANT_FIX)


async def authenticate_url_key(request: Request, key: str) -> ApiKey:
    """Return the URL key in the path of a chat call. Raises a 401, also for an API key, because paths are logged."""
    passage: Passage = request.scope[PASSAGE]
    passage.tried = key
    new_url = "`synthctl keys create --url` makes a new URL"
    if not is_url_key(key) or mistyped(key):
        raise _unauthorised("the URL holds no key of `synthctl keys create --url`, or not all of it", fix=new_url)
    key_cache: ApiKeyCache = request.app.state.gateway.keys
    caller = passage.shown = await key_cache.find(key)
    if caller is None or not caller.url:
        raise _unauthorised("the key in the URL is not known here", fix=new_url)
    if not caller.active:
        raise _unauthorised(f"the key in the URL ({caller.key_id}) {_ended(caller)}", fix=new_url)
    passage.tried = ""
    _count_request(request, caller.org)
    require_scope(caller, Scope.INFERENCE)
    return caller


def required_scopes(method: str, path: str, *, held: Sequence[Scope] = ()) -> tuple[Scope, ...]:
    """Return the scopes that a request requires. held: the scopes of its key, for a path that two scopes open."""
    if is_model_call(method, path):
        return (Scope.INFERENCE,)
    path = path.rstrip("/")
    if path == FEEDS_PATH:
        return (Scope.READ,)
    if path == AUDIT_PATH:
        return (Scope.OPERATOR if Scope.OPERATOR in held else Scope.KEYS,)
    operators = ("/api/organisations", "/api/dead-letters")
    for prefix, scope in (("/api/keys", Scope.KEYS), *((prefix, Scope.OPERATOR) for prefix in operators)):
        if path == prefix or path.startswith(f"{prefix}/"):
            return (scope,)
    if method in ("GET", "HEAD"):
        return (Scope.READ,)
    # A judge is a model that answers the caller. The judges of a job's rollouts are a part of the job.
    asks_model = method == "POST" and path.endswith("/judge/v1/score")
    return (Scope.WRITE, Scope.INFERENCE) if asks_model else (Scope.WRITE,)


def require_scope(caller: ApiKey, *scopes: Scope) -> None:
    """Raise a 403 if the key lacks one of the scopes."""
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
