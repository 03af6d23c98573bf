"""Who calls: bearer keys, looked up in the sealed bucket and remembered for a short while."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from synth.bus.secrets import ApiKey, SecretStore
from synth.gateway.failures import ApiError, unavailable
from synth.keys import key_hash

_KNOWN_S = 30.0
_UNKNOWN_S = 3.0
_STALE_S = 600.0
_MOST = 10_000


class KeyRing:
    """API keys by their hash. While the bus is away, a key that was known lately still opens the read model."""

    def __init__(self, store: SecretStore) -> None:
        self._store = store
        self._seen: dict[str, tuple[float, ApiKey | None]] = {}

    async def find(self, key: str) -> ApiKey | None:
        """Whose key this is; None for nobody's."""
        digest, now = key_hash(key), time.monotonic()
        seen = self._seen.get(digest)
        if seen and now - seen[0] < (_KNOWN_S if seen[1] else _UNKNOWN_S):
            return seen[1]
        try:
            found = await self._store.find_api_key(key)
        except (NatsError, JetStreamError, TimeoutError, OSError) as error:
            if seen and seen[1] and now - seen[0] < _STALE_S:
                return seen[1]
            raise unavailable("the key cannot be checked while the event log is away; try again") from error
        if len(self._seen) >= _MOST:
            self._seen.clear()
        self._seen[digest] = (now, found)
        return found


_bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer synth_live_…`")


async def authenticate(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> ApiKey:
    """The caller of a request. Raises a 401."""
    ring: KeyRing = request.app.state.gateway.keys
    if credentials is None:
        raise ApiError(401, "no API key; send it as `Authorization: Bearer <SYNTH_API_KEY>`")
    caller = await ring.find(credentials.credentials)
    if caller is None:
        raise ApiError(401, "this API key is not known here; check SYNTH_API_KEY (`synthctl up` writes it to .env)")
    return caller


Caller = Annotated[ApiKey, Depends(authenticate)]
